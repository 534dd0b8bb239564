"""Run experiments: one, or several that differ in numbers only, each into a record of its own."""

import itertools
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.config import import_classes
from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError
from fcorun.experiment.build import check_metric_measured, load_data
from fcorun.experiment.prepare import prepare
from fcorun.records.folder import RunFolder
from fcorun.records.formats import yaml_text
from fcorun.records.record import FINISHED_STATUSES, Record
from fcorun.runs.batching import check_devices
from fcorun.runs.execute import execute
from fcorun.runs.hosts.leader import load_on_all_hosts
from fcorun.runs.job import Job, Watcher
from fcorun.system.background_import import PLOTTING_MODULES, import_in_background
from fcorun.system.interruption import check_interrupted, defer_interruption
from fcorun.trackers.base import log_to_tracker


def run(
    config: Mapping[str, Any],
    folder: str | Path | None = None,
    watch: Watcher | None = None,
    trust: str | Path | None = None,
) -> Record:
    """Run one configuration to the end and return its record.

    Args:
        config: plain values, as ``compose`` gives them or as a record's config.yaml holds them.
        folder: where the record goes; by default outputs/DATA/ALGORITHM-IDENTITY. If it holds the finished record of
            the same run, that is returned; an interrupted one is continued, with the numbers of an unbroken one.
        watch: is told of the run as it goes.
        trust: the folder from which classes are imported that are neither fcorun's, nor those of an installed plug-in
            package, nor imported by this program already. None: such classes are refused, for the configuration may be
            that of a record of somebody else.

    Raises UserError for whatever a user can mend; what else goes wrong is recorded as failed and raised.
    """
    return run_grid([config], [folder], watch, trust)[0]


def grid(config: Mapping[str, Any], axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The configurations of a grid: ``config`` with every combination of values, {"algo.client_lr": [...], ...}."""
    configs = []
    for values in itertools.product(*axes.values()):
        changed = deepcopy(dict(config))
        for key, value in zip(axes, values, strict=True):
            *sections, last = key.split(".")
            place = changed
            for section in sections:
                place = place[section]
            place[last] = value
        configs.append(changed)
    return configs


def run_grid(
    configs: Sequence[Mapping[str, Any]],
    folders: Sequence[str | Path | None] | None = None,
    watch: Watcher | None = None,
    trust: str | Path | None = None,
) -> list[Record]:
    """Run configurations. Those that differ in numbers (rates, strengths) and seed only are one program.

    Each gets the record it would have had alone, to rounding, and so does one that is continued. Arguments and errors
    are as for ``run``. An error of one configuration is raised when the others have run.
    """
    if not configs:
        return []
    if trust is not None:
        for config in configs:
            import_classes(config, trust)
    experiments = [prepare(config) for config in configs]
    places = [Path(f or e.default_folder) for e, f in zip(experiments, folders or [None] * len(configs), strict=True)]
    for metric in dict.fromkeys(e.settings.metric for e in experiments):
        check_metric_measured([e for e in experiments if e.settings.metric == metric], metric)
    unique = dict(zip(places, experiments, strict=True))
    for place, experiment in zip(places, experiments, strict=True):
        if unique[place].identity != experiment.identity:
            raise UserError(f"{place} is given to two different runs; give each a folder of its own")
    alone = len(unique) == 1  # a run of its own gets its picture, a point of a grid does not
    jobs = [Job(experiment, RunFolder(place, experiment.identity), alone) for place, experiment in unique.items()]
    errors = _run_groups(jobs, watch or Watcher())
    for job in jobs:
        if job.end_status == "locked":
            raise UserError(f"{job.run_folder.path} is being computed by another process; wait for it to end")
    for error in errors:
        raise error
    return [Record(place) for place in places]


def _run_groups(jobs: list[Job], watch: Watcher) -> list[BaseException]:
    """Run jobs in groups that differ in numbers and seed only; the errors of all. Raises KeyboardInterrupt."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.experiment.batch_key, []).append(job)
    errors: list[BaseException] = []
    for group in groups.values():
        try:
            run_jobs(group, watch)
        except UserError as error:  # nothing of this group was begun
            errors.append(error)
        errors += [job.error for job in group if job.error is not None]
        for error in errors:
            if isinstance(error, KeyboardInterrupt):
                raise error
    return errors


def run_jobs(jobs: list[Job], watch: Watcher) -> None:
    """Run jobs that differ in numbers only; how each went is in its ``end`` and ``error``.

    Raises UserError when nothing could be begun: bad data, a folder that cannot be written or holds another run.
    """
    begun = time.perf_counter()
    if any(job.with_pictures for job in jobs):
        import_in_background(*PLOTTING_MODULES)
    first = jobs[0].experiment
    check_devices([first])
    data = load_on_all_hosts(first) if isinstance(first.algo, Algorithm) else load_data(first)
    if isinstance(first.algo, Baseline):
        first.algo.select_rows(data.offsets)  # refuses a client that is not there, before anything is written
    with defer_interruption():
        _claim_and_run(jobs, data, watch, begun)


def _claim_and_run(jobs: list[Job], data: FederatedData, watch: Watcher, begun: float) -> None:
    """Take the folders of jobs, run those that are not finished, and give the folders back."""
    force = jobs[0].experiment.settings.force
    claimed: list[Job] = []
    together: dict[int, list[Job]] = {}  # by the rounds that a checkpoint holds, -1 for none
    try:
        for job in jobs:
            check_interrupted()
            found = job.run_folder.claim(force, job.label)
            if found in ("finished", "locked"):
                job.end_status = "reused" if found == "finished" else found
                watch.on_end(job)
                continue
            claimed.append(job)
        for job in claimed:
            kept = job.run_folder.load_checkpoint()
            together.setdefault(kept[1] if kept else -1, []).append(job)
            job.run_folder.mark_running(job.label)
            job.run_folder.write_file("config.yaml", yaml_text(job.experiment.config))
            job.run_folder.save_plugins(job.experiment.plugin_code)
            job.run_folder.log(f"{f'goes on after round {kept[1]}' if kept else 'starts'}: {job.label}")
            if job.experiment.warning:
                job.run_folder.log(job.experiment.warning)
            for remark in data.warnings:
                job.run_folder.log(remark)
            watch.on_start(job, data, kept[1] if kept else 0)
            job.setup_seconds = time.perf_counter() - begun
        for same_round in together.values():
            execute(same_round, data, watch)
    except BaseException as error:
        unfinished = [job for job in claimed if not job.end_status and not job.adopt_finished_record()]
        for job in unfinished:
            job.fail(error)
            watch.on_end(job)
        if not unfinished or isinstance(error, UserError) or not isinstance(error, (Exception, KeyboardInterrupt)):
            raise
    finally:
        for job in claimed:
            job.run_folder.release()
        for job in claimed:
            if job.end_status in FINISHED_STATUSES:
                log_to_tracker(job.experiment.tracker, job.run_folder)
