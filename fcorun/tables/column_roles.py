"""Roles of columns: target, client, weight, offset, group, split, fold, and features."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.tables.columns import names_as_text, require_numbers, to_plain_array

_MAX_LISTED = 30  # an error lists all columns of a file with no more than these
_WIDE_OFFSETS = 20  # with a log link, means that differ by a factor of 5e8


@dataclass(frozen=True)
class ParsedRows:
    """The rows of a file in the order of the file.

    Attributes:
        x: features, shape (N, d), a real dtype, finite. Empty if the columns are still in ``frame``.
        y: targets as the file has them, shape (N,): finite real numbers, booleans or text.
        client: the client of each row, text, shape (N,), or None.
        validation, test: masks of the rows that the file holds out, shape (N,), or None.
        group: the name of each row's group, text, shape (N,), or None.
        fold: the name of the fold that holds each row out, text, "" for none, shape (N,), or None.
        frame: a pandas.DataFrame of the feature columns before they are encoded, or None if ``x`` holds the features.
        warnings: sentences about how the file was read.
        metadata: a pandas.DataFrame of weights, offsets, groups, splits and folds of a file whose features are in
            ``x``, or None.
        encoding: the Encoding that a Parquet file read from disk brings along, or None.
    """

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None = None
    validation: np.ndarray | None = None
    test: np.ndarray | None = None
    group: np.ndarray | None = None
    fold: np.ndarray | None = None
    frame: Any = None
    warnings: tuple[str, ...] = ()
    metadata: Any = None
    encoding: Any = None


def check_unique_names(names: Sequence[str], where: str) -> None:
    """Raise UserError, which begins with ``where``, if two columns have the same name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"{where}: two columns are called '{name}': rename or drop one")


def select_features(
    frame: Any,
    path: str,
    taken: Sequence[str | None],
    ignore: Sequence[str] | None,
    only: Sequence[str] | None,
) -> list[str]:
    """Return the columns that are features, in the order of the file.

    ``taken`` are the target and the client. Raises UserError for names in ``ignore`` or ``only`` that are no columns.
    """
    available = [name for name in frame.columns if name not in taken]
    for option, names in (("ignore", ignore), ("only", only)):
        for name in names or ():
            if name in taken:
                raise UserError(f"data.{option}: '{name}' is the target or the client, and no feature; leave it out")
            if name not in available:
                suggestion = suggest_columns(name, frame[available])
                raise UserError(f"data.{option}: {path} has no column '{name}'; {suggestion}")
    ignored = set(ignore or ())
    return [name for name in available if name not in ignored and (only is None or name in only)]


def split_columns(frame: Any, path: str, target: str | None, client: str | None, *, features: list[str]) -> ParsedRows:
    """Split a data frame into target, clients and features.

    Raises UserError for a target or client that is missing or has gaps, and for a feature without a name.
    """
    if target is None:
        raise UserError(f"data.target has no value: name the column of {path} to predict, {suggest_columns('', frame)}")
    if target == client:
        raise UserError(f"data.client={client} is data.target too: name two different columns")
    for option, column in (("target", target), ("client", client)):
        if column is None:
            continue
        if column not in frame:
            raise UserError(
                f"data.{option}={column}: there is no such column in {path}; {suggest_columns(column, frame)}"
            )
        if frame[column].isna().any():
            row = int(frame[column].isna().to_numpy().argmax()) + 1
            raise UserError(f"data.{option}={column}: row {row} of {path} has no value there; fill it in or drop it")
    for name in features:
        if name.startswith("Unnamed: "):
            raise UserError(
                f"data.path={path}: column {name.split()[-1]} (from 0) has no name and may be a saved row number; "
                "name it or drop it (in pandas: to_csv(..., index=False))"
            )
    return ParsedRows(
        x=np.empty((len(frame), 0)),
        y=to_plain_array(frame[target]),
        client=None if client is None else names_as_text(to_plain_array(frame[client])),
        frame=frame[features],
    )


def suggest_columns(name: str, frame: Any) -> str:
    """Return the end of an error about a missing column: similar names, or all names of a file with few columns."""
    names = list(frame.columns)
    if len(names) > _MAX_LISTED:
        names = get_close_matches(name, names, n=10, cutoff=0)
    return suggest_name(name, names)


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
