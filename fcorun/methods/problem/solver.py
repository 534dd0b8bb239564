"""Accelerated proximal gradient on pooled rows, in float64, to a certified tolerance.

The method is Beck and Teboulle's FISTA (SIAM J. Imaging Sci. 2009) with backtracking and the gradient restart of
O'Donoghue and Candes (Found. Comput. Math. 2015). The solver stops on a certificate instead of a small step. The
certificate is the duality gap, which bounds the distance to the optimum, if objective and regularizer have
conjugates, else the norm of the prox-gradient map. ``gather_rows`` makes the batch that it takes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.base.config import numeric_fields
from fcorun.base.errors import UserError
from fcorun.base.system.files import Keyed, check_interrupted
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.features import to_solver
from fcorun.methods.problem.duality_gap import fit_intercept, has_duality_gap, has_one_output, pooled_gap
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.regularizers.regularizer import Regularizer

VERSION = 4  # to be raised whenever the optimum of the same problem changes
STEPS_PER_CERTIFICATE = 50  # iterations between certificates


@dataclass(frozen=True)
class Iterate:
    """An iterate of the solver.

    Attributes:
        iteration: the number of steps so far, of proximal gradient or, in ``path_solver``, of Newton.
        w: the point.
        objective: F(w) + psi(w).
        certificate: the duality gap, at least objective - optimum, or the norm of the prox-gradient map.
        certificate_kind: "duality gap" or "prox-gradient norm".
        certified: True if the certificate has reached the tolerance.
    """

    iteration: int
    w: Vector
    objective: float
    certificate: float
    certificate_kind: str
    certified: bool


class SolverPrograms(NamedTuple):
    """The compiled programs of a problem, for any numbers of its regularizer with which it has a duality gap or not.

    Attributes:
        advance: takes steps.
        certify: computes the certificate of a point.
        has_gap: whether the certificate is the duality gap, which a strength of 0 does not have.
    """

    advance: Callable[..., Any]
    certify: Callable[..., Any]
    has_gap: bool


def compile_programs(problem: Problem, features: int) -> SolverPrograms:
    """Return the programs of a problem with this number of features."""
    has_gap = has_duality_gap(problem, features)
    fits_intercept = has_one_output(problem, features) and "bias" in problem.shapes

    @jax.jit
    def advance(strengths, state, batch):
        return _take_steps(problem.with_numbers(strengths), state, batch)

    @jax.jit
    def certify(strengths, w, size, batch):
        return _certify(problem.with_numbers(strengths), w, size, batch, has_gap=has_gap, fits_intercept=fits_intercept)

    return SolverPrograms(advance, certify, has_gap)


def compile_once(problem: Keyed[Problem], features: int) -> SolverPrograms:
    """Return the programs of a problem with this number of features, compiled once for each key and certificate."""
    has_gap = has_duality_gap(problem.value, features)
    return _compile_once(Keyed(f"{problem.key} {has_gap}", problem.value), features)


@lru_cache(maxsize=8)
def _compile_once(problem: Keyed[Problem], features: int) -> SolverPrograms:
    return compile_programs(problem.value, features)


def minimize(
    problem: Problem,
    batch: Batch,
    tolerance: float = 1e-9,
    max_iterations: int = 100_000,
    *,
    start: Vector | None = None,
    compiled: SolverPrograms | None = None,
) -> Iterator[Iterate]:
    """Yield the first point and then an iterate every fifty steps, up to a certified one or the last iteration.

    The first point is the null model unless ``start`` gives another one: the start of the objective, mostly w = 0, or
    the nearest point in the domain of psi, with the best intercept where each row has one prediction. (Of losses with a
    log link, the curvature at an intercept of 0 may be that at the best one times a million.) ``batch`` holds all rows
    and their weights in F. An iterate is certified if its duality gap is at most ``tolerance`` times the objective of
    the null model, or its prox-gradient norm at most ``tolerance`` times that of the null model. ``compiled`` are
    programs of the same problem. Call and consume this generator under ``jax.enable_x64(True)``.
    """
    batch = batch._replace(weight=jnp.asarray(batch.weight, jnp.float64))
    advance, certify, has_gap = compiled or compile_programs(problem, batch.x.shape[1])
    kind = "duality gap" if has_gap else "prox-gradient norm"
    strengths = numeric_fields(problem.regularizer)  # arguments, so that one compiled program serves all strengths
    lipschitz = jnp.full((), 1e-10)  # the first step is long, and backtracking shortens it at once
    origin = problem.prox(problem.start(jnp.float64), 0.0)
    null_model, null_objective, _ = certify(strengths, origin, lipschitz, batch)
    w = null_model if start is None else problem.prox(start, 0.0)
    state = (w, w, jnp.ones(()), lipschitz)
    scale = abs(float(null_objective)) if has_gap else 0.0
    for iteration in range(0, max_iterations + STEPS_PER_CERTIFICATE, STEPS_PER_CERTIFICATE):
        check_interrupted()
        if iteration:
            state = advance(strengths, state, batch)
        w, objective, certificate = certify(strengths, state[0], state[3], batch)
        if not has_gap and iteration == STEPS_PER_CERTIFICATE:  # with the step size after backtracking
            scale = float(certify(strengths, null_model, state[3], batch)[2])
        certified = bool(abs(certificate) <= tolerance * scale)
        yield Iterate(
            iteration=iteration,
            w=w,
            objective=float(objective),
            certificate=float(certificate),
            certificate_kind=kind,
            certified=certified,
        )
        if certified or not np.isfinite(float(objective)):
            return


def _take_steps(problem: Problem, state, batch: Batch):
    """Return the state after STEPS_PER_CERTIFICATE steps of FISTA.

    The state is the point w, the extrapolated point v, the momentum, and 1 / step size.
    """
    value_and_gradient = jax.value_and_grad(problem.loss)
    # The intercept is a feature of ones. Its step is that of a feature as large as the others, for better conditioning.
    size = (problem.features(batch.x, jnp.float64) ** 2).mean()
    size = jnp.where(size > 0, size, 1.0)

    def scale_intercept(vector, factor):
        unscaled = {*problem.objective.regularized, *problem.regularized}
        return Vector({name: v if name in unscaled else v * factor for name, v in vector.items()})

    def step(state, _):
        w, v, momentum, lipschitz = state
        value, gradient = value_and_gradient(v, batch)
        slack = 1e-13 * jnp.abs(value)  # for rounding, so that backtracking ends near the optimum

        def prox_step(lipschitz):
            return problem.prox(v - scale_intercept(gradient, size) / lipschitz, 1 / lipschitz)

        def is_too_long(lipschitz):
            move = prox_step(lipschitz) - v
            bound = value + gradient.dot(move) + lipschitz / 2 * move.dot(scale_intercept(move, 1 / size)) + slack
            return ~(problem.line_search_loss(v + move, batch) <= bound) & (lipschitz < 1e30)

        # lipschitz never decreases: near the optimum the slack would accept any step, and the certificate would jitter.
        lipschitz = lax.while_loop(is_too_long, lambda lipschitz: 2 * lipschitz, lipschitz)
        new = prox_step(lipschitz)
        restart = (v - new).dot(new - w) > 0
        momentum = jnp.where(restart, 1.0, momentum)
        next_momentum = (1 + jnp.sqrt(1 + 4 * momentum**2)) / 2
        extrapolated = new + (new - w) * jnp.where(restart, 0.0, (momentum - 1) / next_momentum)
        return (new, extrapolated, next_momentum, lipschitz), None

    return lax.scan(step, state, length=STEPS_PER_CERTIFICATE)[0]


def _certify(problem: Problem, w: Vector, lipschitz, batch: Batch, *, has_gap: bool, fits_intercept: bool):
    """Return the point, with the best intercept if it is to be fitted, its objective and its certificate."""
    if fits_intercept:
        w = fit_intercept(problem, w, batch)
    objective = problem.line_search_loss(w, batch) + problem.psi(w)
    if not has_gap:
        gradient = problem.gradient(w, batch)
        if fits_intercept:  # 0 up to rounding
            gradient = Vector(gradient | {"bias": jnp.zeros_like(w["bias"])})
        move = w - problem.prox(w - gradient / lipschitz, 1 / lipschitz)
        return w, objective, lipschitz * move.norm()
    return w, objective, pooled_gap(problem, w, objective, batch)


# Rows of all clients, or of a site, as one batch in float64.


def gather_rows(data: FederatedData, client_weighting: str, rows: slice = slice(None)) -> Batch:
    """Return rows of all clients as one batch with their weights in F. Call under enable_x64: reals become float64."""
    weight = data.train.objective_weights(client_weighting)[rows]
    return make_batch(data, rows, weight / weight.sum())


def gather_site_rows(data: FederatedData, client_weighting: str) -> Batch:
    """Return the rows of a site as one batch, whose weights in F sum to the site's share. Call under enable_x64."""
    return make_batch(data, slice(None), data.train.objective_weights(client_weighting))


