"""Tables on disk: CSV, TSV, Parquet and XLSX as data frames, NPZ and LIBSVM as arrays without named columns."""

import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.datasets.columns import Kind
from fcorun.datasets.excel import read_excel
from fcorun.datasets.libsvm import read_libsvm
from fcorun.datasets.npz import read_npz, text_names
from fcorun.datasets.remarks import decimal_commas, nothing_known
from fcorun.datasets.rows import Rows
from fcorun.datasets.stored import HDF5, is_folder, read_folder, read_hdf5
from fcorun.datasets.text import Written, head_of, read_text
from fcorun.errors import UserError, nearest

LIBSVM = (".libsvm", ".svm", ".svmlight", ".txt")
TEXT = (".csv", ".tsv")
NAMED = (*TEXT, ".parquet", ".xlsx")
# what the readers raise at a damaged or mislabelled file: their own errors derive from these
DAMAGE = (ValueError, OSError, EOFError, KeyError, NotImplementedError, Warning, zlib.error, zipfile.BadZipFile)
FOLDER = "folder of .npy"
ENDINGS = (*NAMED, ".npz", *HDF5, *LIBSVM)
UTF_8 = "save it as UTF-8; if it is of an older Windows, iconv -f windows-1252 -t utf-8 OLD > NEW does"


