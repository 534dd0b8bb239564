"""The sums over the rows of sites from which scores follow: of all sites together, and of each site where asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.record import SHARED
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.site_rows import SiteRows
from fcorun.methods.objectives.objective import Objective
from fcorun.results.models.score_functions import Arrays
from fcorun.results.models.site_sum_checks import (
    calibration_sums_fit,
    check_sums,
    expected_sums,
    parse_sum_name,
    set_prefix,
)
from fcorun.results.scores.auc_interval import BINS, N_BINS, spread_cells
from fcorun.results.scores.weighted_rows import Sums

_SPLITS = ("train", "validation", "test")
SumArrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class ScoredSet(Sums):
    """The sums of a model over a set of rows.

    Attributes:
        split: train, validation or test.
        model: SHARED or PERSONAL.
        site: the name of the site whose rows these are; empty for the rows of all sites.
        sites: the senders of the sums: names of sites, or the one name of secure sums.
        sums: the sums by name.
        fitted: what further requests have added: sums of squares around means, or the calibration of two classes.
    """

    split: str
    model: str
    site: str
    sites: tuple[str, ...]
    sums: SumArrays
    fitted: Mapping[str, np.ndarray | float] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        return int(self.sums["n"])

    @property
    def key(self) -> str:
        """The name of the set in a message."""
        return set_prefix(self.split, self.model)

    @property
    def n(self) -> np.ndarray:
        return np.asarray(float(self.n_rows))

    @property
    def has_probabilities(self) -> bool:
        has_classes = "positive" in self.sums or "class_rows" in self.sums
        return "brier" in self.sums or not has_classes

    def __getitem__(self, name: str) -> np.ndarray:
        value = self.fitted[name] if name in self.fitted else self.sums[name]
        return np.asarray(value, float)


def collect_counts(data: FederatedData, rows: SiteRows, solution: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts of the scores of the positive and of the negative validation rows of all sites.

    Each has two rows, (2, bins): sites merge bins of few rows, so that a score is counted in the lowest bin that it may
    come from, and in the highest one. Only sites that have evaluated the last model are asked. Raises
    UserError, which names the site, for counts that the rows which the site has described cannot have.
    """
    answers = rows.request_present("score_counts", 0, of=_with_last_model(rows), arrays=dict(solution))
    assert isinstance(data.validation, SiteRows)
    shape = (N_BINS,) if rows.sum_name is None else (2, N_BINS)
    total = np.zeros((2, 2, N_BINS), np.int64)
    for site in sorted(answers):
        n_rows = data.validation.rows_of_answer.get(site, 0)
        counts = answers[site].arrays
        if set(counts) != (set(BINS) if n_rows else set()):
            raise _invalid_counts_error(site, n_rows)
        placed = []
        for name in BINS if n_rows else ():
            values = counts[name]
            if values.shape != shape or values.dtype.kind != "i" or (values < 0).any():
                raise _invalid_counts_error(site, n_rows)
            placed.append(values if values.ndim == 2 else np.stack(spread_cells(values)))
        if n_rows:
            total += np.stack(placed)
            if (np.sum(placed, axis=(0, 2)) != n_rows).any():
                raise _invalid_counts_error(site, n_rows)
    return total[0], total[1]


def _invalid_counts_error(site: str, n_rows: int) -> UserError:
    return UserError(f"site '{site}' sent invalid counts of the scores of its {n_rows} validation rows: see the "
                     "log of that site")  # fmt: skip


def collect_sums(
    data: FederatedData,
    objective: Objective,
    rows: SiteRows,
    solution: Arrays,
    models: Sequence[str],
    edge: float | None = None,
) -> list[ScoredSet]:
    """Return the sums of each split at the last models, SHARED, PERSONAL or both.

    Personal models have sums of the rows of clients with training rows. Rows are flagged from the score ``edge`` on, or
    from the plan's fixed threshold on where ``edge`` is None.
    Raises UserError, which names the site, for sums that the rows which the site has described cannot have.
    """
    about = {} if edge is None else {"about": {"edge": edge}}
    answers = rows.request_present("scores", 0, of=_with_last_model(rows), arrays=dict(solution), **about)
    if rows.away is not None:
        rows.absences.note("scores", 0, rows.sites, tuple(answers))
    expected = expected_sums(objective, data.target_task, len(data.classes), secure=rows.sum_name is not None)
    sums_of = {site: _by_set(site, answers[site].arrays, models) for site in sorted(answers)}
    sets = []
    for split, model in product(data.splits, models):
        key, parts = set_prefix(split, model), {}
        for site, n_rows in _count_rows(data, split, model).items():
            if n_rows and site in sums_of:
                parts[site] = sums_of[site].get(key, {})
                error = rows.sum_errors.get("scores", 0.0)
                check_sums(site, key, parts[site], expected, n_rows=n_rows, error=error)
        if not parts:
            continue
        if data.target_task.has_two_classes:
            for site, sums in parts.items():
                _spread_merged_bins(site, sums)
        total = {name: np.sum([sums[name] for sums in parts.values()], axis=0) for name in expected}
        sets.append(ScoredSet(split, model, "", tuple(parts), total))
        if rows.by_site:
            sets += [ScoredSet(split, model, site, (site,), sums) for site, sums in parts.items()]
    return sets


