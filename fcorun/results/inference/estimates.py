"""Estimates of coefficients with their covariance, and intervals and p values of them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fcorun.base.errors import UserError
from fcorun.results.inference.model_rows import DerivativeSums
from fcorun.results.inference.nodewise import approximate_inverse
from fcorun.results.inference.solution import check_regular
from fcorun.results.inference.sums import SquaredScores


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
    theta: np.ndarray, sums: DerivativeSums, scores: SquaredScores, rows: float, clusters: bool
) -> Estimates:
    """Return an unpenalized optimum with the sandwich H^-1 M H^-1 (White 1980; Liang and Zeger 1986; Lin and Wei 1989).

    ``rows`` is the number of rows, or inf, see ``small_sample``.

    Raises SingularHessian if H has no inverse.
    """
    check_regular(sums.hessian)
    scale = 1 / np.sqrt(np.diagonal(sums.hessian))
    inverse = np.linalg.inv(sums.hessian * scale * scale[:, None]) * scale * scale[:, None]
    factor, degrees = small_sample(rows, len(theta), scores.count if clusters else None)
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
    has_intercept: bool,
    nonzero: int,
) -> Estimates:
    """Return theta - Theta g with the sandwich Theta M Theta' (van de Geer et al. 2014; Lee et al. 2017).

    Of Cox's partial likelihood the estimates and the sandwich are those of Kong et al. (2021). Theta is
    ``approximate_inverse``. The covariance is multiplied by the factor of ``small_sample``.

    Args:
        theta: the solution with a penalty (p,).
        sums: the derivatives of F at ``theta``, without the penalty: the gradient g and the Hessian that Theta
            approximately inverts.
        nonzero: the number of parameters that the solution has spent.
    """
    inverse = approximate_inverse(sums.hessian, effective_rows, has_intercept)
    factor, degrees = small_sample(rows, nonzero, scores.count if clusters else None)
    covariance = factor * inverse.theta @ scores.meat @ inverse.theta.T
    return Estimates(theta - inverse.theta @ sums.gradient, covariance, degrees, inverse.theta)


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
    from scipy.stats import t

    errors = estimates.standard_errors
    quantile = t.ppf((1 + level) / 2, estimates.degrees)
    statistic = np.abs(estimates.theta) / np.where(errors > 0, errors, np.nan)
    half = quantile * errors
    return estimates.theta - half, estimates.theta + half, 2 * t.sf(statistic, estimates.degrees)


def adjust_by_holm(p_values: np.ndarray) -> np.ndarray:
    """Return the p values of Holm's procedure (Scand. J. Stat. 1979), which bounds the chance of any false finding."""
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1)
    return adjusted
