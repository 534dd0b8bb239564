"""Several hosts, which here are processes of one machine: runs as on one host, and what is left when a host is gone."""

import json
import random
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from helpers import FILES, SMALL, fails, small, write_choice
from host_processes import (
    assert_same_record,
    run_on_hosts,
    start_on_hosts,
    wait_for_computing_hosts,
    wait_for_end,
)
from warm_processes import start_command

from fcorun import Record, UserError, run
from fcorun.base.system.files import set_interrupted
from fcorun.base.system.machine import HostOptions
from fcorun.experiment.prepare import prepare
from fcorun.runs.executors import dask_hosts

distributed: Any = pytest.importorskip("distributed")

DOUBLE = (*SMALL, "precision=float64", "eval_every=2")
LONG = (*DOUBLE, "algo=scaffold", "rounds=400", "checkpoint_every=0", "hydra.run.dir=run")


def check_sweep(count: int, runs: int) -> None:
    """The records of the sweep in ``s`` are those of one host."""
    records = [Record(path.parent) for path in sorted(Path("s").glob("*/summary.json"))]
    assert len(records) == runs
    for record in records:
        several = 1 if record.config["algo"]["name"] == "centralized" else count
        assert (record.summary["hosts"], record.summary["devices"]) == (several, several)
        assert "hosts" not in record.config
        assert_same_record(record, run(record.config, Path("alone") / record.folder.name))


@pytest.mark.slow
def test_a_sweep_over_hosts_is_that_of_one():
    overrides = ("algo=feddualavg,scaffold,ditto,centralized", "reg.strength=0.01,0.02", "report=false")
    output = run_on_hosts("-m", *DOUBLE, *overrides, "hydra.sweep.dir=s")
    assert "6 of 6 runs" in output
    assert "Gloo" not in output
    check_sweep(2, 6)


# What one host measures and the others do not: its cores, its memory, too small for the rows, and its clock. All hosts
# have small caches, by which they compute a cohort in chunks, and note how wide, and whether rows stay on disk.
DIFFERENT = """
import dataclasses, os, time
import fcorun.base.system.machine as machine
import fcorun.data.tables.array_files as array_files
import fcorun.engine.device_rows as device_rows
import fcorun.runs.batch as batch

def note(module, name, file=open(f"site/{os.getpid()}.notes", "w")):
    function = getattr(module, name)
    def noted(*arguments):
        answer = function(*arguments)
        print(name, answer if isinstance(answer, bool) else arguments, file=file, flush=True)
        return answer
    setattr(module, name, noted)

note(device_rows, "chunked")
note(array_files, "stays_on_disk")
batch._is_worth_splitting = lambda context, jobs, alive, *_: alive < jobs and is_odd("split")
machine._CPU_POLICY = dataclasses.replace(machine._CPU_POLICY, chunk_bytes=2**17)
machine.free_host_memory = lambda: 2**30
if is_odd("host"):
    os.environ["FCORUN_CORES"] = "2"
    machine.free_host_memory = lambda: 2**20
    clock = time.perf_counter
    time.perf_counter = lambda: 3 * clock()
"""


@pytest.mark.slow
def test_the_leader_alone_decides_what_hosts_would_decide_differently():
    dice = np.random.default_rng(0)
    x = dice.standard_normal((800, 80))
    Path("rows").mkdir()
    for name, values in {"X": x, "y": x[:, 0] + dice.standard_normal(800), "client": np.arange(800) % 10}.items():
        np.save(f"rows/{name}.npy", values)
    table = ("data=table", f"data.path={Path('rows').absolute()}", "data.standardize=none", "clients_per_round=6")
    grid = ("algo=feddualavg", "algo.client_lr=0.01,0.02,1e30", "seed=0,1", "reg.strength=0.01", "batch_size=10")
    rounds = ("rounds=20", "eval_every=2", "stop={train_loss:1.2}", "precision=float64", "report=false")
    run_on_hosts("-m", *table, *grid, *rounds, "hydra.sweep.dir=s", count=3, code=DIFFERENT)
    check_sweep(3, 6)
    assert Path("site/split").exists()
    notes = [path.read_text() for path in Path("site").glob("*.notes")]
    assert notes == notes[:1] * 3
    assert "stays_on_disk True" in notes[0]
    assert "chunked (3,)" in notes[0]


