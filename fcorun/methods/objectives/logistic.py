"""Logistic regression of all classes together, and of one class after the other."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.methods.objectives.objective import LinearModel, Margins, logistic_conjugate


@dataclass(frozen=True)
class Logistic(LinearModel):
    """Mean cross entropy of a sigmoid for two classes, of a softmax (one column of weights for each class) for more."""

    source = "textbook"
    convex = True
    nonnegative = True
    is_log_likelihood = True
    takes_client_intercepts = True
    tasks = ("binary", "multiclass")
    unbounded_reason = "alone or together they separate a class from others, but for rows at one value"

    def margins(self, x, y, client):
        design = self.add_intercept_columns(x, client)
        n_classes = y.max() + 1
        if n_classes == 2:
            return _margins_of_two_classes(design, y)
        is_class = np.eye(n_classes)
        falling = []
        for k in range(n_classes):
            others = y != k
            contrast = is_class[y[others]] - is_class[k]
            falling.append(design[others][:, :, None] * contrast[:, None])
        falling = np.concatenate(falling).reshape(-1, design.shape[1] * n_classes)
        return Margins(falling=falling, fixed=falling[:0])

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

    def row_derivatives(self, prediction, y):
        """Return the loss of each row of two classes and its two derivatives in the prediction, in NumPy, each (n,)."""
        with np.errstate(over="ignore"):
            probability = 1 / (1 + np.exp(-prediction))
        loss = np.logaddexp(0, prediction) - y * prediction
        return loss, probability - y, probability * (1 - probability)

    def conjugate(self, u, y):
        """Return the conjugate of the loss of two classes; that of more classes is not defined here."""
        return logistic_conjugate(u, y)


@dataclass(frozen=True)
class OneVsRest(LinearModel):
    """Mean over examples of sum_k log(1 + exp(-b_k p_k)), b_k = 1 for the example's class and -1 for other classes.

    The classes' models share the examples, and no parameters.
    """

    source = "equation (21) of @pathak2020"
    convex = True
    nonnegative = True
    is_log_likelihood = True
    tasks = ("multiclass",)
    unbounded_reason = Logistic.unbounded_reason

    def margins(self, x, y, client):
        design = self.add_intercept_columns(x, client)
        n_classes = y.max() + 1
        if n_classes == 2:  # are left, with one output
            return _margins_of_two_classes(design, y)
        falling = np.zeros((n_classes, *design.shape, n_classes))
        for k in range(n_classes):
            falling[k, :, :, k] = np.where(y == k, 1, -1)[:, None] * design
        falling = falling.reshape(-1, design.shape[1] * n_classes)
        return Margins(falling=falling, fixed=falling[:0])

    def second_derivative_bounds(self, outputs):
        return 0.0, 0.25

    def loss(self, prediction, y):
        own_class = jnp.take_along_axis(prediction, y[:, None], axis=1)[:, 0]
        return jax.nn.softplus(prediction).sum(axis=1) - own_class

    def scores(self, prediction, y):
        return {"accuracy": (prediction.argmax(axis=1) == y).astype(prediction.dtype)}

    def probabilities(self, prediction):
        """Return each class's probability against the rest, normalized to sum 1 (Zadrozny and Elkan, KDD 2002)."""
        return jax.nn.softmax(jax.nn.log_sigmoid(prediction), axis=1)  # the logarithms do not underflow


def _margins_of_two_classes(design: np.ndarray, y: np.ndarray) -> Margins:
    """Return the rows of the design matrix (n, p), those of class 0 times -1."""
    return Margins(falling=np.where(y == 1, 1, -1)[:, None] * design, fixed=design[:0])
