"""The knowledge of folds at the server and at sites: numbers of rows, and levels of one fold, and gaps with indicators.

These are fitted from the sites' counts, as a pooled fit does. A site describes each learnt column by the rows that the
fold trains on, as ``fcorun.data.tables.columns`` describes it: counts of levels, and, of a column with an indicator of
gaps, sums and numbers of values and numbers of gaps. The server returns the fill of each of these columns, and which of
its features tell anything.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.data.rows.site_rows import SiteRows
from fcorun.data.tables.columns import Column, MissingPolicy
from fcorun.data.tables.columns.column import ColumnDescription, ColumnFit
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tables.imputation.training_cells import TrainingCells
from fcorun.sites.plan.site_options import FILLS, INFORMATIVE
from fcorun.sites.tables.table_agreement import Agreement, check_gaps, encode_table
from fcorun.sites.tables.table_rows import SiteTable

_NO_FILL = -1.0  # of levels whose gaps are not filled
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class FoldCounts:
    """The rows of M clients in K folds.

    Attributes:
        held_out: the number of rows of each client that each fold holds out, (M, K).
        held_out_weights: the sums of their weights, (M, K).
        train: the number of the other training rows of each client, (M, K).
        train_weights: the sums of their weights, (M, K).
    """

    held_out: Int[np.ndarray, "M K"]
    held_out_weights: Float[np.ndarray, "M K"]
    train: Int[np.ndarray, "M K"]
    train_weights: Float[np.ndarray, "M K"]

    @classmethod
    def count(cls, rows: Rows, fold: Int[np.ndarray, " N"], n_folds: int, n_clients: int) -> "FoldCounts":
        """Count the rows of a site's clients, of which ``fold`` is the fold that holds out each row."""
        columns: dict[str, list] = {"held_out": [], "held_out_weights": [], "train": [], "train_weights": []}
        for k in range(n_folds):
            for name, selected in (("held_out", fold == k), ("train", fold != k)):
                counts = np.bincount(rows.known_client[selected], minlength=n_clients)
                columns[name].append(counts)
                weights = counts.astype(np.float64)
                if rows.weight is not None:
                    present = counts > 0
                    if present.any():  # added as in a run
                        starts = (np.cumsum(counts) - counts)[present]
                        weights[present] = np.add.reduceat(rows.weight[selected], starts)
                columns[f"{name}_weights"].append(weights)
        return cls(**{name: np.stack(values, axis=1) for name, values in columns.items()})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], sizes: Int[np.ndarray, " M"], n_folds: int) -> "FoldCounts":
        """Return the counts of ``to_arrays`` for clients of these sizes. Raises ValueError for anything else."""
        values = {name: arrays[name] for name in ("held_out", "held_out_weights", "train", "train_weights")}
        for name, array in values.items():
            if array.shape != (len(sizes), n_folds) or array.dtype != (np.float64 if "weights" in name else np.int64):
                raise ValueError(f"'{name}' has another shape")
            if not np.isfinite(array).all() or (array < 0).any():
                raise ValueError(f"'{name}' holds no counts")
        counts = cls(**values)
        complete = counts.held_out.sum(axis=1) == sizes
        if not complete.all() or (counts.held_out + counts.train != sizes[:, None]).any():
            raise ValueError("the rows of a client in all folds are not those of the client")
        return counts

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the counts as arrays of a message."""
        return dict(vars(self))

    def take(self, clients: Any) -> "FoldCounts":
        """Return the counts of some clients, by a mask or by indices."""
        return FoldCounts(*(array[clients] for array in vars(self).values()))

    def equals(self, other: "FoldCounts") -> bool:
        """Return whether the counts are the same, and the weights but for rounding."""
        same_rows = np.array_equal(self.held_out, other.held_out) and np.array_equal(self.train, other.train)
        pairs = ((self.held_out_weights, other.held_out_weights), (self.train_weights, other.train_weights))
        return same_rows and all(np.allclose(one, two, rtol=1e-12, atol=0) for one, two in pairs)

    def split(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for the fold ``k`` the clients in the order of a fit, those with training rows first, (M,), and the
        numbers of their training, validation and test rows and the sums of their weights, (M, 3) each.
        """
        trains = self.train[:, k] > 0
        order = np.concatenate([np.flatnonzero(trains), np.flatnonzero(~trains)])
        none = np.zeros(len(order), np.int64)
        rows = np.stack([self.train[order, k], self.held_out[order, k], none], axis=1)
        weights = np.stack([self.train_weights[order, k], self.held_out_weights[order, k], none], axis=1)
        return order, rows, weights