FULL_DISK = """
import errno
from fcorun.base.errors import WriteError
from fcorun.base.records.record import RunFolder
save, saved = RunFolder.save_checkpoint, []

def save_twice(self, *arguments):
    saved.append(1)
    if len(saved) > 2:
        raise WriteError(errno.ENOSPC, "No space left on device", "run/.checkpoint.npz")
    save(self, *arguments)

RunFolder.save_checkpoint = save_twice
"""


@pytest.mark.slow
def test_a_failed_write_of_the_leader_ends_all():
    code, _, errors = wait_for_end(start_on_hosts(*LONG, count=3, code=FULL_DISK))
    assert code == 1
    assert errors.startswith("fcorun: run/.checkpoint.npz cannot be written (No space left on device)")
    assert Record(Path("run")).status["status"] == "failed"


NO_MEMORY = """
import fcorun.runs.several_hosts as several_hosts
from fcorun.engine.engine import Engine
from fcorun.engine.segments.run_loop import RunLoop
follow, run_to_evaluation, calls = Engine.follow, RunLoop.run_to_evaluation, []

def run_once(self, *arguments):
    calls.append(1)
    if len(calls) > 1:
        raise MemoryError("too large for this host")
    return run_to_evaluation(self, *arguments)

def follow_once(self, *arguments):
    if is_odd("follower"):
        RunLoop.run_to_evaluation = run_once
    follow(self, *arguments)

Engine.follow = follow_once
several_hosts._STOP_TIMEOUT = 1
"""


@pytest.mark.slow
def test_a_follower_that_fails_alone_ends_all():
    code, _, errors = wait_for_end(start_on_hosts(*LONG, count=3, code=NO_MEMORY))
    assert code == 1
    assert re.match(r"fcorun: failed: host [12] \(.*\) failed: MemoryError: too large for this host", errors)
    assert errors.endswith("; the same command resumes\n")
    assert Record(Path("run")).status["status"] == "failed"


DAMPED = """
from dataclasses import dataclass
import jax
from fcorun import WeightedMean

@dataclass(frozen=True)
class Damped(WeightedMean):
    factor: float = 0.9

    def combine(self, uploads, weights):
        return jax.tree.map(lambda value: self.factor * value, super().combine(uploads, weights))
"""


@pytest.mark.slow
def test_hosts_have_the_users_own_files_and_classes():
    Path("kinds.py").write_text(DAMPED)
    write_choice(Path("own"), "aggregate", "damped", "class: kinds.Damped")
    Path("own/config.yaml").write_text("precision: float64\n")
    command = (*SMALL, "algo=feddualavg", "aggregate=damped", "--config-dir", "own")
    run_on_hosts(*command, "hydra.run.dir=run")
    code, _, errors = wait_for_end(start_command([*command, "hydra.run.dir=alone"]))
    assert code == 0, errors
    record = Record(Path("run"))
    assert record.config["precision"] == "float64"
    assert_same_record(record, Record(Path("alone")))


@pytest.mark.slow
def test_an_interruption_ends_all():
    command = start_on_hosts(*LONG, "rounds=100000", count=3)  # which no machine ends before
    hosts = wait_for_computing_hosts("run", command, 3)
    command.send_signal(signal.SIGTERM)
    code, _, errors = wait_for_end(command)
    assert code == 130
    assert errors == "interrupted; the same command resumes from the last checkpoint\n"
    assert Record(Path("run")).status["status"] == "interrupted"
    psutil.wait_procs(hosts, timeout=60)
    assert not any(host.is_running() for host in hosts)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_hosts_that_are_killed_are_named_and_the_run_goes_on(count):
    """A process that computes, and a worker with its process; of the leader, and of others."""
    dice = random.Random(count)
    command = start_on_hosts(*LONG, "force=true", count=count)
    for kind in ("host", "worker"):
        victim = dice.choice(wait_for_computing_hosts("run", command, count))
        if kind == "worker":
            victim = psutil.Process(victim.ppid())
        victim.kill()
    code, output, errors = wait_for_end(command)
    assert code == 0, errors
    lines = errors.splitlines()
    lost = [line for line in lines if line.endswith("was lost: all start again, from the last checkpoint")]
    assert len(lost) >= 2  # more where another process of a busy machine starts late
    assert "resumes after round" in output
    assert_same_record(Record(Path("run")), run(small("algo=scaffold", "rounds=400", "precision=float64"), "alone"))


