"""Estimates of coefficients with their covariance, and intervals and p values of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.rows.row_groups import divide
from fcorun.results.inference.solution import check_regular, minimize_l1_quadratics
from fcorun.results.inference.sums import DerivativeSums, SquaredScores

_N_STRENGTHS = 25  # of the nodewise lasso, from the largest useful one to the smallest, in equal ratios
_SMALLEST_STRENGTH = 1e-3  # of the nodewise lasso, relative to the largest useful one
_EXTRA_NOISE = 0.25  # the share of the standard error that a smaller bias may cost
_EXTRA_BIAS = 0.5  # by this share the bound exceeds the smallest bias factor, for features above it at all strengths
_TOLERANCE = 1e-4  # of nodewise solutions; bias factors are those of the rows as computed
_MAX_SWEEPS = 100
_REGULAR = 1e-8  # the smallest eigenvalue, of a Hessian with ones on its diagonal, that is inverted
_SMALLEST_CORRELATION = 1e-10  # the smallest eigenvalue of a correlation matrix of full rank


def approximate_inverse(hessian: np.ndarray, effective_rows: float, n_intercepts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the approximate inverse of the Hessian H of F, and the bias factors of its rows. Call under enable_x64.

    The rows theta_j (p, p) have theta_j' H e_j = 1, and small theta_j' H e_k for other k. The largest of these for a
    feature k, relative to the standard error, is the bias factor (p,), 0 for a row of the inverse and for an intercept.

    Row j is (1, -gamma) / tau_j^2 with gamma = argmin gamma' H gamma / 2 - H_j gamma + strength |gamma|_1 over the
    other features and tau_j^2 = (1, -gamma) H e_j (van de Geer, Buehlmann, Ritov and Dezeure, Ann. Stat. 2014), in
    units in which the diagonal of H is 1. The strength of each feature follows the rule of Zhang and Zhang (J. R. Stat.
    Soc. B 2014): of all strengths whose standard error is at most a quarter above that at the largest strength with a
    bias factor of at most sqrt(2 log p), the one with the smallest bias factor. If no strength has such a bias factor,
    the bound is 1.5 times the smallest bias factor. Strength 0, the inverse, is among the strengths if H is regular.
    Intercepts, the last parameters, have no penalty.

    Args:
        hessian: the Hessian H (p, p).
        effective_rows: the number of rows; with weights that sum to one, 1 / (sum of squared weights).
        n_intercepts: the number of intercepts, in each row's prediction at most one.
    """
    d = len(hessian) - n_intercepts
    cross = hessian[:d, d:]
    diagonal = np.diagonal(hessian)[d:]
    means = cross / diagonal
    features, bias = _invert_features(hessian[:d, :d] - means @ cross.T, effective_rows)
    theta = np.zeros_like(hessian)
    theta[:d, :d] = features
    theta[:d, d:] = -features @ means
    theta[d:, :d] = -means.T @ features
    theta[d:, d:] = np.diag(1 / diagonal) + means.T @ features @ means
    return theta, np.append(bias, np.zeros(n_intercepts))


