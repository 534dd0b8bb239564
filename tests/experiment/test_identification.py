"""Zeros and ranks of solutions compared with those of the reference optimum."""

import json

import numpy as np
import pytest
from helpers import fails, not_none, ragged, small

from fcorun import run
from fcorun.experiment.build import load_data
from fcorun.experiment.optimum import compute_optimum, count_errors, find_pattern, identification_metrics
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks.problems import snapshots
from fcorun.methods.regularizers import L1, L2, Nuclear

W = {"weights": np.array([0.0, 1.0, -1e-30, 0.0])}


def test_zeros_are_exact():
    pattern = find_pattern(L1(strength=1.0), ["weights"], W)
    assert pattern == {"weights": [1, 2]}
    pattern = not_none(pattern)
    assert count_errors(pattern, W) == 0
    assert count_errors(pattern, {"weights": np.array([1e-30, 1.0, 0.0, 0.0])}) == 2


def test_the_nuclear_norm_has_a_rank():
    u = np.arange(1.0, 4)[:, None]
    one = {"weights": u @ u.T}
    pattern = find_pattern(Nuclear(strength=1.0), ["weights"], one)
    assert pattern == {"weights": 1}
    assert count_errors(not_none(pattern), {"weights": np.diag([1.0, 1, 1])}) == 2


def test_squares_promote_no_pattern():
    assert find_pattern(L2(strength=1.0), ["weights"], W) is None


def test_the_round_is_the_first_of_the_last_unbroken_stretch():
    pattern, right, wrong = {"weights": [1]}, {"weights": np.array([0.0, 2])}, {"weights": np.array([1.0, 2])}
    rows: list[dict] = []
    for round_, w in enumerate([wrong, right, right, wrong, right, right]):
        rows.append(identification_metrics(pattern, w, rows, round_))
    assert [row["pattern_errors"] for row in rows] == [1, 0, 0, 1, 0, 0]
    np.testing.assert_array_equal([row["identified_round"] for row in rows], [np.nan, 1, 1, np.nan, 4, 4])


CONFIG = ("algo=fedcanon", "reg=l1", "reg.strength=0.6", "algo.client_lr=0.02", "rounds=40", "report=false")


@pytest.mark.slow
def test_a_run_with_a_reference_says_since_when_it_has_the_zeros_of_the_optimum(tmp_path):
    sizes = (12, 20, 16)
    config = ragged(tmp_path, *CONFIG, "reference=true", sizes=sizes)
    experiment = prepare(config)
    optimum = compute_optimum(experiment, load_data(experiment))
    assert 0 < len(optimum["pattern"]["weights"]) < 6
    supports = [set(np.flatnonzero(s.solution["weights"][0])) for s in snapshots(config)]
    right = [support == set(optimum["pattern"]["weights"]) for support in supports]
    assert right[-1]
    assert not right[0]
    record = run(config, tmp_path / "run")
    since = len(right) - right[::-1].index(False)
    assert record.metrics["identified_round"].iloc[-1] == since
    assert (record.metrics["pattern_errors"] == 0).tolist() == right
    assert record.summary["final"]["identified_round"] == since
    plain = run(ragged(tmp_path, *CONFIG, sizes=sizes), tmp_path / "plain")
    assert not {"identified_round", "pattern_errors"} & {*plain.metrics}


@pytest.mark.slow
def test_an_optimum_cached_without_its_zeros_is_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fcorun.experiment.optimum.cache_dir", lambda kind: tmp_path)
    experiment = prepare(ragged(tmp_path, *CONFIG))
    data = load_data(experiment)
    first = compute_optimum(experiment, data)
    (path,) = tmp_path.glob("*.json")
    path.write_text(json.dumps({name: value for name, value in first.items() if name != "pattern"}))
    assert compute_optimum(experiment, data) == first
    assert json.loads(path.read_text()) == first


@pytest.mark.parametrize(
    ("option", "words"), [("metric", "metric=pattern_errors counts differences"), ("stop", "give")]
)
def test_the_errors_need_a_reference(option, words):
    config = small()
    config[option] = "pattern_errors" if option == "metric" else {"pattern_errors": 0.0}
    with fails(words, "reference=true"):
        prepare(config)
