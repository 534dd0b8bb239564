"""Sparse rows that stay on disk equal the same rows read into memory."""

import bz2
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import fails

from fcorun import Record, compose, run
from fcorun.data.datasets.table import Table
from fcorun.data.rows import disk_matrix
from fcorun.data.rows.sparse_disk_matrix import SparseDiskMatrix
from fcorun.data.tables import array_files, triples
from fcorun.engine.segments import row_fetching

N_ROWS = 120
rng = np.random.default_rng(0)
FEATURES = np.where(rng.random((N_ROWS, 9)) < 0.3, rng.standard_normal((N_ROWS, 9)), 0).round(3)
FEATURES[[5, 60]] = 0
FEATURES[7] = 1  # the widest row
LABELS = np.where(FEATURES[:, 0] + FEATURES[:, 8] + 0.3 * rng.standard_normal(N_ROWS) > 0, 1, -1)
LIBSVM = ["data.path=rows.svm", "data.sparse=true", "data.clients=5"]
TRIPLES = ["data.path=rows.csv", "data.triples=x.parquet", "data.target=y", "data.client=site", "data.offset=e"]
SGD = ["batch_size=7", "algo.client_lr=0.05"]
COMPOSITE = ["algo.server_lr=1", "reg.strength=0.01"]


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Write the rows as a LIBSVM file, and as triples beside a table; blocks have a few rows."""
    monkeypatch.chdir(tmp_path)
    for module in (disk_matrix, array_files, triples):
        monkeypatch.setattr(module, "READ_BYTES", 300)
    monkeypatch.setattr(row_fetching, "BLOCK_BYTES", 50 * 18 * 8)
    lines = [[f"{j + 1}:{x}" for j, x in enumerate(row) if x] for row in FEATURES]
    text = [" ".join([str(label), *line]) for label, line in zip(LABELS, lines, strict=True)]
    (tmp_path / "rows.svm").write_text("\n".join(text))
    coo = sp.csr_array(FEATURES).tocoo()
    pd.DataFrame({"row": coo.row, "column": coo.col, "value": coo.data}).to_parquet("x.parquet")
    table = pd.DataFrame({"y": LABELS, "site": np.arange(N_ROWS) % 7 // 2, "e": np.arange(N_ROWS) / N_ROWS})
    table.to_csv("rows.csv", index=False)


def run_in(folder: str, *overrides: str) -> Record:
    given = ["data=table", "data.task=binary", "data.test=0.1", "precision=float64", "rounds=3"]
    return run(compose([*given, *overrides]), folder)


@pytest.mark.parametrize(
    "overrides",
    [
        [*LIBSVM, "algo=feddualavg", *SGD, *COMPOSITE, "data.standardize=scale"],
        [*TRIPLES, "algo=fedmid", *SGD, *COMPOSITE, "clients_per_round=2", "eval_every=2"],
        [*LIBSVM, "algo=fedprox", "algo.mu=1"],
        [*TRIPLES, "algo=scaffold", *SGD, "seed=3"],
    ],
    ids=lambda overrides: overrides[0] + "-" + next(name for name in overrides if name.startswith("algo=")),
)
def test_runs_equal_those_of_rows_in_memory(overrides):
    memory = run_in("memory", *overrides, "data.resident=true")
    disk = run_in("disk", *overrides, "data.resident=false")
    assert any("stay on disk" in text for text in disk.summary["warnings"])
    for name, values in memory.solution.items():
        np.testing.assert_allclose(disk.solution[name], values, rtol=1e-12, atol=1e-12)
    columns = [name for name in disk.metrics if name != "seconds"]
    np.testing.assert_allclose(disk.metrics[columns], memory.metrics[columns], rtol=1e-12)
    assert disk.status["identity"] == memory.status["identity"]
    for file in ("scores.csv", "predictions.csv"):
        one, other = (pd.read_csv(record.folder / file).select_dtypes("number") for record in (disk, memory))
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("first", [0, 1])
def test_rows_are_those_of_the_file_in_any_order(first):
    text = [f"1 {' '.join(f'{j + first}:{x}' for j, x in enumerate(row) if x)}" for row in FEATURES]
    with open("rows.svm", "w") as file:
        file.write("\n".join(["1 0:1" if first == 0 else "1", *text, ""]))
    table = Table("rows.svm", clients=3, validation=0.0, resident=False)
    for _ in range(2):  # written, and from the cache
        data = table.load()
        x: Any = data.train.x
        assert data.features.first_index == first
        for rows in (slice(None), slice(3, 90, 2), [5, 5, 61, 0], data.train.row > 50, []):
            expected = np.vstack([np.eye(9)[0] * (first == 0), FEATURES])[data.train.row[rows]]
            np.testing.assert_array_equal(x[rows].read().csr.toarray(), expected)
            assert x[rows].nbytes == 12 * np.count_nonzero(expected)
    mean, squares = x.moments(data.train.client)
    dense = x.read().csr.toarray()
    np.testing.assert_allclose([mean, squares[0]], [dense.mean(axis=0), len(x) * dense.var(axis=0)], atol=1e-12)
    with fails("the rows are sparse", "as a dense matrix"):
        np.asarray(x)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress])
def test_every_line_is_one_row_also_of_compressed_files_and_of_lines_longer_than_a_block(compress, monkeypatch):
    text = Path("rows.svm").read_bytes()
    file = Path({bytes: "rows.svm", gzip.compress: "rows.svm.gz", bz2.compress: "rows.svm.bz2"}[compress])
    file.write_bytes(compress(text))
    monkeypatch.setattr(array_files, "READ_BYTES", len(max(text.splitlines(), key=len)) // 2)
    x, y, _ = array_files.read_libsvm(file, file.name, resident=False)
    np.testing.assert_array_equal(x.read().csr.toarray(), FEATURES)
    np.testing.assert_array_equal(y, LABELS)
    monkeypatch.setattr(array_files, "free_memory_for_rows", lambda: 0)
    x, _, _ = array_files.read_libsvm(file, file.name, resident="auto")
    assert isinstance(x, SparseDiskMatrix) == (compress is bytes)  # nobody knows the length of compressed text


TRIPLES_OF_ROWS = pd.DataFrame({"row": np.arange(N_ROWS), "column": 3, "value": 1.0})


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (TRIPLES_OF_ROWS[::-1], ["read in order", "line 2 has row 118, column 3 after", "`data.resident=true`"]),
        (TRIPLES_OF_ROWS.replace({"row": {70: 69}}), ["line 71 has row 69", "sort the file by row and column"]),
        (TRIPLES_OF_ROWS.assign(row=TRIPLES_OF_ROWS.row + 1), ["line 120 has the row 120: give numbers from 0 to 119"]),
        (TRIPLES_OF_ROWS.replace({"value": {1.0: np.inf}}), ["line 1 has a value that is infinite"]),
    ],
)
def test_triples_that_cannot_stay_on_disk_are_refused(frame, words):
    frame.to_parquet("x.parquet")
    with fails("data.triples=x.parquet", *[word.replace("`", "") for word in words]):
        Table("rows.csv", target="y", triples="x.parquet", resident=False).load()


def test_lines_of_a_table_are_matched_on_disk():
    order = rng.permutation(N_ROWS)
    table = pd.DataFrame({"y": LABELS, "row": np.arange(N_ROWS) * 2})
    table.iloc[order].to_csv("rows.csv", index=False)
    frame = TRIPLES_OF_ROWS.assign(row=np.arange(N_ROWS) * 2, value=np.arange(N_ROWS) + 1.0)
    frame.to_parquet("x.parquet")
    options = {"target": "y", "triples": "x.parquet", "clients": 1, "validation": 0.0, "resident": False}
    data = Table("rows.csv", **options).load()
    np.testing.assert_array_equal(data.train.x.read().csr.toarray()[:, 3], order[data.train.row] + 1)
    frame[:-1].to_parquet("x.parquet")
    with fails("the column 'row'", "has 238, of which there are no triples"):
        Table("rows.csv", **options).load()
