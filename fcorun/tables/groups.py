"""Columns that say which rows belong together, which split a row is of, and which fold."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from fcorun.errors import UserError
from fcorun.tables.column_selection import suggest_columns, to_plain_array
from fcorun.tables.columns import holds_dates
from fcorun.tables.data_warnings import abbreviate, warn_similar_names
from fcorun.tables.npz import names_as_text
from fcorun.tables.parsed_rows import ParsedRows

SPLITS = ("train", "validation", "test")


def attach_groups_and_splits(
    rows: ParsedRows, path: str, group: str | None, split: str | None, fold: str | None
) -> ParsedRows:
    """Return the rows with what these columns say of them, which are no features.

    Raises UserError for a column that is missing, a row without a group or a split, and another word than ``SPLITS``.
    """
    columns = {
        option: name for option, name in (("group", group), ("split", split), ("fold", fold)) if name is not None
    }
    if not columns:
        return rows
    frame = rows.frame if rows.metadata is None else rows.metadata
    assert frame is not None  # of files without columns ``read`` tells
    values = {}
    for option, name in columns.items():
        if name not in frame:
            raise UserError(f"data.{option}={name}: there is no such column in {path}; {suggest_columns(name, frame)}")
        values[option] = column_as_text(frame[name])
        if option != "fold" and "" in values[option]:
            row = values[option].tolist().index("") + 1
            raise UserError(f"data.{option}={name}: row {row} of {path} has no value there; fill it in or drop it")
    if rows.metadata is None:
        frame = frame.drop(columns=list(dict.fromkeys(columns.values())))
        if not frame.shape[1]:
            raise UserError(f"data.path={path}: beside {' and '.join(f'data.{option}' for option in columns)} there "
                            "are no features; give one")  # fmt: skip
        rows = replace(rows, frame=frame)
    if "split" in values:
        marks = split_masks(values["split"], f"data.split={split}", path, (rows.validation, rows.test))
        rows = replace(rows, validation=marks[0], test=marks[1])
    return replace(rows, group=values.get("group"), fold=values.get("fold"))


def column_as_text(series: Any) -> np.ndarray:
    """Return a column as text, "" where it has no value, (N,)."""
    found, there = np.full(len(series), "", object), series.notna().to_numpy()
    found[there] = np.char.strip(names_as_text(to_plain_array(series[there].infer_objects())))
    return found.astype(str)


def split_masks(
    split: Shaped[np.ndarray, " N"], option: str, path: str, marked: tuple[np.ndarray | None, np.ndarray | None]
) -> tuple[Bool[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
    """Return which rows are of validation and which of the test, (N,) each, by the words of ``SPLITS``.

    Raises UserError, which begins with ``option``, for other words, and where the file marks rows by arrays too.
    """
    if marked != (None, None):
        raise UserError(f"{option}: {path} marks its rows by the arrays validation and test: leave data.split out")
    others = ~np.isin(split, SPLITS)
    if others.any():
        row = int(others.argmax())
        raise UserError(f"{option}: row {row + 1} of {path} has '{split[row]}'; write train, validation or test")
    if not (split == "train").any():
        raise UserError(f"{option}: no row of {path} is marked train; leave some to train on")
    return split == "validation", split == "test"


def draw_uniform_per_group(group: Shaped[np.ndarray, " N"], rng: np.random.Generator) -> Float[np.ndarray, " N"]:
    """Draw a number from [0, 1) for each group, and return that of each row's, (N,).

    The number depends on the state of ``rng`` and on the group's name alone: other groups do not change it.
    """
    salt = rng.bytes(16)
    names, inverse = np.unique(group, return_inverse=True)
    digests = b"".join(hashlib.blake2b(str(name).encode(), digest_size=8, salt=salt).digest() for name in names)
    return ((np.frombuffer(digests, "<u8") >> np.uint64(11)) * 2.0**-53)[inverse]


def check_groups_intact(
    group: Shaped[np.ndarray, " N"], part: Shaped[np.ndarray, " N"], option: str, column: str
) -> None:
    """Raise UserError, which begins with ``option``, where a group of ``column`` has rows of two parts, (N,)."""
    if (found := _first_across(group, part)) is not None:
        name, one, other = found
        raise UserError(f"{option}: group '{name}' of data.group={column} has rows of '{one}' and of '{other}': mark "
                        "all rows of a group alike, or leave data.group out")  # fmt: skip


def warn_groups_across_clients(
    group: Shaped[np.ndarray, " N"], owner: Int[np.ndarray, " N"], names: Sequence[str], column: str, keep: bool
) -> list[str]:
    """Say what happens to groups that have rows of several clients. Raise UserError unless they are to be kept."""
    if (found := _first_across(group, owner)) is None:
        return []
    clients = [([*names, ""][m] or "nobody") for m in found[1:]]
    first = f"'{found[0]}' has rows of client {clients[0]} and of client {clients[1]}"
    if not keep:
        raise UserError(f"data.group={column}: group {first}: if these are two groups, name them apart, such as "
                        f"{clients[0]}-{found[0]}; if they are one, data.group_across=keep holds it out at all of its "
                        "clients at once")  # fmt: skip
    pairs = np.unique(np.stack([np.unique(group, return_inverse=True)[1], owner]), axis=1)
    count = int((np.bincount(pairs[0]) > 1).sum())
    return [f"data.group={column}: {count} groups have rows of several clients ({first}): data.group_across=keep holds "
            "such a group out at all of its clients at once, where a client is held out wholly too"]  # fmt: skip


def _first_across(group: np.ndarray, part: np.ndarray) -> tuple[Any, Any, Any] | None:
    """A group with rows of two parts, and these; None where there is none."""
    order = np.lexsort((part, group))
    group, part = group[order], part[order]
    across = (group[1:] == group[:-1]) & (part[1:] != part[:-1])
    if not across.any():
        return None
    row = int(across.argmax())
    return group[row], part[row], part[row + 1]


def summarize_groups(
    group: Shaped[np.ndarray, " N"], column: str, validation: Bool[np.ndarray, " N"], test: Bool[np.ndarray, " N"]
) -> list[str]:
    """Say how many groups there are, how many of them are held out, and which names are almost alike."""
    parts = [f"{len(np.unique(group[held])):,} with {held.sum():,} rows for {name}"
             for name, held in (("validation", validation), ("the test", test)) if held.any()]  # fmt: skip
    names = np.unique(group)
    said = f"data.group={column}: the rows of each of {len(names):,} groups stay together"
    alike = warn_similar_names(f"data.group={column}: groups", names.tolist())
    return [said + (f"; held out are {' and '.join(parts)}" if parts else ""), *alike]


def suggest_group_columns(frame: Any, columns: Sequence[str], client: str | None) -> list[str]:
    """Say which of these columns, which are no features, may name groups of rows, such as the patients of visits.

    Their values are text, but for dates, or whole numbers; they repeat; and each of them is of one client, or there are
    more than 100 of text or half as many as rows.
    """
    found = []
    for name in columns:
        series = frame[name]
        if series.isna().any() or not _may_name(series):
            continue
        values = column_as_text(series)
        count = len(np.unique(values))
        within = client is not None and _first_across(values, frame[client].astype(str).to_numpy()) is None
        clients = 1 if client is None else frame[client].nunique()
        many = series.dtype.kind not in "iu" and (count > 100 or count > len(values) / 2)
        if count < len(values) and ((within and count > 2 * clients) or many):
            found.append((name, count))
    if not found:
        return []
    each = [f"'{name}' has {count:,} values in {len(frame):,} rows" for name, count in found]
    return [f"{abbreviate(each)}: if rows with one value belong together, as the visits of a patient do, "
            f"data.group={found[0][0]} keeps them together where rows are held out"]  # fmt: skip


def _may_name(series: Any) -> bool:
    """Whether a column holds text that is no date, or whole numbers."""
    from pandas.api import types

    if types.is_bool_dtype(series.dtype) or types.is_datetime64_any_dtype(series.dtype):
        return False
    return types.is_integer_dtype(series.dtype) or not (types.is_numeric_dtype(series.dtype) or holds_dates(series))
