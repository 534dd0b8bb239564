"""Columns of a table: features, refused columns, and warnings."""

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from patient_table import by_site, columns_of, load_patients, patients, patients_with_gaps
from table_files import save

from fcorun.data.datasets.table import Table
from fcorun.data.tables.columns.levels import MAX_LEVELS

pytestmark = pytest.mark.usefixtures("own_cache")


def test_columns_are_ignored_or_selected(tmp_path):
    path = save(tmp_path, "t.csv", patients_with_gaps().assign(id=[f"P{i:03}" for i in range(60)]))
    assert load_patients(path, only=["sex", "age"], missing="mean").features.names == ("age", "sex=M")
    data = load_patients(path, ignore=["id", "ward", "lab", "bmi"], missing="median")
    assert data.features.names == ("age", "sex=M", "smokes")
    with fails("data.ignore: ", "no column 'idd'", "did you mean 'id'"):
        load_patients(path, ignore=["idd"])
    with fails("data.target and data.only both name 'cost'"):
        load_patients(path, only=["cost", "age"])
    with fails("no feature columns"):
        load_patients(path, only=[])
    with fails("data.weight and data.only both name 'bmi'"):
        load_patients(path, only=["age", "bmi"], weight="bmi")
    np.savez(tmp_path / "t.npz", X=np.eye(6), y=np.arange(6))
    for option, value in {"ignore": ["a"], "only": ["a"], "missing": "mean", "encoding": "DIR"}.items():
        with fails(f"data.{option}=", "named columns", f"leave data.{option} out"):
            Table(str(tmp_path / "t.npz"), clients=2, **{option: value}).load()


@pytest.mark.parametrize(
    ("column", "phrases"),
    [
        ({"admitted": pd.date_range("2024-01-01", periods=60)}, ["'admitted' holds dates", "data.ignore=[admitted]"]),
        ({"born": ["3.12.1960", "24/1/2001"] * 30}, ["'born' holds dates ('3.12.1960')", "days since"]),
        ({"born": ["unknown", "3.12.1960", "24/1/2001"] * 20}, ["'born' holds dates ('3.12.1960')"]),
        ({"lab": ["missing", "500 mg", *(f"{k} g" for k in range(58))]}, ["unit 'g', such as '0 g' in row 3"]),
        ({"id": [f"P{i}" for i in range(60)]}, ["'id' has 45 levels in 45 training rows", "data.ignore=[id]"]),
        ({"lab": ["88 umol/L", *map(str, range(59))]}, ["'lab' holds numbers, but '88 umol/L' in row 1 (client "]),
        ({"lab": [f"{8 + k / 10:.1f} g/dL" for k in range(60)]}, ["unit 'g/dL', such as '8.", "the numbers alone"]),
        ({"lab": [f"€{k}" if k % 2 else "free" for k in range(60)]}, ["unit '€', such as '€", "data.ignore=[lab]"]),
        ({"lab": ["n/k"] * 40 + ["7"] * 20}, ["'lab' holds numbers, but 'n/k' in row 1", "leave it empty"]),
        ({"lab": [np.nan] * 60}, ["'lab' is missing in row 1, in 60 of 60 rows", "data.ignore=[lab]"]),
        ({"lab": [1, np.inf] * 30}, ["'lab' is infinite in row 2"]),
        ({"ward": [None, "er", "icu"] * 20}, ["'ward' is missing in row 1, in 20 of 60 rows", "data.missing=mean"]),
        ({"sex=M": range(60)}, ["two features would be called 'sex=M'"]),
    ],
)
def test_columns_that_cannot_be_features_are_refused(tmp_path, column, phrases):
    for name in ("t.csv", "t.parquet"):
        with fails("data.path=", *phrases):
            load_patients(save(tmp_path, name, patients().assign(**column)))


@pytest.mark.parametrize(
    "levels",
    [["3 months", "6 months", "12 months"], [f"{10 * k}-{10 * k + 9}" for k in range(10)], ["1st", "2nd", "3rd"]],
)
def test_names_that_begin_with_a_number_are_levels(tmp_path, levels):
    column = (levels * 60)[:60]
    assert f"lab={levels[0]}" in load_patients(save(tmp_path, "t.csv", patients().assign(lab=column))).features.names


