"""The largest useful strength of psi: the smallest strength at which 0 is optimal."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from fcorun.base.errors import UserError
from fcorun.methods.problem.duality_gap import fit_intercept, has_one_output
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.problem.solver import compile_programs, minimize
from fcorun.methods.regularizers.regularizer import Regularizer


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
            raise UserError(f"`reg.relative`: the features that `reg.factors` leaves free were not fitted in {steps} "
                            "steps: standardize them, or give `reg.strength`")  # fmt: skip
        return null_model.w

    return fit_by_solver
