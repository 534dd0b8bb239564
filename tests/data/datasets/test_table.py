"""The table's data set: labels, refused files and options, and the fingerprint."""

import gzip

import numpy as np
import pytest
from helpers import fails, not_none
from table_files import SORTED, X, Y, frame, price_table, save

from fcorun.base.config import build
from fcorun.data.datasets.table import Table

pytestmark = pytest.mark.usefixtures("own_cache")


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["no", "yes", "yes"], ("no", "yes")),
        ([1, -1, -1], (-1, 1)),
        ([True, False, False], (False, True)),
        ([1.0, 2.0, 2.0], (1, 2)),
        ([0.5, 1.5, 1.5], (0.5, 1.5)),
    ],
)
def test_binary_labels_are_indices_of_sorted_classes(tmp_path, labels, classes):
    expected = np.array([classes.index(v) for v in labels * 2])[SORTED]
    for name in ("t.csv", "t.parquet"):
        data = price_table(save(tmp_path, name, frame(price=labels * 2)), task="binary").load()
        assert data.classes == classes
        assert data.task == "binary"
        assert data.train.y.dtype == np.int32
        np.testing.assert_array_equal(data.train.y, expected)


@pytest.mark.parametrize(
    ("labels", "first"), [(["ja", "nein", "nein"], "ja"), ([0, 1, 1], "0"), ([False, True, True], False)]
)
def test_the_positive_class_is_second_and_changes_nothing_else(tmp_path, labels, first):
    path = save(tmp_path, "t.csv", frame(price=labels * 2).drop(columns="site"))
    options = {"task": "binary", "client": None, "partition": "by_label", "clients": 2, "validation": 0.4}
    last, other = (price_table(path, **options, positive=label).load() for label in (None, first))
    assert other.classes == last.classes[::-1] == (labels[1], labels[0])
    assert other.train.y.dtype == np.int32
    np.testing.assert_array_equal(other.train.y, 1 - last.train.y)
    np.testing.assert_array_equal(not_none(other.validation).y, 1 - not_none(last.validation).y)
    for split, rows in last.splits.items():  # clients and held-out rows are the same
        np.testing.assert_array_equal(other.splits[split].x, rows.x)
        np.testing.assert_array_equal(other.splits[split].client, rows.client)
    named = price_table(path, **options, positive=labels[1] if isinstance(labels[1], bool) else str(labels[1])).load()
    np.testing.assert_array_equal(named.train.y, last.train.y)
    with fails("data.positive=maybe is no label of target 'price' of ", str(labels[0]), str(labels[1])):
        price_table(path, **options, positive="maybe").load()


def test_the_positive_class_of_arrays_is_second(tmp_path):
    np.savez(tmp_path / "t.npz", X=np.eye(6), y=[1, -1] * 3)
    data = Table(str(tmp_path / "t.npz"), clients=2, task="binary", validation=0.0, positive="-1").load()
    assert data.classes == (1, -1)
    assert data.train.y.tolist() == (data.train.x[:, 1::2].sum(axis=1) == 1).astype(int).tolist()


def test_a_class_of_validation_rows_alone_keeps_its_index(tmp_path):
    path = save(tmp_path, "t.csv", frame(price=["q", "p", "r", "q", "r", "p"], site=[*"abcabb"]))
    data = price_table(path, task="multiclass", validation=["c"]).load()
    assert data.classes == ("p", "q", "r")
    assert not_none(data.validation).y.tolist() == [2]
    data = price_table(path, task="multiclass", validation=["b"]).load()
    assert data.classes == ("p", "q", "r")
    assert set(data.train.y.tolist()) == {1, 2}
    assert not_none(data.validation).y.tolist() == [0, 2, 0]


# ---------------------------------------------------------------- refusals


def test_missing_files_are_refused(tmp_path):
    save(tmp_path, "prices.csv")
    with fails("data.path=", "prics.csv", "did you mean", "prices.csv"):
        price_table(str(tmp_path / "prics.csv")).load()
    with fails("data.path=", "there is no such file"):
        price_table(str(tmp_path / "zzz")).sources()
    with fails("data.path=", "no folder"):
        price_table(str(tmp_path / "none" / "t.csv")).load()
    with fails("data.path=", "is a folder", ".h5", "or a folder with X.npy and y.npy"):
        price_table(str(tmp_path)).load()


