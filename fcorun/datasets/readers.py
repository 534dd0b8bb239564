"""Tables on disk as arrays: CSV, TSV and Parquet with named columns, NPZ and LIBSVM without."""

import re
import zipfile
import zlib
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.datasets.libsvm import read_libsvm
from fcorun.datasets.text import read_text
from fcorun.errors import UserError, nearest

LIBSVM = (".libsvm", ".svm", ".svmlight", ".txt")
TEXT = (".csv", ".tsv")
# what the readers raise at a damaged or mislabelled file: their own errors derive from these
DAMAGE = (ValueError, OSError, EOFError, KeyError, NotImplementedError, Warning, zlib.error, zipfile.BadZipFile)
ENDINGS = (*TEXT, ".parquet", ".npz", *LIBSVM)
_HELD = ("validation", "test")  # arrays that mark rows


@dataclass(frozen=True)
class Rows:
    """The rows of a file in its own order.

    Attributes:
        x: features, shape (N, d), a real dtype, finite.
        y: targets as the file has them, shape (N,): real, finite numbers, booleans or text.
        client: the client of each row, text, shape (N,), or None.
        validation, test: True where the file holds a row out, shape (N,), or None.
        features: names of the columns of x, or empty.
        commas: the columns that were read with decimal commas.
    """

    x: np.ndarray
    y: np.ndarray
    client: np.ndarray | None = None
    validation: np.ndarray | None = None
    test: np.ndarray | None = None
    features: tuple[str, ...] = ()
    commas: tuple[str, ...] = ()


def find(path: str, option: str = "data.path=") -> Path:
    """The file that ``option``, which errors begin with, names. Raises UserError, with the nearest name in its folder,
    if there is none."""
    file, where = Path(path).expanduser(), f"{option}{path}"
    if file.is_dir():
        raise UserError(f"{where} is a folder: give a file that ends in {', '.join(ENDINGS)}")
    if not file.exists():
        folder = file.parent
        if not folder.is_dir():
            raise UserError(f"{where}: there is no folder '{folder}'; check the path")
        close = get_close_matches(file.name, [f.name for f in folder.iterdir()], n=1)
        hint = f"did you mean '{folder / close[0]}'?" if close else f"check the path (folder '{folder.resolve()}')"
        raise UserError(f"{where}: there is no such file; {hint}")
    return file


def ending_of(file: Path, where: str) -> str:
    """What says the format of a file. Raises UserError for one that is not known, and for an empty file."""
    packed = file.suffix.lower() in (".gz", ".bz2")
    ending = Path(file.stem if packed else file.name).suffix.lower()
    if ending not in (TEXT + LIBSVM if packed else ENDINGS):
        raise UserError(
            f"{where}: unknown ending '{ending + file.suffix if packed else ending}'; "
            f"give one of {', '.join(ENDINGS)} (.gz or .bz2 may follow {', '.join(TEXT + LIBSVM)})"
        )
    if not file.stat().st_size:
        raise UserError(f"{where}: the file is empty; give one with data")
    return ending


def damaged(where: str, ending: str, error: Exception) -> UserError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    cure = "save it as UTF-8" if isinstance(error, UnicodeDecodeError) else "mend or rename the file"
    return UserError(f"{where}: cannot be read as {ending} ({reason}); {cure}")


def read(path: str, target: str | None = None, client: str | None = None) -> Rows:
    """The rows of the file at ``path``, whose ending says the format.

    ``target`` and ``client`` name columns of a CSV, TSV or Parquet file, each of which may lack a client. Raises
    UserError for a file that is missing, empty or cannot be read, and for values that are missing or not numbers.
    """
    file = find(path)
    ending = ending_of(file, f"data.path={path}")
    named = ending in (*TEXT, ".parquet")
    for option, column in (("target", target), ("client", client)):
        if column is not None and not named:
            raise UserError(f"data.{option}={column}: a {ending} file has no named columns; leave data.{option} out")
    try:
        if named:
            frame, commas = frame_of(file, ending, target, client)
            rows = replace(_split(frame, path, target, client), commas=tuple(commas))
        elif ending == ".npz":
            rows = _npz(file, path)
        else:
            rows = Rows(*read_libsvm(file, path))
    except DAMAGE as error:
        raise damaged(f"data.path={path}", ending, error) from error
    if not len(rows.y):
        raise UserError(f"data.path={path}: the file has no rows; give one with data")
    if not rows.x.shape[1]:
        raise UserError(f"data.path={path}: the file has no feature columns; give at least one")
    _finite(rows, path, target)
    return rows


def frame_of(file: Path, ending: str, target: str | None, client: str | None) -> tuple[Any, list[str]]:
    import pandas as pd

    return (pd.read_parquet(file), []) if ending == ".parquet" else read_text(file, ending, target, client)


