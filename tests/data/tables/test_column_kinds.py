"""Each kind of column has the properties of ``column_checks``."""

from collections import Counter
from dataclasses import dataclass, replace

import column_checks as columns
import numpy as np
import pytest
from column_checks import ColumnCase

from fcorun.data.tables.columns import LevelColumn, NumberColumn
from fcorun.data.tables.columns.column import ColumnDescription, EncodedCells, Histogram
from fcorun.interface.checks.property_check import Violation, run_checks


@pytest.mark.parametrize("case", list(columns.cases()), ids=lambda case: f"{case.kind.kind} {case.missing}")
def test_a_kind_of_column_has_all_properties(case):
    results = list(run_checks(columns.CHECKS, case))
    assert [result for result in results if result.status == "failed"] == []


@dataclass(frozen=True)
class Leaking(NumberColumn):
    """A column whose gaps get the number of the row before."""

    def encode(self, series, where):
        values = series.ffill().bfill().to_numpy()
        return EncodedCells([values], series.isna().to_numpy())


@dataclass(frozen=True)
class Forgetful(LevelColumn):
    """A column that counts the levels of the first client alone."""

    def describe(self, series, rows, missing, where):
        return super().describe(series, rows._replace(row=rows.row[rows.client == rows.client[0]]), missing, where)


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        (Leaking, {columns.check_gaps_never_leak, columns.check_rows_are_encoded_alone}),
        (Forgetful, {columns.check_descriptions_add_up}),
    ],
)
def test_the_properties_find_a_wrong_kind(kind, failed):
    for check in failed:
        with pytest.raises(Violation):
            check(ColumnCase(kind, "mean"))


def test_a_median_of_bins_is_the_middle_of_a_bin():
    histogram = Histogram(np.linspace(0, 10, 6), np.array([0, 3, 1, 4, 0]))
    assert ColumnDescription(histogram=histogram).median() == 5
    more = ColumnDescription.combine([ColumnDescription(histogram=histogram)] * 2, [])
    assert more.median() == 5
    assert not replace(more, level_counts=Counter({"x": 0})).has_gaps
