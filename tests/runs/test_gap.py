"""The metric ``gap``: the duality gap at each evaluation of a run."""

from copy import deepcopy

import jax
import jax.numpy as jnp
import pandas as pd
import pytest
from helpers import identity, ragged, rows_of, run_grid, small, snapshots

from fcorun import run
from fcorun.base.config import numeric_fields
from fcorun.experiment.build import build_problem, load_data
from fcorun.experiment.optimality_gap import assess_gap
from fcorun.experiment.optimum import compute_optimum
from fcorun.experiment.prepare import prepare
from fcorun.methods.problem import solver
from fcorun.methods.problem.problem import Vector
from fcorun.methods.problem.solver import gather_rows
from fcorun.runs.run_history import RunHistory

RATED = ("algo=fedavg", "algo.client_lr=0.02", "gap=true", "rounds=3")


def certificates(config):
    """Return the certificate of the pooled solver at each evaluation of a run, for the intercept that the run has."""
    experiment = prepare(config)
    data = load_data(experiment)
    points = snapshots(config)
    expected = []
    with jax.enable_x64(True):
        problem, batch = build_problem(experiment, data), gather_rows(data, experiment.settings.client_weighting)
        certify = solver.compile_programs(problem, batch.x.shape[1]).certify
        for point in points:
            w = Vector({name: jnp.asarray(values[0]) for name, values in point.solution.items()})
            _, objective, certificate = certify(numeric_fields(problem.regularizer), w, jnp.ones(()), batch)
            expected.append(float(certificate + point.metrics["objective"][0] - objective))
    return points, expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "task"),
    [
        (["reg.strength=0.3"], "regression"),
        pytest.param(["reg.strength=0.03", "client_weighting=uniform"], "binary", marks=pytest.mark.slow),
        pytest.param(["objective=huber", "objective.intercept=false"], "regression", marks=pytest.mark.slow),
        pytest.param(["reg=group_lasso"], "regression", marks=pytest.mark.slow),
        pytest.param(["reg=l1_ball", "objective.ridge=0.1"], "regression", marks=pytest.mark.slow),
    ],
)
def test_the_gap_is_the_certificate_of_the_pooled_solver(tmp_path, overrides, task):
    config = ragged(tmp_path, *RATED, *overrides, task=task)
    points, expected = certificates(config)
    experiment = prepare(config)
    optimum = compute_optimum(experiment, load_data(experiment))["objective"]
    for point, gap in zip(points, expected, strict=True):
        objective = float(point.metrics["objective"][0])
        assert float(point.metrics["gap"][0]) == pytest.approx(gap, abs=1e-10 * objective)
        assert gap >= objective - optimum


@pytest.mark.slow
def test_newton_ends_when_its_gap_is_small():
    config = small("algo=newton", "precision=float64", "eval_every=1", "rounds=30", "clients_per_round=null")
    record = run(config | {"stop": {"gap": 1e-6}, "reference": True})
    gaps, distances = record.metrics["gap"].to_numpy(), record.metrics["suboptimality"].to_numpy()
    assert gaps[-1] <= 1e-6 < gaps[-2]
    assert (gaps >= distances - 1e-12).all()
    assert 0 < record.summary["round"] < 30
    assert record.status["reason"].startswith(f"stopped in round {record.summary['round']}: gap ")


@pytest.mark.parametrize(
    ("gap", "target", "expected"),
    [
        (-1e-7, 1e-6, "stopped in round 7: gap -1e-07 is rounding, and stop.gap=1e-06 is below"),
        (1e-7, 1e-5, "stopped in round 7: gap 1e-07 <= 1e-05"),
        (1e-5, 1e-6, ""),
    ],
)
def test_rounding_meets_no_target(gap, target, expected):
    """Rounding in float32 is 3e-6 of an objective of 3."""
    experiment = prepare(small(f"stop={{gap:{target}}}"))
    history = RunHistory(experiment, rows=[{"round": 7, "objective": 3.0, "gap": gap}])
    assert history.check_targets() == bool(expected)
    assert history.reason.startswith(expected)


@pytest.mark.slow
def test_the_runs_of_a_grid_have_their_own_gaps():
    points = [small("gap=true", "precision=float64", f"reg.strength={strength}") for strength in (0.05, 0.1, 0.3)]
    records = run_grid(deepcopy(points))
    for point, record in zip(points, records, strict=True):
        alone = run(point, f"alone/{record.folder.name}")
        pd.testing.assert_frame_equal(rows_of(record), rows_of(alone), rtol=1e-8)
        assert (record.metrics["gap"].to_numpy() > 0).all()


@pytest.mark.slow
def test_a_baseline_has_the_gap_of_its_certificate():
    record = run(small("algo=centralized", "gap=true"))
    assert record.metrics["gap"].iloc[-1] == pytest.approx(record.summary["certificate"]["value"], abs=1e-10)


def test_a_small_gap_spares_the_solver_at_the_end(monkeypatch):
    monkeypatch.delattr(solver, "minimize")
    experiment = prepare(small())
    objectives = (5.0, 2.0)
    gap = assess_gap(experiment, load_data(experiment), {}, objectives, 0.0, duality_gap=0.01)
    assert gap.near
    assert gap.kind == "duality gap"
    assert gap.value == pytest.approx(0.01)
    with pytest.raises(AttributeError, match="minimize"):  # after a larger one the solver continues from the solution
        assess_gap(experiment, load_data(experiment), {}, objectives, 0.0, duality_gap=1.0)


@pytest.mark.parametrize("asked", [["metric=gap"], ["stop={gap:1e-6}"]])
def test_metric_and_stop_ask_for_the_gap(asked):
    assert prepare(small(*asked)).settings.gap
    assert prepare(prepare(small(*asked)).config).identity == identity(*asked)


def test_a_record_without_the_gap_is_another_record():
    assert identity("gap=true") != identity()
    assert identity("gap=false") == identity()
    assert identity("metric=gap") == identity("gap=true")
    assert identity("algo=centralized", "gap=true") != identity("algo=centralized")
