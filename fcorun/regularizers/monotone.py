"""Monotone vectors, and those in a box."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.regularizers.base import Constraint
from fcorun.regularizers.box import check_bounds
from fcorun.regularizers.chain import chain_prox


def isotonic_regression(z, decreasing: bool):
    """The nearest monotone point, column by column: isotonic regression."""
    sign = -1 if decreasing else 1
    return sign * chain_prox(sign * z, 0.0, jnp.inf)


@dataclass(frozen=True)
class Monotone(Constraint):
    """w_1 <= w_2 <= ... along axis 0, each column of a matrix by itself; ``decreasing``: w_1 >= w_2 >= ..."""

    source = "textbook"

    decreasing: bool = False

    convex = True
    ordered = True

    def project(self, z):
        return isotonic_regression(z, self.decreasing)


@dataclass(frozen=True)
class MonotoneBox(Constraint):
    """Monotone, as in Monotone, and lower <= w_i <= upper; None: no bound on that side.

    The nearest monotone point, clipped, is the nearest point of both.
    """

    source = "textbook"

    lower: float | None = None
    upper: float | None = None
    decreasing: bool = False

    convex = True
    ordered = True
    across_clients = {"lower": "max", "upper": "min"}

    def __post_init__(self):
        check_bounds(self.lower, self.upper)

    def project(self, z):
        return jnp.clip(isotonic_regression(z, self.decreasing), self.lower, self.upper)
