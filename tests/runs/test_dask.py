"""Sweeps on workers of Dask: records to the last bit, whatever workers are lost, and refusals."""

import os
import random
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from helpers import SMALL
from sweeps import RATES, assert_same_results, read_results, run_sweep_command

from fcorun import UserError, compose, load_records
from fcorun.runs.executors import dask
from fcorun.runs.executors.executor import LauncherOptions
from fcorun.studies.selection.permutation import PermutationOptions
from fcorun.studies.selection.permute import plan_permutations
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

distributed: Any = pytest.importorskip("distributed")

SWEEP = ("algo=feddualavg,fedmid", *RATES, "rounds=160", "checkpoint_every=0.02", "report=false")


def start_sweep(folder: str, n_workers: int, *overrides: str) -> subprocess.Popen:
    dask = ("hydra.launcher.executor=dask", f"hydra.launcher.dask={{jobs: {n_workers}}}")
    overrides = (*SMALL, *SWEEP, *dask, f"hydra.sweep.dir={folder}", *overrides)
    command = [sys.executable, "-m", "fcorun", "-m", *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def find_workers(sweep: subprocess.Popen) -> list[psutil.Process]:
    """Return the processes of a sweep that have begun to compute: those that hold a record's lock."""
    holders = []
    for process in psutil.Process(sweep.pid).children(recursive=True):
        try:
            if any(Path(file.path).name == ".lock" for file in process.open_files()):
                holders.append(process)
        except psutil.NoSuchProcess:
            continue
    return holders


@pytest.mark.slow
def test_killed_workers_leave_the_records_of_an_undisturbed_sweep_to_the_last_bit():
    dice = random.Random(0)
    killed = 0
    with start_sweep("killed", 2) as sweep:
        while sweep.poll() is None and killed < 3:
            time.sleep(0.02)
            for worker in find_workers(sweep)[:1]:
                time.sleep(dice.uniform(0, 0.3))
                worker.kill()
                killed += 1
        output, _ = sweep.communicate(timeout=900)
    assert sweep.returncode == 0, output
    assert killed == 3
    with start_sweep("undisturbed", 1) as sweep:
        output, _ = sweep.communicate(timeout=900)
    assert sweep.returncode == 0, output
    records = load_records("killed")
    assert len(records) == 12
    for record in records:
        other = Path("undisturbed") / record.folder.name
        assert (record.folder / "solution.npz").read_bytes() == (other / "solution.npz").read_bytes()
    assert read_results("killed").equals(read_results("undisturbed"))
    assert run_sweep_command(*SWEEP, "hydra.sweep.dir=inline") == 0
    assert_same_results(read_results("killed"), read_results("inline"))
    assert not list(Path().rglob(".dask-*"))


@pytest.mark.slow
def test_fits_of_studies_by_a_worker_are_those_of_this_process():
    config = compose([*SMALL, "algo=centralized", "tail_rounds=1"])
    options = SelectOptions(folds=3, points=3)

    def run_studies(folder):
        plan_selection(config, options, f"{folder}/select").run()
        plan_permutations(config, PermutationOptions(n=25, folds=3, points=3), f"{folder}/permute").run()

    run_studies("here")
    executor = dask.DaskExecutor(LauncherOptions(executor="dask", dask={"jobs": 1}))
    executor.start([], lambda line: None)
    token = dask.study_workers.set(executor)
    try:
        run_studies("there")
    finally:
        dask.study_workers.reset(token)
        executor.close()
    files = [path.relative_to("here") for path in Path("here").glob("*/fits/*.npz")]
    assert len(files) > 4
    for file in files:
        assert (Path("here") / file).read_bytes() == (Path("there") / file).read_bytes()
    assert not list(Path().rglob(".dask-*"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("hydra.launcher.address=tcp://127.0.0.1:9", "address=tcp://127.0.0.1:9: no Dask scheduler answers there"),
        ("hydra.launcher.address=nowhere", "address=nowhere: no Dask scheduler answers there"),
        ("hydra.launcher.dask={cluster: slurm}", "cluster=slurm needs dask-jobqueue: pip install dask-jobqueue"),
        ("hydra.launcher.dask={cluster: kubernetes}", "kubernetes needs dask-kubernetes: pip install dask-kubernetes"),
        (
            "hydra.launcher.dask={cluster: ssh}",
            "cluster=ssh is not a choice: (valid: local, slurm",
        ),
        ("hydra.launcher.dask={cores: 8}", "hydra.launcher.dask.cores is of a cluster: name one"),
        ("hydra.launcher.dask={jobs: 0}", "hydra.launcher.dask.jobs=0 must be"),
    ],
)
def test_clusters_that_cannot_be_had_are_refused_before_any_file_is_written(options, sentence, monkeypatch, capsys):
    monkeypatch.setattr(dask, "_SECONDS_TO_CONNECT", 0.2)
    for module in ("dask_jobqueue", "dask_kubernetes"):
        monkeypatch.setitem(sys.modules, module, None)
    assert run_sweep_command("algo.client_lr=1e-3,2e-3", "hydra.launcher.executor=dask", options, "out=s") == 2
    assert sentence in capsys.readouterr().err
    assert not Path("s").exists()


class FakeKubeCluster(distributed.LocalCluster):
    """A cluster of Kubernetes, as far as fcorun uses one: a pod is a process here, with the arguments of a pod."""

    def __init__(self, *, name, n_workers, resources, worker_command, namespace=None, image=None):
        super().__init__(n_workers=0, dashboard_address=":0", protocol="tcp", host="127.0.0.1")
        FakeKubeCluster.given = {"n_workers": n_workers, "resources": resources, "image": image}
        env = os.environ | {"DASK_SCHEDULER_ADDRESS": self.scheduler_address, "PYTHONSAFEPATH": "1"}
        script, *arguments = worker_command
        command = [str(Path(sys.executable).with_name(script)), *arguments, "--name", f"{name}-worker", "--dashboard"]
        self.pods = [subprocess.Popen([*command, "--dashboard-address", "0"], env=env) for _ in range(n_workers)]

    def close(self, timeout=None):
        for pod in self.pods:
            pod.terminate()
            pod.wait()
        return super().close(timeout)


@pytest.mark.slow
def test_pods_of_kubernetes_run_a_sweep(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", SimpleNamespace(KubeCluster=FakeKubeCluster))
    monkeypatch.setitem(sys.modules, "dask_kubernetes", SimpleNamespace())
    pods = "hydra.launcher.dask={cluster: kubernetes, jobs: 1, cores: 2, memory: 2GB, image: me/fcorun}"
    assert run_sweep_command(*RATES, "hydra.launcher.executor=dask", pods, "hydra.sweep.dir=there") == 0
    amounts = {"cpu": "2", "memory": "2G"}  # as Kubernetes writes them
    resources = {"requests": amounts, "limits": amounts}
    assert FakeKubeCluster.given == {"n_workers": 1, "resources": resources, "image": "me/fcorun"}
    assert run_sweep_command(*RATES, "hydra.sweep.dir=here") == 0
    assert_same_results(read_results("there"), read_results("here"))


def test_what_kubernetes_refuses_is_said_in_a_sentence(monkeypatch, capsys):
    def refuse(**_):
        raise RuntimeError("Failed to create DaskCluster resource.\nMore")

    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", SimpleNamespace(KubeCluster=refuse))
    monkeypatch.setitem(sys.modules, "dask_kubernetes", SimpleNamespace())
    pods = "hydra.launcher.dask={cluster: kubernetes}"
    assert run_sweep_command(*RATES, "hydra.launcher.executor=dask", pods, "out=s") == 2
    sentence = "fcorun: hydra.launcher.dask of cluster=kubernetes: Failed to create DaskCluster resource.\n"
    assert capsys.readouterr().err == sentence
    assert not Path("s").exists()


@pytest.mark.parametrize(("address", "lines"), [(None, 1), ("tcp://127.0.0.1:8786", 0)])
def test_the_dashboard_is_shown_of_a_cluster_that_the_command_starts(address, lines, monkeypatch):
    """Another may have been started with --no-dashboard, and its client has an address nevertheless."""
    client = SimpleNamespace(dashboard_link="http://127.0.0.1:8787/status")
    monkeypatch.setattr(dask, "open_cluster", lambda options: nullcontext(client))
    shown: list[str] = []
    dask.DaskExecutor(LauncherOptions(address=address)).start([], shown.append)
    assert len(shown) == lines


def test_dask_is_an_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert run_sweep_command("algo.client_lr=1e-3,2e-3", "hydra.launcher.executor=dask") == 2
    assert "hydra.launcher.executor=dask needs Dask: pip install 'fcorun[dask]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("n_threads", "sentence"), [(1, "does not see the files of .*s: give out=DIR"), (2, "has 2 threads")]
)
def test_a_worker_that_cannot_serve_says_why(n_threads, sentence, monkeypatch):
    from fcorun.runs.executors import dask_worker

    worker = SimpleNamespace(address="tcp://10.0.0.2:1", state=SimpleNamespace(nthreads=n_threads))
    monkeypatch.setattr(dask_worker, "get_worker", lambda: worker)
    with pytest.raises(UserError, match=sentence), dask_worker.serving(Path("s/.dask-1")):
        pass


def test_a_worker_computes_with_one_thread_unless_its_environment_says_otherwise(monkeypatch):
    from fcorun.runs.executors import dask_worker

    worker = SimpleNamespace(address="tcp://10.0.0.2:1", state=SimpleNamespace(nthreads=1))
    monkeypatch.setattr(dask_worker, "get_worker", lambda: worker)
    Path(".dask-1").touch()
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    with dask_worker.serving(Path(".dask-1")):
        assert os.environ["PJRT_NPROC"] == "1"
    monkeypatch.setenv("PJRT_NPROC", "4")
    with dask_worker.serving(Path(".dask-1")):
        assert os.environ["PJRT_NPROC"] == "4"


HOST_AFTER_GROUP = """
import os
from pathlib import Path
from types import SimpleNamespace
from fcorun.base.system.machine import HostOptions
from fcorun.runs.executors import dask_host, dask_worker

address = "tcp://10.0.0.2:1"
worker = SimpleNamespace(
    address=address, state=SimpleNamespace(nthreads=1), scheduler=SimpleNamespace(address=address), security=None
)
dask_worker.get_worker = dask_host.get_worker = lambda: worker
dask_host.get_client = lambda: None
dask_host.Queue = lambda name, client: SimpleNamespace(qsize=lambda: 0, put=lambda value: None)

def start(command, env, **options):
    print(env.get("PJRT_NPROC"))
    raise SystemExit

dask_host.subprocess.Popen = start
with dask_worker.serving(Path(".dask-1")):
    print(os.environ["PJRT_NPROC"])
dask_host.run_host(dask_host.HostTask("t", 1, (address,), (), HostOptions(), ".", Path("."), None, {}, ()))
"""


@pytest.mark.parametrize("of_starter", [None, "4"])
def test_a_host_has_the_threads_that_whoever_started_its_worker_gave(of_starter):
    """Also after the worker has computed a group of points, in one thread; seen in a fresh process, as a worker is."""
    environment = {key: value for key, value in os.environ.items() if key != "PJRT_NPROC"}
    if of_starter is not None:
        environment["PJRT_NPROC"] = of_starter
    Path(".dask-1").touch()
    command = [sys.executable, "-c", HOST_AFTER_GROUP]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert shown.split() == [of_starter or "1", str(of_starter)]


def test_rows_that_a_killed_study_left_for_workers_go_with_the_next_command_of_any_kind():
    study = plan_selection(compose([*SMALL, "algo=centralized"]), SelectOptions(folds=3, points=3), "s").study
    for _ in range(2):
        with study.claim():
            assert not list(Path("s").glob(".dask-*"))
        Path("s/.dask-1").write_bytes(b"rows")


def test_a_part_of_a_study_whose_workers_are_lost_names_the_cure():
    from distributed import KilledWorker

    def fail():
        raise KilledWorker("part", None, 10)

    with pytest.raises(UserError, match=r"memory is used up: give fewer workers, .*jobs: 1"):
        dask._read_part(SimpleNamespace(result=fail))
