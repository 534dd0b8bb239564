"""Concordance, baseline hazards and probabilities of survival."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import SHARED, fails
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

import fcorun
from fcorun.data.rows.row_groups import RowGroups
from fcorun.data.tasks import Survival
from fcorun.data.tasks.time_to_event import TIME_ZERO
from fcorun.methods.objectives import Cox
from fcorun.results.models.predictions import find_few_levels
from fcorun.results.scores.concordance import Concordance
from fcorun.results.scores.score import compute_scores
from fcorun.results.scores.weighted_rows import ScoredRows, WeightedRows
from fcorun.results.survival import (
    baseline_hazard,
    baseline_hazards,
    survival_probabilities,
)


def test_concordant_pairs_are_those_of_the_definition():
    """An event and a row of its client that outlives it; ties of predictions count one half."""
    rng = np.random.default_rng(0)
    n = 60
    times = rng.integers(1, 9, n) * np.where(rng.random(n) < 0.6, 1.0, -1.0)
    p, client = rng.integers(5, size=n) / 2, rng.integers(3, size=n)
    concordant, pairs = Concordance(times, p, client).count_pairs()
    for i in range(n):
        later = (abs(times) > abs(times[i])) | ((abs(times) == abs(times[i])) & (times < 0))
        outlives = (client == client[i]) & later & (times[i] > 0)
        assert pairs[i] == outlives.sum()
        assert concordant[i] == (outlives & (p < p[i])).sum() + (outlives & (p == p[i])).sum() / 2
    rows = scored_times(times, p, client)
    assert list(score_survival(rows.in_groups(client))) == ["calibration_slope", "c_index"]
    together = score_survival(rows)
    assert together["c_index"][0] == pytest.approx(concordant.sum() / pairs.sum())
    assert together["c_index_all_pairs"][0] != together["c_index"][0]


def scored_times(times, p, client):
    groups = RowGroups(np.zeros(len(times), int))
    return ScoredRows(task=Survival(), target=times, prediction=p, client=client, groups=groups)


def score_survival(rows):
    return {name: values[0] for name, values in compute_scores(WeightedRows.each_once(rows)).items()}


def test_the_score_of_perfect_and_of_no_predictions():
    times, client = np.array([1.0, 2, -3, 4, -4]), np.zeros(5, int)
    assert score_survival(scored_times(times, -np.arange(5.0), client))["c_index"] == 1
    assert score_survival(scored_times(times, np.zeros(5), client))["c_index"] == 0.5
    assert np.isnan(score_survival(scored_times(-abs(times), np.zeros(5), client))["c_index"])


def test_the_calibration_slope_is_the_coefficient_of_the_linear_predictor():
    rng = np.random.default_rng(3)
    client = rng.integers(3, size=80)
    p = rng.standard_normal(80) * 3 + client
    times = np.ceil(9 * rng.exponential(np.exp(-p / 5))) * np.where(rng.random(80) < 0.7, 1.0, -1.0)
    rows = scored_times(times, p, client)

    def find_slope(among):
        """Minimize the partial loss of some rows, stratified by client, by its definition."""
        events = np.flatnonzero((times > 0) & among)
        at_risk = [among & (client == client[i]) & (abs(times) >= times[i]) for i in events]

        def loss(b):
            return sum(logsumexp(b * p[rows]) - b * p[i] for i, rows in zip(events, at_risk, strict=True))

        return minimize_scalar(loss, (-1, 1), tol=1e-9).x

    np.testing.assert_allclose(score_survival(rows)["calibration_slope"], find_slope(client >= 0), rtol=1e-5)
    slopes = score_survival(rows.in_groups(client))["calibration_slope"]
    np.testing.assert_allclose(slopes, [find_slope(client == k) for k in range(3)], rtol=1e-5)
    ordered = scored_times(np.array([1.0, 2, 3, -4]), -np.arange(4.0), np.zeros(4, int))
    assert np.isnan(score_survival(ordered)["calibration_slope"])
    assert np.isnan(score_survival(scored_times(-abs(times), p, client))["calibration_slope"])


BREAST = SHARED / "data" / "medical" / "breast.csv"
# R's coxph(Surv(time, rfs) ~ ... + strata(centre), ties = "breslow") without GBSG
COX = {"age": 6.41785049e-03, "meno": -1.80505664e-02, "grade": 3.86492257e-01, "nodes": 8.36942325e-02,
       "pgr": -1.45611692e-04, "er": 3.18886948e-06, "hormon": -1.43397781e-02}  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not BREAST.exists(), reason=f"{BREAST} does not exist: the slope of GBSG is not compared with R's")
def test_a_client_that_is_left_out_has_the_slope_of_r(tmp_path):
    data = fcorun.from_frame(pd.read_csv(BREAST), "time", "centre", event="rfs", validation=0.0, test=["GBSG"])
    experiment = fcorun.Experiment(
        data=data, algorithm=fcorun.Newton(), regularizer=fcorun.NoRegularizer(), rounds=12, precision="float64"
    )
    experiment.run(tmp_path / "run")
    coefficients = pd.read_csv(tmp_path / "run" / "coefficients.csv").set_index("feature")["value"]
    assert coefficients.to_dict() == pytest.approx(COX, rel=1e-5)
    scores = pd.read_csv(tmp_path / "run" / "scores.csv").query("set == 'test'")
    np.testing.assert_allclose(scores["calibration_slope"], 0.719317068, rtol=1e-6)
    np.testing.assert_allclose(scores["c_index"], 0.654183450, rtol=1e-8)


def test_the_baseline_hazard_is_breslows():
    times, p = np.array([2.0, -1, 2, 5, -7]), np.array([0.3, 1.0, -0.2, 0.5, 2.0])
    weight = np.array([1.0, 1, 2, 1, 1])
    rows = pd.DataFrame(baseline_hazard(np.append(times, 3.0), np.append(p, 0.0), np.append(weight, 0.0)))
    at_risk_at_2 = np.exp(0.3) + 2 * np.exp(-0.2) + np.exp(0.5) + np.exp(2.0)
    at_5 = 3 / at_risk_at_2 + 1 / (np.exp(0.5) + np.exp(2.0))
    assert rows["time"].tolist() == [2, 5, 7]
    assert rows["events"].tolist() == [3, 1, 0]
    assert rows["at_risk"].tolist() == [5, 2, 1]
    np.testing.assert_allclose(rows["cumulative_hazard"], [3 / at_risk_at_2, at_5, at_5])
    huge = baseline_hazard(times, p + 900, np.ones(5))
    assert np.isfinite(huge[-1]["cumulative_hazard"])


@pytest.fixture(scope="module")
def patients():
    """A frame of patients at two clinics, with times and events."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.standard_normal((90, 3)), columns=["age", "dose", "marker"])
    time = rng.exponential(size=90) * np.exp(-frame["age"])
    frame = frame.assign(time=time.round(2) + 0.01, died=(rng.random(90) < 0.7).astype(int))
    return frame.assign(clinic=np.where(np.arange(90) < 40, "Basel", "Graz"))


