"""Formats of tables."""

import bz2
import gzip
import re
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from helpers import fails, not_none
from pyarrow import parquet
from table_files import CLIENT, SORTED, X, Y, frame, price_table, save

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import load_dataset
from fcorun.data.datasets.table import Table
from fcorun.data.tables.readers import read_dataframe

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet", "t.csv.gz", "t.tsv.bz2", "T.CSV"])
def test_named_columns_round_trip(tmp_path, name):
    data = price_table(save(tmp_path, name)).load()
    np.testing.assert_array_equal(data.train.x, X[SORTED])
    np.testing.assert_array_equal(data.train.y, Y[SORTED])
    assert data.train.x.dtype == np.float64
    assert data.train.offsets.tolist() == [0, 3, 6]
    assert data.clients == ("a", "b")
    assert data.features.names == ("u", "v", "w")
    assert data.validation is None
    assert data.task == "regression"


def test_npz_round_trip(tmp_path):
    is_validation = np.array([False, False, True, False, False, True])
    np.savez(tmp_path / "t.npz", X=X.astype(np.float32), y=Y, client=CLIENT, validation=is_validation)
    data = Table(str(tmp_path / "t.npz")).load()
    np.testing.assert_array_equal(data.train.x, X[[1, 3, 0, 4]])
    np.testing.assert_array_equal(not_none(data.validation).y, Y[[5, 2]])
    np.testing.assert_array_equal(not_none(data.validation).x, X[[5, 2]])
    assert not_none(data.validation_offsets).tolist() == [0, 1, 2]
    assert data.train.x.dtype == np.float32
    assert data.train.sizes.tolist() == [2, 2]
    assert data.clients == ("a", "b")
    with fails("data.validation=0.5", "marks its validation rows"):
        Table(str(tmp_path / "t.npz"), validation=0.5).load()


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"client": CLIENT[:2]}, f"client has shape (2,); X has {len(X)} rows, make them agree"),
        ({"client": "a"}, f"client has shape (); X has {len(X)} rows, make them agree"),
        ({"client": np.zeros(len(X), "V8")}, "client has the type |V8; save it as numbers or text"),
        ({"X": X + 1j}, "X must be a matrix of numbers; it is 2-dimensional complex128"),
    ],
)
def test_new_rows_whose_arrays_do_not_fit_are_refused(arrays, sentence):
    np.savez("new.npz", **{"X": X, **arrays})
    with fails(f"new.npz: {sentence}"):
        read_dataframe("new.npz")


def test_a_single_array_is_no_npz():
    np.save("new.npy", X)
    Path("new.npy").rename("new.npz")
    with fails("new.npz: cannot be read as .npz (it holds a single array)"):
        read_dataframe("new.npz")


def test_npz_with_bytes_as_text(tmp_path):
    np.savez(tmp_path / "t.npz", X=X, y=np.array([b"p", b"q"] * 3), client=np.array([b"a", b"a", b"b"] * 2))
    data = Table(str(tmp_path / "t.npz"), task="binary", validation=["b"]).load()
    assert data.classes == ("p", "q")
    assert data.clients == ("a",)


def test_only_training_rows_of_an_npz_without_clients_are_assigned(tmp_path):
    is_validation = np.arange(6) < 2
    np.savez_compressed(tmp_path / "t.npz", X=X, y=Y, validation=is_validation)
    data = Table(str(tmp_path / "t.npz"), clients=4, standardize="per_client").load()
    assert data.train.sizes.tolist() == [1, 1, 1, 1]
    assert sorted(data.train.y) == [2, 3, 4, 5]
    assert not_none(data.validation).y.tolist() == [0.5, 1]
    assert data.validation_offsets is None
    assert (data.train.x == 0).all()  # one row a client is constant


