"""Times to events as signed times: t for an event at t, -t for a row that is censored at t."""

import numpy as np

from fcorun.base.errors import UserError, abbreviate
from fcorun.data.rows.rows import Rows
from fcorun.data.tables.cells import require_numbers
from fcorun.data.tables.column_roles import ColumnRoles, ParsedRows, suggest_columns


def read_signed_times(rows: ParsedRows, roles: ColumnRoles, path: str) -> np.ndarray:
    """Return signed times of the target, the times, and of the column of events, float64 (N,).

    Raises UserError for a missing column, times that are not positive numbers, and events other than 0 and 1.
    """
    option = f"`data.event={roles.event}`"
    where = f"`data.target={roles.target}`"
    if rows.metadata is None or roles.event not in rows.metadata:
        columns = "it names no columns: give signed times and `data.task=survival`"
        if rows.metadata is not None:
            columns = suggest_columns(str(roles.event), rows.metadata)
        raise UserError(f"{option}: there is no such column in {path}; {columns}")
    if rows.y.dtype.kind not in "fiu":
        raise UserError(f"{where} holds '{rows.y[0]}', and `data.event` asks for times: give numbers")
    times = rows.y.astype(np.float64)
    if times.min() <= 0:
        row = int((times <= 0).argmax())
        raise UserError(f"{where}: row {row + 1} of {path} has {times[row]:g}, and times must be positive: correct it")
    where_events = f"`data.path={path}`: column '{roles.event}'"
    events = require_numbers(rows.metadata[roles.event], where_events, "1 for an event, 0 for a censored row")
    events = events.astype(np.float64)
    unknown = ~np.isin(events, (0, 1))
    if unknown.any():
        row = int(unknown.argmax())
        raise UserError(f"{option}: row {row + 1} of {path} has {events[row]:g}: write 1 for an event at the time of "
                        "`data.target`, and 0 for a row that is censored then")  # fmt: skip
    return np.where(events == 1, times, -times)


def warn_clients_without_events(train: Rows, client_names: list[str]) -> list[str]:
    """Return a warning if clients have no event among their training rows, whose signed times are ``train.y``."""
    without = np.flatnonzero(train.sum_by_client(train.y > 0) == 0)
    if not len(without):
        return []
    names = abbreviate([client_names[m] for m in without])
    return [f"no training row of {'client' if len(without) == 1 else 'clients'} {names} has an event: such rows have "
            "no part in a partial likelihood"]  # fmt: skip
