"""Rows that are sharded by client over several hosts: each host stores the rows of its own clients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcorun.errors import UserError
from fcorun.rows.on_disk import DiskRows
from fcorun.system.arrays import empty_aligned

_BLOCK = 2**14  # rows that are checked together

ClientBuffer = Callable[[int], np.ndarray]  # maps a client's number to the array (n_m, d) that takes its rows


@dataclass(frozen=True, eq=False)
class HostRows:
    """A matrix (n, d) of which this host stores a range of rows; other hosts store the others.

    Indexing returns stored rows. Raises UserError where a requested row is stored by another host.

    Attributes:
        values: the stored rows, (k, d), or DiskRows of them. An array in memory is padded with zero rows, so that the
            arrays of all hosts have one shape.
        row_range: the numbers of the stored rows.
        n_rows: the number of rows of all hosts together, n.
        host: the number of this host.
    """

    values: Any
    row_range: slice
    n_rows: int
    host: int

    @classmethod
    def take(cls, x: Any, bounds: np.ndarray, host: int, in_memory: bool = False) -> "HostRows":
        """Copy the rows ``bounds[host]:bounds[host + 1]`` of x, so that x can be freed.

        Rows on disk stay there unless ``in_memory``.
        """
        row_range = slice(int(bounds[host]), int(bounds[host + 1]))
        if isinstance(x, DiskRows) and not in_memory:
            return cls(x[row_range], row_range, len(x), host)
        n_local = row_range.stop - row_range.start
        values = empty_aligned((int(np.diff(bounds).max()), *x.shape[1:]), x.dtype)
        values[n_local:] = 0
        if isinstance(x, DiskRows):
            x[row_range].read(values[:n_local])
        else:
            values[:n_local] = x[row_range]
        return cls(values, row_range, len(x), host)

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
        """Return the bytes of this host's rows."""
        return self.values.nbytes

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, rows: Any) -> Any:
        first, end = self.row_range.start, self.row_range.stop
        if isinstance(rows, slice) and rows.step in (None, 1):  # no copy
            start, stop, _ = rows.indices(self.n_rows)
            stored_here = stop <= start or (first <= start and stop <= end)
            local = slice(start - first, stop - first) if stop > start else slice(0)
        else:
            indices = np.arange(self.n_rows)[rows] if isinstance(rows, slice) else np.asarray(rows)
            if indices.dtype == bool:
                indices = np.flatnonzero(indices)
            stored_here = not indices.size or (first <= indices.min() and indices.max() < end)
            local = indices - first
        if not stored_here:
            raise UserError("rows of other hosts' clients are needed here: give hosts.rows=all")
        return self.values[local]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        values = np.asarray(self[:])
        return values if dtype is None else values.astype(dtype, copy=False)

    def align(self, values: np.ndarray) -> np.ndarray:
        """Return the entries of ``values`` (n, ...) that belong to this host's rows, padded as ``self.values`` is."""
        aligned = np.zeros((len(self.values), *values.shape[1:]), values.dtype)
        aligned[: self.row_range.stop - self.row_range.start] = values[self.row_range]
        return aligned


def local_rows(x: Any) -> Any:
    """Return the rows of ``x`` stored on this host: all of them, unless they are sharded by client."""
    return x.values if isinstance(x, HostRows) else x


def align(x: Any, values: np.ndarray) -> np.ndarray:
    """Return the entries of ``values``, one for each row of ``x``, that belong to the rows stored on this host."""
    return x.align(values) if isinstance(x, HostRows) else values


