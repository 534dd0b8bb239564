"""Rows held out for the test beside those for validation."""

import numpy as np
import pytest
from helpers import fails, not_none
from table_files import CLIENT, X, Y, frame, save

from fcorun.config import build, identity_fields
from fcorun.datasets.base import FederatedData
from fcorun.datasets.heterogeneous import Heterogeneous
from fcorun.datasets.lasso import Lasso
from fcorun.datasets.least_squares import LeastSquares
from fcorun.datasets.logistic_synthetic import LogisticSynthetic
from fcorun.datasets.lowrank import LowRank
from fcorun.datasets.table import Table

pytestmark = pytest.mark.usefixtures("own_cache")
SITE = np.repeat(["a", "b", "c"], [20, 31, 9])


def table(**options):
    """60 rows whose target is their number, in rows.npz."""
    number = np.arange(60.0)
    np.savez("rows.npz", X=number[:, None], y=number, client=SITE)
    return build(Table, {"path": "rows.npz", **options}, "data")


def rows_of(data):
    return {name: y.tolist() for name, (_, y) in data.splits.items()}


@pytest.mark.parametrize(
    ("validation", "test"),
    [(0.25, 0.5), (None, 0.3), (["a"], 0.4), (0.4, ["a", "c"]), (["a"], ["b"]), (0.0, 0.3), (0.0, ["b"])],
)
def test_every_row_is_of_one_part(validation, test):
    data = table(validation=validation, test=test).load()
    found = rows_of(data)
    assert sorted(row for rows in found.values() for row in rows) == list(range(60))
    for part, rows in found.items():
        assert not_none(data.client_of_row(part)).tolist() == SITE[np.array(rows, int)].tolist()
        asked = {"validation": 0.2 if validation is None else validation, "test": test}.get(part)
        if isinstance(asked, list):
            assert set(not_none(data.client_of_row(part))) == set(asked)
        elif asked is not None:
            whole = {name for given_ in (validation, test) if isinstance(given_, list) for name in given_}
            counts = {site: int(asked * np.sum(site == SITE) + 1e-9) for site in "abc" if site not in whole}
            assert dict(zip(*np.unique(not_none(data.client_of_row(part)), return_counts=True), strict=True)) == counts
        assert [data.splits[part][0][i, 0] for i in range(len(rows))] == rows


def test_the_test_does_not_depend_on_the_validation():
    tests = [rows_of(table(validation=v, test=0.3).load())["test"] for v in (None, 0.0, 0.5)]
    assert tests[0] == tests[1] == tests[2]
    assert rows_of(table(test=0.3, seed=1).load())["test"] != tests[0]
    without, beside = (rows_of(table(test=t).load())["validation"] for t in (None, ["a"]))
    assert set(beside) < set(without)  # of the other clients they are the same


def test_without_a_test_all_is_as_it_was():
    data = table().load()
    assert (data.x_test, data.y_test, data.clients_test) == (None, None, None)
    assert "test" not in data.splits
    assert "test" not in identity_fields(table())  # so that a run is the one that it was before there were such rows
    assert identity_fields(table(test=0.1))["test"] == 0.1
    assert table().fingerprint() == table(test=None).fingerprint() != table(test=0.1).fingerprint()


def test_scaling_is_by_the_training_rows_alone():
    for way in ("pooled", "per_client"):
        data = table(validation=0.2, test=["c"], standardize=way).load()
        kept = np.array(rows_of(data)["train"])
        own = kept if way == "pooled" else np.flatnonzero(SITE == "c")  # who trains on none: by all own rows
        wanted = (np.array(rows_of(data)["test"]) - own.mean()) / own.std()
        np.testing.assert_allclose(not_none(data.x_test)[:, 0], wanted)


def test_an_npz_marks_its_rows():
    marks = {"validation": np.arange(6) == 1, "test": np.arange(6) > 3}
    np.savez("t.npz", X=X, y=Y, client=CLIENT, **marks)
    data = Table("t.npz").load()
    assert rows_of(data) == {"train": [3, 0.5, 2], "validation": [1], "test": [5, 4]}
    assert not_none(data.clients_test).tolist() == ["a", "b"]
    with fails("data.test=0.2: t.npz marks its test rows itself; leave data.test out"):
        Table("t.npz", test=0.2).load()
    np.savez("t.npz", X=X, y=Y, test=marks["test"])  # rows that are held out are no clients' own
    data = Table("t.npz", clients=2, validation=0.5).load()
    assert not_none(data.y_test).tolist() == [4, 5]
    assert not_none(data.clients_test).tolist() == ["", ""]
    np.savez("t.npz", X=X, y=Y, client=CLIENT, validation=marks["test"], test=marks["test"])
    with fails("row 5 is of validation and of the test"):
        Table("t.npz").load()
    np.savez("t.npz", X=X, y=Y, test=marks["test"].astype(int))
    with fails("t.npz: test is int64; save it as booleans"):
        Table("t.npz").load()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"test": 1.0}, "data.test=1.0 must be at least 0 and less than 1, or a list of clients"),
        ({"test": 0.85}, "data.validation=0.2 and data.test=0.85 leave no rows to train on: their sum must be less"),
        ({"test": ["d"]}, "data.test: there is no client 'd'; (valid: a, b, c)"),
        ({"test": ["a"], "validation": ["a"]}, "both name the client 'a': name it in one of them"),
        ({"test": ["a", "b"], "validation": ["c"]}, "every row is held out; leave some to train on"),
        ({"test": 0.01}, "data.test=0.01 holds out no row, since no client has enough of them"),
    ],
)
def test_refusals(options, words):
    with fails(words):
        table(**options).load()


def test_clients_of_rows_that_have_none(tmp_path):
    path = save(tmp_path, "t.csv", frame().drop(columns="site"))
    with fails("data.test=['a']: the rows have no named clients; give data.client=... or a fraction", "data.test=0.2"):
        build(Table, {"path": path, "target": "price", "clients": 2, "test": ["a"]}, "data").load()


def test_names_for_each_row():
    with fails("data: clients_test names the clients of 1 rows, and there are 2: give one each"):
        FederatedData(X, Y, np.array([0, 6]), x_test=X[:2], y_test=Y[:2], clients_test=np.array(["a"])).validate()


@pytest.mark.parametrize("kind", [Heterogeneous, Lasso, LeastSquares, LogisticSynthetic, LowRank])
def test_synthetic_rows_for_the_test(kind):
    with_, without = (kind(clients=3, samples=5, test_samples=n).load() for n in (4, 0))
    assert not_none(with_.y_test).shape == (12,)
    assert not_none(with_.client_of_row("test")).tolist() == sorted([*with_.clients] * 4)
    assert without.x_test is None
    for name, (x, y) in without.splits.items():
        np.testing.assert_array_equal(with_.splits[name][0], x)
        np.testing.assert_array_equal(with_.splits[name][1], y)
    np.testing.assert_allclose(not_none(with_.x_test).std(), without.x.std(), rtol=0.5)
    assert not (not_none(with_.x_test)[:4] == with_.x[:4]).any(axis=1).all()
    assert "test_samples" not in identity_fields(kind())