def place_rows(site_data: FederatedData, names: list[str], rows: np.ndarray, weights: np.ndarray) -> FederatedData:
    """Return a site's own data among the clients of all sites.

    Args:
        names: the names of all clients, those with training rows first.
        rows, weights: the numbers of their training, validation and test rows, and the sums of their weights, (M, 3).
    """
    number = np.array([names.index(name) for name in (*site_data.clients, *site_data.held_out_clients)], int)
    n_clients = int((rows[:, 0] > 0).sum())

    def at_site(split_rows: Rows, split: int, n_known: int) -> SiteRows:
        columns: Any = {column.name: getattr(split_rows, column.name) for column in fields(Rows)}
        return SiteRows(
            **columns | {"client": number[split_rows.known_client]},
            all_sizes=rows[:n_known, split],
            all_weights=None if split_rows.weight is None else weights[:n_known, split],
        )

    validation = site_data.validation
    return replace(
        site_data,
        train=at_site(site_data.train, 0, n_clients),
        validation=None if validation is None else at_site(validation, 1, len(names)),
        test=None,
        clients=tuple(names[:n_clients]),
        held_out_clients=tuple(names[n_clients:]),
    )


def learnt_columns(encoding: Encoding) -> tuple[Column, ...]:
    """Return the columns whose features depend on the rows that are trained on.

    A gap without an indicator is filled, by one value in all folds: sums of two folds, or of two plans, with different
    fills would tell the rows with a gap.
    """
    return tuple(column for column in encoding.columns if column.has_levels or column.indicator)


