"""Encodings of tables with text and gaps, compared with scikit-learn and pandas on all rows at once."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers import fails, not_none
from patient_table import by_site, columns_of, load_patients, patients, patients_with_gaps
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder
from table_files import save

from fcorun.data.datasets.table import Table
from fcorun.data.tables.columns import LevelColumn, NumberColumn
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tables.imputation.training_cells import TrainingCells

pytestmark = pytest.mark.usefixtures("own_cache")


# ---------------------------------------------------------------- oracles


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.parquet"])
def test_text_is_encoded_as_by_scikit_learn_and_pandas(tmp_path, name):
    table = patients()
    data = load_patients(save(tmp_path, name, table))
    training, held_out = by_site(table)
    encoder = OneHotEncoder(drop="if_binary", handle_unknown="ignore", sparse_output=False)
    with pytest.warns(UserWarning, match="unknown categories"):
        expected = encoder.fit(training[["ward", "sex"]]).transform(held_out[["ward", "sex"]])
    names = [name.replace("_", "=") for name in encoder.get_feature_names_out()]
    assert names == ["ward=er", "ward=eye", "ward=heart", "ward=icu", "sex=M"]
    assert data.features.names == ("age", *names[:4], "lab", "sex=M", "bmi", "smokes")
    for rows, x in ((held_out, not_none(data.validation).x), (training, data.train.x)):
        features = columns_of(data, not_none(x))
        if rows is held_out:
            expected[~rows["ward"].isin(training["ward"]), :4] = 1 / 4  # the mean of the levels
            np.testing.assert_array_equal(np.column_stack([features[n] for n in names]), expected)
        else:
            dummies = pd.get_dummies(rows[["ward", "sex"]], prefix_sep="=")[names]
            np.testing.assert_array_equal(np.column_stack([features[n] for n in names]), dummies)
        for name in ("age", "lab", "bmi", "smokes"):
            np.testing.assert_array_equal(features[name], rows[name].astype(float))


@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
def test_gaps_are_filled_as_by_scikit_learn(tmp_path, missing):
    table = patients_with_gaps()
    data = load_patients(save(tmp_path, "t.csv", table), missing=missing)
    training, held_out = by_site(table)
    numbers = ["age", "lab", "bmi", "smokes"]
    strategy = "median" if missing == "median" else "mean"
    imputer = SimpleImputer(strategy=strategy, add_indicator=missing == "indicator").fit(
        training[numbers].astype(float)
    )
    for rows, x in ((training, data.train.x), (held_out, not_none(data.validation).x)):
        expected = np.asarray(imputer.transform(rows[numbers].astype(float)))
        features = columns_of(data, x)
        for name, values in zip(numbers, expected.T, strict=False):
            np.testing.assert_allclose(features[name], values, rtol=1e-14)
        indicators = [name for name in data.features.names if name.endswith("=missing")]
        if missing != "indicator":
            assert indicators == []
            text = SimpleImputer(strategy="most_frequent", missing_values=np.nan).fit(training[["ward", "sex"]])
            filled = pd.DataFrame(text.transform(rows[["ward", "sex"]]), columns=["ward", "sex"])
            for name, level in [("ward", w) for w in ("er", "eye", "heart", "icu")] + [("sex", "M")]:
                mean = 1 / training[name].nunique()
                is_known = filled[name].isin(training[name])
                expected_level = np.where(is_known, filled[name] == level, mean)
                np.testing.assert_array_equal(features[f"{name}={level}"], expected_level)
        else:
            assert indicators == [f"{name}=missing" for name in ("ward", "lab", "sex", "bmi", "smokes")]
            numeric = [f"{name}=missing" for name in ("lab", "bmi", "smokes")]
            np.testing.assert_array_equal(np.column_stack([features[name] for name in numeric]), expected[:, 4:])
            for name in ("ward", "sex"):
                np.testing.assert_array_equal(features[f"{name}=missing"], rows[name].isna())
                level = {"ward": "ward=icu", "sex": "sex=M"}[name]
                assert not (features[f"{name}=missing"] * features[level]).any()


@pytest.mark.slow
def test_sums_over_clients_are_the_statistics_of_all_rows():
    rng = np.random.default_rng(0)
    for trial in range(40):
        scale = 10.0 ** rng.integers(-300, 300) if trial % 2 else 1.0
        matrices = [rng.standard_normal((n, 5)) * scale for n in rng.integers(1, 30, rng.integers(1, 6))]
        matrices = [
            np.where(rng.random(x.shape) < 0.3, np.round(x / scale) * scale, x) for x in matrices
        ]  # ties and -0.0
        matrices = [np.where(rng.random(x.shape) < 0.2, np.nan, x) for x in matrices]
        matrices[0][0] = rng.standard_normal(5)  # no column is empty
        pooled = np.concatenate(matrices)
        client = np.repeat(np.arange(len(matrices)), [len(x) for x in matrices])
        for values in pooled.T:
            of_means = NumberColumn("lab").describe_cells(values, client, "mean")
            assert of_means.n_values == np.isfinite(values).sum()
            np.testing.assert_allclose(of_means.mean(), np.nanmean(values), rtol=1e-11, atol=1e-14 * scale)
            assert NumberColumn("lab").describe_cells(values, client, "median").median() == np.nanmedian(values)


# ---------------------------------------------------------------- tables of numbers


def test_tables_of_numbers_keep_their_fingerprint_and_dtype(tmp_path):
    lines = (f"{i},{i % 3 / 2},{'pq'[i % 2]},{i * 7 % 11}\n" for i in range(40))
    (tmp_path / "t.csv").write_text("a,b,site,y\n" + "".join(lines))
    assert Table(str(tmp_path / "t.csv"), "y").fingerprint() == "cc51694a2183bf09"
    assert Table(str(tmp_path / "t.csv"), "y", ignore=["site"]).fingerprint() != "cc51694a2183bf09"
    table = patients()[["age", "lab", "cost", "site"]].assign(lab=lambda t: t["lab"].astype(np.float32))
    data = load_patients(save(tmp_path, "t.parquet", table.assign(age=table["age"].astype(np.int8))))
    assert data.train.x.dtype == np.float32
    np.testing.assert_array_equal(data.train.x, by_site(table)[0][["age", "lab"]].to_numpy(np.float32))
    assert data.warnings == ()
    encoding = not_none(data.features.encoding)
    assert encoding.columns == (NumberColumn("age"), NumberColumn("lab"))
    floats = pd.DataFrame({"lab": [0.5, 1.5], "age": [30.0, 40.0]})
    np.testing.assert_array_equal(encoding.apply(floats), [[30.0, 0.5], [40.0, 1.5]])
    np.testing.assert_array_equal(encoding.apply(floats.assign(more="text")), encoding.apply(floats))


# ---------------------------------------------------------------- the encoding of new rows


def test_an_encoding_survives_json_and_finds_columns_by_name(tmp_path):
    table = patients_with_gaps()
    data = load_patients(save(tmp_path, "t.csv", table), missing="indicator")
    encoding = Encoding.from_dict(json.loads(json.dumps(not_none(data.features.encoding).to_dict())))
    assert encoding == data.features.encoding
    assert encoding.feature_names == data.features.names
    held_out = by_site(table)[1]
    warnings: list[str] = []
    shuffled = held_out[[*reversed(held_out.columns)]].assign(more=1)
    np.testing.assert_array_equal(encoding.apply(shuffled, warnings), not_none(data.validation).x)
    np.testing.assert_array_equal(encoding.apply(held_out.iloc[:1]), not_none(data.validation).x[:1])
    assert len(warnings) == 2
    assert warnings[0].startswith("gaps are filled: ")
    with fails("new.csv: there is no column 'ward' to make features of", "did you mean 'wards'"):
        encoding.apply(held_out.rename(columns={"ward": "wards"}), where="new.csv")
    with fails("column 'age' holds 'old' in row 2", "make it a number"):
        encoding.apply(held_out.assign(age=["33", "old"] * (len(held_out) // 2) + ["4"] * (len(held_out) % 2)))
    with fails("column 'lab' is infinite in row 1"):
        encoding.apply(held_out.assign(lab=np.inf))


@pytest.mark.parametrize("missing", ["mean", "median", "indicator"])
def test_an_infinite_value_is_refused_despite_gaps_elsewhere(tmp_path, missing):
    table = patients().assign(lab=lambda t: t["lab"].where(t.index != 7, np.inf))
    table.loc[16, "bmi"] = np.nan
    with fails("column 'lab' is infinite in row 8; mend it or drop the row"):
        load_patients(save(tmp_path, "t.csv", table), missing=missing)


def test_unseen_levels_are_warned_about_and_encoded_as_the_mean_of_levels(tmp_path):
    table = patients()
    held_out = (table["site"] == "held").to_numpy()
    table.loc[np.flatnonzero(held_out)[:2], "sex"] = "X"
    table.loc[held_out, "ward"] = ["moon", "lung", "lung", *["icu"] * (held_out.sum() - 3)]
    data = load_patients(save(tmp_path, "t.csv", table))
    ward, sex = (r for r in data.warnings if "no training row has" in r)
    assert "column 'ward' has levels that no training row has, 'lung' in 2 rows (" in ward
    assert f"'moon' in row {np.flatnonzero(held_out)[0] + 1}: they are" in ward
    assert ward.endswith("coded as the mean of its levels, with 1/4")
    assert "column 'sex' has levels that no training row has, 'X' in 2 rows (" in sex
    assert sex.endswith("with 1/2")
    features = columns_of(data, not_none(data.validation).x)
    unknown = table.loc[held_out, "ward"].isin(["moon", "lung"]).to_numpy()
    for name in ("ward=er", "ward=eye", "ward=heart", "ward=icu"):
        np.testing.assert_array_equal(features[name] == 1 / 4, unknown)
    np.testing.assert_array_equal(features["sex=M"] == 1 / 2, table.loc[held_out, "sex"] == "X")
    np.testing.assert_array_equal(
        not_none(not_none(data.validation).remark) != "", unknown | (features["sex=M"] == 0.5)
    )
    assert not_none(data.train.remark).tolist() == [""] * len(data.train)


@pytest.mark.slow
def test_a_gap_in_new_rows_is_filled_unless_gaps_are_refused(tmp_path):
    table = patients()
    new = table.head(3).assign(lab=[np.nan, 1, 2], ward=["icu", None, "er"])
    with fails("column 'ward' is missing in row 2", "data.missing=refuse"):
        not_none(load_patients(save(tmp_path, "t.csv", table)).features.encoding).apply(new)
    for missing in ("mean", "median", "indicator"):
        warnings: list[str] = []
        encoding = not_none(load_patients(save(tmp_path, "t.csv", table), missing=missing).features.encoding)
        x = encoding.apply(new, warnings)
        training = by_site(table)[0]
        lab = training["lab"].median() if missing == "median" else training["lab"].mean()
        assert x[0, encoding.feature_names.index("lab")] == pytest.approx(lab, rel=1e-14)
        most_frequent = training["ward"].mode()[0]
        assert x[1, encoding.feature_names.index(f"ward={most_frequent}")] == 1
        assert warnings == [f"gaps are filled: 'ward' by '{most_frequent}' in row 2, 'lab' by {lab:.6g} in row 1"]


def test_filled_gaps_and_unseen_levels_are_warned_about_by_row():
    columns = (
        NumberColumn("lab", fill=2.5, indicator=True),
        LevelColumn("sex", fill="f", levels=("f", "m")),
        LevelColumn("ward", indicator=True, levels=("er", "icu", "x y")),
    )
    new = pd.DataFrame({"lab": [1, None, 3, 4], "sex": ["m", "M ", "d", None], "ward": ["er", "X  Y", None, "moon"]})
    row_warnings: list[list[str]] = [[] for _ in range(4)]
    x = Encoding(columns).apply(new, row_warnings=row_warnings)
    assert row_warnings == [
        [],
        ["lab empty: filled by 2.5 and marked as missing",
         "sex 'M' unknown (did you mean 'm'?): coded as the mean of its levels, with 1/2",
         "ward 'X  Y' unknown (did you mean 'x y'?): coded as the mean of its levels, with 1/3"],
        ["sex 'd' unknown: coded as the mean of its levels, with 1/2", "ward empty: marked as missing"],
        ["sex empty: filled by 'f'", "ward 'moon' unknown: coded as the mean of its levels, with 1/3"],
    ]  # fmt: skip
    np.testing.assert_array_equal(x, Encoding(columns).apply(new))
    warnings: list[str] = []
    many = pd.DataFrame({"lab": 1.0, "sex": ["m", *["d"] * 5], "ward": "er"})
    Encoding(columns).apply(many, warnings)
    assert warnings == [
        "column 'sex' has levels that no training row has, 'd' in 5 rows (2, 3, 4, ...): they are coded as the mean of "
        "its levels, with 1/2"
    ]


def test_a_level_that_a_fold_does_not_train_on_is_the_mean_of_the_others():
    """A fold's training rows fix the coefficients of their levels up to a constant, which the intercept absorbs."""
    frame = pd.DataFrame({"ward": ["er", "icu", "eye", "er", "icu"]})
    column = LevelColumn("ward", levels=("er", "eye", "icu"))
    x = Encoding((column,)).apply(frame)
    cells = not_none(TrainingCells.from_features(x, Encoding((column,)), {}, np.zeros(5, np.int32), "refuse"))
    fits = cells.fit((frame["ward"] != "eye").to_numpy())
    expected = [[1, 0, 0], [0, 0, 1], [0.5, 0, 0.5], [1, 0, 0], [0, 0, 1]]
    np.testing.assert_array_equal(cells.encode_rows(x, fits, None), expected)


def test_rare_and_unseen_levels_of_sites_are_coded_as_other():
    column = LevelColumn("dx", fill="flu", levels=("cold", "flu", "other"), other="other")
    encoding = Encoding.from_dict(json.loads(json.dumps(Encoding((column,)).to_dict())))
    warnings: list[str] = []
    row_warnings: list[list[str]] = [[] for _ in range(4)]
    x = encoding.apply(pd.DataFrame({"dx": ["gout", "cold", "Flu", None]}), warnings, row_warnings=row_warnings)
    np.testing.assert_array_equal(x, [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]])
    assert warnings[-1] == ("column 'dx' has levels that are rare or unseen, 'Flu' in row 3 (did you mean 'flu'?), "
                            "'gout' in row 1: they are coded as 'other'")  # fmt: skip
    assert row_warnings[0] == ["dx 'gout' rare or unknown: coded as 'other'"]
    assert "other" not in LevelColumn("dx", levels=("cold", "flu", "other")).to_dict()  # nor in earlier records
