"""Counts of the rows and the events of features with two values."""

import numpy as np

from fcorun.methods.objectives.logistic import Logistic
from fcorun.results.inference.sums import ModelRows, PooledSums, count_values, find_ranges
from fcorun.results.models.inference import count_indicators


def draw_rows(n=60):
    rng = np.random.default_rng(0)
    level = rng.integers(0, 2, n)
    x = np.column_stack([(level - 0.3) / 0.7, rng.normal(size=n), rng.integers(0, 3, n), np.ones(n)])
    return ModelRows(x, rng.integers(0, 2, n).astype(float), np.where(np.arange(n) < 5, 0.0, 1.0), np.zeros(n))


def test_counts_of_clients_add_up_to_those_of_all_rows():
    rows = draw_rows()
    low, high = find_ranges(rows)
    clients = [rows.take(slice(start, start + 20)) for start in (0, 20, 40)]
    ranges = [find_ranges(client) for client in clients]
    np.testing.assert_array_equal(np.min([smallest for smallest, _ in ranges], axis=0), low)
    np.testing.assert_array_equal(np.max([largest for _, largest in ranges], axis=0), high)
    parts = [count_values(client, low, high) for client in clients]
    for total, *values in zip(count_values(rows, low, high), *parts, strict=True):
        np.testing.assert_array_equal(np.sum(values, axis=0), total)


def test_only_features_of_two_values_are_counted():
    rows = draw_rows()
    indicators = count_indicators(PooledSums(Logistic(), rows), Logistic(), 3)
    assert indicators.is_indicator.tolist() == [True, False, False]
    present = (rows.x[:, 0] > 0) & (rows.weight > 0)
    assert indicators.rows[0] == present.sum()
    assert indicators.events[0] == rows.y[present].sum()
    assert np.isnan(indicators.rows[1:]).all()
