"""The data sets against their laws, their file formats, and what users get wrong."""

import bz2
import gzip
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import fails

from fcorun import compose
from fcorun.config import build
from fcorun.datasets.base import FederatedData
from fcorun.datasets.haxby import Haxby
from fcorun.datasets.lasso import Lasso
from fcorun.datasets.partition import hold_out, partition, standardize
from fcorun.datasets.table import Table
from fcorun.experiment.experiment import prepare

REAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "nilearn_data"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FCORUN_CACHE", str(tmp_path / "cache"))


# ---------------------------------------------------------------- federated LASSO


def test_lasso_shapes_and_truth():
    data = Lasso(clients=3, samples=5, features=7, nonzeros=2, validation_samples=4).load()
    assert data.x.shape == (15, 7)
    assert data.y.shape == (15,)
    assert data.x.dtype == data.y.dtype == np.float32
    assert data.x_val.shape == (12, 7)
    assert data.y_val.shape == (12,)
    assert data.sizes.tolist() == [5, 5, 5]
    assert data.offsets_val.tolist() == [0, 4, 8, 12]
    assert len(data.clients) == 3
    assert data.task == "regression"
    np.testing.assert_array_equal(data.truth["weights"], [1, 1, 0, 0, 0, 0, 0])
    assert data.truth["bias"].shape == ()


def test_lasso_default_is_the_papers():
    data = Lasso().load()
    assert data.x.shape == (64 * 128, 1024)
    assert data.truth["weights"].sum() == 512


@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0])
def test_lasso_law(scale):
    data = Lasso(clients=40, samples=500, features=30, nonzeros=10, mean_scale=scale, validation_samples=200).load()
    x = data.x.reshape(40, 500, 30)
    means = x.mean(axis=1)
    # a mean of 500 rows adds 1/500 to the variance of the clients' own means
    assert means.var() == pytest.approx(scale**2 + 1 / 500, rel=0.12)
    assert (x - means[:, None]).var() == pytest.approx(1, rel=0.02)
    noise = data.y - data.x @ data.truth["weights"] - data.truth["bias"]
    assert abs(noise.mean()) < 0.03
    assert noise.var() == pytest.approx(1, rel=0.04)
    # validation rows share the mean of their client and are other rows
    gap = data.x_val.reshape(40, 200, 30).mean(axis=1) - means
    assert gap.var() == pytest.approx(1 / 500 + 1 / 200, rel=0.15)
    noise = data.y_val - data.x_val @ data.truth["weights"] - data.truth["bias"]
    assert noise.var() == pytest.approx(1, rel=0.06)


def test_lasso_seeds():
    small = {"clients": 3, "samples": 4, "features": 5, "nonzeros": 2}
    one, same, other = Lasso(**small).load(), Lasso(**small).load(), Lasso(**small, seed=1).load()
    np.testing.assert_array_equal(one.x, same.x)
    assert not np.isclose(one.x, other.x).any()
    assert one.truth["bias"] != other.truth["bias"]
    longer = Lasso(**small, validation_samples=0).load()
    np.testing.assert_array_equal(one.y, longer.y)
    assert longer.x_val is longer.y_val is longer.offsets_val is None
    assert Lasso(**small).fingerprint() == Lasso(**small).fingerprint() != Lasso(**small, seed=1).fingerprint()


def test_lasso_more_nonzeros_than_features():
    with fails("data.nonzeros=9", "data.features=8"):
        Lasso(features=8, nonzeros=9)


# ---------------------------------------------------------------- tables: formats

X = np.array([[1.5, 2, 0], [3, 4, 5], [-1, 0, 2.25], [7, 0.125, 1], [0, 0, 3], [2, 2, 2]])
Y = np.array([0.5, 1, 2, 3, 4, 5])
CLIENT = np.array(["b", "a", "b", "a", "b", "a"])
SORTED = [1, 3, 5, 0, 2, 4]  # the rows by client, each client's in the order of the file


def frame(**columns) -> pd.DataFrame:
    return pd.DataFrame(X, columns=["u", "v", "w"]).assign(**({"site": CLIENT, "price": Y} | columns))


def save(folder: Path, name: str, table: pd.DataFrame | None = None) -> str:
    table, path = frame() if table is None else table, folder / name
    if path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if ".tsv" in name else ",")
    return str(path)


def priced(path: str, **options) -> Table:
    return Table(path, **({"target": "price", "client": "site", "validation": 0.0} | options))


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet", "t.csv.gz", "t.tsv.bz2", "T.CSV"])
def test_named_columns_round_trip(tmp_path, name):
    data = priced(save(tmp_path, name)).load()
    np.testing.assert_array_equal(data.x, X[SORTED])
    np.testing.assert_array_equal(data.y, Y[SORTED])
    assert data.x.dtype == np.float64
    assert data.offsets.tolist() == [0, 3, 6]
    assert data.clients == ("a", "b")
    assert data.features == ("u", "v", "w")
    assert data.x_val is None
    assert data.task == "regression"


