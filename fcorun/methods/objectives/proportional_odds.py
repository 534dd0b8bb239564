"""Proportional odds for ordered classes."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.errors import UserError
from fcorun.methods.objectives.objective import LinearModel, Margins


@dataclass(frozen=True)
class ProportionalOdds(LinearModel):
    """Mean of -log P(y) in the model logit P(y > j) = x'w + b_j, j = 0..k - 2, for classes 0..k - 1 in order.

    All cut points share the weights: exp(w) is the odds ratio of a higher class for one unit of a feature, wherever the
    classes are cut in two. The biases b_j decrease with j. They are the cut points of MASS::polr and of statsmodels'
    OrderedModel with the sign turned. At biases that do not decrease the loss is infinite.
    """

    source = "@mccullagh1980"
    convex = True
    nonnegative = True
    is_log_likelihood = True
    tasks = ("ordinal",)
    unbounded_reason = "alone or together they order the classes, but for rows at one value"

    intercept: bool = True

    def __post_init__(self):
        if not self.intercept:
            raise UserError("`objective.intercept=false`: `objective=proportional_odds` needs its cut points; leave "
                            "`objective.intercept` out")  # fmt: skip

    def second_derivative_bounds(self, outputs):
        return 0.0, math.inf  # without bound where two cut points meet

    def shapes(self, features, classes):
        return {"weights": features, "bias": (classes - 1,)}

    def initial_parameters(self, shapes, rng):
        """Return weights of 0, and the biases at which all classes are equally probable."""
        n_cuts = shapes["bias"][0]
        share_above = 1 - np.arange(1, n_cuts + 1) / (n_cuts + 1)
        return {"weights": np.zeros(shapes["weights"]), "bias": np.log(share_above / (1 - share_above))}

    def margins(self, x, y, client):
        is_cut = np.eye(y.max() + 1)
        above_lower_cut = np.column_stack([x, is_cut[y - 1][:, :-1]])[y > 0]
        above_upper_cut = np.column_stack([x, is_cut[y][:, :-1]])[y < y.max()]
        falling = np.concatenate([above_lower_cut, -above_upper_cut])
        return Margins(falling=falling, fixed=falling[:0])

    def classify(self, prediction):
        return np.asarray(self.probabilities(jnp.asarray(prediction))).argmax(axis=1)

    def loss(self, prediction, y):
        n_cuts = prediction.shape[1]
        is_lowest, is_highest = y == 0, y == n_cuts
        above_lower_cut = _take_cut(prediction, jnp.maximum(y - 1, 0))  # log odds of the row's class or a higher one
        above_upper_cut = _take_cut(prediction, jnp.minimum(y, n_cuts - 1))  # log odds of a higher class
        gap = jnp.where(is_lowest | is_highest, 1.0, above_lower_cut - above_upper_cut)
        is_ordered = gap > 0
        log_gap = jnp.where(is_ordered, jnp.log(-jnp.expm1(-jnp.where(is_ordered, gap, 1.0))), -jnp.inf)
        # P(u > z > v) of a logistic z is s(u) s(-v) (1 - exp(v - u)), with s the sigmoid
        loss = jnp.where(is_lowest, 0, jax.nn.softplus(-above_lower_cut))
        loss += jnp.where(is_highest, 0, jax.nn.softplus(above_upper_cut))
        return loss - jnp.where(is_lowest | is_highest, 0, log_gap)

    def scores(self, prediction, y):
        label = self.probabilities(prediction).argmax(axis=1)
        return {"accuracy": (label == y).astype(prediction.dtype)}

    def probabilities(self, prediction):
        above = jax.nn.sigmoid(prediction)
        ones = jnp.ones_like(above[:, :1])
        return jnp.concatenate([ones, above], axis=1) - jnp.concatenate([above, 0 * ones], axis=1)


def _take_cut(prediction: jax.Array, cut: jax.Array) -> jax.Array:
    """Return the prediction of each row at its cut, (n,), of predictions (n, cuts)."""
    return jnp.take_along_axis(prediction, cut[:, None], axis=1)[:, 0]
