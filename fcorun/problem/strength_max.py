"""The smallest strength of psi at which 0 is optimal."""

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
    """The indicator of {0}: it holds the regularised parameters at zero, but for features that are free."""

    def value(self, w):
        return jnp.zeros((), w.dtype)

    def prox(self, z, t):
        return jnp.where(jnp.asarray(self.factor(z)) > 0, 0, z)


def strength_max(problem: Problem, batch: Batch) -> float:
    """The smallest strength at which 0 is optimal, the intercept and features that are free being fitted.

    Raises UserError where these are not found.
    """
    return make_strength_max(problem, batch.x.shape[1])(batch)


def make_strength_max(problem: Problem, features: int) -> Callable[[Batch], float]:
    """``strength_max`` for one batch after another, whose examples have so many features; what is compiled serves all
    batches of one shape."""
    psi = problem.regularizer
    held = replace(problem, regularizer=_Zero(apply_to=list(problem.regularized), factors=psi.factors))
    made, gradient_of = compile_programs(held, features), jax.jit(problem.gradient)
    steps, tolerance = (20_000, 1e-10) if psi.has_free_features else (2000, 1e-12)

    def largest(batch: Batch) -> float:
        for null in minimize(held, batch, tolerance, steps, compiled=made):  # noqa: B007
            pass
        if psi.has_free_features and not null.certified:
            raise UserError(f"reg.relative: the features that reg.factors leaves free were not fitted in {steps} "
                            "steps: standardize them, or give reg.strength")  # fmt: skip
        gradient = gradient_of(null.w, batch)
        return float(max(psi.strength_max(gradient[n]) for n in problem.regularized))  # type: ignore[attr-defined]

    return largest
