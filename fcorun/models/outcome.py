"""The outcome of a table in numbers: rows and events, or the mean and deviation of a target, by split and client."""

import math

import numpy as np

from fcorun.datasets.base import FederatedData
from fcorun.rows.site_rows import SiteRows

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
