"""Records, predictions and intervals of models with intercepts of clients."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import SHARED, fails

from fcorun import compose, run
from fcorun.results.models.estimator import load_model
from fcorun.results.models.inference import infer
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.inference_table import build_table, find_warnings
from fcorun.results.models.predict import predict

BREAST = SHARED / "data" / "medical" / "breast.csv"
INTERCEPTS = "objective.client_intercepts=true"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def outcomes():
    """Return rows of three clinics, whose rates of the outcome and of the treatment differ."""
    rng = np.random.default_rng(0)
    clinic = np.repeat(["a", "b", "c"], [60, 80, 100])
    level = np.repeat([-1.0, 0.5, 1.5], [60, 80, 100])
    treated = (rng.random(240) < 1 / (1 + np.exp(-level))).astype(int)
    age = rng.normal(60, 10, 240)
    log_odds = level + 0.03 * (age - 60) - 0.7 * treated
    return pd.DataFrame({"clinic": clinic, "age": age, "treated": treated,
                         "ill": (rng.random(240) < 1 / (1 + np.exp(-log_odds))).astype(int)})  # fmt: skip


def record_of(*overrides, frame=None):
    (outcomes() if frame is None else frame).to_csv("rows.csv", index=False)
    table = ("data=table", "data.path=rows.csv", "data.target=ill", "data.client=clinic", "data.task=binary")
    settings = ("precision=float64", "data.standardize=pooled", "rounds=20", INTERCEPTS, "report=false")
    overrides = ("algo=newton", "reg=none", "data.validation=0", *settings, *table, *overrides)
    return run(compose(list(overrides)), Path(tempfile.mkdtemp(dir=".")) / "out")


def intercepts_in_units(record):
    rows = pd.read_csv(record.folder / "coefficients.csv", keep_default_na=False)
    return rows[rows["parameter"] == "bias"].set_index("feature")["value_original"]


def indicator_coefficients(*overrides):
    """Return the coefficients of the same problem, in which each clinic is an indicator without a penalty."""
    frame = outcomes()
    for clinic in "abc":
        frame[f"is_{clinic}"] = (frame["clinic"] == clinic).astype(int)
    free = "reg.factors={is_a: 0, is_b: 0, is_c: 0}"
    options = ("objective.client_intercepts=false", "objective.intercept=false", free, "data.standardize=none")
    return record_of("algo=centralized", "algo.tolerance=1e-13", *options, *overrides, frame=frame).solution["weights"]


def test_the_record_has_the_mean_and_each_intercept_and_predicts_with_them():
    record = record_of()
    intercepts = intercepts_in_units(record)
    assert intercepts.index.tolist() == ["", "a", "b", "c"]
    shares = np.array([60, 80, 100]) / 240
    np.testing.assert_allclose(intercepts[""], shares @ intercepts[["a", "b", "c"]])
    frame = outcomes().drop(columns="ill")
    clients = np.array([*frame.pop("clinic")[:-1], "d"], object)
    predictions, warnings = predict(record, frame, clients)
    weights = pd.read_csv(record.folder / "coefficients.csv").set_index("feature")["value_original"][["age", "treated"]]
    level = intercepts.rename({"": "d"})[clients].to_numpy()
    log_odds = frame[["age", "treated"]].to_numpy() @ weights.to_numpy() + level
    np.testing.assert_allclose(predictions["probability_1"], 1 / (1 + np.exp(-log_odds)), rtol=1e-10)
    assert predictions["intercept"].tolist() == ["client"] * 239 + ["mean"]
    assert any("gets the mean of the clients' intercepts" in warning for warning in warnings)
    np.testing.assert_allclose(load_model(record, "b").intercept_, intercepts["b"])


def test_the_l1_problem_is_that_of_indicators_without_a_penalty():
    penalty = ("reg=l1", "reg.strength=0.02", "data.standardize=none")
    weights = indicator_coefficients(*penalty)
    record = record_of(*penalty, "reference=true", "gap=true")
    solution = record.solution
    np.testing.assert_allclose([*solution["weights"], *solution["client_intercepts"]], weights, rtol=1e-6)
    assert record.summary["final"]["suboptimality"] < 1e-12
    assert record.summary["final"]["gap"] < 1e-12


def test_the_largest_strength_is_that_of_residuals_at_the_rates_of_the_clients():
    frame = outcomes()
    residuals = frame["ill"] - frame.groupby("clinic")["ill"].transform("mean")
    largest = np.abs((frame[["age", "treated"]].to_numpy() * residuals.to_numpy()[:, None]).mean(axis=0)).max()
    record = record_of("reg=l1", "reg.relative=1", "data.standardize=none")
    np.testing.assert_allclose(record.summary["strength"], largest, rtol=1e-12)


def test_held_out_rows_have_the_intercept_of_their_client_or_the_mean():
    record = record_of("data.validation=[c]")
    assert "are predicted with the mean of the clients' intercepts" in record.status["reason"]
    rows = pd.read_csv(record.folder / "predictions.csv")
    model = load_model(record)
    features = outcomes()[["age", "treated"]].iloc[rows["row"] - 1]
    np.testing.assert_allclose(rows["probability"], model.predict_proba(features)[:, 1], rtol=1e-9)
    losses = -np.log(np.where(rows["target"] == 1, rows["probability"], 1 - rows["probability"]))
    np.testing.assert_allclose(record.summary["final"]["val_loss"], losses.mean(), rtol=1e-9)
    record = record_of("data.validation=0.3")
    rows = pd.read_csv(record.folder / "predictions.csv")
    losses = -np.log(np.where(rows["target"] == 1, rows["probability"], 1 - rows["probability"]))
    np.testing.assert_allclose(record.summary["final"]["val_loss"], losses.mean(), rtol=1e-9)
    models = {clinic: load_model(record, clinic) for clinic in "abc"}
    for row in rows.itertuples():
        features = outcomes()[["age", "treated"]].iloc[[row.row - 1]]
        np.testing.assert_allclose(models[row.client].predict_proba(features)[0, 1], row.probability, rtol=1e-9)


def test_a_client_of_one_class_is_named_and_changes_no_coefficient():
    frame = outcomes()
    without = record_of("data.standardize=none", frame=frame).solution
    new_rows = frame[frame["clinic"] == "a"].assign(clinic="d", ill=1)
    record = record_of("data.standardize=none", frame=pd.concat([frame, new_rows]))
    np.testing.assert_allclose(record.solution["weights"], without["weights"], rtol=1e-6)
    assert "no finite intercept for client 'd', with rows of one class alone" in record.status["reason"]
    np.testing.assert_allclose(record.solution["client_intercepts"][3], without["bias"], rtol=1e-6)


def test_pairs_as_clients_are_remarked_where_coefficients_are_read():
    """The coefficient of matched pairs approaches twice the right one, which nothing said."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2))
    case = rng.random(100) < 1 / (1 + np.exp(x[:, 0] - x[:, 1]))  # of two rows with one case, the second
    frame = pd.DataFrame({"clinic": np.repeat(np.arange(100), 2), "age": x.ravel()})
    frame["ill"] = np.stack([~case, case], axis=1).ravel().astype(int)
    record = record_of(frame=frame)
    assert record.solution["weights"].item() > 1.5
    words = "half of the clients have at most 1 row of their smaller class"
    assert words in record.status["reason"]
    assert any(words in sentence for sentence in find_warnings(infer(record, InferenceOptions())))


