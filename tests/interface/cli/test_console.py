"""The terminal output of a run."""

import json

import pytest
from fake_records import fake_record, fake_rows
from helpers import small

from fcorun.base.metrics import Metric
from fcorun.base.records.record import RunFolder
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.console import Console, SweepConsole
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.runs.executors.executor import take_results
from fcorun.runs.job import Job
from fcorun.runs.sweep_point import SweepPoint


def test_the_files_of_the_record_are_named(capsys, monkeypatch):
    table = fake_rows(val_deviance=2.0)
    folder = fake_record("s/a", table=table).folder
    monkeypatch.setattr(LeastSquares, "metrics", (Metric("deviance", higher=False),))
    job = Job(prepare(small()), RunFolder(folder, ""), end_status="done", rows=table)
    Console().on_end(job)
    output = capsys.readouterr().out.splitlines()
    assert output[-1] == "done: s/a/ holds metrics.csv, summary.json, config.yaml"
    assert next(line.split() for line in output if "deviance" in line) == ["val_deviance", "2", "2", "0", "2"]
    (folder / "curves.png").touch()
    Console().on_end(job)
    assert "holds metrics.csv, curves.png, summary.json" in capsys.readouterr().out


def test_brackets_in_names_are_no_markup(capsys):
    folder = fake_record("s/[a]").folder
    job = Job(prepare(small()), RunFolder(folder, ""), end_status="done", rows=fake_rows())
    job.add_reason("feature 'rate [/min]' alone separates the classes, 'dose [mg]' does not")
    Console().on_end(job)
    output = capsys.readouterr().out
    assert "feature 'rate [/min]' alone separates the classes, 'dose [mg]' does not\n" in output
    assert "done: s/[a]/ holds" in output
    watch = SweepConsole()
    for runs in (2, 2, 1):  # once a second
        watch.on_wait(runs)
    assert capsys.readouterr().out.count("by another process") == 2


def test_warnings_of_runs_that_another_process_has_computed_are_shown_once(capsys):
    points = [SweepPoint("", fake_record(f"s/{name}").folder, folder_state="new") for name in "abc"]
    for point, noise in zip(points, (9, 9, 4), strict=True):
        summary = json.loads((point.folder / "summary.json").read_text())
        (point.folder / "summary.json").write_text(json.dumps(summary | {"warnings": [f"noise={noise} drowns all"]}))
    points[2].folder_state = "finished"  # by an earlier command
    take_results(points, [("done", "")] * 3, SweepConsole())
    output = capsys.readouterr().out
    assert output.count("noise=9 drowns all\n") == 1
    assert "noise=4" not in output


def test_the_values_for_auto_are_shown(capsys):
    folder = fake_record("s/a").folder
    curvature = {"least": 0.5, "most": 2.0, "condition": 4.0, "algo.client_lr": 0.123456}
    summary = folder / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"curvature": curvature}))
    job = Job(prepare(small("algo.client_lr=auto")), RunFolder(folder, ""), end_status="done", rows=fake_rows())
    assert job.label.endswith("client_lr=auto")
    Console().on_end(job)
    assert "auto: algo.client_lr=0.1235, from losses whose curvature is 0.5 to 2\n" in capsys.readouterr().out


def test_rounds_of_an_asynchronous_server_are_uploads(capsys):
    overrides = ("topology=asynchronous", "topology.buffer=2", "clock=lognormal", "clients_per_round=null")
    job = Job(prepare(small(*overrides)), RunFolder(fake_record("s/a").folder, ""))
    Console().on_start(job, load_data(job.experiment), 0)
    output = capsys.readouterr().out
    assert "rounds of one upload each" in output
    assert "clients a round" not in output


UNKNOWN = "how near the optimum it ended is not known, for its rates were given: reference=true measures it\n"
OUT = "algo=fedprox ignores the regularizer psi: its solution does not minimize F + psi with reg=l1; reference=true"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [(["algo=feddualavg"], UNKNOWN), (["algo=fedprox"], OUT), (["reference=true"], ""), (["algo=local"], "")],
    ids=lambda overrides: " ".join(overrides)[:20],
)
def test_an_unknown_optimality_gap_is_explained(overrides, sentence, capsys):
    folder = fake_record("s/a").folder
    console, job = (
        Console(),
        Job(prepare(small(*overrides)), RunFolder(folder, ""), end_status="done", rows=fake_rows()),
    )
    console.on_start(job, load_data(job.experiment), 0)
    console.on_end(job)
    output = capsys.readouterr().out
    assert sentence in output
    assert ("reference=true" in output) == bool(sentence)
    job.certificate = {"near": True}
    console.on_end(job)
    assert "reference=true" not in capsys.readouterr().out
