"""Monotone vectors, and monotone vectors in a box."""

from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.methods.regularizers.box import check_bounds
from fcorun.methods.regularizers.chain import chain_prox
from fcorun.methods.regularizers.regularizer import Constraint


def isotonic_regression(z, decreasing: bool):
    """Return the nearest monotone point, column by column."""
    sign = -1 if decreasing else 1
    return sign * chain_prox(sign * z, rise=0.0, fall=jnp.inf)


@dataclass(frozen=True)
class Monotone(Constraint):
    """w_1 <= w_2 <= ... along axis 0, for each column of a matrix; ``decreasing``: w_1 >= w_2 >= ..."""

    source = "textbook"

    decreasing: bool = False

    convex = True
    ordered = True

    def project(self, z):
        return isotonic_regression(z, self.decreasing)


@dataclass(frozen=True)
class MonotoneBox(Constraint):
    """w_1 <= w_2 <= ... as in Monotone, and lower <= w_i <= upper; None: no bound on that side.

    The projection is the nearest monotone point, clipped to the box.
    """

    source = "textbook"

    lower: float | None = 0.0
    upper: float | None = 1.0
    decreasing: bool = False

    convex = True
    ordered = True
    across_clients = {"lower": "max", "upper": "min"}

    def __post_init__(self):
        check_bounds(self.lower, self.upper)

    def project(self, z):
        return jnp.clip(isotonic_regression(z, self.decreasing), self.lower, self.upper)