def test_npz_round_trip(tmp_path):
    held = np.array([False, False, True, False, False, True])
    np.savez(tmp_path / "t.npz", X=X.astype(np.float32), y=Y, client=CLIENT, validation=held)
    data = Table(str(tmp_path / "t.npz")).load()
    np.testing.assert_array_equal(data.x, X[[1, 3, 0, 4]])
    np.testing.assert_array_equal(data.y_val, Y[[5, 2]])
    np.testing.assert_array_equal(data.x_val, X[[5, 2]])
    assert data.offsets_val.tolist() == [0, 1, 2]
    assert data.x.dtype == np.float32
    assert data.sizes.tolist() == [2, 2]
    assert data.clients == ("a", "b")
    with fails("data.validation=0.5", "marks its validation rows"):
        Table(str(tmp_path / "t.npz"), validation=0.5).load()


def test_npz_with_bytes_for_text(tmp_path):
    np.savez(tmp_path / "t.npz", X=X, y=np.array([b"p", b"q"] * 3), client=np.array([b"a", b"a", b"b"] * 2))
    data = Table(str(tmp_path / "t.npz"), task="binary", validation=["b"]).load()
    assert data.classes == ("p", "q")
    assert data.clients == ("a",)


def test_npz_without_clients_deals_out_only_training_rows(tmp_path):
    held = np.arange(6) < 2
    np.savez_compressed(tmp_path / "t.npz", X=X, y=Y, validation=held)
    data = Table(str(tmp_path / "t.npz"), clients=4, standardize="per_client").load()
    assert data.sizes.tolist() == [1, 1, 1, 1]
    assert sorted(data.y) == [2, 3, 4, 5]
    assert data.y_val.tolist() == [0.5, 1]
    assert data.offsets_val is None
    assert (data.x == 0).all()  # one row a client is constant


@pytest.mark.parametrize("name", ["t.libsvm", "t.svm", "t.svmlight", "t.txt", "t.svm.gz", "t.svm.bz2"])
@pytest.mark.parametrize("zero_based", [True, False])
def test_libsvm_as_scikit_learn_reads_it(tmp_path, name, zero_based):
    from sklearn.datasets import dump_svmlight_file, load_svmlight_file

    path, plain = tmp_path / name, tmp_path / "plain"
    dump_svmlight_file(X, Y, str(plain), zero_based=zero_based, comment="made here")
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(plain.read_bytes()))
    expected, labels = load_svmlight_file(str(plain), dtype=np.float32)
    data = Table(str(path), partition="sorted", clients=2, validation=0.0).load()
    np.testing.assert_array_equal(data.x, expected.toarray())
    np.testing.assert_array_equal(data.y, labels)
    assert data.x.dtype == np.float32
    assert data.sizes.tolist() == [3, 3]


def test_libsvm_written_by_hand(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(b"# a comment\r\n+1 1:0.5  3:2e1 # another\r\n\r\n-1\r\n+1 qid:7\t2:-4 \r\n")
    data = Table(str(path), task="binary", clients=1, validation=0.0).load()
    rows = sorted(zip(data.y.tolist(), data.x.tolist(), strict=True))
    assert rows == [(0, [0, 0, 0]), (1, [0, -4, 0]), (1, [0.5, 0, 20])]
    assert data.classes == (-1, 1)


@pytest.mark.parametrize("line", ["1 1:2 three", "1 2 3:4", "a 1:2", "1,2 1:3", "1 -1:3", "1 1.5:3"])
def test_libsvm_malformed(tmp_path, line):
    path = tmp_path / "t.svm"
    path.write_text(f"1 1:2\n{line}\n")
    with fails("data.path=", "cannot be read as .svm"):
        Table(str(path)).load()


def test_libsvm_too_large_when_dense(tmp_path):
    path = tmp_path / "t.svm"
    path.write_text("1 1:2\n0 3000000000:1\n")
    with fails("data.path=", "24 GB", "fewer rows or features"):
        Table(str(path)).load()


def test_integers_booleans_and_nullable_numbers(tmp_path):
    table = frame(u=[1, 2, 3, 4, 5, 6], v=[True, False] * 3, w=pd.array([1, 2, 3, 4, 5, 6], dtype="Int64"))
    data = priced(save(tmp_path, "t.parquet", table)).load()
    np.testing.assert_array_equal(data.x[0], [2, 0, 2])
    data = priced(save(tmp_path, "b.csv", frame(u=table.v, v=table.v, w=table.v))).load()
    assert data.x.dtype == np.int8
    assert data.x.max() == 1


def test_wide_and_long_tables(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((300, 2000)).astype(np.float32)).assign(price=1.0)
    path = save(tmp_path, "t.csv", table)
    assert Table(path, target="price").load().x.shape == (240, 2000)
    with fails("data.target=pricy", "'price'"):
        Table(path, target="pricy").load()


# ---------------------------------------------------------------- tables: clients and partitions


@pytest.mark.parametrize("ids", [[10, 9, 2, 10, 9, 2], ["10", "9", "2", "10", "9", "2"]])
def test_numeric_clients_in_natural_order(tmp_path, ids):
    for name in ("t.csv", "t.parquet"):
        assert priced(save(tmp_path, name, frame(site=ids))).load().clients == ("2", "9", "10")


def test_clients_keep_their_zeros(tmp_path):
    data = priced(save(tmp_path, "t.csv", frame(site=["007", "01", "x"] * 2))).load()
    assert data.clients == ("007", "01", "x")


LABELS = np.repeat([0, 1, 2], [50, 30, 20])


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by_label", "sorted"])
@pytest.mark.parametrize("clients", [1, 2, 3, 7, 100])
def test_partition_deals_every_row_to_someone(kind, clients):
    owner = partition(kind, LABELS, clients, 0.1, np.random.default_rng(0))
    assert owner.shape == (100,)
    assert np.bincount(owner, minlength=clients).min() >= 1
    assert owner.max() == clients - 1
    again = partition(kind, LABELS, clients, 0.1, np.random.default_rng(0))
    np.testing.assert_array_equal(owner, again)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "by_label", "sorted"])
