"""Trackers receive each complete record once, do not change a run's identity, and cannot damage a record."""

import json
import os
import shutil
import struct
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import fake_records
import numpy as np
import pytest
from helpers import choice_names, run_grid, small

from fcorun import UserError, run
from fcorun.base.records.few_rows import FewRows
from fcorun.base.records.record import Record, RunFolder
from fcorun.base.records.single_patients import PATIENT_FILES
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.experiment.prepare import prepare
from fcorun.experiment.tracker import NoTracker, SentRecord, call_tracker, run_name
from fcorun.runs.job import Watcher
from fcorun.runs.tracked_runs import TrackedRuns

SOURCE = """
from dataclasses import dataclass
from fcorun.config import PathOption
from fcorun.experiment.tracker import Tracker

@dataclass(frozen=True)
class Mine(Tracker):
    log_to: PathOption = "log.txt"
    def on_evaluation(self, record, rows):
        with open("evaluations.txt", "a") as file:
            print(record.config["rounds"], *(row["round"] for row in rows), file=file)
        if self.log_to == "nowhere":
            raise OSError("the destination is gone")
    def log(self, record):
        if self.log_to == "nowhere":
            raise OSError("the destination is gone")
        with open(self.log_to, "a") as file:
            print(record.status["status"], record.summary["round"], record.place.name, file=file)
"""


@pytest.fixture
def configure(user_module):
    """Return a function of overrides that returns a configuration with a tracker of the user."""
    user_module("my_tracker", SOURCE)

    def make(*overrides, **fields):
        return small(*overrides) | {"tracker": {"name": "mine", "class": "my_tracker.Mine", **fields}}

    return make


def logged_lines():
    return Path("log.txt").read_text().splitlines() if Path("log.txt").exists() else []


def sent_record(folder, settings=None):
    """Write a record of simulated data, of which trackers send everything."""
    record = fake_records.fake_record(folder, settings)
    return SentRecord(record.folder, record.folder)


class Service:
    """A module of a service, and all that is in it: remembers what it is given, also in files."""

    def __init__(self, sent, name=""):
        self.sent: list[str] = sent
        self.name: str = name

    def __getattr__(self, name):
        return Service(self.sent, name)

    def __iter__(self):
        return iter([self])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def __call__(self, *arguments, **options):
        for value in (*arguments, *options.values()):
            self.sent.append(str(value))
            if isinstance(value, str) and os.path.exists(value) and self.name.startswith("log"):
                files = [path for path in (Path(value), *Path(value).rglob("*")) if path.is_file()]
                self.sent += [f"{path.name}: {path.read_bytes()}" for path in files]
        return self


@dataclass
class ServiceFinder(Loader):
    """An importer of services in place of the modules of these names."""

    names: tuple[str, ...]
    sent: list[str] = field(default_factory=list)

    def replaces(self, module):
        return module.partition(".")[0] in self.names

    def find_spec(self, name, path, target=None):
        return ModuleSpec(name, self, is_package=True) if self.replaces(name) else None

    def create_module(self, spec):
        return Service(self.sent)

    def exec_module(self, module):
        pass


@contextmanager
def replaced_services(tracker):
    """Replace the modules that a tracker imports; yield the list of what they are given."""
    caches = [
        value for value in vars(import_module(type(tracker).__module__)).values() if hasattr(value, "cache_clear")
    ]
    finder = ServiceFinder(tracker.required_modules)
    installed = {name: sys.modules.pop(name) for name in [*sys.modules] if finder.replaces(name)}
    sys.meta_path.insert(0, finder)
    for cached in caches:
        cached.cache_clear()
    try:
        yield finder.sent
    finally:
        sys.meta_path.remove(finder)
        for name in filter(finder.replaces, [*sys.modules]):
            del sys.modules[name]
        sys.modules.update(installed)
        for cached in caches:
            cached.cache_clear()


SECRET = "731973"  # in all that tells of one patient


