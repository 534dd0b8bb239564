"""Least squares."""

from dataclasses import dataclass

import numpy as np

from fcorun.objectives.base import LinearModel, scale_by_root_weight


@dataclass(frozen=True)
class LeastSquares(LinearModel):
    """Mean of (x'w + b - y)^2, without the factor 1/2, as in section 5.1 of Yuan, Zaheer and Reddi (ICML 2021)."""

    source = "textbook"
    convex = True
    tasks = ("regression",)

    def second_derivative(self, outputs):
        return 2.0, 2.0

    def loss(self, prediction, y):
        return (prediction - y) ** 2

    def response(self, prediction):
        return prediction

    def conjugate(self, u, y):
        return u * y + u**2 / 4

    def curvature(self, features, outputs, weight=None):
        """The least and the largest eigenvalue of the Hessian, exactly: with a ridge that leaves the intercept out too.

        Outside of the span of the examples there is nothing but the ridge.
        """
        if not (self.ridge and self.intercept):
            return super().curvature(features, outputs, weight)
        n, d = features.shape
        inside = np.linalg.qr(features.T)[1].T if n < d else features
        x = scale_by_root_weight(self.design(inside), weight)
        ridge = np.diag(np.append(np.full(inside.shape[1], self.ridge), 0.0))
        eigenvalues = np.linalg.eigvalsh(2 / n * x.T @ x + ridge)
        least = min(eigenvalues[0], self.ridge) if n < d else eigenvalues[0]
        return max(float(least), 0.0), float(eigenvalues[-1])

    def quadratic(
        self, features: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """The mean loss over examples (n, d), float64, as constant + sum_k curvature_k a_k^2 / 2 - slope_k a_k.

        a_k = <basis_k, w> with orthonormal rows basis_k, (r, p) for p parameters, the bias last. Returns basis,
        curvature (r,), slope (r,), constant. ``weight`` (n,) is what each loss is multiplied by in the mean; None: 1.
        """
        x, y, n = scale_by_root_weight(self.design(features), weight), scale_by_root_weight(y, weight), len(y)
        if self.ridge or len(x) >= x.shape[1]:
            ridge = np.full(x.shape[1], self.ridge)
            ridge[features.shape[1] :] = 0  # not on the intercept
            curvature, basis = np.linalg.eigh(2 / n * x.T @ x + np.diag(ridge))
            basis, curvature = basis.T, np.maximum(curvature, 0)
        else:
            across, rest = np.linalg.qr(x.T)  # first, for it leaves a small matrix
            _, size, basis = np.linalg.svd(rest.T)
            basis, curvature = basis @ across.T, 2 / n * size**2
        return basis, curvature, basis @ (2 / n * x.T @ y), float(np.mean(y**2))
