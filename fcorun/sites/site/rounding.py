"""Bounds on curvatures that leave a site, rounded so that they stay bounds."""

import math

import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.problem.curvature import bound_pooled_smoothness, curvature_bounds
from fcorun.sites.transport.messages import Message

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


def bound_curvature(experiment: PreparedExperiment, site_data: FederatedData) -> Message:
    """Bound the curvature of the losses of a site's clients, rounded outwards, in an answer: see ``read_bounds``.

    The bounds of minibatches are those of single rows, and tell the length of the longest row. So without minibatches,
    those of the clients stand in their place.
    """
    if not len(site_data.train):
        return Message("curvature", arrays={"bounds": np.array([np.inf, 0.0, np.inf, 0.0, 0.0])})
    bounds = []
    has_minibatches = experiment.settings.batch_size is not None
    for full_batch in (not has_minibatches, True):
        least, most = curvature_bounds(experiment.objective, site_data, full_batch)
        bounds += [round_down(least), round_up(most)]
    weighting = experiment.settings.client_weighting
    bounds.append(round_up(bound_pooled_smoothness(experiment.objective, site_data, weighting)))
    return Message("curvature", arrays={"bounds": np.array(bounds)})
