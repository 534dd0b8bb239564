"""The contract of a kind of column: how its cells are described, what the counts of training rows teach, its features.

Training rows are described by counts and sums, at one place or at several sites. Whatever the place, the server makes
the same fit of the same sums, and each place encodes its rows by that fit.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from fcorun.base.errors import UserError
from fcorun.data.rows.rows import sum_in_order

MissingPolicy = Literal["refuse", "mean", "median", "indicator"]


@dataclass(frozen=True, eq=False)
class Histogram:
    """The numbers of a column in bins.

    Attributes:
        edges: the edges of the bins, (B + 1,).
        counts: the rows of each bin, (B,).
    """

    edges: Float[np.ndarray, " E"]
    counts: Int[np.ndarray, " B"]

    def median(self) -> float:
        """Return the middle of the bin that the median is in."""
        middle = int(np.searchsorted(np.cumsum(self.counts), self.counts.sum() / 2))
        return float(self.edges[middle : middle + 2].mean())


@dataclass(frozen=True, eq=False)
class ColumnDescription:
    """A description of a column by the training rows of one place, or of several, for a fit.

    Attributes:
        has_gaps: whether a row has no value.
        n_values: the number of rows with a value; 0 where no fit needs it.
        sums: the sum of the numbers at each client, by its number or name, for means.
        numbers: the numbers, (n,), for exact quantiles, where they need not leave a site; else None.
        histogram: the numbers in bins, for quantiles over sites; else None.
        level_counts: the rows of each level.
        other: the level in place of those that are rare at a site; None: all levels are told.
    """

    has_gaps: bool = False
    n_values: int = 0
    sums: Mapping[Any, float] = field(default_factory=dict)
    numbers: Float[np.ndarray, " n"] | None = None
    histogram: Histogram | None = None
    level_counts: Counter[str] = field(default_factory=Counter)
    other: str | None = None

    def mean(self) -> float:
        """Return the mean of the numbers, from the clients' sums in their order."""
        sums = np.array(list(self.sums.values()))
        return float(sum_in_order(sums[:, None])[0] / self.n_values)

    def median(self) -> float:
        """Return the exact median of the numbers; of numbers in bins the middle of a bin."""
        return float(np.median(self.numbers)) if self.histogram is None else self.histogram.median()  # type: ignore[arg-type]

    def quantiles(self, probabilities: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        """Return quantiles of the numbers, as R's type 7 (Hyndman and Fan, 1996).

        Numbers in bins are taken as the middles of their bins, so that a quantile is exact to the width of a bin.
        """
        numbers = self.numbers
        if self.histogram is not None:
            edges = self.histogram.edges
            numbers = np.repeat((edges[:-1] + edges[1:]) / 2, self.histogram.counts)
        return np.quantile(numbers, probabilities)  # type: ignore[arg-type]

    @classmethod
    def combine(
        cls, parts: Sequence["ColumnDescription"], clients: Sequence[str] | Sequence[int]
    ) -> "ColumnDescription":
        """Return the description of the rows of several places together; ``clients`` are all of theirs, in order."""
        level_counts: Counter[str] = Counter()
        sums: dict[Any, float] = {}
        for part in parts:
            level_counts.update(part.level_counts)
            sums |= part.sums
        if sums:
            sums = {client: sums.get(client, 0.0) for client in clients}
        numbers = [part.numbers for part in parts if part.numbers is not None]
        histograms = [part.histogram for part in parts if part.histogram is not None]
        histogram = None
        if histograms:
            counts = np.sum([one.counts for one in histograms], axis=0)
            histogram = Histogram(histograms[0].edges, counts)
        return cls(
            has_gaps=any(part.has_gaps for part in parts),
            n_values=sum(part.n_values for part in parts),
            sums=sums,
            numbers=np.concatenate(numbers) if numbers else None,
            histogram=histogram,
            level_counts=level_counts,
            other=next((part.other for part in parts if part.other is not None), None),
        )


class TrainingRows(NamedTuple):
    """The training rows of a table, sorted by client.

    Attributes:
        row: the index of each row in the table, (n,).
        client: the number of each row's client, (n,).
    """

    row: Int[np.ndarray, " n"]
    client: Int[np.ndarray, " n"]


class EncodedCells(NamedTuple):
    """The features of the cells of a column.

    Attributes:
        features: the features but for the indicator, each (N,).
        gaps: the mask of the gaps, (N,).
        warning: a sentence about cells that the column does not know; "" for none.
        row_warnings: the same in a word for each of their rows.
    """

    features: list[np.ndarray]
    gaps: np.ndarray
    warning: str = ""
    row_warnings: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True)
