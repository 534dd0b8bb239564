"""Test rows and validation rows."""

import numpy as np
import pytest
from helpers import fails, not_none
from table_files import CLIENT, X, Y, frame, save

from fcorun.base.config import build, identity_fields
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.heterogeneous import Heterogeneous
from fcorun.data.datasets.lasso import Lasso
from fcorun.data.datasets.logistic_synthetic import LogisticSynthetic
from fcorun.data.datasets.lowrank import LowRank
from fcorun.data.datasets.random_least_squares import RandomLeastSquares
from fcorun.data.datasets.table import Table
from fcorun.data.rows.rows import Rows
from fcorun.data.tables.splits import hold_out

pytestmark = pytest.mark.usefixtures("own_cache")
SITE = np.repeat(["a", "b", "c"], [20, 31, 9])


def table(**options):
    """Return a table of 60 rows whose target is their number, in rows.npz."""
    number = np.arange(60.0)
    np.savez("rows.npz", X=number[:, None], y=number, client=SITE)
    return build(Table, {"path": "rows.npz", **options}, "data")


def targets_by_split(data):
    return {name: rows.y.tolist() for name, rows in data.splits.items()}


@pytest.mark.parametrize(
    ("validation", "test"),
    [(0.25, 0.5), (None, 0.3), (["a"], 0.4), (0.4, ["a", "c"]), (["a"], ["b"]), (0.0, 0.3), (0.0, ["b"])],
)
def test_every_row_is_in_one_split(validation, test):
    data = table(validation=validation, test=test).load()
    by_split = targets_by_split(data)
    assert sorted(row for rows in by_split.values() for row in rows) == list(range(60))
    for split, rows in by_split.items():
        assert not_none(data.client_of_row(split)).tolist() == SITE[np.array(rows, int)].tolist()
        option = {"validation": 0.2 if validation is None else validation, "test": test}.get(split)
        if isinstance(option, list):
            assert set(not_none(data.client_of_row(split))) == set(option)
        elif option is not None:
            held_out = {name for names in (validation, test) if isinstance(names, list) for name in names}
            counts = {site: int(option * np.sum(site == SITE) + 1e-9) for site in "abc" if site not in held_out}
            assert dict(zip(*np.unique(not_none(data.client_of_row(split)), return_counts=True), strict=True)) == counts
        assert data.splits[split].x[:, 0].tolist() == rows


def test_the_test_does_not_depend_on_the_validation():
    tests = [targets_by_split(table(validation=v, test=0.3).load())["test"] for v in (None, 0.0, 0.5)]
    assert tests[0] == tests[1] == tests[2]
    assert targets_by_split(table(test=0.3, seed=1).load())["test"] != tests[0]
    without_test, with_test = (targets_by_split(table(test=t).load())["validation"] for t in (None, ["a"]))
    assert set(with_test) < set(without_test)  # the other clients have the same validation rows


def test_without_a_test_split_data_and_identity_name_none():
    data = table().load()
    assert data.test is None
    assert "test" not in data.splits
    assert "test" not in identity_fields(table())  # at its default, the option leaves identities as they are
    assert identity_fields(table(test=0.1))["test"] == 0.1
    assert table().fingerprint() == table(test=None).fingerprint() != table(test=0.1).fingerprint()


def held_out_rows(**options) -> list[float]:
    return targets_by_split(table(**options).load())["validation"]


def test_split_seed_draws_the_held_out_rows_in_place_of_the_seed_of_the_data():
    names, client_index = np.unique(SITE, return_inverse=True)
    drawn = np.flatnonzero(hold_out(client_index, names.tolist(), 0.2, split="validation", seed=3)).tolist()
    assert held_out_rows(seed=3) == held_out_rows(seed=3, split_seed=None) == drawn
    assert held_out_rows(seed=8, split_seed=3) == held_out_rows(seed=9, split_seed=3) == drawn
    assert held_out_rows(seed=3, split_seed=4) != drawn
    assert "split_seed" not in identity_fields(table())
    assert table().fingerprint() == table(split_seed=None).fingerprint() != table(split_seed=0).fingerprint()


@pytest.mark.parametrize(("value", "words"), [(-1, "must be non-negative"), (0.5, "must be a whole number")])
def test_a_split_seed_is_a_whole_number_and_not_negative(value, words):
    with fails(f"data.split_seed={value} {words}"):
        table(split_seed=value)


