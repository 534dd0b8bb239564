"""A client's own problem, argmin_u h(u) with h(u) = s f(u) + weight ||u - v||^2 / 2 - <tilt, u> + penalty(u).

With the defaults it is the prox of s f at v. Solvers end as ``Stop`` says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.problem.problem import Batch, Problem
from fcorun.problem.quadratic import Quadratic
from fcorun.problem.row_span import to_span_coordinates
from fcorun.problem.vector import Vector

Data = Batch | Quadratic
MIN_GRADIENTS_FOR_SPAN = 5  # gradients in a row, from which on coordinates of the span of a client's rows pay
Real = jax.Array | float


@dataclass(frozen=True)
class Subproblem:
    """h, for the loss f of ``batch``.

    ``penalty`` is a smooth convex function that bends ``bend`` at most, or None.
    """

    problem: Problem
    batch: Data
    center: Vector
    loss_weight: Real = 1.0
    weight: Real = 1.0
    linear: Vector | None = None
    penalty: Callable[[Vector], jax.Array] | None = None
    penalty_smoothness: Real = 0.0

    @property
    def curvature_bounds(self) -> tuple[Real, Real]:
        """The least and the most that h bends."""
        least, most = self.problem.curvature  # type: ignore[misc]
        return self.loss_weight * least + self.weight, self.loss_weight * most + self.weight + self.penalty_smoothness

    def value(self, u: Vector) -> jax.Array:
        """h(u), up to a constant."""
        move = u - self.center
        found = self.loss_weight * self.problem.loss(u, self.batch) + self.weight * move.dot(move) / 2
        found = found if self.linear is None else found - self.linear.dot(u)
        return found if self.penalty is None else found + self.penalty(u)

    def gradient(self, u: Vector) -> Vector:
        """grad h(u)."""
        found = self.loss_weight * self.problem.gradient(u, self.batch) + self.weight * (u - self.center)
        found = found if self.linear is None else found - self.linear
        return found if self.penalty is None else found + jax.grad(self.penalty)(u)

    def hessian_product(self, u: Vector, d: Vector) -> Vector:
        """The product of the Hessian at u with d, which counts as a gradient."""
        found = self.loss_weight * self.problem.hessian_product(u, d, self.batch) + self.weight * d
        return found if self.penalty is None else found + jax.jvp(jax.grad(self.penalty), (u,), (d,))[1]


def _in_span(solver: Callable[..., Vector]) -> Callable[..., Vector]:
    """The solver; of data with a basis in coordinates of it, where it takes the same steps."""

    @wraps(solver)
    def solve(h: Subproblem, start: Vector, *rest: Any) -> Vector:
        if h.batch.basis is None or h.penalty is not None:
            return solver(h, start, *rest)
        inside, own, back = to_span_coordinates(h, start)
        return back(solver(inside, own, *rest))

    return solve


@_in_span
def gradient_descent(h: Subproblem, start: Vector, stop: "StoppingRule", step_size: Real | None = None) -> Vector:
    """u - alpha grad h(u), equation (17) of Pathak and Wainwright (2020) with alpha = 2 / (least + most bend of h).

    The equation as printed lacks a bracket: alpha belongs to both terms. ``rate`` is another alpha.
    """
    alpha = 2 / sum(h.curvature_bounds) if step_size is None else step_size

    def step(u):
        slope = h.gradient(u)
        return u - alpha * slope, slope.norm()

    return stop.iterate(step, start)


@_in_span
def accelerated_gradient(h: Subproblem, start: Vector, stop: "StoppingRule") -> Vector:
    """Nesterov's method with constant momentum."""
    return _nesterov(h, start, stop, lambda v, t: v)


def accelerated_proximal_gradient(h: Subproblem, start: Vector, stop: "StoppingRule") -> Vector:
    """argmin h + psi by Nesterov's method with constant momentum and the prox of psi."""
    return _nesterov(h, start, stop, h.problem.prox)


def proximal_gradient(h: Subproblem, start: Vector, stop: "StoppingRule", step_size: Real | None = None) -> Vector:
    """argmin h + psi by u = prox(u - alpha grad h(u), alpha) with alpha = 1 / (most bend of h), or ``rate``."""
    alpha = 1 / h.curvature_bounds[1] if step_size is None else step_size

    def step(u):
        new = h.problem.prox(u - alpha * h.gradient(u), alpha)
        return new, (new - u).norm() / alpha

    return stop.iterate(step, start)


def _nesterov(h: Subproblem, start: Vector, stop: "StoppingRule", prox: Callable[[Vector, Real], Vector]) -> Vector:
    low, high = (jnp.sqrt(jnp.asarray(bound, start.dtype)) for bound in h.curvature_bounds)
    momentum = (high - low) / (high + low)

    def step(state):
        u, extrapolated = state
        new = prox(extrapolated - h.gradient(extrapolated) / high**2, 1 / high**2)
        return (new, new + momentum * (new - u)), high**2 * (new - extrapolated).norm()

    return stop.iterate(step, (start, start))[0]


@_in_span
def newton(h: Subproblem, start: Vector, stop: "StoppingRule") -> Vector:
    """Newton's method; each step by conjugate gradients, shortened until h decreases enough.

    Stops as well where rounding allows no lower h.
    """
    small = 4 * jnp.finfo(start.dtype).eps

    def step(u):
        slope = h.gradient(u)
        d = -1 * _conjugate_gradients(lambda direction: h.hessian_product(u, direction), slope)
        here, descent = h.value(u), slope.dot(d)

        def too_long(t):
            return (h.value(u + t * d) > here + 1e-4 * t * descent + small * jnp.abs(here)) & (t > 1e-6)

        t = lax.while_loop(too_long, lambda t: t / 2, jnp.ones((), u.dtype))
        t = jnp.where(t > 1e-6, t, 0)  # there is no lower point
        there = u + t * d
        return there, jnp.where(here - h.value(there) <= small * jnp.abs(here), 0.0, slope.norm())

    return stop.iterate(step, start)


SOLVERS = {"gradient": gradient_descent, "accelerated": accelerated_gradient, "newton": newton}


class StoppingRule(NamedTuple):
    """When an inner solver is done: after ``iterations``, or a step from where the norm of grad h was at most
    ``tolerance`` plus ``relative`` times that at the start."""

    iterations: int | jax.Array
    tolerance: Real
    relative_tolerance: Real = 0.0

    def iterate(self, step: Callable[[Any], tuple[Any, jax.Array]], start: Any) -> Any:
        """``start`` after ``step(value)``, which returns the next value and the norm at this one."""

        def go_on(now):
            _, count, norm, first = now
            return (count < self.iterations) & (norm > self.tolerance + self.relative_tolerance * first)

        def body(now):
            value, count, _, first = now
            value, norm = step(value)
            return value, count + 1, norm, jnp.where(count == 0, norm, first)

        norm = jnp.full((), jnp.inf, jax.tree.leaves(start)[0].dtype)
        return lax.while_loop(go_on, body, (start, 0, norm, 0 * jnp.ones_like(norm)))[0]


def _conjugate_gradients(hessian: Callable[[Vector], Vector], slope: Vector) -> Vector:
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

    return lax.while_loop(go_on, step, (0 * slope, slope, slope, slope.dot(slope), 0))[0]
