"""Files of new rows as data frames, whatever is in their columns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError
from fcorun.rows.on_disk import widen
from fcorun.tables.array_files import HDF5_ENDINGS, read_hdf5_dataset
from fcorun.tables.column_selection import to_plain_array
from fcorun.tables.columns import ColumnKind, require_numbers
from fcorun.tables.libsvm import read_libsvm
from fcorun.tables.npz import names_as_text
from fcorun.tables.readers import (
    LIBSVM_ENDINGS,
    READ_ERRORS,
    detect_ending,
    explain_damage,
    find_file,
    read_named_columns,
)


def read_dataframe(
    path: str, client: str | None = None, n_features: int = 0, kinds: Mapping[str, ColumnKind] | None = None
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

    file = find_file(path, "")
    ending, owner = detect_ending(file, path), None
    try:
        if ending in LIBSVM_ENDINGS:
            x = read_libsvm(file, path)[0]
            frame = pd.DataFrame(np.pad(x, ((0, 0), (0, max(n_features - x.shape[1], 0)))))
        elif ending in (".npz", *HDF5_ENDINGS):
            frame, owner = _without_names(file, ending, path)
        else:
            frame = read_named_columns(file, ending, None, client, kinds=kinds)[0].frame
            frame.columns = [str(c) for c in frame.columns]
            owner = frame.pop(client) if client in frame else None
    except READ_ERRORS as error:
        raise explain_damage(path, ending, error) from error
    if not len(frame):
        raise UserError(f"{path}: the file has no rows; give one with data")
    return frame, None if owner is None else _names(owner)


def _without_names(file: Path, ending: str, path: str) -> tuple[Any, Any]:
    import h5py
    import pandas as pd

    with file.open("rb") as data:
        if ending in HDF5_ENDINGS:
            with h5py.File(data) as given:
                arrays = {name: read_hdf5_dataset(given[name]) for name in ("X", "client") if name in given}
        else:
            given = np.load(data, allow_pickle=False)
            arrays = {name: given[name] for name in ("X", "client") if name in given.files}
    arrays = {name: widen(values) for name, values in arrays.items()}
    x, owner = arrays.get("X"), arrays.get("client")
    if x is None or x.ndim != 2:
        raise UserError(f"{path}: there is no matrix 'X'; save the rows as X, of shape (rows, features)")
    return pd.DataFrame(x), None if owner is None else pd.Series(
        owner.astype(str) if owner.dtype.kind == "S" else owner
    )


def _names(owner: Any) -> np.ndarray:
    """Names of clients as the reader of tables has them, None where there is none."""
    found, there = np.full(len(owner), None, object), owner.notna().to_numpy()
    found[there] = names_as_text(to_plain_array(owner[there].infer_objects())).astype(object)
    return found


def require_finite_numbers(series: Any, where: str) -> np.ndarray:
    """A column as finite numbers. Raises UserError, beginning with ``where``."""
    found = require_numbers(series, where)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        row = int((~np.isfinite(found)).argmax()) + 1
        raise UserError(f"{where} is missing or infinite in row {row}; fill it in or drop the row")
    return found
