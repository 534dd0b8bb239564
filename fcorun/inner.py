"""A client's prox, argmin_u h(u) with h(u) = s f(u) + ||u - v||^2 / 2, where it has no closed form.

Each solver starts at v, unless told otherwise, and stops after ``iterations``, or when the norm of grad h has come down
to ``tolerance``.
"""

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.problem import Batch, Problem
from fcorun.quadratic import Quadratic
from fcorun.vector import Vector
from fcorun.work import Work

Data = Batch | Quadratic
Real = jax.Array | float


def gradient_descent(problem: Problem, batch: Data, v: Vector, s: Real, iterations: int, tolerance: Real) -> Vector:
    """u - alpha grad h(u) with alpha = 1 / (1 + s (l + L) / 2), equation (17) of Pathak and Wainwright (2020).

    The equation as printed lacks a bracket: alpha belongs to both terms.
    """
    least, most = problem.curvature  # type: ignore[misc]
    alpha = 1 / (1 + s * (least + most) / 2)

    def step(state):
        u, count, _ = state
        slope = _slope(problem, batch, u, v, s)
        return u - alpha * slope, count + 1, slope.norm()

    return _until(problem, step, (v, 0, jnp.full((), jnp.inf, v.dtype)), iterations, tolerance)


def accelerated(problem: Problem, batch: Data, v: Vector, s: Real, iterations: int, tolerance: Real) -> Vector:
    """Nesterov's method with constant momentum, for h with curvature between 1 + s l and 1 + s L."""
    least, most = problem.curvature  # type: ignore[misc]
    low, high = jnp.sqrt(1 + s * least), jnp.sqrt(1 + s * most)
    momentum = (high - low) / (high + low)

    def step(state):
        (u, extrapolated), count, _ = state
        slope = _slope(problem, batch, extrapolated, v, s)
        new = extrapolated - slope / high**2
        return (new, new + momentum * (new - u)), count + 1, slope.norm()

    return _until(problem, step, ((v, v), 0, jnp.full((), jnp.inf, v.dtype)), iterations, tolerance)[0]


def newton(problem: Problem, batch: Data, v: Vector, s: Real, iterations: int, tolerance: Real) -> Vector:
    """Newton's method; each step by conjugate gradients, shortened until h decreases enough.

    A product with the Hessian counts as a gradient. Stops as well where rounding allows no better gradient.
    """
    small = 30 * jnp.finfo(v.dtype).eps

    def h(u):
        move = u - v
        return s * problem.loss(u, batch) + move.dot(move) / 2

    def step(state):
        u, count, _ = state
        slope = _slope(problem, batch, u, v, s)
        work = problem.work or Work()

        def hessian(d: Vector) -> Vector:
            work.add(gradients=batch.count)
            return d + s * jax.jvp(lambda w: jax.grad(problem.loss)(w, batch), (u,), (d,))[1]

        d = -1 * _conjugate_gradients(work, hessian, slope)
        here, descent = h(u), slope.dot(d)

        def too_long(t):
            return (h(u + t * d) > here + 1e-4 * t * descent + small * jnp.abs(here)) & (t > 1e-6)

        t = lax.while_loop(too_long, lambda t: t / 2, jnp.ones((), v.dtype))
        norm = slope.norm()
        rounding = small * ((u - v).norm() + v.norm())
        return u + t * d, count + 1, jnp.where(norm <= rounding, 0.0, norm)

    return _until(problem, step, (v, 0, jnp.full((), jnp.inf, v.dtype)), iterations, tolerance)


SOLVERS = {"gradient": gradient_descent, "accelerated": accelerated, "newton": newton}


def _slope(problem: Problem, batch: Data, u: Vector, v: Vector, s: Real) -> Vector:
    """grad h(u)."""
    return s * problem.gradient(u, batch) + (u - v)


def _until(problem: Problem, step, state, iterations: int, tolerance: Real):
    """The point of ``state``, (point, count, norm of the last slope), after the steps it takes."""
    work = problem.work or Work()
    return work.while_loop(lambda now: (now[1] < iterations) & (now[2] > tolerance), step, state)[0]


def _conjugate_gradients(work: Work, hessian, slope: Vector) -> Vector:
    """The solution d of hessian(d) = slope, to a hundredth of it, or better where slope is small already."""
    enough = jnp.minimum(0.01, jnp.sqrt(slope.norm())) * slope.norm()

    def step(state):
        d, rest, direction, squared, count = state
        product = hessian(direction)
        length = squared / direction.dot(product)
        rest = rest - length * product
        new = rest.dot(rest)
        return d + length * direction, rest, rest + (new / squared) * direction, new, count + 1

    def go_on(state):
        return (jnp.sqrt(state[3]) > enough) & (state[4] < 200)

    return work.while_loop(go_on, step, (0 * slope, slope, slope, slope.dot(slope), 0))[0]
