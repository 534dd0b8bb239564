"""Checks of the data of algorithms that compute Hessians."""

import math

from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.problem.penalized_quadratic import MAX_PARAMETERS


def check_hessian(experiment: PreparedExperiment, data: FederatedData) -> None:
    """Refuse Hessians of too many parameters, and local fits to too few rows. Raises UserError."""
    shapes = experiment.objective.shapes(data.features.shape or data.train.x.shape[1:], len(data.classes))
    parameters = sum(math.prod(shape) for shape in shapes.values())
    name, traits = experiment.names["algo"], experiment.algo.traits
    if parameters > MAX_PARAMETERS:
        verb = "sends" if traits.hessian else "inverts"
        raise UserError(f"algo={name} {verb} Hessians, of at most {MAX_PARAMETERS:,} parameters, "
                        f"and data={experiment.names['data']} has {parameters:,}: choose another algo")  # fmt: skip
    if not traits.local_fits or getattr(experiment.algo, "ridge", 0.0):
        return
    if len(data.classes) > 2:
        raise UserError(f"algo={name} fits each client's rows alone, and coefficients of {len(data.classes)} classes "
                        "are not unique: give algo.ridge=0.1, say, or choose another algo")  # fmt: skip
    smallest = int(data.train.sizes.argmin())
    rows = int(data.train.sizes[smallest])
    if rows <= parameters:
        client = data.clients[smallest] if data.clients else smallest
        raise UserError(f"algo={name} fits {parameters:,} parameters to the rows of each client alone, and client "
                        f"'{client}' has {rows:,}: give algo.ridge=0.1, say, or choose another algo")  # fmt: skip