def test_clients_without_rows_of_positive_weight_have_no_baseline_hazard(patients, tmp_path):
    assert baseline_hazard(np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)) == []
    assert baseline_hazard(np.zeros(0), np.zeros(0), np.zeros(0)) == []
    data = fcorun.from_frame(patients, "time", "clinic", event="died").load()
    weightless = replace(data, train=replace(data.train, weight=np.zeros(len(data.train))))
    content = baseline_hazards(Cox(), weightless, {"weights": np.zeros(3)})
    assert content == "client,time,events,at_risk,cumulative_hazard\n"
    record: Any = SimpleNamespace(folder=tmp_path, personal=None, summary={})
    for text in (content, "\n"):
        (tmp_path / "baseline_hazard.csv").write_text(text)
        survival = survival_probabilities(record, np.zeros(2), np.array(["Basel", "Graz"]), 0.5)
        assert np.isnan(survival.values).all()
        unknown = "no probability of survival for rows of Basel, Graz: the record has the baseline hazards of no client"
        assert survival.warnings == [unknown]


def test_the_baseline_hazard_of_all_clients_takes_them_as_one_risk_set(patients):
    data = fcorun.from_frame(patients, "time", "clinic", event="died").load()
    weights = np.array([0.5, -0.3, 0.2])
    table = pd.read_csv(io.StringIO(baseline_hazards(Cox(), data, {"weights": weights})), keep_default_na=False)
    together = baseline_hazard(data.train.y, data.train.x @ weights, np.ones(len(data.train)))
    assert set(table["client"]) == {"", "Basel", "Graz"}
    np.testing.assert_allclose(table.query("client == ''").drop(columns="client"), pd.DataFrame(together), rtol=1e-5)


