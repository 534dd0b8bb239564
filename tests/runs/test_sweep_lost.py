"""Sweeps: what fails, diverges, is interrupted, killed or run twice at once loses nothing that is done."""

import os
import pickle
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from helpers import SMALL
from sweeps import RATES, assert_same_results, read_results, run_sweep_command
from warm_processes import start_command

from fcorun import UserError, compose, load_records
from fcorun.base.records.record import LOCK_FILE
from fcorun.base.system import locks
from fcorun.base.system.files import find_paths
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli import console
from fcorun.runs.executors.executor import list_results
from fcorun.runs.executors.inline import InlineExecutor
from fcorun.runs.job import SweepWatcher
from fcorun.runs.sweep_point import SweepPoint, run_group


@pytest.mark.slow
def test_a_failure_is_recorded_and_the_others_go_on(user_module, capsys):
    user_module(
        "mine",
        "from dataclasses import dataclass\n"
        "from fcorun.methods.algorithms.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class Broken(FedAvg):\n"
        "    def server(self, problem, server, mean):\n"
        "        raise RuntimeError('no such thing')\n",
    )
    axes = (
        "algo.class=fcorun.methods.algorithms.FedAvg,mine.Broken",
        "algo.name=${algo.class}",
        "algo=fedavg",
        "algo.client_lr=1e-3,2e-3",
    )
    assert run_sweep_command(*axes, "hydra.sweep.dir=s") == 1
    records = load_records("s")
    assert sorted(r.status["status"] for r in records) == ["done", "done", "failed", "failed"]
    failed = next(r for r in records if r.status["status"] == "failed")
    assert "Traceback" in (failed.folder / "run.log").read_text()
    errors = capsys.readouterr().err
    assert errors.count("no such thing") == 1  # of two runs that failed alike
    assert "and 1 more: " in errors
    assert "algo.class=mine.Broken" in errors
    assert list(read_results("s")["status"]).count("failed") == 2


@pytest.mark.slow
def test_a_combination_that_cannot_be_is_recorded_and_mended(capsys):
    axes = ("algo=feddualavg,proxskip", "seed=0,1", "hydra.sweep.dir=s")
    assert run_sweep_command(*axes) == 1
    assert "algo=proxskip needs all clients" in capsys.readouterr().err
    assert sorted(r.status["status"] for r in load_records("s")) == ["done", "done", "failed", "failed"]
    assert run_sweep_command("algo.client_lr=-1,1e-3", "hydra.sweep.dir=t") == 1
    assert "algo.client_lr=-1" in capsys.readouterr().err


@pytest.mark.slow
def test_fail_fast_stops_at_the_first_failure():
    assert run_sweep_command("algo.client_lr=-1,1e-3", "fail_fast=true", "hydra.sweep.dir=s") == 1
    assert {r.status["status"] for r in load_records("s")} == {"failed"}


def test_a_lost_host_fails_only_the_points_that_had_not_ended():
    group = [SweepPoint.from_error(name, "s", UserError("of before")) for name in ("done", "broken", "open")]
    for point, status, error in zip(group, ("done", "failed", ""), (None, UserError("own"), None), strict=True):
        point.end_status, point.error = status, error
    results = list_results(group, UserError("a host is lost"))
    assert results == [("done", ""), ("failed", "own"), ("failed", "a host is lost")]


@pytest.mark.slow
def test_points_keep_their_places_to_the_last_bit_whatever_others_have_ended():
    class Interrupting(SweepWatcher):
        def on_evaluation(self, job, row):
            if row["round"] == 20:
                raise KeyboardInterrupt

    def make_group(folder):
        group = []
        for rate in (1e-3, 2e-3, 3e-3, 4e-3, 5e-3):
            experiment = prepare(compose([*SMALL, "algo=fedadam", f"algo.client_lr={rate}", "rounds=40"]))
            group.append(SweepPoint(str(rate), Path(folder) / str(rate), experiment))
        return group

    unbroken = make_group("unbroken")
    run_group(unbroken, SweepWatcher(), keeps_places=True)
    shutil.copytree("unbroken/0.001", "broken/0.001")  # is over; the others end in the middle
    with pytest.raises(KeyboardInterrupt):
        run_group(make_group("broken"), Interrupting(), keeps_places=True)
    Path("broken/0.004/.checkpoint.npz").unlink()  # begins anew
    broken = make_group("broken")
    run_group(broken, SweepWatcher(), keeps_places=True)
    assert [point.end_status for point in broken] == ["reused", *["done"] * 4]
    for point, other in zip(broken, unbroken, strict=True):
        assert (point.folder / "solution.npz").read_bytes() == (other.folder / "solution.npz").read_bytes()


