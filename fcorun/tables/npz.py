"""The arrays of an .npz file, and the checks of arrays that belong together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.rows.disk_matrix import memory_dtype, widen

_MASKS = ("validation", "test")  # arrays that mark held-out rows


def names_as_text(values: np.ndarray) -> np.ndarray:
    """Return names as text. The name 3.0 is "3", since a column of whole numbers may have become real."""
    if values.dtype.kind == "f" and (values == np.floor(values)).all():
        values = values.astype(np.int64)
    return values.astype(str)


def read_npz(file: Path, path: str, extra_arrays: Sequence[str] = ()) -> dict[str, Any]:
    """Return the arrays "x" and "y", "client", "validation" and "test" if the file has them, and ``extra_arrays``.

    Raises UserError for arrays that are missing or do not fit each other.
    """
    with file.open("rb") as stream:  # given a path, numpy leaves a damaged file open
        content = np.load(stream, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise ValueError("it holds a single array")
        for name in ("X", "y", *extra_arrays):
            if name not in content.files:
                raise UserError(f"data.path={path}: there is no array '{name}'; {suggest_name(name, content.files)}")
        names = ("X", "y", "client", *_MASKS, *extra_arrays)
        arrays = {name: _read_array(content, name, path) for name in names if name in content.files}
    return check_arrays(arrays, path)


def check_arrays(arrays: dict[str, Any], path: str) -> dict[str, Any]:
    """Return arrays that fit each other, X as "x" and all text as str. Raises UserError for arrays that do not fit."""
    checked = {}
    for name, array in arrays.items():
        if not isinstance(array, np.memmap):
            array = widen(array)
        checked[name] = array.astype(str) if array.dtype.kind == "S" else array
    x = checked.pop("X")
    if x.ndim != 2 or memory_dtype(x.dtype).kind not in "fiub":
        raise UserError(f"data.path={path}: X must be a matrix of numbers; it is {x.ndim}-dimensional {x.dtype}")
    for name, array in checked.items():
        if array.shape != x.shape[:1]:
            raise UserError(f"data.path={path}: {name} has shape {array.shape}; X has {len(x)} rows, make them agree")
        if array.dtype.kind == "V":
            raise UserError(f"data.path={path}: {name} has the type {array.dtype}; save it as numbers or text")
    for name in _MASKS:
        mask = checked.get(name)
        if mask is None:
            continue
        if mask.dtype != bool:
            raise UserError(f"data.path={path}: {name} is {mask.dtype}; save it as booleans, True for held out")
        if len(x) and mask.all():
            raise UserError(f"data.path={path}: {name} marks every row as held out; leave some to train on")
    if "client" in checked:
        checked["client"] = names_as_text(checked["client"])
    return {"x": x.view(np.int8) if x.dtype == bool else x, **checked}


def _read_array(content: Any, name: str, path: str) -> np.ndarray:
    """Return an array of an .npz file. Raises UserError for Python objects, such as a text column of pandas."""
    try:
        return content[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        dtype = {"X": "float", "y": "float", **dict.fromkeys(_MASKS, "bool")}.get(name, "str")
        hint = f"{name}=np.array({name}, dtype={dtype})"
        if name == "y":
            hint += ", or dtype=str if they are labels"
        raise UserError(
            f"data.path={path}: array '{name}' holds Python objects, which may be anything: save it as {hint}"
        ) from error