def make_batch(data: FederatedData, rows: slice | np.ndarray, weight: np.ndarray) -> Batch:
    """Return rows of all clients as one batch, with these weights in F. Call under enable_x64."""
    examples = to_solver(data.train.x[rows])
    y = data.train.y[rows].astype(data.target_task.target_dtype(np.float64))
    offset = None if data.train.offset is None else jnp.asarray(data.train.offset[rows], jnp.float64)
    client = jnp.asarray(data.train.known_client[rows], jnp.int32)
    return Batch(examples, jnp.asarray(y), jnp.asarray(weight), offset=offset, client=client)


class UnfittedFeatures(UserError):
    """The error of features without a penalty whose fit does not converge."""


@dataclass(frozen=True)
class _Zero(Regularizer):
    """The indicator of {0} for all regularized parameters but the features without a penalty."""

    def value(self, w):
        return jnp.zeros((), w.dtype)

    def prox(self, z, t):
        return jnp.where(jnp.asarray(self.factor(z)) > 0, 0, z)


def strength_max(problem: Problem, batch: Batch) -> float:
    """Return the smallest strength at which 0 is optimal, with the intercept and unpenalized features fitted.

    Raises UserError if the fit of unpenalized features does not converge.
    """
    return make_strength_max(problem, batch.x.shape[1])(batch)


