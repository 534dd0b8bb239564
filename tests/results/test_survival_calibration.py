"""Calibration at a time: Kaplan-Meier by hand and by statsmodels, groups, refusals, and fcorun scores --at."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fcorun
from fcorun.base.errors import UserError
from fcorun.interface.cli.commands import main
from fcorun.reports.pictures.survival_calibration_picture import PICTURE, SurvivalView
from fcorun.results.score_intervals.held_out_rows import HeldOutRows
from fcorun.results.survival import ALL_ROWS, GROUP, calibrate, calibrate_record, observe_risk


def held_out_rows(times, clients):
    n = len(times)
    return HeldOutRows(
        folder=Path(), split="test", model="shared", task="survival", client=np.asarray(clients), row=np.arange(n),
        group=None, target=np.asarray(times, float), prediction=np.zeros(n),
    )  # fmt: skip


def test_the_observed_risk_by_hand():
    """Six rows: an event at 1, one censored at 2, two events at 3 (one row censored then is at risk), the last at 6."""
    times = np.array([1.0, -2, 3, 3, -3, 6])
    found = observe_risk(times, 4)
    assert found.risk == pytest.approx(1 - 5 / 6 * 2 / 4)
    assert (found.events, found.censored, found.at_risk) == (3, 2, 1)
    at_three = observe_risk(times, 3)
    assert at_three.risk == found.risk  # an event at the time counts
    assert (at_three.events, at_three.censored, at_three.at_risk) == (3, 1, 4)
    assert observe_risk(times, 0.5).risk == 0
    assert observe_risk(times, 7).risk == 1  # the last row had its event
    after = observe_risk(np.append(times[:-1], -6), 7)
    assert np.isnan([after.risk, after.low, after.high]).all()
    assert after.at_risk == 0


@pytest.mark.parametrize(
    ("at", "survival", "low", "high", "at_risk"),
    [
        (6, 0.8571, 0.6197, 0.9516, 21),
        (10, 0.7529, 0.5032, 0.8894, 15),
        (16, 0.6275, 0.3675, 0.8049, 11),
        (23, 0.4482, 0.1881, 0.6801, 6),
    ],
)
def test_published_survival_of_patients_with_leukemia(at, survival, low, high, at_risk):
    """Remissions under 6-mercaptopurine (Freireich et al. 1963), as Stata lists them with log(-log) intervals."""
    times = np.array([6, 6, 6, -6, 7, -9, 10, -10, -11, 13, 16, -17, -19, -20, 22, 23, -25, -32, -32, -34, -35.0])
    found = observe_risk(times, at)
    assert [found.risk, found.low, found.high] == pytest.approx([1 - survival, 1 - high, 1 - low], abs=6e-5)
    assert found.at_risk == at_risk
    narrower = observe_risk(times, at, level=0.5)
    assert found.low < narrower.low < found.risk < narrower.high < found.high


def test_groups_have_rows_of_similar_risk():
    rng = np.random.default_rng(1)
    times, risk = rng.exponential(size=100), rng.random(100)
    calibration = calibrate(held_out_rows(times, np.repeat(["a", "b"], [70, 30])), risk, 0.5)
    groups = calibration.select("", GROUP)
    assert [group.n for group in groups] == [20] * 5
    np.testing.assert_allclose([group.predicted for group in groups], np.sort(risk).reshape(5, 20).mean(axis=1))
    for group, index in zip(groups, np.argsort(risk).reshape(5, 20), strict=True):
        assert group.observed.risk == pytest.approx(np.mean(times[index] <= 0.5))  # without censoring, a share
    assert calibration.clients == ["a", "b"]
    assert [len(calibration.select(client, GROUP)) for client in ("a", "b")] == [3, 0]
    (of_client,) = calibration.select("b", ALL_ROWS)
    assert of_client.observed.risk == pytest.approx(np.mean(times[70:] <= 0.5))


def test_risks_of_rows_in_groups_have_no_interval():
    rng = np.random.default_rng(1)
    rows = replace(held_out_rows(rng.exponential(size=100), ["a"] * 100), group=np.arange(100))
    independent = calibrate(rows, rng.random(100), 0.5)
    in_groups = calibrate(replace(rows, group=np.arange(100) // 2), rng.random(100), 0.5)
    (known,) = independent.select("", ALL_ROWS)
    (unknown,) = in_groups.select("", ALL_ROWS)
    assert np.isfinite([known.observed.low, known.observed.high]).all()
    assert np.isnan([unknown.observed.low, unknown.observed.high]).all()
    assert unknown.observed.risk == known.observed.risk
    assert independent.warnings == ()
    assert "no intervals, since Greenwood's variance takes the rows of a group" in in_groups.warnings[0]
    figure = PICTURE.draw(SurvivalView(in_groups, "a model"))
    assert "no interval" in figure.axes[0].get_legend().get_texts()[0].get_text()


def test_times_at_which_nobody_or_few_are_at_risk():
    rows = held_out_rows(np.append(np.linspace(0.1, 1, 39), -5.0), np.repeat(["a", "b"], 20))
    with pytest.raises(
        UserError, match="no held-out row is at risk then, since the last one ends at 5: give an earlier"
    ):
        calibrate(rows, np.linspace(0, 1, 40), 6)
    calibration = calibrate(rows, np.linspace(0, 1, 40), 2)
    assert any("fewer than 10 rows are at risk at 2 in " in sentence for sentence in calibration.warnings)


def test_a_group_whose_rows_all_had_their_event_has_a_risk_of_1():
    times = np.append(np.linspace(0.1, 1, 39), -5.0)
    calibration = calibrate(held_out_rows(times, np.repeat(["a", "b"], 20)), np.linspace(0, 1, 40), 2)
    counts = [(group.observed.risk, group.observed.at_risk) for group in calibration.groups]
    assert counts.count((1.0, 0)) == 2
    assert calibration.warnings[-1].startswith(
        "fewer than 10 rows are at risk at 2 in 5 of 5 groups (groups within each client included)"
    )


@pytest.mark.parametrize("kind", ["sampling", None])
def test_sampling_weights_are_refused(tmp_path, kind):
    """The hazards of a case-cohort table are those of the population, and the held-out rows are the sample."""
    rng = np.random.default_rng(1)
    time = rng.exponential(size=200)
    frame = pd.DataFrame({"age": rng.standard_normal(200), "time": time, "died": 1, "clinic": "Basel"})
    frame["w"] = np.where(time < 1, 1.0, 10.0)
    data = fcorun.from_frame(frame, "time", "clinic", event="died", weight="w", weight_kind=kind, test=0.5)
    with pytest.warns(fcorun.ExperimentWarning):
        record = fcorun.Experiment(data=data, algorithm=fcorun.Newton(), rounds=1, eval_every=1).run(tmp_path / "run")
    with pytest.raises(fcorun.UserError, match="predicted risks are those of weighted rows") as refusal:
        calibrate_record(record.folder, 0.5)
    assert ("data.weight_kind=frequency" in str(refusal.value)) == (kind is None)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """The record of a Cox model of two clinics, with held-out rows."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.standard_normal((400, 2)), columns=["age", "dose"])
    time, censoring = rng.exponential(size=400) * np.exp(-frame["age"]), rng.exponential(2, size=400)
    frame = frame.assign(time=np.minimum(time, censoring), died=(time <= censoring).astype(int))
    frame = frame.assign(clinic=np.where(np.arange(400) < 150, "Basel", "Graz"))
    data = fcorun.from_frame(frame, "time", "clinic", event="died", standardize="pooled", test=0.5)
    folder = tmp_path_factory.mktemp("calibration") / "run"
    fcorun.Experiment(data=data, algorithm=fcorun.Newton(), rounds=6, eval_every=6).run(folder)
    return folder


