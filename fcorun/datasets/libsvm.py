"""LIBSVM's sparse text format as dense arrays."""

import bz2
import gzip
import io
import re
from pathlib import Path

import numpy as np

from fcorun.errors import UserError

DENSE_LIMIT = 8e9  # bytes that the dense array may take


def read_libsvm(file: Path, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Features (N, d) float32 and targets (N,) float64 of lines ``label index:value ..``.

    Indices count from 1 unless there is an index 0; what a line leaves out is 0. Comments and ``qid:`` are passed over.
    Raises ValueError for lines of another form, and UserError, naming ``data.path=path``, for what would not fit.
    """
    import pandas as pd

    with {".gz": gzip.open, ".bz2": bz2.open}.get(file.suffix.lower(), open)(file, "rb") as packed:
        text = packed.read()
    if b"#" in text or b"qid:" in text:  # comments, and the queries of rankings
        text = re.sub(rb"#[^\n]*|\bqid:\S*", b"", text)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return np.empty((0, 1)), np.empty(0)
    # one number a line, and no separator that could occur, is what pandas reads fastest
    numbers = io.BytesIO(b"\n".join(lines).translate(bytes.maketrans(b": \t", b"\n\n\n")))
    flat = pd.read_csv(numbers, header=None, sep="#", dtype=np.float64)[0].to_numpy()
    entries = np.array([line.count(b":") for line in lines])
    if len(flat) != len(lines) + 2 * entries.sum():
        raise ValueError("a line is not of the form 'label index:value ..'")
    labels = np.cumsum(1 + 2 * entries) - (1 + 2 * entries)
    pairs = np.delete(flat, labels).reshape(-1, 2)
    columns = pairs[:, 0].astype(np.int64)
    if (columns != pairs[:, 0]).any() or columns.min(initial=0) < 0:
        raise ValueError("an index is not a whole number")
    columns -= columns.min(initial=1)
    width = columns.max(initial=-1) + 1
    if 4 * len(lines) * width > DENSE_LIMIT:
        raise UserError(
            f"data.path={path}: {len(lines)} rows of {width} features would take {4e-9 * len(lines) * width:.0f} GB "
            f"as a dense array, more than {DENSE_LIMIT / 1e9:.0f}; keep fewer rows or features"
        )
    x = np.zeros((len(lines), width), dtype=np.float32)
    x[np.repeat(np.arange(len(lines)), entries), columns] = pairs[:, 1]
    return x, flat[labels]
