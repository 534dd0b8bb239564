"""The coefficients of several runs: how often each was chosen, its median and its range."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcorun.errors import UserError, nearest
from fcorun.models.coefficients import COLUMNS, of_record
from fcorun.records.record import Record
from fcorun.reports.collect import table
from fcorun.reports.table import SEEDS, Frame, values_of

PLACE = list(COLUMNS[:3])


def joined(records: Sequence[Record], over: Sequence[str] = ()) -> tuple[Frame, list[str]]:
    """A row a coefficient of each point, and the keys that tell the points apart.

    A point is of the runs that differ only in seeds and the keys of ``over``. Its columns: algo, data, the keys;
    parameter, feature, class; runs, those that have the coefficient; chosen, the share of them where its magnitude is
    more than the run's cutoff (none of an intercept, which is not chosen); median, min, max of the value as trained,
    and of the value in the features' own units where all runs have that. Raises UserError for a record without
    coefficients, and for a key that does not vary.
    """
    import pandas as pd

    runs = table(records)
    for key in over:
        if key not in runs.keys:
            raise UserError(f"--over {key}: it is the same in all these runs; {nearest(key, runs.keys)}")
    keys = [key for key in runs.keys if key not in (*SEEDS, *over)]
    values = {key: values_of(runs.frame[key]) for key in ("algo", "data", *keys)}
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


def _point(records: Sequence[Record]) -> Frame:
    """The coefficients of runs of one point."""
    import pandas as pd

    frames = []
    for record in records:
        frame: Any = pd.DataFrame(of_record(record).table(), columns=list(COLUMNS))
        frame["chosen"] = (frame["value"].abs() > float(record.flat_config["cutoff"])).astype(float)
        frames.append(frame.astype({"value": float, "value_original": float}))
    every: Any = pd.concat(frames, ignore_index=True)
    every.loc[every["parameter"] == "bias", "chosen"] = np.nan
    ways: Any = {"runs": ("value", "size"), "chosen": ("chosen", "mean")}
    for name, end in (("value", ""), ("value_original", "_original")):
        if every[name].notna().all():
            ways |= {f"{way}{end}": (name, way) for way in ("median", "min", "max")}
    return every.groupby(PLACE, sort=False).agg(**ways).reset_index()


def warnings(records: Sequence[Record], over: Sequence[str]) -> list[str]:
    """What must be known of how often a coefficient was chosen, a sentence each."""
    runs = table(records)
    varied = [key for key in SEEDS if key in runs.keys]
    if len(records) > 1 and varied == ["seed"] and not any(key.startswith("data.") for key in over):
        if not any(runs.frame["drawn"].fillna(True)):
            return ["the seed changes nothing in these runs: they are copies, and say nothing of stability"]
        return ["runs that differ in the seed share their rows: this is how stable the method is, not the choice "
                "over other rows"]  # fmt: skip
    return []