def shard_for_host(data: Any, host: int, n_hosts: int, in_memory: bool = False) -> Any:
    """Return the shard of a FederatedData that one of ``n_hosts`` hosts stores.

    A host stores x and x_val of its own clients; the first host alone stores x_test. Rows on disk are read if
    ``in_memory``. Data of fewer clients than hosts, or of generated clients, are returned unchanged.
    """
    if not 1 < n_hosts <= data.n_clients or data.generated is not None:
        return data
    host_bounds = balance_clients(data.offsets, n_hosts)
    x_val = None
    if data.x_val is not None and data.offsets_val is not None:
        x_val = HostRows.take(data.x_val, data.offsets_val[host_bounds], host, in_memory)
    elif data.x_val is not None:
        even = np.arange(n_hosts + 1) * len(data.x_val) // n_hosts
        x_val = HostRows.take(data.x_val, even, host, in_memory)
    x_test = None if host else data.x_test
    if in_memory and x_test is not None:
        x_test = np.asarray(x_test)
    x = HostRows.take(data.x, data.offsets[host_bounds], host, in_memory)
    return replace(data, host_bounds=host_bounds, x=x, x_val=x_val, x_test=x_test)


def allocate(
    offsets: np.ndarray, host_bounds: np.ndarray | None, host: int, width: int, dtype: Any
) -> tuple[Any, ClientBuffer]:
    """Return an empty matrix for rows that are made or read client by client, and the buffer of each client in it.

    The matrix has the rows of the clients ``host_bounds[host]:host_bounds[host + 1]``, or of all clients without
    ``host_bounds``. All other clients share one buffer, whose content is overwritten.
    """
    if host_bounds is None:
        row_bounds, host = offsets[[0, -1]], 0
    else:
        row_bounds = offsets[host_bounds]
    first, n_local = int(row_bounds[host]), int(row_bounds[host + 1] - row_bounds[host])
    values = empty_aligned((int(np.diff(row_bounds).max()), width), dtype)
    values[n_local:] = 0
    discarded = values if host_bounds is None else np.empty((int(np.diff(offsets).max()), width), dtype)

    def buffer_of(m: int) -> np.ndarray:
        start, end = int(offsets[m]) - first, int(offsets[m + 1]) - first
        return values[start:end] if start >= 0 and end <= n_local else discarded[: end - start]

    if host_bounds is None:
        return values, buffer_of
    return HostRows(values, slice(first, first + n_local), int(offsets[-1]), host), buffer_of


def local_clients(data: Any) -> tuple[list[slice], int]:
    """Return the rows of each client of a FederatedData that this host stores, and the most clients of any host.

    A host stores all clients unless the rows are sharded.
    """
    clients, most = slice(None), len(data.offsets) - 1
    if data.host_bounds is not None:
        clients = slice(*data.host_bounds[data.x.host :][:2].tolist())
        most = int(np.diff(data.host_bounds).max())
    rows = list(map(slice, data.offsets[:-1][clients].tolist(), data.offsets[1:][clients].tolist()))
    return rows, most


def balance_clients(offsets: np.ndarray, n_hosts: int) -> np.ndarray:
    """Split clients into ``n_hosts`` consecutive blocks of about as many rows, at least one client in each.

    ``offsets`` (M + 1,) are the bounds of the clients' rows. Returns the bounds of the blocks, (n_hosts + 1,).
    """
    n_clients, bounds = len(offsets) - 1, [0]
    for h in range(1, n_hosts):
        nearest = int(np.abs(offsets - offsets[-1] * h / n_hosts).argmin())
        bounds.append(min(max(nearest, bounds[-1] + 1), n_clients - n_hosts + h))
    return np.array([*bounds, n_clients])


def find_nonfinite(values: Any) -> np.ndarray | None:
    """Return the index of the first entry that is NaN or infinite, or None.

    A finite sum proves all entries finite, without a mask as large as the array.
    """
    if isinstance(values, HostRows):
        index = find_nonfinite(values.values)
        if index is not None:
            index[0] += values.row_range.start
        return index
    with np.errstate(over="ignore", invalid="ignore"):
        if values.all_finite if isinstance(values, DiskRows) else np.isfinite(values.sum(dtype=np.float64)):
            return None
    for first in range(0, len(values), _BLOCK):
        nonfinite = np.argwhere(~np.isfinite(np.asarray(values[first : first + _BLOCK])))
        if len(nonfinite):
            index = nonfinite[0]
            index[0] += first
            return index
    return None