def test_scaling_is_by_the_training_rows_alone():
    for standardize in ("pooled", "per_client"):
        data = table(validation=0.2, test=["c"], standardize=standardize).load()
        training = np.array(targets_by_split(data)["train"])
        # client c has no training rows, and is scaled by all of its rows
        reference = training if standardize == "pooled" else np.flatnonzero(SITE == "c")
        wanted = (np.array(targets_by_split(data)["test"]) - reference.mean()) / reference.std()
        np.testing.assert_allclose(not_none(data.test).x[:, 0], wanted)


def test_an_npz_marks_its_rows():
    marks = {"validation": np.arange(6) == 1, "test": np.arange(6) > 3}
    np.savez("t.npz", X=X, y=Y, client=CLIENT, **marks)
    data = Table("t.npz").load()
    assert targets_by_split(data) == {"train": [3, 0.5, 2], "validation": [1], "test": [5, 4]}
    assert not_none(data.client_of_row("test")).tolist() == ["a", "b"]
    with fails("data.test=0.2: t.npz marks its test rows itself; leave data.test out"):
        Table("t.npz", test=0.2).load()
    np.savez("marked.npz", X=X, y=Y, client=CLIENT, part=np.repeat("train", 6), **marks)
    with fails("data.split=part: marked.npz marks its rows by the arrays validation and test: leave data.split out"):
        Table("marked.npz", split="part").load()
    np.savez("t.npz", X=X, y=Y, test=marks["test"])  # held-out rows belong to no client
    data = Table("t.npz", clients=2, validation=0.5).load()
    assert not_none(data.test).y.tolist() == [4, 5]
    assert not_none(data.client_of_row("test")).tolist() == ["", ""]
    np.savez("t.npz", X=X, y=Y, client=CLIENT, validation=marks["test"], test=marks["test"])
    with fails("row 5 is held out for validation and for the test"):
        Table("t.npz").load()
    np.savez("t.npz", X=X, y=Y, test=marks["test"].astype(int))
    with fails("t.npz: test is int64; save it as booleans"):
        Table("t.npz").load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": 1.0}, "data.test=1.0 must be at least 0 and less than 1, or a list of clients"),
        (
            {"test": 0.85},
            "data.validation=0.2, its default, and data.test=0.85 leave no rows to train on: their sum must be less",
        ),
        ({"test": ["d"]}, "data.test: there is no client 'd'; (valid: a, b, c)"),
        ({"test": ["a"], "validation": ["a"]}, "both name the client 'a': name it in one of them"),
        ({"test": ["a", "b"], "validation": ["c"]}, "every row is held out; leave some to train on"),
        ({"test": 0.01}, "data.test=0.01 holds out no row, since no client has enough of them"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with fails(message):
        table(**options).load()


def test_clients_are_not_held_out_where_rows_name_none(tmp_path):
    path = save(tmp_path, "t.csv", frame().drop(columns="site"))
    with fails("data.test=['a']: the rows have no named clients; give data.client=... or a fraction", "data.test=0.2"):
        build(Table, {"path": path, "target": "price", "clients": 2, "test": ["a"]}, "data").load()


def test_names_of_clients_are_as_many_as_the_test_rows():
    with fails("data: client has 1 test values, and there are 2 rows: give one each"):
        FederatedData(Rows(X, Y, np.zeros(6, int)), test=Rows(X[:2], Y[:2], np.zeros(1, int))).validate()


@pytest.mark.parametrize("kind", [Heterogeneous, Lasso, RandomLeastSquares, LogisticSynthetic, LowRank])
def test_synthetic_data_draw_test_rows_without_a_change_of_the_others(kind):
    with_, without = (kind(clients=3, samples=5, test_samples=n).load() for n in (4, 0))
    assert not_none(with_.test).y.shape == (12,)
    assert not_none(with_.client_of_row("test")).tolist() == sorted([*with_.clients] * 4)
    assert without.test is None
    for name, rows in without.splits.items():
        np.testing.assert_array_equal(with_.splits[name].x, rows.x)
        np.testing.assert_array_equal(with_.splits[name].y, rows.y)
    np.testing.assert_allclose(not_none(with_.test).x.std(), without.train.x.std(), rtol=0.5)
    assert not (not_none(with_.test).x[:4] == with_.train.x[:4]).any(axis=1).all()
    assert "test_samples" not in identity_fields(kind())