class ColumnFit:
    """The part of a column's encoding that some of the training rows teach, such as those that a fold leaves.

    Attributes:
        fill: the value in place of a gap: a number, or a level; None where gaps are not filled.
        informative: whether each feature of the column may differ from 0.
    """

    fill: float | str | None
    informative: tuple[bool, ...]


@dataclass(frozen=True)
class Column(ABC):
    """A column of a table, and the features that are made of it.

    ``fit`` returns the column as training rows teach it. A kind says the rest.

    Attributes:
        name: the name of the column.
        fill: the value in place of a gap, or None where gaps are not filled.
        indicator: whether a last feature "NAME=missing" is 1 in the rows with a gap.
        levels: the levels of the training rows, in order; none of numbers.
        kind: the name of the kind in records and messages.
        content: what cells hold, in words.
        has_numbers: whether the cells are numbers, which are summed.
        has_levels: whether the cells are names of levels, whose rows are counted.
        makes_curve: whether the features are terms of a curve of one number, none of which varies alone.
    """

    name: str
    fill: float | str | None = None
    indicator: bool = False
    levels: tuple[str, ...] = ()

    kind: ClassVar[str]
    content: ClassVar[str]
    has_numbers: ClassVar[bool] = False
    has_levels: ClassVar[bool] = False
    makes_curve: ClassVar[bool] = False

    # The features, and their names.

    @property
    @abstractmethod
    def value_features(self) -> tuple[str, ...]:
        """The names of the features but for the indicator."""

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        if self.indicator:
            return (*self.value_features, f"{self.name}=missing")
        return self.value_features

    @property
    def reference(self) -> str | None:
        """The level without a feature, of two levels; None of other columns."""
        return None

    @property
    def adds_up_to_one(self) -> bool:
        """Return whether the features, an indicator among them, add up to 1 in every row."""
        return False

    @abstractmethod
    def label_values(self, label: str, label_with_unit: str) -> list[str]:
        """Return the labels of ``value_features``, from the label of the column."""

    def describe_coding(self) -> str:
        """Return in words what became of a column of text; "" of others."""
        return ""

    def warn_similar_levels(self) -> list[str]:
        """Return a warning about levels that differ in capitals or spaces only."""
        return []

    @abstractmethod
    def describe_fill(self) -> str:
        """Return the fill in words."""

    def to_dict(self) -> dict[str, Any]:
        """Return the column as plain values."""
        return {
            "name": self.name,
            "kind": self.kind,
            "levels": list(self.levels),
            "fill": self.fill,
            "indicator": self.indicator,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the column of the plain values. Raises KeyError or TypeError for values of no column."""
        arguments: dict[str, Any] = {**values, "levels": tuple(values["levels"])}
        del arguments["kind"]
        return cls(**arguments)

    def find_faults(self) -> Iterator[str]:
        """Yield what no fit makes, as the end of a sentence about an agreement."""
        yield from ()

    # The cells of a table.

    @abstractmethod
    def read_values(self, series: Any) -> np.ndarray:
        """Return the value of each cell of a pandas.Series, (N,), to be compared; anything in gaps."""

    def needs_bins(self, missing: MissingPolicy) -> bool:
        """Return whether a fit needs the distribution of numbers, which leaves a site as counts in bins."""
        return False

    @abstractmethod
    def describe(self, series: Any, rows: TrainingRows, missing: MissingPolicy, where: str) -> ColumnDescription:
        """Describe the training rows of a pandas.Series.

        Raises UserError, which begins with ``where``, for a cell that is no value of the kind.
        """

    def fit(self, description: ColumnDescription, missing: MissingPolicy, where: str) -> Self:
        """Return the column as the described rows teach it. Raises UserError for rows without a value."""
        needs_values = missing != "refuse" or self.has_levels
        if needs_values and not description.n_values:
            raise UserError(f"column '{self.name}' has no value in any training row: `data.ignore=[{self.name}]` "
                            "leaves it out")  # fmt: skip
        indicator = missing == "indicator" and description.has_gaps
        return replace(self, fill=self.find_fill(description, missing, indicator), indicator=indicator)

    @abstractmethod
    def find_fill(self, description: ColumnDescription, missing: MissingPolicy, indicator: bool) -> float | str | None:
        """Return the value in place of a gap; None where gaps are not filled."""

    @abstractmethod
    def encode(self, series: Any, where: str) -> EncodedCells:
        """Return the features of the rows of a pandas.Series.

        Raises UserError, which begins with ``where``, for a cell that is no value of the kind, and for a gap without a
        fill.
        """

    def check_fillable(self, gaps: Bool[np.ndarray, " N"], where: str) -> None:
        """Raise UserError for gaps in a column without a fill."""
        if gaps.any() and self.fill is None and not self.indicator:
            row = int(gaps.argmax()) + 1
            raise UserError(f"{where}: column '{self.name}' is missing in row {row}, and the record has no value for "
                            "gaps, since training had `data.missing=refuse`: fill it in or drop the row")  # fmt: skip

    # The cells of training rows in memory, of which folds take a part. They are read back from the features.

    @abstractmethod
    def read_cells(self, features: Shaped[np.ndarray, "N f"], has_gap: Bool[np.ndarray, " N"]) -> np.ndarray:
        """Return the cells of rows with these features, (N,)."""

    def features_of_levels(self) -> Float[np.ndarray, "L f"] | None:
        """Return the features but for the indicator of each level, by which cells are numbered; None of numbers."""
        return None

    @abstractmethod
    def find_gaps(self, cells: Shaped[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
        """Return the mask of the gaps among cells."""

    @abstractmethod
    def describe_cells(
        self, cells: Shaped[np.ndarray, " n"], client: Int[np.ndarray, " n"], missing: MissingPolicy
    ) -> ColumnDescription:
        """Describe cells of training rows, sorted by the number of their client."""

    def find_informative(self, description: ColumnDescription) -> list[bool]:
        """Return whether each feature but for the indicator may differ from 0 in the described rows."""
        return [True] * len(self.value_features)

    def fit_part(self, description: ColumnDescription, missing: MissingPolicy) -> ColumnFit:
        """Return what the described part of the training rows teaches. The part has a value of the column."""
        informative = self.find_informative(description)
        has_indicator = self.indicator and description.has_gaps
        if self.indicator:
            informative.append(has_indicator)
        return ColumnFit(self.find_fill(description, missing, has_indicator), tuple(informative))

    @abstractmethod
    def encode_cells(self, cells: Shaped[np.ndarray, " N"], fill: float | str | None) -> list[np.ndarray]:
        """Return the features but for the indicator of cells whose gaps have this fill, each (N,)."""

    def encode_by_part(self, cells: Shaped[np.ndarray, " N"], fit: ColumnFit) -> list[np.ndarray]:
        """Return the features of cells as a part of the rows taught them, 0 where they tell nothing, each (N,)."""
        features = self.encode_cells(cells, fit.fill)
        if self.indicator:
            features.append(self.find_gaps(cells))
        return [feature * tells for feature, tells in zip(features, fit.informative, strict=True)]
