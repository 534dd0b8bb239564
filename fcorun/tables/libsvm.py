"""LIBSVM's sparse text format as dense arrays, by scikit-learn's reader."""

from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError

MAX_DENSE_BYTES = 8e9


def read_libsvm(file: Path, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the features (N, d), float32, and the targets (N,), float64, of lines ``label index:value ..``.

    Indices count from 1 unless some index is 0. Values that a line leaves out are 0. Comments and ``qid:`` are ignored.

    Raises ValueError for lines of another form, and UserError, which names ``data.path=path``, where the dense array
    would be too large.
    """
    from sklearn.datasets import load_svmlight_file

    try:
        matrix: Any
        matrix, y = load_svmlight_file(str(file), dtype=np.float32)[:2]  # type: ignore[arg-type]
    except OverflowError as error:
        raise UserError(f"data.path={path}: an index is more than {2**31 - 1:,}; keep fewer features") from error
    n_rows, n_features = matrix.shape
    if 4 * n_rows * n_features > MAX_DENSE_BYTES:
        raise UserError(
            f"data.path={path}: {n_rows} rows of {n_features} features would take "
            f"{4e-9 * n_rows * n_features:.0f} GB as a dense array, more than {MAX_DENSE_BYTES / 1e9:.0f}; keep fewer "
            "rows or features"
        )
    return matrix.toarray(), y
