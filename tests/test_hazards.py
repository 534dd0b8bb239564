"""Hazard ratios by Poisson regression with an offset, scripts/hazard_ratios.py, against the survival likelihood."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "hazard_ratios.py"


@pytest.fixture(scope="module")
def hazards():
    spec = importlib.util.spec_from_file_location("hazard_ratios", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_splitting_keeps_events_and_time_at_risk(hazards):
    patients = hazards.generate_follow_up(patients=40)
    rows = hazards.split_intervals(patients)
    assert rows["event"].sum() == patients["event"].sum() > 0
    assert np.exp(rows["log_time"]).sum() == pytest.approx(patients["time"].sum())
    number = 1 + rows.filter(like="year").to_numpy() @ np.arange(1, 5)
    for patient in (0, 1, 2):  # a row for each interval up to the end of follow-up
        intervals = rows.loc[(rows["marker 1"] == patients["marker 1"][patient])]
        assert len(intervals) == np.ceil(patients["time"][patient])
        assert intervals["event"].sum() == patients["event"][patient]
    assert set(number) == {1, 2, 3, 4, 5}


@pytest.mark.slow
def test_one_interval_and_one_group_are_events_by_person_time(hazards, tmp_path):
    """For exponential times and a binary covariate, the hazard ratio is the ratio of events over time at risk."""
    patients = hazards.generate_follow_up(patients=60)[["site", "treated", "time", "event"]]
    hazards.split_intervals(patients, ()).to_csv(tmp_path / "rows.csv", index=False)
    weights = hazards.fit(tmp_path / "rows.csv", tmp_path / "run", "algo=centralized", "reg=none")
    sums = patients.groupby("treated")[["event", "time"]].sum().to_numpy(float)
    rate = sums[:, 0] / sums[:, 1]
    assert np.exp(weights["treated"]) == pytest.approx(rate[1] / rate[0], rel=1e-6)
    assert np.exp(hazards.maximize_likelihood(patients, ["treated"], ())) == pytest.approx(rate[1] / rate[0], rel=1e-6)


@pytest.mark.slow
def test_the_hazard_ratios_are_those_of_the_survival_likelihood(hazards, tmp_path):
    patients = hazards.generate_follow_up(patients=60)
    hazards.split_intervals(patients).to_csv(tmp_path / "rows.csv", index=False)
    weights = hazards.fit(tmp_path / "rows.csv", tmp_path / "run", "algo=centralized", "reg=none")
    covariates = ["treated", "age", "marker 1"]
    covariates += [f"marker {k}" for k in range(2, 7)]
    np.testing.assert_allclose(
        [weights[name] for name in covariates], hazards.maximize_likelihood(patients, covariates), atol=1e-5
    )
