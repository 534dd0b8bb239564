"""Rows that are dealt out to several hosts, each of which has those of its own clients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcorun.errors import UserError
from fcorun.rows.on_disk import DiskRows
from fcorun.system.arrays import empty_aligned

_BLOCK = 2**14  # rows that are looked at together

ClientBuffer = Callable[[int], np.ndarray]  # where the rows of a client are to be written, (n_m, d)


@dataclass(frozen=True, eq=False)
class HostRows:
    """A matrix (n, d) of which this host has some rows, one after the other; the others are on other hosts.

    Indexing gives the rows that are asked for. UserError: one of them is elsewhere.

    Attributes:
        values: the rows that are here, (k, d), or an OnDisk of them. In memory there are zeros below them, so that all
            hosts have arrays of one shape.
        rows: which rows these are.
        count: how many all hosts have together, n.
        part: which of the hosts this is.
    """

    values: Any
    row_range: slice
    n_rows: int
    host: int

    @classmethod
    def take(cls, x: Any, bounds: np.ndarray, host: int, in_memory: bool = False) -> "HostRows":
        """The rows ``ends[part]:ends[part + 1]`` of x; a copy, so that the others need not stay. Those that are on disk
        stay there unless they are to be in ``memory``."""
        rows = slice(int(bounds[host]), int(bounds[host + 1]))
        if isinstance(x, DiskRows) and not in_memory:
            return cls(x[rows], rows, len(x), host)
        values, here = empty_aligned((int(np.diff(bounds).max()), *x.shape[1:]), x.dtype), rows.stop - rows.start
        values[here:] = 0
        if isinstance(x, DiskRows):
            x[rows].read(values[:here])
        else:
            values[:here] = x[rows]
        return cls(values, rows, len(x), host)

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.n_rows, *self.values.shape[1:]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Of the rows that are here."""
        return self.values.nbytes

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, rows: Any) -> Any:
        first, end = self.row_range.start, self.row_range.stop
        if isinstance(rows, slice) and rows.step in (None, 1):  # no copy
            start, stop, _ = rows.indices(self.n_rows)
            here = stop <= start or (first <= start and stop <= end)
            found = slice(start - first, stop - first) if stop > start else slice(0)
        else:
            asked = np.arange(self.n_rows)[rows] if isinstance(rows, slice) else np.asarray(rows)
            asked = np.flatnonzero(asked) if asked.dtype == bool else asked
            here = not asked.size or (first <= asked.min() and asked.max() < end)
            found = asked - first
        if not here:
            raise UserError("rows of other hosts' clients are needed here: give hosts.rows=all")
        return self.values[found]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        found = np.asarray(self[:])
        return found if dtype is None else found.astype(dtype, copy=False)

    def align(self, values: np.ndarray) -> np.ndarray:
        """Of what stands beside all rows, (n, ...), that of the rows that are here, with zeros below."""
        found = np.zeros((len(self.values), *values.shape[1:]), values.dtype)
        found[: self.row_range.stop - self.row_range.start] = values[self.row_range]
        return found


def local_rows(x: Any) -> Any:
    """The rows of a matrix that are here, which all are unless they are dealt out."""
    return x.values if isinstance(x, HostRows) else x


def align(x: Any, values: np.ndarray) -> np.ndarray:
    """What stands beside the rows of a matrix that are here."""
    return x.align(values) if isinstance(x, HostRows) else values


def shard_for_host(data: Any, host: int, n_hosts: int, in_memory: bool = False) -> Any:
    """FederatedData as one of ``of`` hosts has them: x and x_val of its own clients, and x_test on the first one alone;
    as they are where there are fewer clients, or these make their rows. Rows on disk are read where they are to be in
    ``memory``."""
    if not 1 < n_hosts <= data.n_clients or data.population is not None:
        return data
    cut, x_val = balance_clients(data.offsets, n_hosts), None
    if data.x_val is not None:
        even = np.arange(n_hosts + 1) * len(data.x_val) // n_hosts
        x_val = HostRows.take(data.x_val, even if data.offsets_val is None else data.offsets_val[cut], host, in_memory)
    x_test = None if host else np.asarray(data.x_test) if in_memory and data.x_test is not None else data.x_test
    return replace(
        data, host_bounds=cut, x=HostRows.take(data.x, data.offsets[cut], host, in_memory), x_val=x_val, x_test=x_test
    )


def allocate(
    offsets: np.ndarray, host_bounds: np.ndarray | None, host: int, width: int, dtype: Any
) -> tuple[Any, ClientBuffer]:
    """A matrix for the rows of clients that are made or read one client after the other, and where those of each go.

    It has the rows of the clients ``cut[part]:cut[part + 1]``, of all without a ``cut``; those of the others go where
    the next ones go, too.
    """
    ends, host = (offsets[[0, -1]], 0) if host_bounds is None else (offsets[host_bounds], host)
    first, here = int(ends[host]), int(ends[host + 1] - ends[host])
    values = empty_aligned((int(np.diff(ends).max()), width), dtype)
    values[here:] = 0
    aside = np.empty((int(np.diff(offsets).max()), width), dtype) if host_bounds is not None else values

    def room(m: int) -> np.ndarray:
        start, end = int(offsets[m]) - first, int(offsets[m + 1]) - first
        return values[start:end] if start >= 0 and end <= here else aside[: end - start]

    return values if host_bounds is None else HostRows(values, slice(first, first + here), int(offsets[-1]), host), room


def local_clients(data: Any) -> tuple[list[slice], int]:
    """Of FederatedData, the rows of each client that is here, which all are unless rows are dealt out; and how many are
    on the host with most."""
    here = slice(None) if data.host_bounds is None else slice(*data.host_bounds[data.x.part :][:2].tolist())
    found = list(map(slice, data.offsets[:-1][here].tolist(), data.offsets[1:][here].tolist()))
    return found, len(found) if data.host_bounds is None else int(np.diff(data.host_bounds).max())


def balance_clients(offsets: np.ndarray, n_hosts: int) -> np.ndarray:
    """Clients cut into blocks with about as many rows, one client at least in each: block h has the clients from the
    h-th of these numbers, (parts + 1,), up to the next. ``offsets`` is where the rows of each begin, and the end."""
    clients, found = len(offsets) - 1, [0]
    for h in range(1, n_hosts):
        nearest = int(np.abs(offsets - offsets[-1] * h / n_hosts).argmin())
        found.append(min(max(nearest, found[-1] + 1), clients - n_hosts + h))
    return np.array([*found, clients])


def find_nonfinite(values: Any) -> np.ndarray | None:
    """The place of the first that is not finite, or None. If their sum is, they are, which takes no array as large."""
    if isinstance(values, HostRows):
        place = find_nonfinite(values.values)
        return place if place is None else place + np.eye(1, values.ndim, dtype=int)[0] * values.row_range.start
    with np.errstate(over="ignore", invalid="ignore"):
        if values.all_finite if isinstance(values, DiskRows) else np.isfinite(values.sum(dtype=np.float64)):
            return None
    for first in range(0, len(values), _BLOCK):
        bad = np.argwhere(~np.isfinite(np.asarray(values[first : first + _BLOCK])))
        if len(bad):
            return bad[0] + [first, *[0] * (values.ndim - 1)]
    return None
