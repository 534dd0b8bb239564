"""Distributed least squares approximation: one round."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fcorun.methods.algorithms.algorithm import EXACT_BY_WHOLE_DATA
from fcorun.methods.algorithms.local_fit import LocalFitAlgorithm
from fcorun.methods.problem.inner_solvers import StoppingRule
from fcorun.methods.problem.penalized_quadratic import hessian, minimize_model, pack_symmetric, unpack_symmetric
from fcorun.methods.problem.problem import Vector
from fcorun.methods.regularizers.regularizer import NoRegularizer

_STOP = StoppingRule(10_000, 0.0, 1e-12)  # of the server's solver


@dataclass(frozen=True)
class DLSA(LocalFitAlgorithm):
    """DLSA: clients send quadratic models around their own fits, and the server minimizes their mean plus psi.

    Without a ridge the gradients at the fits are 0, and the mean of the models is the quadratic around b, the mean of
    the fits weighted by their Hessians, as printed. With a ridge the gradients count, so that the models are those of
    the losses alone. For least squares the models are exact, and so is the solution, with any ridge.

    As printed, psi is the adaptive lasso (``adaptive=true`` and ``reg=l1``), whose strength is chosen by the
    distributed BIC. Here the strength is given.
    """

    source = "@zhu2021, with adaptive weights as an option"
    traits = replace(EXACT_BY_WHOLE_DATA, exact="", hessian="linear model", local_fits=True)

    adaptive: bool = False

    def local(self, problem, server, client, data):
        fit = self.fit(problem, data)
        matrix = hessian(problem, fit, data.whole)
        flat, unravel = ravel_pytree(fit)
        slopes = unravel(matrix @ flat) - problem.gradient(fit, data.whole)
        return (slopes, pack_symmetric(matrix)), client

    def server(self, problem, server, mean):
        slopes, packed = mean
        matrix = unpack_symmetric(packed, sum(values.size for values in slopes.values()))
        zero = 0 * slopes
        if not self.adaptive:
            return minimize_model(problem, -slopes, matrix, zero, _STOP)
        b = minimize_model(replace(problem, regularizer=NoRegularizer()), -slopes, matrix, zero, _STOP)
        names = problem.regularized
        scale = Vector({name: jnp.abs(v) if name in names else jnp.ones_like(v) for name, v in b.items()})
        factors = ravel_pytree(scale)[0]
        scaled = jnp.outer(factors, factors) * matrix
        ratio = minimize_model(problem, -slopes.map(jnp.multiply, scale), scaled, zero, _STOP)
        return ratio.map(jnp.multiply, scale)
