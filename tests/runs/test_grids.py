"""Grids: the records of their points, each as the run alone would have left it."""

from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from helpers import Count, Stop, flat, grid, ragged, rows_of, run_grid, small, small_for

from fcorun import Record, UserError, load_records, run
from fcorun.base.records.record import RunFolder
from fcorun.experiment.build import build_engine, build_problem, load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.problem import solver
from fcorun.methods.problem.solver import gather_rows
from fcorun.runs import finish, pooled_fits, run_experiments
from fcorun.runs.sweep import SweepOptions, find_existing
from fcorun.runs.sweep_point import SweepPoint, record_failure

# ---------------------------------------------------------------- grids


@pytest.mark.slow
def test_a_grid_writes_the_records_of_its_points():
    points = grid(small("precision=float64"), {"algo.client_lr": [0.001, 0.003], "reg.strength": [0.1, 0.5]})
    assert [(p["algo"]["client_lr"], p["reg"]["strength"]) for p in points] == [
        *((0.001, 0.1), (0.001, 0.5), (0.003, 0.1), (0.003, 0.5)),
    ]
    records = run_grid(points)
    assert len({record.folder for record in records}) == 4
    for point, record in zip(points, records, strict=True):
        alone = run(point, f"alone/{record.folder.name}")
        assert alone.status == record.status
        assert alone.config == record.config
        np.testing.assert_allclose(rows_of(record), rows_of(alone), rtol=1e-10)
        np.testing.assert_allclose(flat(record.solution), flat(alone.solution), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_a_wide_grid_in_several_batches():
    """Nine points take two threads of five on two cores, one of which has a place to fill."""
    points = grid(small("precision=float64", "rounds=2"), {"algo.client_lr": [k * 1e-3 for k in range(1, 10)]})
    records = run_grid(points)
    finals = [record.metrics["objective"].iloc[-1] for record in records]
    alone = [run(points[k], f"alone/{k}").metrics["objective"].iloc[-1] for k in (0, 4, 8)]
    np.testing.assert_allclose([finals[0], finals[4], finals[8]], alone, rtol=1e-10)
    assert len(set(finals)) == 9


@pytest.mark.slow
def test_a_grid_over_seeds():
    """Runs of different seeds have minibatches of their own, those of one seed share them."""
    points = grid(small("precision=float64"), {"seed": [0, 1, 2], "algo.client_lr": [0.001, 0.003]})
    records = run_grid(points)
    assert len({record.metrics["objective"].iloc[-1] for record in records}) == 6
    for point, record in zip(points, records, strict=True):
        alone = run(point, f"alone/{record.folder.name}")
        assert alone.config == record.config
        np.testing.assert_allclose(rows_of(record), rows_of(alone), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "options"), [("feddualavg", []), ("dane", ["algo.iterations=5"]), ("centralized", [])]
)
def test_seeds_of_a_law_share_programs_and_keep_the_numbers_of_the_run_alone(algo, options, monkeypatch):
    """Bounds on the curvature, which DANE's inner solver reads, are constants of a program."""
    points = grid(small_for(algo, "rounds=3", *options), {"data.seed": [41, 42]})
    records = run_grid(points)
    if algo == "feddualavg":
        assert records[1].summary["seconds"]["compile"] == 0
    monkeypatch.setattr(run_experiments, "_build_engine_once", lambda request: build_engine(*request.value))
    monkeypatch.setattr(solver, "_compile_once", solver._compile_once.__wrapped__)
    monkeypatch.setattr(pooled_fits, "_compile_measure", pooled_fits._compile_measure.__wrapped__)
    for point, record in zip(points, records, strict=True):
        alone = run(point, f"alone/{record.folder.name}")
        pd.testing.assert_frame_equal(rows_of(record), rows_of(alone), check_exact=True)
        np.testing.assert_array_equal(flat(record.solution), flat(alone.solution))


def test_bytes_of_a_grid_are_those_of_each_of_its_points(user_module):
    """They were those of the first point, where an algorithm counts the bytes of its rounds by a number of its own."""
    source = """
from dataclasses import dataclass
from fcorun import FedAvg, Positive

@dataclass(frozen=True, kw_only=True)
class Sampled(FedAvg):
    source = "ours"
    share: Positive = 1.0

    def round_bytes(self, number, uploads, broadcasts):
        return tuple(int(self.share * size) for size in uploads), broadcasts
"""
    user_module("sampled", source)
    base = small("algo=fedavg", "rounds=2", "eval_every=2")
    base["algo"] = {"name": "sampled", "class": "sampled.Sampled", "client_lr": 0.01, "server_lr": 1.0}
    half, whole = run_grid(grid(base, {"algo.share": [0.5, 1.0]}))
    assert half.metrics["bytes_up"].iloc[-1] * 2 == whole.metrics["bytes_up"].iloc[-1] > 0


def test_a_grid_of_baselines():
    points = grid(small("algo=centralized"), {"reg.strength": [0.1, 0.5]})
    dense, sparse = run_grid(points)
    assert sparse.summary["final"]["density"] < dense.summary["final"]["density"]


