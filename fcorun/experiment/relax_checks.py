"""Refusals of ``relax``, the relaxed lasso, for problems and rows that have none."""

from typing import Any

from fcorun.base.config import Settings
from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.methods.algorithms.algorithm import Baseline
from fcorun.methods.objectives.objective import is_linear_model
from fcorun.methods.problem.penalized_quadratic import MAX_PARAMETERS
from fcorun.methods.regularizers.elastic_net import ElasticNet
from fcorun.methods.regularizers.l1 import L1


def check_relax(plugins: dict[str, Any], names: dict[str, str], settings: Settings) -> None:
    """Refuse ``relax`` for a problem whose solution selects no features, or for several models. Raises UserError."""
    assert settings.relax is not None
    option, objective, algo = f"`relax={settings.relax:g}`", plugins["objective"], plugins["algo"]
    if type(plugins["reg"]) not in (L1, ElasticNet):
        raise UserError(f"{option} fits the features that a lasso selects without a penalty: give `reg=l1` or "
                        "elastic_net, or leave relax out")  # fmt: skip
    smooth = is_linear_model(type(objective)) and objective.has_hessian and not objective.has_client_losses
    if not smooth:
        raise UserError(f"{option} fits a linear model whose loss has a positive second derivative, and objective="
                        f"{names['objective']} has none here: leave relax out")  # fmt: skip
    if algo.has_personal_models or algo.picks_client or not (isinstance(algo, Baseline) or algo.traits.psi_sides):
        raise UserError(f"{option} is for one model of all clients with the penalty, and `algo={names['algo']}` trains "
                        "another: leave relax out")  # fmt: skip
    from fcorun.data.datasets.sites import Sites

    if isinstance(plugins["data"], Sites):
        raise UserError(f"{option} fits all rows in one place, and these stay at their sites: leave relax out")


def check_relaxed_rows(relax: float, data: FederatedData, one_output: bool) -> None:
    """Refuse ``relax`` for rows that are not in memory, several outputs, or too many features. Raises UserError."""
    option = f"`relax={relax:g}`"
    if reason := data.train.why_not_in_memory:
        raise UserError(f"{option} needs all training rows in memory, and these {reason}; or leave relax out")
    n_features = data.train.x.shape[1]
    if not one_output:
        raise UserError(f"{option} is for one coefficient a feature: leave relax out")
    if n_features > MAX_PARAMETERS:
        raise UserError(f"{option} takes a matrix of all features, at most {MAX_PARAMETERS:,}, and there are "
                        f"{n_features:,}: leave relax out")  # fmt: skip
