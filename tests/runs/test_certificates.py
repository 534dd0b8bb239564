"""Runs that end where the certificate of their algorithm is rounding."""

import numpy as np
import pytest
from helpers import ragged

import fcorun
from fcorun import run
from fcorun.engine.engine import Engine
from fcorun.experiment.prepare import prepare
from fcorun.runs.run_experiments import run_experiments

NEWTON = ("algo=newton", "eval_every=1", "reg.strength=0.05", "precision=float64")


def config(tmp_path, *overrides):
    return ragged(tmp_path, *NEWTON, *overrides, sizes=(12, 20, 16), features=4, task="binary")


def test_newton_ends_at_a_decrement_of_rounding_and_the_record_says_so(tmp_path):
    """The rounds that are left out change nothing but rounding, and cost messages."""
    record = run(config(tmp_path, "rounds=30"), tmp_path / "default")
    complete = run(config(tmp_path, "rounds=30") | {"stop": {}}, tmp_path / "complete")
    decrement = record.metrics["newton_decrement"]
    assert 3 <= record.summary["round"] < 30 == complete.summary["round"]
    assert decrement.iloc[-1] <= 1e-18
    assert (decrement.iloc[1:-1] > 1e-20).all()
    assert record.summary["convergence"].startswith(f"ended in round {record.summary['round']}: ")
    assert record.summary["certificate"]["kind"] == "duality gap"  # of the pooled rows, not of the run itself
    assert record.summary["certificate"]["near"]
    assert record.status["reason"] == ""
    for name, values in record.solution.items():
        np.testing.assert_allclose(values, complete.solution[name], rtol=1e-10, atol=1e-12)
    n_rows = len(record.metrics)
    assert record.metrics["objective"].tolist() == complete.metrics["objective"].tolist()[:n_rows]


@pytest.mark.filterwarnings("ignore::fcorun.ExperimentWarning")
@pytest.mark.parametrize("scale", [1.0, 3e5])
def test_a_run_ends_early_at_the_optimum_alone(scale, tmp_path):
    """Income in its own unit leaves the solver of float32 far from the optimum of age and year, without moving."""
    rng = np.random.default_rng(0)
    income, age, year = rng.standard_normal((3, 200))
    y = (rng.uniform(size=200) < 1 / (1 + np.exp(-income - 0.8 * age))).astype(int)
    x = np.stack([scale * (4 + income), 60 + 12 * age, 2021 + year] if scale > 1 else [income, age, year], axis=1)
    objectives = {}
    for precision in ("float32", "float64"):
        data = fcorun.from_arrays(x, y, np.arange(200) % 4, task="binary", standardize="none", validation=0.0)
        experiment = fcorun.Experiment(data=data, algorithm=fcorun.Newton(), regularizer=fcorun.L1(strength=1e-4),
                                       rounds=15, eval_every=5, precision=precision)  # fmt: skip
        record = experiment.run(tmp_path / precision)
        objectives[precision] = record.metrics["objective"].iloc[-1]
        assert ("convergence" in record.summary) == (scale == 1)
        if scale == 1:
            assert record.summary["certificate"]["kind"] == "duality gap"
            assert record.summary["certificate"]["near"]
    if scale == 1:
        assert objectives["float32"] == pytest.approx(objectives["float64"], rel=1e-6)
    else:
        assert objectives["float32"] > 1.01 * objectives["float64"]


@pytest.mark.filterwarnings("ignore::fcorun.ExperimentWarning")
@pytest.mark.parametrize(("standardize", "precision", "cures"), [
    ("none", "float32", 'precision="float64" or standardize="pooled" may help'),
    ("pooled", "float32", ""),
    ("none", "float64", ""),
])  # fmt: skip
def test_a_run_whose_certificate_stands_still_says_so(standardize, precision, cures, tmp_path):
    """Year beside the intercept is beyond float32 in its own unit."""
    rng = np.random.default_rng(0)
    age, year = rng.normal(60, 12, 200), rng.integers(2020, 2023, 200)
    y = (rng.uniform(size=200) < 1 / (1 + np.exp(60 / 12 - age / 12))).astype(int)
    data = fcorun.from_arrays(np.stack([age, year], axis=1), y, np.arange(200) % 4, task="binary",
                              standardize=standardize, validation=0.0)  # fmt: skip
    experiment = fcorun.Experiment(data=data, algorithm=fcorun.Newton(), regularizer=fcorun.NoRegularizer(),
                                   rounds=40, eval_every=5, precision=precision)  # fmt: skip
    record = experiment.run(tmp_path / "run")
    assert ("convergence" in record.summary) == (not cures)
    assert ("the squared Newton decrement is" in record.status["reason"]) == bool(cures)
    assert cures in record.status["reason"]


def test_the_last_round_of_the_user_comes_first(tmp_path):
    record = run(config(tmp_path, "rounds=2"), tmp_path / "run")
    assert record.summary["round"] == 2
    assert "convergence" not in record.summary


def test_a_target_of_the_user_replaces_the_certificate(tmp_path):
    record = run(config(tmp_path, "rounds=30", "stop={change:0.1}"), tmp_path / "run")
    assert "convergence" not in record.summary
    assert record.metrics["newton_decrement"].iloc[-1] > 1e-18


def test_each_run_of_a_grid_ends_by_itself(tmp_path):
    experiments = [prepare(config(tmp_path, "rounds=30", f"reg.strength={value}")) for value in (0.3, 0.001)]
    folders = [tmp_path / "few", tmp_path / "many"]
    together = run_experiments(experiments, folders)
    alone = [run(experiment.config, folder / "alone") for experiment, folder in zip(experiments, folders, strict=True)]
    assert together[0].summary["round"] < together[1].summary["round"]
    for first, second in zip(together, alone, strict=True):
        assert first.summary["round"] == second.summary["round"]
        np.testing.assert_allclose(first.solution["weights"], second.solution["weights"], rtol=1e-12, atol=1e-14)


def test_without_targets_the_identity_is_that_of_a_configuration_without_the_key(tmp_path):
    default = config(tmp_path)
    without = {key: value for key, value in default.items() if key != "stop"}
    assert prepare(default).identity == prepare(without).identity
    assert prepare(default).identity != prepare(default | {"stop": {}}).identity


def test_a_resumed_run_ends_in_the_same_round(tmp_path, monkeypatch):
    unbroken = run(config(tmp_path, "rounds=30"), tmp_path / "unbroken")
    calls = iter(range(100))
    advance = Engine.run

    def interrupted(self, *arguments, **options):
        for snapshot in advance(self, *arguments, **options):
            if next(calls) == 3:
                raise KeyboardInterrupt
            yield snapshot

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(config(tmp_path, "rounds=30", "checkpoint_every=0"), tmp_path / "broken")
    resumed = run(config(tmp_path, "rounds=30", "checkpoint_every=0"), tmp_path / "broken")
    assert resumed.summary["convergence"] == unbroken.summary["convergence"]
    np.testing.assert_array_equal(resumed.solution["weights"], unbroken.solution["weights"])
