"""The duality gap of F + psi at a model, from sums over rows: an upper bound on the distance to the optimum.

By Fenchel's inequality any u_i, one for each row i with weight omega_i in F, offset o_i and loss l, bounds the
optimum from below, if the sum of omega_i u_i is 0 where the model has an intercept:

    min over w of F(w) + psi(w)  >=  - sum omega_i (l*(u_i) - u_i o_i)  -  psi*(- sum omega_i u_i x_i)

With a ridge, psi here is psi plus the ridge, and F is without it.

The derivatives of the losses at the model are such u_i, scaled by a factor s that makes psi* finite. Who holds some
of the rows computes ``residual_sums`` and ``conjugate_sum`` of these rows; sums over all rows are sums of such sums:

1. ``residual_sums`` at the model; the receiver chooses s = ``dual_scale``. 2. ``conjugate_sum`` at s; the receiver
computes the ``duality_gap``.

A model with an intercept first needs the best intercept for its weights. Where ``has_best_intercept`` is False,
``InterceptSearch`` proposes another one, at which ``loss_sums``, four numbers, are summed anew.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.methods.objectives.intercepts import MAX_INTERCEPT_STEPS, InterceptSearch, LossSums, has_best_intercept
from fcorun.methods.objectives.objective import Objective
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.regularizers.regularizer import Regularizer

_FEASIBLE = 4500  # in units of the rounding error: 1e-12 in float64


class ResidualSums(NamedTuple):
    """Sums over rows for a dual point.

    Attributes:
        losses: the sums of the loss and its derivatives.
        gradient: the sum of the gradients of the losses in the weights, of the weights' shape.
    """

    losses: LossSums
    gradient: jax.Array


def explain_missing_conjugate(objective: Objective, regularizer: Regularizer) -> str:
    """Return why a linear model of one output has no duality gap; empty if it has one.

    With a ridge, the conjugate of any psi plus the ridge is known, by the prox of psi. Without a ridge psi needs a
    conjugate and a positive strength on every feature: a feature without a penalty has next to no feasible dual point.
    """
    if not hasattr(objective, "client_conjugates" if objective.overrides_client_losses else "conjugate"):
        return "the objective has no conjugate"
    if objective.ridge > 0:
        return ""
    if not hasattr(regularizer, "conjugate"):
        return "the regularizer has no conjugate, and the objective no ridge"
    if regularizer.has_free_features:
        return "`reg.factors` leaves features without a penalty, and the objective has no ridge"
    if regularizer.relative_or_none is None and regularizer.strength_or_none == 0:
        return "`reg.strength` is 0, and the objective has no ridge"
    return ""


def has_duality_gap(problem: Problem, features: int) -> bool:
    """Return True if the problem has a duality gap: a linear model, one output, and both conjugates."""
    has_conjugates = not explain_missing_conjugate(problem.objective, problem.regularizer)
    return has_one_output(problem, features) and has_conjugates


def has_one_output(problem: Problem, features: int) -> bool:
    """Return True for one weight for each feature, which psi acts on, and at most an intercept besides."""
    shapes = problem.shapes
    linear = problem.regularized == ("weights",) and set(shapes) | {"bias"} == {"weights", "bias"}
    return linear and math.prod(shapes["weights"]) == features and shapes.get("bias", ()) == ()


def loss_sums(problem: Problem, prediction: jax.Array, batch: Batch) -> LossSums:
    """Return the sums of the loss and its derivatives over rows with these predictions, offsets included, (n,)."""
    u = _residuals(problem, prediction, batch)
    second = jax.grad(lambda p: _residuals(problem, p, batch).sum())(prediction)
    loss = problem.objective.client_losses(prediction, batch.y, batch.weight, batch.client)
    return LossSums(*(_sum(batch, values) for values in (loss, u, jnp.abs(u), second)))


def residual_sums(problem: Problem, prediction: jax.Array, batch: Batch) -> ResidualSums:
    """Return the sums for a dual point over rows with these predictions, offsets included, (n,)."""
    u = _residuals(problem, prediction, batch)
    gradient = jnp.where(batch.weight > 0, batch.weight * u, 0) @ problem.features(batch.x, prediction.dtype)
    return ResidualSums(loss_sums(problem, prediction, batch), gradient.reshape(problem.shapes["weights"]))


def conjugate_sum(problem: Problem, prediction: jax.Array, scale: jax.Array | float, batch: Batch) -> jax.Array:
    """Return the sum of the losses' conjugates at u times ``scale``, each with its row's weight in F."""
    u, objective = scale * _residuals(problem, prediction, batch), problem.objective
    if objective.overrides_client_losses:
        rows = (batch.y, batch.weight)
        conjugate = objective.client_conjugates(prediction, *rows, scale, batch.client)  # type: ignore[attr-defined]
    else:
        conjugate = objective.conjugate(u, batch.y)  # type: ignore[attr-defined]
    if batch.offset is not None:
        conjugate = conjugate - u * batch.offset  # the conjugate of p -> l(p + offset)
    return _sum(batch, conjugate)


def dual_scale(problem: Problem, gradient: jax.Array) -> jax.Array | float:
    """Return the largest s in [0, 1] at which the conjugate of psi plus the ridge is finite at - s ``gradient``."""
    if problem.objective.ridge:
        return 1.0
    return problem.regularizer.dual_scale(-gradient)  # type: ignore[attr-defined]


def duality_gap(
    problem: Problem, objective: jax.Array | float, sums: ResidualSums, scale: jax.Array | float, conjugates: jax.Array
) -> jax.Array:
    """Return ``objective``, F + psi at a model, minus the lower bound on the optimum that sums over all rows give.

    Returns inf if the model has an intercept that is not the best one for its weights.

    Args:
        scale: the result of ``dual_scale``.
        conjugates: the sum of ``conjugate_sum`` at this scale.
    """
    psi, ridge = problem.regularizer, problem.objective.ridge
    v = -scale * sums.gradient
    if ridge:  # the conjugate of psi plus the ridge
        u = psi.prox(v / ridge, 1 / ridge)  # argmax <v, u> - ridge / 2 ||u||^2 - psi(u)
        conjugate = jnp.vdot(v, u) - ridge / 2 * jnp.vdot(u, u) - psi.value(u)
    else:
        conjugate = psi.conjugate(v)  # type: ignore[attr-defined]
    gap = objective + conjugates + conjugate
    if "bias" not in problem.shapes:
        return gap
    rounding = _FEASIBLE * jnp.finfo(sums.gradient.dtype).eps
    feasible = jnp.abs(sums.losses.slope) <= rounding * sums.losses.slope_size
    return jnp.where(feasible, gap, jnp.inf)


def pooled_gap(problem: Problem, w: Vector, objective: jax.Array | float, batch: Batch) -> jax.Array:
    """Return the duality gap at w, whose ``objective`` is given; ``batch`` has all rows with their weights in F.

    The dual point is that of the best intercept for the weights.
    """
    if "bias" in w:
        w = fit_intercept(problem, w, batch)
    prediction = problem.predict(w, batch.x, batch.offset)
    sums = residual_sums(problem, prediction, batch)
    scale = dual_scale(problem, sums.gradient)
    return duality_gap(problem, objective, sums, scale, conjugate_sum(problem, prediction, scale, batch))


def fit_intercept(problem: Problem, w: Vector, batch: Batch) -> Vector:
    """Return w with the intercept that minimizes F on all rows for its weights."""
    without_bias = problem.predict(Vector(w | {"bias": jnp.zeros_like(w["bias"])}), batch.x, batch.offset)

    def sums_at(bias):
        return loss_sums(problem, without_bias + bias, batch)

    def is_far(state):
        search, sums = state
        return ~has_best_intercept(sums) & (search.steps < MAX_INTERCEPT_STEPS)

    def advance(state):
        search, sums = state
        search = search.advance(sums, problem.objective.has_flat_losses)
        return search, sums_at(search.bias)

    start = InterceptSearch(w["bias"], *jnp.array([-jnp.inf, jnp.inf], w.dtype))
    search, _ = lax.while_loop(is_far, advance, (start, sums_at(w["bias"])))
    return Vector(w | {"bias": search.bias})


def _residuals(problem: Problem, prediction: jax.Array, batch: Batch) -> jax.Array:
    """Return the derivative of the losses in each row's prediction, divided by the row's weight in F, (n,)."""
    if problem.objective.has_client_losses:
        rows = (batch.y, batch.weight, batch.client)
        slopes = jax.grad(lambda p: batch.weight @ problem.objective.client_losses(p, *rows))(prediction)
        return jnp.where(batch.weight > 0, slopes / jnp.where(batch.weight > 0, batch.weight, 1), 0)
    return jax.grad(lambda p: problem.objective.loss(p, batch.y).sum())(prediction)


def _sum(batch: Batch, values: jax.Array) -> jax.Array:
    """Return the weighted sum over rows; rows with weight 0, of another subset, may have values that are not finite."""
    return batch.weight @ jnp.where(batch.weight > 0, values, 0)
