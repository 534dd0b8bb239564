"""Restricted cubic splines, against R's rms on MASS::birthwt."""

import numpy as np
import pandas as pd
import pytest

import fcorun
from fcorun.base.errors import UserError
from fcorun.data.tables.columns import SplineColumn
from fcorun.data.tables.columns.column import TrainingRows

LOW = (
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "00000000000000000000000000000011111111111111111111111111111111111111111111111111111111111"
)
AGE = (
    "19 33 20 21 18 21 22 17 29 26 19 19 22 30 18 18 15 25 20 28 32 31 36 28 25 28 17 29 26 17 17 24 35 "
    "25 25 29 19 27 31 33 21 19 23 21 18 18 32 19 24 22 22 23 22 30 19 16 21 30 20 17 17 23 24 28 26 20 "
    "24 28 20 22 22 31 23 16 16 18 25 32 20 23 22 32 30 20 23 17 19 23 36 22 24 21 19 25 16 29 29 19 19 "
    "30 24 19 24 23 20 25 30 22 18 16 32 18 29 33 20 28 14 28 25 16 20 26 21 22 25 31 35 19 24 45 28 29 "
    "34 25 25 27 23 24 24 21 32 19 25 16 25 20 21 24 21 20 25 19 19 26 24 17 20 22 27 20 17 25 20 18 18 "
    "20 21 26 31 15 23 20 24 15 23 30 22 17 23 17 26 20 26 14 28 14 23 17 21 "
)
LWT = (
    "182 155 105 108 107 124 118 103 123 113 95 150 95 107 100 100 98 118 120 120 121 100 202 120 120 167 "
    "122 150 168 113 113 90 121 155 125 140 138 124 215 109 185 189 130 160 90 90 132 132 115 85 120 128 "
    "130 95 115 110 110 153 103 119 119 119 110 140 133 169 115 250 141 158 112 150 115 112 135 229 140 "
    "134 121 190 131 170 110 127 123 120 105 130 175 125 133 134 235 95 135 135 154 147 147 137 110 184 "
    "110 110 120 241 112 169 120 170 186 120 130 117 170 134 135 130 120 95 158 160 115 129 130 120 170 "
    "120 116 123 120 130 187 105 85 150 97 128 132 165 105 91 115 130 92 150 200 155 103 125 89 102 112 "
    "117 138 130 120 130 130 80 110 105 109 148 110 121 100 96 102 110 187 122 105 115 120 142 130 120 "
    "110 120 154 105 190 101 95 100 94 142 130 "
)


@pytest.fixture(scope="module")
def births():
    age = list(map(int, AGE.split()))
    return pd.DataFrame({"low": list(map(int, LOW)), "age": age, "lwt": list(map(int, LWT.split()))})


def fit(series, n_knots, missing="refuse"):
    column = SplineColumn("age", n_knots=n_knots)
    rows = TrainingRows(np.arange(len(series)), np.zeros(len(series), int))
    return column.fit(column.describe(series, rows, missing, "a test"), missing, "a test")


@pytest.mark.parametrize(("n_knots", "knots"), [(3, (17, 23, 31)), (4, (16, 20, 25, 32)), (5, (16, 20, 23, 26, 32))])
def test_knots_are_those_of_rms(births, n_knots, knots):
    assert fit(births.age, n_knots).knots == pytest.approx(knots, abs=1e-12)


@pytest.mark.parametrize(
    ("n_knots", "age", "terms"),
    [
        (3, 19, [0.0408163265306]),
        (4, 19, [0.10546875, 0]),
        (4, 33, [14.625, 5.15625]),
        (4, 20, [0.25, 0]),
        (5, 33, [15.625, 5.90625, 1.8984375]),
    ],
)
def test_terms_are_those_of_rms(births, n_knots, age, terms):
    features = fit(births.age, n_knots).encode(pd.Series([age], name="age"), "a test").features
    np.testing.assert_allclose(np.ravel(features), [age, *terms], atol=1e-10)


