"""Rubin's rules against an example by hand."""

from fractions import Fraction

import numpy as np
import pytest

from fcorun.results.inference.estimates import Estimates, intervals, pool_estimates

RNG = np.random.default_rng(4)


def estimates_of(theta, covariance, degrees=20.0) -> Estimates:
    return Estimates(np.asarray(theta, float), np.asarray(covariance, float), degrees, np.eye(len(theta)))


def test_an_example_by_hand():
    """Three imputations: W = 1, B = 1, T = 1 + 4/3, lambda = 4/7, and 20 degrees of freedom of complete data."""
    pooled = pool_estimates([estimates_of([theta], [[variance]]) for theta, variance in ((1, 0.5), (2, 1), (3, 1.5))])
    assert pooled.theta == pytest.approx([2])
    assert pooled.covariance == pytest.approx(np.array([[7 / 3]]))
    share = Fraction(4, 7)
    of_imputations = 2 / share**2
    observed = Fraction(21, 23) * 20 * (1 - share)
    degrees = of_imputations * observed / (of_imputations + observed)
    assert pooled.degrees == pytest.approx([float(degrees)])
    increase = Fraction(4, 3)
    missing = (increase + Fraction(2) / (degrees + 3)) / (increase + 1)
    assert pooled.missing_information == pytest.approx([float(missing)])
    low, high, p_value = intervals(pooled, 0.95)
    assert (2 - low[0]) == pytest.approx(3.0 * np.sqrt(7 / 3), rel=0.02)  # t with 3.4 degrees at 97.5 %: 2.97
    assert high - 2 == pytest.approx(2 - low)
    assert 0.2 < p_value[0] < 0.35


def test_equal_estimates_lose_no_information():
    pooled = pool_estimates([estimates_of([1, 2], np.diag([4.0, 1.0]))] * 5)
    assert pooled.covariance == pytest.approx(np.diag([4.0, 1.0]))
    assert pooled.missing_information == pytest.approx([0, 0])
    assert pooled.degrees == pytest.approx([20 * 21 / 23] * 2, rel=1e-6)  # of Barnard and Rubin without a gap


def test_pooled_estimates_in_other_units():
    """Pooling commutes with a linear map of the parameters."""
    parts = []
    for _ in range(4):
        root = RNG.normal(size=(3, 3))
        parts.append(estimates_of(RNG.normal(size=3), root @ root.T))
    matrix = RNG.normal(size=(2, 3))
    one = pool_estimates(parts).transform(matrix)
    other = pool_estimates([part.transform(matrix) for part in parts])
    for name in ("theta", "covariance", "degrees", "missing_information"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12)
