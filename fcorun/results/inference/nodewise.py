"""An approximate inverse of the Hessian, row by row, by the nodewise lasso."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fcorun.results.inference.l1_quadratics import minimize_l1_quadratics

_N_STRENGTHS = 25  # of the nodewise lasso, from the largest useful one to the smallest, in equal ratios
_SMALLEST_STRENGTH = 1e-3  # of the nodewise lasso, relative to the largest useful one
_EXTRA_NOISE = 0.25  # the share of the standard error that a smaller bias may cost
_EXTRA_BIAS = 0.5  # by this share the bound exceeds the smallest bias factor, for features above it at all strengths
_TOLERANCE = 1e-4  # of nodewise solutions; bias factors are those of the rows as computed
_MAX_SWEEPS = 100
_REGULAR = 1e-8  # the smallest eigenvalue, of a Hessian with ones on its diagonal, that is inverted


@dataclass(frozen=True, eq=False)
class ApproximateInverse:
    """Rows theta_j with theta_j' H e_j = 1, and small theta_j' H e_k for other k.

    Attributes:
        theta: the rows (p, p).
        bias_factor: the largest |theta_j' H e_k| over other features k, relative to the standard error, for each
            parameter (p,); 0 for a row of the inverse, and for the intercept.
    """

    theta: np.ndarray
    bias_factor: np.ndarray


def approximate_inverse(hessian: np.ndarray, effective_rows: float, has_intercept: bool) -> ApproximateInverse:
    """Return the approximate inverse of the Hessian of F. Call under enable_x64.

    Row j is (1, -gamma) / tau_j^2 with gamma = argmin gamma' H gamma / 2 - H_j gamma + strength |gamma|_1 over the
    other features and tau_j^2 = (1, -gamma) H e_j (van de Geer, Buehlmann, Ritov and Dezeure, Ann. Stat. 2014), in
    units in which the diagonal of H is 1. The strength of each feature follows the rule of Zhang and Zhang (J. R. Stat.
    Soc. B 2014): of all strengths whose standard error is at most a quarter above that at the largest strength with a
    bias factor of at most sqrt(2 log p), the one with the smallest bias factor. If no strength has such a bias factor,
    the bound is 1.5 times the smallest bias factor. Strength 0, the inverse, is among the strengths if H is regular. An
    intercept, the last parameter, has no penalty.

    Args:
        hessian: the Hessian H (p, p).
        effective_rows: the number of rows; with weights that sum to one, 1 / (sum of squared weights).
        has_intercept: whether the last parameter is an intercept.
    """
    if not has_intercept:
        return _invert_features(hessian, effective_rows)
    cross, diagonal = hessian[:-1, -1], hessian[-1, -1]
    features = _invert_features(hessian[:-1, :-1] - np.outer(cross, cross) / diagonal, effective_rows)
    means = cross / diagonal
    theta = np.zeros_like(hessian)
    theta[:-1, :-1] = features.theta
    theta[:-1, -1] = -features.theta @ means
    theta[-1, :-1] = -means @ features.theta
    theta[-1, -1] = 1 / diagonal + means @ features.theta @ means
    return ApproximateInverse(theta, np.append(features.bias_factor, 0.0))


def _invert_features(hessian: np.ndarray, effective_rows: float) -> ApproximateInverse:
    """Return the approximate inverse for features that all have a penalty."""
    scale = 1 / np.sqrt(np.diagonal(hessian))
    correlation = hessian * scale * scale[:, None]
    choice = _Choice(correlation, effective_rows)
    inverse = None  # where the matrix is singular or nearly so
    if np.linalg.eigvalsh(correlation)[0] > _REGULAR:
        inverse = np.linalg.inv(correlation)
        inverse = inverse / np.diagonal(inverse)[:, None]
    for rows in _iterate_strengths(correlation):
        choice.consider(rows)
        if inverse is not None and choice.affords(inverse).all():
            break
        if choice.is_settled:
            break
    if inverse is not None:
        choice.consider(inverse)
    rows, bias = choice.best()
    rows = rows / np.einsum("jk,kj->j", rows, correlation)[:, None]
    return ApproximateInverse(rows * scale * scale[:, None], bias)


def _iterate_strengths(correlation: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows (1, -gamma) for each strength, from the largest useful one to the smallest, each (p, p)."""
    eye = np.eye(len(correlation))
    largest = float(np.abs(correlation - eye).max())
    gamma = np.zeros_like(correlation)
    yield eye
    if largest == 0:
        return
    for strength in np.geomspace(largest, largest * _SMALLEST_STRENGTH, _N_STRENGTHS)[1:]:
        penalty = np.where(eye > 0, np.inf, strength)
        gamma = minimize_l1_quadratics(
            correlation, correlation, penalty, gamma, tolerance=_TOLERANCE, max_sweeps=_MAX_SWEEPS
        )
        yield eye - gamma.T


