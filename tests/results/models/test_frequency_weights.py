"""Frequency weights: a row of weight k is k equal rows in all results, which are those of R on the expanded rows."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from inferred_records import table_of

from fcorun import compose, from_arrays, run
from fcorun.base.records.record import Record
from fcorun.data.datasets.table import Table
from fcorun.experiment.prepare import prepare
from fcorun.results.models.inference import infer
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.inference_table import find_warnings
from fcorun.results.score_intervals.intervals import compute_intervals
from fcorun.results.score_intervals.score_table import ScoreOptions

pytestmark = pytest.mark.undrawn

# MASS::housing (Venables and Ripley, 2002): satisfaction of householders in Copenhagen
FREQUENCIES = [
    *(21, 21, 28, 34, 22, 36, 10, 11, 36, 61, 23, 17, 43, 35, 40, 26, 18, 54, 13, 9, 10, 8, 8, 12),
    *(6, 7, 9, 18, 6, 7, 15, 13, 13, 7, 5, 11, 14, 19, 37, 17, 23, 40, 3, 5, 23, 78, 46, 43),
    *(48, 45, 86, 15, 25, 62, 20, 23, 20, 10, 22, 24, 7, 10, 21, 57, 23, 13, 31, 21, 13, 5, 6, 13),
]
TABLE = ["data=table", "data.target=Sat", "data.weight=Freq", "reg=none", "precision=float64"]
POOLED = [*TABLE, "data.path=housing.csv", "data.clients=1", "data.validation=0", "data.weight_kind=frequency"]


def housing() -> pd.DataFrame:
    types = ("Tower", "Apartment", "Atrium", "Terrace")
    levels = product(("Low", "High"), types, ("Low", "Medium", "High"), ("Low", "Medium", "High"))
    table = pd.DataFrame(levels, columns=["Cont", "Type", "Infl", "Sat"])
    return table.assign(Freq=FREQUENCIES)


def expand(table: pd.DataFrame) -> pd.DataFrame:
    return table.loc[table.index.repeat(table["Freq"])].reset_index(drop=True)


@pytest.mark.slow
def test_errors_are_those_of_r_on_expanded_rows():
    """R: glm(high ~ Infl + Type + Cont, binomial, weights = Freq), and sandwich::vcovHC(., "HC1") on expanded rows."""
    table = housing()
    table.assign(Sat=np.where(table["Sat"] == "High", "yes", "no")).to_csv("housing.csv", index=False)
    run(compose([*POOLED, "data.task=binary", "data.positive=yes", "algo=newton"]), "record")
    features = ["Type=Atrium", "Type=Terrace", "Type=Tower", "Cont=Low", "Infl=High"]
    estimates = [0.0412877594, -0.5822008847, 0.5284965556, -0.3129627764, 0.7677684139]
    model = [0.156572481, 0.160998777, 0.129512186, 0.107729793, 0.132080361]
    robust = [0.159665705, 0.160262121, 0.130123211, 0.108983181, 0.133411404]
    for errors, expected in (("model", model), ("robust", robust)):
        found = table_of(Record("record"), errors=errors).loc[features]
        np.testing.assert_allclose(found["estimate"], estimates, rtol=0, atol=5e-9)
        np.testing.assert_allclose(found["standard_error"], expected, rtol=3e-7)


@pytest.mark.slow
def test_proportional_odds_are_those_of_r_on_expanded_rows():
    """R: MASS::polr on the 1,681 expanded rows, whose coefficients are differences from the level that R drops."""
    housing().to_csv("housing.csv", index=False)
    ordinal = ["data.task=ordinal", "data.order=[Low,Medium,High]", "algo=newton"]
    record = run(compose([*POOLED, *ordinal]), "record")
    value = record.coefficients.set_index("feature")["value"]
    polr = {"Infl=Low": -1.288827462, "Infl=Medium": -0.722437762, "Type=Atrium": 0.206148730,
            "Type=Terrace": -0.518637819, "Type=Tower": 0.572375604, "Cont=Low": -0.360293262}  # fmt: skip
    dropped = {"Infl": value["Infl=High"], "Type": value["Type=Apartment"], "Cont": 0.0}
    for name, expected in polr.items():
        assert value[name] - dropped[name.split("=")[0]] == pytest.approx(expected, abs=5e-5), name  # polr stops early
    assert record.summary["data"]["examples"] == 1681


@pytest.mark.slow
def test_results_are_those_of_a_file_with_each_row():
    """The table has clients, held-out rows, a text column, gaps and a rare level: all are counted as expanded."""
    rng = np.random.default_rng(0)
    n = 90
    table = pd.DataFrame({"age": rng.normal(50, 9, n).round(1), "ward": rng.choice(["er", "eye", "icu"], n),
                          "site": rng.choice(["a", "b", "c"], n), "Freq": rng.integers(0, 6, n)})  # fmt: skip
    table["Sat"] = rng.random(n) < 1 / (1 + np.exp(-0.1 * (table["age"] - 50)))
    table.loc[5, "age"] = None
    table.to_csv("counted.csv", index=False)
    expand(table).drop(columns="Freq").to_csv("expanded.csv", index=False)
    more = ["data.task=binary", "data.client=site", "data.missing=mean", "data.standardize=pooled", "algo=newton"]
    counted = run(compose([*TABLE, *more, "data.path=counted.csv", "data.weight_kind=frequency"]), "counted")
    options = [option for option in (*TABLE, *more) if option != "data.weight=Freq"]
    expanded = run(compose([*options, "data.path=expanded.csv"]), "expanded")
    for name in ("scores.csv", "coefficients.csv"):
        assert (counted.folder / name).read_text() == (expanded.folder / name).read_text()
    assert counted.predictions.drop(columns="table_row").equals(expanded.predictions)
    for section in ("outcome", "few_levels", "examples", "validation_examples"):
        assert counted.summary["data"].get(section) == expanded.summary["data"].get(section)
    for options in ({}, {"errors": "model"}):
        assert table_of(counted, **options).equals(table_of(expanded, **options))
    intervals = [compute_intervals(record.folder, ScoreOptions(samples=200)) for record in (counted, expanded)]
    assert intervals[0].to_csv() == intervals[1].to_csv()
    assert intervals[0].rows[0].n == len(counted.predictions) > 30
    assert intervals[0].warnings == intervals[1].warnings


@pytest.mark.slow
def test_intervals_of_whole_weights_ask_for_their_kind():
    table = housing()
    table.assign(Sat=np.where(table["Sat"] == "High", "yes", "no")).to_csv("housing.csv", index=False)
    options = [*TABLE, "data.path=housing.csv", "data.clients=2", "data.task=binary", "algo=newton"]
    record = run(compose(options), "unsaid")
    (question,) = [text for text in find_warnings(infer(record, InferenceOptions())) if "whole numbers" in text]
    assert "data.weight_kind=frequency gives the run standard errors" in question
    scores = compute_intervals(record.folder, ScoreOptions(samples=200))
    assert any("each row counts once, whatever its weight ('Freq')" in warning for warning in scores.warnings)
    said = run(compose([*options, "data.weight_kind=sampling"]), "said")
    assert not any("weight" in text for text in find_warnings(infer(said, InferenceOptions())))


def test_the_kind_of_weights_is_asked_for_and_checked(tmp_path):
    def load(table: pd.DataFrame, **options):
        table.to_csv(tmp_path / "t.csv", index=False)
        return Table(str(tmp_path / "t.csv"), "Sat", task="multiclass", clients=2, **options).load()

    def asks(table: pd.DataFrame, **options) -> bool:
        warnings = " ".join(load(table, weight="Freq", **options).warnings)
        return "if a weight counts equal rows, data.weight_kind=frequency gives the run" in warnings

    table = housing()
    assert asks(table)
    assert not asks(table, weight_kind="sampling")
    assert not asks(table.assign(Freq=1))
    assert not asks(table.assign(Freq=table["Freq"] + 0.5))
    counted = load(table, weight="Freq", weight_kind="frequency")
    assert counted.train.weight is None
    assert any("the 72 rows are 1,681 by their frequencies ('Freq')" in warning for warning in counted.warnings)
    assert not any("count each row once" in warning for warning in counted.warnings)
    with fails("column 'Freq' of", "has 21.5 in row 1", "data.weight_kind=sampling"):
        load(table.assign(Freq=table["Freq"] + 0.5), weight="Freq", weight_kind="frequency")
    with fails("adds up to 0 rows"):
        load(table.assign(Freq=0), weight="Freq", weight_kind="frequency")
    with fails("column 'Infl' is missing in row 40, in 1 of 72 rows"):
        load(table.assign(Infl=table["Infl"].where(table.index != 39)), weight="Freq", weight_kind="frequency")
    with fails("data.weight_kind=sampling needs data.weight"):
        load(table, weight_kind="sampling")


def test_a_plan_knows_weights_of_one_kind_alone():
    """A new key would change the digest of every plan; a site repeats its rows in its file."""
    with fails("unknown option 'data.weight_kind'"):
        prepare(compose(["data=sites", "data.target=Sat", "data.weight=Freq", "data.weight_kind=frequency"]))


@pytest.mark.parametrize("keep", ["null", "[id]"])
def test_predictions_have_the_number_of_the_row_in_the_table(keep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=40), "y": rng.normal(size=40), "w": np.resize([0, 1, 3], 40)})
    table.assign(id=[f"p{k}" for k in range(1, 41)]).to_csv("rows.csv", index=False)
    rest = ["data.only=[x]"] if keep == "null" else ["data.keep=[id]"]
    data = ["data=table", "data.path=rows.csv", "data.target=y", "data.weight=w", "data.weight_kind=frequency"]
    options = ["algo=newton", "reg=none", "rounds=2", "report=false", "data.clients=1", "data.validation=0.5"]
    predictions = run(compose([*data, *rest, *options]), "out").predictions
    assert predictions["row"].is_unique
    targets = table["y"].to_numpy()[predictions["table_row"] - 1]
    np.testing.assert_allclose(predictions["target"], targets)
    assert predictions["table_row"].duplicated().any()
    if keep == "[id]":
        assert predictions["id"].tolist() == [f"p{k}" for k in predictions["table_row"]]


def test_arrays_with_names_are_repeated_too():
    names = {"feature_names": ["a", "b"], "validation": 0.0, "sample_weight": [2, 0, 3]}
    data = from_arrays(np.arange(6.0).reshape(3, 2), [1.0, 2.0, 4.0], weight_kind="frequency", **names).load()
    np.testing.assert_array_equal(data.train.y, [1, 1, 4, 4, 4])
    np.testing.assert_array_equal(data.train.x[:, 0], [0, 0, 4, 4, 4])
