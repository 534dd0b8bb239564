"""Features of sparse rows, and a Hessian that is known by its products with vectors, computed from the rows."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from fcorun.methods.objectives.objective import LossDerivatives
from fcorun.methods.problem.penalty import MAX_WORKING

_SMALL_NUMBERS = 2**24  # of sparse rows that become dense here


@dataclass(frozen=True, eq=False)
class SparseFeatures:
    """The features (p, n) of sparse rows, of which no transposed copy is made, with the operators of an array.

    Attributes:
        rows: the rows, a CSR array.
        scale: a factor of all features but the intercept.
        has_intercept: whether the last feature is 1 in all rows.
    """

    rows: Any
    scale: float
    has_intercept: bool

    __array_ufunc__ = None  # so that an array leaves its product with features to them

    @property
    def shape(self) -> tuple[int, int]:
        n_rows, n_features = self.rows.shape
        return n_features + self.has_intercept, n_rows

    def __matmul__(self, slope: Float[np.ndarray, " n"]) -> Float[np.ndarray, " p"]:
        products = self.scale * (self.rows.T @ slope)
        return np.append(products, slope.sum()) if self.has_intercept else products

    def __rmatmul__(self, theta: Float[np.ndarray, " p"]) -> Float[np.ndarray, " n"]:
        products = self.rows @ (self.scale * theta[: self.rows.shape[1]])
        return products + theta[-1] if self.has_intercept else products

    def __getitem__(self, numbers: Int[np.ndarray, " k"]) -> "SparseFeatures":
        """Return the features of these numbers, which rise, so that an intercept stays the last."""
        is_weight = numbers < self.rows.shape[1]
        return SparseFeatures(self.rows[:, numbers[is_weight]], self.scale, not is_weight.all())

    def __pow__(self, exponent: int) -> "SparseFeatures":
        rows = self.rows
        powers = sparse.csr_array((rows.data**exponent, rows.indices, rows.indptr), shape=rows.shape)
        return SparseFeatures(powers, self.scale**exponent, self.has_intercept)


def arrange_features(rows: Any, scale: float, has_intercept: bool) -> Any:
    """Return the features (p, n) of rows (n, d), an array or a csr_array, times ``scale``; of few rows an array."""
    n_rows, n_features = rows.shape
    if sparse.issparse(rows):
        if n_features > MAX_WORKING or n_rows * n_features > _SMALL_NUMBERS:
            return SparseFeatures(rows, scale, has_intercept)
        rows = rows.toarray()
    features = np.ones((n_features + has_intercept, n_rows))
    np.multiply(rows.T, scale, out=features[:n_features])
    return features


@dataclass(frozen=True, eq=False)
class RowHessian:
    """The Hessian of F in k features, plus a diagonal matrix, by products with the features alone.

    Attributes:
        features: of the n rows.
        derivatives: those of F in the predictions of the rows.
        added: the diagonal matrix, (k,).
        diagonal: that of the whole, (k,), without what the losses eliminate.
    """

    features: Float[np.ndarray, "k n"] | SparseFeatures
    derivatives: LossDerivatives
    added: Float[np.ndarray, " k"]
    diagonal: Float[np.ndarray, " k"]

    @classmethod
    def at_point(cls, features: Any, derivatives: LossDerivatives, added: Float[np.ndarray, " k"]) -> "RowHessian":
        """Return the Hessian at the point that has these derivatives."""
        return cls(features, derivatives, added, features**2 @ derivatives.curvature + added)

    def add_to_diagonal(self, values: Float[np.ndarray, " k"]) -> "RowHessian":
        """Return the matrix plus the diagonal matrix of these values."""
        return replace(self, added=self.added + values, diagonal=self.diagonal + values)

    def restrict(self, numbers: Int[np.ndarray, " m"]) -> "RowHessian":
        """Return the rows and columns of these numbers, which rise."""
        return RowHessian(self.features[numbers], self.derivatives, self.added[numbers], self.diagonal[numbers])

    def __matmul__(self, v: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        return self.features @ self.derivatives.multiply(v @ self.features) + self.added * v