def find(path: str, option: str = "data.path=", endings: Sequence[str] = ENDINGS) -> Path:
    """The file that ``option``, which errors begin with, names. Raises UserError, with the nearest name in its folder,
    if there is none."""
    file, where = Path(path).expanduser(), f"{option}{path}"
    if file.is_dir():
        raise UserError(f"{where} is a folder: give a file that ends in {', '.join(endings)}")
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
    """What is said of a file that its reader cannot read."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    cure = UTF_8 if isinstance(error, UnicodeDecodeError) else "mend or rename the file"
    return UserError(f"{where}: cannot be read as {ending} ({reason}); {cure}")


def read(
    path: str,
    target: str | None = None,
    client: str | None = None,
    ignore: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    resident: bool | str = True,
) -> Rows:
    """The rows of the file at ``path``, whose ending says the format; of arrays in a folder or in HDF5, x stays on disk
    unless it is to be ``resident``, "auto" where it does not fit into memory.

    ``target`` and ``client`` name columns of a file with named ones, which may lack a client; ``ignore`` and ``only``
    the other columns that are to be left out, or to be left; ``kinds`` are those of columns that are known. Raises
    UserError for a file that is missing, empty or cannot be read, and for targets, clients and arrays with values that
    are missing or not numbers.
    """
    where, folder = f"data.path={path}", is_folder(path)
    file = Path(path).expanduser() if folder else find(path)
    ending = FOLDER if folder else ending_of(file, where)
    for option, column in (("target", target), ("client", client), ("ignore", ignore), ("only", only)):
        if column is not None and ending not in NAMED:
            raise UserError(f"data.{option}={column}: a {ending} file has no named columns; leave data.{option} out")
    if ending not in (FOLDER, *HDF5) and resident is False:
        raise UserError(f"data.resident=false: {path} is read whole: write it as .parquet, .h5 or a folder of "
                        "X.npy and y.npy, or leave data.resident out")  # fmt: skip
    try:
        if ending in NAMED:
            written, remarks = frame_of(file, ending, target, client, where=where, kinds=kinds)
            frame = written.frame
            features = chosen(frame, path, (target, client), ignore, only)
            rows = split(frame, path, target, client, features=features)
            unread = next((why for name, why in written.unread.items() if name in features), None)
            if unread:
                raise UserError(f"{where}: {unread}")
            told = {name: found for name, found in written.words.items() if name in features or name == target}
            rows = replace(rows, remarks=(*remarks, *nothing_known(told, frame)))
        else:
            rows = Rows(**_arrays(file, ending, path, resident))
    except DAMAGE as error:
        raise damaged(where, ending, error) from error
    if not len(rows.y):
        raise UserError(f"data.path={path}: the file has no rows; give one with data")
    if not (rows.x if rows.frame is None else rows.frame).shape[1]:
        raise UserError(f"data.path={path}: the file has no feature columns; give at least one")
    _finite(rows, path, target)
    return rows


def _arrays(file: Path, ending: str, path: str, resident: bool | str) -> dict[str, Any]:
    """The arrays of a file without named columns, by their names in Rows."""
    if ending == FOLDER:
        return read_folder(path, resident)
    if ending in HDF5:
        return read_hdf5(file, path, resident)
    return read_npz(file, path) if ending == ".npz" else dict(zip("xy", read_libsvm(file, path), strict=True))


def frame_of(
    file: Path,
    ending: str,
    target: str | None,
    client: str | None,
    *,
    where: str = "",
    kinds: Mapping[str, Kind] | None = None,
) -> tuple[Written, list[str]]:
    """A file with named columns, the names being text, and what to know of how it was read.

    ``target`` and ``client`` name columns whose text stays as it is, if they are there; ``kinds`` are those of columns
    that are known. Raises UserError where two columns have the same name, and one of DAMAGE.
    """
    import pandas as pd

    where, head, remarks = where or str(file), [], []
    if ending == ".parquet":
        written = Written(pd.read_parquet(file))
    elif ending == ".xlsx":
        written, head, remarks = read_excel(file, where, target, client, kinds)
    else:
        written = read_text(file, ending, target, client, kinds)
        head = head_of(file, ending)
    frame = written.frame
    frame.columns = [str(c) for c in frame.columns]
    twice = [name for name, count in Counter(head or frame.columns).items() if count > 1]
    if twice:
        raise UserError(f"{where}: two columns are called '{twice[0]}': rename or drop one")
    return written, [*decimal_commas(written.commas), *remarks]


def chosen(
    frame: Any,
    path: str,
    taken: Sequence[str | None],
    ignore: Sequence[str] | None,
    only: Sequence[str] | None,
) -> list[str]:
    """The columns that are features, in the order of the file. Raises UserError for names that are none."""
    there = [name for name in frame.columns if name not in taken]
    for option, names in (("ignore", ignore), ("only", only)):
        for name in names or ():
            if name not in there:
                if name in taken:
                    raise UserError(
                        f"data.{option}: '{name}' is the target or the client, and no feature; leave it out"
                    )
                raise UserError(f"data.{option}: {path} has no column '{name}'; {_columns(name, frame[there])}")
    return [name for name in there if name not in (ignore or ()) and (only is None or name in only)]


def split(frame: Any, path: str, target: str | None, client: str | None, *, features: list[str]) -> Rows:
    """A data frame as target, clients and features. Raises UserError for a column that is missing or has gaps."""
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
    unnamed = next((c for c in features if c.startswith("Unnamed: ")), None)
    if unnamed:
        raise UserError(
            f"data.path={path}: column {unnamed.split()[-1]} (from 0) has no name and may be a saved row number; "
            "name it or drop it (in pandas: to_csv(..., index=False))"
        )
    return Rows(
        x=np.empty((len(frame), 0)),
        y=plain(frame[target]),
        client=None if client is None else text_names(plain(frame[client])),
        frame=frame[features],
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


def _finite(rows: Rows, path: str, target: str | None) -> None:
    x = rows.x if isinstance(rows.x, np.ndarray) else rows.y[:0]  # on disk: FederatedData.validate looks at them
    for array, name in ((x, None), (rows.y[:, None], f"target '{target}'" if target else "target y")):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row, column = np.argwhere(~np.isfinite(array))[0]
            name = name or f"column '{column}'"
            raise UserError(
                f"data.path={path}: {name} is missing or infinite in row {row + 1}; fill it in or drop the row"
            )
