"""Accelerated proximal gradient on rows in one place, in float64, to a certified tolerance.

Beck and Teboulle's FISTA (SIAM J. Imaging Sci. 2009) with backtracking, and the gradient restart of O'Donoghue and
Candes (Found. Comput. Math. 2015). What it stops on is not a small step but a certificate: the duality gap, which
bounds the distance to the optimum, where objective and regularizer have conjugates, else the norm of the prox-gradient
map.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.config import numeric_fields
from fcorun.problem.problem import Batch, Problem
from fcorun.problem.vector import Vector
from fcorun.system.interruption import check_interrupted

VERSION = 2  # raise it whenever the optimum of the same problem would come out otherwise
STEPS_PER_CERTIFICATE = 50  # iterations between certificates


@dataclass(frozen=True)
class Iterate:
    """A point on the way.

    Attributes:
        iteration: proximal-gradient steps so far.
        w: the point.
        objective: F(w) + psi(w).
        certificate: the duality gap, at least objective - optimum; or the norm of the prox-gradient map.
        kind: "duality gap" or "prox-gradient norm".
        certified: whether the certificate has come down to the tolerance.
    """

    iteration: int
    w: Vector
    objective: float
    certificate: float
    certificate_kind: str
    certified: bool


class SolverPrograms(NamedTuple):
    """What is compiled for a problem, whatever the numbers of its regularizer: steps, a point's certificate."""

    advance: Callable[..., Any]
    certify: Callable[..., Any]


def compile_programs(problem: Problem, features: int) -> SolverPrograms:
    """Those of a problem whose examples have so many features."""
    gapped = has_duality_gap(problem, features)

    @jax.jit
    def advance(strengths, state, batch):
        return _steps(problem.with_numbers(strengths), state, batch)

    @jax.jit
    def certify(strengths, w, size, batch):
        return _certificate(problem.with_numbers(strengths), w, size, batch, gapped)

    return SolverPrograms(advance, certify)


def minimize(
    problem: Problem,
    batch: Batch,
    tolerance: float = 1e-9,
    max_iterations: int = 100_000,
    *,
    start: Vector | None = None,
    compiled: SolverPrograms | None = None,
) -> Iterator[Iterate]:
    """w = 0, or the nearest point that psi allows, then an iterate every fifty steps, until certified or out of them.

    ``batch`` holds all rows and their weights in F. Certified means: duality gap at most ``tolerance`` times the
    objective there, or prox-gradient norm at most ``tolerance`` times that there. It may ``start`` elsewhere, and with
    ``programs`` that were ``made`` before.
    Call it, and consume it, under ``jax.enable_x64(True)``.
    """
    batch = batch._replace(weight=jnp.asarray(batch.weight, jnp.float64))
    origin = problem.prox(problem.zeros(jnp.float64), 0.0)
    w = origin if start is None else problem.prox(start, 0.0)
    state = (w, w, jnp.ones(()), jnp.full((), 1e-10))  # a long first step; backtracking finds the right one at once
    gapped = has_duality_gap(problem, batch.x.shape[1])
    kind = "duality gap" if gapped else "prox-gradient norm"
    strengths = numeric_fields(problem.regularizer)  # as arguments, so that one compiled program serves all strengths
    advance, certify = compiled or compile_programs(problem, batch.x.shape[1])
    scale = 0.0
    for iteration in range(0, max_iterations + STEPS_PER_CERTIFICATE, STEPS_PER_CERTIFICATE):
        check_interrupted()
        if iteration:
            state = advance(strengths, state, batch)
        w, objective, certificate = certify(strengths, state[0], state[3], batch)
        if gapped and iteration == 0:
            scale = abs(float(objective if start is None else certify(strengths, origin, state[3], batch)[1]))
        elif not gapped and iteration == STEPS_PER_CERTIFICATE:  # with the step that has been found by now
            scale = float(certify(strengths, origin, state[3], batch)[2])
        done = bool(abs(certificate) <= tolerance * scale)
        yield Iterate(
            iteration=iteration,
            w=w,
            objective=float(objective),
            certificate=float(certificate),
            certificate_kind=kind,
            certified=done,
        )
        if done or not np.isfinite(float(objective)):
            return


def _steps(problem: Problem, state, batch: Batch):
    """CHUNK steps of FISTA. The state is the point w, the extrapolated point v, the momentum, and the step's 1/size."""
    value_and_gradient = jax.value_and_grad(problem.loss)
    # The intercept is a feature of ones: its step is that of a feature of the others' size, for a better conditioning.
    size = jnp.mean(jnp.square(problem.features(batch.x, jnp.float64)))
    size = jnp.where(size > 0, size, 1.0)

    def stretch(vector, factor):
        kept = {*problem.objective.regularized, *problem.regularized}
        return Vector({name: v if name in kept else v * factor for name, v in vector.items()})

    def step(state, _):
        w, v, momentum, lipschitz = state
        value, gradient = value_and_gradient(v, batch)
        slack = 1e-13 * jnp.abs(value)  # rounding, without which backtracking would never end near the optimum

        def attempt(lipschitz):
            return problem.prox(v - stretch(gradient, size) / lipschitz, 1 / lipschitz)

        def too_long(lipschitz):
            move = attempt(lipschitz) - v
            bound = value + gradient.dot(move) + lipschitz / 2 * move.dot(stretch(move, 1 / size)) + slack
            return ~(problem.loss(v + move, batch) <= bound) & (lipschitz < 1e30)

        # Never shortened back: near the optimum the slack would let any step pass, and the certificate would jitter.
        lipschitz = lax.while_loop(too_long, lambda size: 2 * size, lipschitz)
        new = attempt(lipschitz)
        restart = (v - new).dot(new - w) > 0
        momentum = jnp.where(restart, 1.0, momentum)
        following = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        extrapolated = new + (new - w) * jnp.where(restart, 0.0, (momentum - 1) / following)
        return (new, extrapolated, following, lipschitz), None

    return lax.scan(step, state, length=STEPS_PER_CERTIFICATE)[0]


