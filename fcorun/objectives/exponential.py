"""exp, as losses with a log link have it, and the same continued by a parabola, which bounds its curvature."""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy


def growth(p: jax.Array, ceiling: float | None) -> jax.Array:
    """exp(p); where that is more than ``ceiling``, its Taylor polynomial of second order there, which bends no more.

    It is convex, and both its derivatives are continuous.
    """
    if ceiling is None:
        return jnp.exp(p)
    edge = math.log(ceiling)
    over = jnp.maximum(p - edge, 0)
    return jnp.where(p <= edge, jnp.exp(jnp.minimum(p, edge)), ceiling * (1 + over + over**2 / 2))


def growth_conjugate(v: jax.Array, ceiling: float | None) -> jax.Array:
    """The convex conjugate of ``growth`` at v >= 0: v log v - v up to the ceiling, a parabola beyond."""
    v = jnp.maximum(v, 0)
    if ceiling is None:
        return xlogy(v, v) - v
    over = jnp.maximum(v / ceiling - 1, 0)
    beyond = ceiling * ((1 + over) * math.log(ceiling) + over**2 / 2 - 1)
    return jnp.where(v <= ceiling, xlogy(v, v) - v, beyond)
