"""What a run shows on the terminal."""

from fabricate import record, rows
from helpers import small

from fcorun.cli.console import Console
from fcorun.experiment.prepare import prepare
from fcorun.metrics import Metric
from fcorun.objectives.least_squares import LeastSquares
from fcorun.records.folder import RunFolder
from fcorun.runs.job import Job


def test_it_names_the_files_that_are_there(capsys, monkeypatch):
    table = rows(val_deviance=2.0)
    folder = record("s/a", table=table).folder
    monkeypatch.setattr(LeastSquares, "metrics", (Metric("deviance", higher=False),))
    job = Job(prepare(small()), RunFolder(folder, ""), end="done", rows=table)
    Console().ends(job)
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "done: s/a/ holds metrics.csv, summary.json, config.yaml"
    assert next(line.split() for line in shown if "deviance" in line) == ["val_deviance", "2", "2", "0", "2"]
    (folder / "curves.png").touch()
    Console().ends(job)
    assert "holds metrics.csv, curves.png, summary.json" in capsys.readouterr().out
