"""The description of a site's table: names, counts and sums, from which the server makes the encoding of all sites.

A description has no least or largest values, no quantiles and no row. Its size does not depend on the number of rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.tables.cells import coerce_numbers
from fcorun.data.tables.column_statistics import count_values, sum_values
from fcorun.data.tables.encoding import check_finite
from fcorun.data.tables.splits import SPLITS
from fcorun.sites.plan.table_options import HISTOGRAM_BINS, for_owner_alone
from fcorun.sites.tables.table_rows import NO_VALUES, SiteTable
from fcorun.sites.transport.messages import Message, describe_damage

_KINDS = ("number", "levels", NO_VALUES)


@dataclass(frozen=True)
class Description:
    """The description of one site's table.

    Attributes:
        clients: the names of the site's M clients.
        n_rows, weights: the numbers of training, validation and test rows of each client, and the sums of the rows'
            weights, (M, 3).
        kinds, dtypes: the kind and the dtype of each of the k columns, by name in the order of the file.
        has_gaps: whether training rows of the site have gaps in a column, (k,).
        is_constant: whether a column has one value in them, (k,), be it that rows of a rare value take the other one.
        levels: the levels of columns of levels that are not rare (``SiteTable.rare_levels``).
        level_counts: the training rows of each level, and as the last one those of all rare levels, by column.
        labels: the labels of the training rows; empty for a regression.
        label_counts: their training rows.
        target_dtype: the dtype of the target.
        sums, values: the sum and the number of the values of each column of numbers over the training rows of each
            client, (M, k'); without columns if no fill needs them.
        histograms: the counts of the values of each column of numbers in bins, (k', HISTOGRAM_BINS), for medians.
    """

    clients: list[str]
    n_rows: np.ndarray
    weights: np.ndarray
    kinds: dict[str, str]
    dtypes: dict[str, str]
    has_gaps: np.ndarray
    is_constant: np.ndarray
    levels: dict[str, list[str]]
    level_counts: dict[str, np.ndarray]
    labels: list[Any]
    label_counts: np.ndarray
    target_dtype: str
    sums: np.ndarray
    values: np.ndarray
    histograms: np.ndarray

    @property
    def numbers(self) -> list[str]:
        """Return the names of the columns of numbers."""
        return [name for name, kind in self.kinds.items() if kind == "number"]

    def to_message(self) -> Message:
        """Return the description as a message, whose counts and sums are arrays of fixed width."""
        about = {
            "clients": self.clients,
            "columns": [[name, kind, self.dtypes[name]] for name, kind in self.kinds.items()],
            "levels": self.levels,
            "labels": self.labels,
            "target": self.target_dtype,
        }
        counts = [self.level_counts[name] for name in self.levels]
        arrays = {
            "rows": self.n_rows.astype(np.int64),
            "weights": self.weights.astype(np.float64),
            "gaps": self.has_gaps,
            "constant": self.is_constant,
            "levels": np.concatenate([np.empty(0), *counts]).astype(np.int64),
            "labels": self.label_counts.astype(np.int64),
            "sums": self.sums.astype(np.float64),
            "values": self.values.astype(np.int64),
            "histograms": self.histograms.astype(np.int64),
        }
        return Message("describe", about, arrays)

    @classmethod
    def from_message(cls, message: Message, site: str) -> "Description":
        """Return the description in a site's message. Raises UserError, which names the site, for another content."""
        try:
            return cls._parse(message.about, message.arrays)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"site '{site}' sent no description of a table ({describe_damage(error)})"
            raise UserError(f"{problem}: use the same version of fcorun at the server and at all sites") from error

    @classmethod
    def _parse(cls, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> "Description":
        kinds = {str(name): kind for name, kind, _ in about["columns"]}
        levels = {str(name): list(map(str, names)) for name, names in about["levels"].items()}
        levels = {name: levels[name] for name, kind in kinds.items() if kind == "levels"}
        clients = list(map(str, about["clients"]))
        n_numbers = sum(kind == "number" for kind in kinds.values())
        ends = np.cumsum([len(names) + 1 for names in levels.values()], dtype=int)
        _check_shapes(arrays, {
            "rows": (len(clients), len(SPLITS)),
            "weights": (len(clients), len(SPLITS)),
            "gaps": (len(kinds),),
            "constant": (len(kinds),),
            "levels": (int(ends[-1]) if len(ends) else 0,),
            "labels": (len(about["labels"]),),
        })  # fmt: skip
        for name in ("sums", "values"):
            if arrays[name].shape not in ((len(clients), n_numbers), (len(clients), 0)):
                raise ValueError(f"its array '{name}' has another shape")
        if arrays["histograms"].shape not in ((n_numbers, HISTOGRAM_BINS), (0, HISTOGRAM_BINS)):
            raise ValueError("its array 'histograms' has another shape")
        if not set(kinds.values()) <= set(_KINDS):
            raise ValueError("it has unknown kinds of columns")
        dtypes = {str(name): np.dtype(dtype).name for name, _, dtype in about["columns"]}
        counts = np.split(arrays["levels"], ends[:-1]) if len(ends) else []
        return cls(
            clients=clients,
            n_rows=arrays["rows"],
            weights=arrays["weights"],
            kinds=kinds,
            dtypes=dtypes,
            has_gaps=arrays["gaps"],
            is_constant=arrays["constant"],
            levels=levels,
            level_counts=dict(zip(levels, counts, strict=True)),
            labels=list(about["labels"]),
            label_counts=arrays["labels"],
            target_dtype=np.dtype(about["target"]).name if about["target"] else "",
            sums=arrays["sums"],
            values=arrays["values"],
            histograms=arrays["histograms"],
        )


def _check_shapes(arrays: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape or (array.dtype.kind == "f" and not np.isfinite(array).all()) or (array < 0).any():
            raise ValueError(f"its array '{name}' has another shape, or numbers that are no counts")


def describe_table(table: SiteTable) -> Message:
    """Return the description of a site's table. Raises UserError where the policy forbids to answer."""
    training = table.masks[0]
    numbers = [name for name, kind in table.kinds.items() if kind == "number"]
    values = np.empty((len(training), len(numbers)))
    for j, name in enumerate(numbers):
        values[:, j] = coerce_numbers(table.columns[name])[0]
        with for_owner_alone(f"column '{name}' has infinite values: mend them or drop their rows"):
            check_finite(values[:, j], name, "the table of this site")

    levels, level_counts = {}, {}
    for name, counts in table.level_counts.items():
        rare = table.rare_levels(name)
        levels[name] = sorted(set(counts) - rare)
        n_rare = sum(counts[level] for level in rare)
        level_counts[name] = np.array([*(counts[level] for level in levels[name]), n_rare])
    labels: list[Any] = []
    label_counts: Any = []
    if table.options.task in ("binary", "multiclass"):
        unique, label_counts = np.unique(table.rows.y[training], return_counts=True)
        labels = unique.tolist()
    sums, n_values = _fill_sums(table, values, numbers)
    description = Description(
        clients=table.clients,
        n_rows=table.n_rows,
        weights=table.weights,
        kinds=table.kinds,
        dtypes=table.dtypes,
        has_gaps=np.array([table.gap_counts[name][:, 0].any() for name in table.kinds], bool),
        is_constant=_find_constant_columns(table, values[training], numbers),
        levels=levels,
        level_counts=level_counts,
        labels=labels,
        label_counts=np.asarray(label_counts, np.int64),
        target_dtype="" if table.options.task in ("binary", "multiclass") else table.rows.y.dtype.name,
        sums=sums,
        values=n_values,
        histograms=_histograms(table, values[training], numbers),
    )
    return description.to_message()


def _find_constant_columns(table: SiteTable, values: np.ndarray, numbers: list[str]) -> np.ndarray:
    """Return whether each column has one value in the training rows, (k,), whose numbers are ``values``, (n, k')."""
    constant = {name: len(counts) == 1 for name, counts in table.level_counts.items()}
    for j, name in enumerate(numbers):
        present = values[~np.isnan(values[:, j]), j]
        constant[name] = bool(len(present)) and present.min() == present.max()
    return np.array([constant.get(name, False) for name in table.kinds], bool)


def _fill_sums(table: SiteTable, values: np.ndarray, numbers: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum and the number of the values of each column over each client's training rows, (M, k') each."""
    if table.options.missing not in ("mean", "indicator"):
        return np.empty((len(table.clients), 0)), np.empty((len(table.clients), 0))
    sums = np.zeros((len(table.clients), len(numbers)))
    counts = np.zeros(sums.shape, np.int64)
    for name, rows in table.client_rows.training_rows().items():
        m = table.clients.index(name)
        sums[m], counts[m] = sum_values(values[rows]), count_values([values[rows]])
    return sums, counts


def _histograms(table: SiteTable, values: np.ndarray, numbers: list[str]) -> np.ndarray:
    """Return the counts of the values of each column in bins between the bounds of ``ranges``, (k', HISTOGRAM_BINS).

    A count below ``policy.min_cell`` is added to that of a later bin. Values beyond the bounds are in the outer bins.
    """
    if table.options.missing != "median":
        return np.zeros((0, HISTOGRAM_BINS), np.int64)
    histograms = np.zeros((len(numbers), HISTOGRAM_BINS), np.int64)
    for j, name in enumerate(numbers):
        histograms[j] = count_values_in_bins(table, values[:, j], name)
    return histograms


def count_values_in_bins(table: SiteTable, values: np.ndarray, name: str) -> np.ndarray:
    """Return the counts of values of a column in bins, (HISTOGRAM_BINS,); gaps are nan. Small cells are merged."""
    bins = find_bins(table, values, name)
    return merge_small_cells(np.bincount(bins[bins >= 0], minlength=HISTOGRAM_BINS), table.policy.min_cell)


def find_bins(table: SiteTable, values: np.ndarray, name: str) -> np.ndarray:
    """Return the bin of each value of a column, (N,); -1 of a gap, which is nan."""
    edges = median_edges(table.options.ranges, name)
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, HISTOGRAM_BINS - 1)
    return np.where(np.isnan(values), -1, bins)


def median_edges(ranges: dict[str, list[float]] | None, name: str) -> np.ndarray:
    """Return the edges of the bins for the median of a column. Raises UserError for a column without a range."""
    if name not in (ranges or {}):
        raise UserError(f"data.missing=median counts values in bins, and data.ranges has no bounds for '{name}': give "
                        f"data.ranges={{{name}: [LEAST, LARGEST]}} in the plan, or data.missing=mean")  # fmt: skip
    low, high = (ranges or {})[name]
    return np.linspace(low, high, HISTOGRAM_BINS + 1)


def merge_small_cells(counts: np.ndarray, min_cell: int) -> np.ndarray:
    """Return the counts with each cell empty or at least ``min_cell``, and the same total where that is large enough.

    A smaller cell is added to the next ones until they are large enough; what is left at the end is added to the last
    cell that is.
    """
    merged = np.zeros_like(counts)
    waiting, last = 0, None
    for j, count in enumerate(counts.tolist()):
        waiting += count
        if waiting >= min_cell:
            merged[j], waiting, last = waiting, 0, j
    if last is not None:
        merged[last] += waiting
    return merged
