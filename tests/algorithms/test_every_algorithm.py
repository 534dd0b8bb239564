"""Every algorithm runs, and the same again; goes on where it was broken off; comes to the same in a batch."""

from dataclasses import fields

import numpy as np
import pytest
from helpers import Stop, engine_of, flat, given, names, plugin_class, rows_of, small_for, snapshots

from fcorun import grid, run, run_grid
from fcorun.algorithms import Algorithm, Baseline
from fcorun.config import numbers
from fcorun.experiment.build import load, resolved
from fcorun.experiment.prepare import prepare
from fcorun.records.record import Record

FEDERATED = [name for name in names("algo") if issubclass(plugin_class("algo", name), Algorithm)]
BASELINES = [name for name in names("algo") if issubclass(plugin_class("algo", name), Baseline)]


def exactly(name):
    """Overrides with which an inner solver comes as close as rounding lets it, where there is one."""
    return ["algo.tolerance=1e-12"] if "tolerance" in {f.name for f in fields(plugin_class("algo", name))} else []


def test_every_algorithm_is_of_one_kind():
    assert sorted(FEDERATED + BASELINES) == names("algo")


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_runs_and_runs_the_same_again(name):
    one, two = (run(small_for(name), folder) for folder in ("one", "two"))
    are_the_same(one, two)
    if name != "one_client":  # the best for one client may be worse than nothing for the others
        assert one.metrics["objective"].iloc[-1] < one.metrics["objective"].iloc[0]


@pytest.mark.parametrize("name", FEDERATED)
def test_runs_and_going_on_equals_an_unbroken_run(name):
    config = small_for(name, "rounds=6", "checkpoint_every=1000")
    whole = run(config, "whole")
    falls = "personal_train_loss" if name == "local" else "objective"  # it has no global model
    assert whole.metrics[falls].iloc[-1] < whole.metrics[falls].iloc[0]
    with pytest.raises(KeyboardInterrupt):
        run(config, "broken", Stop(2))
    resumed = run(config, "broken")
    assert "goes on after round 2" in (resumed.folder / "run.log").read_text()
    are_the_same(whole, resumed)


def are_the_same(one: Record, two: Record) -> None:
    assert one.status["status"] == two.status["status"] == "done"
    assert np.isfinite(one.metrics.to_numpy(float)).all()
    assert rows_of(one).equals(rows_of(two))
    first, second = one.solution | one.personal, two.solution | two.personal
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key])


@pytest.mark.parametrize("name", FEDERATED)
def test_a_batch_of_runs_equals_each_alone(name):
    base = small_for(name, "precision=float64", *exactly(name))
    tolerance = 1e-8 if "iterations" in base["algo"] else 1e-10  # rounding may say where an inner solver stops
    experiment = prepare(base)
    numbers_of = numbers(resolved(experiment, load(experiment))[0].algo)
    assert numbers_of, "an algorithm without numbers has no grid"

    def scaled(factor, **rest):
        (point,) = grid(base, {f"algo.{key}": [factor * value] for key, value in numbers_of.items()} | rest)
        return point

    points = [scaled(1), scaled(0.5), *grid(base, {"reg.strength": [0.3]})]
    # so large a rate that its loss overflows in float64 after one step, however its steps are bounded
    driven_apart = grid(base, {"algo.client_lr": [1e200]}) if "client_lr" in base["algo"] else []
    together = snapshots(*points, *driven_apart)
    assert (together[-1].diverged > 0).tolist() == [False] * 3 + [True] * len(driven_apart)
    assert all(np.isfinite(values).all() for values in together[-1].solution.values())
    apart = engine_of(scaled(0.7, **{"reg.strength": [0.2]}))  # whose own numbers are those of none
    for g, point in enumerate(points):
        alone = snapshots(point, engine=apart)
        assert len(alone) == len(together)
        for ours, theirs in zip(together, alone, strict=True):
            for key in theirs.solution:
                np.testing.assert_allclose(
                    ours.solution[key][g], theirs.solution[key][0], rtol=tolerance, atol=tolerance
                )
            for key, models in (theirs.models or {}).items():
                np.testing.assert_allclose(given(ours.models)[key][g], models[0], rtol=tolerance, atol=tolerance)
            for key in ("objective", "train_loss", "val_loss"):
                np.testing.assert_allclose(ours.metrics[key][g], theirs.metrics[key][0], rtol=tolerance)
    last = given(together[-1].models) if name == "local" else together[-1].solution
    finals = [flat({k: v[g] for k, v in last.items()}) for g in range(len(points))]
    assert not np.allclose(finals[0], finals[1], rtol=1e-4)  # the numbers do reach the runs


@pytest.mark.parametrize("name", ["feddualavg", "scaffold", "local", "pfedme", "pfedmac_s", "pfedmac_sh"])
def test_one_diverging_run_leaves_the_others_alone(name):
    base = small_for(name, "precision=float64", "rounds=40", *exactly(name))
    rate = base["algo"]["client_lr"]
    rate = 1 / base["algo"]["lam"] if rate == "auto" else rate
    points = grid(base, {"algo.client_lr": [rate, 1e12, rate / 2]})
    first, lost, last = run_grid(points, ["first", "lost", "last"])
    assert [r.status["status"] for r in (first, lost, last)] == ["done", "diverged", "done"]
    alone = run(points[2], "alone")
    inner = "iterations" in base["algo"]  # where an inner solver stops may be a matter of rounding
    left = ("seconds", *(("grad_evals", "prox_evals") if inner else ()))
    shown = [key for key in alone.metrics if key not in left]
    np.testing.assert_allclose(last.metrics[shown], alone.metrics[shown], rtol=1e-8 if inner else 1e-10)
    # the diverged one keeps what it had, and says where it was lost
    assert lost.metrics["round"].iloc[0] == 0
    assert np.isfinite(lost.metrics.to_numpy(float)).all()
    assert len(lost.metrics) < len(first.metrics)
    assert lost.metrics["round"].max() < lost.status["round"] <= 40
    assert np.isfinite(flat(lost.solution)).all()
    # it stays where it was lost: before the step that was not finite, or at a point whose loss is not
    ends = (run(points[1] | {"rounds": lost.status["round"] - back}, f"end{back}").solution for back in (1, 0))
    assert any(np.allclose(flat(lost.solution), flat(end), rtol=1e-6, atol=0) for end in ends)
    assert str(lost.status["round"]) in lost.status["reason"]
