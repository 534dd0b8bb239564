"""Columns of a table that are no features: the rows' weights, and what is added to their predictions."""

from dataclasses import replace
from typing import Any

import numpy as np

from fcorun.datasets.readers import Rows
from fcorun.errors import UserError, nearest


def apart(rows: Rows, path: str, weight: str | None, offset: str | None) -> tuple[Rows, dict[str, Any]]:
    """The rows without these columns, and their values in float64, each (N,), by "weight" and "offset"; those given.

    Raises UserError for a column that there is not, that is both, or for weights that are negative.
    """
    given = {name: column for name, column in (("weight", weight), ("offset", offset)) if column is not None}
    found = {}
    for name, column in given.items():
        if column not in rows.features:
            why = nearest(column, rows.features) if rows.features else "the file names no columns: leave it out"
            raise UserError(f"data.{name}={column}: there is no such column of numbers in {path}; {why}")
        found[name] = rows.x[:, rows.features.index(column)].astype(np.float64)
    if weight is not None and weight == offset:
        raise UserError(f"data.offset={offset} is data.weight too: name two different columns")
    if "weight" in found and found["weight"].min() < 0:
        row = int(found["weight"].argmin())
        least = found["weight"][row]
        raise UserError(f"data.weight={weight}: row {row + 1} of {path} has {least:g}; give weights of 0 or more")
    kept = [k for k, feature in enumerate(rows.features) if feature not in given.values()]
    if found and not kept:
        raise UserError(f"data.path={path}: beside data.{' and data.'.join(found)} there are no features; give one")
    return (
        (replace(rows, x=rows.x[:, kept], features=tuple(rows.features[k] for k in kept)), found)
        if found
        else (rows, {})
    )
