"""Rows whose targets have several columns: subsets, shards and checks act on whole rows of y."""

import itertools

import numpy as np
from helpers import not_none

from fcorun.data.rows.features import find_nonfinite
from fcorun.data.rows.rows import Rows, renumber_clients

OFFSETS = np.array([0, 2, 3, 6])  # of three clients
X = np.arange(12.0).reshape(6, 2)
Y = np.arange(18.0).reshape(6, 3)
WEIGHT = np.array([1.0, 2.0, 3.0, 1.0, 1.0, 4.0])
ROWS = Rows.from_offsets(X, Y, OFFSETS, weight=WEIGHT)


def test_subsets_keep_all_columns_of_y():
    some = ROWS.take(WEIGHT > 1)
    np.testing.assert_array_equal(some.y, Y[[1, 2, 5]])
    np.testing.assert_array_equal(some.client, [0, 1, 2])
    np.testing.assert_array_equal(ROWS.take(slice(1, 3)).y, Y[1:3])
    assert len(ROWS) == ROWS.n_rows == 6


def test_clients_with_training_rows_come_first_and_a_site_may_have_none():
    numbers, trained, others = renumber_clients(np.array([2, 0, -1, 0]), np.array([True, False, False, False]))
    assert (numbers.tolist(), trained.tolist(), others.tolist()) == ([0, 1, -1, 1], [2], [0])
    assert [len(part) for part in renumber_clients(np.zeros(0, int), np.zeros(0, bool))] == [0, 0, 0]


def test_sums_by_client_are_of_each_column():
    expected = np.stack([Y[start:end].sum(axis=0) for start, end in itertools.pairwise(OFFSETS)])
    np.testing.assert_array_equal(ROWS.sum_by_client(Y), expected)
    np.testing.assert_array_equal(ROWS.client_weights, [3, 3, 6])


def test_a_shard_has_the_rows_of_y_of_its_clients_padded_with_zeros():
    bounds = OFFSETS[[0, 2, 3]]  # the first host has two clients, the second one has the third
    first, second = (ROWS.shard(bounds, host, in_memory=True) for host in range(2))
    np.testing.assert_array_equal(first.local.y, Y[:3])
    np.testing.assert_array_equal(second.local.y, Y[3:])
    np.testing.assert_array_equal(second.shard_features, X[3:])
    np.testing.assert_array_equal(second.y, Y)
    uneven = ROWS.shard(OFFSETS[[0, 1, 3]], 0, in_memory=True)
    np.testing.assert_array_equal(uneven.local.y, np.concatenate([Y[:2], np.zeros((2, 3))]))
    np.testing.assert_array_equal(uneven.shard_features, X[:2])
    assert ROWS.shard_features is None
    assert "several hosts" in first.why_not_in_memory
    assert not ROWS.why_not_in_memory


def test_the_entry_of_y_that_is_not_finite_is_found():
    y = Y.copy()
    y[4, 1] = np.nan
    assert find_nonfinite(X) is None
    assert not_none(find_nonfinite(y)).tolist() == [4, 1]
