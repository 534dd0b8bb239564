"""Columns of a table that are no features: the rows' weights, and what is added to their predictions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.tables.columns import require_numbers
from fcorun.tables.parsed_rows import ParsedRows

_WIDE = 20  # of offsets: with a log link, means that differ by a factor of 5e8


def check_column_roles(
    ignore: Sequence[str] | None, only: Sequence[str] | None, taken: dict[str, str | None], **aside: str | None
) -> None:
    """Raises UserError where ``ignore`` names what ``only`` does, or one of the columns ``aside``, weight or offset, or
    where one of these is ``taken`` by target or client."""
    for option, column in aside.items():
        for other, name in taken.items():
            if column is not None and column == name:
                raise UserError(f"data.{option}={column} is data.{other} too: name a column of its own")
    for name in ignore or ():
        if name in (only or ()):
            raise UserError(f"data.ignore and data.only both name '{name}': name it in one of them")
        for option, column in aside.items():
            if name == column:
                raise UserError(f"data.{option}={name} is in data.ignore too, and is no feature anyway: leave it out of"
                                " data.ignore")  # fmt: skip


def take_weight_and_offset(
    rows: ParsedRows, path: str, weight: str | None, offset: str | None
) -> tuple[ParsedRows, dict[str, Any]]:
    """The rows without these columns and with remarks on them, and the values of those given.

    The values are in float64, each (N,), by "weight" and "offset".
    ``path`` is that of the file, for errors. Raises UserError for a column that there is not, that is both, or
    that has values that are missing or no numbers, and for weights that are negative.
    """
    given = {name: column for name, column in (("weight", weight), ("offset", offset)) if column is not None}
    if not given:
        return rows, {}
    found, frame = {}, rows.frame if rows.metadata is None else rows.metadata
    for name, column in given.items():
        if frame is None or column not in frame:
            why = "the file names no columns: leave it out" if frame is None else suggest_name(column, list(frame))
            raise UserError(f"data.{name}={column}: there is no such column in {path}; {why}")
        values = found[name] = require_numbers(frame[column], f"data.path={path}: column '{column}'").astype(np.float64)
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
    remarks = (*rows.warnings, *_remarks(given, found))
    if rows.metadata is not None:
        return replace(rows, warnings=remarks), found
    rest = frame.drop(columns=list(given.values()))
    if not rest.shape[1]:
        raise UserError(f"data.path={path}: beside data.{' and data.'.join(found)} there are no features; give one")
    return replace(rows, frame=rest, warnings=remarks), found


def _remarks(given: dict[str, str], found: dict[str, np.ndarray]) -> list[str]:
    """What these columns do not do, and a doubt about an offset."""
    told = []
    if "weight" in given:
        told.append(
            f"data.weight={given['weight']} weighs the rows in training and its metrics; scores.csv counts each row "
            "once, and features are standardized by the rows as they are"
        )
    if "offset" in given and (span := float(np.ptp(found["offset"]))) > _WIDE:
        told.append(
            f"data.offset={given['offset']} spans {span:g}, and is added to the linear predictor, with a log link to "
            "the logarithm of the mean: if it is an exposure such as days, give its logarithm"
        )
    return told