def test_partitioned_table_holds_each_row_once(tmp_path, kind):
    table = pd.DataFrame({"row": np.arange(100), "kind": LABELS}).sample(frac=1, random_state=0)
    path = save(tmp_path, "t.csv", table)
    data = Table(path, "kind", partition=kind, clients=7, task="multiclass", validation=0.3).load()
    rows = np.concatenate([data.x, data.x_val])[:, 0]
    assert sorted(rows) == list(range(100))
    assert len(data.clients) == 7
    np.testing.assert_array_equal(np.concatenate([data.y, data.y_val]), LABELS[rows])


def test_iid_and_sorted_parts_are_equal():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(103)
    for kind in ("iid", "sorted"):
        assert set(np.bincount(partition(kind, y, 10, 1.0, rng))) == {10, 11}
    owner = partition("sorted", y, 10, 1.0, rng)
    assert all(y[owner == m].max() <= y[owner == m + 1].min() for m in range(9))


def test_by_label_gives_one_label_where_it_can():
    rng = np.random.default_rng(0)
    owner = partition("by_label", LABELS, 10, 1.0, rng)
    assert all(len(np.unique(LABELS[owner == m])) == 1 for m in range(10))
    assert np.bincount(owner).tolist() == [10] * 10  # 5, 3 and 2 clients for 50, 30 and 20 rows
    owner = partition("by_label", LABELS, 2, 1.0, rng)
    assert sorted(tuple(np.unique(LABELS[owner == m])) for m in range(2)) == [(0,), (1, 2)]


def test_dirichlet_concentration():
    labels = np.repeat(np.arange(5), 400)

    def purity(alpha: float) -> float:
        owner = partition("dirichlet", labels, 20, alpha, np.random.default_rng(0))
        return np.mean([np.bincount(labels[owner == m], minlength=5).max() / 100 for m in range(20)])

    assert purity(0.01) > 0.85
    assert purity(1000.0) < 0.3
    assert np.bincount(partition("dirichlet", labels, 20, 1e-6, np.random.default_rng(0))).tolist() == [100] * 20


def test_partition_depends_on_its_seed(tmp_path):
    path = save(tmp_path, "t.csv", pd.DataFrame({"u": np.arange(100), "price": np.arange(100)}))
    one, same, other = (Table(path, "price", seed=s).load() for s in (0, 0, 1))
    np.testing.assert_array_equal(one.x, same.x)
    assert (one.x != other.x).any()


# ---------------------------------------------------------------- tables: validation and scaling


def test_fraction_of_each_client():
    owner = np.repeat([0, 1, 2, 3], [1, 10, 100, 4])
    held = hold_out(owner, 0.29, np.random.default_rng(0))
    assert [held[owner == m].sum() for m in range(4)] == [0, 2, 29, 1]
    assert not hold_out(owner, 0.0, np.random.default_rng(0)).any()
    counts = sum(hold_out(np.zeros(10, int), 0.5, np.random.default_rng(s)) for s in range(200))
    assert counts.min() > 60
    assert counts.max() < 140