def _split(frame: Any, path: str, target: str | None, client: str | None) -> Rows:
    """The columns of a data frame as arrays. Raises UserError for a missing column or one that is not numeric."""
    frame.columns = [str(c) for c in frame.columns]
    if target is None:
        raise UserError(f"data.target has no value: name the column of {path} to predict, {_columns('', frame)}")
    if target == client:
        raise UserError(f"data.client={client} is data.target too: name two different columns")
    for option, column in (("target", target), ("client", client)):
        if column is not None and column not in frame:
            raise UserError(f"data.{option}={column}: there is no such column in {path}; {_columns(column, frame)}")
        if column is not None and frame[column].isna().any():
            row = int(frame[column].isna().to_numpy().argmax()) + 1
            raise UserError(f"data.{option}={column}: row {row} of {path} has no value there; fill it in or drop it")
    features = [c for c in frame.columns if c not in (target, client)]
    unnamed = next((c for c in features if c.startswith("Unnamed: ")), None)
    if unnamed:
        raise UserError(
            f"data.path={path}: column {unnamed.split()[-1]} (from 0) has no name and may be a saved row number; "
            "name it or drop it (in pandas: to_csv(..., index=False))"
        )
    columns = [numeric(frame[c], f"data.path={path}: column '{c}'") for c in features]
    x = np.stack(columns, axis=1) if columns else np.empty((len(frame), 0))
    return Rows(
        x=x.astype(np.int8) if x.dtype == bool else x,
        y=plain(frame[target]),
        client=None if client is None else text_names(plain(frame[client])),
        features=tuple(features),
    )


def _columns(name: str, frame: Any) -> str:
    names = list(frame.columns)
    return nearest(name, names if len(names) <= 30 else get_close_matches(name, names, n=10, cutoff=0))


def plain(series: Any) -> np.ndarray:
    """A column without missing values as numbers, booleans or text."""
    from pandas.api import types

    if types.is_bool_dtype(series.dtype):
        return series.to_numpy(dtype=bool)
    if types.is_numeric_dtype(series.dtype):
        return series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", series.dtype))
    return series.astype(str).to_numpy(dtype=str)


def numeric(series: Any, where: str) -> np.ndarray:
    import pandas as pd
    from pandas.api import types

    if types.is_numeric_dtype(series.dtype):  # booleans among them
        plain = isinstance(series.dtype, np.dtype)
        return series.to_numpy() if plain else series.to_numpy(dtype=float, na_value=np.nan)
    numeric: Any = pd.to_numeric(series.astype(str), errors="coerce")
    bad = numeric.isna() & series.notna()
    if not bad.any():  # numbers under another type, or nothing at all
        return numeric.to_numpy(dtype=float)
    row = int(bad.to_numpy().argmax())
    comma = (
        ", with a point for its decimals and none for thousands,"
        if re.fullmatch(r"[\s\d+-]*,[\d\s]*", str(series.iloc[row]))
        else ""
    )
    raise UserError(f"{where} holds '{series.iloc[row]}' in row {row + 1}: make it a number{comma} or drop the column")


def text_names(values: np.ndarray) -> np.ndarray:
    """Names of clients as text; 3.0 is '3', as a column of whole numbers may have become real on its way."""
    if values.dtype.kind == "f" and (values == np.floor(values)).all():
        values = values.astype(np.int64)
    return values.astype(str)


def _npz(file: Path, path: str) -> Rows:
    with file.open("rb") as data:  # numpy leaves a file open that it opened and found damaged
        arrays = np.load(data, allow_pickle=False)
        if isinstance(arrays, np.ndarray):
            raise ValueError("it holds a single array")
        for name in ("X", "y"):
            if name not in arrays.files:
                raise UserError(f"data.path={path}: there is no array '{name}'; {nearest(name, arrays.files)}")
        found = {n: array_of(arrays, n, path) for n in ("X", "y", "client", *_HELD) if n in arrays.files}
    found = {n: a.astype(str) if a.dtype.kind == "S" else a for n, a in found.items()}
    x, y = found["X"], found["y"]
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise UserError(f"data.path={path}: X must be a matrix of numbers; it is {x.ndim}-dimensional {x.dtype}")
    for name, array in found.items():
        if array.shape[:1] != x.shape[:1] or (name != "X" and array.ndim != 1):
            raise UserError(f"data.path={path}: {name} has shape {array.shape}; X has {len(x)} rows, make them agree")
    for name in (name for name in _HELD if name in found):
        if found[name].dtype != bool:
            raise UserError(f"data.path={path}: {name} is {found[name].dtype}; save it as booleans, True for held out")
        if len(y) and found[name].all():
            raise UserError(f"data.path={path}: {name} marks every row as held out; leave some to train on")
    client = found.get("client")
    return Rows(
        x=x.astype(np.int8) if x.dtype == bool else x,
        y=y,
        client=None if client is None else text_names(client),
        validation=found.get("validation"),
        test=found.get("test"),
    )


def array_of(arrays: Any, name: str, path: str) -> np.ndarray:
    """An array of an .npz file. Raises UserError for one of Python's objects, which text of pandas is."""
    try:
        return arrays[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        kind = {"client": "str", **dict.fromkeys(_HELD, "bool")}.get(name, "float")
        kind += "), or dtype=str if they are labels" if name == "y" else ")"
        raise UserError(f"data.path={path}: array '{name}' holds Python objects, which may be anything: save it as "
                        f"{name}=np.array({name}, dtype={kind}") from error  # fmt: skip


def _finite(rows: Rows, path: str, target: str | None) -> None:
    for array, name in ((rows.x, None), (rows.y[:, None], f"target '{target}'" if target else "target y")):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row, column = np.argwhere(~np.isfinite(array))[0]
            name = name or f"column '{rows.features[column] if rows.features else column}'"
            raise UserError(
                f"data.path={path}: {name} is missing or infinite in row {row + 1}; fill it in or drop the row"
            )
