"""The description of a site's table: names, counts and sums, from which the server makes the encoding of all sites.

A description has no least or largest values, no quantiles and no row. Its size does not depend on the number of rows.
Columns are described as those of a pooled table are; then rare levels and small cells are hidden.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.datasets.sites import Sites
from fcorun.data.tables.cells import is_missing
from fcorun.data.tables.columns import Column, SplineColumn
from fcorun.data.tables.columns.column import ColumnDescription, Histogram
from fcorun.data.tables.splits import SPLITS
from fcorun.sites.plan.patients import Patients
from fcorun.sites.plan.site_options import HISTOGRAM_BINS, for_owner_alone
from fcorun.sites.tables.table_rows import SiteTable
from fcorun.sites.transport.messages import Message, describing_damage

OUTERMOST = 1 / 40  # the share of rows beyond the outermost knot of any spline
_NO_VALUES = "empty"  # the kind of a column without a value at a site, which fits any other kind


@dataclass(frozen=True)
class Description:
    """The description of one site's table.

    Attributes:
        clients: the names of the site's M clients.
        n_rows, weights: the numbers of training, validation and test rows of each client, and the sums of the rows'
            weights, (M, 3).
        kinds: the k columns before a fit, in the order of the file; None: the column has no value at the site.
        columns: the description of each column: sums by the name of the client where fills need means, histograms
            where they need medians or knots, and the levels that are not rare (``SiteTable.rare_levels``).
        is_constant: whether a column has one value in training rows, be it that rows of a rare value take the other.
        n_values: the training rows of each client with a value of each column of numbers, (M, k'); without columns if
            no fill needs them.
        n_rare: the training rows of all rare levels, by column of levels.
        labels: the labels of the training rows; empty for a regression.
        label_counts: their training rows.
    """

    clients: list[str]
    n_rows: np.ndarray
    weights: np.ndarray
    kinds: dict[str, Column | None]
    columns: dict[str, ColumnDescription]
    is_constant: dict[str, bool]
    n_values: np.ndarray
    n_rare: dict[str, int]
    labels: list[Any]
    label_counts: np.ndarray

    def to_message(self) -> Message:
        """Return the description as a message, whose counts and sums are arrays of fixed width."""
        numbers = [self.columns[name] for name in _names_of_numbers(self.kinds)]
        levels = {}
        level_counts = [np.empty(0)]
        for name, n_rare in self.n_rare.items():
            counts = self.columns[name].level_counts
            levels[name] = sorted(counts)
            level_counts.append(np.array([*(counts[level] for level in levels[name]), n_rare]))
        sums = np.zeros(self.n_values.shape)
        for j in range(self.n_values.shape[1]):
            sums[:, j] = [numbers[j].sums.get(client, 0.0) for client in self.clients]
        histograms = [column.histogram.counts for column in numbers if column.histogram is not None]
        kinds = {name: _NO_VALUES if column is None else column.kind for name, column in self.kinds.items()}
        about = {
            "clients": self.clients,
            "columns": [[name, kind] for name, kind in kinds.items()],
            "levels": levels,
            "labels": self.labels,
        }
        arrays = {
            "rows": self.n_rows.astype(np.int64),
            "weights": self.weights.astype(np.float64),
            "gaps": np.array([self.columns[name].has_gaps for name in self.kinds], bool),
            "constant": np.array([self.is_constant[name] for name in self.kinds], bool),
            "levels": np.concatenate(level_counts).astype(np.int64),
            "labels": self.label_counts.astype(np.int64),
            "sums": sums,
            "values": self.n_values.astype(np.int64),
            "histograms": np.array(histograms, np.int64).reshape(-1, HISTOGRAM_BINS),
        }
        return Message("describe", about, arrays)

    @classmethod
    def from_message(cls, message: Message, site: str, options: Sites) -> "Description":
        """Return the description in a site's message. Raises UserError, which names the site, for another content."""
        with describing_damage(f"site '{site}' sent no description of a table"):
            return cls._parse(message.about, message.arrays, options)

    @classmethod
    def _parse(cls, about: dict[str, Any], arrays: dict[str, np.ndarray], options: Sites) -> "Description":
        table = options.as_table("", None)
        kinds: dict[str, Column | None] = {}
        for name, kind in about["columns"]:
            kinds[str(name)] = None if kind == _NO_VALUES else table.make_column(kind, str(name))
        all_levels = {str(name): list(map(str, levels)) for name, levels in about["levels"].items()}
        levels = {name: all_levels[name] for name, column in kinds.items() if column is not None and column.has_levels}
        clients = list(map(str, about["clients"]))
        numbers = _names_of_numbers(kinds)
        ends = np.cumsum([len(names) + 1 for names in levels.values()], dtype=int)
        shapes = {
            "rows": (len(clients), len(SPLITS)),
            "weights": (len(clients), len(SPLITS)),
            "gaps": (len(kinds),),
            "constant": (len(kinds),),
            "levels": (int(ends[-1]) if len(ends) else 0,),
            "labels": (len(about["labels"]),),
        }
        for name, shape in shapes.items():
            array = arrays[name]
            if array.shape != shape or (array.dtype.kind == "f" and not np.isfinite(array).all()) or (array < 0).any():
                raise ValueError(f"its array '{name}' has another shape, or numbers that are no counts")
        sums = arrays["sums"]
        n_values = arrays["values"]
        histograms = arrays["histograms"]
        for name in ("sums", "values"):
            if arrays[name].shape not in ((len(clients), len(numbers)), (len(clients), 0)):
                raise ValueError(f"its array '{name}' has another shape")
        in_bins = [name for name, column in kinds.items() if column is not None and column.needs_bins(options.missing)]
        if histograms.shape != (len(in_bins), HISTOGRAM_BINS):
            raise ValueError("its array 'histograms' has another shape")
        has_gaps = dict(zip(kinds, arrays["gaps"].tolist(), strict=True))
        columns = {name: ColumnDescription(bool(gaps)) for name, gaps in has_gaps.items()}
        for j, name in enumerate(numbers):
            if sums.shape[1] and n_values.shape[1]:
                client_sums = dict(zip(clients, sums[:, j].tolist(), strict=True))
                columns[name] = replace(columns[name], n_values=int(n_values[:, j].sum()), sums=client_sums)
        for name, counts in zip(in_bins, histograms, strict=True):
            histogram = Histogram(bin_edges(options.ranges, name), counts)
            n_values_of_column = columns[name].n_values or int(counts.sum())  # of sums, where a fill needs means
            columns[name] = replace(columns[name], n_values=n_values_of_column, histogram=histogram)
        n_rare = {}
        for name, end in zip(levels, ends.tolist(), strict=True):
            *counts, n_rare[name] = arrays["levels"][end - len(levels[name]) - 1 : end].tolist()
            level_counts = Counter(dict(zip(levels[name], counts, strict=True)))
            columns[name] = replace(columns[name], n_values=level_counts.total(), level_counts=level_counts)
        return cls(
            clients=clients,
            n_rows=arrays["rows"],
            weights=arrays["weights"],
            kinds=kinds,
            columns=columns,
            is_constant=dict(zip(kinds, arrays["constant"].tolist(), strict=True)),
            n_values=n_values,
            n_rare=n_rare,
            labels=list(about["labels"]),
            label_counts=arrays["labels"],
        )


def _names_of_numbers(kinds: dict[str, Column | None]) -> list[str]:
    return [name for name, column in kinds.items() if column is not None and column.has_numbers]


def describe_table(table: SiteTable) -> Message:
    """Return the description of a site's table. Raises UserError where the policy forbids to answer."""
    missing = table.options.missing
    training = table.masks[0]
    rows = table.client_rows.training
    columns = {}
    is_constant = {}
    n_rare = {}
    for name, column in table.kinds.items():
        series = table.columns[name]
        if column is None:
            columns[name] = ColumnDescription(bool(training.any()))
            is_constant[name] = False
            continue
        with for_owner_alone(f"column '{name}' has infinite values: mend them or drop their rows"):
            description = column.describe(series, rows, missing, "the table of this site")
        present = column.read_values(series)[training & ~is_missing(series)]
        is_constant[name] = bool(len(present)) and bool((present == present[0]).all())
        if column.has_levels:
            rare = table.rare_levels[name]
            n_rare[name] = sum(description.level_counts[level] for level in rare)
        columns[name] = hide_small_cells(table, name, description)
    labels: list[Any] = []
    label_counts: Any = []
    if table.options.target_task.has_classes:
        unique, label_counts = np.unique(table.rows.y[training], return_counts=True)
        labels = unique.tolist()
    numbers = table.number_columns if missing in ("mean", "indicator") else []
    n_values = [table.n_rows[:, 0] - table.gap_counts[name][:, 0] for name in numbers]
    description = Description(
        clients=table.clients,
        n_rows=table.n_rows,
        weights=table.weights,
        kinds=table.kinds,
        columns=columns,
        is_constant=is_constant,
        n_values=np.array(n_values, np.int64).reshape(-1, len(table.clients)).T,
        n_rare=n_rare,
        labels=labels,
        label_counts=np.asarray(label_counts, np.int64),
    )
    return description.to_message()


def fit_curve(table: SiteTable, column: SplineColumn) -> SplineColumn:
    """Return a spline fitted to the training rows of this site alone. Raises UserError where they do not suffice."""
    where = "the table of this site"
    description = column.describe(table.columns[column.name], table.client_rows.training, table.options.missing, where)
    return column.fit(description, table.options.missing, where)


def hide_small_cells(table: SiteTable, name: str, description: ColumnDescription) -> ColumnDescription:
    """Return the description of a column as it may leave the site.

    Numbers are counted in bins between the bounds of ``ranges``, none of which has fewer than ``policy.min_cell``
    patients; rare levels are left out. Sums go by the names of clients. Raises UserError for bounds outside of which
    the knots or the median of the numbers lie.
    """
    histogram = None
    level_counts = description.level_counts
    if description.numbers is not None:
        bins = find_bins(table, description.numbers, name)
        n_outside = count_outside(table, name)
        limit = OUTERMOST if name in (table.options.splines or {}) else 0.5
        if n_outside >= max(limit * len(bins), table.policy.min_cell):
            raise UserError(f"of the numbers of '{name}' in training rows of this site, {100 * limit:g} % or more lie "
                            f"outside of data.ranges={{{name}: {table.options.ranges[name]}}} and would move "  # type: ignore[index]
                            "knots or medians: plan wider bounds, or mend the file if its unit is another"
                            )  # fmt: skip
        rows = table.client_rows.sort_rows(0)  # the order of the numbers
        has_number = ~np.isnan(table.read_numbers(name)[rows])
        patients = table.patients.unweighted.take(rows[has_number])
        counts = center_cells(bins, HISTOGRAM_BINS, table.policy.min_cell, patients)
        histogram = Histogram(bin_edges(table.options.ranges, name), counts)
    if name in table.level_counts:
        rare = table.rare_levels[name]
        level_counts = Counter({level: count for level, count in level_counts.items() if level not in rare})
    sums = {table.clients[int(m)]: total for m, total in description.sums.items()}
    return replace(description, sums=sums, numbers=None, histogram=histogram, level_counts=level_counts)


def find_bins(table: SiteTable, values: np.ndarray, name: str) -> np.ndarray:
    """Return the bin of each value of a column, (N,); -1 of a gap, which is nan."""
    edges = bin_edges(table.options.ranges, name)
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, HISTOGRAM_BINS - 1)
    return np.where(np.isnan(values), -1, bins)


