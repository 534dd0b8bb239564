"""Fills and levels that the training rows of a fold teach, from counts and sums of all sites, as on pooled rows.

A site sends for each column what ``fcorun.data.tables.scaling`` needs of its rows that the fold trains on: sums and
numbers of values, or their histogram; counts of levels; and numbers of gaps that have an indicator. The server returns
the fill of each column, and which of its features tell anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.sites import Sites
from fcorun.data.tables.column_statistics import count_values, sum_in_order, sum_values
from fcorun.data.tables.encoding import Column, Encoding, MissingPolicy
from fcorun.data.tables.scaling import Scaling
from fcorun.data.tables.training_cells import ColumnFit, TrainingCells, fit_levels, read_cells
from fcorun.sites.plan.table_options import HISTOGRAM_BINS
from fcorun.sites.tables.fold_histograms import FoldHistogram
from fcorun.sites.tables.table_agreement import Agreement
from fcorun.sites.tables.table_checks import check_gaps
from fcorun.sites.tables.table_data import encode_table
from fcorun.sites.tables.table_description import find_bins, median_edges
from fcorun.sites.tables.table_rows import SiteTable

FILLS, INFORMATIVE = "fills", "informative"  # the arrays of requests
_NO_FILL = -1.0  # of levels whose gaps are not filled
Arrays = dict[str, np.ndarray]


def learnt_columns(encoding: Encoding, missing: MissingPolicy) -> tuple[Column, ...]:
    """Return the columns whose features depend on the rows that are trained on."""
    return tuple(column for column in encoding.columns if column.kind == "levels" or missing != "refuse")


@dataclass(frozen=True, eq=False)
class FoldCells:
    """The cells of a site's N training rows in the learnt columns.

    Attributes:
        table: the site's table.
        site_data: the site's rows by themselves.
        cells: the cells, which no rows have taught a fit.
        few_gaps: the columns with a gap in fewer than ``min_cell`` rows of a client in a fold, or outside. These rows
            have the number or the level that fills the gaps of all rows in each fold: sums of two folds with different
            fills would differ by these rows, and counts of levels would tell how few they are.
        histograms: the histograms of the columns of numbers, for medians.
    """

    table: SiteTable
    site_data: FederatedData
    cells: TrainingCells
    few_gaps: frozenset[str] = frozenset()
    histograms: Mapping[str, FoldHistogram] = field(default_factory=dict)

    @classmethod
    def read(
        cls, table: SiteTable, agreement: Agreement, site_data: FederatedData, fold: Int[np.ndarray, " N"]
    ) -> "FoldCells | None":
        """Return the cells of the training rows, held out in these folds; None without learnt columns."""
        columns = learnt_columns(agreement.encoding, table.options.missing)
        if not columns:
            return None
        rows, client = site_data.train.row, site_data.train.client
        assert rows is not None
        assert client is not None
        x, gaps = encode_table(table, agreement).x[rows], agreement.encoding.find_gaps(table.rows.frame)
        first_feature, cells, position = {}, {}, 0
        for column in agreement.encoding.columns:
            if column in columns:
                has_gap = gaps[column.name][rows] if column.name in gaps else np.zeros(len(x), bool)
                first_feature[column.name] = position
                cells[column.name] = read_cells(column, x[:, position : position + len(column.features)], has_gap)
            position += len(column.features)
        learnt = TrainingCells(columns, first_feature, cells, client, missing=table.options.missing, fits={})
        few = set()
        for column in columns:
            if not column.indicator and column.fill is not None:
                counts = np.zeros((len(site_data.clients), int(fold.max(initial=0)) + 1), int)
                has_gap = learnt.find_gaps(column)
                np.add.at(counts, (client[has_gap], fold[has_gap]), 1)
                cells_of_gaps = np.concatenate([counts, counts.sum(axis=1, keepdims=True) - counts])
                if ((cells_of_gaps > 0) & (cells_of_gaps < table.policy.min_cell)).any():
                    few.add(column.name)
        histograms = {}
        if table.options.missing == "median":
            for column in columns:
                if column.kind == "number":
                    bins = find_bins(table, cells[column.name], column.name)
                    histograms[column.name] = FoldHistogram.join(bins, fold, HISTOGRAM_BINS, table.policy.min_cell)
        return cls(table, site_data, learnt, frozenset(few), histograms)

    def count(self, selected: Bool[np.ndarray, " N"]) -> Arrays:
        """Return the counts and sums of the selected rows; sums and numbers of values for each client, (M, k)."""
        numbers = [column for column in self.cells.columns if column.kind == "number"]
        client, n_clients = self.cells.client[selected], len(self.site_data.clients)
        values = np.empty((int(selected.sum()), len(numbers)))
        for j, column in enumerate(numbers):
            values[:, j] = self.cells.cells[column.name][selected]
        levels, gaps = [np.empty(0, np.int64)], []
        for column in self.cells.columns:
            has_gap = self.cells.find_gaps(column)[selected]
            if column.kind == "levels":
                of_rows = self.cells.cells[column.name][selected].copy()
                if column.name in self.few_gaps:
                    of_rows[has_gap], has_gap = column.levels.index(str(column.fill)), np.zeros_like(has_gap)
                levels.append(np.bincount(of_rows[~has_gap], minlength=len(column.levels)))
            gaps.append(int(has_gap.sum()) if column.indicator else 0)
        arrays = {"levels": np.concatenate(levels).astype(np.int64), "gaps": np.array(gaps, np.int64)}
        if self.table.options.missing == "median":
            histograms = np.zeros((len(numbers), HISTOGRAM_BINS), np.int64)
            for j, column in enumerate(numbers):
                histograms[j] = self.histograms[column.name].count(selected)
            return arrays | {"histograms": histograms}
        sums, counts = np.zeros((n_clients, len(numbers))), np.zeros((n_clients, len(numbers)), np.int64)
        for m in np.unique(client).tolist():
            sums[m], counts[m] = sum_values(values[client == m]), count_values([values[client == m]])
        return arrays | {"sums": sums, "values": counts}

    def encode(self, request: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the features of all training rows with the fills and levels of a request, in the scale of the data.

        Raises UserError for fills that mark rows, and ValueError for what are no fills.
        """
        standardized = self.site_data.features.standardized or {}
        scaling = Scaling.from_dict(standardized) if standardized.get("by") == "pooled" else None
        x = self.site_data.train.x.copy()
        for position, values in self.cells.encode(self._read_fits(request)).items():
            if scaling is not None:
                values = (values - scaling.mean[position]) * scaling.factor[position]
            x[:, position] = values
        return x

    def _read_fits(self, request: Mapping[str, np.ndarray]) -> dict[str, ColumnFit]:
        columns = self.cells.columns
        fills, informative = request[FILLS], request[INFORMATIVE]
        n_features = [len(column.features) for column in columns]
        if fills.shape != (len(columns),) or fills.dtype != np.float64 or not np.isfinite(fills).all():
            raise ValueError("no fills")
        if informative.shape != (sum(n_features),) or informative.dtype != bool:
            raise ValueError("no features of a fold")
        fits = {}
        flags = np.split(informative, np.cumsum(n_features)[:-1])
        for column, fill, of_column in zip(columns, fills.tolist(), flags, strict=True):
            is_informative = tuple(of_column.tolist())
            if column.kind == "number":
                check_gaps(self.table, replace(column, fill=fill))
                if column.name in self.few_gaps:
                    fill = float(column.fill)  # type: ignore[arg-type]
                fits[column.name] = ColumnFit(fill, is_informative)
                continue
            if fill != _NO_FILL and fill not in range(len(column.levels)):
                raise ValueError("no level")
            level = None if fill == _NO_FILL else column.levels[int(fill)]
            if column.name in self.few_gaps and level != column.fill:
                raise UserError(f"the server fills gaps of '{column.name}' in a fold by another level than in all "
                                "rows, which would tell the few rows with a gap: plan fewer folds, another "
                                f"data.missing, or data.ignore=[{column.name}]")  # fmt: skip
            fits[column.name] = ColumnFit(None if fill == _NO_FILL else int(fill), is_informative)
        return fits


