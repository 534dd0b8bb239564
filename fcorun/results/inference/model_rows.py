"""The rows of a linear model, and the sums over them that Newton's method and intervals need.

The parameters are one vector theta (p,): the weights of the d features and, last, the intercept of a model that has
one.
"""

from typing import NamedTuple

import numpy as np


class ModelRows(NamedTuple):
    """Rows of a linear model of one output.

    Attributes:
        x: the features (n, p), with a column of ones for an intercept.
        y: the targets (n,).
        weight: the weights in F (n,).
        offset: the terms added to the predictions (n,).
        client: the client of each row (n,); None: all rows are of one client.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    offset: np.ndarray
    client: np.ndarray | None = None

    def take(self, rows: np.ndarray | slice) -> "ModelRows":
        """Return some rows, with all that belongs to them."""
        return ModelRows(*(None if values is None else values[rows] for values in self))  # type: ignore[arg-type]


class DerivativeSums(NamedTuple):
    """The weighted sum of the losses of rows at a point, and its derivatives, without any penalty or ridge.

    Attributes:
        loss: the weighted sum of the losses; of Cox's model, the negative log partial likelihood.
        gradient: its gradient (p,).
        hessian: its Hessian (p, p).
    """

    loss: float
    gradient: np.ndarray
    hessian: np.ndarray
