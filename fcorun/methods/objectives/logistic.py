"""Logistic regression."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.methods.objectives.objective import LinearModel, logistic_conjugate


@dataclass(frozen=True)
class Logistic(LinearModel):
    """Mean cross entropy of a sigmoid for two classes, of a softmax (one column of weights for each class) for more."""

    source = "textbook"
    convex = True
    nonnegative = True
    is_log_likelihood = True
    tasks = ("binary", "multiclass")

    def second_derivative_bounds(self, outputs):
        return 0.0, 0.25 if outputs == 1 else 0.5  # softmax: Boehning (Ann. Inst. Stat. Math. 1992)

    def loss(self, prediction, y):
        if prediction.ndim == 1:
            return jax.nn.softplus(prediction) - y * prediction
        return jax.nn.logsumexp(prediction, axis=1) - jnp.take_along_axis(prediction, y[:, None], axis=1)[:, 0]

    def scores(self, prediction, y):
        label = prediction > 0 if prediction.ndim == 1 else prediction.argmax(axis=1)
        return {"accuracy": (label == y).astype(prediction.dtype)}

    def probabilities(self, prediction):
        if prediction.ndim == 1:
            return jax.nn.sigmoid(jnp.stack([-prediction, prediction], axis=1))
        return jax.nn.softmax(prediction, axis=1)

    def conjugate(self, u, y):
        """Return the conjugate of the loss of two classes; that of more classes is not defined here."""
        return logistic_conjugate(u, y)
