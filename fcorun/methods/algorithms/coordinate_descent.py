"""Federated averaging of clients that lower their own loss plus psi by coordinate descent."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.base.config import Count, Fraction, Positive
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import Algorithm, Traits
from fcorun.methods.objectives.objective import LinearModel
from fcorun.methods.problem.operation_counts import mark
from fcorun.methods.problem.problem import Batch, Problem, Quadratic, Vector
from fcorun.methods.regularizers.regularizer import soft_threshold


@dataclass(frozen=True)
class FedAvgCoordinateDescent(Algorithm):
    """FedAvg with sweeps of cyclic coordinate descent on a client's loss plus psi as local steps.

    With ``step`` 1 a coordinate goes to the minimum of psi plus a parabola above the loss, which for least squares is
    the loss itself. Shorter steps keep unlike clients nearer to each other. A sweep over all coordinates costs as much
    as a gradient. The mean of the clients' models is not the optimum, even after one sweep.
    """

    source = "ours: @mcmahan2017 with the local steps of @friedman2007"
    reads_columns = True

    server_lr: Positive = 1.0
    step: Fraction = 0.1
    sweeps: Count = 1

    traits = Traits(needs=("l1_and_ridge",), psi_sides=("client",), deterministic=True, hierarchy="some")
    needs_one_output = True

    def local(self, problem, server, client, data):
        w = data.repeat(self.sweeps, lambda w: sweep_coordinates(problem, data.whole, w, self.step), server)
        return w - server, client

    def server(self, problem, server, mean):
        return server + self.server_lr * mean


class CoordinateLoss(NamedTuple):
    """A client's loss as a sum over n terms, each of a linear function of the p parameters, the intercept last.

    Attributes:
        design: the linear functions, (n, p).
        start: their values at the client's model, (n,).
        slope: returns the derivatives of the terms at other values, (n,).
        curvature: upper bounds on their second derivatives, (n,).
        ridge: of the objective where the terms lack it.
    """

    design: jax.Array
    start: jax.Array
    slope: Callable[[jax.Array], jax.Array]
    curvature: jax.Array
    ridge: float

    @classmethod
    def of_quadratic(cls, quadratic: Quadratic, w: Vector) -> "CoordinateLoss":
        """Return least squares in the coordinates of the span of the rows."""
        assert quadratic.basis is not None
        rank = len(quadratic.curvature)
        design = jnp.column_stack([quadratic.basis[name].reshape(rank, -1) for name in w])
        start = quadratic.to_coordinates(w)
        return cls(design, start, lambda a: quadratic.curvature * a - quadratic.linear, quadratic.curvature, 0.0)

    @classmethod
    def of_rows(cls, problem: Problem, batch: Batch, w: Vector) -> "CoordinateLoss":
        """Return the loss of a linear model by its predictions.

        Raises UserError for losses of unbounded curvature.
        """
        objective = problem.objective
        assert isinstance(objective, LinearModel)
        if not objective.has_curvature_bound:
            raise UserError("coordinate descent needs losses of bounded curvature: choose another `algo`")
        design = problem.features(batch.x, w.dtype)
        if "bias" in w:
            design = jnp.column_stack([design, jnp.ones(len(design), w.dtype)])

        def loss(prediction):
            return batch.weight @ objective.client_losses(prediction, batch.y, batch.weight, batch.client)

        curvature = objective.second_derivative_bounds(1)[1] * batch.weight
        start = problem.predict(w, batch.x, batch.offset)
        return cls(design, start, jax.grad(loss), curvature, objective.ridge)


def sweep_coordinates(problem: Problem, data: Batch | Quadratic, w: Vector, step: jax.Array | float) -> Vector:
    """Return the model after a step in each coordinate, the intercept last: Friedman et al. (2007), section 2.

    ``step`` is a factor of the steps that go to the minimum.
    """
    if isinstance(data, Quadratic):
        loss = CoordinateLoss.of_quadratic(data, w)
    else:
        loss = CoordinateLoss.of_rows(problem, data, w)
    theta = jnp.concatenate([w[name].ravel() for name in w])
    n_features = w["weights"].size
    l1, ridge = problem.regularizer.l1_and_ridge(n_features)  # type: ignore[attr-defined]
    of_intercept = jnp.zeros(len(theta) - n_features, w.dtype)
    l1, ridge = (jnp.append(values, of_intercept).astype(w.dtype) for values in (l1, ridge + loss.ridge))
    curvature = loss.curvature @ loss.design**2 + ridge

    def move(state, j):
        theta, values = state
        column = loss.design[:, j]
        gradient = column @ loss.slope(values) + ridge[j] * theta[j]
        length = step / jnp.where(curvature[j] > 0, curvature[j], 1)
        change = soft_threshold(theta[j] - length * gradient, length * l1[j]) - theta[j]
        change = jnp.where(curvature[j] > 0, change, 0)  # a feature that is 0 at the client stays
        return (theta.at[j].add(change), values + change * column), None

    (theta, _), _ = lax.scan(move, (theta, loss.start), jnp.arange(len(theta)))
    swept = {"weights": theta[:n_features].reshape(w["weights"].shape)}
    if "bias" in w:
        swept["bias"] = theta[n_features]
    return mark(Vector(swept), data.counts)