@pytest.mark.slow
def test_scores_at_a_time(record, capsys):
    assert main(["scores", str(record), "--samples", "200", "--at", "0.5"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"all rows +200 +\d+ +\d+ +\d+ +0\.\d+ +0\.\d+ \(0\.\d+ to 0\.\d+\)", out)
    written = pd.read_csv(record / "calibration.csv").fillna({"client": ""})
    predictions = pd.read_csv(record / "predictions.csv").query("set == 'test'")
    predicted = []
    for clinic, rows in predictions.groupby("client"):
        baseline = pd.read_csv(record / "baseline_hazard.csv").query(f"client == '{clinic}' and time <= 0.5")
        predicted += (1 - np.exp(-baseline["cumulative_hazard"].max() * np.exp(rows["prediction"]))).tolist()
    of_all = written.query("client == '' and kind == 'all'").iloc[0].to_dict()
    assert of_all["probability"] == pytest.approx(np.mean(predicted))
    assert int(of_all["at_risk"]) == np.sum(predictions["target"].to_numpy() >= 0.5)
    groups = written.query("client == '' and kind == 'bin'")
    assert len(groups) == 5
    inside = (groups["low"] <= groups["probability"]) & (groups["probability"] <= groups["high"])
    assert np.sum(inside) >= 4  # the model is true
    assert (record / "calibration.png").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--at", "100"], "--at 100: no probability of survival at 100, after the last training time of"),
        (["--at", "0"], "--at 0 must be a positive time"),
    ],
)
def test_refusals(record, capsys, options, sentence):
    assert main(["scores", str(record), "--samples", "200", *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_calibration_by_client(record):
    calibration = calibrate_record(record, 0.4)
    assert any("fewer than 10 rows are at risk at 0.4 in 3 of 16 groups" in text for text in calibration.warnings)
    frame = pd.DataFrame(calibration.to_rows())
    assert set(frame["client"]) == {"", "Basel", "Graz"}
    np.testing.assert_array_equal(frame["n"], frame["censored"] + frame["events"] + frame["at_risk"])
    narrower = pd.DataFrame(calibrate_record(record, 0.4, level=0.5).to_rows())
    assert set(narrower["level"]) == {0.5}
    is_known = frame["low"].notna().to_numpy()
    assert (narrower["low"].to_numpy() > frame["low"].to_numpy())[is_known].all()
