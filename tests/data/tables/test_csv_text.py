"""Semicolons and decimal commas in CSV files, exact numbers, and warnings about tables."""

import bz2
import gzip
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from table_files import SORTED, X, Y, frame, price_table, save

from fcorun import from_arrays
from fcorun.base.errors import warn_similar_names
from fcorun.base.records.record import load_records
from fcorun.data.datasets.table import Table
from fcorun.data.rows.disk_matrix import DiskMatrix
from fcorun.data.tables.cells import exact_float_options, require_numbers
from fcorun.data.tables.columns import LevelColumn, NumberColumn
from fcorun.data.tables.columns.infer_kind import infer_kind
from fcorun.data.tables.data_warnings import (
    warn_class_like_target,
    warn_identifiers,
    warn_missing_codes,
)
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tables.readers import read_dataframe
from fcorun.interface.cli.commands import main

pytestmark = pytest.mark.usefixtures("own_cache")


# ---------------------------------------------------------------- semicolons and commas


@pytest.mark.parametrize("decimal", [",", "."])
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.bz2"])
def test_semicolons_separate_columns(tmp_path, name, decimal):
    text = frame().to_csv(None, index=False, sep=";", decimal=decimal).replace("price", '"price, in EUR"')
    compress = {"t.csv.gz": gzip.compress, "t.csv.bz2": bz2.compress}.get(name, bytes)
    (tmp_path / name).write_bytes(compress(text.encode()))
    data = price_table(str(tmp_path / name), target="price, in EUR").load()
    np.testing.assert_array_equal(data.train.x, X[SORTED])
    np.testing.assert_array_equal(data.train.y, Y[SORTED])
    assert data.features.names == ("u", "v", "w")
    assert data.clients == ("a", "b")


@pytest.mark.parametrize(("name", "sep"), [("t.tsv", "\t"), ("t.csv", ",")])
def test_decimal_commas_in_files_separated_by_tabs_or_quoted(tmp_path, name, sep):
    """Commas of the target are decimal where features have decimal commas; elsewhere they may be part of a label."""
    frame().to_csv(tmp_path / name, index=False, sep=sep, decimal=",")
    data = price_table(str(tmp_path / name)).load()
    np.testing.assert_array_equal(data.train.x, X[SORTED])
    np.testing.assert_array_equal(data.train.y, Y[SORTED])
    frame(u=1, v=2, w=3, price=["0,5", "1,5"] * 3).to_csv(tmp_path / name, index=False, sep=sep)
    assert price_table(str(tmp_path / name), task="binary").load().classes == ("0,5", "1,5")


def test_empty_cells_stay_missing(tmp_path):
    (tmp_path / "t.csv").write_text("\nu;price\n1,5;2\n;3\n2,5;4\n")
    with fails("column 'u' is missing", "row 2"):
        Table(str(tmp_path / "t.csv"), "price", clients=1, validation=0.0).load()


@pytest.mark.parametrize(
    ("levels", "new"),
    [
        (("TRUE", "FALSE", "unknown"), ("TRUE", "FALSE")),
        (("AA", "01", "02", "1"), ("02", "01")),
        (("E11", "401.10", "401.1"), ("401.10", "401.10")),
        (("0,5", "1,25", "none"), ("1,25", "0,5")),
        (("NA", "EU"), ("NA", "NA")),
    ],
)
def test_levels_of_a_record_keep_their_text_in_any_file(tmp_path, levels, new):
    (tmp_path / "new.csv").write_text("zone;lab\n" + "".join(f"{level};2\n" for level in (*new, "")))
    frame, _ = read_dataframe(
        str(tmp_path / "new.csv"), kinds={"zone": LevelColumn("zone"), "lab": NumberColumn("lab")}
    )
    assert frame["zone"].isna().tolist() == [False, False, True]
    zone = LevelColumn("zone", indicator=True, levels=levels)
    encoding = Encoding((zone, NumberColumn("lab")))
    warnings: list[str] = []
    features = pd.DataFrame(encoding.apply(frame, warnings), columns=encoding.feature_names)
    assert warnings == []
    for level in zone.encoded_levels:
        assert features[f"zone={level}"].tolist() == [*(value == level for value in new), 0]


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz"])
def test_a_blank_line_of_a_single_column_is_a_row_with_a_gap(tmp_path, name):
    text = "\n\nage\n50\n\nNA\n60\n\n \n"
    write = gzip.compress if name.endswith("gz") else bytes
    (tmp_path / name).write_bytes(write(text.encode()))
    ages = read_dataframe(str(tmp_path / name))[0]
    np.testing.assert_array_equal(ages["age"], [50, np.nan, np.nan, 60])
    (tmp_path / "two.csv").write_text("age,bmi\n50,25\n\n60,\n")
    assert len(read_dataframe(str(tmp_path / "two.csv"))[0]) == 2


