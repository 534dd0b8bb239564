"""The trial of a plan: all sites in this process, compared with the same study on the rows in one place."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fcorun.base.errors import UserError, abbreviate
from fcorun.base.records.formats import read_json
from fcorun.base.records.record import SELECTION_FILE
from fcorun.base.system.files import write_atomically
from fcorun.base.system.machine import use_precision
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.data.tables.columns import SplineColumn
from fcorun.data.tables.columns.column import TrainingRows
from fcorun.data.tables.encoding import Encoding
from fcorun.experiment.build import build_engine
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.runs.job import RunFollower, Watcher
from fcorun.sites.plan.messages.message_kind import list_kinds
from fcorun.sites.plan.messages.table_messages import Load
from fcorun.sites.plan.plan import Plan
from fcorun.sites.server.site_intervals import compare_intervals
from fcorun.sites.server.site_study import END_MARK, run_plan
from fcorun.sites.site.site import Site
from fcorun.sites.site.site_batch import resolve_numbers
from fcorun.sites.tables.fold_encoding import pool_cells
from fcorun.sites.tables.table_agreement import Agreement
from fcorun.sites.tables.table_rows import SiteTable
from fcorun.sites.transport.connections import InProcessConnections, Request
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.fitting import PathFit, fit_batch
from fcorun.studies.selection.path import find_path_parameter
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import ALL_ROWS
from fcorun.studies.selection.study import FITS, Log

if TYPE_CHECKING:
    from fcorun.sites.site.masking import MaskedSite


_CODED = ", coded as the sites code them"


@dataclass(frozen=True)
class Comparison:
    """The comparison of a trial with the same study on the rows of all sites in one place.

    Attributes:
        equal: whether all parameters of a run are equal to the bit, those of personal models, too.
        difference: the largest difference of a parameter; of a run relative to the largest parameter of both runs, of
            the path of a selection to the largest entry of that parameter, weights or bias. NaN: one is not finite.
        bytes_sent: the bytes that each site sent.
        gap: the duality gap at the end of the run; None if the plan measures none.
        intervals: the largest difference of an estimate or of a standard error, in standard errors; None without
            intervals.
        same_choice: whether both selections choose the same value of the path; None of a run.
        curve: the largest difference of a mean score of a selection, relative to the largest score.
        recoded: what a table of all rows codes otherwise than the sites, whose codes both sides of the comparison have.
    """

    equal: bool
    difference: float
    bytes_sent: dict[str, int]
    gap: float | None = None
    intervals: float | None = None
    same_choice: bool | None = None
    curve: float = 0.0
    recoded: tuple[str, ...] = ()

    def describe(self) -> list[str]:
        """Return the comparison as sentences."""
        lines = []
        if self.gap is not None:
            where = f"at most {self.gap:.3g} above the optimum"
            if self.gap <= 0:  # but for rounding, since no gap is below 0
                where = "at the optimum, up to rounding"
            lines.append(f"duality gap: the objective is {where}")
        if self.same_choice is not None:
            choice = "the same choice" if self.same_choice else "another choice"
            lines.append(f"compared with the selection on all rows in one place{_CODED}: {choice}")
            lines.append(f"scores equal but for {self.curve:.1g} of the largest, coefficients but for "
                         f"{self.difference:.1g}")  # fmt: skip
        else:
            result = f"equal but for {self.difference:.1g} of the largest coefficient"
            if self.equal:
                result = "equal to the bit"
            elif not np.isfinite(self.difference):
                result = "not comparable, since a coefficient is not finite"
            lines.append(f"compared with the run on all rows in one place{_CODED}: {result}")
        if self.recoded:
            lines.append(f"a table of all rows has other codes: {'; '.join(self.recoded)}")
        if self.intervals is not None:
            lines.append(f"intervals of the coefficients equal but for {self.intervals:.1g} standard errors")
        sent = ", ".join(f"{site} {count / 1e6:.3g} MB" for site, count in self.bytes_sent.items())
        return [*lines, f"sent by each site: {sent}"]


def try_plan(
    plan: Plan,
    sites: Mapping[str, Site],
    folder: str | Path,
    watch: Watcher | None = None,
    log: Log = lambda line: None,
) -> tuple[FittedRecord, Comparison]:
    """Compute a plan with all sites in this process, and compare the result with that of the pooled rows.

    The end is marked when both have been compared, so that the command of a trial that was killed before compares them.
    Raises UserError if the folder holds a finished trial.
    """
    folder = Path(folder)
    finished = UserError(f"{folder} holds this trial already: read its record, or give another folder, out=DIR")
    mark = folder / END_MARK
    if mark.exists() and mark.read_text(encoding="utf-8") == plan.digest:
        raise finished
    starts = RecordedStarts(mask_sites(sites) if plan.is_masked else sites, plan.digest[:16])
    record = run_plan(plan, starts, folder, watch, log, marks_end=False)
    if not starts.points:
        raise finished
    first = next(iter(sites.values()))
    data = pool_rows([site.own_data for site in sites.values()], first.data.clients)
    encoding = Agreement.from_message(first.requests[Load.name]).encoding
    recoded = find_other_codes([site.table for site in sites.values()], encoding)
    if plan.select is not None:
        comparison = replace(_compare_selections(plan, sites, data, starts, folder), recoded=recoded)
    else:
        pairs = _pair_models(plan, sites, data, record)
        models = (np.concatenate([np.ravel(values) for values in model]) for model in zip(*pairs, strict=True))
        comparison = Comparison(
            all(np.array_equal(pooled, of_sites, equal_nan=True) for pooled, of_sites in pairs),
            relative_difference(*models),
            starts.bytes_sent,
            gap=record.rows[-1].get("gap"),
            intervals=compare_intervals(plan, record, data),
            recoded=recoded,
        )
    write_atomically(mark, plan.digest)
    return record, comparison


def find_other_codes(tables: Sequence[SiteTable], encoding: Encoding) -> tuple[str, ...]:
    """Return what a fit to the training rows of all tables together codes otherwise than the sites have agreed on."""
    import pandas as pd

    cells = pd.concat([table.rows.frame for table in tables], ignore_index=True)
    row = np.flatnonzero(np.concatenate([table.masks[0] for table in tables]))
    rows = TrainingRows(row, np.zeros(len(row), np.int64))
    missing = tables[0].options.missing
    where = "the table of all rows"
    constant = dict.fromkeys(name for table in tables for name in sorted(table.constant))
    found = [f"'{name}' keeps a value that few rows of a site have" for name in constant]
    for column in encoding.columns:
        name = column.name
        unfitted = next(kind for table in tables if (kind := table.kinds[name]) is not None)
        pooled = unfitted.fit(unfitted.describe(cells[name], rows, missing, where), missing, where)
        if isinstance(column, SplineColumn) and isinstance(pooled, SplineColumn) and pooled.knots != column.knots:
            exact, agreed = (", ".join(f"{knot:.4g}" for knot in spline.knots) for spline in (pooled, column))
            found.append(f"the knots of '{name}' are {exact}, of the sites {agreed}")
        if pooled.levels != column.levels:
            exact, agreed = (abbreviate(list(levels)) for levels in (pooled.levels, column.levels))
            found.append(f"the levels of '{name}' are {exact}, of the sites {agreed}")
        fill = column.fill
        exact_fill = pooled.fill
        if isinstance(fill, float) and isinstance(exact_fill, float) and not np.isclose(exact_fill, fill, 1e-9, 0.0):
            found.append(f"gaps of '{name}' are filled by {exact_fill:.4g}, at the sites by {fill:.4g}")
    return tuple(found)


class RecordedStarts(InProcessConnections):
    """Connections that keep the numbers of the runs that the server began, by the subset of a selection, or ""."""

    def __init__(self, site_by_name: Mapping[str, Any], run: str):
        super().__init__(site_by_name, run=run)
        self.points: dict[str, list[dict]] = {}
        self._subset = ""

    def send(self, request: Request) -> dict[str, Message]:
        about = request.message.about
        if list_kinds()[request.name].names_subset:
            self._subset = about["subset"]
        if "numbers" in about:
            self.points[self._subset] = about["numbers"]
        return super().send(request)


def _pair_models(
    plan: Plan, sites: Mapping[str, Site], data: FederatedData, record: FittedRecord
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs of parameters of the last models of a run: on the rows in one place, ``data``, and of the trial."""
    points = next(iter(sites.values())).points
    engine = build_engine(resolve_numbers(plan.experiment, points[0]), data)
    if engine.federation.problem.curvature is not None:
        # The sites took these rounded bounds for their inner steps.
        bounds = record.summary["curvature"]
        problem = replace(engine.federation.problem, curvature=(bounds["least"], bounds["most"]))
        engine = replace(engine, federation=replace(engine.federation, problem=problem))
    with use_precision(engine.federation.precision):
        for last in RunFollower(engine, [], points).follow():
            if last.round == record.summary["round"]:
                break
    pairs = [(values[0], record.solution[name]) for name, values in last.solution.items()]
    for site in sites.values():
        if last.client_models is not None and site.personal is not None:
            numbers = [data.clients.index(name) for name in site.personal["client"]]
            for name, values in last.client_models.items():
                pairs.append((np.asarray(values)[0, numbers], site.personal[name]))
    return pairs