def make_data(births, **options):
    options = {"splines": {"age": 4}, **options}
    return fcorun.from_frame(births, target="low", task="binary", validation=0.0, **options)


def test_a_logistic_model_is_that_of_glm(births, tmp_path):
    data = make_data(births)
    experiment = fcorun.Experiment(
        data=data, algorithm=fcorun.Newton(), regularizer=fcorun.NoRegularizer(), rounds=15, precision="float64"
    )
    record = experiment.run(tmp_path / "run")
    rows = record.coefficients
    expected = [-0.1330791392682, 0.8387745255541, -2.2174135459568, -0.0117436979585, 3.0655512483161]
    np.testing.assert_allclose(rows["value_original"], expected, atol=1e-6)
    assert rows["feature"].tolist()[:4] == ["age", "age'", "age''", "lwt"]
    intervals = record.infer(errors="model", data=data).frame.iloc
    # R: b <- coef(fit)[2:4]; pchisq(b %*% solve(vcov(fit)[2:4, 2:4]) %*% b, 3, lower.tail = FALSE)
    np.testing.assert_allclose(intervals[:3]["p_value"], 0.296600846451, atol=2e-6)
    assert intervals[:4]["p_holm"].notna().tolist() == [True, False, False, True]  # one test of the curve


@pytest.mark.filterwarnings("ignore:train_accuracy")  # that of predicting one class
def test_a_penalty_factor_of_a_column_is_of_all_terms(births, tmp_path):
    regularizer = fcorun.L1(strength=20, factors={"age": 0})
    experiment = fcorun.Experiment(data=make_data(births), algorithm=fcorun.Newton(), regularizer=regularizer, rounds=9)
    values = experiment.run(tmp_path / "run").coefficients["value"]
    assert (values[:3].abs() > 0.01).all()
    assert abs(values[3]) < 1e-6


def test_a_record_codes_new_rows_by_its_own_splines(births, tmp_path):
    run = fcorun.Experiment(
        data=make_data(births), algorithm=fcorun.Newton(), regularizer=fcorun.NoRegularizer(), rounds=2
    ).run(tmp_path / "run")
    assert make_data(births, encoding=str(run.folder)).load().features.names[:3] == ("age", "age'", "age''")
    with pytest.raises(UserError, match="has other splines or none: leave"):
        make_data(births, encoding=str(run.folder), splines={"lwt": 3}).load()


def test_arrays_with_names_have_splines(births):
    x = births[["age", "lwt"]].to_numpy(float)
    data = fcorun.from_arrays(x, births.low, feature_names=["age", "lwt"], validation=0.0, splines={"age": 3})
    assert data.load().features.names == ("age", "age'", "lwt")


def test_gaps_are_imputed_before_the_terms(births):
    age = births.age.astype(float)
    age[3] = np.nan
    column = fit(age, 4, "mean")
    of_gap, of_fill = (column.encode(pd.Series([x]), "a test").features for x in (np.nan, column.fill))
    np.testing.assert_array_equal(of_gap, of_fill)


def test_too_few_different_numbers_are_refused(births):
    with pytest.raises(UserError, match="too few different numbers in training rows for 4 knots: give fewer knots"):
        fit(births.low, 4)


@pytest.mark.parametrize(
    ("splines", "message"),
    [
        ({"age": 2}, "from 3 to 7"),
        ({"age": 8}, "from 3 to 7"),
        ({"agee": 4}, "did you mean 'age'"),
        ({"ward": 4}, "holds text.*leave 'ward' out"),
    ],
)
def test_what_has_no_curve_is_refused(births, splines, message):
    frame = births.assign(ward=np.where(births.age > 20, "eye", "ear"))
    with pytest.raises(UserError, match=message):
        fcorun.from_frame(frame, target="low", task="binary", splines=splines).load()