@pytest.mark.slow
def test_divergence_is_a_result():
    assert run_sweep_command("algo.client_lr=1e-3,1e6", "rounds=20", "hydra.sweep.dir=s") == 0
    assert sorted(read_results("s")["status"]) == ["diverged", "done"]


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on(monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        rows = []

        def interrupt(self, job, row):
            rows.append(row)
            if len(rows) == 9:
                raise KeyboardInterrupt

        patch.setattr(console.SweepConsole, "on_evaluation", interrupt)
        assert run_sweep_command(*RATES, "hydra.sweep.dir=s") == 130
    assert "interrupted" in {r.status["status"] for r in load_records("s")}
    assert run_sweep_command(*RATES, "hydra.sweep.dir=s") == 0
    assert run_sweep_command(*RATES, "hydra.sweep.dir=t") == 0
    assert_same_results(read_results("s"), read_results("t"))


@pytest.mark.slow
def test_a_full_disk_loses_nothing_that_is_done(monkeypatch):
    assert run_sweep_command("algo.client_lr=1e-3,2e-3", "hydra.sweep.dir=s") == 0
    with pytest.MonkeyPatch.context() as patch:
        from fcorun.base.records.record import RunFolder

        def full(self, name, content):
            if name == "metrics.csv":
                raise OSError(28, "No space left on device", str(self.folder / name))
            return write(self, name, content)

        write = RunFolder.write_file
        patch.setattr(RunFolder, "write_file", full)
        assert run_sweep_command("algo.client_lr=1e-3,2e-3,3e-3", "hydra.sweep.dir=s") != 0
    assert sorted(r.status["status"] for r in load_records("s")) == ["done", "done", "failed"]
    assert run_sweep_command("algo.client_lr=1e-3,2e-3,3e-3", "hydra.sweep.dir=s") == 0
    assert sorted(r.status["status"] for r in load_records("s")) == ["done"] * 3


LONG = ("algo=feddualavg,fedmid", *RATES, "rounds=160", "checkpoint_every=0.02", "hydra.sweep.dir=s")


def has_checkpoint_since(begun: float) -> bool:
    for path in find_paths(Path("s"), ".checkpoint.npz"):
        with suppress(FileNotFoundError):  # of a run that has just ended
            if path.stat().st_mtime > begun:
                return True
    return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes start fast, and without locks, on Linux alone")
@pytest.mark.parametrize(("n_processes", "has_locks"), [(8, True), (3, False)])
def test_processes_that_share_a_sweep_and_are_killed_leave_an_undisturbed_one(n_processes, has_locks):
    dice = random.Random(0)
    env = dict(os.environ) if has_locks else os.environ | {"TESTS_WITHOUT_FLOCK": "1"}
    command = ["-m", *SMALL, *LONG, "hydra.launcher.batch=1"]
    processes = [start_command(command, env=env) for _ in range(n_processes)]
    while len(processes) > 1:
        begun = time.time()
        while not has_checkpoint_since(begun):
            assert not all(process.poll() == 0 for process in processes), "the sweep has ended too early to kill"
            time.sleep(0.01)
        time.sleep(dice.uniform(0, 0.1))
        killed = processes.pop(dice.randrange(len(processes)))
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        assert killed.returncode == -signal.SIGKILL  # it was on its way
        for record in load_records("s"):
            if record.finished:
                assert max(record.metrics["round"]) == 160
    output, _ = processes[0].communicate()
    assert processes[0].returncode == 0, output
    assert not list(Path("s").rglob(".lock*"))
    assert run_sweep_command(*LONG, "checkpoint_every=60", "hydra.sweep.dir=t") == 0
    ours, theirs = read_results("s"), read_results("t")
    assert set(ours["status"]) == {"done"}
    assert len(ours) == 12
    assert_same_results(ours, theirs)


@pytest.mark.slow
def test_two_sweeps_at_once_do_each_run_once():
    short = ["-m", *SMALL, *LONG, "rounds=30", "checkpoint_every=60"]
    processes = [start_command(short) for _ in range(2)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    for record in load_records("s"):
        log = (record.folder / "run.log").read_text()
        assert log.count("starts:") == 1
        assert log.count("done after round 30") == 1
    assert set(read_results("s")["status"]) == {"done"}
    assert len(read_results("s")) == 12


@pytest.mark.slow
def test_a_group_that_is_computed_again_is_forced_once(monkeypatch):
    """A task whose worker was lost begins again on another worker, and repeats nothing that is finished."""
    run = InlineExecutor.run
    ends = []

    def run_twice(self, groups, watch):
        run(self, pickle.loads(pickle.dumps(groups)), watch)  # by a worker that is lost before it answers
        run(self, groups, watch)
        ends.extend(point.end_status for group in groups for point in group)

    assert run_sweep_command("algo.client_lr=1e-3,2e-3", "out=s") == 0
    before = {path: path.stat().st_mtime_ns for path in Path("s").rglob("metrics.csv")}
    monkeypatch.setattr(InlineExecutor, "run", run_twice)
    assert run_sweep_command("algo.client_lr=1e-3,2e-3", "out=s", "force=true") == 0
    assert ends == ["reused", "reused"]
    assert all(path.stat().st_mtime_ns > then for path, then in before.items())


def test_nothing_is_computed_anew_while_another_process_computes(capsys):
    assert run_sweep_command("algo.client_lr=1e-3,2e-3", "out=s") == 0
    before = {path: path.stat().st_mtime_ns for path in Path("s").rglob("*.csv")}
    with locks.acquire(load_records("s")[0].folder / LOCK_FILE):
        assert run_sweep_command("algo.client_lr=1e-3,2e-3", "out=s", "force=true") == 2
    assert "leave force out" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in Path("s").rglob("*.csv")} == before