def count_outside(table: SiteTable, name: str) -> int:
    """Return how many training rows have a number outside the bounds of ``ranges``, which bins count at a bound."""
    low, high = bin_edges(table.options.ranges, name)[[0, -1]]
    numbers = table.read_numbers(name)[table.masks[0]]
    return int(((numbers < low) | (numbers > high)).sum())


def bin_edges(ranges: dict[str, list[float]] | None, name: str) -> np.ndarray:
    """Return the edges of the bins of a column. Raises UserError for a column without a range."""
    if name not in (ranges or {}):
        raise UserError(f"medians and splines count values in bins, and data.ranges has no bounds for '{name}': give "
                        f"data.ranges={{{name}: [LEAST, LARGEST]}} in the plan")  # fmt: skip
    low, high = (ranges or {})[name]
    return np.linspace(low, high, HISTOGRAM_BINS + 1)


def center_cells(bins: np.ndarray, n_bins: int, least: int, patients: Patients) -> np.ndarray:
    """Return the counts of ``merge_small_cells``, each at the mean bin of its rows, which moves no quantile up."""
    merged = merge_small_cells(bins, n_bins, least, patients)
    counts = np.bincount(bins, minlength=n_bins)
    cell = find_cells(merged)
    centered = np.zeros_like(merged)
    if merged.any():
        sums = np.bincount(cell, np.arange(len(counts)) * counts)
        centered[np.rint(sums / np.bincount(cell, counts)).astype(int)] = merged[merged > 0]
    return centered


def find_cells(merged: np.ndarray) -> np.ndarray:
    """Return the number of the cell of each bin, (B,), for the counts of ``merge_small_cells``, which end each cell."""
    ends = np.flatnonzero(merged)
    return np.minimum(np.searchsorted(ends, np.arange(len(merged))), len(ends) - 1)


def merge_small_cells(bins: np.ndarray, n_bins: int, least: int, patients: Patients) -> np.ndarray:
    """Return the counts of rows in bins, (B,), each cell empty or of at least so many patients.

    A smaller cell is added to the next ones until they are large enough; what is left at the end is added to the last
    cell that is. Where all rows together are few, no cell has any.

    Args:
        bins: the bin of each row, (n,).
        patients: the patients of these rows.
    """
    merged = np.zeros(n_bins, np.int64)
    order = np.argsort(bins, kind="stable")
    ends = np.flatnonzero(np.diff(bins[order], append=n_bins)) + 1
    start = 0
    last = None
    for end in ends.tolist():
        waiting = order[start:end]
        if patients.take(waiting).count(np.ones(len(waiting), bool)) >= least:
            last = bins[order[end - 1]]
            merged[last] = len(waiting)
            start = end
    if last is not None:
        merged[last] += len(bins) - start
    return merged
