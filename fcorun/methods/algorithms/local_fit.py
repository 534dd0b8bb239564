"""Algorithms of one round, whose clients fit their own losses: the base class, DLSA and meta-analysis."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fcorun.base.config import Count, NonNegative
from fcorun.base.metrics import Metric
from fcorun.methods.algorithms.algorithm import Algorithm, LocalData, tree_bytes
from fcorun.methods.algorithms.traits import EXACT_BY_WHOLE_DATA, Traits
from fcorun.methods.problem import inner_solvers
from fcorun.methods.problem.inner_solvers import StoppingRule
from fcorun.methods.problem.penalized_quadratic import (
    hessian,
    invert_positive,
    minimize_model,
    pack_symmetric,
    unpack_symmetric,
)
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.regularizers.regularizer import NoRegularizer


@dataclass(frozen=True, kw_only=True)
class LocalFitAlgorithm(Algorithm):
    """A one-round algorithm, in which each client fits its own loss, without psi, and sends a summary of the fit.

    A client needs more rows than parameters, or a ridge. Logistic fits of separable classes need a ridge, too. Later
    rounds send nothing and change nothing.
    """

    ridge: NonNegative = 0.0
    iterations: Count = 100
    tolerance: NonNegative = 1e-10

    computed_rounds = 1

    def broadcast(self, server):
        return ()  # a request without numbers

    def received_model(self, problem, server, client, data):
        return self.fit(problem, data)

    def fit(self, problem: Problem, data: LocalData) -> Vector:
        """Return the minimizer of the sum of a client's loss, the ridge, and sqrt(eps) ||w||^2 / 2 with the intercept.

        The last term bounds fits along collinear columns. A Newton step from the fit, as DLSA takes, corrects its bias.
        """
        names = problem.objective.regularized

        def penalty(w):
            weights = Vector({name: w[name] for name in names})
            return self.ridge / 2 * weights.dot(weights)

        zero = problem.zeros(data.dtype)
        weight = float(jnp.finfo(data.dtype).eps) ** 0.5
        h = inner_solvers.Subproblem(problem, data.whole, zero, weight=weight, penalty=penalty)
        return inner_solvers.newton(h, zero, inner_solvers.StoppingRule(self.iterations, self.tolerance))


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


@dataclass(frozen=True)
class MetaAnalysis(LocalFitAlgorithm):
    """Meta-analysis: clients send estimates and their precisions, and the server averages each coefficient by itself.

    The weights are these precisions, the inverse variances. Random effects add to each variance the variance tau^2
    between clients, by DerSimonian and Laird. The metrics are the largest over the coefficients, the intercept aside.

    A variance is that of a generalized linear model: the inverse Hessian of the negative log-likelihood, times the
    dispersion by Pearson's residuals if the loss is not that log-likelihood itself. With a ridge, the inverse is that
    of Hessian plus ridge. A client has no estimate of its dispersion, and no weight, if its rows exceed its effective
    number of parameters by half a row or less, or if its residuals are only rounding. The result is NaN if no client
    has a weight. Weights of rows count as relative ones. The levels of a text column are compared with its first one,
    the same at all clients. Of other collinear columns a client leaves out the last, and not the intercept. Without a
    ridge, what a level that it leaves out depends on has no estimate, either: it would not mean the same elsewhere.

    Messages are averaged by their weights in F, so that each client fills a row of its own of a table of M rows, which
    suits tens of clients. Only this row counts in ``bytes_up``. Runs are in float64, whatever ``precision`` says.
    """

    source = "the estimators of @dersimonian1986"
    traits = Traits(
        psi_sides=(), partial=False, deterministic=True, local_fits=True, uploads="exact", reveals_uploads=True
    )
    declared_metrics = (
        Metric("tau2", "largest variance between clients"),
        Metric("cochran_q", "largest Q of a coefficient"),
        Metric("i2", "largest I$^2$ of a coefficient", bounded=True),
    )
    metrics_of_server = True
    needs_float64 = True

    effects: Literal["fixed", "random"] = "fixed"

    def init(self, problem, w0):
        zero = 0 * w0
        of_clients = w0.map(lambda v: jnp.zeros((problem.n_clients, *v.shape), v.dtype))
        return {"w": w0, "tau2": zero, "q": zero, "i2": zero, "fits": of_clients, "precisions": of_clients}, None

    def local(self, problem, server, client, data):
        fit, _ = self._estimate(problem, self.fit(problem, data), data)  # without the small ridge of the solver
        fit, variance = self._estimate(problem, fit, data)
        precision = variance.map(lambda v: 1 / v)  # 0 for an infinite variance
        row = {"fit": fit, "precision": precision, "weight": jnp.ones((), data.dtype)}
        is_own = (jnp.arange(problem.n_clients) == data.client).astype(data.dtype)
        return jax.tree.map(lambda v: jnp.multiply.outer(is_own, v), row), client

    def upload_bytes(self, upload):
        return tree_bytes((upload["fit"], upload["precision"])) // len(upload["weight"])

    def server(self, problem, server, mean):
        weight = jnp.where(mean["weight"] > 0, mean["weight"], 1)
        fits, precisions = (jax.vmap(lambda v, p: v / p)(mean[name], weight) for name in ("fit", "precision"))

        has_weights = ravel_pytree(precisions)[0].any()

        def combine_parameter(fit, precision):
            combined = combine_estimates(fit, precision, self.effects == "random")
            estimate = jnp.where(has_weights, combined.estimate, jnp.nan)  # a mean without weights would be 0
            return jnp.stack([estimate, combined.tau2, combined.q, combined.i2])

        results = fits.map(combine_parameter, precisions)
        state = {name: results.map(lambda v, k=k: v[k]) for k, name in enumerate(("w", "tau2", "q", "i2"))}
        return state | {"fits": fits, "precisions": precisions}

    def output(self, problem, server):
        return server["w"]

    def client_estimates(self, server):
        return server["fits"], server["precisions"]

    def metrics(self, problem, server, clients):
        columns = {"tau2": "tau2", "cochran_q": "q", "i2": "i2"}
        names = problem.objective.regularized
        return {
            metric: jnp.stack([server[column][name].max() for name in names]).max()
            for metric, column in columns.items()
        }

    def _estimate(self, problem: Problem, fit: Vector, data: LocalData) -> tuple[Vector, Vector]:
        """Return a client's estimates and their variances.

        References, and coefficients that the intercept and those before determine, are 0. The variances of these are
        infinite, and those of coefficients that the rows do not tell apart from a level.
        """
        batch, objective = data.whole, problem.objective
        assert isinstance(batch, Batch)
        flat, unravel = ravel_pytree(fit)
        n_rows = batch.n_rows
        matrix = hessian(problem, fit, batch)
        names = problem.objective.regularized
        ridges = Vector({name: 0 * values + (self.ridge if name in names else 0) for name, values in fit.items()})
        ridge = ravel_pytree(ridges)[0]
        inverse = _invert_contrasts(problem, matrix + jnp.diag(ridge), fit)
        variance = jnp.diagonal(inverse) / n_rows
        determined = jnp.isfinite(variance)
        inverse = jnp.where(jnp.isfinite(inverse), inverse, 0)
        slope = ravel_pytree(problem.gradient(fit, batch))[0]
        estimate = unravel(jnp.where(determined, inverse @ (matrix @ flat - slope), 0))  # a last Newton step
        variance = jnp.where(_is_confounded(problem, matrix, inverse, fit), jnp.inf, variance)
        if getattr(objective, "is_log_likelihood", False):
            return estimate, unravel(variance)

        def slopes(prediction):
            return jax.grad(lambda p: objective.loss(p, batch.y).sum())(prediction)

        prediction = problem.predict(estimate, batch.x, batch.offset)
        first, second = jax.jvp(slopes, (prediction,), (jnp.ones_like(prediction),))
        residual_rows = n_rows - (inverse * matrix).sum()  # the sum is the effective number of parameters
        square, curvature = batch.weight @ first**2, batch.weight @ second
        rounding = jnp.finfo(square.dtype).eps * (batch.weight @ (second * prediction) ** 2)
        dispersion = n_rows * square / curvature / residual_rows  # by Pearson's residuals first / curvature
        is_known = (residual_rows > 0.5) & (square > rounding)  # half, since a whole row has rounding
        return estimate, unravel(variance * jnp.where(is_known, dispersion, jnp.inf))


def _invert_contrasts(problem: Problem, matrix: jax.Array, w: Vector) -> jax.Array:
    """Return the inverse of a Hessian (p, p) without the references of levels, by ``invert_positive``.

    Parameters of no feature, as the intercept, come first: of features that determine one, the last is left out.
    """
    is_reference = _mark_features(w, problem.references)
    is_feature = _mark_features(w, range(w["weights"].shape[0]))
    order = np.argsort(is_feature, kind="stable")
    kept = jnp.where(is_reference[:, None] | is_reference[None], 0, matrix)
    place = np.argsort(order)
    return invert_positive(kept[order][:, order])[place][:, place]


def _is_confounded(problem: Problem, matrix: jax.Array, inverse: jax.Array, w: Vector) -> jax.Array:
    """Return which parameters (p,) a level that is left out depends on, as of a client without rows of the reference.

    Args:
        matrix: the Hessian (p, p).
        inverse: that of the parameters that are determined, 0 for the others.
    """
    is_level = _mark_features(w, problem.levels) & ~_mark_features(w, problem.references)
    size = jnp.sqrt(jnp.diagonal(matrix))
    is_left_out = is_level & (jnp.diagonal(inverse) == 0)
    dependence = jnp.abs(inverse @ matrix) * size[:, None]  # of each column on those that are determined
    depends = dependence > float(jnp.finfo(matrix.dtype).eps) ** 0.25 * size[None]
    return (depends & is_left_out[None]).any(axis=1)


def _mark_features(w: Vector, features: Iterable[int]) -> np.ndarray:
    """Return a mask of the parameters (p,) that belong to these features."""
    masks = [np.zeros(values.shape, bool) for values in w.values()]
    masks[list(w).index("weights")][list(features)] = True
    return np.concatenate([mask.ravel() for mask in masks])


class CombinedEstimates(NamedTuple):
    """Coefficients of a meta-analysis, each of the shape of a coefficient.

    Attributes:
        estimate: the weighted mean of the clients' estimates.
        precision: the inverse variance of this mean, 0 where no client has an estimate.
        tau2: the variance between clients, tau^2.
        q: Cochran's Q.
        i2: I^2, between 0 and 1.
    """

    estimate: jax.Array
    precision: jax.Array
    tau2: jax.Array
    q: jax.Array
    i2: jax.Array


def combine_estimates(estimates: jax.Array, precisions: jax.Array, random: bool = False) -> CombinedEstimates:
    """Return the combined estimate of each coefficient, and how the clients' estimates vary.

    Args:
        estimates: of each client, (M, *shape).
        precisions: the inverse variances, (M, *shape). A client without information has 0.
        random: whether the weights include tau^2.
    """
    total = precisions.sum(axis=0)
    combined = (precisions * estimates).sum(axis=0) / _positive(total)
    q = (precisions * (estimates - combined[None]) ** 2).sum(axis=0)
    count = (precisions > 0).sum(axis=0)
    excess = jnp.where(count > 1, jnp.maximum(q - (count - 1), 0), 0)  # q of one client is rounding
    tau2 = excess / _positive(total - (precisions**2).sum(axis=0) / _positive(total))
    i2 = excess / _positive(q)
    if random:
        weights = precisions / (1 + precisions * tau2[None])  # the inverse of variance plus tau^2
        total = weights.sum(axis=0)
        combined = (weights * estimates).sum(axis=0) / _positive(total)
    return CombinedEstimates(combined, total, tau2, q, i2)


def _positive(values: jax.Array) -> jax.Array:
    """Return the values where they are positive, and 1 elsewhere."""
    return jnp.where(values > 0, values, 1)
