"""Numbers that few rows, or few clusters, have: their simulated intervals cover too seldom, and are withheld."""

import numpy as np
import pytest

from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.results.inference.sums import ModelRows, PooledSums
from fcorun.results.models.inference import count_indicators

N_STUDIES, N_PATIENTS, N_VISITS = 400, 100, 20


def explain(x, cluster=None):
    """Return why the first feature of rows with equal weights has no interval, "" if it has one."""
    rows = ModelRows(x, np.zeros(len(x)), np.ones(len(x)), np.zeros(len(x)))
    sums = PooledSums(LeastSquares(), rows, cluster)
    return count_indicators(sums, LeastSquares(), 1).explain_few(0, None, ("dose",))


def coverage(x, y, cluster):
    """Return how often 95 % intervals of least squares by a sandwich over clusters cover 0 in studies, (n, S)."""
    inverse = np.linalg.inv(x.T @ x)
    estimates = inverse @ (x.T @ y)
    begins = np.searchsorted(cluster, np.unique(cluster))
    influence = np.add.reduceat((x @ inverse[0])[:, None] * (y - x @ estimates), begins)
    return (np.abs(estimates[0]) < 1.96 * np.sqrt((influence**2).sum(axis=0))).mean()


@pytest.mark.parametrize(("n_treated", "is_covered"), [(1, False), (3, False), (30, True)])
def test_a_dose_of_few_patients_has_no_interval(n_treated, is_covered):
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(N_PATIENTS), N_VISITS)
    dose = np.where(patient < n_treated, rng.choice([0.0, 5.0, 10.0], len(patient)), 0.0)
    x = np.column_stack([dose, rng.normal(size=len(patient)), np.ones(len(patient))])
    effect_of_patient = rng.normal(size=(N_PATIENTS, N_STUDIES))[patient]
    y = effect_of_patient + rng.normal(size=(len(patient), N_STUDIES))
    assert (coverage(x, y, patient) > 0.92) == is_covered
    assert explain(x) == ""
    reason = f"rows of {n_treated} group{'s' * (n_treated > 1)} far from the most frequent value"
    assert explain(x, patient) == ("" if is_covered else reason)


@pytest.mark.parametrize(("units", "is_covered"), [([1, 2], False), ([1, 2, 3], False), ([1, 2, 3] * 20, True)])
def test_a_number_of_few_rows_has_no_interval(units, is_covered):
    rng = np.random.default_rng(0)
    x = np.column_stack([np.append(units, np.zeros(1000 - len(units))), np.ones(1000)])
    assert (coverage(x, rng.normal(size=(1000, N_STUDIES)), np.arange(1000)) > 0.92) == is_covered
    reason = f"{len(units)} rows far from the most frequent value"
    assert explain(x) == ("" if is_covered else reason)
    assert explain(7 - x) == explain(x)  # whatever the most frequent value is


@pytest.mark.parametrize("far", [[1.0, 1.0], [5.0, 10.0]])
@pytest.mark.parametrize(("others", "size"), [(100, 2 / 900), (500, 1e-3)])  # filled gaps, or numbers near 0
def test_rows_near_the_most_frequent_value_make_no_interval_of_few_rows(far, others, size):
    rng = np.random.default_rng(0)
    dose = np.concatenate([far, np.full(others, size), np.zeros(998 - others)])
    x = np.column_stack([dose, np.ones(1000)])
    assert coverage(x, rng.normal(size=(1000, N_STUDIES)), np.arange(1000)) < 0.8
    assert explain(x) == "2 rows far from the most frequent value"
    assert explain(x, np.arange(1000)) == explain(x)
    assert explain(np.column_stack([np.resize([0.0, 1.0, size], 1000), np.ones(1000)])) == ""


@pytest.mark.parametrize("value", [1.0, 2.5])
def test_a_column_of_one_number_in_place_of_an_intercept_has_an_interval(value):
    x = np.column_stack([np.full(100, value), np.arange(100.0)])
    assert explain(x) == explain(x, np.arange(100) // 2) == ""
