"""Refusals of sparse rows to be dense, in memory, on disk and on a device."""

from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.rows.features import KindOfFeatures

DENSE_CURE = "rows that fit into memory can be dense: `data.sparse=false` of a LIBSVM file, X.toarray() in Python"


def explain_dense_rows(shape: tuple[int, ...]) -> str:
    """Return the refusal of a computation that would make sparse rows of this shape dense."""
    return (f"the rows are sparse, and this needs {shape[0]:,} rows of {shape[1]:,} features as a dense matrix: choose "
            f"a linear model and another method; {DENSE_CURE}")  # fmt: skip


class NeverDense(KindOfFeatures):
    """Sparse rows of any kind, which no method makes dense, and NumPy cannot: ``np.asarray`` raises UserError."""

    def why_not_dense(self) -> str:
        return f"are sparse; {DENSE_CURE}"

    def check_centring(self, standardize: str) -> None:
        raise UserError(f"`data.standardize={standardize}` subtracts means, by which the zeros of sparse rows would "
                        "not stay 0: give `data.standardize=scale`, which divides by the standard deviations alone, "
                        f"or none; {DENSE_CURE}")  # fmt: skip

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise UserError(explain_dense_rows(self.shape))  # a dense array might take all memory