@pytest.mark.parametrize("name", ["t.xls", "t", "t.parquet.gz"])
def test_unknown_endings_are_refused(tmp_path, name):
    (tmp_path / name).write_text("1")
    with fails("data.path=", "unknown ending", ".csv"):
        price_table(str(tmp_path / name)).load()


@pytest.mark.parametrize("name", ["t.parquet", "t.npz", "t.csv.gz"])
@pytest.mark.parametrize("content", [b"\x00\xffnonsense" * 9, b""], ids=["nonsense", "empty"])
def test_damaged_files_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    target = None if ".npz" in name else "y"
    with fails("data.path=", "cannot be read" if content else "empty"):
        Table(str(tmp_path / name), target=target).load()


@pytest.mark.parametrize("name", ["t.parquet", "t.npz", "t.csv.gz", "t.svm.gz"])
def test_truncated_files_are_refused(tmp_path, name):
    path = tmp_path / name
    if name == "t.npz":
        np.savez_compressed(path, X=X, y=Y)
    elif name == "t.svm.gz":
        path.write_bytes(gzip.compress(b"1 1:2\n" * 99))
    else:
        save(tmp_path, name)
    path.write_bytes(path.read_bytes()[:-12])
    with fails("data.path=", "cannot be read"):
        Table(str(path), target="price" if "csv" in name or "parquet" in name else None).load()


def test_an_npz_of_a_single_array_is_refused(tmp_path):
    np.save(tmp_path / "t.npy", X)
    (tmp_path / "t.npy").rename(tmp_path / "t.npz")
    with fails("data.path=", "single array"):
        Table(str(tmp_path / "t.npz")).load()


def test_tables_without_rows_or_features_are_refused(tmp_path):
    for name in ("t.csv", "t.parquet"):
        with fails("data.path=", "no rows"):
            price_table(save(tmp_path, name, frame().head(0))).load()
        with fails("data.path=", "no feature columns"):
            price_table(save(tmp_path, name, frame().filter(["site", "price"]))).load()
    (tmp_path / "t.svm").write_text("# nothing\n\n")
    with fails("data.path=", "no rows"):
        Table(str(tmp_path / "t.svm")).load()


def test_a_ragged_csv_is_refused(tmp_path):
    texts = {
        "u,v,price\n1,2,3\n1,2,3,4\n": "cannot be read",
        "u,v,price\n1,2,3,4\n5,6,7,8\n": "line 2 has 4 cells and the names of the columns 3",
    }
    for text, reason in texts.items():
        (tmp_path / "t.csv").write_text(text)
        with fails("data.path=", reason):
            Table(str(tmp_path / "t.csv"), "price").load()


def test_unknown_unnamed_and_mixed_columns_are_refused(tmp_path):
    path = save(tmp_path, "t.csv")
    with fails("data.target=pric", "did you mean 'price'"):
        price_table(path, target="pric").load()
    with fails("data.client=sites", "did you mean 'site'"):
        price_table(path, client="sites").load()
    with fails("data.target has no value", "price"):
        price_table(path, target=None).load()
    with fails("data.target and data.client both name 'price'"):
        price_table(path, client="price").load()
    with fails("data.path=", "column 'v'", "'n/k' in row 3"):
        price_table(save(tmp_path, "s.csv", frame(v=[1, 2, "n/k", 4, 5, 6]))).load()
    frame().to_csv(tmp_path / "i.csv")
    with fails("data.path=", "has no name", "index=False"):
        price_table(str(tmp_path / "i.csv")).load()
    np.savez(tmp_path / "t.npz", X=X, y=Y)
    with fails("data.target=price", "no named columns"):
        Table(str(tmp_path / "t.npz"), "price").load()


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_missing_and_infinite_values_are_refused(tmp_path, name):
    for bad in (np.nan, np.inf):
        with fails("data.path=", "column 'v'", "row 3"):
            price_table(save(tmp_path, name, frame(v=[1, 2, bad, 4, 5, 6]))).load()
    with fails("data.path=", "target 'price'", "row 2"):
        price_table(save(tmp_path, name, frame(price=[1, np.inf, 3, 4, 5, 6]))).load()
    with fails("data.target=price", "row 2"):
        price_table(save(tmp_path, name, frame(price=["a", None, "b", "a", "b", "a"])), task="binary").load()
    with fails("data.client=site", "row 1"):
        price_table(save(tmp_path, name, frame(site=[None, *"abaab"]))).load()
    with fails("data.path=", "column 'v'", "row 1"):
        price_table(save(tmp_path, name, frame(v=np.nan))).load()


