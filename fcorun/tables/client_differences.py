"""Warnings about clients whose columns seem to be written otherwise than those of the others: units, levels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fcorun.tables.columns import is_missing, to_level_names
from fcorun.tables.data_warnings import abbreviate, normalize_name
from fcorun.tables.encoding import Encoding, sum_by_client, sum_squares_by_client

FAR = 5  # standard deviations of the others' rows: a mean so far away suggests another unit
_FEW_ROWS = 5  # the mean and the levels of fewer rows tell nothing
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
    is_known = (n_rows >= _FEW_ROWS) & (other_rows >= _FEW_ROWS)
    own, others = np.maximum(n_rows, 1)[:, None], np.maximum(other_rows, 1)[:, None]
    own_means, other_means = sums / own, (sums.sum(axis=0) - sums) / others
    variance = (squares.sum(axis=0) - squares) / others - (other_means - mean) ** 2
    varies = variance > 1e-12 * np.maximum(other_means**2, mean**2)  # beyond rounding
    distances = np.abs(own_means - other_means) / np.sqrt(np.where(varies, variance, 1.0))
    return np.where(varies & is_known[:, None], distances, 0.0), own_means, other_means


def find_other_codes(levels: Mapping[str, set[str]]) -> list[str]:
    """Return the groups that have none of the levels of all others, by name.

    Capitals and spaces make no other level, since ``warn_similar_names`` is about these. No group is returned for a
    column most of whose groups have levels of their own, such as the name of a ward. Of two groups the second one is
    returned.

    >>> find_other_codes({"a": {"f", "m"}, "b": {"F"}, "c": {"0", "1"}})
    ['c']
    """
    normalized = {name: set(map(normalize_name, of_group)) for name, of_group in levels.items() if of_group}
    apart = []
    for name, of_group in normalized.items():
        of_others = set().union(*(normalized[other] for other in normalized if other != name))
        if of_others and not of_group & of_others:
            apart.append(name)
    if len(normalized) == 2:
        return apart[1:]
    return apart if 2 * len(apart) <= len(normalized) else []


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
    x: Any, encoding: Encoding | None, frame: Any, client: Int[np.ndarray, " N"], client_names: Sequence[str]
) -> list[str]:
    """Return warnings about clients whose units of a column, or codes of levels, seem to differ from all others.

    Args:
        x: training rows sorted by client, (N, d). Rows on disk are not searched.
        encoding: the encoding of the columns as features; None where columns have no names.
        frame: a pandas.DataFrame with the same rows; None for arrays, whose columns are all numbers.
        client: the number of each row's client.
    """
    if len(client_names) < 2 or not isinstance(x, np.ndarray):
        return []
    warnings = _warn_units(x, encoding, client, client_names)
    if encoding is not None and frame is not None:
        levels = [column.name for column in encoding.columns if column.kind == "levels"]
        warnings += _warn_codes(frame[levels], client, client_names)
    return warnings


def _warn_units(x: np.ndarray, encoding: Encoding | None, client: np.ndarray, client_names: Sequence[str]) -> list[str]:
    """Return a warning about the columns of numbers with a client whose mean is far from that of all others."""
    names: Sequence[str] = ()
    numbers = set(range(x.shape[1]))
    if encoding is not None:
        names = encoding.feature_names
        kinds = {column.name: column.kind for column in encoding.columns}
        numbers = {j for j, name in enumerate(names) if kinds.get(name) == "number"}
    mean = sum_by_client(x, np.zeros(len(x), int))[0] / len(x)
    n_rows = np.bincount(client, minlength=len(client_names))
    with np.errstate(invalid="ignore", over="ignore"):  # values that are not finite are reported elsewhere
        distances, own, others = measure_distances(
            sum_by_client(x, client), sum_squares_by_client(x, client, mean), n_rows, mean
        )
    examples = []
    for j in np.flatnonzero((distances > FAR).any(axis=0)).tolist():
        if j in numbers:
            name = f"'{names[j]}'" if names else f"column {j} (from 0)"
            m = int(distances[:, j].argmax())
            examples.append(f"{name} at client '{client_names[m]}' ({own[m, j]:.4g}, the others {others[m, j]:.4g})")
    if not examples:
        return []
    return [f"means more than {FAR} standard deviations from those of the other clients: {abbreviate(examples)}: check "
            "that the units are the same"]  # fmt: skip


def _warn_codes(text: Any, client: np.ndarray, client_names: Sequence[str]) -> list[str]:
    """Return warnings about clients that have none of the levels of all others."""
    warnings = []
    for column in text:
        present = ~is_missing(text[column])
        names = to_level_names(text[column])[present]
        of_client = client[present]
        levels = {}
        for m in np.flatnonzero(np.bincount(of_client, minlength=len(client_names)) >= _FEW_ROWS).tolist():
            levels[client_names[m]] = set(names[of_client == m].tolist())
        warnings += describe_other_codes("client", str(column), levels)
    return warnings
