"""Groups of runs that are computed side by side: their order, and records as of one group after the other."""

import os
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from sweeps import run_sweep_command
from threadpoolctl import threadpool_info, threadpool_limits

from fcorun import load_records
from fcorun.runs import shared_cores, sweep_point
from fcorun.runs.executors import inline
from fcorun.runs.shared_cores import SharedCores


def test_batches_have_cores_in_the_order_in_which_they_asked():
    cores, order = SharedCores(2), []

    def compute(name, n_cores):
        with cores.take(n_cores):
            order.append(name)

    with cores.take(1):
        assert cores.has_idle()
        threads = []
        for name, n_cores in (("all", 5), ("one", 1)):  # 5: of a machine with more devices
            threads.append(threading.Thread(target=compute, args=(name, n_cores)))
            threads[-1].start()
            while len(cores._queue) < len(threads):
                time.sleep(0.001)
        assert order == []
        assert not cores.has_idle()  # one is free, for which another batch waits
    for thread in threads:
        thread.join()
    assert order == ["all", "one"]
    assert cores.has_idle()


def test_a_batch_that_fails_gives_its_cores_back():
    cores = SharedCores(1)
    with pytest.raises(MemoryError), cores.take(1):
        raise MemoryError
    assert cores.has_idle()


def test_a_group_has_its_share_of_the_cores_and_idle_ones_when_the_others_have_ended():
    cores, begun, seen = SharedCores(2), threading.Barrier(2), []

    def compute():
        with cores.take(1):
            begun.wait(60)
            seen.append((cores.share, cores.has_idle()))  # the other core is free, and the other group will take it
            deadline = time.monotonic() + 60
            while cores.share == 1 and time.monotonic() < deadline:
                time.sleep(0.001)
            seen.append((cores.share, cores.has_idle()))

    def set_up():
        begun.wait(60)
        while not seen:
            time.sleep(0.001)

    cores.run_side_by_side([compute, set_up], lambda: False, one_by_one=False)
    assert seen == [(1, False), (2, True)]
    assert cores.share == 2


@pytest.mark.parametrize(
    ("held", "n_groups", "expected"),
    [
        ((4, 1), 2, [False, True]),  # as many batches as its share: to hand one back would cut none
        ((1, 2, 1, 1), 10, [True, False, True, True]),  # six groups wait for a place
        ((3,), 3, [False]),  # two groups set up
        ((2, 3, 1), 4, [False, False, False]),  # the last one sets up
    ],
)
def test_a_free_core_is_for_groups_below_their_share_once_all_compute(held, n_groups, expected):
    cores, seen = SharedCores(8), {}
    hold, leave = threading.Barrier(len(held)), threading.Barrier(min(n_groups, 4))

    def compute(group):
        if group < len(held):
            with cores.take(held[group]):
                hold.wait(60)
                seen[group] = cores.has_idle()
                leave.wait(60)
        elif group < 4:
            leave.wait(60)

    calls = [partial(compute, group) for group in range(n_groups)]
    cores.run_side_by_side(calls, lambda: False, one_by_one=False)
    assert [seen[group] for group in range(len(held))] == expected


def count_threads_of_blas():
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


PROGRAM = """
from threadpoolctl import threadpool_info
from fcorun.runs.executors import inline
from fcorun.runs.executors.executor import LauncherOptions

class Cores:
    def run_side_by_side(self, calls, ends_early, one_by_one):
        import scipy.linalg
        print(*[library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"])

inline.SharedCores = Cores
inline.InlineExecutor(LauncherOptions()).run([[]], None)
"""


def test_a_fresh_process_limits_the_blas_of_scipy_too():
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    output = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True).stdout
    assert set(output.split()) == {b"1"}


def test_groups_side_by_side_leave_the_records_of_groups_one_by_one(monkeypatch):
    axes = ("algo=feddualavg,fedmid", "rounds=4", "hydra.launcher.pictures=false", "report=false")
    monkeypatch.setattr(inline, "SharedCores", lambda: SharedCores(2))
    files, threads_of_blas = [], []
    for folder, at_once in (("one_by_one", 1), ("side_by_side", 2)):
        meeting, run_jobs = threading.Barrier(at_once), sweep_point.run_jobs

        def run_when_all_are_there(*arguments, meeting=meeting, run_jobs=run_jobs):
            meeting.wait(60)
            threads_of_blas.extend(count_threads_of_blas())
            run_jobs(*arguments)

        with monkeypatch.context() as patch, threadpool_limits(2):
            patch.setattr(shared_cores, "_CALLS_AT_ONCE", at_once)
            patch.setattr(sweep_point, "run_jobs", run_when_all_are_there)
            assert run_sweep_command(*axes, f"hydra.sweep.dir={folder}") == 0
            assert set(count_threads_of_blas()) == {2}
        records = load_records(folder)
        assert len(records) == 2
        files.append([(record.folder.name, (record.folder / "solution.npz").read_bytes()) for record in records])
    assert files[0] == files[1]
    assert set(threads_of_blas) == {1}  # they decide how a sum is divided
