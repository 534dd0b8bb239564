"""Rows that stay in a file, larger than memory: read where, and when, somebody computes with them."""

import contextlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fcorun.errors import UserError
from fcorun.system.files import read_rows_at
from fcorun.system.machine import free_device_memory

READ_BYTES = 2**26  # bytes that are read at a time
_DENSE = 4  # rows that are this close together are read as if all between them were wanted
_MOST = 0.5  # of the free memory, which rows that are asked for as one array may take


@dataclass(frozen=True, eq=False)
class DiskRows:
    """A matrix (n, d) of which nothing is in memory: rows of a memory map, in any order.

    Indexing by rows gives another one; ``read``, ``astype`` and ``np.asarray`` read them. Reductions over rows go
    block by block, in float64.

    Attributes:
        values: the memory map, (N, d), of numbers.
        places: which of its rows these are, (n,).
        shift, factor: rows become (x - shift) * factor, both (d,); None: they stay as they are.
    """

    values: np.ndarray
    indices: np.ndarray
    shift: np.ndarray | None = None
    factor: np.ndarray | None = None

    @classmethod
    def from_memmap(cls, values: np.ndarray) -> "DiskRows":
        """All rows of a memory map."""
        return cls(values, np.arange(len(values)))

    @property
    def dtype(self) -> np.dtype:
        """As the file has it, but for bfloat16, of which NumPy knows nothing: float32; of whole numbers that are
        standardized, float64."""
        own = memory_dtype(self.values.dtype)
        return own if self.shift is None or own.kind == "f" else np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.indices), self.values.shape[1]

    @property
    def ndim(self) -> int:
        return 2

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, rows: Any) -> Any:
        """A row as an array (d,); some of them, by a slice, a mask or their numbers; or, after a comma, a column."""
        if isinstance(rows, tuple):
            some, column = self[rows[0]], rows[1]
            return np.concatenate([np.asarray(some[part])[:, column] for part in some.parts()] or [np.empty(0)])
        if isinstance(rows, (int, np.integer)):
            return self[[rows]].read()[0]
        return replace(self, indices=self.indices[rows])

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """All rows in memory. Raises UserError where they would take too much of it."""
        if self.nbytes > free_device_memory() * _MOST:
            raise UserError(f"{self.nbytes / 2**30:.3g} GiB of rows stay on disk, and this needs all of them in "
                            "memory: take fewer rows or columns, or a machine with more memory")  # fmt: skip
        found = self.read()
        return found if dtype is None else found.astype(dtype, copy=False)

    def astype(self, dtype: Any, copy: bool = True) -> np.ndarray:
        """These rows in memory, of another type."""
        return np.asarray(self).astype(dtype, copy=False)

    def standardize(self, mean: np.ndarray, factor: np.ndarray) -> "DiskRows":
        """Rows (x - mean) * factor."""
        return replace(self, shift=mean, factor=factor)

    def read(self, out: np.ndarray | None = None, at: np.ndarray | None = None) -> np.ndarray:
        """The rows in their order, into the rows ``at`` (n,) of ``out``, by default all, which may be of another type;
        in the order of the file, which is faster."""
        out = np.empty(self.shape, self.dtype) if out is None else out
        order = np.argsort(self.indices, kind="stable")
        for some in np.array_split(order, max(1, -(-self.nbytes // READ_BYTES))):
            if len(some):
                found = widen(_taken(self.values, self.indices[some]))
                if self.shift is not None:
                    found = ((found - self.shift) * self.factor).astype(self.dtype)
                out[some if at is None else at[some]] = found
                with contextlib.suppress(AttributeError, OSError):  # in memory, or of a system that takes no advice
                    file: Any = self.values
                    file._mmap.madvise(mmap.MADV_DONTNEED)  # no longer this process's; the system may keep them
        return out

    def slices(self) -> Iterator[slice]:
        """Slices of at most AT_ONCE bytes, one after the other."""
        step = max(1, READ_BYTES // max(self.shape[1] * self.dtype.itemsize, 1))
        yield from (slice(i, min(i + step, len(self))) for i in range(0, len(self), step))

    def file_order(self) -> tuple["DiskRows", np.ndarray]:
        """The same rows in the order of the file, and which of these each is, (n,)."""
        order = np.argsort(self.indices, kind="stable")
        return self[order], order

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sum of squared deviations of each column, by Chan, Golub and LeVeque (1983), (d,) each."""
        ordered, count, mean, squares = self.file_order()[0], 0, np.zeros(self.shape[1]), np.zeros(self.shape[1])
        for part in ordered.slices():
            x = ordered[part].read()
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is told by who asks
                new = x.mean(axis=0, dtype=np.float64)
                apart, total = new - mean, count + len(x)
                squares += ((x - new) ** 2).sum(axis=0) + apart**2 * (count * len(x) / total)
            mean, count = mean + apart * (len(x) / total), total
        return mean, squares

    @cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest of each column, (d,) each; NaN of a column that has one."""
        ordered, least, most = self.file_order()[0], [], []
        for part in ordered.slices():
            x = ordered[part].read()
            least.append(x.min(axis=0))
            most.append(x.max(axis=0))
        return np.min(least, axis=0), np.max(most, axis=0)

    @property
    def all_finite(self) -> bool:
        """Whether all numbers are."""
        return bool(np.isfinite(self._ends).all())

    def min(self, axis: int = 0) -> np.ndarray:
        """The least of each column, (d,)."""
        return self._ends[0]

    def max(self, axis: int = 0) -> np.ndarray:
        """The largest of each column, (d,)."""
        return self._ends[1]

    def mean(self, axis: int = 0, dtype: Any = None) -> np.ndarray:
        """The mean of each column, (d,)."""
        return self._moments[0]

    def std(self, axis: int = 0, dtype: Any = None) -> np.ndarray:
        """The standard deviation of each column, (d,)."""
        return np.sqrt(self._moments[1] / max(len(self), 1))


def memory_dtype(stored: np.dtype) -> np.dtype:
    """The type in memory of what is stored so: the same, but float32 of bfloat16, in files two bytes without a type."""
    return np.dtype(np.float32) if stored == np.dtype("V2") else stored


def widen(x: np.ndarray) -> np.ndarray:
    """An array as it is held in memory; bfloat16 are the first two of float32's four bytes."""
    if memory_dtype(x.dtype) == x.dtype:
        return x
    bits = x.view(np.uint16).astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _taken(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The rows of a memory map at these places, in order; those that lie apart by a call of the system each, which,
    measured, costs a fifth of what the map does."""
    span = int(places[-1] - places[0]) + 1
    if span <= _DENSE * len(places) or not isinstance(values, np.memmap) or not values.flags.c_contiguous:
        apart = (np.diff(places) == 1).all()  # a row may be wanted more than once
        return values[places[0] : places[0] + span] if apart else values[places]
    found = np.empty((len(places), values.shape[1]), values.dtype)
    with open(values.filename, "rb", buffering=0) as file:  # type: ignore[arg-type]
        read_rows_at(file, places, found, values.offset)
    return found
