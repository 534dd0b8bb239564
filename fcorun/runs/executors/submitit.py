"""Groups as jobs of a Slurm cluster."""

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fcorun.base.errors import HostLost, UserError, first_line
from fcorun.base.system.files import interruptible
from fcorun.base.system.machine import SECRET_VARIABLE, HostOptions, close_hosts, resolve_hosts
from fcorun.base.system.rendezvous import join_hosts
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.runs.executors.executor import (
    Executor,
    LauncherOptions,
    PackedWork,
    PointResult,
    has_failed,
    list_results,
    take_results,
    without_current_folder,
)
from fcorun.runs.executors.inline import InlineExecutor
from fcorun.runs.job import SweepWatcher
from fcorun.runs.several_hosts import run_follower
from fcorun.runs.sweep_point import PointGroups, SweepPoint


class SubmititExecutor(Executor):
    """A Slurm cluster, or submitit's local one, on which each group is a job. The command waits for all of them.

    The tasks of a job, if there are several, compute together as hosts. With ``fail_fast``, the first failure cancels
    the jobs after it.
    """

    def start(self, experiments: Sequence[PreparedExperiment], show: Callable[[str], None]) -> None:
        try:
            import submitit  # noqa: F401
        except ImportError as error:
            raise UserError(
                "`hydra.launcher.executor=submitit` needs submitit: `pip install 'fcorun[submitit]'`"
            ) from error

    def run(self, groups: PointGroups, watch: SweepWatcher) -> None:
        import submitit

        parameters = dict(self.options.submitit or {})
        log_folder = Path(groups[0][0].folder).parent / ".submitit"
        executor = submitit.AutoExecutor(folder=log_folder, cluster=parameters.pop("cluster", None))
        executor.update_parameters(**{"name": "fcorun", **parameters})
        n_cores = int(parameters["cpus_per_task"]) if "cpus_per_task" in parameters else None
        n_tasks = int(parameters.get("nodes", 1)) * int(parameters.get("tasks_per_node", 1))
        run_job = _run_in_job
        if n_tasks > 1:
            run_job = _run_in_one_of_several_tasks
            os.environ.setdefault(SECRET_VARIABLE, secrets.token_hex(32))  # jobs inherit the environment
        with without_current_folder(), executor.batch():
            jobs = [executor.submit(run_job, PackedWork.of_group(group, n_cores)) for group in groups]
        for number, (job, group) in enumerate(zip(jobs, groups, strict=True), start=1):
            take_results(group, _wait(job, group), watch)
            if self.fail_fast and has_failed([group]):
                for later in jobs[number:]:
                    later.cancel(check=False)
                return


def _wait(job: Any, group: Sequence[SweepPoint]) -> list[PointResult]:
    """Return the results of a job; the points of a job that was killed have failed."""
    try:
        return job.task(0).result()
    except Exception as error:  # of submitit: out of memory or of time, for example
        return [("failed", f"its job ended without a result: {first_line(error)}")] * len(group)


def _run_in_job(task: PackedWork) -> list[PointResult]:
    """Run a group in this process; return the result of each point."""
    group = task.start()
    with interruptible():
        InlineExecutor(LauncherOptions()).run([group], SweepWatcher())
    return list_results(group)


def _run_in_one_of_several_tasks(task: PackedWork) -> list[PointResult]:
    """Run a group in one of several tasks of a submitit job: the first task leads, and the others follow it.

    Returns the results of ``_run_in_job`` from the first task.
    """
    from submitit.helpers import TorchDistributedEnvironment

    job = TorchDistributedEnvironment()
    group = task.start()
    try:
        options = resolve_hosts({}) or HostOptions(f"{job.master_addr}:{job.master_port}", job.world_size, job.rank)
        leads = join_hosts(options).rank == 0
        with interruptible():
            if not leads:
                run_follower()
                return []
            InlineExecutor(LauncherOptions()).run([group], SweepWatcher())
        return list_results(group)
    except (UserError, HostLost) as error:
        return list_results(group, error)
    finally:
        close_hosts(0)
