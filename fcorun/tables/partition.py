"""Partitions of rows: the client of each row, the rows to hold out, and standardization by client."""

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped


def assign_rows(
    kind: str, y: Shaped[np.ndarray, " N"], clients: int, alpha: float, rng: np.random.Generator
) -> Int[np.ndarray, " N"]:
    """Return the client of each row, shape (N,), from 0 to ``clients - 1``; no client is empty if N >= ``clients``.

    Args:
        kind: "iid" deals shuffled rows out equally; "sorted" cuts the rows, ordered by target, in equal parts;
            "by_label" gives each client rows of one label, or whole labels where there are more labels than clients;
            "dirichlet" draws each client's label proportions from a symmetric Dirichlet law, clients being of equal
            size (Hsu, Qi and Brown, 2019, arXiv:1909.06335).
        y: targets, shape (N,); class indices for "by_label" and "dirichlet".
        clients: their number.
        alpha: concentration of the Dirichlet law; the smaller, the more the clients differ.
        rng: source of randomness.
    """
    shuffled = rng.permutation(len(y))
    if kind == "iid":
        rows_by_client = np.array_split(shuffled, clients)
    elif kind == "sorted":
        rows_by_client = np.array_split(np.argsort(y, kind="stable"), clients)
    else:
        rows_by_class = [shuffled[y[shuffled] == k] for k in np.unique(y)]
        if kind == "by_label":
            rows_by_client = _split_by_label(rows_by_class, clients)
        else:
            rows_by_client = _split_by_dirichlet(rows_by_class, clients, alpha, rng)
    client_index = np.empty(len(y), dtype=np.int64)
    for client, rows in enumerate(rows_by_client):
        client_index[rows] = client
    return client_index


def _split_by_label(rows_by_class: list[np.ndarray], clients: int) -> list[np.ndarray]:
    """Return the rows of each client, all of one label, or of whole labels where clients are fewer than labels."""
    if clients < len(rows_by_class):  # the largest label goes first, each to the client with the fewest rows
        labels_by_client = [[] for _ in range(clients)]
        sizes = [(0, client) for client in range(clients)]
        for rows in sorted(rows_by_class, key=len, reverse=True):
            size, client = heapq.heappop(sizes)
            labels_by_client[client].append(rows)
            heapq.heappush(sizes, (size + len(rows), client))
        return [np.concatenate(labels) for labels in labels_by_client]
    n_clients = [1] * len(rows_by_class)
    rows_per_client: list[tuple[float, int]] = [(-len(rows), k) for k, rows in enumerate(rows_by_class)]
    heapq.heapify(rows_per_client)
    for _ in range(clients - len(rows_by_class)):  # the label with the most rows a client gets one more client
        _, k = heapq.heappop(rows_per_client)
        n_clients[k] += 1
        heapq.heappush(rows_per_client, (-len(rows_by_class[k]) / n_clients[k], k))
    rows_by_client = []
    for rows, count in zip(rows_by_class, n_clients, strict=True):
        rows_by_client += np.array_split(rows, count)
    return rows_by_client


def _split_by_dirichlet(
    rows_by_class: list[np.ndarray], clients: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return the rows of each client, all of about equal size, with label proportions from a Dirichlet law."""
    remaining = np.array([len(rows) for rows in rows_by_class])
    rows_by_client = []
    for size in [len(share) for share in np.array_split(np.arange(remaining.sum()), clients)]:
        proportions = np.nan_to_num(rng.dirichlet(np.full(len(remaining), alpha)))
        pieces = []
        while size:  # a label may run out; the rows still missing are drawn from the others
            proportions = proportions * (remaining > 0)
            if proportions.sum() > 0:
                proportions = proportions / proportions.sum()
            else:
                proportions = (remaining > 0) / (remaining > 0).sum()
            counts = np.minimum(rng.multinomial(size, proportions), remaining)
            pieces += [rows_by_class[k][remaining[k] - n : remaining[k]] for k, n in enumerate(counts)]
            remaining = remaining - counts
            size -= counts.sum()
        rows_by_client.append(np.concatenate(pieces))
    return rows_by_client


def natural_sort_key(names: list[str]) -> Callable[[int], Any]:
    """Return a sorting key for indices into ``names``: numeric if all names are numbers, otherwise alphabetic."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return lambda k: names[k]
    return lambda k: (numbers[k], names[k])


def hold_out(
    client_index: Int[np.ndarray, " N"],
    fraction: float,
    rng: np.random.Generator,
    excluded: Bool[np.ndarray, " N"] | None = None,
) -> Bool[np.ndarray, " N"]:
    """Return the mask of rows to hold out, shape (N,): ``fraction`` of each client's rows, rounded down, at random.

    Rows that are ``excluded`` (N,) are not drawn.
    """
    priority = rng.random(len(client_index))
    if excluded is not None:
        priority = priority + excluded  # excluded rows come last
    order = np.lexsort((priority, client_index))
    counts = np.bincount(client_index)
    rank = np.arange(len(client_index)) - np.repeat(np.cumsum(counts) - counts, counts)
    held_out = np.empty(len(client_index), dtype=bool)
    held_out[order] = rank < np.floor(fraction * counts + 1e-9).repeat(counts)  # 0.29 * 100 is 28.999...
    return held_out if excluded is None else held_out & ~excluded


def standardize_per_client(
    x: Shaped[np.ndarray, "N d"], client_index: Int[np.ndarray, " N"], held_out: Bool[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "N d"], dict[str, np.ndarray]]:
    """Standardize ``x`` (N, d) by the mean and deviation of each client's training rows; constant features become 0.

    Held-out rows are standardized by the training rows of their client, or by all rows of a client without training
    rows. Integers become float64; floats keep their dtype.

    Returns:
        The standardized features, and the statistics of the clients in order: "client_index" (M,), "mean" and
        "deviation" (M, d), and the numbers of training rows "n_rows" (M,).
    """
    scaled = np.empty(x.shape, dtype=x.dtype if x.dtype.kind == "f" else np.float64)
    statistics: dict[str, list] = {"client_index": [], "mean": [], "deviation": [], "n_rows": []}
    order = np.argsort(client_index, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(client_index[order])) + 1):
        training = rows[~held_out[rows]]
        mean, deviation = mean_and_deviation(x[training if len(training) else rows])
        scaled[rows] = (x[rows] - mean) * reciprocal_or_zero(deviation)
        statistics["client_index"].append(client_index[rows[0]])
        statistics["mean"].append(mean)
        statistics["deviation"].append(deviation)
        statistics["n_rows"].append(len(training))
    return scaled, {name: np.array(values) for name, values in statistics.items()}


def mean_and_deviation(x: Any) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """Return the mean and the standard deviation of each column of ``x`` (N, d), which may stay on disk.

    The deviation of a constant column is 0.
    """
    varies = x.max(axis=0) != x.min(axis=0)  # the computed deviation of equal numbers may not be 0
    deviation = x.std(axis=0, dtype=np.float64)
    deviation = np.where(varies & (deviation > np.finfo(float).tiny), deviation, 0.0)
    return x.mean(axis=0, dtype=np.float64), deviation


def reciprocal_or_zero(values: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """Return 1 / values, and 0 where a value is 0."""
    return np.divide(1.0, values, out=np.zeros(len(values)), where=values > 0)
