"""A budget constraint in a box."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from fcorun.base.config import UNSET
from fcorun.base.errors import word
from fcorun.methods.regularizers.box import check_bounds
from fcorun.methods.regularizers.regularizer import Constraint


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
