"""Validation rows of tables, and standardization."""

import numpy as np
import pandas as pd
import pytest
from helpers import fails, not_none
from table_files import CLIENT, X, Y, frame, price_table, save

from fcorun.base.config import build
from fcorun.data.datasets.dataset import Features, FederatedData
from fcorun.data.datasets.table import Table
from fcorun.data.rows.rows import Rows
from fcorun.data.tables.scaling import standardize_per_client
from fcorun.data.tables.splits import hold_out

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_fraction_of_each_clients_rows_is_held_out():
    client_index = np.repeat([0, 1, 2, 3], [1, 10, 100, 4])
    held_out = hold_out(client_index, "abcd", 0.29, split="test", seed=0)
    assert [held_out[client_index == m].sum() for m in range(4)] == [0, 2, 29, 1]
    assert not hold_out(client_index, "abcd", 0.0, split="test", seed=0).any()
    counts = np.sum([hold_out(np.zeros(10, int), "a", 0.5, split="test", seed=seed) for seed in range(200)], axis=0)
    assert counts.min() > 60
    assert counts.max() < 140


def test_held_out_rows_of_a_client_do_not_depend_on_other_clients():
    client_index = np.repeat([0, 1, 2], [30, 20, 10])
    together = hold_out(client_index, "abc", 0.3, split="test", seed=7)
    for m, name in enumerate("abc"):
        n_rows = int((client_index == m).sum())
        assert (
            together[client_index == m].tolist()
            == hold_out(np.zeros(n_rows, int), name, 0.3, split="test", seed=7).tolist()
        )


def test_clients_are_held_out_wholly(tmp_path):
    path = save(tmp_path, "t.csv", frame(site=[1, 2, 3, 1, 2, 3]))
    options = {"path": path, "target": "price", "client": "site", "validation": [3, 1]}
    data = build(Table, options, "data").load()  # numbers in a list are names
    assert data.clients == ("2",)
    assert data.train.y.tolist() == [1, 4]
    assert data.validation.y.tolist() == [0.5, 3, 2, 5]  # rows of client 1, then of client 3
    assert data.validation_offsets is None


def test_validation_rows_are_sorted_by_client(tmp_path):
    rng = np.random.default_rng(0)
    site = rng.choice(4, 200, p=[0.5, 0.3, 0.19, 0.01])
    path = save(tmp_path, "t.csv", pd.DataFrame({"site": site, "row": range(200), "price": rng.random(200)}))
    for options in ({}, {"client": None, "partition": "sorted", "clients": 5}):
        data = price_table(path, validation=0.25, **options).load()
        counts = np.diff(not_none(data.validation_offsets))
        np.testing.assert_array_equal(counts, (data.train.sizes + counts) // 4)
        for m in range(len(counts)):
            start, stop = not_none(data.validation_offsets)[m : m + 2]
            rows = not_none(data.validation).x[start:stop, -1].astype(int)
            assert (np.diff(rows) > 0).all()
            assert options or (site[rows] == m).all()
    assert price_table(path, validation=0.0).load().validation_offsets is None


def test_an_npz_may_mark_all_rows_of_a_client(tmp_path):
    np.savez(tmp_path / "t.npz", X=X, y=Y, client=CLIENT, validation=(CLIENT == "a") | (Y == 0.5))
    data = Table(str(tmp_path / "t.npz")).load()
    assert not_none(data.validation).y.tolist() == [1, 3, 5, 0.5]
    assert data.validation_offsets is None


@pytest.mark.parametrize("client", [[-1, 0, 0, 0, 1, 1], [0, 1, 0, 0, 1, 1]])
def test_training_rows_that_are_not_sorted_by_client_are_refused(client):
    with fails("data: the training rows must be sorted by client, whose numbers begin with 0; sort them"):
        FederatedData(Rows(X, Y, np.array(client))).validate()


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        ({"y": Y[:-1]}, (), "data: x has 6 train rows and y has 5: give one target for each row"),
        ({}, ("u",), "data: there are 1 names of features, and x has"),
        ({"weight": np.ones(4)}, (), "data: weight has 4 train values, and there are 6 rows"),
        ({"weight": np.full(6, np.inf)}, (), "data: NaN or infinite value in the weight of the train rows"),
        ({"weight": -np.ones(6)}, (), "data: negative value in the weight of the train rows"),
        ({"offset": np.full(6, np.nan)}, (), "data: NaN or infinite value in the offset of the train rows"),
    ],
)
def test_columns_that_do_not_fit_the_features_are_refused(columns, names, message):
    y = columns.pop("y", Y)
    rows = Rows(X, y, np.array([0, 0, 0, 1, 1, 1])[: len(y)], **columns)
    with fails(message):
        FederatedData(rows, features=Features(names)).validate()