@pytest.mark.parametrize("name", ["t.libsvm", "t.svm", "t.svmlight", "t.txt", "t.svm.gz", "t.svm.BZ2"])
@pytest.mark.parametrize("zero_based", [True, False])
def test_libsvm_is_read_as_by_scikit_learn(tmp_path, name, zero_based):
    from sklearn.datasets import dump_svmlight_file, load_svmlight_file

    path, plain = tmp_path / name, tmp_path / "plain"
    dump_svmlight_file(X, Y, str(plain), zero_based=zero_based, comment="a comment")
    compress = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix.lower(), bytes)
    path.write_bytes(compress(plain.read_bytes()))
    expected, labels = load_svmlight_file(str(plain))
    data = Table(str(path), partition="sorted", clients=2, validation=0.0).load()
    np.testing.assert_array_equal(data.train.x, expected.toarray().astype(np.float32))
    np.testing.assert_array_equal(data.train.y, labels)
    assert data.train.x.dtype == np.float32
    assert data.train.sizes.tolist() == [3, 3]


def test_libsvm_has_all_digits_of_its_numbers(tmp_path):
    (tmp_path / "t.svm").write_text("1 1:0.1 2:16777217\n2 1:1e-300 2:0.333333333333\n")
    x = Table(str(tmp_path / "t.svm"), clients=1, validation=0.0).load().train.x
    assert x.dtype == np.float64
    assert x.tolist() == [[0.1, 16777217], [1e-300, 0.333333333333]]


