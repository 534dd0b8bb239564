"""The coefficients of several runs: how often each was chosen, its median and its range."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.models.coefficients import COLUMNS, load_coefficients
from fcorun.records.record import Record
from fcorun.reports.build_table import build_table
from fcorun.reports.run_table import SEED_KEYS, DataFrame, column_values

COEFFICIENT_KEYS = list(COLUMNS[:3])


def summarize_coefficients(records: Sequence[Record], over: Sequence[str] = ()) -> tuple[DataFrame, list[str]]:
    """A row a coefficient of each point, and the keys that tell the points apart.

    A point is of the runs that differ only in seeds and the keys of ``over``. Its columns: algo, data, the keys;
    parameter, feature, class; runs, those that have the coefficient; chosen, the share of them where its magnitude is
    more than the run's cutoff (none of an intercept, which is not chosen); median, min, max of the value as trained,
    and of the value in the features' own units where all runs have that. Raises UserError for a record without
    coefficients, and for a key that does not vary.
    """
    import pandas as pd

    runs = build_table(records)
    for key in over:
        if key not in runs.varied_keys:
            raise UserError(f"--over {key}: it is the same in all these runs; {suggest_name(key, runs.varied_keys)}")
    keys = [key for key in runs.varied_keys if key not in (*SEED_KEYS, *over)]
    values = {key: column_values(runs.frame[key]) for key in ("algo", "data", *keys)}
    points: dict[str, list[int]] = {}
    for place in range(len(records)):
        points.setdefault(repr([each[place] for each in values.values()]), []).append(place)
    parts = []
    for places in points.values():
        found = _point([records[place] for place in places])
        for column, (key, each) in enumerate(values.items()):
            found.insert(column, key, each[places[0]])
        parts.append(found)
    return pd.concat(parts, ignore_index=True), keys


def _point(records: Sequence[Record]) -> DataFrame:
    """The coefficients of runs of one point."""
    import pandas as pd

    frames = []
    for record in records:
        frame: Any = pd.DataFrame(load_coefficients(record).to_rows(), columns=list(COLUMNS))
        frame["chosen"] = (frame["value"].abs() > float(record.flat_config["cutoff"])).astype(float)
        frames.append(frame.astype({"value": float, "value_original": float}))
    every: Any = pd.concat(frames, ignore_index=True)
    every.loc[every["parameter"] == "bias", "chosen"] = np.nan
    ways: Any = {"runs": ("value", "size"), "chosen": ("chosen", "mean")}
    for name, end in (("value", ""), ("value_original", "_original")):
        if every[name].notna().all():
            ways |= {f"{way}{end}": (name, way) for way in ("median", "min", "max")}
    return every.groupby(COEFFICIENT_KEYS, sort=False).agg(**ways).reset_index()


def stability_warnings(records: Sequence[Record], over: Sequence[str]) -> list[str]:
    """What must be known of how often a coefficient was chosen, a sentence each."""
    runs = build_table(records)
    varied = [key for key in SEED_KEYS if key in runs.varied_keys]
    if len(records) > 1 and varied == ["seed"] and not any(key.startswith("data.") for key in over):
        if not any(runs.frame["drawn"].fillna(True)):
            return ["the seed changes nothing in these runs: they are copies, and say nothing of stability"]
        return ["runs that differ in the seed share their rows: this is how stable the method is, not the choice "
                "over other rows"]  # fmt: skip
    return []