def _count_rows(data: FederatedData, split: str, model: str) -> dict[str, int]:
    """Return the number of rows of a split that a model predicts, by the sorted names of the answers."""
    rows = data.splits[split]
    assert isinstance(rows, SiteRows)
    trains = np.arange(len(rows.all_sizes)) < data.n_clients
    counts = rows.sum_by_answer(rows.all_sizes if model == SHARED else np.where(trains, rows.all_sizes, 0))
    return dict(sorted(counts.items()))


def _with_last_model(rows: SiteRows) -> tuple[str, ...] | None:
    """Return the sites that have evaluated the last model; None for all."""
    return None if rows.away is None else rows.absences.evaluated


def _by_set(site: str, arrays: Mapping[str, np.ndarray], models: Sequence[str]) -> dict[str, SumArrays]:
    """Return the sums of a site by the keys of the sets. Raises UserError, which names the site, for other names."""
    sums: dict[str, SumArrays] = {}
    for key, values in arrays.items():
        split, model, name = parse_sum_name(key)
        if split not in _SPLITS or model not in models:
            raise UserError(f"site '{site}' sent no sum of scores as '{key}': see the log of that site")
        sums.setdefault(set_prefix(split, model), {})[name] = values
    return sums


def _spread_merged_bins(site: str, sums: SumArrays) -> None:
    """Replace counts of scores in bins by those in the lowest, and in the highest, bin of each score, (2, bins).

    Raises UserError, which names the site, for counts that are not those of the classes.
    """
    n_positive = int(sums["positive"])
    for name, n_rows in zip(BINS, (n_positive, int(sums["n"]) - n_positive), strict=True):
        if sums[name].ndim == 1:  # secure counts are placed by the sites
            sums[name] = np.stack(spread_cells(sums[name]))
        for n_counted in sums[name].sum(axis=1).tolist():
            if n_counted != n_rows:
                raise UserError(f"site '{site}' counted the scores of {n_counted} rows of a class of {n_rows}: see the "
                                "log of that site")  # fmt: skip


def request_calibration_sums(
    rows: SiteRows, sets: Sequence[ScoredSet], points: Sequence[np.ndarray], shape: tuple[int, ...]
) -> list[np.ndarray]:
    """Return the sums of a calibration of each set, of this ``shape``.

    ``points`` are the numbers that a request sends for each set: ``CalibrationSearch.point`` of two classes, or the
    unit and the means of a regression.

    A site is asked at the points of all sites' rows and, where results by site are asked for, of its own. Raises
    UserError, which names the site, for answers of other names or shapes, and AnswersMissing if a site is away.
    """
    totals = [np.zeros(shape) for _ in sets]
    for site, answer, of_site in _ask_each(rows, sets, points):
        expected: dict[str, list[int]] = {}
        for k in of_site:
            expected.setdefault(sets[k].key, []).append(k)
        if set(answer.arrays) != set(expected):
            raise _invalid_sums_error(site)
        for key, indices in expected.items():
            values = answer.arrays[key]
            if values.shape != (len(indices), *shape) or values.dtype != np.float64:
                raise _invalid_sums_error(site)
            error = rows.sum_errors.get("calibration", 0.0)
            for k, sums in zip(indices, values, strict=True):
                if not calibration_sums_fit(sums, sets[k].n_rows, error):
                    raise _invalid_sums_error(site)
                totals[k] = totals[k] + sums
    return totals


def _ask_each(
    rows: SiteRows, sets: Sequence[ScoredSet], points: Sequence[np.ndarray]
) -> list[tuple[str, Any, list[int]]]:
    """Return the name and the answer of each site, and the numbers of the sets that the answer has sums of."""
    names = sorted({site for scored in sets for site in scored.sites})
    sets_of = {name: [k for k, scored in enumerate(sets) if name in scored.sites] for name in names}
    if not rows.by_site:
        arrays = {scored.key: point[None] for scored, point in zip(sets, points, strict=True)}
        answers = rows.request_all_or_none("calibration", 0, of=None if rows.away is None else names, arrays=arrays)
        return [(name, answers[name], sets_of[name]) for name in names]
    asked = []
    for name in names:
        by_set: dict[str, list[np.ndarray]] = {}
        for k in sets_of[name]:
            by_set.setdefault(sets[k].key, []).append(points[k])
        arrays = {key: np.stack(of_set) for key, of_set in by_set.items()}
        answers = rows.request_all_or_none("calibration", 0, of=[name], arrays=arrays)
        asked.append((name, answers[name], sets_of[name]))
    return asked


def _invalid_sums_error(site: str) -> UserError:
    return UserError(f"site '{site}' sent invalid sums of a calibration: see the log of that site")
