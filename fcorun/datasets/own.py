"""Rows that are dealt out to several hosts, each of which has those of its own clients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcorun.datasets.on_disk import OnDisk
from fcorun.errors import UserError
from fcorun.system.arrays import aligned

_BLOCK = 2**14  # rows that are looked at together

Room = Callable[[int], np.ndarray]  # where the rows of a client are to be written, (n_m, d)


@dataclass(frozen=True, eq=False)
class Own:
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
    rows: slice
    count: int
    part: int

    @classmethod
    def of(cls, x: Any, ends: np.ndarray, part: int, memory: bool = False) -> "Own":
        """The rows ``ends[part]:ends[part + 1]`` of x; a copy, so that the others need not stay. Those that are on disk
        stay there unless they are to be in ``memory``."""
        rows = slice(int(ends[part]), int(ends[part + 1]))
        if isinstance(x, OnDisk) and not memory:
            return cls(x[rows], rows, len(x), part)
        values, here = aligned((int(np.diff(ends).max()), *x.shape[1:]), x.dtype), rows.stop - rows.start
        values[here:] = 0
        if isinstance(x, OnDisk):
            x[rows].read(values[:here])
        else:
            values[:here] = x[rows]
        return cls(values, rows, len(x), part)

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.count, *self.values.shape[1:]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Of the rows that are here."""
        return self.values.nbytes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: Any) -> Any:
        first, end = self.rows.start, self.rows.stop
        if isinstance(rows, slice) and rows.step in (None, 1):  # no copy
            start, stop, _ = rows.indices(self.count)
            here = stop <= start or (first <= start and stop <= end)
            found = slice(start - first, stop - first) if stop > start else slice(0)
        else:
            asked = np.arange(self.count)[rows] if isinstance(rows, slice) else np.asarray(rows)
            asked = np.flatnonzero(asked) if asked.dtype == bool else asked
            here = not asked.size or (first <= asked.min() and asked.max() < end)
            found = asked - first
        if not here:
            raise UserError("rows of other hosts' clients are needed here: give hosts.rows=all")
        return self.values[found]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        found = np.asarray(self[:])
        return found if dtype is None else found.astype(dtype, copy=False)

    def along(self, values: np.ndarray) -> np.ndarray:
        """Of what stands beside all rows, (n, ...), that of the rows that are here, with zeros below."""
        found = np.zeros((len(self.values), *values.shape[1:]), values.dtype)
        found[: self.rows.stop - self.rows.start] = values[self.rows]
        return found


def held(x: Any) -> Any:
    """The rows of a matrix that are here, which all are unless they are dealt out."""
    return x.values if isinstance(x, Own) else x


def along(x: Any, values: np.ndarray) -> np.ndarray:
    """What stands beside the rows of a matrix that are here."""
    return x.along(values) if isinstance(x, Own) else values


def part_of(data: Any, part: int, of: int, memory: bool = False) -> Any:
    """FederatedData as one of ``of`` hosts has them: x and x_val of its own clients, and x_test on the first one alone;
    as they are where there are fewer clients, or these make their rows. Rows on disk are read where they are to be in
    ``memory``."""
    if not 1 < of <= data.members or data.population is not None:
        return data
    cut, x_val = cut_evenly(data.offsets, of), None
    if data.x_val is not None:
        even = np.arange(of + 1) * len(data.x_val) // of
        x_val = Own.of(data.x_val, even if data.offsets_val is None else data.offsets_val[cut], part, memory)
    x_test = None if part else np.asarray(data.x_test) if memory and data.x_test is not None else data.x_test
    return replace(data, cut=cut, x=Own.of(data.x, data.offsets[cut], part, memory), x_val=x_val, x_test=x_test)


def kept(offsets: np.ndarray, cut: np.ndarray | None, part: int, width: int, dtype: Any) -> tuple[Any, Room]:
    """A matrix for the rows of clients that are made or read one client after the other, and where those of each go.

    It has the rows of the clients ``cut[part]:cut[part + 1]``, of all without a ``cut``; those of the others go where
    the next ones go, too.
    """
    ends, part = (offsets[[0, -1]], 0) if cut is None else (offsets[cut], part)
    first, here = int(ends[part]), int(ends[part + 1] - ends[part])
    values = aligned((int(np.diff(ends).max()), width), dtype)
    values[here:] = 0
    aside = np.empty((int(np.diff(offsets).max()), width), dtype) if cut is not None else values

    def room(m: int) -> np.ndarray:
        start, end = int(offsets[m]) - first, int(offsets[m + 1]) - first
        return values[start:end] if start >= 0 and end <= here else aside[: end - start]

    return values if cut is None else Own(values, slice(first, first + here), int(offsets[-1]), part), room


def clients_here(data: Any) -> tuple[list[slice], int]:
    """Of FederatedData, the rows of each client that is here, which all are unless rows are dealt out; and how many are
    on the host with most."""
    here = slice(None) if data.cut is None else slice(*data.cut[data.x.part :][:2].tolist())
    found = list(map(slice, data.offsets[:-1][here].tolist(), data.offsets[1:][here].tolist()))
    return found, len(found) if data.cut is None else int(np.diff(data.cut).max())


def cut_evenly(offsets: np.ndarray, parts: int) -> np.ndarray:
    """Clients cut into blocks with about as many rows, one client at least in each: block h has the clients from the
    h-th of these numbers, (parts + 1,), up to the next. ``offsets`` is where the rows of each begin, and the end."""
    clients, found = len(offsets) - 1, [0]
    for h in range(1, parts):
        nearest = int(np.abs(offsets - offsets[-1] * h / parts).argmin())
        found.append(min(max(nearest, found[-1] + 1), clients - parts + h))
    return np.array([*found, clients])


def not_finite(values: Any) -> np.ndarray | None:
    """The place of the first that is not finite, or None. If their sum is, they are, which takes no array as large."""
    if isinstance(values, Own):
        place = not_finite(values.values)
        return place if place is None else place + np.eye(1, values.ndim, dtype=int)[0] * values.rows.start
    with np.errstate(over="ignore", invalid="ignore"):
        if values.finite if isinstance(values, OnDisk) else np.isfinite(values.sum(dtype=np.float64)):
            return None
    for first in range(0, len(values), _BLOCK):
        bad = np.argwhere(~np.isfinite(np.asarray(values[first : first + _BLOCK])))
        if len(bad):
            return bad[0] + [first, *[0] * (values.ndim - 1)]
    return None