@pytest.mark.parametrize(
    ("arrays", "phrases"),
    [
        ({"X": X}, ["no array 'y'"]),
        ({"x": X, "y": Y}, ["no array 'X'", "valid: x, y"]),
        ({"X": X, "y": Y[:3]}, ["y has shape", "6 rows"]),
        ({"X": X[0], "y": Y}, ["X must be a matrix"]),
        ({"X": X.astype(str), "y": Y}, ["X must be a matrix of numbers"]),
        ({"X": X, "y": Y, "validation": Y}, ["validation", "booleans"]),
        ({"X": X, "y": Y, "validation": Y > 0}, ["marks every row"]),
        ({"X": X, "y": Y, "client": np.array([None] * 6)}, ["array 'client' holds Python objects"]),
        ({"X": np.where(X == 5, np.nan, X), "y": Y}, ["column '2'", "row 2"]),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(tmp_path, arrays, phrases):
    np.savez(tmp_path / "t.npz", **arrays)
    with fails("data.path=", *phrases):
        Table(str(tmp_path / "t.npz"), clients=2).load()


def test_tasks_that_do_not_fit_the_target_are_refused(tmp_path):
    text = save(tmp_path, "s.csv", frame(price=list("pqrpqr")))
    with fails("data.task=regression", "target 'price'", "binary"):
        price_table(text).load()
    with fails("data.task=binary", "3 classes (p, q, r)", "data.task=multiclass, or leave out the rows whose label"):
        price_table(text, task="binary").load()
    with fails("data.task=multiclass", "0.5", "data.task=regression"):
        price_table(save(tmp_path, "f.csv"), task="multiclass").load()
    with fails("data.task=binary", "one class only", "'p'"):
        price_table(save(tmp_path, "o.csv", frame(price="p")), task="binary").load()
    with fails("data.validation=", "one class only"):
        price_table(save(tmp_path, "v.csv", frame(price=list("pqpqpq"))), task="binary", validation=["a"]).load()


def test_partitions_that_do_not_fit_are_refused(tmp_path):
    for kind in ("by_label", "dirichlet"):
        with fails(f"data.partition={kind}", "data.task=regression", "data.partition=sorted"):
            Table("t.csv", partition=kind)
    with fails("data.partition=sorted", "clients already"):
        price_table(save(tmp_path, "t.csv"), partition="sorted").load()
    path = save(tmp_path, "n.csv", frame().drop(columns="site"))
    with fails("data.clients=7", "6 training rows"):
        price_table(path, client=None, clients=7).load()
    with fails("data.validation=", "no named clients", "data.client"):
        price_table(path, client=None, clients=2, validation=["a"]).load()


def test_validations_that_do_not_fit_are_refused(tmp_path):
    for value in (-0.1, 1.0, 3.0):
        with fails(f"data.validation={value}", "less than 1"):
            Table("t.csv", validation=value)
    path = save(tmp_path, "t.csv", frame(site=["north", "south"] * 3))
    with fails("data.validation", "'noth'", "did you mean 'north'"):
        price_table(path, validation=["noth"]).load()
    with fails("data.validation=", "every row is held out"):
        price_table(path, validation=["north", "south"]).load()
    with fails("data.validation=most"):
        build(Table, {"path": path, "validation": "most"}, "data")
    with fails("data.path has no value"):
        build(Table, {"path": "???"}, "data")


def test_the_fingerprint_depends_on_content_alone(tmp_path):
    (tmp_path / "sub").mkdir()
    one, moved = save(tmp_path, "t.csv"), save(tmp_path / "sub", "other.csv")
    assert price_table(one).fingerprint() == price_table(moved).fingerprint() != price_table(one, seed=1).fingerprint()
    save(tmp_path, "t.csv", frame(u=0))
    assert price_table(one).fingerprint() != price_table(moved).fingerprint()