def test_clients_held_out(tmp_path):
    path = save(tmp_path, "t.csv", frame(site=[1, 2, 3, 1, 2, 3]))
    options = {"path": path, "target": "price", "client": "site", "validation": [3, 1]}
    data = build(Table, options, "data").load()  # numbers in a list become names
    assert data.clients == ("2",)
    assert data.y.tolist() == [1, 4]
    assert data.y_val.tolist() == [0.5, 3, 2, 5]  # client 1's, then client 3's
    assert data.offsets_val is None


def test_validation_rows_lie_client_by_client(tmp_path):
    rng = np.random.default_rng(0)
    site = rng.choice(4, 200, p=[0.5, 0.3, 0.19, 0.01])
    path = save(tmp_path, "t.csv", pd.DataFrame({"site": site, "row": range(200), "price": rng.random(200)}))
    for options in ({}, {"client": None, "partition": "sorted", "clients": 5}):
        data = priced(path, validation=0.25, **options).load()
        counts = np.diff(data.offsets_val)
        np.testing.assert_array_equal(counts, (data.sizes + counts) // 4)
        for m in range(len(counts)):
            own = data.x_val[data.offsets_val[m] : data.offsets_val[m + 1], -1].astype(int)
            assert (np.diff(own) > 0).all()
            assert options or (site[own] == m).all()
    assert priced(path, validation=0.0).load().offsets_val is None


def test_npz_that_marks_all_rows_of_a_client(tmp_path):
    np.savez(tmp_path / "t.npz", X=X, y=Y, client=CLIENT, validation=(CLIENT == "a") | (Y == 0.5))
    data = Table(str(tmp_path / "t.npz")).load()
    assert data.y_val.tolist() == [1, 3, 5, 0.5]
    assert data.offsets_val is None


@pytest.mark.parametrize("offsets_val", [[0, 2], [0, 1, 3], [1, 1, 2], [0, 3, 2]])
def test_validation_rows_that_belong_to_nobody(offsets_val):
    data = FederatedData(X, Y, np.array([0, 3, 6]), x_val=X[:2], y_val=Y[:2], offsets_val=np.array(offsets_val))
    with fails("data: offsets_val", "2 validation rows", "2 clients", "3 numbers"):
        data.validate()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_pooled_standardization(dtype):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((200, 4)) * 50 + 100).astype(dtype)
    x[:, 3] = np.array(7.1).astype(dtype)
    held = rng.random(200) < 0.3
    out = standardize(x, np.zeros(200, int), held)
    assert out.dtype == (dtype if dtype != np.int64 else np.float64)
    np.testing.assert_allclose(out[~held].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(out[~held].std(axis=0), [1, 1, 1, 0], atol=1e-5)
    expected = (x[held, :3] - x[~held, :3].mean(axis=0, dtype=float)) / x[~held, :3].std(axis=0, dtype=float)
    np.testing.assert_allclose(out[held, :3], expected, rtol=1e-3, atol=1e-5)
    assert (out[:, 3] == 0).all()


def test_standardization_per_client(tmp_path):
    rng = np.random.default_rng(1)
    site = np.repeat(["a", "b", "c"], 100)
    shift = np.repeat([0.0, 50.0, -9.0], 100)
    table = pd.DataFrame({"u": rng.standard_normal(300) * 3 + shift, "site": site, "price": np.arange(300)})
    path = save(tmp_path, "t.csv", table)
    data = priced(path, standardize="per_client", validation=0.25).load()
    for m in range(3):
        own = data.x[data.offsets[m] : data.offsets[m + 1]]
        assert abs(own.mean()) < 1e-12
        assert own.std() == pytest.approx(1)
        rows = (data.y_val >= 100 * m) & (data.y_val < 100 * (m + 1))
        raw = data.y[data.offsets[m] : data.offsets[m + 1]].astype(int)
        expected = (table.u[data.y_val[rows].astype(int)] - table.u[raw].mean()) / table.u[raw].std(ddof=0)
        np.testing.assert_allclose(data.x_val[rows, 0], expected)
    held = priced(path, standardize="per_client", validation=["b"]).load()
    assert abs(held.x_val.mean()) < 1e-12
    assert held.x_val.std() == pytest.approx(1)
    pooled = priced(path, standardize="pooled", validation=["b"]).load()
    assert abs(pooled.x.mean()) < 1e-12
    assert pooled.x_val.mean() > 5


# ---------------------------------------------------------------- tables: labels


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
def test_binary_labels(tmp_path, labels, classes):
    expected = np.array([classes.index(v) for v in labels * 2])[SORTED]
    for name in ("t.csv", "t.parquet"):
        data = priced(save(tmp_path, name, frame(price=labels * 2)), task="binary").load()
        assert data.classes == classes
        assert data.task == "binary"
        assert data.y.dtype == np.int32
        np.testing.assert_array_equal(data.y, expected)


def test_class_seen_in_validation_only_keeps_its_index(tmp_path):
    path = save(tmp_path, "t.csv", frame(price=["q", "p", "r", "q", "r", "p"], site=[*"abcabb"]))
    data = priced(path, task="multiclass", validation=["c"]).load()
    assert data.classes == ("p", "q", "r")
    assert data.y_val.tolist() == [2]
    data = priced(path, task="multiclass", validation=["b"]).load()
    assert data.classes == ("p", "q", "r")
    assert set(data.y.tolist()) == {1, 2}
    assert data.y_val.tolist() == [0, 2, 0]


# ---------------------------------------------------------------- tables: mistakes


def test_missing_files(tmp_path):
    save(tmp_path, "prices.csv")
    with fails("data.path=", "prics.csv", "did you mean", "prices.csv"):
        priced(str(tmp_path / "prics.csv")).load()
    with fails("data.path=", "there is no such file"):
        priced(str(tmp_path / "zzz")).sources()
    with fails("data.path=", "no folder"):
        priced(str(tmp_path / "none" / "t.csv")).load()
    with fails("data.path=", "is a folder"):
        priced(str(tmp_path)).load()


@pytest.mark.parametrize("name", ["t.xlsx", "t", "t.parquet.gz"])
def test_unknown_endings(tmp_path, name):
    (tmp_path / name).write_text("1")
    with fails("data.path=", "unknown ending", ".csv"):
        priced(str(tmp_path / name)).load()


@pytest.mark.parametrize("name", ["t.parquet", "t.npz", "t.csv.gz"])
@pytest.mark.parametrize("content", [b"\x00\xffnonsense" * 9, b""], ids=["nonsense", "empty"])
def test_damaged_files(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    options = {} if ".npz" in name else {"target": "y"}
    with fails("data.path=", "cannot be read" if content else "empty"):
        Table(str(tmp_path / name), **options).load()


@pytest.mark.parametrize("name", ["t.parquet", "t.npz", "t.csv.gz", "t.svm.gz"])
def test_truncated_files(tmp_path, name):
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


def test_npz_of_a_single_array(tmp_path):
    np.save(tmp_path / "t.npy", X)
    (tmp_path / "t.npy").rename(tmp_path / "t.npz")
    with fails("data.path=", "single array"):
        Table(str(tmp_path / "t.npz")).load()


def test_tables_without_rows_or_features(tmp_path):
    for name in ("t.csv", "t.parquet"):
        with fails("data.path=", "no rows"):
            priced(save(tmp_path, name, frame()[:0])).load()
        with fails("data.path=", "no feature columns"):
            priced(save(tmp_path, name, frame()[["site", "price"]])).load()
    (tmp_path / "t.svm").write_text("# nothing\n\n")
    with fails("data.path=", "no rows"):
        Table(str(tmp_path / "t.svm")).load()


def test_ragged_csv(tmp_path):
    for text in ("u,v,price\n1,2,3\n1,2,3,4\n", "u,v,price\n1,2,3,4\n5,6,7,8\n"):
        (tmp_path / "t.csv").write_text(text)
        with fails("data.path=", "cannot be read"):
            Table(str(tmp_path / "t.csv"), "price").load()


def test_columns_that_are_wrong(tmp_path):
    path = save(tmp_path, "t.csv")
    with fails("data.target=pric", "did you mean 'price'"):
        priced(path, target="pric").load()
    with fails("data.client=sites", "did you mean 'site'"):
        priced(path, client="sites").load()
    with fails("data.target has no value", "price"):
        priced(path, target=None).load()
    with fails("data.client=price", "two different"):
        priced(path, client="price").load()
    with fails("data.path=", "column 'site'", "'b' in row 1"):
        priced(path, client=None).load()
    with fails("data.path=", "column 'v'", "'n/k' in row 3"):
        priced(save(tmp_path, "s.csv", frame(v=[1, 2, "n/k", 4, 5, 6]))).load()
    frame().to_csv(tmp_path / "i.csv")
    with fails("data.path=", "has no name", "index=False"):
        priced(str(tmp_path / "i.csv")).load()
    np.savez(tmp_path / "t.npz", X=X, y=Y)
    with fails("data.target=price", "no named columns"):
        Table(str(tmp_path / "t.npz"), "price").load()


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_missing_and_infinite_values(tmp_path, name):
    for bad in (np.nan, np.inf):
        with fails("data.path=", "column 'v'", "row 3"):
            priced(save(tmp_path, name, frame(v=[1, 2, bad, 4, 5, 6]))).load()
    with fails("data.path=", "target 'price'", "row 2"):
        priced(save(tmp_path, name, frame(price=[1, np.inf, 3, 4, 5, 6]))).load()
    with fails("data.target=price", "row 2"):
        priced(save(tmp_path, name, frame(price=["a", None, "b", "a", "b", "a"])), task="binary").load()
    with fails("data.client=site", "row 1"):
        priced(save(tmp_path, name, frame(site=[None, *"abaab"]))).load()
    with fails("data.path=", "column 'v'", "row 1"):
        priced(save(tmp_path, name, frame(v=np.nan))).load()


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X": X}, ["no array 'y'"]),
        ({"x": X, "y": Y}, ["no array 'X'", "valid: x, y"]),
        ({"X": X, "y": Y[:3]}, ["y has shape", "6 rows"]),
        ({"X": X[0], "y": Y}, ["X must be a matrix"]),
        ({"X": X.astype(str), "y": Y}, ["X must be a matrix of numbers"]),
        ({"X": X, "y": Y, "validation": Y}, ["validation", "booleans"]),
        ({"X": X, "y": Y, "validation": Y > 0}, ["marks every row"]),
        ({"X": X, "y": Y, "client": np.array([None] * 6)}, ["cannot be read"]),
        ({"X": np.where(X == 5, np.nan, X), "y": Y}, ["column '2'", "row 2"]),
    ],
)
def test_npz_that_are_wrong(tmp_path, arrays, words):
    np.savez(tmp_path / "t.npz", **arrays)
    with fails("data.path=", *words):
        Table(str(tmp_path / "t.npz"), clients=2).load()


