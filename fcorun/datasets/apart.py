"""Columns of a table that are no features: the rows' weights, and what is added to their predictions."""

from dataclasses import replace
from typing import Any

import numpy as np

from fcorun.datasets.columns import numeric
from fcorun.datasets.readers import Rows
from fcorun.errors import UserError, nearest


def apart(rows: Rows, path: str, weight: str | None, offset: str | None) -> tuple[Rows, dict[str, Any]]:
    """The rows without these columns, and their values in float64, each (N,), by "weight" and "offset"; those given.

    ``path`` is that of the file, for errors. Raises UserError for a column that there is not, that is both, or
    that has values that are missing or no numbers, and for weights that are negative.
    """
    given = {name: column for name, column in (("weight", weight), ("offset", offset)) if column is not None}
    if not given:
        return rows, {}
    found, frame = {}, rows.frame
    for name, column in given.items():
        if frame is None or column not in frame:
            why = "the file names no columns: leave it out" if frame is None else nearest(column, list(frame))
            raise UserError(f"data.{name}={column}: there is no such column in {path}; {why}")
        values = found[name] = numeric(frame[column], f"data.path={path}: column '{column}'").astype(np.float64)
        if not np.isfinite(values).all():
            row = int((~np.isfinite(values)).argmax()) + 1
            raise UserError(f"data.{name}={column} is missing or infinite in row {row}: fill it in or drop the row")
    if weight is not None and weight == offset:
        raise UserError(f"data.offset={offset} is data.weight too: name two different columns")
    if "weight" in found and found["weight"].min() < 0:
        row = int((found["weight"] < 0).argmax())
        least = found["weight"][row]
        raise UserError(f"data.weight={weight}: row {row + 1} of {path} has {least:g}; give weights of 0 or more")
    assert frame is not None
    rest = frame.drop(columns=list(given.values()))
    if not rest.shape[1]:
        raise UserError(f"data.path={path}: beside data.{' and data.'.join(found)} there are no features; give one")
    return replace(rows, frame=rest), found
