"""Missing values by outcome: how often a column has a gap among training rows with and without the outcome."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from fcorun.data.tasks.task import Task

MISSING_FILE = "missing.csv"  # in the folder of a record
_MAX_CLIENTS = 200  # with more clients, missing.csv has no rows by client


def count_gaps(
    gaps: Mapping[str, Bool[np.ndarray, " N"]],
    y: Shaped[np.ndarray, " N"],
    offsets: Int[np.ndarray, " M+1"],
    *,
    task: Task,
    classes: Sequence,
    client_names: Sequence[str],
    group: Shaped[np.ndarray, " N"] | None = None,
) -> tuple[dict[str, Any], ...]:
    """Count the gaps of each column by outcome, over all clients and for each client with a gap.

    Returns the rows of missing.csv, for more than 200 clients without rows by client.

    Args:
        gaps: the mask of the gaps of each column, over N training rows sorted by client.
        y: the targets: class indices, numbers, or signed times.
        offsets: the bounds of the clients' rows.
        task: the task, whose outcomes are compared. Of more than two classes, each is compared with all others.
        classes: the labels by class index.
        client_names: the names of the clients.
        group: the group of each row, if rows have one: ``groups`` are those with a gap, or without, if these are fewer.
    """
    outcomes = task.outcomes(y, classes) or {"": y.astype(np.float64)}
    sets = {"": slice(None)}
    if len(client_names) <= _MAX_CLIENTS:
        sets |= {name: slice(*bounds) for name, bounds in zip(client_names, pairwise(offsets.tolist()), strict=True)}
    rows = []
    for column, is_gap in gaps.items():
        for outcome, values in outcomes.items():
            compare = _compare_shares if outcome else _compare_means
            for name, rows_of_set in sets.items():
                is_gap_here = is_gap[rows_of_set]
                if not is_gap_here.any():
                    continue
                counts = compare(is_gap_here, values[rows_of_set])
                if group is not None:
                    counts["groups"] = _count_groups(is_gap_here, group[rows_of_set])
                rows.append({"column": column, "client": name, "outcome": outcome, **counts})
    return tuple(rows)


def _count_groups(is_gap: np.ndarray, group: np.ndarray) -> int:
    """Return the number of groups with a gap, or of those with a row without one if there are any, and fewer."""
    return min(len(np.unique(group[mask])) for mask in (is_gap, ~is_gap) if mask.any())


def _compare_shares(is_gap: np.ndarray, is_event: np.ndarray) -> dict[str, Any]:
    """Return the numbers and shares of gaps among events and other rows."""
    counts = {"rows": len(is_gap), "missing": int(is_gap.sum())}
    for name, mask in (("events", is_event), ("others", ~is_event)):
        n_rows = int(mask.sum())
        n_missing = int((mask & is_gap).sum())
        share = n_missing / n_rows if n_rows else None
        counts |= {name: n_rows, f"missing_among_{name}": n_missing, f"share_among_{name}": share}
    return counts


def _compare_means(is_gap: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return the means of the target in rows with and without a gap, and its deviation."""
    counts: dict[str, Any] = {"rows": len(is_gap), "missing": int(is_gap.sum())}
    for name, mask in (("missing", is_gap), ("present", ~is_gap)):
        counts[f"mean_where_{name}"] = float(y[mask].mean()) if mask.any() else None
    counts["deviation"] = float(y.std(ddof=1)) if len(y) > 1 else None
    return counts