def _invert_features(hessian: np.ndarray, effective_rows: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the approximate inverse for features that all have a penalty, and its bias factors."""
    n_features = len(hessian)
    scale = 1 / np.sqrt(np.diagonal(hessian))
    correlation = hessian * scale * scale[:, None]

    def measure(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows (p, p), and the factors of bias and of noise of each row, (p,).

        In the notation of Zhang and Zhang, these are max_k |z_j' x_k| / |z_j| and |z_j| / |z_j' x_j|, the latter up to
        a constant.
        """
        products = rows @ correlation
        length = np.sqrt(np.maximum(np.einsum("jk,jk->j", products, rows), 1e-300))
        diagonal = np.diagonal(products).copy()
        np.fill_diagonal(products, 0.0)
        bias = np.sqrt(effective_rows) * np.abs(products).max(axis=1) / length
        return rows, bias, length / np.maximum(np.abs(diagonal), 1e-300)

    inverse = None  # where the matrix is singular or nearly so
    if np.linalg.eigvalsh(correlation)[0] > _REGULAR:
        inverse = np.linalg.inv(correlation)
        inverse = measure(inverse / np.diagonal(inverse)[:, None])
    bound = np.sqrt(2 * np.log(max(n_features, 2)))
    reference = np.full(n_features, np.nan)  # the noise at the largest strength within the bound
    candidates = []
    for rows in _iterate_strengths(correlation):
        candidates.append(measure(rows))
        _, bias, noise = candidates[-1]
        reference = np.where(np.isnan(reference) & (bias <= bound), noise, reference)
        limit = (1 + _EXTRA_NOISE) * reference
        # smaller strengths are noisier, and nothing has less bias than the inverse
        if (noise > limit).all() or (inverse is not None and (inverse[2] <= limit).all()):
            break
    if inverse is not None:
        candidates.append(inverse)
    bias, noise = (np.stack(factors) for factors in list(zip(*candidates, strict=True))[1:])
    smallest = bias.min(axis=0)
    bounds = np.where(smallest > bound, (1 + _EXTRA_BIAS) * smallest, bound)
    features = np.arange(n_features)
    affordable = noise <= (1 + _EXTRA_NOISE) * noise[(bias <= bounds).argmax(axis=0), features]
    chosen = np.where(affordable, bias, np.inf).argmin(axis=0)
    rows = np.stack([candidates[i][0][j] for j, i in enumerate(chosen)])
    rows = rows / np.einsum("jk,kj->j", rows, correlation)[:, None]
    return rows * scale * scale[:, None], bias[chosen, features]


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


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates that are normal around the true parameters, up to what an approximate inverse leaves.

    Attributes:
        theta: the estimates (p,).
        covariance: their covariance (p, p).
        degrees: the degrees of freedom of Student's t, of all parameters or of each (p,).
        bread: the matrix between gradients and estimates (p, p), the inverse of the Hessian or an approximate one.
    """

    theta: np.ndarray
    covariance: np.ndarray
    degrees: float | np.ndarray
    bread: np.ndarray

    @property
    def standard_errors(self) -> np.ndarray:
        """The standard error of each estimate, (p,)."""
        return np.sqrt(np.diagonal(self.covariance))

    def transform(self, matrix: np.ndarray) -> "Estimates":
        """Return the estimates of ``matrix`` @ theta."""
        return replace(self, theta=matrix @ self.theta, covariance=matrix @ self.covariance @ matrix.T)


def wald_estimates(
    theta: np.ndarray,
    sums: DerivativeSums,
    scores: SquaredScores,
    rows: float,
    clusters: bool,
    *,
    n_eliminated: int = 0,
) -> Estimates:
    """Return an unpenalized optimum with the sandwich H^-1 M H^-1 (White 1980; Liang and Zeger 1986; Lin and Wei 1989).

    ``rows`` is the number of rows, or inf, see ``small_sample``. ``n_eliminated`` parameters are not in ``theta``: the
    losses are those at their best values.

    Raises SingularHessian if H has no inverse.
    """
    check_regular(sums.hessian)
    scale = 1 / np.sqrt(np.diagonal(sums.hessian))
    inverse = np.linalg.inv(sums.hessian * scale * scale[:, None]) * scale * scale[:, None]
    factor, degrees = small_sample(rows, len(theta) + n_eliminated, scores.count if clusters else None)
    covariance = factor * inverse @ scores.meat @ inverse
    return Estimates(theta, covariance, degrees, inverse)


def debiased_estimates(
    theta: np.ndarray,
    sums: DerivativeSums,
    scores: SquaredScores,
    *,
    rows: float,
    effective_rows: float,
    clusters: bool,
    n_intercepts: int,
    nonzero: int,
) -> Estimates:
    """Return theta - Theta g with the sandwich Theta M Theta' (van de Geer et al. 2014; Lee et al. 2017).

    Of Cox's partial likelihood the estimates and the sandwich are those of Kong et al. (2021). Theta is
    ``approximate_inverse``. The covariance is multiplied by the factor of ``small_sample``.

    Args:
        theta: the solution with a penalty (p,).
        sums: the derivatives of F at ``theta``, without the penalty: the gradient g and the Hessian that Theta
            approximately inverts.
        nonzero: the number of parameters that the solution has spent, with those that are eliminated.
    """
    inverse, _ = approximate_inverse(sums.hessian, effective_rows, n_intercepts)
    factor, degrees = small_sample(rows, nonzero, scores.count if clusters else None)
    covariance = factor * inverse @ scores.meat @ inverse.T
    return Estimates(theta - inverse @ sums.gradient, covariance, degrees, inverse)


def linearization_errors(
    theta: np.ndarray, sums: DerivativeSums, estimates: Estimates, gradient: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return by how many standard errors the curvature of the losses changes debiased estimates (p,).

    The debiased lasso takes the gradient of F to be linear between the solution and the truth. At the estimates of the
    selected parameters, and the solution's zeros for the others, ``gradient`` tells how far it is from linear.

    Args:
        theta, sums: the solution with a penalty and its derivatives, as for ``debiased_estimates``.
        gradient: the gradient of F at a point.
    """
    move = np.where(theta != 0, estimates.theta - theta, 0.0)
    rest = gradient(theta + move) - sums.gradient - sums.hessian @ move
    return np.abs(estimates.bread @ rest) / estimates.standard_errors


def small_sample(rows: float, parameters: int, clusters: int | None) -> tuple[float, float]:
    """Return the factor on a sandwich and the degrees of freedom.

    The factor is N / (N - p), with S clusters (S / (S - 1)) ((N - 1) / (N - p)), as in Stata and in R's sandwich. The
    degrees are N - p, with clusters S - 1. ``rows`` is N, or inf for errors that N does not correct, which are those of
    a partial likelihood and of a model: then the factor is 1, or S / (S - 1), and without clusters t is normal. Raises
    UserError for a single cluster.
    """
    if clusters is not None and clusters < 2:
        raise UserError("the rows that the estimates are of have one cluster, so that nothing measures how clusters "
                        "differ: give `cluster=none`, or `method=debiased`")  # fmt: skip
    if math.isinf(rows):
        return (1.0, math.inf) if clusters is None else (clusters / (clusters - 1), float(clusters - 1))
    free = max(rows - parameters, 1)
    if clusters is None:
        return rows / free, float(free)
    return clusters / (clusters - 1) * (rows - 1) / free, float(clusters - 1)


def intervals(estimates: Estimates, level: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lower and the upper ends of intervals, and the two-sided p values of 0, each (p,)."""
    from scipy.special import stdtr, stdtrit  # scipy.stats takes half a second to import

    errors = estimates.standard_errors
    quantile = stdtrit(estimates.degrees, (1 + level) / 2)
    statistic = np.abs(estimates.theta) / np.where(errors > 0, errors, np.nan)
    half = quantile * errors
    return estimates.theta - half, estimates.theta + half, 2 * stdtr(estimates.degrees, -statistic)


def joint_p_value(estimates: Estimates, positions: np.ndarray, clusters: bool) -> float:
    """Return the p value of Wald's test that the parameters at these ``positions`` (k,) are all 0.

    The statistic W is compared with k F(k, nu), or chi squared where nu is infinite; nu are the degrees of freedom of
    the estimates, the fewest of them. A covariance from S clusters is Wishart's with nu = S - 1 degrees, so that W is
    Hotelling's (Ann. Math. Stat. 1931): (nu + 1 - k) / (k nu) W has the distribution F(k, nu + 1 - k). The p value is
    nan where the clusters, or the rows, do not determine the covariance.
    """
    from scipy.special import chdtrc, fdtrc

    theta = estimates.theta[positions]
    errors = estimates.standard_errors[positions]
    k = len(positions)
    degrees = float(np.min(np.broadcast_to(estimates.degrees, estimates.theta.shape)[positions]))
    scale = k
    if clusters:
        scale = k * degrees / max(degrees + 1 - k, 1)
        degrees = degrees + 1 - k
    if degrees <= 0 or not (errors > 0).all():
        return math.nan
    correlation = estimates.covariance[np.ix_(positions, positions)] / np.outer(errors, errors)
    if np.linalg.eigvalsh(correlation)[0] < _SMALLEST_CORRELATION:
        return math.nan
    statistic = float(theta / errors @ np.linalg.solve(correlation, theta / errors))
    return float(chdtrc(k, statistic) if math.isinf(degrees) else fdtrc(k, degrees, statistic / scale))


def adjust_by_holm(p_values: np.ndarray) -> np.ndarray:
    """Return the p values of Holm's procedure (Scand. J. Stat. 1979), which bounds the chance of any false finding."""
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1)
    return adjusted


_LEAST_LAMBDA = 1e-8  # of a parameter on which gaps have no influence


@dataclass(frozen=True, eq=False)
class PooledEstimates(Estimates):
    """Estimates from m imputed data sets, pooled by Rubin's rules (Rubin 1987; Barnard and Rubin 1999).

    Attributes:
        fits: the estimates of each data set.
        missing_information: the fraction of missing information of each parameter, (p,).
    """

    fits: Sequence[Estimates]
    missing_information: np.ndarray

    def transform(self, matrix: np.ndarray) -> "PooledEstimates":
        return pool_estimates([fit.transform(matrix) for fit in self.fits])


def pool_estimates(fits: Sequence[Estimates]) -> PooledEstimates:
    """Return the estimates of m >= 2 imputed data sets, pooled by Rubin's rules.

    The estimates are means over the data sets. With the mean W of the covariances, and the covariance B of the
    estimates around their mean, their covariance is T = W + (1 + 1 / m) B. With r = (1 + 1 / m) B / W and the degrees
    of freedom nu of Barnard and Rubin (1999), the fraction of missing information is (r + 2 / (nu + 3)) / (r + 1).
    """
    m = len(fits)
    complete = float(np.min(fits[0].degrees))
    thetas = np.stack([fit.theta for fit in fits])
    within = np.mean([fit.covariance for fit in fits], axis=0)
    added = (1 + 1 / m) * np.atleast_2d(np.cov(thetas, rowvar=False))
    increase = divide(np.diagonal(added), np.diagonal(within))
    share = np.clip(np.nan_to_num(increase / (1 + increase)), _LEAST_LAMBDA, 1.0)  # lambda of the paper
    degrees = of_imputations = (m - 1) / share**2
    if np.isfinite(complete):
        observed = (complete + 1) / (complete + 3) * complete * (1 - share)
        degrees = of_imputations * observed / (of_imputations + observed)
    return PooledEstimates(
        theta=thetas.mean(axis=0),
        covariance=within + added,
        degrees=degrees,
        bread=fits[0].bread,
        fits=fits,
        missing_information=np.where(increase > 0, (increase + 2 / (degrees + 3)) / (increase + 1), 0.0),
    )