def pool_cells(parts: Sequence[FoldCells], clients: Sequence[str]) -> TrainingCells:
    """Return the cells of the training rows of all sites, sorted by client in this order, for a trial."""
    numbers = []
    for part in parts:
        number = np.array([clients.index(name) for name in part.site_data.clients], np.int64)
        numbers.append(number[part.cells.client])
    client = np.concatenate(numbers)
    order = np.argsort(client, kind="stable")
    names = parts[0].cells.cells
    cells = {name: np.concatenate([part.cells.cells[name] for part in parts])[order] for name in names}
    pooled = replace(parts[0].cells, cells=cells, client=client[order])
    return replace(pooled, fits=pooled.fit(np.ones(len(client), bool)))


def count_shapes(columns: tuple[Column, ...], missing: MissingPolicy, n_clients: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of ``FoldCells.count`` for a site with so many clients with training rows."""
    n_numbers = sum(column.kind == "number" for column in columns)
    n_levels = sum(len(column.levels) for column in columns if column.kind == "levels")
    shapes: dict[str, tuple[int, ...]] = {"levels": (n_levels,), "gaps": (len(columns),)}
    if missing == "median":
        return shapes | {"histograms": (n_numbers, HISTOGRAM_BINS)}
    return shapes | dict.fromkeys(("sums", "values"), (n_clients, n_numbers))


def fit_fold(columns: tuple[Column, ...], options: Sites, counts: Arrays) -> Arrays:
    """Return the fills and the features that tell anything, from the counts of all sites.

    Args:
        counts: the arrays of ``FoldCells.count``, added up over the sites; ``sums`` and ``values`` have the clients of
            all sites in order, (M, k).

    Raises UserError for a column without a value in these rows.
    """
    fills, informative = [], []
    number, level = 0, 0
    for column, n_gaps in zip(columns, counts["gaps"].tolist(), strict=True):
        if column.kind == "number":
            fills.append(_fill_number(column.name, options, counts, number))
            informative += [True, n_gaps > 0] if column.indicator else [True]
            number += 1
            continue
        of_levels = counts["levels"][level : level + len(column.levels)]
        if not of_levels.any():
            raise _no_value(column.name)
        fit = fit_levels(column, of_levels, column.indicator and n_gaps > 0, options.missing)
        fills.append(_NO_FILL if fit.fill is None else float(fit.fill))
        informative += fit.informative
        level += len(column.levels)
    return {FILLS: np.array(fills, np.float64), INFORMATIVE: np.array(informative, bool)}


def _fill_number(name: str, options: Sites, counts: Arrays, j: int) -> float:
    if options.missing == "median":
        histogram, edges = counts["histograms"][j], median_edges(options.ranges, name)
        if not histogram.any():
            raise _no_value(name)
        middle = int(np.searchsorted(np.cumsum(histogram), histogram.sum() / 2))
        return float(edges[middle : middle + 2].mean())
    sums: Float[np.ndarray, "M 1"] = counts["sums"][:, [j]]
    n_values = int(counts["values"][:, j].sum())
    if not n_values:
        raise _no_value(name)
    return float(sum_in_order(sums)[0] / n_values)


def _no_value(name: str) -> UserError:
    return UserError(f"column '{name}' has no value in the rows that are left in a fold: data.ignore=[{name}] leaves "
                     "it out, and fewer folds may help")  # fmt: skip
