"""The message with the bounds on the curvature of a site's losses, rounded so that they stay bounds."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fcorun.methods.problem.curvature import bound_pooled_smoothness, curvature_bounds
from fcorun.sites.plan.messages.message_kind import MessageKind, Quantity, Stage
from fcorun.sites.plan.planned_study import PlannedStudy
from fcorun.sites.transport.messages import Message

if TYPE_CHECKING:
    from fcorun.sites.site.site import Site

_DIGITS = 2


def round_up(value: float, digits: int = _DIGITS) -> float:
    """Return the least number of so many significant digits that is not below a positive ``value``.

    >>> round_up(1.234), round_up(120.0)
    (1.3, 120.0)
    """
    if not (math.isfinite(value) and value > 0):
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    rounded = float(f"{math.ceil(value / unit) * unit:.{digits}g}")
    return rounded if rounded >= value else float(f"{(math.ceil(value / unit) + 1) * unit:.{digits}g}")


def round_down(value: float, digits: int = _DIGITS) -> float:
    """Return a number not above a positive ``value`` whose reciprocal has so many significant digits.

    >>> round_down(0.7) == 1 / 1.5
    True
    """
    return 1 / round_up(1 / value, digits) if value > 0 else value


class Curvature(MessageKind):
    """The bounds on the curvature of the losses of a site's clients together, rounded outwards: see ``read_bounds``.

    The bounds of minibatches are those of single rows, and tell the length of the longest row. So without minibatches,
    those of the clients stand in their place.
    """

    name = "curvature"
    meaning = "five bounds on the curvature of the losses of the site's clients together, rounded"
    stage = Stage.BOUNDS

    def list_quantities(self, study: PlannedStudy) -> list[Quantity]:
        experiment = study.experiment
        if not (experiment.needs_curvature_bounds or experiment.settings.reference):
            return []
        content = "bounds on the curvature of the losses of the site's clients together, rounded to two digits"
        if experiment.settings.batch_size is not None:
            content += "; those of minibatches tell the length of the longest row"
        purpose = "reference=true"
        if experiment.needs_curvature_bounds:
            purpose = f"fields of algo={experiment.names['algo']} that are auto"
        return [self.quantity("5", "once", content, purpose)]

    def describe_in_fits(self, quantity: Quantity, study: PlannedStudy) -> Quantity:
        """Return the bounds, which all values of the path share."""
        return replace(quantity, times=f"{quantity.times} in {study.selection.describe_fits()}")

    def answer(self, site: "Site", request: Message) -> Message:
        experiment, own_data = site.experiment, site.own_data
        if not len(own_data.train):
            return Message(self.name, arrays={"bounds": np.array([np.inf, 0.0, np.inf, 0.0, 0.0])})
        bounds = []
        has_minibatches = experiment.settings.batch_size is not None
        for full_batch in (not has_minibatches, True):
            least, most = curvature_bounds(experiment.objective, own_data, full_batch)
            bounds += [round_down(least), round_up(most)]
        weighting = experiment.settings.client_weighting
        bounds.append(round_up(bound_pooled_smoothness(experiment.objective, own_data, weighting)))
        return Message(self.name, arrays={"bounds": np.array(bounds)})