@pytest.mark.parametrize("strengths", [(0.1, 0.0), (0.0, 0.1)])
def test_a_strength_of_0_has_another_certificate_whichever_comes_first(strengths, tmp_path):
    """At 0 there is no duality gap: the programs of another strength would not end, or give a bound that is none."""
    config = ragged(tmp_path, "algo=centralized", "reg=group_lasso", sizes=(30, 30), features=4)
    for record in run_grid(grid(config, {"reg.strength": list(strengths)})):
        experiment = prepare(record.config)
        data = load_data(experiment)
        with jax.enable_x64(True):
            problem, batch = build_problem(experiment, data), gather_rows(data, experiment.settings.client_weighting)
            *_, alone = solver.minimize(problem, batch)
        kind = "duality gap" if record.config["reg"]["strength"] > 0 else "prox-gradient norm"
        assert record.summary["certificate"] == {"kind": kind, "value": alone.certificate, "certified": True}


@pytest.mark.slow
def test_configurations_that_differ_in_more_than_numbers_are_separate_programs():
    """The records come in the order of the configurations, whichever run together."""
    rates = {"algo.client_lr": [1e-3, 2e-3]}
    mixed = [*grid(small(), rates), *grid(small("algo=fedavg", "algo.server_lr=1"), rates), small("rounds=2")]
    mixed = [mixed[k] for k in (0, 2, 4, 1, 3)]
    records = run_grid(mixed)
    for config, record in zip(mixed, records, strict=True):
        assert record.status["identity"] == prepare(config).identity
        assert record.status["status"] == "done"
    assert [record.summary["round"] for record in records].count(2) == 1
    starts = [(record.folder / "run.log").stat().st_mtime_ns for record in records]
    assert max(starts[0], starts[3]) < min(starts[1], starts[4]), "those of one algorithm run together"


def test_a_configuration_that_cannot_run_does_not_stop_the_others():
    with pytest.raises(UserError, match="counts are 0 or more"):
        run_grid([small("objective=poisson"), small()], ["bad", "good"])
    assert Record(Path("good")).status["status"] == "done"
    assert not Path("bad").exists()


@pytest.mark.slow
def test_a_number_that_follows_another_moves_with_it_in_a_grid():
    """As it does on the command line."""
    rates = [0.001, 0.004]
    base = ("algo=ditto", "algo.lam=0.5", "precision=float64")
    for config, rate in zip(grid(small(*base), {"algo.client_lr": rates}), rates, strict=True):
        override = small(*base, f"algo.client_lr={rate}")
        explicit = small(*base, f"algo.client_lr={rate}", f"algo.personal_lr={rate}")
        assert prepare(config).identity == prepare(override).identity
        mine, other = (run(configuration, f"{name}{rate}") for name, configuration in (("a", config), ("b", explicit)))
        assert mine.summary["final"] == other.summary["final"]


@pytest.mark.slow
def test_a_grid_computes_only_missing_points():
    points = grid(
        small("precision=float64", "rounds=6", "checkpoint_every=1000"), {"algo.client_lr": [1e-3, 2e-3, 3e-3]}
    )
    done = run(points[0])
    before = (done.folder / "metrics.csv").stat().st_mtime_ns
    with pytest.raises(KeyboardInterrupt):
        run(points[1], watch=Stop(4))
    assert load_records("outputs")[0].folder.parent == done.folder.parent
    watch = Count()
    records = run_grid(points, watch=watch)
    assert watch.rows == 1 + 4
    assert (done.folder / "metrics.csv").stat().st_mtime_ns == before
    for point, record in zip(points, records, strict=True):
        np.testing.assert_allclose(rows_of(record), rows_of(run(point, f"alone/{record.folder.name}")), rtol=1e-10)


# ---------------------------------------------------------------- hard cases


@pytest.mark.slow
def test_one_record_that_cannot_be_completed_spoils_no_other(monkeypatch):
    write_end = finish._write_end

    def third(job, *rest, **named):
        if job.run_folder.path.name == "p2":
            raise OSError(28, "No space left on device")
        return write_end(job, *rest, **named)

    monkeypatch.setattr(finish, "_write_end", third)
    configs = grid(small(), {"algo.client_lr": [1e-3, 2e-3, 3e-3, 4e-3]})
    with pytest.raises(OSError, match="No space"):
        run_grid(configs, [f"p{i}" for i in range(4)])
    assert [r.status["status"] for r in load_records(".")] == ["done", "done", "failed", "done"]


def test_two_runs_in_one_folder_are_refused():
    with pytest.raises(UserError, match="two different runs"):
        run_grid(grid(small(), {"algo.client_lr": [1e-3, 2e-3]}), ["same", "same"])


def test_a_failure_that_another_sweep_is_clearing_away_is_left_to_it():
    point = SweepPoint("algo.client_lr=1", Path("s/run"), prepare(small()))
    failed = SweepPoint.from_error(point.overrides, "s", ValueError())
    record_failure(failed)
    assert Record(failed.folder).status["label"] == "algo.client_lr=1"
    other = RunFolder(failed.folder, "")
    other.claim(force=True)
    find_existing([point], Path("s"), SweepOptions())
    assert point.folder_state == "new"
    assert failed.folder.exists()
    other.release()
    find_existing([point], Path("s"), SweepOptions())
    assert not failed.folder.exists()
