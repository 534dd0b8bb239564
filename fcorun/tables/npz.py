"""The arrays of an .npz file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.rows.on_disk import memory_dtype, widen

_HELD = ("validation", "test")  # arrays that mark rows


def names_as_text(values: np.ndarray) -> np.ndarray:
    """Names of clients as text; 3.0 is '3', as a column of whole numbers may have become real on its way."""
    if values.dtype.kind == "f" and (values == np.floor(values)).all():
        values = values.astype(np.int64)
    return values.astype(str)


def read_npz(file: Path, path: str, extra_arrays: Sequence[str] = ()) -> dict[str, Any]:
    """Return the arrays "x" and "y", those of "client", "validation" and "test" that are there, and ``more``.

    Raises UserError for arrays that are missing or do not fit each other.
    """
    with file.open("rb") as data:  # numpy leaves a file open that it opened and found damaged
        arrays = np.load(data, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise ValueError("it holds a single array")
        for name in ("X", "y", *extra_arrays):
            if name not in arrays.files:
                raise UserError(f"data.path={path}: there is no array '{name}'; {suggest_name(name, arrays.files)}")
        found = {n: _array(arrays, n, path) for n in ("X", "y", "client", *_HELD, *extra_arrays) if n in arrays.files}
    return check_arrays(found, path)


def check_arrays(found: dict[str, Any], path: str) -> dict[str, Any]:
    """Arrays that fit each other, X as "x". Raises UserError for those that do not."""
    found = {n: a if isinstance(a, np.memmap) else widen(a) for n, a in found.items()}
    found = {n: a.astype(str) if a.dtype.kind == "S" else a for n, a in found.items()}
    x = found.pop("X")
    if x.ndim != 2 or memory_dtype(x.dtype).kind not in "fiub":
        raise UserError(f"data.path={path}: X must be a matrix of numbers; it is {x.ndim}-dimensional {x.dtype}")
    for name, array in found.items():
        if array.shape != x.shape[:1]:
            raise UserError(f"data.path={path}: {name} has shape {array.shape}; X has {len(x)} rows, make them agree")
        if array.dtype.kind == "V":
            raise UserError(f"data.path={path}: {name} has the type {array.dtype}; save it as numbers or text")
    for name in (name for name in _HELD if name in found):
        if found[name].dtype != bool:
            raise UserError(f"data.path={path}: {name} is {found[name].dtype}; save it as booleans, True for held out")
        if len(x) and found[name].all():
            raise UserError(f"data.path={path}: {name} marks every row as held out; leave some to train on")
    if "client" in found:
        found["client"] = names_as_text(found["client"])
    return {"x": x.view(np.int8) if x.dtype == bool else x, **found}


def _array(arrays: Any, name: str, path: str) -> np.ndarray:
    """An array of an .npz file. Raises UserError for one of Python's objects, which text of pandas is."""
    try:
        return arrays[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        kind = {"X": "float", "y": "float", **dict.fromkeys(_HELD, "bool")}.get(name, "str")
        kind += "), or dtype=str if they are labels" if name == "y" else ")"
        raise UserError(f"data.path={path}: array '{name}' holds Python objects, which may be anything: save it as "
                        f"{name}=np.array({name}, dtype={kind}") from error  # fmt: skip
