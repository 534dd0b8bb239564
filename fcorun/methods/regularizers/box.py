"""Boxes and the nonnegative orthant, a budget in a box, and the l1 norm on boxes."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from fcorun.base.config import UNSET, NonNegative, Positive
from fcorun.base.errors import UserError, word
from fcorun.methods.regularizers.regularizer import Constraint, Norm, soft_threshold


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


@dataclass(frozen=True)
class L1Box(Constraint):
    """psi(w) = strength * ||w||_1 for lower <= w_i <= upper, inf otherwise; None: no bound on that side.

    The box must contain 0, so that 0 is feasible. The prox is the soft threshold, clipped to the box.
    """

    source = "textbook"

    strength: NonNegative = UNSET
    lower: float | None = -1.0
    upper: float | None = 1.0
    relative: Positive | None = None

    convex = True
    sparse = True
    across_clients = {"strength": "mean", "lower": "max", "upper": "min"}

    def __post_init__(self):
        check_bounds(self.lower, self.upper)
        if (isinstance(self.lower, float) and self.lower > 0) or (isinstance(self.upper, float) and self.upper < 0):
            raise UserError(
                f"the box of `reg.lower={self.lower}` and `reg.upper={self.upper}` must contain 0; "
                "give `reg.lower` <= 0 <= `reg.upper`, or `reg=box`"
            )

    def project(self, z):
        return jnp.clip(z, self.lower, self.upper)

    def value(self, w):
        return self.strength * jnp.abs(w).sum() + super().value(w)

    def prox(self, z, t):
        return self.project(soft_threshold(z, t * self.strength))

    def strength_max(self, gradient):
        # where a bound is 0, no w lies beyond it, so that the gradient in that direction needs no penalty
        blocked_above = 0.0 if self.upper is None else jnp.where(self.upper > 0, 0.0, jnp.inf)
        blocked_below = 0.0 if self.lower is None else jnp.where(self.lower < 0, 0.0, jnp.inf)
        return jnp.maximum(jnp.maximum(-gradient - blocked_above, gradient - blocked_below).max(), 0)


@dataclass(frozen=True)
class L1Nonneg(Norm, Constraint):
    """psi(w) = strength * ||w||_1 for w_i >= 0, inf otherwise."""

    source = "textbook"

    convex = True
    sparse = True

    def project(self, z):
        return jnp.maximum(z, 0)

    def value(self, w):
        return self.strength * jnp.abs(w).sum() + super().value(w)

    def prox(self, z, t):
        return jnp.maximum(z - t * self.strength, 0)

    def dual_norm(self, v, if_unpenalized):
        return jnp.maximum(v.max(), 0)


@dataclass(frozen=True)
class Budget(Constraint):
    """The set of w with sum_i w_i <= budget over all entries of a parameter and lower <= w_i <= upper.

    A bound of None is absent.
    """

    source = "textbook"

    budget: float = UNSET
    lower: float | None = 0.0
    upper: float | None = 1.0

    convex = True
    across_clients = {"budget": "min", "lower": "max", "upper": "min"}

    def __post_init__(self):
        check_bounds(self.lower, self.upper)

    def check(self, shape):
        count = math.prod(shape)
        if isinstance(self.lower, float) and isinstance(self.budget, float) and count * self.lower > self.budget:
            raise ValueError(
                word(
                    f"{count} entries of at least `reg.lower={self.lower:g}` exceed `reg.budget={self.budget:g}`: "
                    "raise `reg.budget`, or lower `reg.lower`"
                )
            )

    def project(self, z):
        clipped = jnp.clip(z, self.lower, self.upper)
        largest = z.max()  # subtracted, so that large z lose no digits
        on_budget = jnp.clip(z - largest - self._multiplier(z - largest, -largest), self.lower, self.upper)
        return jnp.where(clipped.sum() <= self.budget, clipped, on_budget)

    def _multiplier(self, z, least_theta):
        """Find the multiplier theta >= least_theta with sum_i clip(z_i - theta) = budget.

        Takes Newton steps, and a bisection step whenever Newton's leaves the bracket.
        """
        largest_theta = (z.sum() - self.budget) / z.size if self.lower is None else jnp.asarray(-self.lower, z.dtype)

        def step(state):
            theta, _, least_theta, largest_theta, count = state
            w = jnp.clip(z - theta, self.lower, self.upper)
            excess = w.sum() - self.budget
            least_theta = jnp.where(excess > 0, theta, least_theta)
            largest_theta = jnp.where(excess > 0, largest_theta, theta)
            newton = theta + excess / (w == z - theta).sum()
            is_inside = (newton > least_theta) & (newton <= largest_theta)
            new = jnp.where(is_inside, newton, (least_theta + largest_theta) / 2)
            return new, theta, least_theta, largest_theta, count + 1

        def unfinished(state):
            theta, previous, _, _, count = state
            return (jnp.abs(theta - previous) > 2 * jnp.finfo(z.dtype).eps * jnp.abs(theta)) & (count < 100)

        start = (least_theta, jnp.full_like(least_theta, jnp.inf), least_theta, largest_theta, 0)
        return lax.while_loop(unfinished, step, start)[0]
