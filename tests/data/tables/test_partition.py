"""Clients of tables, and partitions of rows."""

import numpy as np
import pandas as pd
import pytest
from helpers import fails, not_none
from table_files import frame, price_table, save

from fcorun.data.datasets.table import Table
from fcorun.data.tables.cells import names_as_text
from fcorun.data.tables.splits import assign_rows

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("ids", [[10, 9, 2, 10, 9, 2], ["10", "9", "2", "10", "9", "2"]])
def test_numeric_clients_are_in_natural_order(tmp_path, ids):
    for name in ("t.csv", "t.parquet"):
        assert price_table(save(tmp_path, name, frame(site=ids))).load().clients == ("2", "9", "10")


def test_names_of_clients_keep_leading_zeros(tmp_path):
    data = price_table(save(tmp_path, "t.csv", frame(site=["007", "01", "x"] * 2))).load()
    assert data.clients == ("007", "01", "x")


def test_names_of_groups_keep_their_digits(tmp_path):
    groups = ["007", "7", "3.1", "3.10", "8", "9"]
    data = price_table(save(tmp_path, "t.csv", frame(patient=groups)), group="patient").load()
    assert sorted(not_none(data.train.group).tolist()) == sorted(groups)


@pytest.mark.parametrize("client", [[1.0, np.nan] * 3, ["a", ""] * 3])
def test_rows_of_arrays_without_a_client_are_refused(tmp_path, client):
    np.savez(tmp_path / "t.npz", X=np.ones((6, 2)), y=np.arange(6.0), client=client)
    with fails("row 2 has no client"):
        Table(str(tmp_path / "t.npz")).load()


def test_large_numbers_stay_different_names():
    assert len(set(names_as_text(np.array([1e19, 2e19, np.inf])))) == 3


LABELS = np.repeat([0, 1, 2], [50, 30, 20])


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by_label", "sorted"])
@pytest.mark.parametrize("clients", [1, 2, 3, 7, 100])
def test_a_partition_leaves_no_client_empty(kind, clients):
    client_index = assign_rows(kind, LABELS, clients, 0.1, np.random.default_rng(0))
    assert client_index.shape == (100,)
    assert np.bincount(client_index, minlength=clients).min() >= 1
    assert client_index.max() == clients - 1
    again = assign_rows(kind, LABELS, clients, 0.1, np.random.default_rng(0))
    np.testing.assert_array_equal(client_index, again)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by_label", "sorted"])
def test_a_partitioned_table_has_each_row_once(tmp_path, kind):
    table = pd.DataFrame({"row": np.arange(100), "kind": LABELS}).sample(frac=1, random_state=0)
    path = save(tmp_path, "t.csv", table)
    data = Table(path, "kind", partition=kind, clients=7, task="multiclass", validation=0.3).load()
    rows = np.concatenate([data.train.x, not_none(data.validation).x])[:, 0]
    assert sorted(rows) == list(range(100))
    assert len(data.clients) == 7
    np.testing.assert_array_equal(np.concatenate([data.train.y, not_none(data.validation).y]), LABELS[rows])


def test_iid_and_sorted_clients_are_of_equal_size():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(103)
    for kind in ("iid", "sorted"):
        assert set(np.bincount(assign_rows(kind, y, 10, 1.0, rng))) == {10, 11}
    client_index = assign_rows("sorted", y, 10, 1.0, rng)
    assert all(y[client_index == m].max() <= y[client_index == m + 1].min() for m in range(9))


def test_by_label_gives_one_label_to_a_client_where_labels_are_fewer():
    rng = np.random.default_rng(0)
    client_index = assign_rows("by_label", LABELS, 10, 1.0, rng)
    assert all(len(np.unique(LABELS[client_index == m])) == 1 for m in range(10))
    assert np.bincount(client_index).tolist() == [10] * 10  # 5, 3 and 2 clients for 50, 30 and 20 rows
    client_index = assign_rows("by_label", LABELS, 2, 1.0, rng)
    assert sorted(tuple(np.unique(LABELS[client_index == m])) for m in range(2)) == [(0,), (1, 2)]


def test_a_small_dirichlet_concentration_gives_pure_clients():
    labels = np.repeat(np.arange(5), 400)

    def purity(alpha: float) -> np.floating:
        client_index = assign_rows("dirichlet", labels, 20, alpha, np.random.default_rng(0))
        return np.mean([np.bincount(labels[client_index == m], minlength=5).max() / 100 for m in range(20)])

    assert purity(0.01) > 0.85
    assert purity(1000.0) < 0.3
    assert np.bincount(assign_rows("dirichlet", labels, 20, 1e-6, np.random.default_rng(0))).tolist() == [100] * 20


def test_a_partition_depends_on_its_seed(tmp_path):
    path = save(tmp_path, "t.csv", pd.DataFrame({"u": np.arange(100), "price": np.arange(100)}))
    one, same, other = (Table(path, "price", seed=s).load() for s in (0, 0, 1))
    np.testing.assert_array_equal(one.train.x, same.train.x)
    assert (one.train.x != other.train.x).any()