def test_tasks_that_do_not_fit(tmp_path):
    text = save(tmp_path, "s.csv", frame(price=list("pqrpqr")))
    with fails("data.task=regression", "target 'price'", "binary"):
        priced(text).load()
    with fails("data.task=binary", "3 classes", "data.task=multiclass"):
        priced(text, task="binary").load()
    with fails("data.task=multiclass", "0.5", "data.task=regression"):
        priced(save(tmp_path, "f.csv"), task="multiclass").load()
    with fails("data.task=binary", "one class only", "'p'"):
        priced(save(tmp_path, "o.csv", frame(price="p")), task="binary").load()
    with fails("data.validation=", "one class only"):
        priced(save(tmp_path, "v.csv", frame(price=list("pqpqpq"))), task="binary", validation=["a"]).load()


def test_partitions_that_do_not_fit(tmp_path):
    for kind in ("by_label", "dirichlet"):
        with fails(f"data.partition={kind}", "data.task=regression", "data.partition=sorted"):
            Table("t.csv", partition=kind)
    with fails("data.partition=sorted", "clients already"):
        priced(save(tmp_path, "t.csv"), partition="sorted").load()
    path = save(tmp_path, "n.csv", frame().drop(columns="site"))
    with fails("data.clients=7", "6 rows"):
        priced(path, client=None, clients=7).load()
    with fails("data.validation=", "no named clients", "data.client"):
        priced(path, client=None, clients=2, validation=["a"]).load()


