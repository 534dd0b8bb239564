"""Ends of runs: at a target, or with a warning of an objective that was still falling."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import FILES, PICTURES, Stop, composed, fails, flat, ragged, rows_of, run_grid, small

from fcorun import Record, run
from fcorun.base.metrics import MORE_ROUNDS_ADVICE
from fcorun.engine.engine import CompiledPrograms
from fcorun.experiment.optimality_gap import advise_on_divergence
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.commands import main as command
from fcorun.interface.cli.console import Console
from fcorun.runs.several_hosts import run_rounds

WHOLE = ("clients_per_round=null", "batch_size=null", "rounds=40", "eval_every=1")


def rated(rate: float, *overrides: str) -> dict:
    return small(*WHOLE, f"algo.client_lr={rate}", *overrides)


# ---------------------------------------------------------------- still falling


@pytest.mark.slow
def test_a_run_that_is_not_finished_says_so(capsys):
    with Console() as watch:
        record = run(rated(1e-4), watch=watch)
    descent = record.summary["unfinished"]
    assert descent["metric"] == "objective"
    assert descent["evaluations"] == 4
    assert record.status["status"] == "done"
    assert record.status["reason"].startswith("not finished: over the last 4 evaluations the objective was ")
    assert record.status["reason"] in capsys.readouterr().out


@pytest.mark.slow
def test_tables_say_whose_best_point_is_not_finished(capsys):
    records = run_grid([rated(1e-4), rated(1e-5)])
    assert all(record.summary["unfinished"] for record in records)
    assert command(["results", "outputs", "--out", "runs.csv"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("done, falling") == 2
    assert MORE_ROUNDS_ADVICE in shown
    assert ",falling," in Path("runs.csv").read_text()


@pytest.mark.slow
def test_a_run_that_grew_without_bounds_has_diverged(capsys):
    """Although all of its numbers are finite; the command says so again of the record."""
    for _ in range(2):
        with Console() as watch:
            record = run(rated(0.5, "algo.server_lr=1", "rounds=8"), "run", watch=watch)
        assert record.status["status"] == "diverged"
        assert "by more than 1,000 times its size at the start" in record.status["reason"]
        assert f"diverged: {record.status['reason']}; try a smaller" in capsys.readouterr().out
    assert np.isfinite(record.metrics["objective"]).all()


@pytest.mark.slow
def test_a_run_at_rest_says_nothing(capsys):
    record = run(rated(3e-2, "rounds=200", "precision=float64", "reg.strength=1"))
    assert record.summary["unfinished"] is None
    assert record.status["reason"] == ""
    assert command(["results", "outputs"]) == 0
    assert "falling" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ditto", "centralized"])
def test_remaining_descent_of_personal_models_and_of_baselines(algo):
    """Personal models are judged by their own loss; a baseline has its certificate."""
    record = run(small(*WHOLE, f"algo={algo}"))
    descent = record.summary["unfinished"]
    assert descent is None if algo == "centralized" else descent["metric"] == "personal_train_loss"


@pytest.mark.slow
def test_a_diverged_run_is_not_called_unfinished():
    record = run(rated(1e3))
    assert record.status["status"] == "diverged"
    assert record.summary["unfinished"] is None


# ---------------------------------------------------------------- targets

FAST = small(*WHOLE, "algo.client_lr=0.02", "reference=true", "precision=float64", "rounds=300")


def with_target(**stop: float) -> dict:
    return FAST | {"stop": stop}


@pytest.mark.slow
def test_a_run_ends_when_it_meets_its_target():
    record = run(with_target(suboptimality=1e-2))
    gaps = record.metrics["suboptimality"].to_numpy()
    assert gaps[-1] <= 1e-2 < gaps[-2]
    last = record.summary["round"]
    assert 0 < last < 300
    assert record.status["status"] == "done"
    assert record.status["reason"] == f"stopped in round {last}: suboptimality {gaps[-1]:.3g} <= 0.01"
    assert record.summary["unfinished"] is None
    whole = run(FAST, "whole")
    pd.testing.assert_frame_equal(rows_of(record), rows_of(whole).head(last + 1))
    assert record.status["identity"] != whole.status["identity"]
    assert record.summary["tail"] == record.summary["final"]  # the way there is none of it


def test_the_start_meets_no_target():
    """Zeros are within every ball and are sparse enough, which says nothing of the run."""
    options = ("algo=fedavg", "reg=l1_ball", "reg.radius=1", "rounds=3", "eval_every=1")
    record = run(small(*options) | {"stop": {"violation": 1e9}})
    assert record.metrics["violation"].iloc[0] == 0
    assert record.status["reason"].startswith("stopped in round 1: violation ")


@pytest.mark.parametrize("nobody", [("clients_per_round=poisson:0.02",), ("faults=dropout", "faults.dropout=0.97")])
def test_a_model_that_nobody_has_trained_has_not_come_to_rest(nobody):
    record = run(small("algo=feddualavg", "rounds=20", "eval_every=1", *nobody) | {"stop": {"change": 1e-9}})
    objective = record.metrics["objective"]
    assert 0 in objective.diff().tolist()
    assert not record.summary.get("stopped")
    assert record.summary["round"] == 20
    sentence = "stop: change is not known at the end, for no client had uploaded since the evaluation before"
    assert (sentence in record.status["reason"]) == (objective.diff().iloc[-1] == 0)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        (("algo=local", "rounds=300", "eval_every=50"), 0.5),  # sends nothing
        (("algo=meta_analysis", "algo.ridge=0.1", "rounds=5", "eval_every=1"), 1e-9),  # nothing after its only round
    ],
)
def test_a_model_comes_to_rest_in_rounds_in_which_nothing_is_sent_by_design(options, change):
    record = run(small(*options, "clients_per_round=null") | {"stop": {"change": change}})
    assert record.metrics["bytes_up"].diff().iloc[-1] == 0
    assert record.status["reason"].startswith("stopped in round ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ({"support_f1": 0.5}, "support_f1 0.5"),  # better is more
        ({"change": 1e-3}, "change "),
        ({"suboptimality": 1e-9, "change": 1e-3}, "change "),  # the first that is met
    ],
)
def test_metrics_that_may_be_targets(stop, expected):
    record = run(with_target(**stop))
    assert record.status["reason"].startswith(f"stopped in round {record.summary['round']}: {expected}")
    if "support_f1" in stop:
        assert (record.metrics["support_f1"] >= 0.5).tolist() == [False] * record.summary["round"] + [True]


@pytest.mark.slow
def test_a_target_below_what_the_precision_resolves_is_refused():
    config = with_target(suboptimality=1e-12) | {"precision": "float32"}
    with fails('stop["suboptimality"]=1e-12', 'precision="float64"'):
        run(config)


@pytest.mark.slow
def test_a_gap_below_the_precision_gives_a_warning():
    config = FAST | {"rounds": 2000, "precision": "float32", "eval_every": 500}
    assert "suboptimality is rounding: float32 resolves" in run(config).status["reason"]


@pytest.mark.slow
def test_a_baseline_ends_by_its_certificate_whatever_stop_is():
    config = small("algo=centralized", "stop={change:1}")
    assert "by its certificate" in prepare(config).warning
    assert "stopped" not in run(config).status["reason"]


@pytest.mark.slow
def test_of_one_client_nothing_is_said_of_rates():
    assert "rates" not in run(small("algo=one_client")).status["reason"]


@pytest.mark.slow
def test_a_run_that_misses_its_targets_says_by_how_much():
    record = run(with_target(suboptimality=1e-9, support_f1=2.0) | {"rounds": 5})
    last = record.metrics.iloc[-1]
    assert (
        f"stop: suboptimality was {last['suboptimality']:.3g} at the end, above 1e-09, support_f1 was "
        in (record.status["reason"])
    )
    assert f"{last['support_f1']:.3g} at the end, below 2" in record.status["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("compiling", [0.0, np.inf])
@pytest.mark.parametrize("rates", [[0.02, 0.015, 1e-5, 1e3], [0.02, 0.02001, 0.015, 1e-5, 2e-5]])
def test_each_run_of_a_grid_ends_by_itself(rates, compiling):
    """Remaining runs continue in smaller programs, or in the same one if smaller ones take too long to compile."""
    widths = set()

    def recorded(engine, points, *rest, **options):
        widths.add(len(points))
        return run_rounds(engine, points, *rest, **options)

    points = [deepcopy(with_target(suboptimality=1e-1)) for _ in rates]
    for point, rate in zip(points, rates, strict=True):
        point["algo"]["client_lr"] = rate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledPrograms, "estimated_recompile_seconds", compiling)
        patch.setattr("fcorun.runs.job.run_rounds", recorded)
        records = run_grid(points)
    assert (len(widths) > 1) == (compiling == 0)
    ends = [record.summary["round"] for record in records]
    assert sum(0 < end < 300 for end in ends[:3]) >= 2
    for point, record in zip(points, records, strict=True):
        alone = run(point, f"alone/{record.folder.name}")
        assert alone.summary["round"] == record.summary["round"]
        assert alone.status["reason"].split()[:4] == record.status["reason"].split()[:4]
        np.testing.assert_allclose(rows_of(record), rows_of(alone), rtol=1e-8)
        np.testing.assert_allclose(flat(record.solution), flat(alone.solution), rtol=1e-8, atol=1e-10)
        done = record.status["status"] == "done"  # of what diverged there are no coefficients and no scores
        files = [
            f
            for f in FILES
            if f not in PICTURES and (done or f not in ("coefficients.csv", "scores.csv", "predictions.csv"))
        ]
        assert sorted(path.name for path in record.folder.iterdir()) == files


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_its_target():
    config = with_target(suboptimality=1e-2)
    with pytest.raises(KeyboardInterrupt):
        run(config, "broken", Stop(5))
    resumed, whole = run(config, "broken"), run(config, "whole")
    assert resumed.status == whole.status
    pd.testing.assert_frame_equal(rows_of(resumed), rows_of(whole))


@pytest.mark.slow
def test_a_finished_run_is_no_longer_interrupted():
    """A grid that is broken off keeps what has met its target."""
    points = [deepcopy(with_target(suboptimality=1e-1)) for _ in range(2)]
    points[1]["algo"]["client_lr"] = 1e-5
    with pytest.raises(KeyboardInterrupt):
        run_grid(points, ["fast", "slow"], Stop(150))
    assert [Record(Path(name)).status["status"] for name in ("fast", "slow")] == ["done", "interrupted"]
    assert not Path("fast/.checkpoint.npz").exists()
    assert [record.status["status"] for record in run_grid(points, ["fast", "slow"])] == ["done", "done"]


def test_a_run_without_a_target_keeps_its_identity():
    config = small()
    before = {key: value for key, value in config.items() if key != "stop"}
    assert prepare(before).identity == prepare(config).identity


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "advice"), [(["algo=meta_analysis"], ""), (["algo=fedavg", "algo.client_lr=3"], ": smaller rates may")]
)
def test_smaller_rates_are_advised_where_there_are_rates(options, advice, tmp_path):
    config = ragged(tmp_path, *options, "rounds=1", "reg.strength=10", sizes=(12, 15), features=3)
    reason = run(config, tmp_path / "run").status["reason"]
    assert f"the objective ended above where it began{advice}" in reason
    assert ("rates" in reason) == bool(advice)


def test_a_target_that_turns_out_not_to_be_measured():
    config = small("data.validation_samples=0") | {"stop": {"val_loss": 1.0}}
    with fails("stop", "'val_loss'", "train_loss"):
        run(config)


@pytest.mark.drawn
def test_a_picture_that_fails_costs_no_result(monkeypatch):
    def fail(*_, **__):
        raise ValueError("no such colour")

    monkeypatch.setattr("fcorun.reports.pictures.picture.Picture.render", fail)
    record = run(small("rounds=2"), "one")
    assert record.status["status"] == "done"
    assert "the pictures could not be drawn (no such colour)" in record.status["reason"]
    assert not Path("one/curves.png").exists()


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (["algo=fedavg"], "try a smaller algo.client_lr or algo.server_lr"),
        (["algo=fedgd", "algo.step=100"], "try a smaller algo.step"),
        (["algo=newton"], "this algorithm has no rate: look for very large values in the data"),
        (
            ["algo=meta_analysis"],
            "this algorithm has no rate: look for very large values in the data and for clients whose fits leave no",
        ),
    ],
)
def test_a_diverged_run_is_advised_to_change_what_it_has(overrides, advice):
    assert advise_on_divergence(prepare(composed("data=lasso", *overrides))).startswith(advice)
