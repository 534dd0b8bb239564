"""Sweeps as jobs of Slurm: jobs that are preempted go on, arrays of the cluster's length, what algorithms need."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import SMALL, replace_sleep
from sweeps import RATES, assert_same_results, read_results, run_sweep_command
from warm_processes import start_command

from fcorun import UserError, load_records
from fcorun.base.system.files import set_interrupted
from fcorun.interface.cli import hydra_app
from fcorun.interface.cli.commands import main
from fcorun.interface.cli.main import main as fcorun
from fcorun.runs.executors import submitit as executor_module
from fcorun.runs.executors.executor import LauncherOptions, PackedWork
from fcorun.runs.executors.submitit import GroupJob, SubmititExecutor, list_pending_jobs
from fcorun.runs.job import SweepWatcher
from fcorun.runs.sweep_point import SweepPoint

submitit = pytest.importorskip("submitit")

LOCAL = ("hydra.launcher.executor=submitit", "hydra.launcher.submitit={cluster: local, timeout_min: 5}")
SEARCH = ("hydra/sweeper=optuna", "algo.client_lr=interval(1e-3,1e-2)", "hydra.sweep.dir=s")
SUBMIT_ONLY = (*LOCAL, "hydra.launcher.wait=false")


def count_open_jobs(folder):
    return sum(job.is_open for job in list_pending_jobs(folder))


@pytest.mark.slow
def test_jobs_leave_the_same_records():
    assert run_sweep_command(*RATES, "hydra.sweep.dir=here") == 0
    assert run_sweep_command(*RATES, "hydra.sweep.dir=there", *LOCAL) == 0
    assert_same_results(read_results("here"), read_results("there"))
    assert run_sweep_command(*RATES, "hydra.sweep.dir=there", *LOCAL) == 0


def wait_until(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_preempted_job_goes_on_by_itself_and_its_record_says_where_it_is(monkeypatch, capsys):
    long = ("algo.client_lr=1e-3", "rounds=300000", "eval_every=1000", "checkpoint_every=0.1", "report=false")
    output, errors = start_command(["-m", *SMALL, *long, "hydra.sweep.dir=s", *SUBMIT_ONLY]).communicate()
    assert "fcorun results s --follow" in output, errors
    (record,) = load_records("s")
    wait_until(lambda: record.status.get("round", 0) > 0)
    job = record.status["pid"]
    os.kill(job, signal.SIGTERM)  # as Slurm does first
    wait_until(lambda: record.status["status"] == "interrupted")
    reached = record.status["reason"].removeprefix("stopped after round ")
    assert 0 < int(reached) < 300000
    assert count_open_jobs(Path()) == 1
    os.kill(job, signal.SIGUSR2)  # as Slurm does then: submitit begins the job again
    monkeypatch.setattr("sys.argv", ["fcorun", "results", "s", "--follow"])
    with pytest.raises(SystemExit) as end:
        fcorun()
    assert end.value.code == 0
    output = capsys.readouterr().out
    assert "submitted jobs without a result: 1" in output
    assert re.search(r"\n\* .* done +300000 ", output)
    assert count_open_jobs(Path()) == 0
    assert f"resumes after round {reached}" in (record.folder / "run.log").read_text()
    assert run_sweep_command(*long, "hydra.sweep.dir=t") == 0
    assert run_sweep_command(*long, "hydra.sweep.dir=s", "hydra.launcher.wait=true") == 0
    assert_same_results(read_results("s"), read_results("t"))


def test_a_job_that_has_not_begun_goes_on_when_it_is_preempted():
    task = PackedWork(".", {}, b"", None)
    submission = GroupJob().checkpoint(task)
    assert (type(submission.function), submission.args) == (GroupJob, (task,))


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A Slurm of arrays with at most two jobs, which keeps scripts and runs none; returns their texts.

    Its queue cannot be asked until there is a file squeue.jobs.
    """
    commands = {
        "sbatch": 'cp "$1" "$0.$$.sh"; echo "Submitted batch job $$"',
        "scontrol": 'echo "MaxArraySize            = 2"',
        "srun": "",
        "squeue": 'cat "$0.jobs"',
        "scancel": 'echo "$1" >> "$0.jobs"',
        "sacct": "echo Slurm accounting storage is disabled >&2; exit 1",
    }
    for name, script in commands.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return lambda: [path.read_text() for path in (tmp_path / "bin").glob("*.sh")]


