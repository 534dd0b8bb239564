"""The largest useful strength of psi: the smallest strength at which 0 is optimal."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from fcorun.errors import UserError
from fcorun.problem.problem import Batch, Problem
from fcorun.problem.solver import compile_programs, minimize
from fcorun.regularizers.base import Regularizer


@dataclass(frozen=True)
class _Zero(Regularizer):
    """The indicator of {0} for all regularised parameters but the features without a penalty."""

    def value(self, w):
        return jnp.zeros((), w.dtype)

    def prox(self, z, t):
        return jnp.where(jnp.asarray(self.factor(z)) > 0, 0, z)


def strength_max(problem: Problem, batch: Batch) -> float:
    """Return the smallest strength at which 0 is optimal, with the intercept and unpenalized features fitted.

    Raises UserError if that fit does not converge.
    """
    return make_strength_max(problem, batch.x.shape[1])(batch)


def make_strength_max(problem: Problem, features: int) -> Callable[[Batch], float]:
    """Return ``strength_max`` as a function of a batch with this number of features.

    Its programs are compiled once for all batches of one shape.
    """
    psi = problem.regularizer
    null_problem = replace(problem, regularizer=_Zero(apply_to=list(problem.regularized), factors=psi.factors))
    compiled = compile_programs(null_problem, features)
    compute_gradient = jax.jit(problem.gradient)
    steps, tolerance = (20_000, 1e-10) if psi.has_free_features else (2000, 1e-12)

    def strength_max(batch: Batch) -> float:
        *_, null_model = minimize(null_problem, batch, tolerance, steps, compiled=compiled)
        if psi.has_free_features and not null_model.certified:
            raise UserError(f"reg.relative: the features that reg.factors leaves free were not fitted in {steps} "
                            "steps: standardize them, or give reg.strength")  # fmt: skip
        gradient = compute_gradient(null_model.w, batch)
        return float(max(psi.strength_max(gradient[name]) for name in problem.regularized))  # type: ignore[attr-defined]

    return strength_max
