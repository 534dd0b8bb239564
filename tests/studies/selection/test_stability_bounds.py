"""Bounds on false selections: published values, a distribution that attains the tail, and their order."""

import numpy as np
import pytest

from fcorun.studies.selection.stability import bound_false_selections, compute_tail, score_features

# of the R package stabs 0.6, tests/regtest-inference.Rout.save: 100 features, threshold 0.6, 50 pairs, q = 1, ..., 10
UNIMODAL = [0.02631579, 0.1052632, 0.2368421, 0.4210526, 0.6578947, 0.9473684, 1.289474, 1.684211, 2.131579, 2.631579]
R_CONCAVE = [0.00697136, 0.03342845, 0.08691176, 0.1637231, 0.2605329, 0.3820466, 0.5295188, 0.7042719, 0.9077127,
             1.141338]  # fmt: skip


def bound(q, d, threshold, pairs, assumption):
    return bound_false_selections(np.atleast_1d(float(q)), d, threshold, pairs, assumption).item()


def test_published_values():
    """Compare with stabs, whose optimizer does not evaluate the ends of its intervals, and finds a little less."""
    q = np.arange(1.0, 11)
    np.testing.assert_allclose(bound_false_selections(q, 100, 0.6, 50, "unimodal"), UNIMODAL, rtol=1e-6)
    r_concave = bound_false_selections(q, 100, 0.6, 50, "r_concave")
    np.testing.assert_allclose(r_concave, R_CONCAVE, rtol=4e-3)
    np.testing.assert_allclose(r_concave[3:], R_CONCAVE[3:], rtol=5e-6)
    assert bound(30, 100, 0.6, 50, "r_concave") == pytest.approx(16.24975, rel=1e-6)
    assert bound(10, 100, 0.62, 50, "r_concave") == pytest.approx(0.8971682, rel=1e-5)
    assert bound(3, 10, 0.96, 50, "unimodal") == pytest.approx(0.176, abs=5e-4)  # over the threshold 3/4
    assert [round(bound(7, 200, tau, 50, "r_concave"), 3) for tau in (0.62, 0.61)] == [0.196, 0.219]


@pytest.mark.parametrize(("mean", "steps", "points", "r"), [(0.01, 50, 50, -0.5), (0.05, 14, 20, -0.25)])
def test_the_tail_is_that_of_a_distribution(mean, steps, points, r):
    """Search distributions with masses (shift + i)^(1/r) on 0, ..., k and a mass of k + 1 that keeps them r-concave."""
    largest, target, shift = 0.0, mean * points, np.geomspace(0.05, 50, 20000)
    for k in range(steps - 1, points):
        i = np.arange(k + 1)
        mass = (1 + i / shift[:, None]) ** (1 / r)
        last = mass @ (target - i) / (k + 1 - target)
        is_r_concave = (last >= 0) & (last <= (1 + (k + 1) / shift) ** (1 / r))
        tail = (last + mass[:, steps:].sum(axis=1)) / (mass.sum(axis=1) + last)
        largest = max(largest, tail[is_r_concave].max(initial=0.0))
    tail = compute_tail(mean, steps, points, r)
    assert largest <= tail * (1 + 1e-9)
    assert largest == pytest.approx(tail, rel=0.02)


@pytest.mark.parametrize("pairs", [2, 5, 50])
@pytest.mark.parametrize("threshold", [0.51, 0.6, 0.75, 0.76, 0.9, 1.0])
def test_stronger_assumptions_give_smaller_bounds(pairs, threshold):
    q = np.array([0, 0.5, 3, 10, 40, 90])
    none, unimodal, r_concave = (
        bound_false_selections(q, 100, threshold, pairs, assumption) for assumption in ("none", "unimodal", "r_concave")
    )
    np.testing.assert_allclose(none, q**2 / ((2 * threshold - 1) * 100))
    for weaker, stronger in ((none, unimodal), (unimodal, r_concave)):
        assert (stronger <= weaker).all()
        assert (np.diff(stronger) >= 0).all()
    assert none[-1] == unimodal[-1]  # theorem 2 needs q / d of 1 / sqrt(3) at most


def test_a_smaller_bound_follows_the_path_further():
    chosen = np.zeros((20, 3, 30), bool)
    for point, count in enumerate((3, 6, 9)):
        chosen[:, point, :count] = True
    lengths = [
        score_features(chosen, 0.9, 1.0, assumption=name).region_length for name in ("none", "unimodal", "r_concave")
    ]
    assert lengths == [1, 2, 3]
