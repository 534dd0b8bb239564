"""Rubin's rules: estimates of several imputed data sets, pooled."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fcorun.results.inference.estimates import Estimates

_LEAST_LAMBDA = 1e-8  # of a parameter on which gaps have no influence


@dataclass(frozen=True, eq=False)
class PooledEstimates(Estimates):
    """Estimates from m imputed data sets, pooled by Rubin's rules (Rubin 1987; Barnard and Rubin 1999).

    The estimates are means over the data sets. Their covariance is T = W + (1 + 1 / m) B.

    Attributes:
        within: W, the mean of the covariances (p, p).
        between: B, the covariance of the estimates of the data sets around their mean (p, p).
        imputations: m.
        complete_degrees: the degrees of freedom that data without gaps would have; inf: estimates are normal.
    """

    within: np.ndarray
    between: np.ndarray
    imputations: int
    complete_degrees: float

    @property
    def missing_information(self) -> np.ndarray:
        """The fraction of missing information of each parameter, (p,): (r + 2 / (nu + 3)) / (r + 1).

        r = (1 + 1 / m) B / W is the relative increase of the variance, and nu are the degrees of freedom.
        """
        within = np.diagonal(self.within)
        added = (1 + 1 / self.imputations) * np.diagonal(self.between)
        increase = np.divide(added, within, out=np.zeros(len(added)), where=within > 0)
        return np.where(increase > 0, (increase + 2 / (np.asarray(self.degrees) + 3)) / (increase + 1), 0.0)

    def transform(self, matrix: np.ndarray) -> "PooledEstimates":
        """Return the estimates of ``matrix`` @ theta."""
        within, between = (matrix @ covariance @ matrix.T for covariance in (self.within, self.between))
        return _pool(replace(self, theta=matrix @ self.theta), within, between)


def pool_estimates(estimates: Sequence[Estimates]) -> PooledEstimates:
    """Return the estimates of m >= 2 imputed data sets, pooled by Rubin's rules."""
    thetas = np.stack([each.theta for each in estimates])
    within = np.mean([each.covariance for each in estimates], axis=0)
    between = np.atleast_2d(np.cov(thetas, rowvar=False))
    first = estimates[0]
    complete = float(np.min(first.degrees))
    unpooled = PooledEstimates(
        theta=thetas.mean(axis=0),
        covariance=within,
        degrees=complete,
        bread=first.bread,
        within=within,
        between=between,
        imputations=len(estimates),
        complete_degrees=complete,
    )
    return _pool(unpooled, within, between)


def _pool(estimates: PooledEstimates, within: np.ndarray, between: np.ndarray) -> PooledEstimates:
    """Return estimates with their total covariance, and the degrees of freedom of Barnard and Rubin (1999)."""
    m, complete = estimates.imputations, estimates.complete_degrees
    added = (1 + 1 / m) * between
    total = within + added
    variance = np.diagonal(total)
    share = np.divide(np.diagonal(added), variance, out=np.zeros(len(variance)), where=variance > 0)
    share = np.clip(share, _LEAST_LAMBDA, 1.0)  # lambda of the paper
    of_imputations = (m - 1) / share**2
    degrees = of_imputations
    if np.isfinite(complete):
        observed = (complete + 1) / (complete + 3) * complete * (1 - share)
        degrees = of_imputations * observed / (of_imputations + observed)
    return replace(estimates, covariance=total, degrees=degrees, within=within, between=between)
