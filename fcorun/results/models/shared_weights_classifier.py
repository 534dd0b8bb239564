"""A fitted classifier of scikit-learn's interface for classes that share their weights."""

import numpy as np
from jaxtyping import Float, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin

from fcorun.methods.objectives.objective import Objective, add_intercept
from fcorun.results.model_outputs import class_probabilities


class SharedWeightsClassifier(ClassifierMixin, BaseEstimator):
    """A fitted model with one column of weights and an intercept for each cut between classes, on raw features.

    scikit-learn has no such model. ``classes_`` are in the order of the record, from the lowest to the highest class.

    Attributes:
        objective: turns log odds into probabilities.
        coef_: the weights, (d,).
        intercept_: the intercepts, (cuts,), or (n, cuts) for rows with offsets of their own.
        classes_: the labels, (cuts + 1,).
    """

    coef_: np.ndarray
    intercept_: np.ndarray
    classes_: np.ndarray

    def __init__(self, objective: Objective | None = None):
        self.objective = objective

    def decision_function(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n cuts"]:
        """Return the log odds of a class above each cut, (n, cuts)."""
        return add_intercept(np.asarray(X, float) @ self.coef_, np.atleast_2d(self.intercept_))

    def predict_proba(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n classes"]:
        """Return the probability of each class, (n, classes)."""
        assert self.objective is not None
        probabilities = class_probabilities(self.objective, self.decision_function(X))
        assert probabilities is not None
        return probabilities

    def predict(self, X: Float[np.ndarray, "n d"]) -> Shaped[np.ndarray, " n"]:
        """Return the label of the most probable class of each row, (n,)."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
