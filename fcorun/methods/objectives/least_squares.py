"""Least squares."""

from dataclasses import dataclass

import numpy as np

from fcorun.data.rows.features import why_not_dense
from fcorun.methods.objectives.objective import LinearModel, scale_by_root_weight


@dataclass(frozen=True)
class LeastSquares(LinearModel):
    """Mean of (x'w + b - y)^2, without the factor 1/2, as in section 5.1 of Yuan, Zaheer and Reddi (ICML 2021)."""

    source = "textbook"
    convex = True
    nonnegative = True
    takes_client_intercepts = True
    tasks = ("regression",)

    def second_derivative_bounds(self, outputs):
        return 2.0, 2.0

    def loss(self, prediction, y):
        return (prediction - y) ** 2

    def response(self, prediction):
        return prediction

    def row_derivatives(self, prediction, y):
        residual = prediction - y
        return residual**2, 2 * residual, np.full(len(y), 2.0)

    def conjugate(self, u, y):
        return u * y + u**2 / 4

    def curvature(self, features, outputs, weight=None):
        """Return the smallest and the largest eigenvalue of the Hessian, exactly, also with a ridge and an intercept.

        Of sparse examples with both, they are bounds. Outside the span of the examples the Hessian is that of the
        ridge.
        """
        if not (self.ridge and self.has_shared_intercept) or why_not_dense(features):
            return super().curvature(features, outputs, weight)
        n, d = features.shape
        in_span = np.linalg.qr(features.T)[1].T if n < d else features
        x = scale_by_root_weight(self.design(in_span), weight)
        ridge = np.diag(np.append(np.full(in_span.shape[1], self.ridge), 0.0))
        eigenvalues = np.linalg.eigvalsh(2 / n * x.T @ x + ridge)
        smallest = min(eigenvalues[0], self.ridge) if n < d else eigenvalues[0]
        return max(float(smallest), 0.0), float(eigenvalues[-1])

    def quadratic(
        self, features: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Decompose the mean loss over examples (n, d), float64: constant + sum_k curvature_k a_k^2 / 2 - slope_k a_k.

        The coordinates are a_k = <basis_k, w> with orthonormal rows basis_k, (r, p) for p parameters, the bias last.
        Returns basis, curvature (r,), slope (r,), constant. ``weight`` (n,) multiplies each loss in the mean; None: 1.
        Directions that the examples leave flat have a row of zeros, and a feature that is 0 everywhere has a column.
        """
        n = len(y)
        x = scale_by_root_weight(self.design(features, weight), weight)
        if self.client_intercepts:
            y = y - np.average(y, weights=weight)
        y = scale_by_root_weight(y, weight)
        if self.ridge or len(x) >= x.shape[1]:
            ridge = np.full(x.shape[1], self.ridge)
            ridge[features.shape[1] :] = 0  # not on the intercept
            curvature, eigenvectors = np.linalg.eigh(2 / n * x.T @ x + np.diag(ridge))
            curvature = np.maximum(curvature, 0)
            basis = eigenvectors.T
        else:
            span, coordinates = np.linalg.qr(x.T)  # reduces the decomposition to a small matrix
            _, singular_values, basis = np.linalg.svd(coordinates.T)
            basis = basis @ span.T
            curvature = 2 / n * singular_values**2
        # LAPACK mixes directions of equal curvature, and its rounding of 0 would be divided by itself in a Newton step
        is_flat = curvature <= len(curvature) * np.finfo(curvature.dtype).eps * curvature.max()
        curvature[is_flat] = 0
        basis = np.where(is_flat[:, None], 0, basis)
        if not self.ridge:
            basis[:, ~x.any(axis=0)] = 0
        return basis, curvature, basis @ (2 / n * x.T @ y), float(np.mean(y**2))