def has_duality_gap(problem: Problem, features: int) -> bool:
    """Whether this problem offers a duality gap: conjugates on both sides, a linear model, one output.

    With a ridge, the conjugate of any psi and the ridge together is known, by the prox of psi.
    """
    psi, shapes = problem.regularizer, problem.shapes
    known = hasattr(psi, "conjugate") and getattr(psi, "strength", 1) > 0  # without strength only 0 is feasible,
    known = known and not psi.has_free_features  # and of a free feature only what its rows do not see, but for a ridge
    known = (known or problem.objective.ridge > 0) and hasattr(problem.objective, "conjugate")
    linear = problem.regularized == ("weights",) and set(shapes) | {"bias"} == {"weights", "bias"}
    return known and linear and math.prod(shapes["weights"]) == features and shapes.get("bias", ()) == ()


def _certificate(problem: Problem, w: Vector, lipschitz, batch: Batch, gapped: bool):
    """The point (with the best intercept, where there is a gap), its objective, its distance from the optimum."""
    if gapped and "bias" in w:
        w = fit_intercept(problem, w, batch)
    objective = problem.loss(w, batch) + problem.psi(w)
    if not gapped:
        move = w - problem.prox(w - problem.gradient(w, batch) / lipschitz, 1 / lipschitz)
        return w, objective, lipschitz * move.norm()
    # The dual of min_w,b sum_i omega_i l(x_i'w + b, y_i) + psi(w): a point theta_i = omega_i u_i with sum theta = 0 if
    # there is an intercept, which holds at the best one, scaled so that the conjugate of psi is finite at -X'theta.
    x, y, omega = problem.features(batch.x, w.dtype), batch.y, batch.weight
    prediction = problem.predict(w, batch.x, batch.offset)
    u = jax.grad(lambda p: problem.objective.loss(p, y).sum())(prediction)
    v = (-x.T @ (omega * u)).reshape(w["weights"].shape)
    scale, conjugate = _scaled_conjugate(problem, v)
    fixed = 0.0 if batch.offset is None else scale * u * batch.offset  # of l(. + offset), the conjugate is less by it
    dual = -(omega @ (problem.objective.conjugate(scale * u, y) - fixed)) - conjugate  # type: ignore[attr-defined]
    feasible = jnp.abs(omega @ u) <= 1e-12 * (omega @ jnp.abs(u)) if "bias" in w else True
    return w, objective, jnp.where(feasible, objective - dual, jnp.inf)


def _scaled_conjugate(problem: Problem, v: jax.Array) -> tuple[jax.Array | float, jax.Array]:
    """The largest s in [0, 1] for which the conjugate of psi and the ridge is finite at s v, and its value there."""
    psi, ridge = problem.regularizer, problem.objective.ridge
    if not ridge:
        scale = psi.dual_scale(v)  # type: ignore[attr-defined]
        return scale, psi.conjugate(scale * v)  # type: ignore[attr-defined]
    u = psi.prox(v / ridge, 1 / ridge)  # argmax <v, u> - ridge / 2 ||u||^2 - psi(u)
    return 1.0, jnp.vdot(v, u) - ridge / 2 * jnp.vdot(u, u) - psi.value(u)


def fit_intercept(problem: Problem, w: Vector, batch: Batch) -> Vector:
    """w with the intercept that minimises F for its weights: Newton's method, bisecting where that jumps."""
    rest = problem.predict(Vector(w | {"bias": jnp.zeros_like(w["bias"])}), batch.x, batch.offset)
    bounded = (
        problem.objective.has_curvature_bound
    )  # else a step from where the loss is flat may go too far to come back

    def loss(bias):
        return batch.weight @ problem.objective.loss(rest + bias, batch.y)

    def far(state):
        bias, _, _, slope, count = state
        size = batch.weight @ jnp.abs(jax.grad(lambda p: problem.objective.loss(p, batch.y).sum())(rest + bias))
        return (jnp.abs(slope) > 1e-14 * size) & (count < 100)

    def closer(state):
        bias, low, high, slope, count = state
        low, high = jnp.where(slope < 0, bias, low), jnp.where(slope > 0, bias, high)
        step = -slope / jax.grad(jax.grad(loss))(bias)
        newton = bias + (step if bounded else jnp.clip(step, -(2.0**count), 2.0**count))
        middle = jnp.where(jnp.isfinite(low + high), (low + high) / 2, bias - jnp.sign(slope) * 2.0**count)
        bias = jnp.where((newton > low) & (newton < high), newton, middle)
        return bias, low, high, jax.grad(loss)(bias), count + 1

    start = (w["bias"], jnp.full((), -jnp.inf), jnp.full((), jnp.inf), jax.grad(loss)(w["bias"]), 0)
    return Vector(w | {"bias": lax.while_loop(far, closer, start)[0]})
