"""Files of new rows as data frames, whatever is in their columns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.datasets.columns import Kind, numeric
from fcorun.datasets.libsvm import read_libsvm
from fcorun.datasets.named import plain
from fcorun.datasets.npz import text_names
from fcorun.datasets.on_disk import widened
from fcorun.datasets.readers import DAMAGE, LIBSVM, damaged, ending_of, find, frame_of
from fcorun.datasets.stored import HDF5, array_of
from fcorun.errors import UserError


def read_frame(
    path: str, client: str | None = None, features: int = 0, kinds: Mapping[str, Kind] | None = None
) -> tuple[Any, np.ndarray | None]:
    """The rows of a file as a pandas.DataFrame without looking at what they are, and the client of each row, text or
    None, shape (n,); None where the file does not say.

    ``client`` names a column of a CSV, TSV or Parquet file. Of .npz and HDF5 files X and client are taken; their
    columns and those of LIBSVM files are numbered from 0 on, the latter to ``features`` at least, for lines leave out
    what is 0.
    ``kinds`` are those of the record's columns: words such as NA are gaps among numbers, and levels among text.
    Raises UserError for a file that is missing, empty or cannot be read.
    """
    import pandas as pd

    file = find(path, "")
    ending, owner = ending_of(file, path), None
    try:
        if ending in LIBSVM:
            x = read_libsvm(file, path)[0]
            frame = pd.DataFrame(np.pad(x, ((0, 0), (0, max(features - x.shape[1], 0)))))
        elif ending in (".npz", *HDF5):
            frame, owner = _without_names(file, ending, path)
        else:
            frame = frame_of(file, ending, None, client, kinds=kinds)[0].frame
            frame.columns = [str(c) for c in frame.columns]
            owner = frame.pop(client) if client in frame else None
    except DAMAGE as error:
        raise damaged(path, ending, error) from error
    if not len(frame):
        raise UserError(f"{path}: the file has no rows; give one with data")
    return frame, None if owner is None else _names(owner)


def _without_names(file: Path, ending: str, path: str) -> tuple[Any, Any]:
    import h5py
    import pandas as pd

    with file.open("rb") as data:
        if ending in HDF5:
            with h5py.File(data) as given:
                arrays = {name: array_of(given[name]) for name in ("X", "client") if name in given}
        else:
            given = np.load(data, allow_pickle=False)
            arrays = {name: given[name] for name in ("X", "client") if name in given.files}
    arrays = {name: widened(values) for name, values in arrays.items()}
    x, owner = arrays.get("X"), arrays.get("client")
    if x is None or x.ndim != 2:
        raise UserError(f"{path}: there is no matrix 'X'; save the rows as X, of shape (rows, features)")
    return pd.DataFrame(x), None if owner is None else pd.Series(
        owner.astype(str) if owner.dtype.kind == "S" else owner
    )


def _names(owner: Any) -> np.ndarray:
    """Names of clients as the reader of tables has them, None where there is none."""
    found, there = np.full(len(owner), None, object), owner.notna().to_numpy()
    found[there] = text_names(plain(owner[there].infer_objects())).astype(object)
    return found


def finite_numbers(series: Any, where: str) -> np.ndarray:
    """A column as finite numbers. Raises UserError, beginning with ``where``."""
    found = numeric(series, where)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        row = int((~np.isfinite(found)).argmax()) + 1
        raise UserError(f"{where} is missing or infinite in row {row}; fill it in or drop the row")
    return found
