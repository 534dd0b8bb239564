"""How runs end: an objective that is still falling is said to be."""

from pathlib import Path

import pytest
from helpers import small

from fcorun import run, run_grid
from fcorun.cli.commands import main as command
from fcorun.cli.console import Console
from fcorun.experiment.ending import ADVICE

WHOLE = ("clients_per_round=null", "batch_size=null", "rounds=40", "eval_every=1")


def rated(rate: float, *overrides: str) -> dict:
    return small(*WHOLE, f"algo.client_lr={rate}", *overrides)


# ---------------------------------------------------------------- still falling


def test_a_run_that_is_not_finished_says_so(capsys):
    with Console() as watch:
        record = run(rated(1e-4), watch=watch)
    found = record.summary["unfinished"]
    assert found["metric"] == "objective"
    assert found["evaluations"] == 4
    assert record.status["status"] == "done"
    assert record.status["reason"].startswith("not finished: over the last 4 evaluations the objective was ")
    assert record.status["reason"] in capsys.readouterr().out


def test_tables_say_whose_best_point_is_not_finished(capsys):
    records = run_grid([rated(1e-4), rated(1e-5)])
    assert all(record.summary["unfinished"] for record in records)
    assert command(["results", "outputs", "--out", "runs.csv"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("done, falling") == 2
    assert ADVICE in shown
    assert ",falling," in Path("runs.csv").read_text()


def test_a_run_at_rest_says_nothing(capsys):
    record = run(rated(3e-2, "rounds=200", "precision=float64", "reg.strength=1"))
    assert record.summary["unfinished"] is None
    assert record.status["reason"] == ""
    assert command(["results", "outputs"]) == 0
    assert "falling" not in capsys.readouterr().out


@pytest.mark.parametrize("algo", ["ditto", "centralized"])
def test_whom_it_is_said_of(algo):
    """Own models are judged by their own loss; a baseline has its certificate."""
    record = run(small(*WHOLE, f"algo={algo}"))
    found = record.summary["unfinished"]
    assert found is None if algo == "centralized" else found["metric"] == "personal_train_loss"


def test_a_diverged_run_is_not_called_unfinished():
    record = run(rated(1e3))
    assert record.status["status"] == "diverged"
    assert record.summary["unfinished"] is None