def test_new_rows_have_warnings_about_their_file(tmp_path):
    path = save(tmp_path, "new.csv", pd.DataFrame({"dose": ["0,5", "1,25"]}))
    warnings: list[str] = []
    read_dataframe(path, warnings=warnings)
    assert warnings == [f"{path}: commas in 'dose' are read as decimal commas, 1,5 as 1.5: check that they are"]


@pytest.mark.parametrize(
    ("rows", "value", "advice"),
    [
        ("1,234;1\n2,500;2\n", "1,234", "make it a number"),  # thousands or decimals
        ("1,5;0.5\n2,5;1.5\n", "1,5", "'0.5' in column 'v': write all numbers of the file with decimal points"),
        ("0,5;500.5\n1,5;1.000\n", "0,5", "a file that has points, too"),  # not all can separate thousands
        ("1.234,5;1\n2,5;2\n", "1.234,5", "make it a number"),
        ("1,234,567;1\n2,5;2\n", "1,234,567", "make it a number"),
    ],
)
def test_ambiguous_commas_are_refused(tmp_path, rows, value, advice):
    (tmp_path / "t.csv").write_text("u;v;price\n" + rows.replace("\n", ";3\n"))
    with fails("column 'u'", f"'{value}' in row 1", advice):
        Table(str(tmp_path / "t.csv"), "price").load()


def test_points_that_separate_thousands_are_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("lab;platelets;price\n12;500;3\n0,5;285.000;3\n1,5;1.250;4\n")
    with fails(
        f"data.path={path}: column 'lab' holds '0,5' in row 2, and commas are not read as decimal commas in a file",
        "that has points, too, '285.000' in column 'platelets'",
        "none with points that separate thousands",
    ):
        Table(str(path), "price").load()
    path.write_text(path.read_text().replace("285.000", "285000").replace("1.250", "1250"))
    data = Table(str(path), "price", validation=0.0, clients=1).load()
    assert sorted(data.train.x.tolist()) == [[0.5, 285000], [1.5, 1250], [12, 500]]


def test_one_certain_decimal_comma_decides_for_the_file(tmp_path):
    (tmp_path / "t.csv").write_text("u;v;price\n1,234;0,5;3\n2,500;1;4\n")
    data = Table(str(tmp_path / "t.csv"), "price", validation=0.0, clients=1).load()
    assert sorted(data.train.x.tolist()) == [[1.234, 0.5], [2.5, 1]]
    (warning,) = data.warnings
    assert warning.endswith("t.csv: commas in 'u', 'v' are read as decimal commas, 1,5 as 1.5: check that they are")


def test_a_header_with_commas_and_semicolons_is_split_at_commas(tmp_path):
    (tmp_path / "t.csv").write_text("a;b,price\n1,2\n3,4\n")
    assert Table(str(tmp_path / "t.csv"), "price", validation=0.0, clients=1).load().features.names == ("a;b",)


def test_names_of_clients_keep_their_commas(tmp_path):
    (tmp_path / "t.csv").write_text("u;site;price\n1,5;0,5;2\n2,5;1,5;3\n")
    assert price_table(str(tmp_path / "t.csv")).load().clients == ("0,5", "1,5")


# ---------------------------------------------------------------- objects in .npz


@pytest.mark.parametrize(("name", "kind"), [("client", "str"), ("y", "float"), ("X", "float"), ("validation", "bool")])
def test_objects_in_an_npz_are_refused_with_a_fix(tmp_path, name, kind):
    arrays: dict[str, Any] = {"X": X, "y": Y, "client": np.array(["a", "b"] * 3), "validation": Y > 3}
    np.savez(tmp_path / "t.npz", **(arrays | {name: arrays[name].astype(object)}))
    with fails(f"array '{name}' holds Python objects", f"{name}=np.array({name}, dtype={kind})"):
        Table(str(tmp_path / "t.npz")).load()
    arrays[name] = np.array(arrays[name].astype(object), dtype=kind)
    np.savez(tmp_path / "t.npz", **arrays)
    assert len(Table(str(tmp_path / "t.npz")).load().train.y) == 4


# ---------------------------------------------------------------- warnings


