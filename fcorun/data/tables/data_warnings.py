"""Warnings about a table before it is used, each a sentence in a list."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fcorun.base.errors import abbreviate, describe_rows, normalize_name, word
from fcorun.base.override_text import format_override_value
from fcorun.base.system.machine import free_host_memory
from fcorun.data.rows.features import why_not_dense
from fcorun.data.rows.rows import Rows, sum_columns_by_client
from fcorun.data.tables.cells import to_level_names
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tasks.task import Task

_FEW_ROWS = 20  # a table with fewer rows is not searched for identifiers or for a target that looks like classes
# numbers that stand for missing values in many files: -9, 7 to 9, and with both signs 77, 777, ... 999999, one digit
# repeated
_REPDIGITS = [sign * int(digit * count) for sign in (-1, 1) for digit in "789" for count in (2, 3, 4, 5, 6)]
_MISSING_CODES = np.array([*_REPDIGITS, -9, 7, 8, 9])
_ZERO_CODES = (0, -1)  # which are such numbers where all others are far from 0
_LARGE_CODE = 777  # smaller positive ones are values of many columns, such as ages
_MANY_VALUES = 10  # different numbers, whose quartiles tell how far from them is far
_FIRST_ROWS = 200
_NEAR_ZERO = 0.1  # of the median
_IF_MISSING = "if that stands for a missing value"
_DAY_ZERO = date(1899, 12, 30)
_FIRST_DAY = 42005  # the beginning of 2015
_LAST_DAY = 47482  # the end of 2029
_HUGE = 1e18
_MEMORY_SHARE = 0.1  # of the free memory, for columns that may be identifiers
_MAX_CELLS = 10_000_000  # cells of a table whose repeated rows are counted, or classes compared, which takes a second
# a feature that tells so many rows of a class from all rows of the other is rarely known before the outcome
_LEAK_SHARE = 0.9
_LEAK_ROWS = 30  # of either class: a strong feature may tell more rows from few others


# The file of the Wisconsin breast cancer data (Wolberg, Street and Mangasarian, UCI, 1995) begins with the ID number.
def warn_identifiers(x: Any, features: Sequence[str] = ()) -> list[str]:
    """Return a warning about the columns of x (N, d) that hold a different whole number in every row.

    The rows may stay on disk. Fewer than 20 rows are not searched.
    """
    n_distinct = 256.0**x.dtype.itemsize if x.dtype.kind in "iu" else np.inf
    if not _FEW_ROWS <= len(x) <= n_distinct:
        return []
    first_rows = np.asarray(x[:_FEW_ROWS])
    candidates = np.array([j for j in range(x.shape[1]) if _are_distinct_integers(first_rows[:, j])], int)
    if len(candidates):
        with np.errstate(invalid="ignore"):  # infinite values are reported elsewhere
            widths = x.max(axis=0)[candidates].astype(float) - x.min(axis=0)[candidates]
        candidates = candidates[widths >= len(x) - 1]
    names = [_column_name(j, features) for j, values in _read_columns(x, candidates) if _are_distinct_integers(values)]
    if not names:
        return []
    return [f"every row has a different whole number in {abbreviate(names)}: if that numbers rows or persons, drop "
            "the column"]  # fmt: skip


# Five rows of the birth weights of R's MASS equal an earlier row, birth weight in grams included.
def warn_repeated_rows(frame: Any, client: str | None) -> list[str]:
    """Return warnings about rows of a pandas.DataFrame that equal an earlier row in all columns, or at another client.

    Rows are compared where one column has different values in most of the rows, since other tables repeat rows by
    chance. Fewer than 20 rows, and tables of more than 10,000,000 cells, are not searched.

    Args:
        frame: the rows.
        client: the column of clients, which copies of a row at two clients do not share, or None.
    """
    if len(frame) < _FEW_ROWS or frame.size > _MAX_CELLS:
        return []
    others = frame.drop(columns=[client], errors="ignore")
    is_copy = others.duplicated().to_numpy()
    if not is_copy.any():
        return []
    distinct = others[~is_copy]
    if 2 * max(distinct[name].nunique() for name in distinct) <= len(distinct):
        return []
    is_repeated = frame.duplicated().to_numpy()
    kinds = {"all columns": is_repeated, f"all columns but '{client}'": is_copy & ~is_repeated}
    warnings = []
    for columns, mask in kinds.items():
        rows = np.flatnonzero(mask).tolist()
        if rows:
            verb = "repeats" if len(rows) == 1 else "repeat"
            warnings.append(f"{describe_rows(rows)} {verb} an earlier row in {columns}: if they are copies, drop them, "
                            "for copies of training rows among held-out rows make scores too good")  # fmt: skip
    return warnings


def _read_columns(x: Any, columns: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield columns of x (N, d) with their numbers. Rows on disk are read once for as many columns as fit in memory."""
    at_once = max(1, int(free_host_memory() * _MEMORY_SHARE) // (len(x) * x.dtype.itemsize))
    for start in range(0, len(columns), at_once):
        step = columns[start : start + at_once]
        yield from zip(step.tolist(), x[:, step].T, strict=True)


def _are_distinct_integers(values: np.ndarray) -> bool:
    return bool((values == np.floor(values)).all()) and len(np.unique(values)) == len(values)


def _column_name(column: int, features: Sequence[str]) -> str:
    """Return the quoted name of a column, or its number where columns have no names."""
    if features:
        return f"'{features[column]}'"
    return f"column {column} (from 0)"


def warn_missing_tokens(tokens: Mapping[str, Sequence[str]], frame: Any) -> list[str]:
    """Return warnings about tokens such as NA that became levels, and about tokens that became gaps.

    ``tokens`` has the tokens in the file by column of ``frame``, a pandas.DataFrame.
    """
    levels: list[str] = []
    found: list[str] = []
    gaps: list[str] = []
    for name, column_tokens in tokens.items():
        is_level = frame[name].isin(column_tokens)
        present = set(frame[name][is_level]) if is_level.any() else set()
        for token in column_tokens:
            if token in present:
                levels.append(f"column {name!r} has the level {token!r}")
                found.append(token)
        if absent := [token for token in column_tokens if token not in present]:
            gaps.append(f"{' and '.join(map(repr, absent))} is read as a gap in column {name!r}")
    warnings = []
    if levels:
        warnings.append(f"{abbreviate(levels)}: {_cure_missing(list(dict.fromkeys(found)))}")
    if gaps:
        warnings.append(abbreviate(gaps))
    return warnings


def _cure_missing(codes: Sequence[str] | Mapping[str, Sequence[float]]) -> str:
    """Return the end of a warning about codes for missing values, in all columns or by column."""
    given = shlex.quote(f"data.na={format_override_value(codes)}")
    return word(f"{_IF_MISSING}, leave the cells empty, or give `{given}`")


_MAX_CLASSES = 10  # distinct whole numbers of a target that looks like classes
IF_CLASSES = "if they are classes, give"  # the end of a warning about a target


# The target of the birth weights of R's MASS (Venables and Ripley, 2002), ``low``, is 0 or 1.
def warn_class_like_target(y: np.ndarray) -> list[str]:
    """Return a warning about a target of a regression, shape (N,), with two values, or few whole numbers, only.

    Fewer than 20 rows are not searched.
    """
    if len(y) < _FEW_ROWS or len(np.unique(y[:1000])) > _MAX_CLASSES:  # most targets need no sorting of all rows
        return []
    values = np.unique(y)
    if not 2 <= len(values) <= _MAX_CLASSES:
        return []
    if len(values) == 2:
        return [word(f"the target has two values only: {IF_CLASSES} `data.task=binary`")]
    if (values != np.floor(values)).any():
        return []
    listed = abbreviate([f"{value:g}" for value in values])
    return [word(f"the target has {len(values)} values only, all whole numbers ({listed}), and is taken as a number: "
                 f"{IF_CLASSES} `data.task=multiclass`")]  # fmt: skip


# The US survey NHANES writes 77 or 777 for "refused" and 99 or 999 for "don't know" among the numbers of a column.
def warn_missing_codes(x: Any, features: Sequence[str] = (), may_have_gaps: bool = True) -> list[str]:
    """Return a warning about the columns of x (N, d) with numbers that seem to stand for missing values, such as -999.

    The rows may stay on disk. ``may_have_gaps`` is whether named columns may have gaps.
    """
    if len(x) < 2:
        return []
    descriptions = []
    codes_by_column: dict[str, list[int]] = {}
    for j, values in _read_columns(x, _find_code_candidates(x)):
        codes, others = find_missing_codes(values)
        if not codes:
            continue
        rows = np.flatnonzero(np.isin(values, codes)).tolist()
        listed = " and ".join(f"{code:g}" for code in codes)
        descriptions.append(f"{_column_name(j, features)} has {listed} in {describe_rows(rows)}, all others lie "
                            f"between {others.min():g} and {others.max():g}")  # fmt: skip
        if features and may_have_gaps:
            codes_by_column[features[j]] = [int(code) for code in codes]
    if not descriptions:
        return []
    cure = _cure_missing(codes_by_column) if codes_by_column else f"{_IF_MISSING}, drop these rows"
    return [f"{abbreviate(descriptions)}: {cure}"]


def _find_code_candidates(x: Any) -> np.ndarray:
    """Return the columns of x (N, d) whose least or largest value may be a code for missing values.

    Most columns with 0 are sorted out by their first rows: columns of few different numbers, and those whose least
    number above 0 is near 0.
    """
    low = x.min(axis=0)
    first_rows = np.sort(x[:_FIRST_ROWS], axis=0)
    least_positive = np.where(first_rows > 0, first_rows, np.inf).min(axis=0)
    varies = (first_rows[1:] > first_rows[:-1]).sum(axis=0) >= _MANY_VALUES
    is_far = least_positive > _NEAR_ZERO * first_rows[len(first_rows) // 2]
    is_candidate = np.isin(low, _MISSING_CODES) | np.isin(x.max(axis=0), _MISSING_CODES)
    return np.flatnonzero(is_candidate | (np.isin(low, _ZERO_CODES) & varies & is_far))


def find_missing_codes(values: np.ndarray) -> tuple[list[float], np.ndarray]:
    """Return the numbers at the ends of a column (N,) that seem to stand for missing values, and the other numbers.

    Such a number is a code in many files and lies far from the nearest of the others, as ``_is_far`` says.
    """
    distinct = np.unique(values)
    is_code = np.isin(distinct, [*_MISSING_CODES, *_ZERO_CODES])
    n_low = int(np.argmin([*is_code, False]))
    n_high = int(np.argmin([*is_code[::-1], False]))
    for below, above in sorted(product(range(n_low + 1), range(n_high + 1)), key=sum, reverse=True):
        rest = distinct[below : len(distinct) - above].astype(float)
        codes = [*distinct[:below].tolist(), *distinct[len(distinct) - above :].tolist()]
        if len(rest) < 2 or not codes:
            continue
        others = values[(values >= rest[0]) & (values <= rest[-1])].astype(float)
        if all(_is_far(code, rest, others) for code in codes):
            return codes, others
    return [], values


def _is_far(code: float, rest: np.ndarray, others: np.ndarray) -> bool:
    """Return whether a code is far from the other numbers, whose different values in order are ``rest``.

    It is at least as far as these are from each other; or it is 0, below 0 or large, and farther from many different
    ones than half the distance of their quartiles. A 0 among few different ones may be a dose. Of one digit, it is a
    code among whole numbers from 0 on only, as a 9 among 0 and 1.
    """
    gap = max(rest[0] - code, code - rest[-1])
    if 0 < code < 10 and (rest[0] < 0 or len(others) < _FEW_ROWS or (rest != np.floor(rest)).any()):
        return False
    if code not in _ZERO_CODES and gap >= rest[-1] - rest[0]:
        return True
    if len(rest) < _MANY_VALUES or 0 < code < _LARGE_CODE:
        return False
    lower, upper = np.quantile(others, (0.25, 0.75))
    return bool(gap > (upper - lower) / 2)


# A cell of Excel without the format of dates shows a day as a number.
def warn_serial_dates(x: Any, features: Sequence[str] = ()) -> list[str]:
    """Return a warning about the columns of x (N, d) that seem to hold days as Excel stores them.

    Filled gaps are no whole numbers. The rows may stay on disk. Fewer than 20 rows are not searched.
    """
    if len(x) < _FEW_ROWS:
        return []
    low = x.min(axis=0)
    high = x.max(axis=0)
    descriptions = []
    for j, values in _read_columns(x, np.flatnonzero((low >= _FIRST_DAY) & (high <= _LAST_DAY) & (low < high))):
        is_whole = values == np.floor(values)
        if is_whole.mean() > 0.5:
            day = int(values[is_whole][0])
            descriptions.append(f"{_column_name(j, features)} ({day} is {_DAY_ZERO + timedelta(days=day)})")
    if not descriptions:
        return []
    return [f"whole numbers as those by which Excel stores days in {abbreviate(descriptions)}: if they are dates, give "
            "an age or the days since another event, or leave the column out"]  # fmt: skip


# Software writes 1e20, 1e30 or 9.97e36 where it has no number.
def warn_huge_numbers(x: Any, features: Sequence[str] = ()) -> list[str]:
    """Return a warning about the columns of x (N, d) with numbers whose squares overflow, or nearly so, in float32.

    The rows may stay on disk.
    """
    if not len(x):
        return []
    largest = np.maximum(np.abs(x.max(axis=0).astype(float)), np.abs(x.min(axis=0).astype(float)))
    descriptions = []
    for j, values in _read_columns(x, np.flatnonzero(largest >= _HUGE)):
        rows = np.flatnonzero(np.abs(values) >= _HUGE).tolist()
        descriptions.append(f"{_column_name(j, features)} has {values[rows[0]]:g} in {describe_rows(rows)}")
    if not descriptions:
        return []
    return [f"{abbreviate(descriptions)}: no training copes with such numbers, and some files have them in place of "
            "missing values: mend them"]  # fmt: skip


def describe_positive_class(classes: Sequence, positive: object) -> list[str]:
    """Return a sentence that names the positive class, the second of two.

    Returns no sentence where the option ``positive`` names the class, or where the class is 1 of 0 and 1, or True.
    """
    if positive is not None or list(classes) in ([0, 1], ["0", "1"], [False, True]):
        return []
    first, second = classes
    return [word(f"of the classes '{first}' and '{second}', coefficients above 0 and probabilities speak for "
            f"'{second}'; `data.positive={first}` makes '{first}' the positive class")]  # fmt: skip


def warn_of_features(
    x: Any,
    features: Sequence[str],
    x_train: Any,
    y_train: np.ndarray,
    classes: Sequence[Any],
    has_other_rows: bool = False,
) -> list[str]:
    """Return the warnings about single features of a table, of all rows x (N, d) and of training rows.

    ``has_other_rows`` is whether other sites have more rows. The rows of a pooled table may stay on disk. Sparse rows,
    whose columns are mostly 0, are not searched.
    """
    if why_not_dense(x):
        return []
    warnings = warn_huge_numbers(x, features)
    warnings += [*warn_identifiers(x, features), *warn_missing_codes(x, features), *warn_serial_dates(x, features)]
    warnings += warn_constant_features(x_train, features, has_other_rows)
    return warnings + warn_leaks(x_train, y_train, classes, features)


def warn_of_targets(task: Task, y: np.ndarray, offset: np.ndarray | None) -> list[str]:
    """Return the warnings about the targets (N,) and the offsets (N,) of a table that are no warnings of the objective.

    The targets are those of all rows, as the file or the task has them.
    """
    warnings = []
    quantity = task.find_quantity(y)
    if quantity is not None:
        warnings += warn_missing_codes(quantity[:, None], ["the target"], may_have_gaps=False)
    if offset is not None:
        warnings += warn_missing_codes(offset[:, None], ["the offset"], may_have_gaps=False)
    return warnings


# The guide on data promises it: a column of one value counts in the density of a solution, and may be chosen.
def warn_constant_features(x: np.ndarray, features: Sequence[str] = (), has_other_rows: bool = False) -> list[str]:
    """Return a warning about the features of the training rows x (N, d) that have one value.

    ``has_other_rows`` is whether other sites have more rows.
    """
    if len(x) < 2:
        return []
    constant = np.flatnonzero(x.min(axis=0) == x.max(axis=0)).tolist()
    if not constant:
        return []
    listed = abbreviate([_column_name(j, features) for j in constant])
    if has_other_rows:
        return [f"one value in all training rows of {listed} here: such a column compares this site with others alone, "
                "and tells nothing if it has one value at all sites"]  # fmt: skip
    return [f"one value in all training rows of {listed}: nothing can be learned from that, but it counts in density "
            "and may be chosen: leave it out"]  # fmt: skip


# In the birth weights of R's MASS, the weight ``bwt`` tells all rows of ``low``, which is ``bwt`` below 2,500 g.
def warn_leaks(x: Any, y: Int[np.ndarray, " N"], classes: Sequence[Any], features: Sequence[str] = ()) -> list[str]:
    """Return a warning about the features of the training rows x (N, d) that almost give away one of two classes.

    Such a feature is below, or above, all values of one class in nine tenths of the rows of the other class or more. A
    rare level without events is none. Rows on disk, and tables with more features than rows, are not searched.
    """
    if len(classes) != 2 or not isinstance(x, np.ndarray) or x.size > _MAX_CELLS or x.shape[1] >= len(x):
        return []
    told_apart: dict[int, str] = {}
    for other in (0, 1):
        rows = x[y != other]
        other_rows = x[y == other]
        if min(len(rows), len(other_rows)) < _LEAK_ROWS:
            continue
        below = rows < other_rows.min(axis=0)
        above = rows > other_rows.max(axis=0)
        counts = np.maximum(below.sum(axis=0), above.sum(axis=0))
        for j in np.flatnonzero(counts >= max(_LEAK_SHARE * len(rows), _LEAK_ROWS)).tolist():
            told_apart[j] = (f"{_column_name(j, features)} alone tells {counts[j]} of {len(rows)} training rows of "
                             f"'{classes[1 - other]}' from all {len(other_rows)} of '{classes[other]}'")  # fmt: skip
    if not told_apart:
        return []
    return [f"the outcome may have leaked into a feature: {abbreviate(list(told_apart.values()))}: check that it was "
            "not recorded after the outcome, or because of it"]  # fmt: skip


def warn_clients_without_events(train: Rows, client_names: Sequence[str]) -> list[str]:
    """Return a warning if clients have no event among their training rows, whose signed times are ``train.y``."""
    without = np.flatnonzero(train.sum_by_client(train.y > 0) == 0)
    if not len(without):
        return []
    names = abbreviate([client_names[m] for m in without.tolist()])
    return [f"no training row of {'client' if len(without) == 1 else 'clients'} {names} has an event: such rows have "
            "no part in a partial likelihood"]  # fmt: skip


def warn_uninformative_features(is_informative: np.ndarray, feature_names: Sequence[str]) -> list[str]:
    """Return a warning about features that are constant within each client of Cox's model, by a mask (d,)."""
    numbers = np.flatnonzero(~is_informative).tolist()
    if not numbers:
        return []
    names = abbreviate([f"'{feature_names[k]}'" if feature_names else f"x{k}" for k in numbers])
    verb = "is" if len(numbers) == 1 else "are"
    return [f"{names} {verb} constant within each client, so that the clients' baseline hazards take their place: the "
            "data do not determine their coefficients, which stay 0"]  # fmt: skip


# Warnings about clients whose columns seem to be written otherwise than those of the others: units, levels. The four
# hospitals of the heart disease data (Janosi and others, UCI, 1988) are such clients: cholesterol is 0 in Switzerland.

FAR = 5  # standard deviations of the others' rows: a mean so far away suggests another unit
_UNIT_RATIO = 10  # of geometric means of targets: outcomes hardly differ so much, months and years, kg and g do
_FAR_IN_LOGARITHMS = 1.5  # standard deviations: months and years are 1.9 apart where times are exponential
_LEAST_TARGET = 1e-20  # times of 0 are stored as smaller numbers
_FEW_ROWS_OF_CLIENT = 5  # the mean and the levels of fewer rows tell nothing
_SHOWN_LEVELS = 4


def measure_distances(
    sums: Float[np.ndarray, "G d"],
    squares: Float[np.ndarray, "G d"],
    n_rows: Int[np.ndarray, " G"],
    mean: Float[np.ndarray, " d"],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how far each group's means are from those of all others, in the others' standard deviations, (G, d).

    The distance is 0 for a group of few rows, or whose others are few or do not vary.

    Args:
        sums: the sums of the columns over the rows of each group.
        squares: the sums of squared deviations from ``mean``, the mean of all rows.

    Returns:
        The distances, the means of the groups, and those of all others of each group, each (G, d).
    """
    other_rows = n_rows.sum() - n_rows
    is_known = (n_rows >= _FEW_ROWS_OF_CLIENT) & (other_rows >= _FEW_ROWS_OF_CLIENT)
    count = np.maximum(n_rows, 1)[:, None]
    other_count = np.maximum(other_rows, 1)[:, None]
    means = sums / count
    other_means = (sums.sum(axis=0) - sums) / other_count
    variance = (squares.sum(axis=0) - squares) / other_count - (other_means - mean) ** 2
    varies = variance > 1e-12 * np.maximum(other_means**2, mean**2)  # beyond rounding
    distances = np.abs(means - other_means) / np.sqrt(np.where(varies, variance, 1.0))
    return np.where(varies & is_known[:, None], distances, 0.0), means, other_means


def warn_target_units(
    values: Float[np.ndarray, " N"], owner: Int[np.ndarray, " N"], names: Sequence[str], kind: str = "client"
) -> list[str]:
    """Return a warning about the owner of rows, a ``kind`` such as "client", whose targets seem to have another unit.

    The mean is far from that of all others, or that of logarithms of positive targets is, by a factor of 10 or more:
    times in months are distributed so widely that days among them are not far in standard deviations.
    """
    is_positive = values > _LEAST_TARGET
    scales = (
        (values, owner, FAR, 0.0, "mean"),
        (np.log(values[is_positive]), owner[is_positive], _FAR_IN_LOGARITHMS, np.log(_UNIT_RATIO), "geometric mean"),
    )
    for numbers, number_owner, least_distance, least_difference, mean_name in scales:
        if len(names) < 2 or not len(numbers):
            continue
        mean = numbers.mean()
        sums = np.bincount(number_owner, numbers, len(names))
        squares = np.bincount(number_owner, (numbers - mean) ** 2, len(names))
        n_rows = np.bincount(number_owner, minlength=len(names))
        columns = measure_distances(sums[:, None], squares[:, None], n_rows, np.array([mean]))
        distances, means, other_means = (column[:, 0] for column in columns)
        is_far = (distances > least_distance) & (np.abs(means - other_means) >= least_difference)
        if is_far.any():
            m = int(np.where(is_far, distances, 0.0).argmax())
            shown = np.array([means[m], other_means[m]])
            if numbers is not values:
                shown = np.exp(shown)
            return [f"the targets of {kind} '{names[m]}' may have another unit: their {mean_name} is {shown[0]:.4g}, "
                    f"that of the others {shown[1]:.4g}: check that the units are the same"]  # fmt: skip
    return []


def find_other_codes(levels: Mapping[str, set[str]]) -> list[str]:
    """Return the groups that have none of the levels of all others, by name.

    Capitals and spaces make no other level, since ``warn_similar_names`` is about these. No group is returned for a
    column most of whose groups have levels of their own, such as the name of a ward. Of two groups the second one is
    returned.

    >>> find_other_codes({"a": {"f", "m"}, "b": {"F"}, "c": {"0", "1"}})
    ['c']
    """
    normalized = {name: set(map(normalize_name, of_group)) for name, of_group in levels.items() if of_group}
    if len(normalized) < 2:
        return []
    n_groups = Counter(level for of_group in normalized.values() for level in of_group)
    apart = [name for name, of_group in normalized.items() if all(n_groups[level] == 1 for level in of_group)]
    if len(normalized) == 2:
        return apart[1:]
    if 2 * len(apart) <= len(normalized):
        return apart
    return []


def describe_other_codes(kind: str, column: str, levels: Mapping[str, set[str]]) -> list[str]:
    """Return a warning for each group, a ``kind`` such as "client", whose levels of a column are written otherwise."""
    warnings = []
    for name in find_other_codes(levels):
        of_others = set().union(*(levels[other] for other in levels if other != name))
        own_text, others_text = (
            abbreviate([f"'{level}'" for level in sorted(of_group)], _SHOWN_LEVELS)
            for of_group in (levels[name], of_others)
        )
        warnings.append(f"{kind} '{name}' has none of the levels of '{column}' of the other {kind}s ({own_text}, the "
                        f"others {others_text}): if they mean the same, write them alike")  # fmt: skip
    return warnings


def warn_client_differences(
    x: Any,
    encoding: Encoding | None,
    frame: Any,
    client: Int[np.ndarray, " N"],
    client_names: Sequence[str],
) -> list[str]:
    """Return warnings about clients whose units of a column, or codes of levels, seem to differ from all others.

    Args:
        x: training rows sorted by client, (N, d). Rows on disk are not searched.
        encoding: the encoding of the columns as features; None where columns have no names.
        frame: a pandas.DataFrame with the same rows; None for arrays, whose columns are all numbers.
        client: the number of each row's client.
    """
    import pandas as pd

    if len(client_names) < 2 or not isinstance(x, np.ndarray):
        return []
    names: Sequence[str] = ()
    is_number = np.ones(x.shape[1], bool)
    if encoding is not None:
        names = encoding.feature_names
        numbers = {column.name for column in encoding.columns if column.has_numbers}
        is_number = np.array([name in numbers for name in names], bool)
    mean = sum_columns_by_client(x, np.zeros(len(x), int))[0] / len(x)
    n_rows = np.bincount(client, minlength=len(client_names))
    with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite are reported elsewhere
        distances, means, other_means = measure_distances(
            sum_columns_by_client(x, client), sum_columns_by_client(x, client, around=mean), n_rows, mean
        )
    examples = []
    for j in np.flatnonzero((distances > FAR).any(axis=0) & is_number).tolist():
        m = int(distances[:, j].argmax())
        values = f"{means[m, j]:.4g}, the others {other_means[m, j]:.4g}"
        examples.append(f"{_column_name(j, names)} at client '{client_names[m]}' ({values})")
    warnings = []
    if examples:
        warnings.append(f"means more than {FAR} standard deviations from those of the other clients: "
                        f"{abbreviate(examples)}: check that the units are the same")  # fmt: skip
    if encoding is None or frame is None:
        return warnings
    for name in [column.name for column in encoding.columns if column.has_levels]:
        levels = {}
        for owner, cells in pd.Series(to_level_names(frame[name])).groupby(np.array(client_names)[client], sort=False):
            if cells.count() >= _FEW_ROWS_OF_CLIENT:
                levels[str(owner)] = set(cells.dropna())
        warnings += describe_other_codes("client", name, levels)
    return warnings
