"""The client of each row of a table: named by the table, or assigned by a partition of the rows."""

import numpy as np

from fcorun.errors import UserError
from fcorun.system.random_streams import random_stream
from fcorun.tables.groups import draw_uniform_per_group
from fcorun.tables.parsed_rows import ParsedRows
from fcorun.tables.partition import assign_rows, natural_sort_key


def assign_clients(
    rows: ParsedRows, y: np.ndarray, path: str, *, kind: str, clients: int, alpha: float, seed: int
) -> tuple[list[str], np.ndarray]:
    """Return the names of the clients, and the index of each row's client, shape (N,).

    A table that names no clients is partitioned by ``kind`` (see ``fcorun.tables.partition``). Rows with groups are
    partitioned by group, and ``kind`` must be "iid". Rows that the file itself holds out get the index ``clients``,
    which is no client's.

    Raises UserError for a ``kind`` other than "iid" where the file names clients, and for more clients than rows or
    groups can fill.
    """
    if rows.client is not None:
        if kind != "iid":
            raise UserError(
                f"data.partition={kind}: the rows of {path} have clients already; "
                "leave data.partition out, or take the clients out of the data"
            )
        names, inverse = np.unique(rows.client, return_inverse=True)
        order = sorted(range(len(names)), key=natural_sort_key(names.tolist()))
        return [str(names[k]) for k in order], np.argsort(order)[inverse]

    held_out = np.zeros(len(y), bool)
    for mask in (rows.validation, rows.test):
        if mask is not None:
            held_out |= mask
    training_targets = y[~held_out]
    if clients > len(training_targets):
        raise UserError(f"data.clients={clients} is more than the {len(training_targets)} rows of {path}: "
                        f"give at most {len(training_targets)}")  # fmt: skip
    names = [f"client{m}" for m in range(clients)]
    rng = random_stream(seed, "table", "partition")
    if rows.group is None:
        client_index = np.full(len(y), clients)
        client_index[~held_out] = assign_rows(kind, training_targets, clients, alpha, rng)
        return names, client_index

    if kind != "iid":
        raise UserError(f"data.partition={kind} deals single rows out, and data.group keeps rows together: give "
                        "data.partition=iid, which deals out groups, or data.client")  # fmt: skip
    client_index = np.floor(draw_uniform_per_group(rows.group, rng) * clients).astype(np.int64)
    client_index[held_out] = clients
    empty = np.setdiff1d(np.arange(clients), client_index)
    if len(empty):
        n_groups = len(np.unique(rows.group))
        raise UserError(f"data.clients={clients}: client{empty[0]} gets none of the {n_groups} groups of data.group, "
                        "which are dealt out at random: give fewer clients")  # fmt: skip
    return names, client_index
