"""New rows for predictions, from a file of any format."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.data.rows.disk_matrix import widen
from fcorun.data.tables.array_files import HDF5_ENDINGS, read_hdf5_array, read_libsvm
from fcorun.data.tables.cells import names_as_text, to_plain_array
from fcorun.data.tables.columns import Column
from fcorun.data.tables.readers import (
    LIBSVM_ENDINGS,
    READ_ERRORS,
    detect_ending,
    explain_damage,
    find_file,
    read_named_columns,
)


def read_dataframe(
    path: str,
    client: str | None = None,
    n_features: int = 0,
    kinds: Mapping[str, Column] | None = None,
    keep: Sequence[str] = (),
    first_index: int | None = None,
    warnings: list[str] | None = None,
) -> tuple[Any, np.ndarray | None]:
    """Return the rows of a file as a pandas.DataFrame, and the client of each row as text or None, shape (n,).

    The second value is None where the file names no clients. Values are not checked.

    Args:
        path: the file. The columns of .npz, HDF5 and LIBSVM files are numbered from 0.
        client: the column of clients of a file with named columns. Of .npz and HDF5 files it is the array client.
        n_features: the least number of columns of a LIBSVM file, whose lines leave zeros out.
        kinds: the kinds of the record's columns: tokens such as NA are gaps among numbers, and levels among text, which
            is read as it is written.
        keep: columns whose text is read as it is written, unless ``kinds`` has them.
        first_index: the index of the first feature of a LIBSVM file, 0 or 1; None: 1 unless some index is 0.
        warnings: a list to which warnings on how the file was read are appended.

    Raises UserError for a file that is missing, empty or cannot be read.
    """
    import pandas as pd

    file = find_file(path, "")
    ending = detect_ending(file, path)
    clients = None
    try:
        if ending in LIBSVM_ENDINGS:
            x = read_libsvm(file, path, first_index)[0]
            frame = pd.DataFrame(np.pad(x, ((0, 0), (0, max(n_features - x.shape[1], 0)))))
        elif ending in (".npz", *HDF5_ENDINGS):
            frame, clients = _read_array_file(file, ending, path)
        else:
            text_columns = [name for name in (client, *keep) if name is not None and name not in (kinds or {})]
            table, file_warnings = read_named_columns(file, ending, None, text_columns, kinds=kinds)
            frame = table.frame
            if warnings is not None:
                warnings += [f"{path}: {warning}" for warning in file_warnings]
            frame.columns = [str(name) for name in frame.columns]
            clients = frame.pop(client) if client in frame else None
    except READ_ERRORS as error:
        raise explain_damage(path, ending, error) from error
    if not len(frame):
        raise UserError(f"{path}: the file has no rows; give one with data")
    if clients is None:
        return frame, None
    names = np.full(len(clients), None, object)
    present = clients.notna().to_numpy()
    names[present] = names_as_text(to_plain_array(clients[present].infer_objects())).astype(object)
    return frame, names


def _read_array_file(file: Path, ending: str, path: str) -> tuple[Any, Any]:
    """Return the array X of an .npz or HDF5 file as a DataFrame, and the array client as a Series or None.

    Raises UserError for an X that is no matrix of numbers, and for a client that does not fit X.
    """
    import h5py
    import pandas as pd

    with file.open("rb") as stream:
        if ending in HDF5_ENDINGS:
            with h5py.File(stream) as content:
                arrays = {name: read_hdf5_array(content, name, path) for name in ("X", "client") if name in content}
        else:
            content = np.load(stream, allow_pickle=False)
            if isinstance(content, np.ndarray):
                raise ValueError("it holds a single array")
            arrays = {name: content[name] for name in ("X", "client") if name in content.files}
    arrays = {name: widen(values) for name, values in arrays.items()}
    x = arrays.get("X")
    clients = arrays.get("client")
    if x is None or x.ndim != 2 or x.dtype.kind not in "fiub":
        raise UserError(f"{path}: there is no matrix 'X' of numbers; save the rows as X, of shape (rows, features)")
    if clients is None:
        return pd.DataFrame(x), None
    if clients.shape != x.shape[:1]:
        raise UserError(f"{path}: client has shape {clients.shape}; X has {len(x)} rows, make them agree")
    if clients.dtype.kind in "VO":
        raise UserError(f"{path}: client has the type {clients.dtype}; save it as numbers or text")
    return pd.DataFrame(x), pd.Series(clients.astype(str) if clients.dtype.kind == "S" else clients)
