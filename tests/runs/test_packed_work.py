"""Work for other processes: they compute by the code and files of the command that made it, or refuse in a sentence."""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from helpers import SMALL, fails

from fcorun import compose
from fcorun.base.records.formats import yaml_text
from fcorun.base.records.record import Record, RunFolder
from fcorun.base.trust import forget_folder_modules
from fcorun.experiment.prepare import prepare
from fcorun.runs.executors.executor import LauncherOptions, PackedWork, PointResult, compute_group
from fcorun.runs.executors.inline import InlineExecutor
from fcorun.runs.executors.submitit import GroupJob
from fcorun.runs.sweep_point import SweepPoint

PLUGIN = """
from dataclasses import dataclass
from fcorun.algorithms import FedMiDOSP
from steps import FACTOR

@dataclass(frozen=True)
class Mine(FedMiDOSP):
    def server(self, problem, server, mean):
        return server + FACTOR * mean["update"]
"""
MINE = ("algo=fedmid_osp", "algo.class=mine.Mine")


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return a function that makes the task of a run in a folder, as a command that is given there does."""

    def pack(folder: Path, *overrides: str) -> bytes:
        monkeypatch.chdir(folder)
        forget_folder_modules()  # a command is a new Python
        point = SweepPoint("", folder / "run", prepare(compose([*overrides])))
        return pickle.dumps(PackedWork.of_group([point], n_cores=None))

    yield pack
    os.chdir(tmp_path)
    forget_folder_modules()


def write_plugin(folder: Path, factor: float) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(PLUGIN)
    (folder / "steps.py").write_text(f"FACTOR = {factor}\n")
    return folder


def compute(task: bytes) -> list[PointResult]:
    return compute_group(pickle.loads(task), InlineExecutor(LauncherOptions()))


def test_one_worker_computes_modules_of_one_name_by_the_folder_of_each_command(command, tmp_path):
    folders = [write_plugin(tmp_path / name, factor) for name, factor in (("moves", 1.0), ("stays", 0.0))]
    tasks = [command(folder, *SMALL, *MINE) for folder in folders]
    for task in tasks:
        assert compute(task) == [("done", "")]
    objectives = {folder.name: [row["objective"] for row in Record(folder / "run").rows] for folder in folders}
    assert objectives["moves"][-1] < objectives["moves"][0]
    assert objectives["stays"][-1] == objectives["stays"][0]


def change_code(folder: Path) -> str:
    write_plugin(folder, 0.125)  # of another length: Python compares seconds and lengths
    return "steps.py changed since the command was given"


def break_code(folder: Path) -> str:
    (folder / "mine.py").write_text("class")
    return "cannot import 'mine'"


def change_rows(folder: Path) -> str:
    write_table(folder, 100.0)
    return "the rows of data=table have changed since the command was given"


def write_table(folder: Path, outcome: float) -> None:
    rows = [{"x": float(i), "y": outcome * (i % 3), "site": "ab"[i % 2]} for i in range(40)]
    pd.DataFrame(rows).to_csv(folder / "rows.csv", index=False)


def mark_submitted(folder: Path, task: PackedWork) -> None:
    (point,) = task.start()
    submitted = RunFolder(folder, point.experiment.identity)
    submitted.claim()
    submitted.write_file("config.yaml", yaml_text(point.experiment.config))
    submitted.write_status("interrupted", "mine", "not begun: its job was submitted")
    submitted.release()


@pytest.mark.parametrize("change", [change_code, break_code, change_rows])
def test_a_job_whose_code_or_rows_have_changed_fails_its_record_and_says_so(change, command, tmp_path):
    folder = write_plugin(tmp_path / "project", 1.0)
    write_table(folder, 1.0)
    table = ("data=table", "data.path=rows.csv", "data.client=site", "data.target=y", "rounds=3")
    task = pickle.loads(command(folder, *MINE, *table))
    assert isinstance(task, PackedWork)
    mark_submitted(folder / "run", task)
    sentence = change(folder)
    ((status, error),) = GroupJob([folder / "run"])(task)
    record = Record(folder / "run")
    assert status == record.status["status"] == "failed"
    assert sentence in error == record.status["reason"]
    assert record.config["algo"]["class"] == "mine.Mine"
    assert not record.rows
    with fails(sentence):
        compute(pickle.dumps(task))


def test_work_of_a_version_with_other_fields_is_refused():
    task = PackedWork(".", {}, b"", None)
    del vars(task)["versions"]  # as a pickle of then has it
    with fails("another version of fcorun than the command had: give the command again"):
        compute(pickle.dumps(task))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"folder": "gone"}, "cannot enter the command's folder gone (No such file or directory)"),
        ({"versions": {"fcorun": "0.0"}}, "and the command has 0.0: install the same there"),
    ],
)
def test_a_job_that_is_refused_when_it_begins_again_leaves_what_is_done(changes, sentence, command, tmp_path):
    task = command(tmp_path, *SMALL)
    assert compute(task) == [("done", "")]
    done = Record(tmp_path / "run").status
    mark_submitted(tmp_path / "other", pickle.loads(task))
    begun_again = replace(pickle.loads(task), **changes)
    first, (status, error) = GroupJob([tmp_path / "run", tmp_path / "other"])(begun_again)
    assert first == ("done", "")
    assert Record(tmp_path / "run").status == done
    other = Record(tmp_path / "other").status
    assert status == other["status"] == "failed"
    assert sentence in error == other["reason"]