def test_arrays_have_the_length_that_the_cluster_allows_and_jobs_what_their_algorithm_needs(slurm, capsys):
    needs = "hydra.launcher.submitit={cluster: slurm, timeout_min: 30, algo: {fedmid: {timeout_min: 90, mem_gb: 2}}}"
    sweep = ("algo=feddualavg,fedmid", "algo.client_lr=1e-3,2e-3,3e-3", "hydra.launcher.batch=1", "hydra.sweep.dir=s")
    assert run_sweep_command(*sweep, LOCAL[0], "hydra.launcher.wait=false", needs) == 0
    scripts = slurm()
    for minutes, memory in ((30, 0), (90, 1)):
        alike = [script for script in scripts if f"#SBATCH --time={minutes}\n" in script]
        assert sorted(script.count("#SBATCH --array=0-1%2\n") for script in alike) == [0, 1]
        assert [script.count("#SBATCH --mem=2GB\n") for script in alike] == [memory] * 2
    assert len(scripts) == 4
    assert count_open_jobs(Path()) == 6
    records = load_records("s")
    assert {record.status["reason"] for record in records} == {"not begun: its job was submitted"}
    assert sorted(record.config["algo"]["client_lr"] for record in records) == [1e-3, 1e-3, 2e-3, 2e-3, 3e-3, 3e-3]
    assert "jobs submitted: 6; " in capsys.readouterr().out


def test_no_job_holds_a_run_of_another_job_in_the_queue(slurm, tmp_path):
    options = ("hydra.launcher.wait=false", "hydra.launcher.submitit={cluster: slurm, timeout_min: 30}")
    for rates in ("1e-3,3e-3", "1e-3,3e-3,1e-2"):
        assert run_sweep_command(f"algo.client_lr={rates}", "hydra.sweep.dir=s", LOCAL[0], *options) == 0
        jobs = [path.name.removesuffix("_submitted.pkl") for path in Path("s/.submitit").glob("*_submitted.pkl")]
        (tmp_path / "bin/squeue.jobs").write_text("\n".join(jobs))
    assert sorted(len(job.queued_runs) for job in list_pending_jobs(Path("s"))) == [1, 2]


def refuse_to_wait(seconds):
    assert seconds < 1, "waits for nothing"


def test_jobs_that_were_cancelled_or_killed_are_not_waited_for(slurm, tmp_path, monkeypatch, capsys):
    sweep = ("algo.client_lr=1e-3,3e-3", "hydra.launcher.batch=1", "hydra.sweep.dir=s")
    options = (LOCAL[0], "hydra.launcher.wait=false", "hydra.launcher.submitit={cluster: slurm, timeout_min: 30}")
    assert run_sweep_command(*sweep, *options) == 0
    jobs = [path.name.removesuffix("_submitted.pkl") for path in Path("s/.submitit").glob("*_submitted.pkl")]
    assert count_open_jobs(Path()) == len(jobs) == 2
    queue = tmp_path / "bin/squeue.jobs"
    queue.write_text("\n".join(jobs))
    capsys.readouterr()
    assert run_sweep_command(*sweep, *options) == 0  # submits no job for runs that have one
    assert "jobs submitted: 0 (and 2 runs are of jobs in the queue); " in capsys.readouterr().out
    assert run_sweep_command(*sweep, *options, "force=true") == 2
    assert "whose record would be removed: scancel it, or leave force=true out" in capsys.readouterr().err
    assert len(load_records("s")) == 2
    queue.write_text(f"{jobs[0]}\n7_0\n")
    assert count_open_jobs(Path()) == 1
    queue.write_text("7_0\n")
    killed = load_records("s")[0]
    status = killed.status | {"status": "running", "host": "another"}
    (killed.folder / "status.json").write_text(json.dumps(status))
    with monkeypatch.context() as patch:
        replace_sleep(patch, refuse_to_wait)
        assert main(["results", "s", "--follow"]) == 0
    queue.unlink()
    assert run_sweep_command(*sweep) == 0  # computes the runs of the jobs, which leave no result
    replace_sleep(monkeypatch, refuse_to_wait)
    capsys.readouterr()
    assert main(["results", "s", "--follow"]) == 0
    assert "submitted jobs" not in capsys.readouterr().out