def fake_patients(path):
    """Write a record of patients, of whom a client has too few, into a folder; return the folder."""
    settings = fake_records.fake_config()
    settings["data"] = {"name": "table", "class": "fcorun.Table", "path": "rows.csv"}
    table = fake_records.fake_rows(val_loss_worst_tenth=float(SECRET), train_loss_spread=float(SECRET))
    record = fake_records.fake_record(path, settings, table, reason=f"gaps in row {SECRET}")
    client = f"Ward {SECRET}"
    outcome = [{"set": "train", "client": name, "rows": 40, "events": 9} for name in ("", client)]
    data = {"limits": [[float(SECRET)], [99.0]], "outcome": outcome, "few_rows": {"train": [client]}}
    warnings = [f"client {client} has rows of one class", f"gaps in rows ({SECRET}, ...)"]
    summary = record.summary | {"data": data, "warnings": warnings}
    (record.folder / "summary.json").write_text(json.dumps(summary))
    (record.folder / "scores.csv").write_text(f"set,model,client,n\ntrain,shared,,80\ntrain,shared,{client},40\n")
    (record.folder / "run.log").write_text(f"done\nleft out: client {client}\n")
    (record.folder / "coefficients.csv").write_text("feature,coefficient\nx,1\n")
    for name in ("curves.png", *PATIENT_FILES):
        (record.folder / name).write_text(f"set,client,row\ntest,{client},{SECRET}\n")
    return RunFolder(record.folder, record.status["identity"])


@pytest.mark.parametrize("name", choice_names("tracker"))
def test_a_tracker_sends_nothing_that_tells_of_a_patient(name, monkeypatch):
    """All that it gives to its service is looked through, on evaluations, at the end, and after a failure."""
    monkeypatch.setattr("fcorun.experiment.tracker.find_spec", lambda module: True)
    tracker = prepare(small(f"tracker={name}")).tracker
    monkeypatch.setenv("TRACKIO_DIR", "")
    folder = fake_patients("runs/a")
    rows, few = Record(folder.path).rows, FewRows.find([folder.path])
    with replaced_services(tracker) as sent:
        assert call_tracker(tracker.on_evaluation, folder, few, rows[:2])
        assert call_tracker(tracker.log, folder), (folder.path / "run.log").read_text()
        assert call_tracker(tracker.on_evaluation, folder, few, rows[:2])
        assert call_tracker(tracker.on_failure, folder, few)
    text = " ".join(sent)
    assert ("objective" in text) == (name != "none")
    assert SECRET not in text


def test_a_run_that_goes_on_is_sent_as_its_data_allow(monkeypatch, tmp_path):
    """Its record does not yet tell which clients have few rows, or groups."""
    monkeypatch.setattr("fcorun.runs.tracked_runs._FIRST_SECONDS", 0.0)
    (tmp_path / "config.yaml").write_text("data: {class: fcorun.Table, path: rows.csv}\n")
    rows = Rows.from_offsets(np.zeros((20, 1)), np.zeros(20), np.array([0, 10, 20]))
    group = np.array([*"abcdefghij", *"kkkkkkllll"])
    evaluation = {"round": 0, "seconds": 0.0, "val_loss": 1.0, "val_loss_spread": 2.0}
    sent = []
    for validation, of_groups, names in (
        (rows, rows, {"round", "seconds", "val_loss", "val_loss_spread"}),
        (rows, replace(rows, group=group), {"round", "seconds", "val_loss"}),
        (rows.take(np.arange(4)), rows, {"round", "seconds"}),
    ):
        job: Any = SimpleNamespace(run_folder=RunFolder(tmp_path, "a" * 64), experiment=MagicMock(), end_status="")
        job.experiment.tracker.on_evaluation = lambda record, rows: sent.append(rows)
        tracked = TrackedRuns(Watcher())
        tracked.on_start(job, FederatedData(of_groups, validation), 0)
        tracked.on_evaluation(job, evaluation)
        assert sent.pop()[0].keys() == names


def test_the_default_is_no_tracker():
    assert choice_names("tracker") == ["mlflow", "none", "tensorboard", "trackio", "wandb"]
    assert small()["tracker"]["name"] == "none"
    assert isinstance(prepare(small()).tracker, NoTracker)
    without = {key: value for key, value in small().items() if key != "tracker"}
    assert isinstance(prepare(without).tracker, NoTracker)


@pytest.mark.slow
def test_a_tracker_does_not_change_the_identity(configure):
    with_, without = prepare(configure()), prepare(small())
    assert with_.identity == without.identity
    assert with_.batch_key == without.batch_key
    assert with_.config == without.config
    assert "tracker" not in run(configure()).config


@pytest.mark.slow
def test_a_record_is_logged_once(configure):
    record = run(configure("rounds=2"))
    assert logged_lines() == [f"done 2 {record.folder.name}"]
    run(configure("rounds=2"))
    assert len(logged_lines()) == 1  # reused
    run(configure("rounds=2", "force=true"))
    assert len(logged_lines()) == 2


@pytest.mark.slow
def test_every_run_of_a_grid_is_logged(configure):
    configs = [configure("rounds=2", f"algo.client_lr={rate}") for rate in (1e-3, 1e6)]
    run_grid(configs, ["a", "b"])
    assert [line.split()[0] for line in logged_lines()] == ["done", "diverged"]