def make_strength_max(problem: Problem, features: int) -> Callable[[Batch], float]:
    """Return ``strength_max`` as a function of a batch with this number of features.

    Its programs are compiled once for all batches of one shape.
    """
    psi = problem.regularizer
    fit = _make_null_fit(problem, features)
    compute_gradient = jax.jit(problem.gradient)

    def strength_max(batch: Batch) -> float:
        gradient = compute_gradient(fit(batch), batch)
        return float(max(psi.strength_max(gradient[name]) for name in problem.regularized))  # type: ignore[attr-defined]

    return strength_max


def _make_null_fit(problem: Problem, features: int) -> Callable[[Batch], Vector]:
    """Return a function that fits the intercept and the features without a penalty to a batch, all others being 0."""
    psi = problem.regularizer
    if has_one_output(problem, features) and not psi.has_free_features:
        zeros = problem.zeros(jnp.float64)
        if "bias" not in zeros:
            return lambda batch: zeros
        return jax.jit(lambda batch: fit_intercept(problem, zeros, batch))
    null_problem = replace(problem, regularizer=_Zero(apply_to=list(problem.regularized), factors=psi.factors))
    compiled = compile_programs(null_problem, features)
    # the intercept of a class without rows goes to minus infinity, and its fit is never certified
    steps, tolerance = (20_000, 1e-10) if psi.has_free_features else (2000, 1e-12)

    def fit_by_solver(batch: Batch) -> Vector:
        *_, null_model = minimize(null_problem, batch, tolerance, steps, compiled=compiled)
        if psi.has_free_features and not null_model.certified:
            raise UnfittedFeatures(
                f"`reg.relative`: the features that `reg.factors` leaves free were not fitted in {steps} steps: give "
                "them a factor above 0 if they separate the classes, or order the events; else standardize them, or "
                "give `reg.strength`"
            )
        return null_model.w

    return fit_by_solver
