"""Tables with text, gaps and columns that are no features: the matrix that scikit-learn and pandas make of all rows."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers import fails, not_none
from patient_table import by_site, columns_of, load_patients, patients, patients_with_gaps
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder
from table_files import save

from fcorun.datasets.table import Table
from fcorun.tables import federated_statistics
from fcorun.tables.encoding import Column, Encoding

pytestmark = pytest.mark.usefixtures("own_cache")


# ---------------------------------------------------------------- oracles


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet"])
def test_text_is_coded_as_scikit_learn_and_pandas_do(tmp_path, name):
    table = patients()
    data = load_patients(save(tmp_path, name, table))
    training, held = by_site(table)
    encoder = OneHotEncoder(drop="if_binary", handle_unknown="ignore", sparse_output=False)
    with pytest.warns(UserWarning, match="unknown categories"):
        expected = encoder.fit(training[["ward", "sex"]]).transform(held[["ward", "sex"]])
    names = [name.replace("_", "=") for name in encoder.get_feature_names_out()]
    assert names == ["ward=er", "ward=eye", "ward=heart", "ward=icu", "sex=M"]
    assert data.features == ("age", *names[:4], "lab", "sex=M", "bmi", "smokes")
    for part, x in ((held, data.x_val), (training, data.x)):
        found = columns_of(data, not_none(x))
        if part is held:
            np.testing.assert_array_equal(np.column_stack([found[n] for n in names]), expected)
        else:
            dummies = pd.get_dummies(part[["ward", "sex"]], prefix_sep="=")[names]
            np.testing.assert_array_equal(np.column_stack([found[n] for n in names]), dummies)
        for plain in ("age", "lab", "bmi", "smokes"):
            np.testing.assert_array_equal(found[plain], part[plain].astype(float))


@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
def test_gaps_are_filled_as_scikit_learn_does(tmp_path, missing):
    table = patients_with_gaps()
    data = load_patients(save(tmp_path, "t.csv", table), missing=missing)
    training, held = by_site(table)
    numbers = ["age", "lab", "bmi", "smokes"]
    how = "median" if missing == "median" else "mean"
    imputer = SimpleImputer(strategy=how, add_indicator=missing == "indicator").fit(training[numbers].astype(float))
    for part, x in ((training, data.x), (held, not_none(data.x_val))):
        expected, found = np.asarray(imputer.transform(part[numbers].astype(float))), columns_of(data, x)
        for name, values in zip(numbers, expected.T, strict=False):
            np.testing.assert_allclose(found[name], values, rtol=1e-14)
        gaps = [name for name in data.features if name.endswith("=missing")]
        if missing != "indicator":
            assert gaps == []
            text = SimpleImputer(strategy="most_frequent", missing_values=np.nan).fit(training[["ward", "sex"]])
            filled = pd.DataFrame(text.transform(part[["ward", "sex"]]), columns=["ward", "sex"])
            for name, level in [("ward", w) for w in ("er", "eye", "heart", "icu")] + [("sex", "M")]:
                np.testing.assert_array_equal(found[f"{name}={level}"], filled[name] == level)
        else:
            assert gaps == [f"{name}=missing" for name in ("ward", "lab", "sex", "bmi", "smokes")]
            told = [f"{name}=missing" for name in ("lab", "bmi", "smokes")]
            np.testing.assert_array_equal(np.column_stack([found[name] for name in told]), expected[:, 4:])
            for name in ("ward", "sex"):
                np.testing.assert_array_equal(found[f"{name}=missing"], part[name].isna())
                assert not (found[f"{name}=missing"] * found[{"ward": "ward=icu", "sex": "sex=M"}[name]]).any()


def test_sums_over_clients_are_the_statistics_of_all_rows():
    rng = np.random.default_rng(0)
    for trial in range(40):
        scale = 10.0 ** rng.integers(-300, 300) if trial % 2 else 1.0
        sites = [rng.standard_normal((n, 5)) * scale for n in rng.integers(1, 30, rng.integers(1, 6))]
        sites = [np.where(rng.random(x.shape) < 0.3, np.round(x / scale) * scale, x) for x in sites]  # ties, and -0.0
        sites = [np.where(rng.random(x.shape) < 0.2, np.nan, x) for x in sites]
        sites[0][0] = rng.standard_normal(5)  # no column is empty
        pooled = np.concatenate(sites)
        np.testing.assert_array_equal(federated_statistics.count_values(sites), np.isfinite(pooled).sum(axis=0))
        np.testing.assert_allclose(
            federated_statistics.column_means(sites), np.nanmean(pooled, axis=0), rtol=1e-11, atol=1e-14 * scale
        )
        np.testing.assert_array_equal(federated_statistics.column_medians(sites), np.nanmedian(pooled, axis=0))
    assert federated_statistics.count_levels([["x", "y", "x"], [], ["y", "x"]]) == {"x": 3, "y": 2}


# ---------------------------------------------------------------- tables of numbers stay as they were


def test_numbers_are_what_they_were(tmp_path):
    """The fingerprint is that of records of before; the arrays are the columns side by side, in their dtype."""
    lines = (f"{i},{i % 3 / 2},{'pq'[i % 2]},{i * 7 % 11}\n" for i in range(40))
    (tmp_path / "t.csv").write_text("a,b,site,y\n" + "".join(lines))
    assert Table(str(tmp_path / "t.csv"), "y").fingerprint() == "2fd1e3998b7d915f"
    assert Table(str(tmp_path / "t.csv"), "y", ignore=["site"]).fingerprint() != "2fd1e3998b7d915f"
    table = patients()[["age", "lab", "cost", "site"]].assign(lab=lambda t: t["lab"].astype(np.float32))
    data = load_patients(save(tmp_path, "t.parquet", table.assign(age=table["age"].astype(np.int8))))
    assert data.x.dtype == np.float32
    np.testing.assert_array_equal(data.x, by_site(table)[0][["age", "lab"]].to_numpy(np.float32))
    assert data.warnings == ()
    assert not_none(data.encoding).columns == (Column("age"), Column("lab"))


# ---------------------------------------------------------------- the encoding of new rows


def test_an_encoding_of_a_file_is_the_same_and_takes_rows_in_any_order(tmp_path):
    table = patients_with_gaps()
    data = load_patients(save(tmp_path, "t.csv", table), missing="indicator")
    encoding = Encoding.from_dict(json.loads(json.dumps(not_none(data.encoding).to_dict())))
    assert encoding == data.encoding
    assert encoding.feature_names == data.features
    held = by_site(table)[1]
    remarks: list[str] = []
    shuffled = held[[*reversed(held.columns)]].assign(more=1)
    np.testing.assert_array_equal(encoding.apply(shuffled, remarks), data.x_val)
    np.testing.assert_array_equal(encoding.apply(held.iloc[:1]), not_none(data.x_val)[:1])
    assert len(remarks) == 2
    assert remarks[0].startswith("gaps are filled: ")
    with fails("new.csv: there is no column 'ward' to make features of", "did you mean 'wards'"):
        encoding.apply(held.rename(columns={"ward": "wards"}), where="new.csv")
    with fails("column 'age' holds 'old' in row 2", "make it a number"):
        encoding.apply(held.assign(age=["33", "old"] * (len(held) // 2) + ["4"] * (len(held) % 2)))
    with fails("column 'lab' is infinite in row 1"):
        encoding.apply(held.assign(lab=np.inf))


@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
def test_an_infinite_value_is_named_beside_gaps_elsewhere(tmp_path, missing):
    table = patients().assign(lab=lambda t: t["lab"].where(t.index != 7, np.inf))
    table.loc[16, "bmi"] = np.nan
    with fails("column 'lab' is infinite in row 8; mend it or drop the row"):
        load_patients(save(tmp_path, "t.csv", table), missing=missing)


def test_levels_that_training_has_not_are_said_and_coded_as_none(tmp_path):
    table = patients()
    held = (table["site"] == "held").to_numpy()
    table.loc[np.flatnonzero(held)[:2], "sex"] = "X"
    table.loc[held, "ward"] = ["moon", "lung", "lung", *["icu"] * (held.sum() - 3)]
    data = load_patients(save(tmp_path, "t.csv", table))
    ward, sex = (r for r in data.warnings if "no training row has" in r)
    assert "column 'ward' has levels that no training row has, 'lung' in 2 rows (" in ward
    assert f"'moon' in row {np.flatnonzero(held)[0] + 1}: they are" in ward
    assert "coded as none of its levels, with 0" in ward
    assert "column 'sex' has levels that no training row has, 'X' in 2 rows (" in sex
    assert sex.endswith("with 0, as 'F' is")
    found = columns_of(data, not_none(data.x_val))
    wards = np.sum([found[name] for name in data.features if name.startswith("ward=")], axis=0)
    np.testing.assert_array_equal(wards == 0, table.loc[held, "ward"].isin(["moon", "lung"]))
    assert not found["sex=M"][(table.loc[held, "sex"] == "X").to_numpy()].any()


def test_a_gap_in_new_rows_where_training_had_none(tmp_path):
    table = patients()
    new = table.head(3).assign(lab=[np.nan, 1, 2], ward=["icu", None, "er"])
    with fails("column 'ward' is missing in row 2", "data.missing=refuse"):
        not_none(load_patients(save(tmp_path, "t.csv", table)).encoding).apply(new)
    for missing in ("mean", "median", "indicator"):
        remarks: list[str] = []
        encoding = not_none(load_patients(save(tmp_path, "t.csv", table), missing=missing).encoding)
        x = encoding.apply(new, remarks)
        training = by_site(table)[0]
        lab = training["lab"].median() if missing == "median" else training["lab"].mean()
        assert x[0, encoding.feature_names.index("lab")] == pytest.approx(lab, rel=1e-14)
        most = training["ward"].mode()[0]
        assert x[1, encoding.feature_names.index(f"ward={most}")] == 1
        assert remarks == [f"gaps are filled: 'ward' by '{most}' in row 2, 'lab' by {lab:.6g} in row 1"]


def test_what_is_said_of_single_rows():
    columns = (Column("lab", fill=2.5, indicator=True), Column("sex", "levels", ("f", "m"), fill="f"),
               Column("ward", "levels", ("er", "icu", "x y"), indicator=True))  # fmt: skip
    new = pd.DataFrame({"lab": [1, None, 3, 4], "sex": ["m", "M ", "d", None], "ward": ["er", "X  Y", None, "moon"]})
    told: list[list[str]] = [[] for _ in range(4)]
    x = Encoding(columns).apply(new, row_warnings=told)
    assert told == [
        [],
        ["lab empty: filled by 2.5 and marked as missing",
         "sex 'M' unknown, did you mean 'm'?: coded as none, which counts as 'f'",
         "ward 'X  Y' unknown, did you mean 'x y'?: coded as none"],
        ["sex 'd' unknown: coded as none, which counts as 'f'", "ward empty: marked as missing"],
        ["sex empty: filled by 'f'", "ward 'moon' unknown: coded as none"],
    ]  # fmt: skip
    np.testing.assert_array_equal(x, Encoding(columns).apply(new))
    remarks: list[str] = []
    many = pd.DataFrame({"lab": 1.0, "sex": ["m", *["d"] * 5], "ward": "er"})
    Encoding(columns).apply(many, remarks)
    assert remarks == ["column 'sex' has levels that no training row has, 'd' in 5 rows (2, 3, 4, ...): they are coded "
                       "as none of its levels, with 0, as 'f' is"]  # fmt: skip