@pytest.mark.slow
def test_evaluations_are_sent_while_a_run_goes_on(configure, monkeypatch):
    """All but the last ones, which the record has: nothing is sent after its end."""
    monkeypatch.setattr("fcorun.runs.tracked_runs._FIRST_SECONDS", 0.0)
    monkeypatch.setattr("fcorun.runs.tracked_runs._SHARE", float("inf"))
    run(configure("rounds=4", "eval_every=1"))
    assert Path("evaluations.txt").read_text().split("\n") == ["4 0", "4 1", "4 2", "4 3", "4 4", ""]
    run(configure("rounds=4", "eval_every=1", "force=true", log_to="nowhere"))
    assert Path("evaluations.txt").read_text().count("\n") == 6  # a tracker that fails is told no more


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_mlflow_ends_the_runs_that_fail_and_those_of_a_process_that_was_killed(tmp_path):
    pytest.importorskip("mlflow", reason="pip install 'fcorun[mlflow]' to test it")
    from fcorun.runs.trackers import mlflow

    record, tracker = sent_record("runs/a"), mlflow.MLflow(f"sqlite:///{tmp_path}/a.db")
    tracker.on_evaluation(record, record.rows[:2])
    mlflow._OPEN.close(record)  # the process was killed
    tracker.on_evaluation(record, record.rows[:2])
    tracker.on_failure(record)
    tracker.log(record)
    client, experiment_id = mlflow._open(tracker.uri, tracker.experiment)
    assert sorted(run.info.status for run in client.search_runs([experiment_id])) == ["FAILED", "FINISHED", "KILLED"]


@pytest.mark.slow
def test_trackers_take_a_small_share_of_the_time(configure, monkeypatch):
    monkeypatch.setattr("fcorun.runs.tracked_runs._FIRST_SECONDS", 0.0)
    monkeypatch.setattr("fcorun.runs.tracked_runs._SHARE", 1e-9)
    run(configure("rounds=4", "eval_every=1"))
    assert Path("evaluations.txt").read_text() == "4 0\n"
    Path("evaluations.txt").unlink()
    monkeypatch.setattr("fcorun.runs.tracked_runs._FIRST_SECONDS", 1e9)
    run(configure("rounds=4", "eval_every=1", "force=true"))
    assert not Path("evaluations.txt").exists()


@pytest.mark.parametrize(("name", "class_name"), [("wandb", "WeightsAndBiases"), ("trackio", "Trackio")])
def test_each_evaluation_is_sent_once_and_then_the_run_ends(name, class_name, monkeypatch):
    """Two runs go on together, with a module in place of the service's."""
    sent, ended = [], []

    def init(**options):
        def log(values, step):
            sent.append((options["name"], step, values["objective"]))

        return SimpleNamespace(log=log, finish=lambda exit_code=0: ended.append(options["name"]), summary={})

    monkeypatch.setitem(sys.modules, name, SimpleNamespace(init=init, Settings=dict))
    monkeypatch.setenv("TRACKIO_DIR", "")
    tracker = getattr(import_module(f"fcorun.runs.trackers.{name}"), class_name)()
    records = [sent_record(algo, fake_records.fake_config(algo)) for algo in ("fedmid", "fedavg")]
    for record in records:
        tracker.on_evaluation(record, record.rows[:2])
    for record in records:
        tracker.log(record)
        of_record = [(step, value) for label, step, value in sent if label == run_name(record)]
        assert of_record == [(row["round"], row["objective"]) for row in record.rows]
        assert ended[-1] == run_name(record)
    other = sent_record("others", fake_records.fake_config("fedprox"))
    tracker.on_evaluation(other, other.rows[:2])
    tracker.on_failure(other)
    sent.clear()
    shutil.rmtree("others")  # another run in the same folder has nothing of the one before
    other = sent_record("others", fake_records.fake_config("fedavg"))
    (other.folder / "status.json").write_text(json.dumps(other.status | {"identity": "f" * 64}))
    tracker.log(other)
    assert [step for _, step, _ in sent] == [row["round"] for row in other.rows]


@pytest.mark.slow
def test_a_failing_tracker_damages_no_record(configure, capsys):
    from fcorun.experiment.tracker import _warn_once

    _warn_once.cache_clear()
    records = run_grid([configure("rounds=2", f"algo.client_lr={rate}", log_to="nowhere") for rate in (1e-3, 2e-3)])
    for record in records:
        assert record.status["status"] == "done"
        assert "OSError: the destination is gone" in (record.folder / "run.log").read_text()
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("fcorun: the tracker Mine failed")


