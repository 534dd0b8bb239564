"""A client's prox, argmin_u h(u) with h(u) = s f(u) + ||u - v||^2 / 2, where it has no closed form.

Each solver starts at v and stops as ``Stop`` says.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.problem import Batch, Problem
from fcorun.quadratic import Quadratic
from fcorun.vector import Vector
from fcorun.work import Work

Data = Batch | Quadratic
Real = jax.Array | float


def gradient_descent(problem: Problem, batch: Data, v: Vector, s: Real, stop: "Stop") -> Vector:
    """u - alpha grad h(u) with alpha = 1 / (1 + s (l + L) / 2), equation (17) of Pathak and Wainwright (2020).

    The equation as printed lacks a bracket: alpha belongs to both terms.
    """
    least, most = problem.curvature  # type: ignore[misc]
    alpha = 1 / (1 + s * (least + most) / 2)

    def step(u):
        slope = _slope(problem, batch, u, v, s)
        return u - alpha * slope, slope.norm()

    return stop.after(problem, step, v)


def accelerated(problem: Problem, batch: Data, v: Vector, s: Real, stop: "Stop") -> Vector:
    """Nesterov's method with constant momentum, for h with curvature between 1 + s l and 1 + s L."""
    least, most = problem.curvature  # type: ignore[misc]
    low, high = jnp.sqrt(1 + s * least), jnp.sqrt(1 + s * most)
    momentum = (high - low) / (high + low)

    def step(state):
        u, extrapolated = state
        slope = _slope(problem, batch, extrapolated, v, s)
        new = extrapolated - slope / high**2
        return (new, new + momentum * (new - u)), slope.norm()

    return stop.after(problem, step, (v, v))[0]


def newton(problem: Problem, batch: Data, v: Vector, s: Real, stop: "Stop") -> Vector:
    """Newton's method; each step by conjugate gradients, shortened until h decreases enough.

    A product with the Hessian counts as a gradient. Stops as well where rounding allows no lower h.
    """
    small = 4 * jnp.finfo(v.dtype).eps
    work = problem.work or Work()

    def h(u):
        move = u - v
        return s * problem.loss(u, batch) + move.dot(move) / 2

    def step(u):
        slope = _slope(problem, batch, u, v, s)

        def hessian(d: Vector) -> Vector:
            work.gradient(batch)
            return d + s * jax.jvp(lambda w: jax.grad(problem.loss)(w, batch), (u,), (d,))[1]

        d = -1 * _conjugate_gradients(work, hessian, slope)
        here, descent = h(u), slope.dot(d)

        def too_long(t):
            return (h(u + t * d) > here + 1e-4 * t * descent + small * jnp.abs(here)) & (t > 1e-6)

        t = lax.while_loop(too_long, lambda t: t / 2, jnp.ones((), v.dtype))
        t = jnp.where(t > 1e-6, t, 0)  # there is no lower point
        there = u + t * d
        return there, jnp.where(here - h(there) <= small * jnp.abs(here), 0.0, slope.norm())

    return stop.after(problem, step, v)


SOLVERS = {"gradient": gradient_descent, "accelerated": accelerated, "newton": newton}


class Stop(NamedTuple):
    """When an inner solver is done: after ``iterations``, or a step from where the norm of grad h was at most
    ``tolerance`` plus ``relative`` times that at the start."""

    iterations: int
    tolerance: Real
    relative: Real = 0.0

    def after(self, problem: Problem, step: Callable[[Any], tuple[Any, jax.Array]], start: Any) -> Any:
        """``start`` after ``step(value)``, which returns the next value and the norm at this one."""

        def go_on(now):
            _, count, norm, first = now
            return (count < self.iterations) & (norm > self.tolerance + self.relative * first)

        def body(now):
            value, count, _, first = now
            value, norm = step(value)
            return value, count + 1, norm, jnp.where(count == 0, norm, first)

        norm = jnp.full((), jnp.inf, jax.tree.leaves(start)[0].dtype)
        return (problem.work or Work()).while_loop(go_on, body, (start, 0, norm, 0 * jnp.ones_like(norm)))[0]


def _slope(problem: Problem, batch: Data, u: Vector, v: Vector, s: Real) -> Vector:
    """grad h(u)."""
    return s * problem.gradient(u, batch) + (u - v)


def _conjugate_gradients(work: Work, hessian: Callable[[Vector], Vector], slope: Vector) -> Vector:
    """The solution d of hessian(d) = slope, to a hundredth of it, or better where slope is small already.

    Ends at a direction along which the Hessian is not positive; if that is the first one, d is the slope.
    """
    enough = jnp.minimum(0.01, jnp.sqrt(slope.norm())) * slope.norm()

    def step(state):
        d, rest, direction, squared, count = state
        product = hessian(direction)
        bend = direction.dot(product)
        length = jnp.where(bend > 0, squared / jnp.where(bend > 0, bend, 1), jnp.where(count == 0, 1.0, 0.0))
        rest = rest - length * product
        new = jnp.where(bend > 0, rest.dot(rest), 0.0)
        return d + length * direction, rest, rest + (new / squared) * direction, new, count + 1

    def go_on(state):
        return (jnp.sqrt(state[3]) > enough) & (state[4] < 200)

    return work.while_loop(go_on, step, (0 * slope, slope, slope, slope.dot(slope), 0))[0]
