"""Counts of the rows and the events of features with two values."""

import numpy as np

from fcorun.methods.objectives.logistic import Logistic
from fcorun.results.inference.sums import ModelRows, PooledSums
from fcorun.results.models.inference import count_indicators


def draw_rows(n=60):
    rng = np.random.default_rng(0)
    level = rng.integers(0, 2, n)
    x = np.column_stack([(level - 0.3) / 0.7, rng.normal(size=n), rng.integers(0, 3, n), np.ones(n)])
    return ModelRows(x, rng.integers(0, 2, n).astype(float), np.where(np.arange(n) < 5, 0.0, 1.0), np.zeros(n))


def test_only_features_of_two_values_are_counted():
    rows = draw_rows()
    indicators = count_indicators(PooledSums(Logistic(), rows), Logistic(), 3)
    assert indicators.is_indicator.tolist() == [True, False, False]
    present = (rows.x[:, 0] > 0) & (rows.weight > 0)
    assert indicators.rows[0] == present.sum()
    assert indicators.events[0] == rows.y[present].sum()
    assert np.isnan(indicators.rows[1:]).all()
