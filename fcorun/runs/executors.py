"""Where the groups of a sweep run, other than in this process: local processes by joblib, a cluster by submitit."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcorun.errors import Elsewhere, UserError, describe

if TYPE_CHECKING:
    from fcorun.runs.sweep import Options, Point


def work(group: list["Point"], folder: str, cores: int) -> list[tuple[str, str]]:
    """Run a group in a process of its own; how each point ended, and the error's text."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ["FCORUN_CORES"] = str(cores)
    from fcorun.cli.console import SweepConsole
    from fcorun.runs.sweep import in_turn
    from fcorun.system.machine import set_up_jax

    set_up_jax()
    in_turn([group], SweepConsole(verbose=False))
    return [(p.end, describe(p.error) if p.error else "") for p in group]


def _note(groups: list[list["Point"]], results: Any, options: "Options", console: Any) -> None:
    """Take over how the points of each group ended, as the groups end."""
    for group, ends in zip(groups, results, strict=False):
        for point, (end, text) in zip(group, ends, strict=True):
            point.end, point.error = end, Elsewhere(text) if text else None
            console.over(point)
        if options.fail_fast and any(p.error for p in group):
            return


def by_joblib(groups: list[list["Point"]], options: "Options", console: Any) -> None:
    """``n_jobs`` groups at a time, each in a process of its own."""
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        raise UserError("hydra.launcher.executor=joblib needs joblib: pip install 'fcorun[joblib]'") from error
    from fcorun.system.machine import cores

    each = max(1, cores() // options.n_jobs)
    tasks = (delayed(work)(group, os.getcwd(), each) for group in groups)
    _note(groups, Parallel(n_jobs=options.n_jobs, return_as="generator")(tasks), options, console)


def by_submitit(groups: list[list["Point"]], options: "Options", console: Any) -> None:
    """Each group as a job of a Slurm cluster, or of submitit's local one; waits for all of them."""
    try:
        import submitit
    except ImportError as error:
        raise UserError("hydra.launcher.executor=submitit needs submitit: pip install 'fcorun[submitit]'") from error
    parameters = dict(options.submitit or {})
    log = Path(groups[0][0].folder).parent / ".submitit"
    executor = submitit.AutoExecutor(folder=log, cluster=parameters.pop("cluster", None))
    executor.update_parameters(**{"name": "fcorun", **parameters})
    cores = int(parameters.get("cpus_per_task", 0)) or (os.cpu_count() or 1)
    with executor.batch():
        jobs = [executor.submit(work, group, os.getcwd(), cores) for group in groups]
    _note(groups, (job.result() for job in jobs), options, console)


EXECUTORS = {"joblib": by_joblib, "submitit": by_submitit}
