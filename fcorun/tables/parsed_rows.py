"""The rows of a table as read, before a split into training and held-out rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ParsedRows:
    """The rows of a file in the order of the file.

    Attributes:
        x: features, shape (N, d), a real dtype, finite. Empty if the columns are still in ``frame``.
        y: targets as the file has them, shape (N,): finite real numbers, booleans or text.
        client: the client of each row, text, shape (N,), or None.
        validation, test: masks of the rows that the file holds out, shape (N,), or None.
        group: the name of each row's group, text, shape (N,), or None.
        fold: the name of the fold that holds each row out, text, "" for none, shape (N,), or None.
        frame: a pandas.DataFrame of the feature columns before they are encoded, or None if ``x`` holds the features.
        warnings: sentences about how the file was read.
        metadata: a pandas.DataFrame of weights, offsets, groups, splits and folds of a file whose features are in
            ``x``, or None.
        encoding: the Encoding that a Parquet file read from disk brings along, or None.
    """

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None = None
    validation: np.ndarray | None = None
    test: np.ndarray | None = None
    group: np.ndarray | None = None
    fold: np.ndarray | None = None
    frame: Any = None
    warnings: tuple[str, ...] = ()
    metadata: Any = None
    encoding: Any = None