def test_a_client_without_training_rows_is_refused():
    with fails("data: client b has no training rows"):
        FederatedData(Rows(X, Y, np.array([0, 0, 0, 2, 2, 2])), clients=("a", "b", "c")).validate()
    with fails("data: client c has no training rows"):
        FederatedData(Rows(X, Y, np.array([0, 0, 0, 1, 1, 1])), clients=("a", "b", "c")).validate()


@pytest.mark.parametrize(
    ("client", "offsets"), [([1, 1], [0, 0, 2]), ([0, 1], [0, 1, 2]), ([1, 0], None), ([0, 2], None), ([-1, 1], None)]
)
def test_validation_rows_have_offsets_where_they_are_sorted_by_training_clients(client, offsets):
    data = FederatedData(Rows(X, Y, np.array([0, 0, 0, 1, 1, 1])), Rows(X[:2], Y[:2], np.array(client))).validate()
    assert (None if data.validation_offsets is None else data.validation_offsets.tolist()) == offsets


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_standardization_is_by_the_training_rows(dtype):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((200, 4)) * 50 + 100).astype(dtype)
    x[:, 3] = np.array(7.1).astype(dtype)
    held_out = rng.random(200) < 0.3
    scaled = standardize_per_client(x, np.zeros(200, int), held_out, ["a"])[0]
    assert scaled.dtype == (dtype if dtype != np.int64 else np.float64)
    np.testing.assert_allclose(scaled[~held_out].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled[~held_out].std(axis=0), [1, 1, 1, 0], atol=1e-5)
    expected = (x[held_out, :3] - x[~held_out, :3].mean(axis=0, dtype=float)) / x[~held_out, :3].std(
        axis=0, dtype=float
    )
    np.testing.assert_allclose(scaled[held_out, :3], expected, rtol=1e-3, atol=1e-5)
    assert (scaled[:, 3] == 0).all()


def test_each_client_is_standardized_by_its_own_training_rows(tmp_path):
    rng = np.random.default_rng(1)
    site = np.repeat(["a", "b", "c"], 100)
    shift = np.repeat([0.0, 50.0, -9.0], 100)
    table = pd.DataFrame({"u": rng.standard_normal(300) * 3 + shift, "site": site, "price": np.arange(300)})
    path = save(tmp_path, "t.csv", table)
    data = price_table(path, standardize="per_client", validation=0.25).load()
    for m in range(3):
        client_x = data.train.x[data.train.offsets[m] : data.train.offsets[m + 1]]
        assert abs(client_x.mean()) < 1e-12
        assert client_x.std() == pytest.approx(1)
        rows = (not_none(data.validation).y >= 100 * m) & (not_none(data.validation).y < 100 * (m + 1))
        training = data.train.y[data.train.offsets[m] : data.train.offsets[m + 1]].astype(int)
        expected = (table.u[not_none(data.validation).y[rows].astype(int)] - table.u[training].mean()) / table.u[
            training
        ].std(ddof=0)
        np.testing.assert_allclose(not_none(data.validation).x[rows, 0], expected)
    held_out = price_table(path, standardize="per_client", validation=["b"]).load()
    assert abs(not_none(held_out.validation).x.mean()) < 1e-12
    assert not_none(held_out.validation).x.std() == pytest.approx(1)
    pooled = price_table(path, standardize="pooled", validation=["b"]).load()
    assert abs(pooled.train.x.mean()) < 1e-12
    assert not_none(pooled.validation).x.mean() > 5
