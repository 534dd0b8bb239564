"""The progress of a running run, as its folder shows it."""

import re
from pathlib import Path

import pytest
from helpers import Stop, small

from fcorun import Record, Watcher, run
from fcorun.interface.cli.commands import main as command
from fcorun.runs import job

RUN = ("rounds=8", "eval_every=2", "checkpoint_every=0")


def lines() -> list[str]:
    """The evaluations in run.log."""
    return re.findall("  ((?:round|iteration) .*)", Path("here/run.log").read_text())


@pytest.mark.slow
def test_each_evaluation_is_a_line_of_the_log(monkeypatch):
    monkeypatch.setattr(job, "_PAUSE", 0)
    monkeypatch.setattr(job, "_SHARE", float("inf"))
    run(small(*RUN), "here")
    progress_of_lines = [line.partition(":")[0] for line in lines()]
    assert progress_of_lines == [f"round {done} of 8 ({25 * done // 2} %)" for done in (0, 2, 4, 6, 8)]
    assert re.fullmatch(r"round 4 of 8 \(50 %\): objective [\d.]+  support_f1 [\d.]+, about \d+ s left", lines()[2])


@pytest.mark.slow
def test_a_fast_run_writes_of_its_first_and_its_last_evaluation_only(monkeypatch):
    monkeypatch.setattr(job.time, "monotonic", lambda: 100.0)
    run(small(*RUN), "here")
    assert [line.partition(" of")[0] for line in lines()] == ["round 0", "round 8"]


@pytest.mark.slow
def test_a_baseline_tells_of_its_iterations():
    run(small("algo=centralized"), "here")
    assert lines()[0].startswith("iteration 0: objective ")


@pytest.mark.slow
def test_results_tell_how_far_a_run_has_come(monkeypatch, capsys):
    class Asking(Watcher):
        def on_evaluation(self, job, row):
            if row["round"] == 6:  # of which nothing is noted yet
                assert command(["results", "here"]) == 0

    monkeypatch.setattr(job, "_PAUSE", 0)
    monkeypatch.setattr(job, "_SHARE", float("inf"))
    run(small(*RUN), "here", Asking())
    shown = capsys.readouterr().out
    assert re.search(r"running, round 4 of 8 \(50 %\), about \d+ s left +4 ", shown)
    assert "best" not in shown


@pytest.mark.slow
def test_metrics_of_a_run_on_its_way_are_there_at_each_checkpoint():
    rounds = [0, 2, 4, 6, 8]
    with pytest.raises(KeyboardInterrupt):
        run(small(*RUN), "here", Stop(4))
    checkpointed = list(Record(Path("here")).metrics["round"])
    assert checkpointed in (rounds[:2], rounds[:3])
    seen = []

    class Seeing(Watcher):
        def on_evaluation(self, job, row):
            seen.append([row["round"] for row in Record(Path("here")).rows])

    whole = run(small(*RUN), "here", Seeing())
    assert list(whole.metrics["round"]) == rounds
    assert all(rounds_seen == rounds[: len(rounds_seen)] for rounds_seen in seen)
    assert len(seen[-1]) == 4