def test_codes_for_missing_values_are_warned_about(tmp_path):
    table = patients().drop(columns="ward")
    table.loc[[3, 7], "bmi"] = -999
    table.loc[5, "age"] = 99.0  # no farther from the others than they are from each other
    table.loc[9, "cost"] = 9999
    warnings = load_patients(save(tmp_path, "t.csv", table)).warnings
    (bmi,) = [warning for warning in warnings if "-999" in warning]
    assert "'bmi' has -999 in 2 rows (4, 8), all others lie between" in bmi
    assert "'age'" not in bmi
    (cost,) = [warning for warning in warnings if "9999" in warning]
    assert "'the target' has 9999 in row 10" in cost


@pytest.mark.slow
def test_many_levels_are_refused_in_long_tables(tmp_path):
    table = pd.DataFrame({"code": np.arange(2000) % (MAX_LEVELS + 1), "cost": 1.0, "site": np.arange(2000) % 4})
    table["code"] = "c" + table["code"].astype(str)
    with fails(f"'code' has {MAX_LEVELS + 1} levels in 1600 training rows", "group its levels"):
        load_patients(save(tmp_path, "t.csv", table), validation=None)
    table["code"] = table["code"].replace(f"c{MAX_LEVELS}", "c0")
    assert len(load_patients(save(tmp_path, "t.csv", table), validation=None).features.names) == MAX_LEVELS


def test_a_column_without_values_at_one_client_is_filled_from_the_others(tmp_path):
    table = patients()
    table.loc[table["site"] == "b", "lab"] = np.nan
    path = save(tmp_path, "t.csv", table)
    with fails("'lab' is missing in row", "in 15 of 60 rows", "data.missing="):
        load_patients(path)
    data = load_patients(path, missing="median")
    assert columns_of(data)["lab"][15] == by_site(table)[0]["lab"].median()


def test_constant_similar_and_encoded_columns_are_warned_about(tmp_path):
    table = patients().assign(country="NL", unit=3, sex=lambda t: t["sex"].replace("F", "m"))
    data = load_patients(save(tmp_path, "t.csv", table))
    assert "country=NL" not in data.features.names
    assert "unit" in data.features.names  # a constant number stays a feature
    warnings = "\n".join(data.warnings)
    assert "text columns with one level in the training rows make no feature: 'country' ('NL')" in warnings
    assert "one value in all training rows of 'unit'" in warnings
    assert "levels of 'sex' 'M' and 'm' differ in capitals or spaces only" in warnings
    assert "text columns are coded as features of 0 and 1: 'ward' as 4 levels, 'sex' as sex=m ('M' is 0)" in warnings
    assert all(warning.startswith("data.path=") for warning in data.warnings)


@pytest.mark.slow
def test_numbers_stored_as_text_at_one_client_are_read_as_numbers(tmp_path):
    pytest.importorskip("openpyxl", reason="NOT TESTED: .xlsx needs openpyxl, pip install 'fcorun[xlsx]'")
    table = patients()
    expected = load_patients(save(tmp_path, "t.csv", table)).train.x
    lab = [str(v) if site == "b" else v for v, site in zip(table["lab"], table["site"], strict=True)]
    table.assign(lab=pd.Series(lab, dtype=object)).to_excel(tmp_path / "t.xlsx", index=False)
    data = load_patients(str(tmp_path / "t.xlsx"))
    np.testing.assert_array_equal(data.train.x, expected)


def test_numeric_categories_are_levels(tmp_path):
    table = patients().assign(ward=lambda t: t["ward"].map({"icu": 1, "er": 2, "heart": 3, "eye": 4, "lung": 1}))
    path = save(tmp_path, "t.parquet", table.assign(ward=table["ward"].astype(str).astype("category")))
    data = load_patients(path)
    assert data.features.names[1:5] == ("ward=1", "ward=2", "ward=3", "ward=4")
    np.testing.assert_array_equal(columns_of(data)["ward=3"], by_site(table)[0]["ward"] == 3)