@pytest.mark.parametrize("name", ["mlflow", "tensorboard", "trackio", "wandb"])
def test_a_missing_extra_is_refused_before_the_run(monkeypatch, name):
    monkeypatch.setattr("fcorun.experiment.tracker.find_spec", lambda module: None)
    with pytest.raises(UserError, match=rf"tracker={name} needs .*pip install 'fcorun\[{name}\]'"):
        prepare(small(f"tracker={name}"))


def test_options_of_a_tracker_are_checked():
    with pytest.raises(UserError, match=r"tracker.fold|Could not override|unknown option"):
        prepare(small() | {"tracker": {"class": "fcorun.NoTracker", "fold": 1}})
    with pytest.raises(UserError, match="is no Tracker"):
        prepare(small() | {"tracker": small()["reg"]})


@pytest.mark.slow
@pytest.mark.drawn
def test_tensorboard():
    events = pytest.importorskip("tensorboardX.proto.event_pb2", reason="pip install 'fcorun[tensorboard]' to test it")

    record = run(small("tracker=tensorboard"))
    run(small("tracker=tensorboard", "force=true"))
    (file,) = Path("tensorboard/lasso").glob(f"{record.folder.name}/events.out.tfevents.*")
    content = file.read_bytes()
    position, scalars = 0, {}
    while position < len(content):
        (size,) = struct.unpack("<Q", content[position : position + 8])
        event = events.Event.FromString(content[position + 12 : position + 12 + size])
        position += 12 + size + 4
        for value in event.summary.value:
            scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    metrics = record.metrics
    assert scalars["objective"] == [
        (r, pytest.approx(v)) for r, v in zip(metrics["round"], metrics["objective"], strict=True)
    ]
    assert scalars["final_support_f1"] == [(4, pytest.approx(record.summary["final"]["support_f1"]))]
    assert {"_hparams_/session_start_info", "config/text_summary", "status/text_summary", "curves"} <= set(scalars)


def test_tensorboard_of_a_record_without_curves():
    """The files of the run while it went on are replaced."""
    pytest.importorskip("tensorboardX", reason="pip install 'fcorun[tensorboard]' to test it")
    from fcorun.runs.trackers.tensorboard import TensorBoard

    record = sent_record("s/a")
    TensorBoard("board").on_evaluation(record, record.rows)
    (file,) = Path("board/lasso").rglob("events.out.tfevents.*")
    assert b"objective" in file.read_bytes()
    TensorBoard("board").log(record)
    (file,) = Path("board/lasso").rglob("events.out.tfevents.*")
    assert b"final_objective" in file.read_bytes()
    assert b"curves" not in file.read_bytes()


@pytest.mark.parametrize("uri", ["sqlite:///{folder}/runs.db", "http://localhost:1"])
def test_processes_in_several_folders_share_the_lock_of_a_database(uri, tmp_path, monkeypatch):
    from fcorun.runs.trackers import mlflow

    taken = set()
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=MagicMock()))
    monkeypatch.setattr(mlflow.locks, "acquire", lambda path, seconds: taken.add(path) or nullcontext())
    for name in "ab":
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        mlflow._open.__wrapped__(uri.format(folder=tmp_path), "fcorun")
    assert len(taken) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_mlflow(monkeypatch):
    for module in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(module, reason="pip install 'fcorun[mlflow]' to test it")
    from mlflow import MlflowClient

    monkeypatch.setattr("fcorun.runs.tracked_runs._FIRST_SECONDS", 0.0)
    record = run(small("tracker=mlflow", "rounds=6", f"title={'long ' * 2000}"))
    client = MlflowClient("sqlite:///mlflow.db")
    experiment = client.get_experiment_by_name("fcorun")
    assert experiment is not None
    (mlflow_run,) = client.search_runs([experiment.experiment_id])
    assert mlflow_run.info.run_name == record.folder.name
    assert mlflow_run.info.status == "FINISHED"
    assert mlflow_run.data.params["algo.client_lr"] == str(record.config["algo"]["client_lr"])
    assert mlflow_run.data.params["local_steps"] == "null"
    assert mlflow_run.data.tags["status"] == "done"
    assert mlflow_run.data.tags["identity"] == record.status["identity"]
    assert mlflow_run.data.metrics["final_objective"] == record.summary["final"]["objective"]
    history = client.get_metric_history(mlflow_run.info.run_id, "objective")
    assert sorted((m.step, m.value) for m in history) == list(
        zip(record.metrics["round"], record.metrics["objective"], strict=True)
    )
    files = {file.path for file in client.list_artifacts(mlflow_run.info.run_id)}
    assert {"config.yaml", "metrics.csv", "summary.json", "solution.npz", "curves.png", "status.json"} <= files
    assert Path("mlartifacts").is_dir()