def _compare_selections(
    plan: Plan, sites: Mapping[str, Site], data: FederatedData, starts: RecordedStarts, folder: Path
) -> Comparison:
    """Compute the selection on the rows in one place, ``data``, with the numbers of the trial, and compare the two."""
    parameter = find_path_parameter(plan.experiment)
    path = [point["reg"][parameter] for point in starts.points[ALL_ROWS]]
    cells = [cells for site in sites.values() if (cells := site.folds.cells) is not None]
    if cells:
        data = replace(data, features=replace(data.features, cells=pool_cells(cells, data.clients)))
    dataset = replace(plan.shared_options, load_from_sites=lambda: data, digest="pooled")
    options = replace(plan.selection, range=[min(path), max(path)])
    with tempfile.TemporaryDirectory() as scratch:
        pooled = plan_selection(replace(plan.experiment, data=dataset), options, scratch, plan.selection.metric)
    fits = {}
    for name in pooled.study.subsets:
        experiment = resolve_numbers(pooled.study.experiment, starts.points[name][0])
        with use_precision(experiment.settings.precision):
            engine = build_engine(experiment, pooled.study.take_subset(name).data)
            fits[name] = fit_batch(experiment, engine, starts.points[name])
    choice = pooled.conclude(fits).choice
    pairs = {}
    for name, fit in fits.items():
        over_sites = PathFit.load(folder / FITS / f"{name}.npz")
        if over_sites is None:
            raise UserError(f"{folder / FITS} lacks {name}.npz: run the trial again, in another folder")
        pairs[name] = (fit, over_sites)
    chosen = np.abs(np.array(path) - read_json(folder / SELECTION_FILE)["chosen"]).argmin()
    folds = [pair for name, pair in pairs.items() if name != ALL_ROWS]
    curves = [[fit.metrics[pooled.metric] for fit in side] for side in zip(*folds, strict=True)]
    solution, other_solution = (fit.solution for fit in pairs[ALL_ROWS])
    return Comparison(
        False,
        float(np.max([_difference(solution[name], values) for name, values in other_solution.items()])),
        starts.bytes_sent,
        same_choice=bool(chosen == choice.chosen_index),
        curve=_difference(*(np.mean(scores, axis=0) for scores in curves)),
    )


