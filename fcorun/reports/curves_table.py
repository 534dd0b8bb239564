"""The evaluations of many runs as one tidy table, for other programs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fcorun.base.records.record import Record
from fcorun.reports.run_table import RunTable

if TYPE_CHECKING:
    from pandas import DataFrame


def join_curves(runs: RunTable, records: Sequence[Record]) -> "DataFrame":
    """Return a row for each evaluation of each run: the run's folder and keys, then the columns of metrics.csv.

    ``records`` are those of the rows of ``runs``. The keys are the algorithm, the data, and those that vary. A key with
    the name of a metric, such as the section ``objective``, is ``objective=``.
    """
    import pandas as pd

    keys = runs.shown_frame[["folder", "algo", "data", *runs.varied_keys]]
    measured = {name for record in records for name in record.metrics}
    keys = keys.rename(columns={key: f"{key}=" for key in runs.varied_keys if key in measured})
    parts = []
    for position, record in enumerate(records):
        evaluations = record.metrics
        repeated = keys.iloc[[position] * len(evaluations)].reset_index(drop=True)
        parts.append(pd.concat([repeated, evaluations], axis=1))
    return pd.concat(parts, ignore_index=True)