def test_similar_names_are_warned_about(tmp_path):
    path = save(tmp_path, "t.csv", frame(site=["Mayo", "Mayo ", "mayo", "Ghent", "Ghent", "Basel"]))
    (warning,) = price_table(path).load().warnings
    assert warning == (
        f"data.path={path}: clients 'Mayo' and 'Mayo ' and 'mayo' differ in capitals or spaces only: if they are the "
        "same, write them alike"
    )
    path = save(tmp_path, "l.csv", frame(price=["Yes", "yes", "No"] * 2))
    (warning,) = price_table(path, task="multiclass").load().warnings
    assert "labels 'Yes' and 'yes' differ" in warning
    with fails("3 classes", "its labels 'Yes' and 'yes' differ", "write them alike"):
        price_table(path, task="binary").load()
    assert price_table(save(tmp_path, "f.csv")).load().warnings == ()
    assert warn_similar_names("labels", [1, 2]) == []
    assert (
        warn_similar_names("x", [f"{s}{i}" for i in range(5) for s in "aA"])[0].count(" and ") == 4
    )  # three pairs, 2 more


def test_identifiers_are_warned_about(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"patient": rng.permutation(900)[:40], "age": rng.integers(20, 90, 40),
                          "weight": rng.standard_normal(40), "y": rng.standard_normal(40)})  # fmt: skip
    warning, divided = Table(save(tmp_path, "t.csv", table), "y", validation=0.0).load().warnings
    assert divided.endswith("data.partition=iid divides the rows among 10 clients")
    assert "in 'patient': if that numbers rows or persons, drop the column" in warning
    assert Table(save(tmp_path, "few.csv", table.head(19)), "y", validation=0.0, clients=1).load().warnings == ()
    assert "column 1 (from 0)" in warn_identifiers(np.column_stack([np.ones(30), np.arange(30.0)]))[0]


