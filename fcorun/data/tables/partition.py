"""The client of each row: named by the table, or else simulated."""

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from fcorun.base.errors import UserError
from fcorun.base.system.random_streams import draw_uniform_per_group, random_stream
from fcorun.data.tables.column_roles import ParsedRows


def assign_rows_to_clients(
    rows: ParsedRows, y: np.ndarray, path: str, *, kind: str, clients: int, alpha: float, seed: int
) -> tuple[list[str], np.ndarray]:
    """Return the names of the clients, and the index of each row's client, shape (N,).

    A table that names no clients is partitioned by ``kind`` (see ``assign_rows``). Rows with groups are partitioned by
    group, and ``kind`` must be "iid". Where clients are simulated, rows that the file itself holds out get the index
    ``clients``, which is no client's.

    Raises UserError for a ``kind`` other than "iid" where the file names clients, and for more clients than rows or
    groups can fill.
    """
    if rows.client is not None:
        if kind != "iid":
            raise UserError(
                f"`data.partition={kind}`: the rows of {path} have clients already; "
                "leave `data.partition` out, or take the clients out of the data"
            )
        names, inverse = np.unique(rows.client, return_inverse=True)
        order = sorted(range(len(names)), key=numeric_or_text_key(names.tolist()))
        return [str(names[k]) for k in order], np.argsort(order)[inverse]
    held_out = np.zeros(len(y), bool)
    for mask in (rows.validation, rows.test):
        if mask is not None:
            held_out |= mask
    training_targets = y[~held_out]
    if clients > len(training_targets):
        raise UserError(f"`data.clients={clients}` is more than the {len(training_targets)} training rows of {path}: "
                        f"give at most {len(training_targets)}")  # fmt: skip
    names = [f"client{m}" for m in range(clients)]
    rng = random_stream(seed, "table", "partition")
    if rows.group is None:
        client_index = np.full(len(y), clients)
        client_index[~held_out] = assign_rows(kind, training_targets, clients, alpha, rng)
        return names, client_index

    if kind != "iid":
        raise UserError(f"`data.partition={kind}` assigns single rows, and `data.group` keeps rows together: give "
                        "`data.partition=iid`, which assigns groups, or `data.client`")  # fmt: skip
    client_index = np.floor(draw_uniform_per_group(rows.group, rng) * clients).astype(np.int64)
    client_index[held_out] = clients
    empty = np.setdiff1d(np.arange(clients), client_index)
    if len(empty):
        n_groups = len(np.unique(rows.group))
        raise UserError(f"`data.clients={clients}`: client{empty[0]} gets none of the {n_groups} groups of "
                        "`data.group`, which are assigned at random: give fewer clients")  # fmt: skip
    return names, client_index


def assign_rows(
    kind: str, y: Shaped[np.ndarray, " N"], clients: int, alpha: float, rng: np.random.Generator
) -> Int[np.ndarray, " N"]:
    """Return the client of each row, shape (N,), from 0 to ``clients - 1``; no client is empty if N >= ``clients``.

    Args:
        kind: "iid" divides shuffled rows equally; "sorted" divides the rows, ordered by target, equally;
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


def numeric_or_text_key(names: list[str]) -> Callable[[int], Any]:
    """Return a sorting key for indices into ``names``: numeric if all names are numbers, otherwise alphabetic."""
    try:
        numbers = [float(name) for name in names]
    except ValueError:
        return lambda k: names[k]
    return lambda k: (numbers[k], names[k])
