"""Who owns which row, which rows are held out, and how features are scaled."""

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped


def assign_rows(
    kind: str, y: Shaped[np.ndarray, " N"], clients: int, alpha: float, rng: np.random.Generator
) -> Int[np.ndarray, " N"]:
    """The client of each row, shape (N,), from 0 to ``clients - 1``; every client owns a row if N >= ``clients``.

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
        return _owners(np.array_split(shuffled, clients), len(y))
    if kind == "sorted":
        return _owners(np.array_split(np.argsort(y, kind="stable"), clients), len(y))
    by_class = [shuffled[y[shuffled] == k] for k in np.unique(y)]
    if kind == "by_label":
        return _owners(_by_label(by_class, clients), len(y))
    return _owners(_dirichlet(by_class, clients, alpha, rng), len(y))


def _owners(parts: list[np.ndarray], rows: int) -> np.ndarray:
    owner = np.empty(rows, dtype=np.int64)
    for client, part in enumerate(parts):
        owner[part] = client
    return owner


def _by_label(by_class: list[np.ndarray], clients: int) -> list[np.ndarray]:
    if clients < len(by_class):  # whole labels, the largest first, each to the client that has fewest rows
        parts, sizes = [[] for _ in range(clients)], [(0, m) for m in range(clients)]
        for rows in sorted(by_class, key=len, reverse=True):
            size, m = heapq.heappop(sizes)
            parts[m].append(rows)
            heapq.heappush(sizes, (size + len(rows), m))
        return [np.concatenate(p) for p in parts]
    shares = [1] * len(by_class)
    heap: list[tuple[float, int]] = [(-len(rows), k) for k, rows in enumerate(by_class)]
    heapq.heapify(heap)
    for _ in range(clients - len(by_class)):  # one more client for the label with most rows a client
        _, k = heapq.heappop(heap)
        shares[k] += 1
        heapq.heappush(heap, (-len(by_class[k]) / shares[k], k))
    return [part for rows, n in zip(by_class, shares, strict=True) for part in np.array_split(rows, n)]


def _dirichlet(by_class: list[np.ndarray], clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    left = np.array([len(rows) for rows in by_class])
    parts = []
    for size in [len(p) for p in np.array_split(np.arange(left.sum()), clients)]:
        law, part = np.nan_to_num(rng.dirichlet(np.full(len(left), alpha))), []
        while size:  # a label may run out; what is still missing is drawn from the others
            law = law * (left > 0)
            law = law / law.sum() if law.sum() > 0 else (left > 0) / (left > 0).sum()
            taken = np.minimum(rng.multinomial(size, law), left)
            part += [by_class[k][left[k] - n : left[k]] for k, n in enumerate(taken)]
            left, size = left - taken, size - taken.sum()
        parts.append(np.concatenate(part))
    return parts


def natural_sort_key(names: list[str]) -> Callable[[int], Any]:
    """A sorting key for indices into ``names``: as numbers if all are numbers, otherwise as text."""
    try:
        numbers = [float(n) for n in names]
    except ValueError:
        return lambda k: names[k]
    return lambda k: (numbers[k], names[k])


def hold_out(
    client_index: Int[np.ndarray, " N"],
    fraction: float,
    rng: np.random.Generator,
    excluded: Bool[np.ndarray, " N"] | None = None,
) -> Bool[np.ndarray, " N"]:
    """True for the rows to hold out, shape (N,): ``fraction`` of each client's rows, rounded down, at random, of those
    that are not ``taken`` (N,) already."""
    free = (
        rng.random(len(client_index)) if excluded is None else rng.random(len(client_index)) + excluded
    )  # what is taken comes last
    order = np.lexsort((free, client_index))
    counts = np.bincount(client_index)
    rank = np.arange(len(client_index)) - np.repeat(np.cumsum(counts) - counts, counts)
    held = np.empty(len(client_index), dtype=bool)
    held[order] = rank < np.floor(fraction * counts + 1e-9).repeat(counts)  # 0.29 * 100 is 28.999...
    return held if excluded is None else held & ~excluded


def standardize_per_client(
    x: Shaped[np.ndarray, "N d"], client_index: Int[np.ndarray, " N"], held_out: Bool[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "N d"], dict[str, np.ndarray]]:
    """``x`` (N, d) with mean 0 and standard deviation 1 over the training rows of each owner, 0 where constant; and by
    what: of each owner in order its "owner" (M,), "mean" and "deviation" (M, d), and "rows" (M,), those it trains on.

    A row that is held out is scaled by the training rows of its owner, or by all rows of an owner without training
    rows. Integers become float64; floats keep their dtype.
    """
    out = np.empty(x.shape, dtype=x.dtype if x.dtype.kind == "f" else np.float64)
    order, by = np.argsort(client_index, kind="stable"), []
    for rows in np.split(order, np.flatnonzero(np.diff(client_index[order])) + 1):
        training = rows[~held_out[rows]]
        mean, deviation = mean_and_deviation(x[training if len(training) else rows])
        out[rows] = (x[rows] - mean) * reciprocal_or_zero(deviation)
        by.append((client_index[rows[0]], mean, deviation, len(training)))
    return out, dict(zip(("owner", "mean", "deviation", "rows"), map(np.array, zip(*by, strict=True)), strict=True))


def mean_and_deviation(x: Any) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]:
    """The mean and the standard deviation of each column of ``x`` (N, d), which may stay on disk; the latter 0 where it
    is constant."""
    varies = x.max(axis=0) != x.min(axis=0)  # the computed deviation of equal numbers may not be 0
    deviation = x.std(axis=0, dtype=np.float64)
    deviation = np.where(varies & (deviation > np.finfo(float).tiny), deviation, 0.0)
    return x.mean(axis=0, dtype=np.float64), deviation


def reciprocal_or_zero(values: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """1 / values, 0 where they are 0."""
    return np.divide(1.0, values, out=np.zeros(len(values)), where=values > 0)
