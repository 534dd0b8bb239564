"""The arrays of an .npz file."""

from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError, nearest


def text_names(values: np.ndarray) -> np.ndarray:
    """Names of clients as text; 3.0 is '3', as a column of whole numbers may have become real on its way."""
    if values.dtype.kind == "f" and (values == np.floor(values)).all():
        values = values.astype(np.int64)
    return values.astype(str)


def read_npz(file: Path, path: str) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """X, y, and client and validation or None. Raises UserError for arrays that do not fit each other."""
    with file.open("rb") as data:  # numpy leaves a file open that it opened and found damaged
        arrays = np.load(data, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise ValueError("it holds a single array")
        for name in ("X", "y"):
            if name not in arrays.files:
                raise UserError(f"data.path={path}: there is no array '{name}'; {nearest(name, arrays.files)}")
        found = {n: _array(arrays, n, path) for n in ("X", "y", "client", "validation") if n in arrays.files}
    found = {n: a.astype(str) if a.dtype.kind == "S" else a for n, a in found.items()}
    x, y, validation = found["X"], found["y"], found.get("validation")
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise UserError(f"data.path={path}: X must be a matrix of numbers; it is {x.ndim}-dimensional {x.dtype}")
    for name, array in found.items():
        if array.shape[:1] != x.shape[:1] or (name != "X" and array.ndim != 1):
            raise UserError(f"data.path={path}: {name} has shape {array.shape}; X has {len(x)} rows, make them agree")
    if validation is not None and validation.dtype != bool:
        raise UserError(f"data.path={path}: validation is {validation.dtype}; save it as booleans, True for held out")
    if validation is not None and len(y) and validation.all():
        raise UserError(f"data.path={path}: validation marks every row as held out; leave some to train on")
    client = found.get("client")
    x = x.astype(np.int8) if x.dtype == bool else x
    return x, y, None if client is None else text_names(client), validation


def _array(arrays: Any, name: str, path: str) -> np.ndarray:
    """An array of an .npz file. Raises UserError for one of Python's objects, which text of pandas is."""
    try:
        return arrays[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        kind = {"client": "str", "validation": "bool"}.get(name, "float")
        kind += "), or dtype=str if they are labels" if name == "y" else ")"
        raise UserError(f"data.path={path}: array '{name}' holds Python objects, which may be anything: save it as "
                        f"{name}=np.array({name}, dtype={kind}") from error  # fmt: skip
