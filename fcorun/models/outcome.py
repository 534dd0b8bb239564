"""The outcome of a table in numbers: rows, events, means, and warnings where few events support a number."""

import math
from collections.abc import Mapping

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.errors import abbreviate
from fcorun.models.inference_counts import describe_few
from fcorun.rows.site_rows import SiteRows

# Sentences on scores that follow from few events: those of clients, and of validation rows.

FEW_EVENTS = 5  # fewer say little about a model


def describe_few_events(events: Mapping[str, int]) -> str:
    """Return a sentence that names the clients with few events, given the events of each; "" if there are none.

    >>> describe_few_events({"Bern": 3, "Lund": 12, "Oslo": 0})
    'scores from fewer than 5 events say little: Bern (3), Oslo (0)'
    """
    few = [f"{client} ({count})" for client, count in events.items() if count < FEW_EVENTS]
    return f"scores from fewer than {FEW_EVENTS} events say little: {abbreviate(few)}" if few else ""


def warn_few_validation_rows(data: FederatedData) -> str:
    """Return a warning if the validation rows have so few rows of one of two classes that scores say little."""
    if len(data.classes) != 2 or data.validation is None or data.train.stays_at_sites:
        return ""
    counts = np.bincount(np.asarray(data.validation.y), minlength=2)
    if not counts.sum() or counts.min() >= FEW_EVENTS:
        return ""
    k = int(counts.argmin())
    return (f"val_auc, val_ap and scores of the validation rows say little: {counts[k]} of {counts.sum()} rows "
            f"{'is' if counts[k] == 1 else 'are'} '{data.classes[k]}'")  # fmt: skip


# The levels of columns of text that few training rows, or few of their events, support.


def find_few_levels(data: FederatedData) -> dict[str, str]:
    """Return the levels with few training rows or events, by feature, in words: {"ward=eye": "no events in 30 rows"}.

    The coefficients of such levels say little, and without a penalty those of levels without an event are not finite.
    Events are rows of the positive class, or times that are not censored. Nothing is found in rows on disk, on other
    hosts or at sites, and in features that were standardized within each client.
    """
    train, encoding, standardized = data.train, data.features.encoding, data.features.standardized
    is_here = isinstance(train.x, np.ndarray) and len(train) == train.n_rows
    if not is_here or encoding is None or (standardized and standardized["by"] != "pooled"):
        return {}
    is_event = np.asarray(train.y) > 0 if data.task in ("binary", "survival") else None
    few = {}
    for column in encoding.columns:
        for name in column.features if column.kind == "levels" else ():
            values = train.x[:, data.features.names.index(name)]
            has_level = values > values.min()
            n_events = None if is_event is None else int((has_level & is_event).sum())
            reason = describe_few(int(has_level.sum()), n_events, data.task == "binary")
            if has_level.any() and reason:
                few[name] = reason
    return few


# The outcome of a table in numbers: rows and events, or the mean and deviation of a target, by split and client.

_MAX_CLIENTS = 200


def summarize_outcome(data: FederatedData) -> list[dict[str, object]]:
    """Return a row for each split and client: ``rows``, and ``events`` or ``mean`` and ``deviation`` of the target.

    The client is "" in the rows on all clients together, which come first. Events are rows of the positive class, or
    times that are not censored. There are no rows for data without named features, on other hosts or at sites, and
    none by client for more than 200 clients.
    """
    on_other_hosts = isinstance(data.train, SiteRows) or len(data.train) < data.train.n_rows
    if on_other_hosts or data.features.encoding is None:
        return []
    summary = []
    for split, rows in data.splits.items():
        y = np.asarray(rows.y)
        summary.append({"set": split, "client": "", **_describe_targets(y, data.task)})
        clients = data.client_of_row(split)
        if clients is None or data.n_clients + len(data.held_out_clients) > _MAX_CLIENTS:
            continue
        for client in (*data.client_names, *data.held_out_clients):
            if (clients == client).any():
                summary.append({"set": split, "client": client, **_describe_targets(y[clients == client], data.task)})
    return summary


def _describe_targets(y: np.ndarray, task: str) -> dict[str, object]:
    """Return the number of rows with these targets (n,), and their events, or their mean and standard deviation."""
    counts: dict[str, object] = {"rows": len(y)}
    if task in ("binary", "survival"):
        return counts | {"events": int((y > 0).sum())}
    if task == "regression":
        deviation = float(y.std(ddof=1)) if len(y) > 1 else math.nan
        return counts | {"mean": float(y.mean()), "deviation": None if math.isnan(deviation) else deviation}
    return counts
