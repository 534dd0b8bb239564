"""What is read of a table, before it is known which rows train."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ParsedRows:
    """The rows of a file in its own order.

    Attributes:
        x: features, shape (N, d), a real dtype, finite; of a file without named columns.
        y: targets as the file has them, shape (N,): real, finite numbers, booleans or text.
        client: the client of each row, text, shape (N,), or None.
        validation, test: True where the file holds a row out, shape (N,), or None.
        group: the name of each row's group, text, shape (N,), or None.
        fold: the name of the fold that holds each row out, text, "" for none, shape (N,), or None.
        frame: the columns of the features as they are, a pandas.DataFrame; of a file with named columns, and then
            there is no x.
        remarks: what to know of how the file was read.
        aside: where x is there, a pandas.DataFrame of the columns, or arrays, that are asked for and are no features.
        encoding: of named columns whose rows stay on disk, how they became x.
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
