"""Numbers whose text says more: codes with leading zeros, digits with an E, points that separate thousands."""

import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import fails, not_none

from fcorun import from_frame
from fcorun.data.datasets.table import Table
from fcorun.data.tables import number_texts
from fcorun.data.tables.readers import read_dataframe

pytestmark = pytest.mark.usefixtures("own_cache")

N = 24


def load(folder, header: str, cells: list[str], separator: str = ",", **options):
    """Load a file with one column of these cells, repeated, beside a target."""
    repeated = [cells[i % len(cells)] for i in range(N)]
    lines = [f"{header}{separator}y", *(f"{cell}{separator}{i % 7}" for i, cell in enumerate(repeated))]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return Table(str(folder / "t.csv"), "y", **({"clients": 1, "validation": 0.0} | options)).load()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize(
    ("cells", "levels"),
    [
        (["08001", "17002", "99999"], ["08001", "17002", "99999"]),
        (["17002", "17003", "08001"], ["08001", "17002", "17003"]),
        (['"08001"', '"17002"', '"17003"'], ["08001", "17002", "17003"]),
        (["08001", "17002", "17003", "NA"], ["08001", "17002", "17003"]),
        (["08001", "17002", "17003", "-9", ""], ["08001", "17002", "17003"]),
        (["01", "02", "1"], ["01", "02", "1"]),
    ],
)
def test_whole_numbers_with_leading_zeros_are_levels(tmp_path, separator, cells, levels):
    data = load(tmp_path, "plz", cells, separator, missing="mean", na=["-9"])
    assert data.features.names == tuple(f"plz={level}" for level in levels)
    first = levels.index(cells[0].strip('"'))
    assert data.train.x[0].tolist() == [float(i == first) for i in range(len(levels))]
    kinds = {column.name: column for column in not_none(data.features.encoding).columns}
    rows = read_dataframe(str(tmp_path / "t.csv"), kinds=kinds)[0]
    assert rows["plz"].iloc[0] == cells[0].strip('"')


@pytest.mark.parametrize("cells", [["0", "10", "7"], ["0.5", "012", "3"], ["-1", "0", "00.5"], ["1e-05", "0.25", "10"]])
def test_other_zeros_are_numbers(tmp_path, cells):
    data = load(tmp_path, "u", cells)
    assert data.features.names == ("u",)
    np.testing.assert_array_equal(data.train.x[:3, 0], [float(cell) for cell in cells])


def test_a_target_and_columns_of_numbers_of_a_record_stay_numbers(tmp_path):
    (tmp_path / "t.csv").write_text("u,y\n" + "".join(f"{i},0{i % 10}\n" for i in range(N)))
    data = Table(str(tmp_path / "t.csv"), "y", clients=1, validation=0.0).load()
    assert data.train.y.tolist() == [i % 10 for i in range(N)]
    kinds = {column.name: column for column in not_none(data.features.encoding).columns}
    (tmp_path / "new.csv").write_text("u\n01\n02\n")
    assert read_dataframe(str(tmp_path / "new.csv"), kinds=kinds)[0]["u"].tolist() == [1, 2]


def test_codes_of_a_frame_are_levels_too():
    table = pd.DataFrame({"plz": ["08001", "17002"] * 12, "y": np.arange(N) / 4})
    assert from_frame(table, "y", validation=0.0).load().features.names == ("plz=17002",)


def test_a_column_of_digits_with_an_e_is_asked_about(tmp_path):
    with fails("column 'lot' holds digits, an E and digits alone, '12E3' in row 1", "write numbers without E, 12000",
               "or begin codes with a letter, K12E3", "data.ignore=[lot] leaves it out"):  # fmt: skip
        load(tmp_path, "lot", ["12E3", "7E15", "110E2"])
    with fails("column 'lot' holds digits, an E and digits alone, '12e3' in row 2"):
        load(tmp_path, "lot", ["", "12e3"], missing="mean")
    assert load(tmp_path, "lot", ["K12E3", "K7E15"]).features.names == ("lot=K7E15",)
    assert load(tmp_path, "lot", ["12E3", "7.5"]).train.x[:2, 0].tolist() == [12000, 7.5]
    assert load(tmp_path, "lot", ["1e+05", "2e+05"]).train.x[:2, 0].tolist() == [100000, 200000]
    assert load(tmp_path, "lot", ["12000", "7"]).train.x[:2, 0].tolist() == [12000, 7]


def test_points_of_thousands_beside_millions_are_refused(tmp_path):
    with fails("column 'cost' holds numbers with points that separate thousands, '1.250.000' in row 3",
               "write all its numbers without them, 1250000, and 1234 for 1.234"):  # fmt: skip
        load(tmp_path, "cost", ["1.234", "12.500", "1.250.000"])
    assert load(tmp_path, "cost", ["1234", "12500", "1250000"]).train.x[:3, 0].tolist() == [1234, 12500, 1250000]


@pytest.mark.parametrize(
    ("cells", "separator", "is_named"),
    [
        (["500", "285.000", "1.250"], ",", True),
        (["500", "285.000", "12.000"], ",", True),
        (["1.234", "12.500"], ";", True),
        (["1.234", "12.500"], ",", False),  # numbers of three decimals
        (["1.25", "12.500", "500"], ";", False),
        (["0.234", "12.500", "500"], ";", False),
        (["1500", "12.500", "2.125"], ";", False),
    ],
)
def test_points_that_may_separate_thousands_are_named(tmp_path, cells, separator, is_named):
    warnings = load(tmp_path, "cost", cells, separator).warnings
    named = [text for text in warnings if "three digits follow each point in 'cost'" in text]
    assert len(named) == is_named
    with_gaps = load(tmp_path, "cost", [*cells, ""], separator, missing="mean").warnings
    assert any("three digits follow each point" in text for text in with_gaps) == is_named


def test_millions_in_another_column_tell_of_thousands(tmp_path):
    lines = "".join(
        f"{cell},{million},{i % 5}\n"
        for i, (cell, million) in enumerate([("1.234", "1.250.000"), ("12.500", "7.000.000")] * 12)
    )
    (tmp_path / "t.csv").write_text("cost,total,y\n" + lines)
    (warning,) = Table(str(tmp_path / "t.csv"), "y", clients=1, validation=0.0, ignore=["total"]).load().warnings
    assert warning.endswith("three digits follow each point in 'cost' ('1.234' in row 1), which is read as a decimal "
                            "point: if points separate thousands, write the numbers without them, 1234")  # fmt: skip


def test_padded_cells_are_found_across_blocks_of_a_file(monkeypatch):
    text = "a,b\n" + "1,2\n" * 50 + "1,07\n"
    for block in range(2, 40):
        monkeypatch.setattr(number_texts, "_BLOCK", block)
        assert number_texts.has_padded_cells(io.StringIO(text), ",")
        assert not number_texts.has_padded_cells(io.StringIO(text.replace("07", "10.05")), ",")


def test_ordinary_columns_are_not_read_twice(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"real": rng.normal(size=N), "whole": rng.integers(0, 99, N), "y": rng.normal(size=N)})
    table["gaps"] = table["whole"].where(np.arange(N) != 3)
    table.to_csv(tmp_path / "t.csv", index=False)
    rows: list[Any] = []
    read_csv = pd.read_csv

    def count(*args: Any, **options: Any) -> Any:
        rows.append(options.get("nrows", N))
        return read_csv(*args, **options)

    monkeypatch.setattr(pd, "read_csv", count)
    Table(str(tmp_path / "t.csv"), "y", clients=1, validation=0.0, missing="mean").load()
    assert rows == [N, 1000]
