"""Sparse rows: products, runs, scores and predictions equal those of the same rows as a dense table."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import fails, rows_of

from fcorun import (
    L1,
    Ditto,
    Experiment,
    FedAvg,
    FedAvgCoordinateDescent,
    FedDualAvg,
    FedMiD,
    GaussianPrivacy,
    LeastSquares,
    Logistic,
    Newton,
    from_arrays,
)
from fcorun.data.datasets.table import Table
from fcorun.data.rows import sparse_matrix
from fcorun.data.rows.sparse_matrix import SparseMatrix
from fcorun.data.rows.sparse_rows import compress_rows
from fcorun.data.tables import array_files
from fcorun.data.tables.readers import read_dataframe
from fcorun.experiment import requirements
from fcorun.methods.mirror_maps.mirror_map import Euclidean
from fcorun.methods.objectives.mlp import MLP
from fcorun.methods.problem.problem import Batch
from fcorun.methods.problem.row_clipping import RowClippedProblem
from fcorun.methods.problem.solver import gather_rows
from fcorun.runs import batch
from fcorun.runs.job import Watcher

pytestmark = pytest.mark.filterwarnings("ignore::fcorun.interface.api.progress.ExperimentWarning")
rng = np.random.default_rng(0)
DENSE = np.where(rng.random((60, 25)) < 0.15, rng.standard_normal((60, 25)), 0)
DENSE[[3, 17]] = 0
LABELS = np.array(["no", "yes"])[(DENSE @ rng.standard_normal(25) + 0.5 * rng.standard_normal(60) > 0).astype(int)]
NAMES = [f"f{j}" for j in range(25)]
CLIENTS = np.array([f"c{m}" for m in np.repeat([0, 1, 2, 3], [9, 13, 17, 21])])
SPARSE = sp.csr_array(DENSE)


def test_products_and_their_derivatives_are_those_of_dense_rows():
    w, u, index = rng.standard_normal((25, 3)), rng.standard_normal(60), np.array([[3, 5], [17, 59]])
    with jax.enable_x64(True):
        rows = compress_rows(SparseMatrix.from_scipy(SPARSE, "X"), np.float64)
        np.testing.assert_allclose(rows @ jnp.asarray(w), DENSE @ w, atol=1e-14)
        np.testing.assert_allclose(jnp.asarray(u) @ rows**2, u @ DENSE**2, atol=1e-14)
        np.testing.assert_allclose((rows * 2).mean(), 2 * DENSE.mean())
        gradient = jax.grad(lambda w: jnp.sin(rows @ w).sum())(jnp.asarray(w[:, 0]))
        np.testing.assert_allclose(gradient, np.cos(DENSE @ w[:, 0]) @ DENSE, atol=1e-13)
        assert rows[index].shape == (2, 2, 25)
        batch = jax.tree.map(lambda leaf: leaf[1], rows[index])
        np.testing.assert_allclose(batch @ jnp.asarray(w[:, 0]), DENSE[index[1]] @ w[:, 0], atol=1e-14)
        np.testing.assert_allclose(jnp.asarray(u[:2]) @ batch, u[:2] @ DENSE[index[1]], atol=1e-14)
        bounds = np.array([0, 4, 20, 60])
        joined = compress_rows(SparseMatrix.from_scipy(SPARSE, "X"), np.float64, bounds).take_client(
            jnp.array([3, 5, -1, 59])
        )
        np.testing.assert_allclose(
            joined @ jnp.asarray(w), [*DENSE[[3, 5]] @ w, np.zeros(3), DENSE[59] @ w], atol=1e-14
        )
        zeros = compress_rows(SparseMatrix(sp.csr_array((4, 25))), np.float64)
        assert not (zeros @ jnp.asarray(w)).any()
        assert not (zeros[np.array([1])] @ jnp.asarray(w)).any()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other devices have memory of their own")
def test_rounds_and_solvers_share_the_nonzeros_on_a_cpu_with_the_host():
    data = from_arrays(SPARSE.astype(np.float32), LABELS, CLIENTS).load()
    x: Any = data.train.x
    of_rounds = compress_rows(x, np.float32)
    with jax.enable_x64(True):
        of_solver: Any = gather_rows(data, "examples").x
        csr = compress_rows(x.astype(np.float64), np.float64).to_numpy()
    for rows in (of_rounds, of_solver):
        for device, host in ((rows.values, x.csr.data), (rows.columns, x.csr.indices), (rows.row, x.row_of_nonzero)):
            assert np.shares_memory(np.asarray(device), host)
    np.testing.assert_array_equal(csr.toarray(), DENSE.astype(np.float32)[data.train.row])


def test_many_columns_are_not_made_dense_at_once(monkeypatch):
    monkeypatch.setattr(sparse_matrix, "_FEW_NUMBERS", 10)
    x = SparseMatrix.from_scipy(SPARSE, "X")
    np.testing.assert_array_equal(x[:, [3]], DENSE[:, [3]])
    with fails("60 rows of 10 features as a dense matrix"):
        x[:, np.arange(10)]


def both(folder, x, y, *, data=None, **experiment) -> tuple[Any, Any]:
    """Return the records of a run on sparse rows and on the same dense rows."""
    records = []
    for name, features in (("sparse", x), ("dense", x.toarray())):
        rows = from_arrays(features, y, CLIENTS, seed=1, **data or {})
        records.append(Experiment(data=rows, precision="float64", **experiment).run(folder / name, watch=Watcher()))
    return records[0], records[1]


ROW_PRIVACY = GaussianPrivacy(unit="row", noise_by="clients", noise=0.5, clip=0.1, delta=1e-3)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        (FedDualAvg(), {"batch_size": 4, "rounds": 4}),
        (Ditto(client_lr=0.1), {"batch_size": 5, "rounds": 2}),
        (
            FedMiD(client_lr=0.1),
            {"batch_size": None, "local_epochs": 2, "rounds": 2, "privacy": ROW_PRIVACY},
        ),
    ],
)
def test_runs_equal_those_on_dense_rows(tmp_path, algorithm, options):
    sparse, dense = both(tmp_path, SPARSE, LABELS, algorithm=algorithm, regularizer=L1(0.01), **options)
    for name, values in dense.solution.items():
        np.testing.assert_allclose(sparse.solution[name], values, atol=1e-12)
    np.testing.assert_allclose(rows_of(sparse), rows_of(dense), atol=1e-12)
    for file in ("scores.csv", "predictions.csv"):
        one, other = (pd.read_csv(record.folder / file) for record in (sparse, dense))
        pd.testing.assert_frame_equal(one, other, rtol=1e-12, atol=1e-12)
        assert len(one) > 1
    new = sp.csr_array(DENSE[:5])
    np.testing.assert_allclose(
        sparse.predict(new, CLIENTS[:5]).probability_yes,
        dense.predict(DENSE[:5], CLIENTS[:5]).probability_yes,
        rtol=1e-12,
    )
    np.testing.assert_allclose(
        sparse.estimator().predict_proba(sparse.encode(new)),
        dense.estimator().predict_proba(dense.encode(DENSE[:5])),
        rtol=1e-12,
    )
    with fails("rows has 24 features", "the record has 25"):
        sparse.predict(new[:, :24])


def test_offsets_of_new_sparse_rows_are_added_to_their_predictions(tmp_path):
    options = {"task": "regression", "offset": np.arange(60) / 60}
    rows = from_arrays(SPARSE, DENSE[:, 0], CLIENTS, **options)
    record = Experiment(data=rows, algorithm=FedAvg(client_lr=0.1), precision="float64", rounds=2).run(tmp_path)
    offset = np.arange(5.0)
    expected = record.predict(DENSE[:5], offset=offset)
    predictions = record.predict(SPARSE[:5], offset=offset)
    np.testing.assert_allclose(predictions.prediction, expected.prediction, rtol=1e-12)
    with fails("rows lacks 'offset', the offset of the record: give it, 0 for none"):
        record.predict(SPARSE[:5])


def test_scaled_counts_of_several_classes_equal_dense_ones(tmp_path):
    classes = np.array(["a", "b", "c"])[np.abs(DENSE).argmax(axis=1) % 3]
    options = {"data": {"standardize": "scale"}, "objective": Logistic(), "algorithm": FedAvg(client_lr=0.1)}
    sparse, dense = both(tmp_path, SPARSE, classes, rounds=3, batch_size=4, **options)
    np.testing.assert_allclose(sparse.solution["weights"], dense.solution["weights"], atol=1e-12)
    assert "subtracts no means" in " ".join(sparse.summary["warnings"])
    assert sparse.summary["data"]["standardized"]["mean_"] == [0] * 25
    np.testing.assert_allclose(sparse.predict(SPARSE).probability_a, dense.predict(DENSE).probability_a)


def test_deviations_of_a_record_are_taken_without_its_means(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"precision": "float64", "rounds": 1, "algorithm": FedAvg(client_lr=0.1)}
    for standardize in ("pooled", "scale"):
        rows = from_arrays(DENSE + 3, LABELS, CLIENTS, seed=1, standardize=standardize)
        Experiment(data=rows, **options).run(tmp_path / standardize)
    for record in ("pooled", "scale"):
        scaled = from_arrays(SPARSE, LABELS, CLIENTS, seed=1, standardize="scale", scaling=record).load()
        train = from_arrays(DENSE + 3, LABELS, CLIENTS, seed=1).load().train.x
        np.testing.assert_allclose(scaled.train.x.csr.toarray(), (train - 3) / train.std(axis=0), atol=1e-12)
    with fails("data.scaling=scale", "has no means", "give data.standardize=scale"):
        from_arrays(DENSE, LABELS, CLIENTS, standardize="pooled", scaling="scale").load()


def write_wide_libsvm(path, n_rows=500):
    """Write rows of 40,001 features with three nonzeros each, and return them as a sparse matrix, with their labels."""
    columns = np.sort(rng.choice(40_000, (n_rows, 3), replace=False), axis=1)
    columns[0, 2] = 40_000
    values = rng.standard_normal((n_rows, 3)).round(3)
    labels = np.where(values.sum(axis=1) > 0, 1, -1)
    lines = []
    for label, row, numbers in zip(labels, columns, values, strict=True):
        lines.append(" ".join([str(label), *(f"{j + 1}:{v}" for j, v in zip(row, numbers, strict=True))]))
    path.write_text("\n".join(lines))
    rows = np.repeat(np.arange(n_rows), 3)
    return sp.csr_array((values.ravel(), (rows, columns.ravel())), shape=(n_rows, 40_001)), labels


def test_wide_libsvm_file_stays_sparse(tmp_path):
    expected, labels = write_wide_libsvm(tmp_path / "t.svm")
    data = Table(str(tmp_path / "t.svm"), task="binary", clients=3, validation=0.0).load()
    assert data.train.why_not_dense
    assert data.train.x.nbytes < 30_000
    order = data.train.row
    assert (data.train.x.csr != expected[order]).nnz == 0
    np.testing.assert_array_equal(data.train.y, labels[order] == 1)


def test_libsvm_rows_are_dense_or_sparse_by_choice(tmp_path, monkeypatch):
    path = tmp_path / "t.svm"
    path.write_text("1 1:2 30:1\n-1 2:1\n1 1:3\n")
    table = Table(str(path), task="binary", clients=1, validation=0.0)
    dense = table.load().train.x
    assert dense.sum() == 7
    sparse = replace(table, sparse=True).load().train.x
    np.testing.assert_array_equal(sparse.csr.toarray(), dense)
    monkeypatch.setattr(array_files, "_SMALL_NUMBERS", 10)
    assert table.load().train.why_not_dense
    with fails("subtracts means", "rows that fit into memory can be dense: data.sparse=false of a LIBSVM file"):
        replace(table, standardize="pooled").load()
    np.testing.assert_array_equal(replace(table, sparse=False).load().train.x, dense)
    assert replace(table, sparse=False).fingerprint() != table.fingerprint()  # the cure of a record is another run
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    with fails("data.sparse=false is for .libsvm", "the file is .csv: leave data.sparse out"):
        Table(str(tmp_path / "t.csv"), target="y", sparse=False).load()


def write_triples(path, matrix=SPARSE, **columns):
    coo = matrix.tocoo()
    order = rng.permutation(coo.nnz)
    triples = {"row": coo.row[order], "column": coo.col[order], "value": coo.data[order]}
    pd.DataFrame(triples | columns).to_parquet(path)


def test_triples_are_the_features_of_a_table(tmp_path):
    table = pd.DataFrame({"label": LABELS, "hospital": CLIENTS, "w": np.arange(60) % 3 + 1.0, "name": np.arange(60)})
    table["part"] = np.where(np.arange(60) % 4, "train", "validation")
    table.to_csv(tmp_path / "rows.csv", index=False)
    write_triples(tmp_path / "x.parquet")
    options = {"target": "label", "client": "hospital", "weight": "w", "weight_kind": "sampling", "split": "part"}
    path = str(tmp_path / "rows.csv")
    table = Table(path, task="binary", triples=str(tmp_path / "x.parquet"), **options)
    data = table.load()
    assert data.train.why_not_dense
    for rows in data.splits.values():
        assert (rows.x.csr != SPARSE[rows.row]).nnz == 0
        np.testing.assert_array_equal(rows.y, LABELS[rows.row] == "yes")
    assert data.clients == ("c0", "c1", "c2", "c3")
    np.testing.assert_array_equal(data.train.weight, data.train.row % 3 + 1)
    before = table.fingerprint()
    write_triples(tmp_path / "x.parquet", 2 * SPARSE)
    assert table.fingerprint() != before
    with fails("x.parquet holds triples", "a table with a line for each row, and data.triples="):
        read_dataframe(str(tmp_path / "x.parquet"))


def test_lines_of_a_table_are_matched_by_its_column_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    features = np.where(DENSE.any(axis=1, keepdims=True), DENSE, 1.0)
    numbers = np.arange(60) * 7 + 1000
    coo = sp.coo_array(features)
    triples = pd.DataFrame({"row": numbers[coo.row], "column": coo.col, "value": coo.data})
    triples.to_parquet("x.parquet")
    lines = rng.permutation(60)
    lines = lines[np.argsort(CLIENTS[lines], kind="stable")]
    table = pd.DataFrame({"label": LABELS, "hospital": CLIENTS, "row": numbers}).iloc[lines]
    options = {"target": "label", "client": "hospital", "task": "binary", "validation": 0.0, "triples": "x.parquet"}
    table.to_csv("rows.csv", index=False)
    data = Table("rows.csv", **options).load()
    np.testing.assert_array_equal(data.train.x.csr.toarray(), features[lines])
    np.testing.assert_array_equal(data.train.y, LABELS[lines] == "yes")
    refused = [
        (table[table.row != 1014], ["line ", "has the row 1014", "the column 'row' of the table lacks"]),
        (table.replace({"row": {1014: 1007}}), ["rows.csv: the column 'row'", "has 1007 twice"]),
        (
            pd.concat([table, table[:1].assign(row=5)]),
            ["has 5, of which there are no triples", "a triple with the value 0"],
        ),
        (table.assign(row=table.row + 0.5), ["has 1", "in row 1: give whole numbers", "counted from 0"]),
        (table.assign(row=["", *["a"] * 59]), ["has nan in row 1: give whole numbers"]),
    ]
    for other, words in refused:
        other.to_csv("rows.csv", index=False)
        with fails(*words):
            Table("rows.csv", **options).load()


BAD_TRIPLES = {
    "row 60": ({"row": 60}, ["data.triples=", "line 1 has the row 60", "from 0 to 59"]),
    "negative": ({"column": -1}, ["line 1 has the column -1"]),
    "large": ({"column": 2**31}, ["line 1 has the column 2147483648"]),
    "twice": ({"row": 1, "column": 1}, ["the same row and column twice"]),
    "nan": ({"value": np.nan}, ["the column 'value' has gaps"]),
    "infinite": ({"value": np.inf}, ["NaN or infinite"]),
    "fractions": ({"row": 0.5}, ["the column 'row' has gaps, or is float64"]),
    "other": ({"site": 1}, ["other columns than row, column and value"]),
}


@pytest.mark.parametrize("case", BAD_TRIPLES)
def test_bad_triples_are_refused(tmp_path, case):
    columns, words = BAD_TRIPLES[case]
    pd.DataFrame({"label": DENSE[:, 0]}).to_csv(tmp_path / "rows.csv", index=False)
    write_triples(tmp_path / "x.parquet", **columns)
    with fails(*words):
        Table(str(tmp_path / "rows.csv"), target="label", triples=str(tmp_path / "x.parquet")).load()


@pytest.mark.parametrize("option", [{"only": ["age"]}, {"splines": {"age": 3}}, {"missing": "mean"}])
def test_options_on_columns_of_features_are_refused_with_triples(option):
    with fails(f"data.{next(iter(option))}=", "all features are those of data.triples=x.parquet"):
        Table("rows.csv", target="label", triples="x.parquet", **option)


def test_clipped_gradients_of_sparse_rows_take_no_memory_of_dense_ones():
    n, d = 50, 40_000
    rows = compress_rows(SparseMatrix(sp.random_array((n, d), density=1e-4, format="csr", rng=rng)), np.float32)
    problem = RowClippedProblem(LeastSquares(), L1(0.1), Euclidean(), {"weights": (d,), "bias": ()}, clip=0.1)
    batch = Batch(rows[jnp.arange(n)], jnp.ones(n), jnp.full(n, 1 / n))
    program = jax.jit(lambda w: problem.gradient(w, batch)).lower(problem.zeros(np.float32)).compile()
    memory: Any = program.memory_analysis()
    assert memory.temp_size_in_bytes < 4 * n * d / 4


REFUSED = {
    "splines": ({"feature_names": NAMES, "splines": {"f1": 3}}, {}, ["makes curves of dense columns", "are sparse"]),
    "standardize": ({"standardize": "pooled"}, {}, ["subtracts means", 'standardize="scale"']),
    "per_client": ({"standardize": "per_client"}, {}, ["subtracts means", 'standardize="scale"']),
    "mlp": ({}, {"objective": MLP()}, ["are sparse", "is no linear model"]),
    "columns": ({}, {"algorithm": FedAvgCoordinateDescent()}, ["are sparse", "single columns"]),
    "bounds": (
        {"task": "regression"},
        {"objective": LeastSquares(client_intercepts=True), "algorithm": FedDualAvg()},
        ["are sparse", "takes bounds on losses that compare a client's rows: give", "client_lr"],
    ),
    "relax": ({}, {"relax": 0.0}, ["are sparse", "relax"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_needs_dense_rows_is_refused(tmp_path, case):
    data, options, words = REFUSED[case]
    options = {"algorithm": FedDualAvg(client_lr=0.1), "regularizer": L1(0.1), **options}
    with fails(*words, "rows that fit into memory can be dense", "X.toarray()"):
        y = DENSE[:, 0] if "task" in data else LABELS
        Experiment(data=from_arrays(SPARSE, y, CLIENTS, **data), rounds=1, **options).run(tmp_path)


def test_what_exceeds_memory_or_takes_all_rows_at_once_is_refused(tmp_path, monkeypatch):
    rows = from_arrays(SPARSE, LABELS, CLIENTS, validation=0.0)
    monkeypatch.setattr(requirements, "MAX_PARAMETERS", 25)
    with fails("algorithm=Newton", "sends Hessians, of at most 25 parameters", "has 26: choose another algorithm"):
        Experiment(data=rows, algorithm=Newton(), regularizer=L1(0.1), rounds=1).run(tmp_path / "newton")
    record = Experiment(data=rows, algorithm=FedAvg(client_lr=0.1), rounds=1).run(tmp_path / "fedavg")
    with fails("intervals need dense rows, and its rows are sparse", "X.toarray()"):
        record.infer(data=rows)
    monkeypatch.setattr(batch, "free_device_memory", lambda: 1000)
    with fails(
        "a run on 4 clients with 26 parameters needs at least", "are free; give fewer rows, features or clients"
    ):
        Experiment(data=rows, algorithm=Ditto(client_lr=0.1), rounds=1).run(tmp_path / "ditto")


def test_entries_out_of_order_twice_or_not_finite_are_refused():
    values, columns, bounds = np.ones(3), np.array([0, 2, 1]), np.array([0, 1, 3])
    with fails("X has columns out of order in row 2", "sort_indices()"):
        from_arrays(sp.csr_array((values, columns, bounds), shape=(2, 3)), [0, 1])
    with fails("X has column 1 (from 0) twice in row 2", "sum_duplicates()"):
        from_arrays(sp.csr_array((values, np.array([0, 1, 1]), bounds), shape=(2, 3)), [0, 1])
    with fails("X has the same row and column twice", "sum_duplicates()"):
        from_arrays(sp.coo_array((values, ([0, 1, 1], [0, 1, 1])), shape=(2, 3)), [0, 1])
    with fails("X has a nonzero that is NaN or infinite, in row 2, column 1 (from 0)"):
        from_arrays(sp.csr_array([[0.0, 1.0], [0.0, np.nan]]), [0, 1])
    with fails("at most 2,147,483,647"):
        from_arrays(sp.coo_array(([1.0], ([0], [2**31])), shape=(1, 2**31 + 1)), [0])
    with fails("sparse", "60 rows of 25 features as a dense matrix"):
        np.asarray(SparseMatrix(SPARSE))
