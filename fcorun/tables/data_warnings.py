"""What a user should know of a table before it is used: names that are almost alike, features that look like names,
commas that were taken for those of decimals, a target that looks like classes, columns that say nothing, splits."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fcorun.system.machine import free_device_memory

_SHOWN = 3  # of a kind, or of rows
# numbers that stand for gaps in many files
_CODES = np.array(
    [sign * int(digit * count) for sign in (-1, 1) for digit in "789" for count in (2, 3, 4, 5, 6)] + [-9]
)
_SHARE = 0.1  # of the free memory, for columns that may number the rows


def warn_similar_names(what: str, names: Iterable) -> list[str]:
    """A remark on names that differ in capitals or spaces only."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if isinstance(name, str):
            groups.setdefault(normalize_name(name), []).append(name)
    found = [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]
    if not found:
        return []
    return [f"{what} {abbreviate(found)} differ in capitals or spaces only: if they are the same, write them alike"]


def normalize_name(name: str) -> str:
    """A name but for its capitals and spaces."""
    return " ".join(name.split()).casefold()


def warn_identifiers(x: Any, features: Sequence[str] = ()) -> list[str]:
    """A remark on the columns of x (N, d), which may stay on disk, that hold another whole number in every row, from 20
    rows on."""
    differ = 256.0**x.dtype.itemsize if x.dtype.kind in "iu" else np.inf
    if not 20 <= len(x) <= differ:
        return []
    first = np.asarray(x[:20])
    columns = np.array([column for column in range(x.shape[1]) if _all_apart(first[:, column])], int)
    if len(columns):
        with np.errstate(invalid="ignore"):  # of what is not finite, which others tell
            span = x.max(axis=0)[columns].astype(float) - x.min(axis=0)[columns]
        columns = columns[span >= len(x) - 1]
    at_once = max(1, int(free_device_memory() * _SHARE) // (len(x) * x.dtype.itemsize))  # each time, all rows are read
    groups = [columns[start : start + at_once] for start in range(0, len(columns), at_once)]
    found = [column for group in groups for column, own in zip(group, x[:, group].T, strict=True) if _all_apart(own)]
    names = [f"'{features[column]}'" if features else f"column {column} (from 0)" for column in found]
    if not names:
        return []
    return [
        f"every row has another whole number in {abbreviate(names)}: if that numbers rows or persons, drop the column"
    ]


def warn_decimal_commas(columns: Sequence[str]) -> list[str]:
    """A remark on the columns whose commas were taken for those of decimals."""
    if not columns:
        return []
    return [
        f"commas in {abbreviate(list(map(repr, columns)))} are read as of decimals, 1,5 as 1.5: check that they are"
    ]


def warn_missing_tokens(words: Mapping[str, Sequence[str]], frame: Any) -> list[str]:
    """Remarks on the words for nothing, by column of a pandas.DataFrame, that are levels, and that became gaps."""
    levels, gaps = [], []
    for name, found in words.items():
        called, level = " and ".join(map(repr, found)), frame[name].isin(found).any()
        (levels if level else gaps).append((repr(name), called))
    told = []
    if levels:
        each = [f"column {name} has the level {called}" for name, called in levels]
        told.append(f"{abbreviate(each)}: if that means that nothing is known, leave the cells empty")
    if gaps:
        told.append(abbreviate([f"{called} is read as a gap in column {name}" for name, called in gaps]))
    return told


def warn_two_valued_target(y: np.ndarray) -> list[str]:
    """A remark on a target of a regression that has two values only, from 20 rows on."""
    if len(y) < 20 or len(np.unique(y)) != 2:
        return []
    return ["the target has two values only: if they are classes, give data.task=binary"]


def warn_missing_codes(x: Any, features: Sequence[str] = ()) -> list[str]:
    """Return a remark on the columns of x (N, d) whose least or largest value is a number that often stands for a gap,
    such as -999, and lies farther from all others than these do from each other. Rows on disk are not looked at."""
    if not isinstance(x, np.ndarray) or len(x) < 2:
        return []
    edges = np.isin(x.min(axis=0), _CODES) | np.isin(x.max(axis=0), _CODES)
    told = []
    for place in np.flatnonzero(edges).tolist():
        coded = np.isin(x[:, place], _CODES)
        others, codes = x[~coded, place].astype(float), np.unique(x[coded, place]).astype(float)
        if not len(others):
            continue
        low, high = others.min(), others.max()
        far = [code for code in codes if max(low - code, code - high) > high - low]
        if far and high > low:
            rows = np.flatnonzero(np.isin(x[:, place], far)).tolist()
            name = f"'{features[place]}'" if features else f"column {place} (from 0)"
            called = " and ".join(f"{code:g}" for code in far)
            told.append(f"{name} has {called} in {describe_rows(rows)}, all others lie between {low:g} and {high:g}")
    return [f"{abbreviate(told)}: if that means that nothing is known, leave the cells empty"] if told else []


def warn_positive_class(classes: Sequence, given: object) -> list[str]:
    """Return a remark that names the class coefficients speak for, the second, unless it was ``given`` or is 1 of 0 and
    1, or true."""
    if given is not None or list(classes) in ([0, 1], ["0", "1"], [False, True]):
        return []
    first, second = classes
    return [f"of the classes '{first}' and '{second}', coefficients above 0 and probabilities speak for '{second}'; "
            f"data.positive={first} turns that round"]  # fmt: skip


def warn_constant_features(
    x: np.ndarray, features: Sequence[str] = (), columns: Mapping[str, str] | None = None
) -> list[str]:
    """A remark on the features of the training rows x (N, d) that have one value; ``columns`` are those that they are
    made of, by feature, where these may be left out."""
    if len(x) < 2:
        return []
    same = np.flatnonzero(x.min(axis=0) == x.max(axis=0)).tolist()
    if not same:
        return []
    names = [f"'{features[place]}'" if features else f"column {place} (from 0)" for place in same]
    of = list(dict.fromkeys((columns or {})[features[place]] for place in same)) if features and columns else []
    cure = f"; data.ignore=[{','.join(of[:_SHOWN])}] leaves it out" if of else "" if features else (
        "; leave it out of the file")  # fmt: skip
    return [
        f"one value in all training rows of {abbreviate(names)}: nothing can be learned from that, but it counts in "
        f"density and may be chosen{cure}"
    ]


def warn_nothing_held_out(fraction: float, sizes: np.ndarray) -> list[str]:
    """A remark on a fraction of each client's rows, of ``sizes`` (M,), that is none of them."""
    if not fraction:
        return []
    least = int(np.ceil(1 / fraction - 1e-9))
    return [f"data.validation={fraction} holds out no row, for every client has fewer than {least} rows (the largest "
            f"{sizes.max()}): nothing is measured on held-out rows; give more, or a list of clients"]  # fmt: skip


def warn_scaled_by_held_out_rows(clients: Sequence[str]) -> list[str]:
    """A remark on clients without training rows whose features are standardized by each client."""
    if not clients:
        return []
    return [f"data.standardize=per_client: {abbreviate(list(map(repr, clients)))} without training rows are scaled "
            "by the mean and deviation of their own held-out rows, which a new row would not have"]  # fmt: skip


def _all_apart(values: np.ndarray) -> bool:
    return bool((values == np.floor(values)).all()) and len(np.unique(values)) == len(values)


def abbreviate(found: Sequence[str], shown: int = _SHOWN) -> str:
    """The first few, and how many more there are."""
    more = len(found) - shown
    return ", ".join(found[:shown]) + (f" and {more} more" if more > 0 else "")


def describe_rows(places: Sequence[int]) -> str:
    """How many rows, and the numbers of the first, from 1; ``places`` are from 0, in order."""
    first = ", ".join(str(place + 1) for place in places[:_SHOWN])
    if len(places) == 1:
        return f"row {first}"
    return f"{len(places)} rows ({first}{', ...' if len(places) > _SHOWN else ''})"
