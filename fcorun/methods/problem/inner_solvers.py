"""Solvers of a client's subproblem: argmin_u h(u), with terms around the client's loss f.

h(u) = loss_weight f(u) + weight ||u - center||^2 / 2 - <linear, u> + penalty(u). With the defaults the solution is the
prox of loss_weight f at the center. A ``StoppingRule`` ends the solvers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.methods.problem.problem import Batch, Problem, Quadratic, Vector
from fcorun.methods.problem.row_span import to_span_coordinates

Data = Batch | Quadratic
MIN_GRADIENTS_FOR_SPAN = 5  # from so many gradients in a row on, coordinates of the span of a client's rows save time
Real = jax.Array | float


@dataclass(frozen=True)
class Subproblem:
    """The function h for the loss f of ``batch``.

    ``penalty`` is a convex function with the smoothness constant ``penalty_smoothness``, or None.
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
        """Bounds on the curvature of h: its strong convexity and its smoothness constant."""
        low, high = self.problem.curvature  # type: ignore[misc]
        return self.loss_weight * low + self.weight, self.loss_weight * high + self.weight + self.penalty_smoothness

    def value(self, u: Vector) -> jax.Array:
        """Return h(u), up to a constant."""
        move = u - self.center
        value = self.loss_weight * self.problem.line_search_loss(u, self.batch) + self.weight * move.dot(move) / 2
        if self.linear is not None:
            value = value - self.linear.dot(u)
        return value if self.penalty is None else value + self.penalty(u)

    def gradient(self, u: Vector) -> Vector:
        """Return grad h(u)."""
        gradient = self.loss_weight * self.problem.gradient(u, self.batch) + self.weight * (u - self.center)
        if self.linear is not None:
            gradient = gradient - self.linear
        return gradient if self.penalty is None else gradient + jax.grad(self.penalty)(u)

    def hessian_product(self, u: Vector, d: Vector) -> Vector:
        """Return the product of the Hessian at u with d, counted as a gradient."""
        product = self.loss_weight * self.problem.hessian_product(u, d, self.batch) + self.weight * d
        return product if self.penalty is None else product + jax.jvp(jax.grad(self.penalty), (u,), (d,))[1]


def _in_span(solver: Callable[..., Vector]) -> Callable[..., Vector]:
    """Return the solver, which takes the same steps in coordinates of a basis if the data have one."""

    @wraps(solver)
    def solve(h: Subproblem, start: Vector, *rest: Any) -> Vector:
        if h.batch.basis is None or h.penalty is not None:
            return solver(h, start, *rest)
        span_h, span_start, from_span = to_span_coordinates(h, start)
        return from_span(solver(span_h, span_start, *rest))

    return solve


@_in_span
def gradient_descent(h: Subproblem, start: Vector, stop: "StoppingRule", step_size: Real | None = None) -> Vector:
    """Minimize h by u - alpha grad h(u), equation (17) of Pathak and Wainwright (2020).

    By default alpha is 2 / (l + L) for the curvature bounds l and L of h; ``step_size`` is another alpha. The equation
    as printed lacks a bracket: alpha belongs to both terms.
    """
    alpha = 2 / sum(h.curvature_bounds) if step_size is None else step_size

    def step(u):
        gradient = h.gradient(u)
        return u - alpha * gradient, gradient.norm()

    return stop.iterate(step, start)


@_in_span
def accelerated_gradient(h: Subproblem, start: Vector, stop: "StoppingRule") -> Vector:
    """Minimize h by Nesterov's method with constant momentum."""
    return _nesterov(h, start, stop, lambda v, t: v)


def accelerated_proximal_gradient(h: Subproblem, start: Vector, stop: "StoppingRule") -> Vector:
    """Minimize h + psi by Nesterov's method with constant momentum and the prox of psi."""
    return _nesterov(h, start, stop, h.problem.prox)


def proximal_gradient(h: Subproblem, start: Vector, stop: "StoppingRule", step_size: Real | None = None) -> Vector:
    """Minimize h + psi by u = prox(u - alpha grad h(u), alpha) with alpha = ``step_size``, by default 1 / L."""
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
    """Minimize h by Newton's method with conjugate gradients and a backtracking line search.

    The method also stops when rounding prevents a lower h.
    """
    rounding = 4 * jnp.finfo(start.dtype).eps

    def step(u):
        gradient = h.gradient(u)
        d = -1 * _conjugate_gradients(lambda direction: h.hessian_product(u, direction), gradient)
        value = h.value(u)
        descent = gradient.dot(d)

        def is_too_long(t):
            return (h.value(u + t * d) > value + 1e-4 * t * descent + rounding * jnp.abs(value)) & (t > 1e-6)

        t = lax.while_loop(is_too_long, lambda t: t / 2, jnp.ones((), u.dtype))
        t = jnp.where(t > 1e-6, t, 0)  # the direction has no lower point
        new = u + t * d
        return new, jnp.where(value - h.value(new) <= rounding * jnp.abs(value), 0.0, gradient.norm())

    return stop.iterate(step, start)


SOLVERS = {"gradient": gradient_descent, "accelerated": accelerated_gradient, "newton": newton}


class StoppingRule(NamedTuple):
    """The end of an inner solver: after ``iterations`` steps, or after a step from a point with a small gradient.

    A gradient is small if its norm is at most ``tolerance`` plus ``relative_tolerance`` times the norm at the start.
    """

    iterations: int | jax.Array
    tolerance: Real
    relative_tolerance: Real = 0.0

    def iterate(self, step: Callable[[Any], tuple[Any, jax.Array]], start: Any) -> Any:
        """Iterate ``step(value)``, which returns the next value and the gradient norm at the value, from ``start``."""

        def proceeds(state):
            _, count, norm, first_norm = state
            return (count < self.iterations) & (norm > self.tolerance + self.relative_tolerance * first_norm)

        def body(state):
            value, count, _, first_norm = state
            value, norm = step(value)
            return value, count + 1, norm, jnp.where(count == 0, norm, first_norm)

        norm = jnp.full((), jnp.inf, jax.tree.leaves(start)[0].dtype)
        return lax.while_loop(proceeds, body, (start, 0, norm, 0 * jnp.ones_like(norm)))[0]


def _conjugate_gradients(hessian: Callable[[Vector], Vector], gradient: Vector) -> Vector:
    """Solve hessian(d) = gradient up to a hundredth of the gradient's norm, or better for a small gradient.

    The method stops at a direction of nonpositive curvature. If that is the first direction, d is the gradient.
    """
    tolerance = jnp.minimum(0.01, jnp.sqrt(gradient.norm())) * gradient.norm()

    def step(state):
        d, residual, direction, squared, count = state
        product = hessian(direction)
        curvature = direction.dot(product)
        positive = curvature > 0
        first_step = jnp.where(count == 0, 1.0, 0.0)
        length = jnp.where(positive, squared / jnp.where(positive, curvature, 1), first_step)
        residual = residual - length * product
        new_squared = jnp.where(positive, residual.dot(residual), 0.0)
        new_direction = residual + (new_squared / squared) * direction
        return d + length * direction, residual, new_direction, new_squared, count + 1

    def proceeds(state):
        _, _, _, squared, count = state
        return (jnp.sqrt(squared) > tolerance) & (count < 200)

    return lax.while_loop(proceeds, step, (0 * gradient, gradient, gradient, gradient.dot(gradient), 0))[0]