def test_validations_that_do_not_fit(tmp_path):
    for value in (-0.1, 1.0, 3.0):
        with fails(f"data.validation={value}", "less than 1"):
            Table("t.csv", validation=value)
    path = save(tmp_path, "t.csv", frame(site=["north", "south"] * 3))
    with fails("data.validation", "'noth'", "did you mean 'north'"):
        priced(path, validation=["noth"]).load()
    with fails("data.validation=", "every row is held out"):
        priced(path, validation=["north", "south"]).load()
    with fails("data.validation=most"):
        build(Table, {"path": path, "validation": "most"}, "data")
    with fails("data.path has no value"):
        build(Table, {"path": "???"}, "data")


def test_fingerprint_is_of_the_content(tmp_path):
    (tmp_path / "sub").mkdir()
    one, moved = save(tmp_path, "t.csv"), save(tmp_path / "sub", "other.csv")
    assert priced(one).fingerprint() == priced(moved).fingerprint() != priced(one, seed=1).fingerprint()
    save(tmp_path, "t.csv", frame(u=0))
    assert priced(one).fingerprint() != priced(moved).fingerprint()


# ---------------------------------------------------------------- Haxby

SHOWN = ["rest", "face", "house", "cat", "face", "house", "rest", "cat"]


@pytest.fixture
def offline(monkeypatch):
    """No test reaches the network: nilearn's downloads fail at once, as they do without one."""
    import requests

    def send(*args, **kwargs):
        raise requests.ConnectionError("no network in tests")

    monkeypatch.setattr(requests.Session, "send", send)


