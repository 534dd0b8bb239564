"""Trackers: told once of a complete record, no part of what a run is, and no danger to it."""

import struct
from pathlib import Path

import fake_records
import pytest
from helpers import choice_names, small

from fcorun import UserError, run, run_grid
from fcorun.experiment.prepare import prepare
from fcorun.trackers.none import NoTracker

OWN = """
from dataclasses import dataclass
from fcorun.config import Path
from fcorun.trackers.base import Tracker

@dataclass(frozen=True)
class Mine(Tracker):
    log_to: Path = "told"
    def log(self, record):
        if self.log_to == "nowhere":
            raise OSError("the sink is gone")
        with open(self.log_to, "a") as file:
            print(record.status["status"], record.summary["round"], record.folder.name, file=file)
"""


@pytest.fixture
def mine(user_module):
    """A function (overrides) that gives a configuration with a tracker of the user's own."""
    user_module("my_tracker", OWN)

    def make(*overrides, **fields):
        return small(*overrides) | {"tracker": {"name": "mine", "class": "my_tracker.Mine", **fields}}

    return make


def told():
    return Path("told").read_text().splitlines() if Path("told").exists() else []


def test_there_is_none_by_default():
    assert choice_names("tracker") == ["mlflow", "none", "tensorboard"]
    assert small()["tracker"]["name"] == "none"
    assert isinstance(prepare(small()).tracker, NoTracker)
    without = {key: value for key, value in small().items() if key != "tracker"}
    assert isinstance(prepare(without).tracker, NoTracker)


def test_it_is_no_part_of_the_run(mine):
    with_, without = prepare(mine()), prepare(small())
    assert with_.identity == without.identity
    assert with_.batch_key == without.batch_key
    assert with_.config == without.config
    assert "tracker" not in run(mine()).config


def test_it_is_told_once(mine):
    record = run(mine("rounds=2"))
    assert told() == [f"done 2 {record.folder.name}"]
    run(mine("rounds=2"))
    assert len(told()) == 1  # reused
    run(mine("rounds=2", "force=true"))
    assert len(told()) == 2


def test_it_is_told_of_every_run_of_a_grid(mine):
    configs = [mine("rounds=2", f"algo.client_lr={rate}") for rate in (1e-3, 1e6)]
    run_grid(configs, ["a", "b"])
    assert [line.split()[0] for line in told()] == ["done", "diverged"]


def test_its_failure_loses_nothing(mine, capsys):
    from fcorun.trackers.base import _warn

    _warn.cache_clear()
    records = run_grid([mine("rounds=2", f"algo.client_lr={rate}", log_to="nowhere") for rate in (1e-3, 2e-3)])
    for record in records:
        assert record.status["status"] == "done"
        assert "OSError: the sink is gone" in (record.folder / "run.log").read_text()
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("fcorun: the tracker Mine failed")


@pytest.mark.parametrize("name", ["mlflow", "tensorboard"])
def test_without_its_extra_nothing_runs(monkeypatch, name):
    monkeypatch.setattr("fcorun.trackers.base.find_spec", lambda module: None)
    with pytest.raises(UserError, match=rf"tracker={name} needs .*pip install 'fcorun\[{name}\]'"):
        prepare(small(f"tracker={name}"))


def test_its_options_are_checked():
    with pytest.raises(UserError, match=r"tracker.fold|Could not override|unknown option"):
        prepare(small() | {"tracker": {"class": "fcorun.trackers.none.NoTracker", "fold": 1}})
    with pytest.raises(UserError, match="is no Tracker"):
        prepare(small() | {"tracker": small()["reg"]})


@pytest.mark.drawn
def test_tensorboard():
    events = pytest.importorskip("tensorboardX.proto.event_pb2", reason="pip install 'fcorun[tensorboard]' to test it")

    record = run(small("tracker=tensorboard"))
    run(small("tracker=tensorboard", "force=true"))
    (file,) = Path("tensorboard/lasso").glob(f"{record.folder.name}/events.out.tfevents.*")
    content, at, found = file.read_bytes(), 0, {}
    while at < len(content):
        (size,) = struct.unpack("<Q", content[at : at + 8])
        event = events.Event.FromString(content[at + 12 : at + 12 + size])
        at += 12 + size + 4
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value))
    metrics = record.metrics
    assert found["objective"] == [
        (r, pytest.approx(v)) for r, v in zip(metrics["round"], metrics["objective"], strict=True)
    ]
    assert found["final_support_f1"] == [(4, pytest.approx(record.summary["final"]["support_f1"]))]
    assert {"_hparams_/session_start_info", "config/text_summary", "status/text_summary", "curves"} <= set(found)


def test_tensorboard_of_a_record_without_curves():
    pytest.importorskip("tensorboardX", reason="pip install 'fcorun[tensorboard]' to test it")
    from fcorun.trackers.tensorboard import TensorBoard

    there = fake_records.fake_record("s/a")
    TensorBoard("board").log(there)
    (file,) = Path("board/lasso").rglob("events.out.tfevents.*")
    assert b"final_objective" in file.read_bytes()
    assert b"curves" not in file.read_bytes()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_mlflow():
    for module in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(module, reason="pip install 'fcorun[mlflow]' to test it")
    from mlflow import MlflowClient

    record = run(small("tracker=mlflow", "rounds=6"))
    client = MlflowClient("sqlite:///mlflow.db")
    experiment = client.get_experiment_by_name("fcorun")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == record.folder.name
    assert found.info.status == "FINISHED"
    assert found.data.params["algo.client_lr"] == str(record.config["algo"]["client_lr"])
    assert found.data.params["local_steps"] == "null"
    assert found.data.tags["status"] == "done"
    assert found.data.tags["identity"] == record.status["identity"]
    assert found.data.metrics["final_objective"] == record.summary["final"]["objective"]
    history = client.get_metric_history(found.info.run_id, "objective")
    assert {(m.step, m.value) for m in history} == set(
        zip(record.metrics["round"], record.metrics["objective"], strict=True)
    )
    files = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert {"config.yaml", "metrics.csv", "summary.json", "solution.npz", "curves.png", "status.json"} <= files
    assert Path("mlartifacts").is_dir()
