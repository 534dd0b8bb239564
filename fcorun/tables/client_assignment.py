"""Whose the rows of a table are: the clients' that it names, or of clients that they are dealt out to."""

import numpy as np

from fcorun.errors import UserError
from fcorun.system.random_streams import random_stream
from fcorun.tables.groups import draw_uniform_per_group
from fcorun.tables.parsed_rows import ParsedRows
from fcorun.tables.partition import assign_rows, natural_sort_key


def assign_clients(
    rows: ParsedRows, y: np.ndarray, path: str, *, kind: str, clients: int, alpha: float, seed: int
) -> tuple[list[str], np.ndarray]:
    """Names of the clients, and the index of each row's client, shape (N,).

    ``kind`` is that of ``fcorun.tables.partition``, for rows whose clients the file at ``path`` does not name; of
    rows with groups, "iid" deals groups out. Raises UserError where the file names clients, and another kind is asked
    for, and for more clients than rows or than groups can fill.
    """
    if rows.client is not None:
        if kind != "iid":
            raise UserError(
                f"data.partition={kind}: the rows of {path} have clients already; "
                "leave data.partition out, or take the clients out of the data"
            )
        found, inverse = np.unique(rows.client, return_inverse=True)
        order = sorted(range(len(found)), key=natural_sort_key(found.tolist()))
        return [str(found[k]) for k in order], np.argsort(order)[inverse]
    marked = np.zeros(len(y), bool)
    for held in (rows.validation, rows.test):
        marked |= False if held is None else held
    training = y[~marked]
    if clients > len(training):
        raise UserError(f"data.clients={clients} is more than the {len(training)} rows of {path}: "
                        f"give at most {len(training)}")  # fmt: skip
    if rows.group is not None:
        if kind != "iid":
            raise UserError(f"data.partition={kind} deals single rows out, and data.group keeps rows together: give "
                            "data.partition=iid, which deals out groups, or data.client")  # fmt: skip
        owner = np.floor(
            draw_uniform_per_group(rows.group, random_stream(seed, "table", "partition")) * clients
        ).astype(np.int64)
        owner[marked] = clients
        if len(lost := np.setdiff1d(np.arange(clients), owner)):
            count = len(np.unique(rows.group))
            raise UserError(f"data.clients={clients}: client{lost[0]} gets none of the {count} groups of data.group, "
                            "which are dealt out at random: give fewer clients")  # fmt: skip
        return [f"client{m}" for m in range(clients)], owner
    # rows that the file holds out belong to nobody, that is to one client more
    owner = np.full(len(y), clients)
    owner[~marked] = assign_rows(kind, training, clients, alpha, random_stream(seed, "table", "partition"))
    return [f"client{m}" for m in range(clients)], owner