def _difference(one: np.ndarray, two: np.ndarray) -> float:
    """Return the relative difference of two arrays without the entries that are NaN in both."""
    is_number = ~(np.isnan(one) & np.isnan(two))
    return relative_difference(np.where(is_number, one, 0.0), np.where(is_number, two, 0.0))


def relative_difference(one: np.ndarray, two: np.ndarray) -> float:
    """Return the largest difference of two arrays, relative to the largest number of both.

    The difference is NaN if a number is not finite.
    """
    values = np.array([one, two], np.float64)
    if not np.isfinite(values).all():
        return np.nan
    return float(np.abs(values[0] - values[1]).max() / (np.abs(values).max() or 1.0))


def mask_sites(sites: Mapping[str, Site]) -> "dict[str, MaskedSite]":
    """Return the sites of a trial with masks. Their keys are drawn for the trial, and each site knows those of all."""
    from fcorun.sites.site.masking import MaskedSite, fingerprint_of, make_key, public_key_of

    keys = {name: make_key() for name in sites}
    fingerprints = {name: fingerprint_of(public_key_of(key)) for name, key in keys.items()}
    masked = {}
    for name, site in sites.items():
        others = {other: fingerprint for other, fingerprint in fingerprints.items() if other != name}
        masked[name] = MaskedSite(site, keys[name], others)
    return masked


def pool_rows(parts: list[FederatedData], clients: tuple[str, ...]) -> FederatedData:
    """Return the training rows of all sites as one data set, with its clients in this order."""
    columns: dict[str, list] = {column.name: [] for column in fields(Rows)}
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
