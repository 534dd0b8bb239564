"""Operations on the features of rows, (n, d), of whatever kind they are.

Features are an array in memory, or of a kind that is a class of this folder: on disk, sparse, sparse on disk, of
several hosts, or sparse on a device. Nobody outside of this folder asks for a kind: all call operations, which are
here, or where they are used.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.base.errors import UserError
from fcorun.base.system.machine import empty_aligned

_BLOCK = 2**14  # rows that are checked together
P = ParamSpec("P")
R = TypeVar("R")


class KindOfFeatures:
    """Features that are no array. A kind has a method for each operation that it does otherwise than an array."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Return the number of entries, with the zeros."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]


def operation(of_array: Callable[P, R]) -> Callable[P, R]:
    """Return the function for all kinds: the method of its name, of features that have one, else that of an array."""

    @wraps(of_array)
    def operate(x: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(x, KindOfFeatures) and hasattr(x, of_array.__name__):
            return getattr(x, of_array.__name__)(*arguments, **options)
        return of_array(x, *arguments, **options)  # type: ignore[call-arg]

    return operate  # type: ignore[return-value]


# What a kind cannot do, as the end of a sentence on the rows.


@operation
def why_not_in_memory(x: Any) -> str:
    """Return why not all rows are in the memory of this process, and advice; empty if they are."""
    return ""


@operation
def why_not_dense(x: Any) -> str:
    """Return why rows cannot be made dense, and advice; empty if they can."""
    return ""


@operation
def check_centring(x: Any, standardize: str) -> None:
    """Raise UserError where the means that ``data.standardize`` subtracts cannot be subtracted from the features."""


@operation
def find_nonfinite(values: Any) -> Int[np.ndarray, " ndim"] | None:
    """Return the index of the first entry of features or targets that is NaN or infinite, or None."""
    if values.dtype.kind != "f":
        return None
    for first in range(0, len(values), _BLOCK):
        nonfinite = np.argwhere(~np.isfinite(values[first : first + _BLOCK]))
        if len(nonfinite):
            index = nonfinite[0]
            index[0] += first
            return index
    return None


@operation
def varies_within_clients(x: Any, client: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " d"]:
    """Return which features of rows have two values at a client; ``client`` has the rows' clients."""
    _, first, number = np.unique(client, return_index=True, return_inverse=True)
    return np.any([column != column[first][number] for column in x.T], axis=1)


@operation
def standardize(x: Any, mean: Float[np.ndarray, " d"], factor: Float[np.ndarray, " d"]) -> Any:
    """Return (x - mean) * factor. Integers become float64; floats keep their dtype. ``check_centring`` comes first."""
    return ((x - mean) * factor).astype(x.dtype if x.dtype.kind == "f" else np.float64)


@operation
def keep_columns(x: Any, mask: Bool[np.ndarray, " d"]) -> Any:
    """Return the features, with 0 for those that are not in the mask."""
    return np.where(mask, x, 0).astype(x.dtype)


@operation
def to_numpy(x: Any) -> Any:
    """Return the features as an array of NumPy, or a csr_array of SciPy of sparse ones; no copy where a CPU has one."""
    return np.asarray(x)


@operation
def to_table(x: Any) -> Any:
    """Return the features as scikit-learn takes them: a pandas.DataFrame, or a csr_array of sparse ones."""
    import pandas as pd

    return pd.DataFrame(x)


# The features of a linear model, in NumPy.


@operation
def append_ones(x: Any) -> Any:
    """Return the features with a last column of ones."""
    return np.column_stack([x, np.ones(len(x))])


@operation
def row_norms(x: Any) -> Float[np.ndarray, " n"]:
    """Return the Euclidean norm of each row."""
    return np.linalg.norm(x, axis=1)


@operation
def mean_gram_range(x: Any) -> tuple[float, float]:
    """Return the least and the largest eigenvalue of X'X / n, or of XX' / n where that has fewer.

    The least one of a large sparse matrix counts as 0.
    """
    n, d = x.shape
    eigenvalues = np.linalg.eigvalsh((x.T @ x if d < n else x @ x.T) / n)
    return float(eigenvalues[0]), float(eigenvalues[-1])


# The features on their way to a device.


@operation
def numbers_per_row(x: Any) -> int:
    """Return how many numbers the features of a row take in a minibatch: of sparse rows those of the widest row."""
    return int(np.prod(x.shape[1:]))


@operation
def most_numbers(x: Any, bounds: Int[np.ndarray, " k+1"]) -> int:
    """Return how many numbers the largest of k parts of the rows takes, ``bounds[i]:bounds[i + 1]``."""
    return int(np.diff(bounds).max(initial=0)) * numbers_per_row(x)


def device_dtype(stored: np.dtype, dtype) -> np.dtype:
    """Return the type on the device of examples of a stored type."""
    return stored if stored.kind in "bui" and stored.itemsize <= 2 else np.dtype(dtype)


@operation
def to_device(x: Any, dtype, offsets: Int[np.ndarray, " M+1"] | None = None) -> Any:
    """Put examples on the device in the run's precision; integers of at most two bytes keep their type.

    ``offsets`` are the bounds of the clients' rows, where the rows of a client are joined. Uses ``device_put``, since
    ``jnp.asarray`` may compile a program for each new shape. Raises UserError for numbers that exceed the precision.
    """
    import jax

    if x.dtype == device_dtype(x.dtype, dtype):
        return jax.device_put(x)
    converted = empty_aligned(x.shape, dtype)
    with refuse_overflow("features"):
        np.copyto(converted, x, casting="unsafe")
    return jax.device_put(converted)


@operation
def to_solver(x: Any) -> Any:
    """Put examples on the device for programs in float64. Call under enable_x64."""
    return to_device(x, np.float64)


@contextmanager
def refuse_overflow(values: str) -> Iterator[None]:
    """Raise UserError if a cast of ``values`` to float32 overflows within the context."""
    try:
        with np.errstate(over="raise"):
            yield
    except FloatingPointError as error:
        raise UserError(f"data: some {values} exceed 3.4e38, the largest number of float32: give "
                        "`precision=float64`, or mend them") from error  # fmt: skip
