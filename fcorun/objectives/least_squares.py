"""Least squares."""

from dataclasses import dataclass

from fcorun.objectives.base import Objective


@dataclass(frozen=True)
class LeastSquares(Objective):
    """Mean of (x'w + b - y)^2, without the factor 1/2, as in section 5.1 of Yuan, Zaheer and Reddi (ICML 2021)."""

    tasks = ("regression",)

    def loss(self, prediction, y):
        return (prediction - y) ** 2

    def conjugate(self, u, y):
        return u * y + u**2 / 4