@pytest.mark.slow
def test_a_record_predicts_probabilities_of_survival(patients):
    data = fcorun.from_frame(patients, "time", "clinic", event="died", standardize="pooled")
    record = fcorun.Experiment(data=data, algorithm=fcorun.Newton(), rounds=8, eval_every=4).run("run")
    assert record.config["objective"]["name"] == "cox"
    patients = patients.drop(columns=["time", "died"])
    predictions = record.predict(patients, at=0.5)
    baseline = pd.read_csv("run/baseline_hazard.csv")
    for clinic in ("Basel", "Graz"):
        rows = predictions[predictions["client"] == clinic]
        hazard = baseline.query(f"client == '{clinic}' and time <= 0.5")["cumulative_hazard"].max()
        np.testing.assert_allclose(rows["survival_at_0.5"], np.exp(-hazard * np.exp(rows["prediction"])))
    np.testing.assert_array_equal(record.predict(patients, at=0.001)["survival_at_0.001"], 1)
    for time in (np.nan, -3, np.inf):
        with fails("must be a positive time"):
            record.predict(patients, at=time)
    with pytest.warns(fcorun.ExperimentWarning, match=r"survival at 100, after the last training time of Basel \("):
        assert not record.predict(patients, at=100)["survival_at_100"].notna().to_numpy().any()
    is_before = baseline["time"] <= 0.5
    together = baseline[baseline["client"].isna() & is_before]["cumulative_hazard"].max()
    graz = baseline[(baseline["client"] == "Graz") & is_before]["cumulative_hazard"].max()
    new = patients[-1:].assign(clinic="Wien")
    for options, source, hazard in (({}, "all clients", together), ({"baseline": "Graz"}, "Graz", graz)):
        expected = f"rows of Wien have no baseline hazard of their own and get that of {source}"
        with pytest.warns(fcorun.ExperimentWarning) as caught:
            elsewhere = record.predict(new, at=0.5, **options)
        assert any(expected in str(warning.message) for warning in caught)
        assert elsewhere["baseline_hazard"].tolist() == [source]
        survival = np.exp(-hazard * np.exp(elsewhere["prediction"]))
        np.testing.assert_allclose(elsewhere["survival_at_0.5"], survival)
    with pytest.warns(fcorun.ExperimentWarning, match="rows without a client have no baseline hazard of their own"):
        record.predict(patients.drop(columns="clinic"), at=0.5)
    with fails("the record has the baseline hazards of Basel, Graz; give one of them"):
        record.predict(new, at=0.5, baseline="Linz")
    with fails("is for probabilities at a time: give at=TIME"):
        record.predict(new, baseline="Graz")
    assert "fcorun infer RECORD adds them" in record.report().read_text()
    with pytest.warns(fcorun.ExperimentWarning, match="54 events are few for 3 parameters"):
        intervals = record.infer(data=data, errors="model").frame
    assert list(intervals["method"]) == ["debiased lasso, errors of the model"] * 3
    assert "hazard ratio" in record.report().read_text()
    Path("run/baseline_hazard.csv").unlink()
    with fails("has no baseline_hazard.csv"):
        record.predict(patients, at=0.5)


def test_levels_with_few_rows_or_events_are_found(patients):
    ward = np.resize(["first ward", "second ward"], 90)
    ward[:3], ward[3:9] = "few", "no event"
    frame = patients.assign(ward=ward, died=np.where(ward == "no event", 0, 1))
    data = fcorun.from_frame(frame, "time", "clinic", event="died", standardize="pooled").load()
    assert find_few_levels(data) == {"ward=few": "3 rows", "ward=no event": "no events in 5 rows"}


def test_levels_that_few_groups_have_are_found(patients):
    """Eight rows of a level are of four patients."""
    ward = np.resize(["first ward", "second ward"], 90)
    ward[:8] = "few"
    frame = patients.assign(ward=ward, person=np.arange(90) // 2, died=1)
    data = fcorun.from_frame(frame, "time", "clinic", event="died", group="person", validation=0.0).load()
    assert find_few_levels(data) == {"ward=few": "rows of 4 groups"}


def test_levels_that_all_of_four_groups_have_are_not_few(patients):
    ward = np.resize(["first ward", "second ward", "third ward"], 90)
    frame = patients.assign(ward=ward, person=np.arange(90) % 4, died=1)
    data = fcorun.from_frame(frame, "time", event="died", group="person", validation=0.0).load()
    assert find_few_levels(data) == {}


def test_a_time_of_0_counts_before_all_others(patients):
    first = patients.assign(time=patients["time"].where(patients.index > 2, 0.0))
    data = [fcorun.from_frame(frame, "time", "clinic", event="died").load() for frame in (first, patients)]
    assert any("3 rows have the time 0, which counts as 1e-30" in text for text in data[0].warnings)
    assert (np.sign(data[0].train.y) == np.sign(data[1].train.y)).all()
    assert np.abs(data[0].train.y).min() == TIME_ZERO
    later = replace(data[0].train, y=np.sign(data[0].train.y) * np.maximum(np.abs(data[0].train.y), 0.001))
    assert baseline_hazard(later.y, 0 * later.y, 1 + 0 * later.y)[-1] == pytest.approx(
        baseline_hazard(data[0].train.y, 0 * later.y, 1 + 0 * later.y)[-1]
    )
    with fails("times must be positive"):
        fcorun.from_frame(patients.assign(time=-1.0), "time", "clinic", event="died").load()