def test_libsvm_may_have_comments_blank_lines_and_qid(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes(b"# a comment\r\n+1 1:0.5  3:2e1 # another\r\n\r\n-1\r\n+1 qid:7\t2:-4 \r\n")
    data = Table(str(path), task="binary", clients=1, validation=0.0).load()
    rows = sorted(zip(data.train.y.tolist(), data.train.x.tolist(), strict=True))
    assert rows == [(0, [0, 0, 0]), (1, [0, -4, 0]), (1, [0.5, 0, 20])]
    assert data.classes == (-1, 1)


@pytest.mark.parametrize("line", ["1 1:2 three", "1 2 3:4", "a 1:2", "1,2 1:3", "1 -1:3", "1 1.5:3"])
def test_malformed_libsvm_is_refused(tmp_path, line):
    path = tmp_path / "t.svm"
    path.write_text(f"1 1:2\n{line}\n")
    with fails("data.path=", "cannot be read as .svm"):
        Table(str(path)).load()


def test_libsvm_of_too_many_features_is_refused(tmp_path):
    path = tmp_path / "t.svm"
    path.write_text("1 1:2\n0 2000000000:1\n")
    with fails("data.path=", "2,000,000,000 features", "16 GB", "keep at most"):
        Table(str(path)).load()
    path.write_text("1 1:2\n0 3000000000:1\n")
    with fails("data.path=", "2,147,483,647", "fewer features"):
        Table(str(path)).load()


def test_integers_booleans_and_nullable_numbers_are_features(tmp_path):
    table = frame(u=[1, 2, 3, 4, 5, 6], v=[True, False] * 3, w=pd.array([1, 2, 3, 4, 5, 6], dtype="Int64"))
    data = price_table(save(tmp_path, "t.parquet", table)).load()
    np.testing.assert_array_equal(data.train.x[0], [2, 0, 2])
    data = price_table(save(tmp_path, "b.csv", frame(u=table.v, v=table.v, w=table.v))).load()
    assert data.train.x.dtype == np.int8
    assert data.train.x.max() == 1


@pytest.mark.slow
def test_wide_tables(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((300, 2000)).astype(np.float32)).assign(price=1.0)
    path = save(tmp_path, "t.csv", table)
    assert Table(path, target="price").load().train.x.shape == (240, 2000)
    with fails("data.target=pricy", "'price'"):
        Table(path, target="pricy").load()


def test_a_wide_table_and_a_long_one_are_told_before_they_are_read(tmp_path, monkeypatch, capsys):
    from fcorun.data.tables import array_files

    advice = "which may take minutes; a file of fewer rows or columns takes less"
    path = save(tmp_path, "t.parquet")
    price_table(path).load()
    assert capsys.readouterr().err == ""
    for limit, size in (("_MANY_CELLS", "6 rows of 5 columns"), ("_MANY_COLUMNS", "6 rows of 5 columns")):
        with monkeypatch.context() as patch:
            patch.setattr(array_files, limit, 4)
            for resident in (True, False):
                price_table(path, resident=resident, keep=["site"], client=None, clients=2).load()
                assert capsys.readouterr().err == f"data.path={path}: reading {size}, {advice}\n"
    monkeypatch.setattr(array_files, "_MANY_CHARACTERS", 4)
    path = save(tmp_path, "t.csv")
    price_table(path).load()
    assert capsys.readouterr().err == f"data.path={path}: reading 0.0 GB, {advice}\n"


def test_a_parquet_beyond_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = save(tmp_path, "t.parquet", frame(u=np.arange(6, dtype=np.float32)))
    table = price_table(path, resident=True)
    assert table.memory_needed()[0] == 6 * (4 + 8 + 8 + 8 + 8)
    assert price_table(path, resident=False).memory_needed()[0] == 6 * (58 + 8)
    monkeypatch.setattr("fcorun.data.datasets.dataset.free_host_memory", lambda: 100)
    monkeypatch.setattr(Table, "load", lambda self: pytest.fail("it was read"))
    with fails(f"data.path={path} needs at least", "are free; give fewer rows, features or clients, or memory=GIB"):
        load_dataset(table, "fingerprint", None, 0, 1)


def test_the_first_sheet_of_an_xlsx_is_read(tmp_path):
    pytest.importorskip("openpyxl", reason="NOT TESTED: .xlsx needs openpyxl, pip install 'fcorun[xlsx]'")
    path = tmp_path / "t.xlsx"
    frame().to_excel(path, index=False)
    data = price_table(str(path)).load()
    np.testing.assert_array_equal(data.train.x, X[SORTED])
    assert (data.features.names, data.clients, data.warnings) == (("u", "v", "w"), ("a", "b"), ())
    with pd.ExcelWriter(path) as book:
        frame().to_excel(book, sheet_name="visits", index=False)
        frame(u=0).to_excel(book, sheet_name="notes", index=False)
    data = price_table(str(path)).load()
    np.testing.assert_array_equal(data.train.x, X[SORTED])
    assert data.warnings == (
        f"data.path={path}: of 2 sheets the first, 'visits', is read: data.sheet=NAME reads another",
    )
    path.write_bytes(path.read_bytes()[:200])
    with fails("data.path=", "cannot be read as .xlsx"):
        price_table(str(path)).load()


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("docProps/core.xml", (b"<", b"")),  # no XML
        ("xl/styles.xml", (b"fontId", b"fobtId")),  # an attribute that openpyxl does not know
        ("xl/_rels/workbook.xml.rels", (b"sheet1", b"sheet2")),  # a sheet that is not there
    ],
)
def test_an_xlsx_with_a_damaged_part_is_refused(tmp_path, part, damage):
    pytest.importorskip("openpyxl", reason="NOT TESTED: .xlsx needs openpyxl, pip install 'fcorun[xlsx]'")
    path = tmp_path / "t.xlsx"
    frame().to_excel(path, index=False)
    with zipfile.ZipFile(path) as book:
        parts = {name: book.read(name) for name in book.namelist()}
    assert damage[0] in parts[part]
    parts[part] = parts[part].replace(*damage)
    with zipfile.ZipFile(path, "w") as book:
        for name, content in parts.items():
            book.writestr(name, content)
    with pytest.raises(UserError, match=r"t.xlsx: (cannot be read as .xlsx \(a part|the file has no sheet of cells)"):
        price_table(str(path)).load()


def test_an_hdf5_file_with_a_damaged_list_of_arrays_is_refused():
    with h5py.File("t.h5", "w") as file:
        file["X"] = X
        file["y"] = Y
    content = Path("t.h5").read_bytes()
    assert b"SNOD" in content
    Path("t.h5").write_bytes(content.replace(b"SNOD", b"SNOX"))  # the signature of a symbol table
    with fails("data.path=t.h5: cannot be read as .h5 ("):
        Table("t.h5").load()