@pytest.mark.parametrize("penalty", [("reg=none",), ("reg=l1", "reg.strength=0.01")])
def test_a_client_of_one_class_changes_no_interval(penalty):
    frame = outcomes()
    new_rows = frame[frame["clinic"] == "a"].assign(clinic="d", ill=1)
    tables = []
    for factor, rows in ((1, frame), (240 / 300, pd.concat([frame, new_rows]))):
        strength = [f"reg.strength={0.01 * factor}"] if "reg=l1" in penalty else []
        record = record_of("data.standardize=none", *penalty, *strength, frame=rows)
        inference = infer(record, InferenceOptions())
        tables.append(build_table(inference))
    expected, table = tables
    assert table.features == (*expected.features, "(intercept of d)")
    assert table.method[-1] == "not finite: rows of one class alone"
    np.testing.assert_allclose(table.estimate, [*expected.estimate, np.nan], rtol=1e-6)
    np.testing.assert_allclose(table.standard_error, [*expected.standard_error, np.nan], rtol=1e-6)
    assert table.to_csv().splitlines()[-1].startswith("(intercept of d),,")
    warning = "no finite intercept for client 'd', with rows of one class alone: these rows tell nothing"
    assert any(warning in line for line in find_warnings(inference))


def test_intervals_are_those_of_the_joint_model():
    record = record_of("data.standardize=none")
    table = build_table(infer(record, InferenceOptions(errors="model")))
    assert table.features == ("age", "treated", *(f"(intercept of {clinic})" for clinic in "abc"))
    frame = outcomes()
    x = np.column_stack([frame[["age", "treated"]], frame["clinic"].to_numpy()[:, None] == np.array(["a", "b", "c"])])
    probability = 1 / (1 + np.exp(-x @ table.estimate))
    covariance = np.linalg.inv((x.T * (probability * (1 - probability))) @ x)
    np.testing.assert_allclose(x.T @ (frame["ill"] - probability), 0, atol=1e-6)
    np.testing.assert_allclose(table.standard_error, np.sqrt(np.diagonal(covariance)), rtol=1e-6)


