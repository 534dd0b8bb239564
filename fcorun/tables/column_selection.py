"""Named columns: which of them are the target, the client and the features."""

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.tables.npz import names_as_text
from fcorun.tables.parsed_rows import ParsedRows

_MAX_LISTED = 30  # an error lists all columns of a file with no more than these


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


def to_plain_array(series: Any) -> np.ndarray:
    """Return a column without missing values as an array of numbers, booleans or text, shape (N,)."""
    from pandas.api import types

    if types.is_bool_dtype(series.dtype):
        return series.to_numpy(dtype=bool)
    if types.is_numeric_dtype(series.dtype):
        return series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", series.dtype))
    return series.astype(str).to_numpy(dtype=str)
