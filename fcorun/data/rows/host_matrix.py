"""A matrix of rows that are sharded by client over several hosts: each host stores the rows of its own clients."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.system.machine import empty_aligned
from fcorun.data.rows.disk_matrix import DiskMatrix

StoreRows = Callable[[int, np.ndarray], None]  # stores the rows (n_m, d) of the client of a number


@dataclass(frozen=True, eq=False)
class HostMatrix:
    """A matrix (n, d) of which this host stores a range of rows; other hosts store the others.

    Indexing returns stored rows. Raises UserError where a requested row is stored by another host.

    Attributes:
        values: the stored rows, (k, d), or DiskMatrix of them. An array in memory is padded with zero rows, so that the
            arrays of all hosts have one shape.
        bounds: the bounds of the rows of each of H hosts, (H + 1,), increasing from 0 to n.
        host: the number of this host.
    """

    values: Any
    bounds: np.ndarray
    host: int

    @classmethod
    def take(cls, x: Any, bounds: np.ndarray, host: int, in_memory: bool = False) -> "HostMatrix":
        """Copy the rows ``bounds[host]:bounds[host + 1]`` of x, so that x can be freed.

        Rows on disk stay there unless ``in_memory``.
        """
        row_range = slice(int(bounds[host]), int(bounds[host + 1]))
        if isinstance(x, DiskMatrix) and not in_memory:
            return cls(x[row_range], bounds, host)
        n_local = row_range.stop - row_range.start
        values = empty_aligned((int(np.diff(bounds).max()), *x.shape[1:]), x.dtype)
        values[n_local:] = 0
        if isinstance(x, DiskMatrix):
            x[row_range].read(values[:n_local])
        else:
            values[:n_local] = x[row_range]
        return cls(values, bounds, host)

    @property
    def n_hosts(self) -> int:
        return len(self.bounds) - 1

    @property
    def row_range(self) -> slice:
        """Return the numbers of the stored rows."""
        return slice(int(self.bounds[self.host]), int(self.bounds[self.host + 1]))

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self), *self.values.shape[1:]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes of this host's rows."""
        return self.values.nbytes

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def __getitem__(self, rows: Any) -> Any:
        first, end = self.row_range.start, self.row_range.stop
        if isinstance(rows, slice) and rows.step in (None, 1):  # no copy
            start, stop, _ = rows.indices(len(self))
            stored_here = stop <= start or (first <= start and stop <= end)
            local = slice(start - first, stop - first) if stop > start else slice(0)
        else:
            indices = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows)
            if indices.dtype == bool:
                indices = np.flatnonzero(indices)
            stored_here = not indices.size or (first <= indices.min() and indices.max() < end)
            local = indices - first
        if not stored_here:
            raise UserError("rows of other hosts' clients are needed here: give `hosts.rows=all`")
        return self.values[local]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        values = np.asarray(self[:])
        return values if dtype is None else values.astype(dtype, copy=False)

    def align(self, values: np.ndarray) -> np.ndarray:
        """Return the entries of ``values`` (n, ...) that belong to this host's rows, padded as ``self.values`` is."""
        aligned = np.zeros((len(self.values), *values.shape[1:]), values.dtype)
        aligned[: self.row_range.stop - self.row_range.start] = values[self.row_range]
        return aligned


def allocate(
    offsets: np.ndarray, host_offsets: np.ndarray | None, host: int, width: int, dtype: Any
) -> tuple[Any, StoreRows]:
    """Return a matrix for rows that are made or read client by client, and the function that stores a client's rows.

    The matrix has the rows of the clients ``host_offsets[host]:host_offsets[host + 1]``, or of all clients without
    ``host_offsets``. Rows of other clients are not stored.
    """
    clients = range(len(offsets) - 1)
    row_bounds = offsets[[0, -1]]
    if host_offsets is not None:
        clients = range(host_offsets[host], host_offsets[host + 1])
        row_bounds = offsets[host_offsets]
    values = empty_aligned((int(np.diff(row_bounds).max()), width), dtype)
    first = offsets[clients.start]
    values[offsets[clients.stop] - first :] = 0

    def store(m: int, rows: np.ndarray) -> None:
        if m in clients:
            values[offsets[m] - first : offsets[m + 1] - first] = rows

    if host_offsets is None:
        return values, store
    return HostMatrix(values, row_bounds, host), store


def balance_clients(offsets: np.ndarray, n_hosts: int) -> np.ndarray:
    """Split clients into ``n_hosts`` consecutive blocks of about as many rows, at least one client in each.

    ``offsets`` (M + 1,) are the bounds of the clients' rows. Returns the bounds of the blocks, (n_hosts + 1,).
    """
    n_clients, bounds = len(offsets) - 1, [0]
    for h in range(1, n_hosts):
        nearest = int(np.abs(offsets - offsets[-1] * h / n_hosts).argmin())
        bounds.append(min(max(nearest, bounds[-1] + 1), n_clients - n_hosts + h))
    return np.array([*bounds, n_clients])
