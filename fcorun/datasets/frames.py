"""Files of new rows as data frames, whatever is in their columns."""

from typing import Any

import numpy as np

from fcorun.datasets.libsvm import read_libsvm
from fcorun.datasets.readers import (
    DAMAGE,
    TEXT,
    array_of,
    damaged,
    ending_of,
    find,
    frame_of,
    numeric,
    plain,
    text_names,
)
from fcorun.errors import UserError


def read_frame(path: str, client: str | None = None) -> Any:
    """The rows of a file as a pandas.DataFrame without looking at what they are: columns as they are called, or from 0
    on where they have no names; a column ``client`` is text.

    Of .npz files X, and client if it is there. Raises UserError for a file that is missing, empty or cannot be read.
    """
    import pandas as pd

    file = find(path, "")
    ending = ending_of(file, path)
    try:
        if ending in (*TEXT, ".parquet"):
            frame = frame_of(file, ending, None, client)[0]
            frame.columns = [str(c) for c in frame.columns]
        elif ending == ".npz":
            with file.open("rb") as data:
                arrays = np.load(data, allow_pickle=False)
                frame = pd.DataFrame(array_of(arrays, "X", path))
                if "client" in arrays.files:
                    frame["client"] = array_of(arrays, "client", path)
        else:
            frame = pd.DataFrame(read_libsvm(file, path)[0])
    except DAMAGE as error:
        raise damaged(path, ending, error) from error
    if client in frame:
        there = frame[client].notna()
        frame[client] = np.where(there, frame[client].astype(object), None)
        frame.loc[there, client] = text_names(plain(frame.loc[there, client].infer_objects()))
    if not len(frame):
        raise UserError(f"{path}: the file has no rows; give one with data")
    return frame


def numbers(series: Any, where: str) -> np.ndarray:
    """A column as finite numbers. Raises UserError, beginning with ``where``."""
    found = numeric(series, where)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        row = int((~np.isfinite(found)).argmax()) + 1
        raise UserError(f"{where} is missing or infinite in row {row}; fill it in or drop the row")
    return found
