"""Files with named columns: which of them are target, client and features."""

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.tables.npz import names_as_text
from fcorun.tables.parsed_rows import ParsedRows


def check_unique_names(names: Sequence[str], where: str) -> None:
    """Raises UserError, which begins with ``where``, where two columns have the same name."""
    for twice in (name for name, count in Counter(names).items() if count > 1):
        raise UserError(f"{where}: two columns are called '{twice}': rename or drop one")


def select_features(
    frame: Any,
    path: str,
    taken: Sequence[str | None],
    ignore: Sequence[str] | None,
    only: Sequence[str] | None,
) -> list[str]:
    """The columns that are features, in the order of the file. Raises UserError for names that are none."""
    there = [name for name in frame.columns if name not in taken]
    for option, names in (("ignore", ignore), ("only", only)):
        for name in names or ():
            if name not in there:
                if name in taken:
                    raise UserError(
                        f"data.{option}: '{name}' is the target or the client, and no feature; leave it out"
                    )
                raise UserError(f"data.{option}: {path} has no column '{name}'; {suggest_columns(name, frame[there])}")
    return [name for name in there if name not in (ignore or ()) and (only is None or name in only)]


def split_columns(frame: Any, path: str, target: str | None, client: str | None, *, features: list[str]) -> ParsedRows:
    """A data frame as target, clients and features. Raises UserError for a column that is missing or has gaps."""
    if target is None:
        raise UserError(f"data.target has no value: name the column of {path} to predict, {suggest_columns('', frame)}")
    if target == client:
        raise UserError(f"data.client={client} is data.target too: name two different columns")
    for option, column in (("target", target), ("client", client)):
        if column is not None and column not in frame:
            raise UserError(
                f"data.{option}={column}: there is no such column in {path}; {suggest_columns(column, frame)}"
            )
        if column is not None and frame[column].isna().any():
            row = int(frame[column].isna().to_numpy().argmax()) + 1
            raise UserError(f"data.{option}={column}: row {row} of {path} has no value there; fill it in or drop it")
    unnamed = next((c for c in features if c.startswith("Unnamed: ")), None)
    if unnamed:
        raise UserError(
            f"data.path={path}: column {unnamed.split()[-1]} (from 0) has no name and may be a saved row number; "
            "name it or drop it (in pandas: to_csv(..., index=False))"
        )
    return ParsedRows(
        x=np.empty((len(frame), 0)),
        y=to_plain_array(frame[target]),
        client=None if client is None else names_as_text(to_plain_array(frame[client])),
        frame=frame[features],
    )


def suggest_columns(name: str, frame: Any) -> str:
    """The end of a sentence about a column that is not there: the nearest ones, and all of them if they are few."""
    names = list(frame.columns)
    return suggest_name(name, names if len(names) <= 30 else get_close_matches(name, names, n=10, cutoff=0))


def to_plain_array(series: Any) -> np.ndarray:
    """A column without missing values as numbers, booleans or text."""
    from pandas.api import types

    if types.is_bool_dtype(series.dtype):
        return series.to_numpy(dtype=bool)
    if types.is_numeric_dtype(series.dtype):
        return series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", series.dtype))
    return series.astype(str).to_numpy(dtype=str)
