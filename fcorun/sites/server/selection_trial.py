"""The trial of a selection: all sites in this process, compared with the selection on the rows in one place."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.formats import read_json
from fcorun.base.records.record import SELECTION_FILE
from fcorun.base.system.machine import use_precision
from fcorun.experiment.build import build_engine
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.runs.job import Watcher
from fcorun.sites.plan.messages.shelf import list_kinds
from fcorun.sites.plan.plan import Plan
from fcorun.sites.server.site_study import mask_sites, pool_rows, relative_difference, run_plan, share_programs
from fcorun.sites.site.site import Site
from fcorun.sites.site.site_batch import resolve_numbers
from fcorun.sites.tables.fold_encoding import pool_cells
from fcorun.sites.transport.connections import InProcessConnections, Request
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.fitting import fit_batch
from fcorun.studies.selection.path import find_path_parameter
from fcorun.studies.selection.path_fit import PathFit
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import ALL_ROWS
from fcorun.studies.selection.study import FITS, Log


@dataclass(frozen=True)
class SelectionComparison:
    """The comparison of a trial with the same selection on the rows of all sites in one place.

    Attributes:
        same_choice: whether both choose the same value of the path.
        curve: the largest difference of a mean score, relative to the largest score.
        coefficients: the largest difference of a parameter on the path, relative to the largest entry of that
            parameter, weights or bias.
        bytes_sent: the bytes that each site sent.
    """

    same_choice: bool
    curve: float
    coefficients: float
    bytes_sent: dict[str, int]

    def describe(self) -> list[str]:
        """Return the comparison as sentences."""
        choice = "the same choice" if self.same_choice else "another choice"
        sent = ", ".join(f"{site} {count / 1e6:.3g} MB" for site, count in self.bytes_sent.items())
        return [
            f"compared with the selection on all rows in one place: {choice}",
            f"scores equal but for {self.curve:.1g} of the largest, coefficients but for {self.coefficients:.1g}",
            f"sent by each site: {sent}",
        ]


def try_selection(
    plan: Plan,
    sites: Mapping[str, Site],
    folder: str | Path,
    watch: Watcher | None = None,
    log: Log = lambda line: None,
) -> tuple[FittedRecord, SelectionComparison]:
    """Compute a plan with all sites in this process, and compare the selection with that of the pooled rows.

    Raises UserError if the folder holds a finished trial.
    """
    folder = Path(folder)
    if read_json(folder / SELECTION_FILE).get("status") == "done":
        raise UserError(f"{folder} holds this trial already: read its record, or give another folder, out=DIR")
    for path in (folder / FITS).glob("*"):  # of an interrupted trial, whose sites are gone
        path.unlink()
    share_programs(sites)
    starts = RecordedStarts(sites if not plan.is_masked else mask_sites(sites), plan.digest[:16])
    record = run_plan(plan, starts, folder, watch, log)
    return record, _compare(plan, sites, starts, folder)


class RecordedStarts(InProcessConnections):
    """Connections that keep the numbers of the runs that the server began on each subset."""

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


def _compare(plan: Plan, sites: Mapping[str, Site], starts: RecordedStarts, folder: Path) -> SelectionComparison:
    """Compute the selection on the rows in one place with the numbers of the trial, and compare the two."""
    parameter = find_path_parameter(plan.experiment)
    path = [point["reg"][parameter] for point in starts.points[ALL_ROWS]]
    first = next(iter(sites.values()))
    data = pool_rows([site.own_data for site in sites.values()], first.data.clients)
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
    return SelectionComparison(
        same_choice=bool(chosen == choice.chosen_index),
        curve=_difference(*(np.mean(scores, axis=0) for scores in curves)),
        coefficients=float(np.max([_difference(solution[name], other_solution[name]) for name in solution])),
        bytes_sent=starts.bytes_sent,
    )


def _difference(one: np.ndarray, two: np.ndarray) -> float:
    """Return the relative difference of two arrays without the entries that are NaN in both."""
    is_number = ~(np.isnan(one) & np.isnan(two))
    return relative_difference(np.where(is_number, one, 0.0), np.where(is_number, two, 0.0))
