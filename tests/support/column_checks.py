"""The properties of a kind of column: descriptions that add up, features by name, gaps that never leak."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.tables.cells import is_missing
from fcorun.data.tables.columns import COLUMN_KINDS, Column, MissingPolicy
from fcorun.data.tables.columns.column import ColumnDescription, EncodedCells, TrainingRows
from fcorun.interface.checks.property_check import find_checks, require, require_close, require_finite

CLIENTS = 4
ROWS = 40  # of each client
WHERE = "a check"


@dataclass
class ColumnCase:
    """A kind of column with a treatment of gaps, and cells of four clients.

    Attributes:
        kind: the class.
        missing: the treatment of gaps; of "refuse" there are none.
        seed: the seed of the cells.
    """

    kind: type[Column]
    missing: MissingPolicy
    seed: int = 0

    @cached_property
    def series(self) -> Any:
        """The cells: numbers, or names of levels, about a fifth of them gaps unless gaps are refused."""
        import pandas as pd

        rng = np.random.default_rng(self.seed)
        n = CLIENTS * ROWS
        if self.kind.has_levels:
            cells = rng.choice(["east", "north", "south", "west"], n, p=[0.4, 0.3, 0.2, 0.1]).astype(object)
        else:
            cells = rng.normal(50, 20, n).round(1).astype(object)
        if self.missing != "refuse":
            cells[rng.random(n) < 0.2] = None
        series = pd.Series(cells, name="cells")
        return series if self.kind.has_levels else series.astype(float)

    @cached_property
    def rows(self) -> TrainingRows:
        """The training rows, all but every fifth one."""
        row = np.flatnonzero(np.arange(len(self.series)) % 5 > 0)
        return TrainingRows(row, row // ROWS)

    @property
    def gaps(self) -> np.ndarray:
        """The mask of the gaps."""
        return is_missing(self.series)

    def describe(self, series: Any, rows: TrainingRows) -> ColumnDescription:
        """Return the description of training rows."""
        return self.kind("cells").describe(series, rows, self.missing, WHERE)

    @cached_property
    def fitted(self) -> Column:
        """The column as the training rows teach it."""
        return self.kind("cells").fit(self.describe(self.series, self.rows), self.missing, WHERE)

    def features_of(self, cells: EncodedCells) -> np.ndarray:
        """Return all features of encoded cells, (N, d)."""
        features = list(cells.features)
        if self.fitted.indicator:
            features.append(cells.gaps)
        return np.stack(features, axis=1).astype(float)

    @cached_property
    def x(self) -> np.ndarray:
        """The features of all rows, (N, d)."""
        return self.features_of(self.fitted.encode(self.series, WHERE))


def cases() -> Iterator[ColumnCase]:
    """Yield each kind of column with each treatment of gaps."""
    policies: tuple[MissingPolicy, ...] = ("refuse", "mean", "median", "indicator")
    for kind in COLUMN_KINDS.values():
        for missing in policies:
            yield ColumnCase(kind, missing)


# ---------------------------------------------------------------- the properties


def check_descriptions_add_up(case: ColumnCase) -> None:
    """Require that the descriptions of the first and the last two clients together are that of all four."""
    row, client = case.rows
    parts = []
    for is_part in (client < CLIENTS // 2, client >= CLIENTS // 2):
        parts.append(case.describe(case.series, TrainingRows(row[is_part], client[is_part])))
    together = ColumnDescription.combine(parts, range(CLIENTS))
    whole = case.describe(case.series, case.rows)
    require(together.has_gaps == whole.has_gaps, "two halves and all rows should agree on whether there are gaps")
    require(together.n_values == whole.n_values, "the values of two halves should be as many as those of all rows")
    require(together.level_counts == whole.level_counts, "the levels of two halves should be counted as of all rows")
    require(together.sums == whole.sums, "the sums of two halves should be those of all rows")
    if whole.numbers is not None:
        require_close("the numbers of two halves", together.numbers, whole.numbers)
    fitted = case.kind("cells").fit(together, case.missing, WHERE)
    require(fitted == case.fitted, "two halves should teach what all rows teach")


def check_training_rows_alone_teach(case: ColumnCase) -> None:
    """Require that a fit does not change with the cells of held-out rows."""
    other = case.series.copy()
    held_out = np.setdiff1d(np.arange(len(other)), case.rows.row)
    other.iloc[held_out] = other.iloc[int(case.rows.row[0])]
    fitted = case.kind("cells").fit(case.describe(other, case.rows), case.missing, WHERE)
    require(fitted == case.fitted, "held-out rows should teach nothing")


def check_features_have_names(case: ColumnCase) -> None:
    """Require as many names and labels as features, all different, and that an indicator comes last."""
    column = case.fitted
    require(case.x.shape[1] == len(column.features), "there should be a name for each feature")
    require(len(set(column.features)) == len(column.features), "no two features should have one name")
    require(len(column.label_values("a", "a (b)")) == len(column.value_features), "each value should have a label")
    require(column.features[: len(column.value_features)] == column.value_features, "an indicator should come last")
    if column.adds_up_to_one:
        require_close("the sum of the features", case.x.sum(axis=1), np.ones(len(case.x)))


def check_gaps_never_leak(case: ColumnCase) -> None:
    """Require the same finite features in all gaps, an indicator there alone, and a refusal without a fill."""
    require_finite("each feature", case.x)
    if case.gaps.any():
        in_gaps = case.x[case.gaps]
        require_close("the features of gaps", in_gaps, np.tile(in_gaps[:1], (len(in_gaps), 1)))
        if case.fitted.indicator:
            require_close("the indicator", case.x[:, -1], case.gaps.astype(float))
        return
    import pandas as pd

    try:
        case.fitted.encode(pd.Series([None], name="cells", dtype=case.series.dtype), WHERE)
    except UserError:
        return
    require(False, "a gap should be refused where training rows had none and data.missing=refuse")


def check_rows_are_encoded_alone(case: ColumnCase) -> None:
    """Require that the features of a row do not depend on the other rows."""
    for start in (0, 50, *np.flatnonzero(case.gaps)[:3].tolist()):
        part = case.features_of(case.fitted.encode(case.series.iloc[start : start + 9], WHERE))
        require_close("the features of some rows", part, case.x[start : start + 9])


def check_unseen_values(case: ColumnCase) -> None:
    """Require finite features of values that no training row has; a level that none has is told."""
    import pandas as pd

    unseen = ["abroad", "EAST"] if case.kind.has_levels else [-1e6, 1e6]
    cells = case.fitted.encode(pd.Series(unseen, name="cells"), WHERE)
    require_finite("each feature of an unseen value", case.features_of(cells))
    if case.kind.has_levels:
        require("abroad" in cells.warning, "a level that no training row has should be told")
        require(sorted(cells.row_warnings) == [0, 1], "each row of such a level should have a warning")


def check_plain_values(case: ColumnCase) -> None:
    """Require that a record holds the column."""
    values = json.loads(json.dumps(case.fitted.to_dict()))
    require(COLUMN_KINDS[values["kind"]].from_dict(values) == case.fitted, "a record should hold the column")
    require(list(case.fitted.find_faults()) == [], "a fit should have no fault")


def check_cells_of_folds(case: ColumnCase) -> None:
    """Require that cells read from features have the gaps, teach the same fill, and give the features again."""
    column = case.fitted
    row, client = case.rows
    x = case.x[row]
    gaps = case.gaps[row]
    cells = column.read_cells(x, gaps)
    require_close("the gaps of cells", column.find_gaps(cells), gaps)
    fit = column.fit_part(column.describe_cells(cells, client, case.missing), case.missing)
    require(fit.fill == column.fill, "all training rows should teach the fill of the column")
    require(all(fit.informative), "each feature should differ between the training rows")
    features = column.encode_cells(cells, fit.fill)
    require_close("the features of cells", np.stack(features, axis=1).astype(float), x[:, : len(features)])


CHECKS = find_checks(__name__)
