"""A study over sites: the run of a plan, and its trial with all sites in this process."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.record import REFIT_FOLDER, RunFolder
from fcorun.base.system.files import write_atomically
from fcorun.base.system.machine import use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment.build import build_engine
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.runs.follow import RunFollower
from fcorun.runs.job import Watcher
from fcorun.runs.run_experiments import run_experiments
from fcorun.sites.plan.gram_sums import sends_sums
from fcorun.sites.plan.plan import Plan
from fcorun.sites.server.server import Server
from fcorun.sites.server.site_intervals import compare_intervals, infer_over_sites
from fcorun.sites.server.site_selection import plan_site_selection
from fcorun.sites.server.sums_of_folds import SumsOfFolds
from fcorun.sites.site.shared_programs import SharedPrograms
from fcorun.sites.site.site import Site
from fcorun.sites.site.site_batch import resolve_numbers
from fcorun.sites.site.site_results import pack_result
from fcorun.sites.transport.connections import Connections, InProcessConnections
from fcorun.sites.transport.folder import FolderConnections
from fcorun.sites.transport.messages import LAST_REQUEST
from fcorun.studies.selection.selection_report import describe_selection
from fcorun.studies.selection.study import Log

if TYPE_CHECKING:
    from fcorun.sites.site.masking import MaskedSite

END_MARK = "sites_ended"  # a file with the digest of the plan in the folder of a run whose end all sites know


def run_plan(
    plan: Plan,
    connections: Connections,
    folder: str | Path,
    watch: Watcher | None = None,
    log: Log = lambda line: None,
) -> FittedRecord:
    """Compute the experiment of a plan with connected sites, and return its record in ``folder``.

    The record of a selection is that of its refit, and ``log`` is called with warnings about the data, and with lines
    about the choice. Raises UserError, which names the site, if a site refuses or is lost, and for a folder that holds
    another run.
    """
    if not connections.sites:
        raise UserError("no site is connected: give the tables of the sites, or a kit")
    if plan.secure is not None:
        from fcorun.sites.site.masking import MaskedConnections

        connections = MaskedConnections(connections, plan.secure)
    sums = None
    if plan.select is not None and sends_sums(plan.experiment):
        connections = sums = SumsOfFolds(connections, plan.experiment, list(plan.select.folds_by_name), Path(folder))
    data, digest = Server(plan, connections).load()
    for warning in data.warnings:
        log(warning)
    dataset = replace(plan.shared_options, load_from_sites=lambda: data, digest=digest)
    experiment = replace(plan.experiment, data=dataset)
    mark, record_folder = Path(folder) / END_MARK, record_folder_of(plan, folder)
    was_finished = _is_finished(record_folder)  # before this command, which runs the refit of a selection
    if plan.select is not None:
        planned = plan_site_selection(plan.select, experiment, connections, Path(folder))
        for line in planned.messages:
            log(line)
        selection = planned.run(log, watch)
        experiment = planned.apply(selection)
        for line in describe_selection(selection):
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
        write_atomically(mark, plan.digest)
    if sums is not None:
        sums.forget()
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
        raise UserError(f"out={folder} holds a finished run, whose messages are not in {connections.folder}: give "
                        "out=ANOTHER for a new run, or the shared folder of that run")  # fmt: skip


def _is_finished(record_folder: Path) -> bool:
    return (record_folder / "status.json").exists() and FittedRecord(record_folder).finished


@dataclass(frozen=True)
class Comparison:
    """The comparison of a trial with the same run on the rows of all sites in one place.

    Attributes:
        equal: whether all parameters are equal to the bit, those of personal models, too.
        difference: the largest difference of a parameter, relative to the largest parameter of both runs; NaN where
            one is not finite.
        bytes_sent: the bytes that each site sent.
        gap: the duality gap at the end of the run; None if the plan measures none.
        intervals: the largest difference of an estimate or of a standard error, in standard errors; None without
            intervals.
    """

    equal: bool
    difference: float
    bytes_sent: dict[str, int]
    gap: float | None = None
    intervals: float | None = None

    def describe(self) -> list[str]:
        """Return the comparison as sentences."""
        result = f"equal but for {self.difference:.1g} of the largest coefficient"
        if self.equal:
            result = "equal to the bit"
        elif not np.isfinite(self.difference):
            result = "not comparable, since a coefficient is not finite"
        sent = ", ".join(f"{site} {count / 1e6:.3g} MB" for site, count in self.bytes_sent.items())
        lines = [f"compared with the run on all rows in one place: {result}", f"sent by each site: {sent}"]
        if self.intervals is not None:
            lines.insert(1, f"intervals of the coefficients equal but for {self.intervals:.1g} standard errors")
        if self.gap is not None:
            at_optimum = self.gap <= 0  # but for rounding, since no gap is below 0
            where = "at the optimum, up to rounding" if at_optimum else f"at most {self.gap:.3g} above the optimum"
            lines.insert(0, f"duality gap: the objective is {where}")
        return lines


def try_plan(
    plan: Plan,
    sites: Mapping[str, Site],
    folder: str | Path,
    watch: Watcher | None = None,
    log: Log = lambda line: None,
) -> tuple[FittedRecord, Comparison]:
    """Compute a plan with all sites in this process, and compare the result with that of the pooled rows."""
    programs = share_programs(sites)
    connections = InProcessConnections(sites if not plan.is_masked else mask_sites(sites), run=plan.digest[:16])
    record = run_plan(plan, connections, folder, watch, log)
    first = next(iter(sites.values()))
    if not first.points:
        raise UserError(f"{folder} holds this trial already: read its record, or give another folder, out=DIR")
    data = pool_rows([site.own_data for site in sites.values()], first.data.clients)
    engine = build_engine(resolve_numbers(plan.experiment, first.points[0]), data)
    if engine.federation.problem.curvature is not None:
        # The sites took these rounded bounds for their inner steps.
        bounds = record.summary["curvature"]
        problem = replace(engine.federation.problem, curvature=(bounds["least"], bounds["most"]))
        engine = replace(engine, federation=replace(engine.federation, problem=problem))
    with use_precision(engine.federation.precision):
        programs.share_shapes(engine.federation)
        for last in RunFollower(engine, [], first.points).follow():
            if last.round == record.summary["round"]:
                break
    pairs = [(values[0], record.solution[name]) for name, values in last.solution.items()]
    for site in sites.values():
        if last.client_models is not None and site.personal is not None:
            numbers = [data.clients.index(name) for name in site.personal["client"]]
            for name, values in last.client_models.items():
                pairs.append((np.asarray(values)[0, numbers], site.personal[name]))
    equal = all(np.array_equal(pooled, of_sites, equal_nan=True) for pooled, of_sites in pairs)
    models = (np.concatenate([np.ravel(values) for values in model]) for model in zip(*pairs, strict=True))
    difference = relative_difference(*models)
    gap = record.rows[-1].get("gap")
    intervals = compare_intervals(plan, record, data)
    return record, Comparison(equal, difference, connections.bytes_sent, gap, intervals)


def relative_difference(one: np.ndarray, two: np.ndarray) -> float:
    """Return the largest difference of two arrays, relative to the largest number of both.

    The difference is NaN if a number is not finite.
    """
    values = np.array([one, two], np.float64)
    if not np.isfinite(values).all():
        return np.nan
    return float(np.abs(values[0] - values[1]).max() / (np.abs(values).max() or 1.0))


def share_programs(sites: Mapping[str, Site]) -> SharedPrograms:
    """Have the sites of a trial share the programs that they compile, and return these."""
    programs = SharedPrograms()
    for site in sites.values():
        site.programs = programs
    return programs


def mask_sites(sites: Mapping[str, Site]) -> "dict[str, MaskedSite]":
    """Return the sites of a trial with masks. Their keys are drawn for the trial, and each site knows those of all."""
    from fcorun.sites.site.masking import MaskedSite
    from fcorun.sites.site.masks import fingerprint_of, make_key, public_key_of

    keys = {name: make_key() for name in sites}
    fingerprints = {name: fingerprint_of(public_key_of(key)) for name, key in keys.items()}
    masked = {}
    for name, site in sites.items():
        others = {other: fingerprint for other, fingerprint in fingerprints.items() if other != name}
        masked[name] = MaskedSite(site, keys[name], others)
    return masked


def pool_rows(parts: list[FederatedData], clients: tuple[str, ...]) -> FederatedData:
    """Return the training rows of all sites as one data set, with its clients in this order."""
    columns: dict[str, list] = {name: [] for name in Rows.__dataclass_fields__}
    for part in parts:
        number = np.array([clients.index(name) for name in part.clients], np.int64)
        for name, values in columns.items():
            value = getattr(part.train, name)
            values.append(number[value] if name == "client" else value)
    order = np.argsort(np.concatenate(columns["client"]), kind="stable")
    pooled = {}
    for name, values in columns.items():
        pooled[name] = None if values[0] is None else np.concatenate(values)[order]
    return replace(parts[0], train=Rows(**pooled), validation=None, test=None, clients=clients)