def scanned(root: Path, runs: dict[int, int]) -> Path:
    """A tree in nilearn's layout: tiny scans of subjects with so many runs each."""
    import nibabel

    rng, folder = np.random.default_rng(0), root / "haxby2001"
    folder.mkdir(parents=True)
    mask = np.zeros((4, 3, 2), dtype=np.uint8)
    mask[1:3] = 1
    nibabel.save(nibabel.Nifti1Image(mask, np.eye(4)), folder / "mask.nii.gz")
    for subject, count in runs.items():
        (folder / f"subj{subject}").mkdir()
        scan = rng.integers(0, 2000, (4, 3, 2, len(SHOWN) * count)).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(scan, np.eye(4)), folder / f"subj{subject}" / "bold.nii.gz")
        lines = [f"{what} {run}" for run in range(count) for what in SHOWN]
        (folder / f"subj{subject}" / "labels.txt").write_text("labels chunks\n" + "\n".join(lines) + "\n")
    return root


@pytest.fixture
def brains(tmp_path, offline):
    """Two subjects, the second with one run fewer."""
    return scanned(tmp_path / "nilearn", {1: 3, 5: 2})


def test_haxby_as_in_the_paper(tmp_path, offline):
    """All six subjects as conf/data/haxby.yaml has them: 59 training clients, the 12 runs of the last one held out."""
    root = scanned(tmp_path / "nilearn", {1: 12, 2: 12, 3: 12, 4: 12, 5: 11, 6: 12})
    data = prepare(compose(["data=haxby", f"data.root={root}"])).load()
    assert len(data.sizes) == 59
    assert len(data.y_val) == 12 * 4
    assert not any(name.startswith("subject6") for name in data.clients)


def haxby(root, **options) -> Haxby:
    return Haxby(str(root), **({"subjects": [1, 5]} | options))


def test_haxby_clients_are_runs(brains):
    import nibabel

    data = haxby(brains).load()
    assert data.clients == ("subject1_run0", "subject1_run1", "subject1_run2")
    assert data.sizes.tolist() == [4, 4, 4]
    assert data.x.dtype == np.float32
    assert data.x.shape == (12, 12)
    assert data.x_val.shape == (8, 12)
    assert data.y.dtype == np.int32
    assert data.y.tolist() == [0, 1, 0, 1] * 3
    assert data.classes == ("face", "house")
    assert data.task == "binary"
    # standardized over all volumes of the run, then the two categories are picked
    folder = brains / "haxby2001"
    inside = nibabel.load(folder / "mask.nii.gz").get_fdata() > 0
    raw = nibabel.load(folder / "subj1" / "bold.nii.gz").get_fdata()[inside].T[8:16]
    expected = ((raw - raw.mean(axis=0)) / raw.std(axis=0, ddof=1))[[1, 2, 4, 5]]
    np.testing.assert_allclose(data.x[4:8], expected, atol=1e-5)


def test_haxby_runs_in_any_order(brains):
    """Runs whose volumes alternate give the same clients as runs one after the other."""
    import nibabel

    whole = haxby(brains, subjects=[1]).load()
    folder = brains / "haxby2001" / "subj1"
    image = nibabel.load(folder / "bold.nii.gz")
    scan = np.asarray(image.dataobj)
    order = np.arange(24).reshape(3, 8).T.ravel()
    nibabel.save(nibabel.Nifti1Image(scan[..., order], np.eye(4)), folder / "bold.nii.gz")
    header, *lines = (folder / "labels.txt").read_text().splitlines()
    (folder / "labels.txt").write_text("\n".join([header, *(lines[k] for k in order)]) + "\n")
    mixed = haxby(brains, subjects=[1]).load()
    np.testing.assert_allclose(mixed.x, whole.x, atol=1e-6)
    np.testing.assert_array_equal(mixed.y, whole.y)


def test_haxby_validation(brains):
    assert haxby(brains, subjects=[1]).load().x_val is None
    runs = haxby(brains, subjects=[1], validation_runs=[2, 0]).load()
    assert runs.clients == ("subject1_run1",)
    assert len(runs.y_val) == 8
    both = haxby(brains, validation_runs=[2]).load()  # only subject 1 has a run 2
    assert len(both.clients) == 4
    assert len(both.y_val) == 4
    first = haxby(brains, validation_subjects=[1]).load()
    assert first.clients == ("subject5_run0", "subject5_run1")
    assert len(first.y_val) == 12
    assert haxby(brains, validation_subjects=[]).load().x_val is None
    assert haxby(brains, validation_subjects=[5], validation_runs=[0]).load().clients == (
        "subject1_run1",
        "subject1_run2",
    )


def test_haxby_other_categories(brains):
    data = haxby(brains, categories=["house", "cat"]).load()
    assert data.classes == ("cat", "house")
    assert data.y[:4].tolist() == [1, 0, 1, 0]


def test_haxby_cache(brains, monkeypatch):
    first = haxby(brains).load()

    def masked(*args):
        raise AssertionError("masked again")

    with monkeypatch.context() as patch:
        patch.setattr("fcorun.datasets.haxby._standardized", masked)
        np.testing.assert_array_equal(haxby(brains).load().x, first.x)
        os.utime(brains / "haxby2001" / "subj5" / "bold.nii.gz", ns=(1, 1))
        with pytest.raises(AssertionError, match="masked again"):
            haxby(brains).load()
    for kept in Path(os.environ["FCORUN_CACHE"], "haxby").iterdir():
        kept.write_bytes(kept.read_bytes()[:50])
    np.testing.assert_array_equal(haxby(brains).load().x, first.x)  # a damaged cache is made anew