@dataclass(frozen=True, eq=False)
class FoldCells:
    """The cells of a site's N training rows in the learnt columns.

    Attributes:
        table: the site's table.
        site_data: the site's rows by themselves.
        cells: the cells, which no rows have taught a fit. Gaps without an indicator are filled.
    """

    table: SiteTable
    site_data: FederatedData
    cells: TrainingCells

    @classmethod
    def read(
        cls, table: SiteTable, agreement: Agreement, encoding: Encoding, site_data: FederatedData
    ) -> "FoldCells | None":
        """Return the cells of the training rows, held out in these folds; None without learnt columns.

        The site's own ``encoding`` has its fills.
        """
        columns = learnt_columns(encoding)
        if not columns:
            return None
        rows = site_data.train.row
        client = site_data.train.known_client
        assert rows is not None
        x = encode_table(table, agreement, encoding).x[rows]
        gaps = encoding.find_gaps(table.rows.frame)
        first_feature = {}
        cells = {}
        position = 0
        for column in encoding.columns:
            if column in columns:
                has_gap = np.zeros(len(x), bool)
                if column.name in gaps and (column.indicator or column.fill is None):
                    has_gap = gaps[column.name][rows]
                first_feature[column.name] = position
                cells[column.name] = column.read_cells(x[:, position : position + len(column.features)], has_gap)
            position += len(column.features)
        learnt = TrainingCells(columns, first_feature, cells, client, missing=table.options.missing, fits={})
        return cls(table, site_data, learnt)

    def count(self, selected: Bool[np.ndarray, " N"]) -> Arrays:
        """Return the counts and sums of the selected rows; sums and numbers of values for each client, (M, k)."""
        missing = self.table.options.missing
        client = self.cells.client[selected]
        n_clients = len(self.site_data.clients)
        levels = [np.empty(0, np.int64)]
        gaps = []
        sums = []
        counts = []
        for column in self.cells.columns:
            cells = self.cells.cells[column.name][selected]
            has_gap = column.find_gaps(cells)
            if column.has_numbers:
                of_clients = column.describe_cells(cells, client, missing).sums
                sums.append([of_clients.get(m, 0.0) for m in range(n_clients)])
                counts.append(np.bincount(client[~has_gap], minlength=n_clients))
            if column.has_levels:
                of_levels = column.describe_cells(cells, client, missing).level_counts
                levels.append(np.array([of_levels[level] for level in column.levels]))
            gaps.append(int(has_gap.sum()) if column.indicator else 0)
        arrays = {"levels": np.concatenate(levels).astype(np.int64), "gaps": np.array(gaps, np.int64)}
        by_client = {"sums": np.array(sums, np.float64), "values": np.array(counts, np.int64)}
        return arrays | {name: values.reshape(len(sums), n_clients).T for name, values in by_client.items()}

    def encode(self, request: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the features of all training rows with the fills and levels of a request, in the scale of the data.

        Raises UserError for fills that mark rows, and ValueError for what are no fills.
        """
        columns = self.cells.columns
        fills = request[FILLS]
        informative = request[INFORMATIVE]
        n_features = [len(column.features) for column in columns]
        if fills.shape != (len(columns),) or fills.dtype != np.float64 or not np.isfinite(fills).all():
            raise ValueError("no fills")
        if informative.shape != (sum(n_features),) or informative.dtype != bool:
            raise ValueError("no features of a fold")
        fits = {}
        flags = np.split(informative, np.cumsum(n_features)[:-1])
        for column, fill, of_column in zip(columns, fills.tolist(), flags, strict=True):
            is_informative = tuple(of_column.tolist())
            if column.has_numbers:
                check_gaps(self.table, replace(column, fill=fill))
                fits[column.name] = ColumnFit(fill, is_informative)
                continue
            if fill != _NO_FILL and fill not in range(len(column.levels)):
                raise ValueError("no level")
            level = None if fill == _NO_FILL else column.levels[int(fill)]
            fits[column.name] = ColumnFit(level, is_informative)
        return self.cells.encode_rows(self.site_data.train.x, fits, self.site_data.features.standardized)


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


def count_shapes(columns: tuple[Column, ...], n_clients: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of ``FoldCells.count`` for a site with so many clients with training rows."""
    n_numbers = sum(column.has_numbers for column in columns)
    n_levels = sum(len(column.levels) for column in columns if column.has_levels)
    shapes: dict[str, tuple[int, ...]] = {"levels": (n_levels,), "gaps": (len(columns),)}
    return shapes | dict.fromkeys(("sums", "values"), (n_clients, n_numbers))


def fit_fold(columns: tuple[Column, ...], missing: MissingPolicy, counts: Arrays) -> Arrays:
    """Return the fills and the features that tell anything, from the counts of all sites.

    Args:
        counts: the arrays of ``FoldCells.count``, added up over the sites; ``sums`` and ``values`` have the clients of
            all sites in order, (M, k).

    Raises UserError for a column without a value in these rows.
    """
    fills = []
    informative = []
    for column, description in zip(columns, _read_counts(columns, counts), strict=True):
        if not description.n_values:
            raise UserError(f"column '{column.name}' has no value in the rows that are left in a fold: "
                            f"data.ignore=[{column.name}] leaves it out, and other folds may help")  # fmt: skip
        fit = column.fit_part(description, missing)
        if fit.fill is None:
            fills.append(_NO_FILL)
        else:
            fills.append(float(column.levels.index(fit.fill) if column.has_levels else fit.fill))
        informative += fit.informative
    return {FILLS: np.array(fills, np.float64), INFORMATIVE: np.array(informative, bool)}


def _read_counts(columns: tuple[Column, ...], counts: Arrays) -> Iterator[ColumnDescription]:
    """Yield the description of each column that the counts of ``fit_fold`` are."""
    number = 0
    level = 0
    for column, n_gaps in zip(columns, counts["gaps"].tolist(), strict=True):
        if column.has_levels:
            level_counts = Counter(dict(zip(column.levels, counts["levels"][level:].tolist(), strict=False)))
            level += len(column.levels)
            yield ColumnDescription(n_gaps > 0, level_counts.total(), level_counts=level_counts)
        else:
            sums = dict(enumerate(counts["sums"][:, number].tolist()))
            n_values = int(counts["values"][:, number].sum())
            number += 1
            yield ColumnDescription(n_gaps > 0, n_values, sums)
