"""Several hosts, which here are processes of one: runs as on one host, and what is left when a host is gone."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers import FILES, SMALL, fails, small
from host_processes import assert_same_record, start_hosts, wait_for_hosts
from run_studies import select

from fcorun import Record, run
from fcorun.experiment.prepare import prepare
from fcorun.studies.selection.selection_result import SelectOptions

DOUBLE = (*SMALL, "precision=float64", "eval_every=2")


def left(folder: str) -> list[Path]:
    return [path for path in Path(folder).rglob("*") if path.name != "__pycache__"]


@pytest.mark.slow
def test_a_sweep_over_hosts_is_that_of_one():
    overrides = ("algo=feddualavg,scaffold,ditto,centralized", "reg.strength=0.01,0.02", "report=false")
    first, second = wait_for_hosts(start_hosts("-m", *DOUBLE, *overrides, "hydra.sweep.dir=s"))
    assert (first[0], first[2]) == (0, "")
    assert "6 of 6 runs" in first[1]
    assert "Gloo" not in first[1]
    assert second == (0, "", "")
    assert not left("1")
    records = [Record(path.parent) for path in sorted(Path("0/s").glob("*/summary.json"))]
    assert len(records) == 6
    for record in records:
        several = 1 if record.config["algo"]["name"] == "centralized" else 2
        assert (record.summary["hosts"], record.summary["devices"]) == (several, several)
        assert "hosts" not in record.config
        assert_same_record(record, run(record.config, Path("alone") / record.folder.name))


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_host_that_is_killed_ends_all_and_the_same_command_goes_on(lost):
    overrides = (*DOUBLE, "algo=scaffold", "rounds=120", "checkpoint_every=0", "hydra.run.dir=run")
    hosts, checkpoint, seen = start_hosts(*overrides), Path("0/run/.checkpoint.npz"), set()
    while len(seen) < 4:
        assert all(host.poll() is None for host in hosts), wait_for_hosts(hosts)
        seen |= {checkpoint.stat().st_mtime_ns} if checkpoint.exists() else set()
        time.sleep(0.002)
    hosts[lost].kill()
    results = wait_for_hosts(hosts)
    assert results[lost][0] == -signal.SIGKILL
    code, _, errors = results[1 - lost]
    assert code == 1
    last = errors.splitlines()[-1]  # JAX may have said before that its sum broke off
    assert last.startswith(f"fcorun: failed: host {lost}")
    assert last.endswith("was lost; the same command resumes")
    status = Record(Path("0/run")).status
    assert status["status"] == ("interrupted" if lost == 0 else "failed")
    if lost == 0:
        return  # what is left is what Ctrl-C leaves: test_interruptions.py resumes from it
    (first, out, err), second = wait_for_hosts(start_hosts(*overrides, "checkpoint_every=60"))
    assert (first, err) == (0, "")
    assert second == (0, "", "")
    assert "resumes after round" in out
    assert_same_record(Record(Path("0/run")), run(small("algo=scaffold", "rounds=120", "precision=float64"), "alone"))


@pytest.mark.slow
def test_hosts_with_different_data_are_refused_before_any_file_is_written():
    for rank, last in ((0, 1.0), (1, 2.0)):
        Path(str(rank)).mkdir()
        rows = [f"s{i % 3},{i},{i * i % 7}" for i in range(30)]
        Path(str(rank), "rows.csv").write_text("\n".join(["site,a,y", *rows, f"s0,1,{last}"]))
    table = ("data=table", "data.path=rows.csv", "data.client=site", "data.target=y", "rounds=2")
    first, second = wait_for_hosts(start_hosts(*table, "hydra.run.dir=run"))
    assert first[0] == second[0] == 2
    assert first[2].startswith("fcorun: host 1 (")
    assert "has other data=table than host 0" in first[2]
    assert second[1:] == ("", "")
    assert [path.name for path in (*left("0"), *left("1"))] == ["rows.csv"] * 2


@pytest.mark.slow
def test_tasks_of_a_job_of_submitit_compute_together():
    pytest.importorskip("submitit")
    local = "hydra.launcher.submitit={cluster: local, timeout_min: 5, tasks_per_node: 2, cpus_per_task: 1}"
    overrides = (
        "-m",
        *DOUBLE,
        "seed=0,1",
        "hydra.sweep.dir=s",
        "report=false",
        "hydra.launcher.executor=submitit",
        local,
    )
    subprocess.run([sys.executable, "-m", "fcorun", *overrides], check=True, capture_output=True, timeout=120)
    records = [Record(path.parent) for path in sorted(Path("s").glob("*/summary.json"))]
    assert [record.summary["hosts"] for record in records] == [2, 2]
    for record in records:
        assert_same_record(record, run(record.config, Path("alone") / record.folder.name))


@pytest.mark.slow
def test_a_task_of_submitit_that_is_killed_fails_the_run_and_nothing_is_aborted():
    pytest.importorskip("submitit")
    local = "hydra.launcher.submitit={cluster: local, timeout_min: 5, tasks_per_node: 3, cpus_per_task: 1}"
    overrides = (
        "-m",
        *DOUBLE,
        "algo=scaffold",
        "rounds=100000",
        "checkpoint_every=0",
        "hydra.sweep.dir=s",
        "report=false",
    )
    command = [sys.executable, "-m", "fcorun", *overrides, "hydra.launcher.executor=submitit", local]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sweep:
        while not list(Path("s").glob("*/.checkpoint.npz")):
            assert sweep.poll() is None, sweep.communicate()
            time.sleep(0.02)
        started = psutil.Process(sweep.pid).children(recursive=True)
        (second,) = [task for task in started if task.environ().get("SUBMITIT_LOCAL_GLOBALID") == "1"]
        second.kill()
        sweep.communicate(timeout=60)
    assert sweep.returncode == 1
    (status,) = [Record(path.parent).status for path in Path("s").glob("*/status.json")]
    assert status["status"] == "failed"
    assert "host 1" in status["reason"]
    errors = {path.name[-9:]: path.read_text() for path in Path("s/.submitit").glob("*_log.err")}
    assert errors == dict.fromkeys(("0_log.err", "1_log.err", "2_log.err"), ""), errors


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_an_interruption_of_one_is_one_of_all(rank):
    hosts = start_hosts(*DOUBLE, "rounds=100000", "hydra.run.dir=run")
    while not Path("0/run/metrics.csv").exists() and not Path("0/run/run.log").exists():
        assert hosts[0].poll() is None, wait_for_hosts(hosts)
        time.sleep(0.01)
    hosts[rank].send_signal(signal.SIGTERM)
    (code, _, errors), second = wait_for_hosts(hosts)
    assert code == second[0] == 130
    assert errors == "interrupted; the same command resumes from the last checkpoint\n"
    assert second[1:] == ("", "")
    assert Record(Path("0/run")).status["status"] == "interrupted"


# ---------------------------------------------------------------- without a second host


def test_a_run_is_the_same_on_any_hosts():
    hosts = {"address": "n:1", "count": 4, "rank": 0, "timeout": 1.0}
    assert prepare(small()).identity == prepare(small() | {"hosts": hosts}).identity
    assert json.dumps(prepare(small()).config) == json.dumps(prepare(small() | {"hosts": hosts}).config)


def test_hosts_are_for_the_command():
    with fails("hosts", "the command fcorun"):
        run(small() | {"hosts": {"address": "n:1", "count": 4, "rank": 0}})


@pytest.mark.slow
def test_one_host_computes_alone_whatever_its_address(tmp_path):
    alone = {"hosts": {"address": "n:1", "count": 1, "rank": 0}}
    selection = select(small("rounds=2") | alone, SelectOptions(folds=2, points=2), str(tmp_path / "select"))
    assert selection.record is not None  # of the refit, which is an ordinary run
    assert selection.record.summary["hosts"] == 1


@pytest.mark.slow
def test_the_record_says_how_many(tmp_path):
    record = run(small(), tmp_path / "run")
    assert record.summary["hosts"] == 1
    assert sorted(path.name for path in record.folder.iterdir()) == FILES
