"""A study over sites: the run of a plan, and its trial with all sites in this process."""

import tempfile
from dataclasses import replace
from pathlib import Path

from fcorun.base.errors import UserError
from fcorun.base.records.record import REFIT_FOLDER, RunFolder
from fcorun.base.system.files import write_atomically
from fcorun.data.rows.site_rows import SiteRows
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.runs.job import Watcher
from fcorun.runs.run_experiments import run_experiments
from fcorun.sites.plan.plan import Plan
from fcorun.sites.server.server import Server
from fcorun.sites.server.site_intervals import infer_over_sites
from fcorun.sites.server.site_selection import plan_site_selection
from fcorun.sites.site.site_results import pack_result
from fcorun.sites.transport.connections import Connections
from fcorun.sites.transport.folder import FolderConnections
from fcorun.sites.transport.messages import LAST_REQUEST, NEW_RUN
from fcorun.studies.selection.study import Log

END_MARK = "sites_ended"  # a file with the digest of the plan in the folder of a run whose end all sites know


def run_plan(
    plan: Plan,
    connections: Connections,
    folder: str | Path,
    watch: Watcher | None = None,
    log: Log = lambda line: None,
    *,
    marks_end: bool = True,
) -> FittedRecord:
    """Compute the experiment of a plan with connected sites, and return its record in ``folder``.

    The record of a selection is that of its refit, and ``log`` is called with warnings about the data, and with lines
    about the choice. A run whose end is not marked is asked of the sites again by the next command. Raises UserError,
    which names the site, if a site refuses or is lost, and for a folder that holds another run.
    """
    if not connections.sites:
        raise UserError("no site is connected: give the tables of the sites, or a kit")
    if plan.secure is not None:
        from fcorun.sites.site.masking import MaskedConnections

        connections = MaskedConnections(connections, plan.secure)
    data, digest = Server(plan, connections).load()
    for warning in data.warnings:
        log(warning)
    dataset = replace(plan.shared_options, load_from_sites=lambda: data, digest=digest)
    experiment = replace(plan.experiment, data=dataset)
    mark = Path(folder) / END_MARK
    record_folder = record_folder_of(plan, folder)
    was_finished = _is_finished(record_folder)  # before this command, which runs the refit of a selection
    if plan.select is not None:
        planned = plan_site_selection(plan.select, experiment, connections, Path(folder))
        for line in planned.messages:
            log(line)
        selection = planned.run(log, watch)
        experiment = planned.apply(selection)
        for line in selection.describe():
            log(line)
    RunFolder(record_folder, experiment.identity).inspect(experiment.settings.force)  # refuses another run's
    if not was_finished:
        mark.unlink(missing_ok=True)
    elif not mark.exists():
        # Killed between the end of the run and the mark: the sites expect the requests of the run again before "end".
        with tempfile.TemporaryDirectory() as scratch:
            run_experiments([experiment], [Path(scratch) / "record"], watch)
    (record,) = run_experiments([experiment], [record_folder], watch)
    if not mark.exists():
        if plan.infer is not None and record.status["status"] == "done":
            for line in infer_over_sites(plan.infer, experiment, data, record):
                log(line)
        rows = data.train
        assert isinstance(rows, SiteRows)
        if record.status["status"] == "done":
            of = None if rows.away is None else rows.absences.evaluated  # the sites that have the last model
            connections.ask("result", pack_result(record), of=of, away=rows.away)
        connections.ask("end", away=rows.away)
        if marks_end:
            write_atomically(mark, plan.digest)
    return record


def record_folder_of(plan: Plan, folder: str | Path) -> Path:
    """Return the folder of the record of a plan that is computed in ``folder``."""
    return Path(folder) if plan.select is None else Path(folder) / REFIT_FOLDER


def check_messages_of_record(plan: Plan, folder: str | Path, connections: FolderConnections) -> None:
    """Raise UserError for a finished record in ``folder`` whose messages are not in the shared folder.

    The record would be returned as the result of new messages, which may come from other rows.
    """
    expected = LAST_REQUEST if (Path(folder) / END_MARK).exists() else None
    if _is_finished(record_folder_of(plan, folder)) and not connections.has_request(expected):
        raise UserError(f"out={folder} holds the finished run of this plan, whose messages are not in "
                        f"{connections.folder}: give --folder the shared folder of that run, or for a new run "
                        f"{NEW_RUN} and another out=")  # fmt: skip


def _is_finished(record_folder: Path) -> bool:
    return (record_folder / "status.json").exists() and FittedRecord(record_folder).finished
