"""Columns that are no features: the weights of the rows, and the offsets of their predictions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.tables.columns import require_numbers
from fcorun.tables.parsed_rows import ParsedRows

_WIDE_OFFSETS = 20  # with a log link, means that differ by a factor of 5e8


def check_column_roles(
    ignore: Sequence[str] | None, only: Sequence[str] | None, taken: dict[str, str | None], **metadata: str | None
) -> None:
    """Raise UserError for a column with two roles.

    ``metadata`` has the columns of weights, offsets, groups, splits and folds by option. None of them may be in
    ``ignore``, or ``taken`` as target or client. ``ignore`` and ``only`` may not overlap.
    """
    for option, column in metadata.items():
        for other, name in taken.items():
            if column is not None and column == name:
                raise UserError(f"data.{option}={column} is data.{other} too: name a column of its own")
    for name in ignore or ():
        if name in (only or ()):
            raise UserError(f"data.ignore and data.only both name '{name}': name it in one of them")
        for option, column in metadata.items():
            if name == column:
                raise UserError(f"data.{option}={name} is in data.ignore too, and is no feature anyway: leave it out of"
                                " data.ignore")  # fmt: skip


def take_weight_and_offset(
    rows: ParsedRows, path: str, weight: str | None, offset: str | None
) -> tuple[ParsedRows, dict[str, Any]]:
    """Return the rows without these columns, with warnings about them, and the columns' values.

    The values are float64 arrays (N,) under the keys "weight" and "offset". ``path`` is the file, for errors.

    Raises UserError for a missing column, one that is both, missing or infinite values, and negative weights.
    """
    columns = {option: column for option, column in (("weight", weight), ("offset", offset)) if column is not None}
    if not columns:
        return rows, {}
    frame = rows.frame if rows.metadata is None else rows.metadata
    values = {}
    for option, column in columns.items():
        if frame is None:
            raise UserError(f"data.{option}={column}: there is no such column in {path}; the file names no columns: "
                            "leave it out")  # fmt: skip
        if column not in frame:
            suggestion = suggest_name(column, list(frame))
            raise UserError(f"data.{option}={column}: there is no such column in {path}; {suggestion}")
        values[option] = require_numbers(frame[column], f"data.path={path}: column '{column}'").astype(np.float64)
        finite = np.isfinite(values[option])
        if not finite.all():
            row = int((~finite).argmax()) + 1
            raise UserError(f"data.{option}={column} is missing or infinite in row {row}: fill it in or drop the row")
    if weight is not None and weight == offset:
        raise UserError(f"data.offset={offset} is data.weight too: name two different columns")
    if "weight" in values and values["weight"].min() < 0:
        row = int((values["weight"] < 0).argmax())
        raise UserError(
            f"data.weight={weight}: row {row + 1} of {path} has {values['weight'][row]:g}; give weights of 0 or more"
        )

    assert frame is not None
    warnings = list(rows.warnings)
    if weight is not None:
        warnings.append(
            f"data.weight={weight} weighs the rows in training and its metrics; scores.csv counts each row "
            "once, and features are standardized by the rows as they are"
        )
    if offset is not None:
        width = float(np.ptp(values["offset"]))
        if width > _WIDE_OFFSETS:
            warnings.append(
                f"data.offset={offset} spans {width:g}, and is added to the linear predictor, with a log link to "
                "the logarithm of the mean: if it is an exposure such as days, give its logarithm"
            )
    rows = replace(rows, warnings=tuple(warnings))
    if rows.metadata is None:
        features = frame.drop(columns=list(columns.values()))
        if not features.shape[1]:
            raise UserError(
                f"data.path={path}: the file has no feature columns besides data.{' and data.'.join(columns)}; give at "
                "least one"
            )
        rows = replace(rows, frame=features)
    return rows, values