def test_haxby_fingerprint_is_of_the_content(brains, tmp_path):
    before = haxby(brains).fingerprint()
    brains.rename(tmp_path / "moved")
    moved = tmp_path / "moved"
    assert haxby(moved).fingerprint() == before != haxby(moved, categories=["cat", "face"]).fingerprint()
    labels = moved / "haxby2001" / "subj1" / "labels.txt"
    labels.write_text(labels.read_text().replace("cat", "dog"))
    assert haxby(moved).fingerprint() != before


@pytest.mark.parametrize("name", ["subj5/bold.nii.gz", "mask.nii.gz"])
def test_haxby_damaged_scan(brains, name):
    file = brains / "haxby2001" / name
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"<html>not found</html>", b""):
        file.write_bytes(content)
        with fails("data.root", name, "download it anew"):
            haxby(brains).load()


def test_haxby_labels_that_do_not_fit(brains):
    file = brains / "haxby2001" / "subj5" / "labels.txt"
    text = file.read_text()
    file.write_text(text + "face 1\n")
    with fails("data.root", "subj5", "17", "16"):
        haxby(brains).load()
    for bad in ("", "labels\nface\n", text.replace("chunks", "run"), text + "face\n", text + "face one\n"):
        file.write_text(bad)
        with fails("data.root", "labels.txt"):
            haxby(brains).load()


def test_haxby_not_there(tmp_path, offline):
    with fails("data.root=", "subject 1, 6", "subj1-2010.01.14.tar.gz", "mask.nii.gz", "haxby2001", "ConnectionError"):
        Haxby(str(tmp_path / "new"), subjects=[6, 1]).load()
    assert not (tmp_path / "new").exists()


def test_haxby_half_there(brains):
    (brains / "haxby2001" / "subj5" / "bold.nii.gz").unlink()
    before = sorted(brains.rglob("*"))
    with fails("data.root=", "subject 5", "subj5-2010.01.14.tar.gz"):
        haxby(brains).fingerprint()
    assert sorted(brains.rglob("*")) == before


def test_haxby_downloads_through_nilearn(brains, monkeypatch):
    import nilearn.datasets

    asked, aside = [], brains / "aside"
    (brains / "haxby2001" / "subj5").rename(aside)

    def fetch_haxby(data_dir, subjects, **options):
        asked.append(subjects)
        aside.rename(Path(data_dir) / "haxby2001" / "subj5")

    monkeypatch.setattr(nilearn.datasets, "fetch_haxby", fetch_haxby)
    assert len(haxby(brains).load().y_val) == 8
    assert asked == [[5]]


def test_haxby_mistakes(brains):
    with fails("data.subjects", "subject 7", "valid: 1, 2"):
        Haxby(subjects=[1, 7])
    with fails("data.subjects", "empty"):
        Haxby(subjects=[])
    with fails("data.validation_subjects", "subject 6", "data.subjects="):
        Haxby(subjects=[1], validation_subjects=[6])
    for wrong in (["face"], ["face", "face"], ["face", "house", "cat"]):
        with fails("data.categories=", "two different"):
            Haxby(categories=wrong)
    with fails("data.categories", "'hous'", "did you mean 'house'"):
        haxby(brains, categories=["face", "hous"]).load()
    with fails("data.validation_runs", "run 3", "0, 1, 2"):
        haxby(brains, validation_runs=[3]).load()
    with fails("data.validation_subjects", "every run"):
        haxby(brains, validation_subjects=[1, 5]).load()


def test_haxby_real_slice(offline):
    if not REAL.is_dir():
        pytest.skip(f"NOT TESTED on real scans, {REAL} is missing: only on synthetic ones")
    data = Haxby(str(REAL), subjects=[1], validation_runs=[10, 11]).load()
    assert data.x.shape == (180, 530)
    assert data.x_val.shape == (36, 530)
    assert data.sizes.tolist() == [18] * 10
    assert data.clients[-1] == "subject1_run9"
    assert np.bincount(data.y).tolist() == [90, 90]
    # a linear rule learnt on ten runs tells faces from houses in the other two
    direction = data.x[data.y == 1].mean(axis=0) - data.x[data.y == 0].mean(axis=0)
    assert np.mean((data.x_val @ direction > 0) == (data.y_val == 1)) > 0.75
    with fails("data.root=", "subject 2", "cannot be downloaded"):
        Haxby(str(REAL), subjects=[1, 2]).load()
