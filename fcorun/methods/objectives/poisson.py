"""Poisson regression."""

from dataclasses import dataclass

from jax.scipy.special import xlogy

from fcorun.base.errors import word
from fcorun.base.metrics import Metric
from fcorun.methods.objectives.log_link import LogLink, extended_exp_conjugate


@dataclass(frozen=True)
class Poisson(LogLink):
    """Mean of half the unit deviance of counts y, with a log link: m - y p - y + y log y for the mean m = exp(p).

    The predictions are p = x'w + b, and an offset adds the logarithm of an exposure (McCullagh and Nelder, Generalized
    Linear Models, 1989, chapter 6). scikit-learn's PoissonRegressor minimizes the same loss; its penalty
    alpha / 2 ||w||^2 is ``ridge``.
    """

    source = "textbook"

    convex = True
    is_log_likelihood = True
    exp_name = "mean"
    metrics = (*LogLink.metrics, Metric("beyond", label="share of means beyond the ceiling", bounded=True))

    def check_targets(self, y, y_val):
        smallest = min((split.min() for split in (y, y_val) if len(split)), default=0)
        if smallest < 0:
            raise ValueError(
                f"the targets contain {smallest:g}, and counts are 0 or more: correct them, or choose another objective"
            )
        if len(y) and not y.any():  # a site may have held-out rows alone
            raise ValueError(
                word("every target is 0, so that the optimum has no finite parameters: check `data.target`")
            )

    def exponent(self, prediction, y):
        return prediction

    def half_deviance(self, exp_value, prediction, y):
        return exp_value - y * prediction - y + xlogy(y, y)

    def conjugate(self, u, y):
        return extended_exp_conjugate(u + y, self.ceiling) + y - xlogy(y, y)