# ---------------------------------------------------------------- without a second host


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("hydra.launcher.address=nowhere", "address=nowhere: no Dask scheduler answers there"),
        ("hydra.launcher.dask={cluster: slurm}", "cluster=slurm needs dask-jobqueue: pip install dask-jobqueue"),
        ("hydra.launcher.executor=dask", "executor=dask computes on one host"),
        (
            "hydra.launcher.dask={jobs: 1}",
            "dask.jobs=1 is less than hosts.count=2, and each host is a job",
        ),
    ],
)
def test_hosts_that_cannot_be_had_are_refused_before_any_file_is_written(options, sentence, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    code, _, errors = wait_for_end(start_on_hosts("-m", *SMALL, "seed=0,1", "out=s", options))
    assert code == 2
    assert sentence in errors
    assert not Path("s").exists()


@pytest.fixture
def busy_cluster():
    """Return a cluster of two workers, and the address of the one with the first address, which has a task."""
    options = {"processes": False, "protocol": "tcp", "dashboard_address": "127.0.0.1:0"}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        busy = min(client.nthreads())
        task = client.submit(lambda: distributed.Event("release").wait(60), workers=[busy])
        while not client.processing()[busy]:
            time.sleep(0.01)
        yield client, busy
        distributed.Event("release", client=client).set()
        task.result()


def test_idle_workers_are_chosen(busy_cluster):
    client, busy = busy_cluster
    (idle,) = set(client.nthreads()) - {busy}
    assert dask_hosts._wait_for_workers(client, HostOptions(1, timeout=0.1)) == (idle,)
    with pytest.raises(UserError, match=r"1 of 2 idle workers .*hosts.timeout=0.1 seconds, and 1 compute for other"):
        dask_hosts._wait_for_workers(client, HostOptions(2, timeout=0.1))


def test_a_host_whose_worker_is_busy_is_named(busy_cluster):
    client, busy = busy_cluster
    tasks = dask_hosts._make_tasks((busy,), HostOptions(1, timeout=0.1), [], Path("probe"), None, ())
    with pytest.raises(UserError, match=rf"host 0 has not started within hosts.timeout=0.1 .* {busy} may compute"):
        dask_hosts._Attempt(client, tasks).run()
    assert len(client.processing()[busy]) == 1


def test_an_interruption_before_the_hosts_have_started_ends_the_command(busy_cluster):
    client, busy = busy_cluster
    tasks = dask_hosts._make_tasks((busy,), HostOptions(1, timeout=60), [], Path("probe"), None, ())
    set_interrupted(True)
    try:
        with pytest.raises(KeyboardInterrupt):
            dask_hosts._Attempt(client, tasks).run()
    finally:
        set_interrupted(False)


def test_a_run_is_the_same_on_any_hosts():
    hosts = {"count": 4, "timeout": 1.0}
    assert prepare(small()).identity == prepare(small() | {"hosts": hosts}).identity
    assert json.dumps(prepare(small()).config) == json.dumps(prepare(small() | {"hosts": hosts}).config)


def test_hosts_are_for_the_command():
    with fails("hosts", "the command fcorun"):
        run(small() | {"hosts": {"count": 4}})


@pytest.mark.slow
def test_the_record_says_how_many(tmp_path):
    record = run(small(), tmp_path / "run")
    assert record.summary["hosts"] == 1
    assert sorted(path.name for path in record.folder.iterdir()) == FILES
