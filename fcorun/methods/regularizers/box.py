"""Boxes, and the nonnegative orthant."""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from fcorun.base.errors import UserError
from fcorun.methods.regularizers.regularizer import Constraint


@dataclass(frozen=True)
class Box(Constraint):
    """The box lower <= w_i <= upper; None: no bound on that side."""

    source = "textbook"

    lower: float | None = 0.0
    upper: float | None = 1.0

    convex = True
    across_clients = {"lower": "max", "upper": "min"}

    def __post_init__(self):
        check_bounds(self.lower, self.upper)

    def project(self, z):
        return jnp.clip(z, self.lower, self.upper)

    def linear_minimizer(self, gradient):
        if self.lower is None or self.upper is None:
            raise UserError(
                "a box without a bound has no minimizer of a linear function: give `reg.lower` and `reg.upper`"
            )
        return jnp.where(gradient > 0, self.lower, self.upper).astype(gradient.dtype)

    def minimizer_bytes(self, shape, itemsize):
        choices = -(-math.prod(shape) // 8)  # a bit each
        return min(2 * itemsize + choices, super().minimizer_bytes(shape, itemsize))


@dataclass(frozen=True)
class Nonneg(Constraint):
    """The nonnegative orthant w_i >= 0."""

    source = "textbook"
    convex = True

    def project(self, z):
        return jnp.maximum(z, 0)


def check_bounds(lower, upper):
    """Raise UserError if the lower bound exceeds the upper one. Traced bounds pass."""
    if isinstance(lower, float) and isinstance(upper, float) and lower > upper:
        raise UserError(
            f"`reg.lower={lower:g}` is above `reg.upper={upper:g}`, so no w is feasible; lower the one or raise the "
            "other"
        )