class _Choice:
    """The choice of a strength for each feature by the rule of Zhang and Zhang, while strengths decrease."""

    def __init__(self, correlation: np.ndarray, effective_rows: float):
        self.correlation = correlation
        self.effective_rows = effective_rows
        self.bound = np.sqrt(2 * np.log(max(len(correlation), 2)))
        self.candidates: list[np.ndarray] = []
        self.bias: list[np.ndarray] = []
        self.noise: list[np.ndarray] = []

    def consider(self, rows: np.ndarray) -> None:
        """Add the rows (p, p) of the next strength."""
        bias, noise = self._factors(rows)
        self.candidates.append(rows)
        self.bias.append(bias)
        self.noise.append(noise)

    def affords(self, rows: np.ndarray) -> np.ndarray:
        """Return whether each of these rows (p, p) costs at most a quarter of the reference's standard error, (p,)."""
        return self._factors(rows)[1] <= (1 + _EXTRA_NOISE) * self._reference()

    @property
    def is_settled(self) -> bool:
        """Return whether smaller strengths, which are noisier, are too noisy for all features."""
        return bool((self.noise[-1] > (1 + _EXTRA_NOISE) * self._reference()).all())

    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the chosen row of each feature (p, p), and its bias factor (p,)."""
        bias, noise = np.stack(self.bias), np.stack(self.noise)
        smallest = bias.min(axis=0)
        bounds = np.where(smallest > self.bound, (1 + _EXTRA_BIAS) * smallest, self.bound)
        first = (bias <= bounds).argmax(axis=0)
        features = np.arange(len(first))
        affordable = noise <= (1 + _EXTRA_NOISE) * noise[first, features]
        chosen = np.where(affordable, bias, np.inf).argmin(axis=0)
        return np.stack([self.candidates[i][j] for j, i in enumerate(chosen)]), bias[chosen, features]

    def _reference(self) -> np.ndarray:
        """Return the noise factor at the largest strength within the bound (p,); NaN without such a strength yet."""
        bias, noise = np.stack(self.bias), np.stack(self.noise)
        within = bias <= self.bound
        reference = noise[within.argmax(axis=0), np.arange(bias.shape[1])]
        return np.where(within.any(axis=0), reference, np.nan)

    def _factors(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the factors of bias and of noise of each row, each (p,).

        In the notation of Zhang and Zhang, these are max_k |z_j' x_k| / |z_j| and |z_j| / |z_j' x_j|, the latter up to
        a constant.
        """
        products = rows @ self.correlation
        length = np.sqrt(np.maximum(np.einsum("jk,jk->j", products, rows), 1e-300))
        diagonal = np.diagonal(products).copy()
        np.fill_diagonal(products, 0.0)
        bias = np.sqrt(self.effective_rows) * np.abs(products).max(axis=1) / length
        return bias, length / np.maximum(np.abs(diagonal), 1e-300)
