"""A matrix of rows that stay in a file larger than memory, and are read when a computation needs them."""

import contextlib
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.system.files import read_rows_at
from fcorun.base.system.machine import free_host_memory
from fcorun.data.rows import features
from fcorun.data.rows.features import KindOfFeatures, device_dtype

READ_BYTES = 2**26  # bytes that are read at a time
_DENSE = 4  # rows at most this far apart on average are read together with the rows between them
_MAX_SHARE = 0.5  # of the free memory, for rows that are converted to one array


class DeviceCapacity(NamedTuple):
    """The most numbers of features on the device, the same for all rows that one compiled program takes.

    Attributes:
        total: of all rows that are read together, with those that pad them.
        of_row, of_part: of one row, and of the rows of a client or of a block.
    """

    total: int
    of_row: int
    of_part: int


@dataclass(frozen=True, eq=False)
class DiskMatrix(KindOfFeatures):
    """A matrix (n, d) on disk: rows of a memory map, in any order.

    Indexing by rows returns other DiskMatrix; ``read``, ``astype`` and ``np.asarray`` read rows into memory. Reductions
    over rows read block by block.

    Attributes:
        values: the memory map, (N, d), of numbers.
        indices: the rows of the memory map that this matrix has, (n,).
        shift, factor: rows are read as (x - shift) * factor, both (d,); None: as stored.
    """

    values: np.ndarray
    indices: np.ndarray
    shift: np.ndarray | None = None
    factor: np.ndarray | None = None

    @classmethod
    def from_memmap(cls, values: np.ndarray) -> "DiskMatrix":
        """Return all rows of a memory map."""
        return cls(values, np.arange(len(values)))

    @property
    def dtype(self) -> np.dtype:
        """Return the type of rows in memory: the file's, float32 for bfloat16, float64 for standardized integers."""
        dtype = memory_dtype(self.values.dtype)
        return dtype if self.shift is None or dtype.kind == "f" else np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.indices), self.values.shape[1]

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __getitem__(self, rows: Any) -> Any:
        """Return a row as an array (d,); DiskMatrix for a slice, a mask or indices; or one column of rows, read."""
        if isinstance(rows, tuple):
            selected: Any = self[rows[0]]
            if isinstance(selected, np.ndarray):
                return selected[rows[1]]
            columns = [np.asarray(selected[block])[:, rows[1]] for block in selected.slices()]
            return np.concatenate(columns or [np.empty(0)])
        if isinstance(rows, (int, np.integer)):
            return self[[rows]].read()[0]
        return replace(self, indices=self.indices[rows])

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Read all rows. Raises UserError where they would take more than half of the free memory."""
        if self.nbytes > free_host_memory() * _MAX_SHARE:
            raise UserError(f"{self.nbytes / 2**30:.3g} GiB of rows stay on disk, and this needs all of them in "
                            "memory: take fewer rows or columns, or a machine with more memory")  # fmt: skip
        values = self.read()
        return values if dtype is None else values.astype(dtype, copy=False)

    def astype(self, dtype: Any, copy: bool = True) -> np.ndarray:
        """Read all rows and convert them to another type."""
        return np.asarray(self).astype(dtype, copy=False)

    def read(self) -> Any:
        """Read all rows into memory."""
        out = np.empty(self.shape, self.dtype)
        self.read_into(out)
        return out

    def read_into(self, out: np.ndarray, at: np.ndarray | None = None) -> None:
        """Read the rows into the rows ``at`` (n,) of ``out``, by default all of them; ``out`` may have another type.

        Reads in the order of the file, which is faster than the order of the rows.
        """
        order = self.file_order()
        for block in np.array_split(order, max(1, -(-self.nbytes // READ_BYTES))):
            if len(block):
                values = widen(_read_rows(self.values, self.indices[block]))
                if self.shift is not None:
                    values = ((values - self.shift) * self.factor).astype(self.dtype)
                out[block if at is None else at[block]] = values
                release_pages(self.values)

    def slices(self) -> Iterator[slice]:
        """Yield consecutive slices of rows, each of at most READ_BYTES bytes."""
        step = max(1, READ_BYTES * len(self) // max(self.nbytes, 1))
        yield from (slice(i, min(i + step, len(self))) for i in range(0, len(self), step))

    def file_order(self) -> np.ndarray:
        """Return the permutation that sorts these rows by their index in the file, (n,)."""
        return np.argsort(self.indices, kind="stable")

    @cached_property
    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute the least and the largest value of each column, (d,) each; NaN for a column with a NaN."""
        ordered = self[self.file_order()]
        least, largest = [], []
        for block in ordered.slices():
            x = ordered[block].read()
            least.append(x.min(axis=0))
            largest.append(x.max(axis=0))
        return np.min(least, axis=0), np.max(largest, axis=0)

    def min(self, axis: int = 0) -> np.ndarray:
        """Return the least value of each column, (d,)."""
        return self._range[0]

    def max(self, axis: int = 0) -> np.ndarray:
        """Return the largest value of each column, (d,)."""
        return self._range[1]

    def why_not_in_memory(self) -> str:
        return "stay on disk: give `data.resident=true` where they fit, or fewer rows"

    def check_centring(self, standardize: str) -> None:
        if standardize == "per_client":
            raise UserError("`data.standardize=per_client` needs rows in memory, and these stay on disk: give pooled, "
                            "or none")  # fmt: skip

    def standardize(self, mean: np.ndarray, factor: np.ndarray) -> "DiskMatrix":
        return replace(self, shift=mean, factor=factor)

    def find_nonfinite(self) -> np.ndarray | None:
        if self.dtype.kind != "f" or not len(self) or np.isfinite(self._range).all():
            return None
        for block in self.slices():
            index = features.find_nonfinite(self[block].read())
            if index is not None:
                index[0] += block.start
                return index
        return None

    def sorted_blocks(self, client: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        order = self.file_order()
        for block in self.slices():
            rows = np.sort(order[block])
            yield self[rows].read(), client[rows]

    def to_device(self, dtype: Any, offsets: np.ndarray | None = None) -> Any:
        return features.to_device(self.astype(self.dtype), dtype, offsets)

    def read_padded(
        self, is_row: np.ndarray, dtype: Any, allocate: Callable[..., np.ndarray], capacity: DeviceCapacity
    ) -> Any:
        """Read the rows into those rows for the device that the mask ``is_row`` has; others are zeros.

        ``allocate`` returns an array of a shape and type, with arbitrary content.
        """
        array = allocate((len(is_row), self.shape[1]), device_dtype(self.dtype, dtype))
        array[~is_row] = 0
        self.read_into(array, np.flatnonzero(is_row))
        return array


def release_pages(values: Any) -> None:
    """Release the memory of pages of a memory map that were read; the system may cache them."""
    with contextlib.suppress(AttributeError, OSError):  # an array in memory, or no madvise on this system
        values._mmap.madvise(mmap.MADV_DONTNEED)


def memory_dtype(stored: np.dtype) -> np.dtype:
    """Return the type in memory of a stored type: float32 for bfloat16, which files have as two untyped bytes."""
    return np.dtype(np.float32) if stored == np.dtype("V2") else stored


def widen(x: np.ndarray) -> np.ndarray:
    """Convert bfloat16 to float32, of whose four bytes it is the first two; return other arrays unchanged."""
    if memory_dtype(x.dtype) == x.dtype:
        return x
    bits = x.view(np.uint16).astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def _read_rows(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Read rows of a memory map by their sorted indices.

    Scattered rows are read by one system call each, which takes a fifth of the time of the map by measurement.
    """
    span = int(indices[-1] - indices[0]) + 1
    if span <= _DENSE * len(indices) or not isinstance(values, np.memmap) or not values.flags.c_contiguous:
        consecutive = (np.diff(indices) == 1).all()  # false where a row occurs twice
        return values[indices[0] : indices[0] + span] if consecutive else values[indices]
    rows = np.empty((len(indices), values.shape[1]), values.dtype)
    with open(values.filename, "rb", buffering=0) as file:  # type: ignore[arg-type]
        read_rows_at(file, indices, rows, values.offset)
    return rows
