"""Meta-analysis of the clients' own fits: one round."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fcorun.base.metrics import Metric
from fcorun.methods.algorithms.algorithm import LocalData, Traits, tree_bytes
from fcorun.methods.algorithms.local_fit import LocalFitAlgorithm
from fcorun.methods.problem.penalized_quadratic import hessian, invert_positive
from fcorun.methods.problem.problem import Batch, Problem, Vector


@dataclass(frozen=True)
class MetaAnalysis(LocalFitAlgorithm):
    """Meta-analysis: clients send estimates and their precisions, and the server averages each coefficient by itself.

    The weights are these precisions, the inverse variances. Random effects add to each variance the variance tau^2
    between clients, by DerSimonian and Laird. The metrics are the largest over the coefficients, the intercept aside.

    A variance is that of a generalized linear model: the inverse Hessian of the negative log-likelihood, times the
    dispersion by Pearson's residuals if the loss is not that log-likelihood itself. With a ridge, the inverse is that
    of Hessian plus ridge. A client has no estimate of its dispersion, and no weight, if its rows exceed its effective
    number of parameters by half a row or less, or if its residuals are only rounding. The result is NaN if no client
    has a weight. Weights of rows count as relative ones. Of collinear columns, such as all levels of a text column with
    the intercept, a client leaves out the last.

    Messages are averaged by their weights in F, so that each client fills a row of its own of a table of M rows, which
    suits tens of clients. Only this row counts in ``bytes_up``.
    """

    source = "the estimators of @dersimonian1986"
    traits = Traits(psi_sides=(), partial=False, deterministic=True, local_fits=True, uploads="exact")
    declared_metrics = (
        Metric("tau2", "largest variance between clients"),
        Metric("cochran_q", "largest Q of a coefficient"),
        Metric("i2", "largest I$^2$ of a coefficient", bounded=True),
    )
    metrics_of_server = True

    effects: Literal["fixed", "random"] = "fixed"

    def init(self, problem, w0):
        zero = 0 * w0
        return {"w": w0, "tau2": zero, "q": zero, "i2": zero}, None

    def local(self, problem, server, client, data):
        fit, variance = self._estimate(problem, self.fit(problem, data), data)
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
        fits = fits.map(lambda v: jnp.where(has_weights, v, jnp.nan))  # a mean without weights would be 0

        def combine_parameter(fit, precision):
            return jnp.stack(combine_estimates(fit, precision, self.effects == "random"))

        results = fits.map(combine_parameter, precisions)
        return {name: results.map(lambda v, k=k: v[k]) for k, name in enumerate(("w", "tau2", "q", "i2"))}

    def output(self, problem, server):
        return server["w"]

    def metrics(self, problem, server, clients):
        columns = {"tau2": "tau2", "cochran_q": "q", "i2": "i2"}
        names = problem.objective.regularized
        return {
            metric: jnp.stack([server[column][name].max() for name in names]).max()
            for metric, column in columns.items()
        }

    def _estimate(self, problem: Problem, fit: Vector, data: LocalData) -> tuple[Vector, Vector]:
        """Return a client's estimates and their variances.

        A coefficient that the ones before determine is 0, and its variance infinite.
        """
        batch, objective = data.whole, problem.objective
        assert isinstance(batch, Batch)
        flat, unravel = ravel_pytree(fit)
        n_rows = (batch.weight > 0).sum()
        matrix = hessian(problem, fit, batch)
        ridge = ravel_pytree(self.ridge_diagonal(problem, fit))[0]
        inverse = invert_positive(matrix + jnp.diag(ridge))
        variance = jnp.diagonal(inverse) / n_rows
        determined = jnp.isfinite(variance)
        inverse = jnp.where(jnp.isfinite(inverse), inverse, 0)
        slope = ravel_pytree(problem.gradient(fit, batch))[0]
        estimate = unravel(jnp.where(determined, inverse @ (matrix @ flat - slope), 0))  # a last Newton step
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


def combine_estimates(
    estimates: jax.Array, precisions: jax.Array, random: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the combined estimate, tau^2, Cochran's Q and I^2 of each coefficient.

    Args:
        estimates: of each client, (M, *shape).
        precisions: the inverse variances, (M, *shape). A client without information has 0.
        random: whether the weights include tau^2.
    """
    total = _positive(precisions.sum(axis=0))
    combined = (precisions * estimates).sum(axis=0) / total
    q = (precisions * (estimates - combined[None]) ** 2).sum(axis=0)
    count = (precisions > 0).sum(axis=0)
    excess = jnp.where(count > 1, jnp.maximum(q - (count - 1), 0), 0)  # q of one client is rounding
    tau2 = excess / _positive(total - (precisions**2).sum(axis=0) / total)
    i2 = excess / _positive(q)
    if random:
        weights = precisions / (1 + precisions * tau2[None])  # the inverse of variance plus tau^2
        combined = (weights * estimates).sum(axis=0) / _positive(weights.sum(axis=0))
    return combined, tau2, q, i2


def _positive(values: jax.Array) -> jax.Array:
    """Return the values where they are positive, and 1 elsewhere."""
    return jnp.where(values > 0, values, 1)
