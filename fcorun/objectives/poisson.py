"""Poisson regression."""

from dataclasses import dataclass

from jax.scipy.special import xlogy

from fcorun.metrics import Metric
from fcorun.objectives.log_link import LogLink, extended_exp_conjugate


@dataclass(frozen=True)
class Poisson(LogLink):
    """Mean of half the unit deviance of counts y, with a log link: m - y p - y + y log y for the mean m = exp(p).

    p = x'w + b, to which an offset adds the logarithm of an exposure (McCullagh and Nelder, Generalized Linear Models,
    1989, chapter 6). scikit-learn's PoissonRegressor minimises the same and alpha / 2 ||w||^2: that is ``ridge``.
    ``ceiling`` is the largest mean that is expected.
    """

    source = "textbook"

    convex = True
    exp_name = "mean"
    metrics = (*LogLink.metrics, Metric("beyond", label="share of means beyond the ceiling", bounded=True))

    def check_targets(self, y, y_val):
        least = min(part.min() for part in (y, y_val) if len(part))
        if least < 0:
            raise ValueError(
                f"the targets hold {least:g}, and counts are 0 or more: mend them, or choose another objective"
            )
        if not y.any():
            raise ValueError("every target is 0, so that no model with finite parameters fits best: check data.target")

    def exponent(self, prediction, y):
        return prediction

    def half_deviance(self, grown, prediction, y):
        return grown - y * prediction - y + xlogy(y, y)

    def conjugate(self, u, y):
        return extended_exp_conjugate(u + y, self.ceiling) + y - xlogy(y, y)