def test_a_local_job_that_was_killed_is_not_waited_for(monkeypatch):
    assert run_sweep_command("algo.client_lr=1e-3", "hydra.sweep.dir=s") == 0
    (record,) = load_records("s")
    status = record.status | {"status": "interrupted"}
    (record.folder / "status.json").write_text(json.dumps(status))
    job = subprocess.Popen([sys.executable, "-c", "input()", "submitit.local._local"], stdin=subprocess.PIPE)
    Path("s/.submitit").mkdir()
    Path(f"s/.submitit/{job.pid}_runs.txt").write_text(record.folder.name)
    assert count_open_jobs(Path()) == 1
    job.kill()
    wait_until(lambda: count_open_jobs(Path()) == 0)  # while it is a zombie
    job.communicate()
    replace_sleep(monkeypatch, refuse_to_wait)
    assert main(["results", "s", "--follow"]) == 0


def test_a_job_that_leaves_the_queue_without_a_result_fails_its_points_on_a_cluster_without_accounting(
    slurm, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(executor_module, "_SECONDS_BETWEEN_QUESTIONS", 0)
    (tmp_path / "bin/squeue.jobs").write_text("7_0\n")
    options = (LOCAL[0], "hydra.launcher.submitit={cluster: slurm, timeout_min: 30}", "report=false")
    assert run_sweep_command("algo.client_lr=1e-3", "hydra.sweep.dir=s", *options) == 1
    output, errors = capfd.readouterr()
    assert "its job ended without a result: it is no longer in Slurm's queue" in output + errors
    assert "accounting" not in output + errors


def test_nothing_is_submitted_before_the_parameters_of_all_algorithms_are_checked(slurm, capsys):
    needs = "hydra.launcher.submitit={cluster: slurm, timeout_min: 30, algo: {fedmid: {memory: 2}}}"
    sweep = ("algo=feddualavg,fedmid", "algo.client_lr=1e-3", "hydra.sweep.dir=s")
    assert run_sweep_command(*sweep, LOCAL[0], needs) == 2
    assert "no job could be submitted: Parameter 'memory'" in capsys.readouterr().err
    assert slurm() == []
    assert not list(Path("s").glob("*/status.json"))


def test_jobs_before_one_that_slurm_refuses_are_cancelled(slurm, tmp_path, capsys):
    (tmp_path / "bin/sbatch").write_text('#!/bin/sh\n[ -e "$0.n" ] && exit 1; touch "$0.n"; echo "job 7"\n')
    sweep = ("algo.client_lr=1e-3,2e-3,3e-3", "hydra.launcher.batch=1", "hydra.sweep.dir=s")
    assert run_sweep_command(*sweep, LOCAL[0], "hydra.launcher.submitit={cluster: slurm, timeout_min: 30}") == 2
    assert "no job could be submitted: " in capsys.readouterr().err
    assert (tmp_path / "bin/scancel.jobs").read_text() == "7_0\n7_1\n"
    assert len(list(Path("s").glob("*/status.json"))) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("{cluster: slurm}", 'no job could be submitted: Could not detect "srun", are you indeed on a slurm cluster?'),
        ("{cluster: pbs}", "no job could be submitted: AutoExecutor doesn't know any executor named pbs"),
        ("{cluster: local, cpus_per_task: x}", "no job could be submitted: Parameter "),
        ("{cluster: local, cpus: 2}", "no job could be submitted: "),
        ("{algo: {scaffold: {mem_gb: 2}}}", "algo.scaffold: no run has this algorithm (they have: feddualavg)"),
        ("{algo: {feddualavg: 2}}", "algo.feddualavg=2: give parameters of submitit"),
    ],
)
def test_jobs_that_cannot_be_submitted_are_refused_in_a_sentence(options, sentence, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")  # without Slurm
    assert run_sweep_command(*RATES, "hydra.sweep.dir=s", LOCAL[0], f"hydra.launcher.submitit={options}") == 2
    errors = capsys.readouterr().err
    assert f"fcorun: hydra.launcher.submitit{'.' if 'algo:' in options else ': '}{sentence}" in errors
    assert errors.count("\n") == 1
    assert not list(Path("s").glob("*/status.json"))


def test_figures_and_searches_wait_for_their_runs():
    with pytest.raises(UserError, match="wait=false: a figure waits for its runs"):
        hydra_app.run_sweep_command([*SMALL, *RATES, "hydra.sweep.dir=s", *SUBMIT_ONLY], check=print)
    with pytest.raises(UserError, match="wait=false: a search waits for its points"):
        hydra_app.run_sweep_command([*SMALL, *SUBMIT_ONLY, *SEARCH])
    assert not list(Path().rglob("summary.json"))


class FakeJob:
    """A job that ends with an error, or without one if that is empty; it may be one during which Ctrl-C arrives."""

    def __init__(self, error, n_cores):
        self.error, self.cancelled, self.n_cores = error, False, n_cores

    def done(self):
        if self.error == "Ctrl-C":
            raise KeyboardInterrupt
        return True

    def task(self, index):
        return self

    def result(self):
        return [("failed" if self.error else "done", self.error)]

    def cancel(self, check):
        self.cancelled = True


def test_a_failure_with_fail_fast_and_ctrl_c_cancel_jobs(monkeypatch):
    jobs = []

    class FakeExecutor(nullcontext):
        cluster = "local"

        def __init__(self, **options):
            super().__init__()

        def update_parameters(self, **parameters):
            pass

        def batch(self):
            return self

        def submit(self, run_job, task):
            set_interrupted(task[0] == "signal")
            jobs.append(FakeJob(*task))
            return jobs[-1]

    monkeypatch.setattr(submitit, "AutoExecutor", FakeExecutor)
    monkeypatch.setattr(executor_module, "_mark_submitted", lambda job, group: None)
    monkeypatch.setattr(PackedWork, "of_group", lambda group, n_cores: (group[0].overrides, n_cores))

    def submit(*errors, fail_fast):
        jobs.clear()
        experiment: Any = SimpleNamespace(names={"algo": "fedavg"})
        groups = [[SweepPoint(error, Path("s/1"), experiment)] for error in errors]
        SubmititExecutor(LauncherOptions(), fail_fast).run(groups, SweepWatcher())

    for fail_fast, cancelled in ((True, [False, False, True, True]), (False, [False] * 4)):
        submit("", "broken", "", "", fail_fast=fail_fast)
        assert [job.cancelled for job in jobs] == cancelled
        assert {job.n_cores for job in jobs} == {None}  # a job has its own cores, and not those of this machine
    with pytest.raises(KeyboardInterrupt):
        submit("", "Ctrl-C", "", fail_fast=False)
    assert [job.cancelled for job in jobs] == [True] * 3
    with pytest.raises(KeyboardInterrupt):
        submit("", "", "signal", fail_fast=False)  # arrives while jobs are submitted
    set_interrupted(False)
    assert [job.cancelled for job in jobs] == [True] * 3


def test_a_job_that_was_killed_fails_its_points_alone():
    def result():
        raise RuntimeError("Job 7 was killed: out of memory\nlogs")

    job: Any = SimpleNamespace(done=lambda: True, task=lambda number: SimpleNamespace(result=result))
    ((status, sentence), _) = executor_module._wait(job, [None, None])  # type: ignore[list-item]
    assert status == "failed"
    assert sentence.startswith("its job ended without a result: Job 7 was killed: out of memory (all nodes must share")