def test_copies_of_rows_are_warned_about(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"site": np.repeat(["a", "b"], 30), "age": rng.integers(20, 90, 60),
                          "year": np.tile(np.repeat([2022, 2023, 2024], 10), 2), "y": rng.normal(size=60)})  # fmt: skip

    def warnings_on(frame):
        data = Table(save(tmp_path, "t.csv", frame), "y", "site", validation=0.0).load()
        return [text.partition(": ")[2] for text in data.warnings]

    shuffled = table.sample(frac=1, random_state=0)
    assert warnings_on(shuffled) == []
    (copied,) = warnings_on(pd.concat([shuffled, shuffled.iloc[[3, 5]]]))
    assert copied.startswith("2 rows (61, 62) repeat an earlier row in all columns: ")
    other_site = shuffled.iloc[[3]].assign(site=lambda row: row["site"].map({"a": "b", "b": "a"}))
    both = warnings_on(pd.concat([shuffled, shuffled.iloc[[5]], other_site]))
    assert [text.partition(":")[0] for text in both] == [
        "row 61 repeats an earlier row in all columns",
        "row 62 repeats an earlier row in all columns but 'site'",
    ]
    coarse = shuffled.assign(y=shuffled["y"].round(), age=shuffled["age"] // 30)
    assert coarse.duplicated().any()
    assert not any("repeat an earlier row" in text for text in warnings_on(coarse))


def test_arrays_and_rows_on_disk_have_the_warnings_of_tables():
    rng = np.random.default_rng(0)
    client = np.repeat(["a", "b"], 30)
    x = rng.normal(size=(60, 4))
    x[:, 1] = rng.permutation(900)[:60]
    x[:30, 2] += 30
    x[4, 3] = -999
    expected = ["a different whole number in column 1", "column 3 (from 0) has -999"]
    warnings = from_arrays(x, x[:, 2], client).load().warnings
    for text in (*expected, "those of the other clients: column 2 (from 0) at client"):
        assert any(text in warning for warning in warnings)
    matrix = DiskMatrix.from_memmap(x)
    on_disk = [*warn_identifiers(matrix), *warn_missing_codes(matrix)]
    assert on_disk == [*warn_identifiers(x), *warn_missing_codes(x)]
    assert len(on_disk) == len(expected)


@pytest.mark.slow
def test_warnings_are_printed_before_the_run_and_logged(tmp_path, capsys, monkeypatch):
    from fcorun.interface.cli.main import main as fcorun

    path = save(tmp_path, "t.csv", frame(site=["Mayo", "Mayo "] * 3))
    options = ["data=table", f"data.path={path}", "data.target=price", "data.client=site", "data.validation=0"]
    for more in (["hydra.run.dir=s/one"], ["-m", "algo.client_lr=1e-5,2e-5", "hydra.sweep.dir=s/sweep"]):
        monkeypatch.setattr("sys.argv", ["fcorun", *more, *options, "rounds=1"])
        fcorun()
        out = capsys.readouterr().out
        assert out.count("clients 'Mayo' and 'Mayo ' differ") == 1
        assert out.index("differ") < out.index("objective")
    assert len(load_records("s")) == 3
    assert all("'Mayo' and 'Mayo ' differ" in (r.folder / "run.log").read_text() for r in load_records("s"))
    assert main(["results", "s"]) == 0


def test_a_file_that_is_not_utf8_is_refused_with_a_fix(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("größe,y\n1,2\n3,4\n".encode("latin-1"))
    with fails(
        f"data.path={path}", "give data.encoding=windows-1252 if it is of an older Windows, or save it as UTF-8"
    ):
        Table(str(path), "y").load()


@pytest.mark.parametrize(
    ("targets", "warning"),
    [
        ([0, 1] * 10, "two values only: if they are classes, give data.task=binary"),
        ([0.5, 1.5] * 10, "two values only"),
        ([0.0, 1.0, 3.0, 7.0] * 5, r"4 values only, all whole numbers \(0, 1, 3 and 1 more\).*data.task=multiclass"),
        ([0.0, 1.0, 3.5, 7.0] * 5, ""),
        (range(20), ""),
        ([0, 1, 2] * 6, ""),  # too few rows
        ([4] * 20, ""),
    ],
)
def test_a_target_that_looks_like_classes_is_warned_about(targets, warning):
    warnings = warn_class_like_target(np.array(targets))
    assert len(warnings) == bool(warning)
    assert re.search(warning, " ".join(warnings))


@pytest.mark.parametrize("bad", ["<0,5", "n/k", "1.234,5"])
def test_the_one_bad_cell_among_decimal_commas_is_named(tmp_path, bad):
    cells = ["2,73", "1,5", "0,25", "3,5", "1,125", bad, "2", "4,5"]
    rows = "".join(f"{cell};{i},5;{i}\n" for i, cell in enumerate(cells))
    (tmp_path / "t.csv").write_text("lactate;v;price\n" + rows)
    with fails("column 'lactate'", f"'{bad}' in row 6: make it a number or leave it empty"):
        Table(str(tmp_path / "t.csv"), "price", clients=2).load()


def test_the_one_bad_cell_of_a_column_is_named():
    truths = pd.Series(["True", "False", "TRUE", None, "ja", "False"])
    with fails("column 'd' holds 'ja' in row 5: make it true or false, as the others are"):
        require_numbers(truths, "column 'd'")
    with fails("column 'd' holds 'ja' in row 2: make it true or false, as the others are"):
        require_numbers(pd.Series(["True", "ja"]), "column 'd'")
    with fails("holds '1' in row 3: make it true or false"):
        require_numbers(pd.Series(["True", "False", "1"]), "column 'd'")
    with fails("column 'd' holds true and false, but '1' in row 3: make it one of them or leave it empty"):
        infer_kind(pd.Series(["True", "False", "1"], name="d"), "data.path=t.csv", None)
    with fails("column 'd' holds complex numbers: give the real and the imaginary part a column each"):
        infer_kind(pd.Series([1.0 + 2.0j, 3.0], name="d"), "data.path=t.csv", None)
    with fails("holds 'true' in row 3: make it a number"):
        require_numbers(pd.Series(["1", "0", "true"]), "column 'd'")
    with fails("holds '<0,5' in row 2: make it a number"):
        require_numbers(pd.Series(["2,73", "<0,5", "3"]), "column 'lactate'")
    with fails("holds '2,73' in row 2: make it a number"):  # with decimal points, both cells are bad
        require_numbers(pd.Series(["1.5", "2,73", "<0,5"]), "column 'lactate'")


# ---------------------------------------------------------------- numbers to the last bit

DIGITS = [repr(float(value)) for value in np.random.default_rng(0).normal(size=50) * 10.0 ** np.arange(-25, 25)]


@pytest.mark.parametrize(("decimal", "gap"), [(".", ""), (",", ""), (".", "NA")])
def test_numbers_are_read_as_by_python(tmp_path, decimal, gap):
    """Also with decimal commas, and in columns with tokens for gaps, where columns are read as text first."""
    cells = [*(value.replace(".", decimal) for value in DIGITS), gap]
    lines = [f"{cell};{row}" for row, cell in enumerate(cells)]
    (tmp_path / "t.csv").write_text("\n".join(["u;price", *lines]))
    data = Table(str(tmp_path / "t.csv"), target="price", clients=1, validation=0, missing="mean").load()
    assert data.train.x[:-1, 0].tolist() == [float(value) for value in DIGITS]


@pytest.mark.parametrize(("version", "option"), [("2.2.3", {"float_precision": "round_trip"}), ("3.1.0", {})])
def test_pandas_before_3_1_gets_the_option_for_exact_numbers(monkeypatch, version, option):
    monkeypatch.setattr(pd, "__version__", version)
    assert exact_float_options() == option