def test_a_very_long_name_of_a_column_is_shown_in_part(tmp_path):
    path = save(tmp_path, "t.csv", frame(**{"x" * 9000: 1}))
    with pytest.raises(UserError, match=r"data.target=cost: there is no such column") as refusal:
        price_table(path, target="cost").load()
    assert "x" * 100 + "..." in str(refusal.value)
    assert len(str(refusal.value)) < 1000


def test_an_xlsx_without_openpyxl_names_the_package_to_install(tmp_path, monkeypatch):
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with fails("t.xlsx needs openpyxl: pip install 'fcorun[xlsx]'"):
        price_table(str(tmp_path / "t.xlsx")).load()


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.xlsx"])
def test_two_columns_with_the_same_name_are_refused(tmp_path, name):
    table = frame().set_axis(["u", "v", "u", "site", "price"], axis=1)
    if name == "t.xlsx":
        pytest.importorskip("openpyxl", reason="NOT TESTED: .xlsx needs openpyxl, pip install 'fcorun[xlsx]'")
        table.to_excel(tmp_path / name, index=False)
    else:
        save(tmp_path, name, table)
    with fails("data.path=", "two columns are called 'u'", "rename or drop"):
        price_table(str(tmp_path / name)).load()
    if name == "t.csv":
        save(tmp_path, name, table.set_axis(["NA", "v", "NA", "site", "price"], axis=1))
        with fails("two columns are called 'NA'"):
            price_table(str(tmp_path / name)).load()
    assert price_table(save(tmp_path, "t.csv", frame().rename(columns={"v": "u.1"}))).load().features.names == (
        "u",
        "u.1",
        "w",
    )


def test_a_table_that_takes_long_is_told_of_while_it_is_read(tmp_path, monkeypatch, capsys):
    """A thread tells it, so that no reader of a library can be silent."""
    path = save(tmp_path, "t.csv")
    price_table(path).load()
    assert capsys.readouterr().err == ""
    told = ""

    def read_until_told_twice(*_, **__):
        nonlocal told
        for _ in range(6000):  # at most for a minute
            told += capsys.readouterr().err
            if told.count("\n") >= 2:
                break
            time.sleep(0.01)
        raise UserError("end")

    monkeypatch.setattr("fcorun.data.tables.readers._SILENT_SECONDS", 0.05)
    monkeypatch.setattr("fcorun.data.datasets.table.read_table", read_until_told_twice)
    with fails("end"):
        price_table(path).load()
    lines = told.splitlines()
    assert len(lines) >= 2
    assert all(
        re.fullmatch(rf"data\.path={path}: still being read after \d+ s, with [\d.]+ GiB of memory", text)
        for text in lines
    )


@pytest.mark.slow
def test_many_rows_in_a_small_parquet_are_refused_before_they_are_read(tmp_path, monkeypatch):
    """A hundred million equal rows take less than two megabytes in the file, and four gigabytes in memory."""
    n_rows = 10**6
    names = dict.fromkeys(["u", "v", "w", "price"], np.ones(n_rows))
    group = pa.table(names | {"site": pa.array(["a"] * n_rows)})
    path = str(tmp_path / "t.parquet")
    with parquet.ParquetWriter(path, group.schema) as file:
        for _ in range(100):
            file.write_table(group, row_group_size=n_rows)
    assert Path(path).stat().st_size < 2e6
    monkeypatch.setattr("pandas.read_parquet", lambda *_, **__: pytest.fail("it was read"))
    monkeypatch.setattr("fcorun.data.datasets.dataset.free_host_memory", lambda: 2**30)
    size = "with 100,000,000 rows of 5 columns needs at least"
    for resident, needed in ((True, "3.73 GiB"), (False, "6.15 GiB")):
        with fails(f"data.path={path} {size} {needed} of memory", "give fewer rows, features or clients"):
            load_dataset(price_table(path, resident=resident), "fingerprint", None, 0, 1)


def test_rows_on_disk_for_which_the_cache_has_no_space_are_refused_before_they_are_written(tmp_path, monkeypatch):
    path = save(tmp_path, "t.parquet")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
    with fails("GiB of rows cannot be written to", "(No space left on device)", "set FCORUN_CACHE=FOLDER"):
        price_table(path, resident=False).load()
