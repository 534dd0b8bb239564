"""LIBSVM's sparse text format as dense arrays, by scikit-learn's reader."""

from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError

MAX_DENSE_BYTES = 8e9  # bytes that the dense array may take


def read_libsvm(file: Path, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Features (N, d) float32 and targets (N,) float64 of lines ``label index:value ..``.

    Indices count from 1 unless there is an index 0; what a line leaves out is 0. Comments and ``qid:`` are passed over.
    Raises ValueError for lines of another form, and UserError, naming ``data.path=path``, for what would not fit.
    """
    from sklearn.datasets import load_svmlight_file

    try:
        found: Any = load_svmlight_file(str(file), dtype=np.float32)  # type: ignore[arg-type]
    except OverflowError as error:
        raise UserError(f"data.path={path}: an index is more than {2**31 - 1:,}; keep fewer features") from error
    x, y = found
    rows, width = x.shape
    if 4 * rows * width > MAX_DENSE_BYTES:
        raise UserError(
            f"data.path={path}: {rows} rows of {width} features would take {4e-9 * rows * width:.0f} GB "
            f"as a dense array, more than {MAX_DENSE_BYTES / 1e9:.0f}; keep fewer rows or features"
        )
    return x.toarray(), y