@pytest.mark.skipif(not BREAST.exists(), reason="breast.csv of the shared folder is not on this machine")
def test_the_centres_of_breast_cancer_are_those_of_r():
    overrides = [f"data.path={BREAST}", "data.target=rfs", "data.client=centre", "data.ignore=[time]"]
    record = record_of(*overrides)
    table = build_table(infer(record, InferenceOptions(errors="model")))
    estimates = dict(zip(table.features, zip(table.estimate, table.standard_error, strict=True), strict=True))
    np.testing.assert_allclose(estimates["hormon"], [-0.322002636835, 0.111783685312], rtol=1e-7)
    np.testing.assert_allclose(estimates["(intercept of GBSG)"], [-2.294663580149, 0.281326449740], rtol=1e-7)
    intercepts = intercepts_in_units(record)
    differences = intercepts[["Rott_early", "Rott_late", "Rott_mid"]] - intercepts["GBSG"]
    np.testing.assert_allclose(differences, [1.339903968918, 0.140629597223, 0.688793876024], rtol=1e-8)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["algo=ditto"], "algo=ditto trains others: choose another algo"),
        (["algo=one_client"], "algo=one_client trains others"),
        (["algo=fedavg", "batch_size=5"], "takes all rows of a client, which a minibatch does not have"),
        (["objective.intercept=false"], "objective.intercept=False none: leave one of them out"),
        (["objective=huber", INTERCEPTS, "algo=fedavg"], "not for objective=huber"),
        (["imputations=5"], "gives each its own: leave imputations out"),
    ],
)
def test_what_has_no_intercepts_of_clients_is_refused_by_name(overrides, sentence):
    with fails(sentence):
        record_of(*overrides)


@pytest.mark.slow
@pytest.mark.parametrize("standardize", ["none", "pooled"])
def test_a_level_of_one_client_does_not_take_the_reference_of_the_others_away(standardize):
    """Clinic c has only ward z: beside its intercept nothing tells what the ward does, as glm(ill ~ clinic + ward)."""
    frame = outcomes()
    frame["ward"] = np.where(np.arange(240) % 3 == 0, "x", "y")
    frame.loc[frame["clinic"] == "c", "ward"] = "z"
    options = (f"data.standardize={standardize}",)
    inference = infer(record_of(*options, frame=frame), InferenceOptions())
    table = pd.DataFrame(build_table(inference).to_rows(), columns=build_table(inference).columns)
    table = table.set_index("feature")
    assert table["method"][["ward=x", "ward=y", "ward=z"]].tolist() == ["Wald", "reference", "constant within clients"]
    frame["x"] = (frame.pop("ward") == "x").astype(int)
    by_hand = build_table(infer(record_of(*options, frame=frame), InferenceOptions()))
    for name, same in (("age", "age"), ("treated", "treated"), ("x", "ward=x")):
        np.testing.assert_allclose(table["estimate"][same], by_hand.estimate[by_hand.features.index(name)], rtol=1e-7)
    assert inference.distance is not None
    assert inference.distance.excess < 1e-9
    assert any("no coefficient of ward=z: one value in all rows of a client" in line
               for line in find_warnings(inference))  # fmt: skip
