"""The coefficients of several runs: how often each was selected, its median and its range."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcorun.base.records.record import Record
from fcorun.reports.build_table import build_table
from fcorun.reports.run_table import SEED_KEYS, DataFrame, column_values
from fcorun.results.models.coefficients import COLUMNS, load_coefficients

COEFFICIENT_KEYS = list(COLUMNS[:3])


def summarize_coefficients(records: Sequence[Record]) -> tuple[DataFrame, list[str]]:
    """Return a row for each coefficient of each point, and the keys that tell the points apart.

    A point has the runs that differ only in seeds. Columns: algo, data and the keys of the
    point; parameter, feature, class; runs (the number of runs with this coefficient); chosen (the share of runs in
    which its magnitude exceeds the run's cutoff; empty for an intercept); median, min and max of the value as trained,
    and of the value in the features' own units if all runs have it. Raises UserError for a record without coefficients.
    """
    import pandas as pd

    runs = build_table(records)
    keys = [key for key in runs.varied_keys if key not in SEED_KEYS]
    settings = {key: column_values(runs.frame[key]) for key in ("algo", "data", *keys)}
    points = pd.DataFrame(settings).map(repr).groupby(list(settings), sort=False)
    frames = []
    for _, point in points:
        frame = _summarize_point([records[run] for run in point.index])
        for position, (key, values) in enumerate(settings.items()):
            frame.insert(position, key, values[point.index[0]])
        frames.append(frame)
    return pd.concat(frames, ignore_index=True), keys


def _summarize_point(records: Sequence[Record]) -> DataFrame:
    """Return a row for each coefficient of the runs of one point."""
    import pandas as pd

    frames = []
    for record in records:
        coefficients = load_coefficients(record)
        frame: Any = pd.DataFrame(coefficients.to_rows(), columns=list(COLUMNS))
        frame["chosen"] = coefficients.values_exceed(float(record.flat_config["cutoff"])).astype(float)
        frames.append(frame.astype({"value": float, "value_original": float}))
    table: Any = pd.concat(frames, ignore_index=True)
    table.loc[table["parameter"] == "bias", "chosen"] = np.nan
    columns: Any = {"runs": ("value", "size"), "chosen": ("chosen", "mean")}
    for name, suffix in (("value", ""), ("value_original", "_original")):
        if table[name].notna().all():
            columns |= {f"{statistic}{suffix}": (name, statistic) for statistic in ("median", "min", "max")}
    return table.groupby(COEFFICIENT_KEYS, sort=False).agg(**columns).reset_index()
