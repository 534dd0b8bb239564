"""Tables on disk: CSV, TSV, Parquet and XLSX as data frames, NPZ and LIBSVM as arrays without named columns."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from fcorun.errors import UserError
from fcorun.tables.array_files import (
    ARRAY_NAMES,
    HDF5_ENDINGS,
    is_array_folder,
    read_array_folder,
    read_hdf5,
    stays_on_disk,
)
from fcorun.tables.column_selection import check_unique_names, select_features, split_columns, suggest_columns
from fcorun.tables.columns import ColumnKind
from fcorun.tables.csv_text import ParsedTable, read_csv_text, read_header
from fcorun.tables.data_warnings import warn_decimal_commas, warn_missing_tokens
from fcorun.tables.encoding import read_encoding, read_kinds
from fcorun.tables.excel import read_excel
from fcorun.tables.groups import suggest_group_columns
from fcorun.tables.libsvm import read_libsvm
from fcorun.tables.npz import read_npz
from fcorun.tables.parquet import estimate_bytes, read_parquet
from fcorun.tables.parsed_rows import ParsedRows

LIBSVM_ENDINGS = (".libsvm", ".svm", ".svmlight", ".txt")
TEXT_ENDINGS = (".csv", ".tsv")
PARQUET_ENDING = ".parquet"
NAMED_COLUMN_ENDINGS = (*TEXT_ENDINGS, PARQUET_ENDING, ".xlsx")
# what the readers raise at a damaged or mislabelled file: their own errors derive from these
READ_ERRORS = (ValueError, OSError, EOFError, KeyError, NotImplementedError, Warning, zlib.error, zipfile.BadZipFile)
ARRAY_FOLDER = "folder of .npy"
ENDINGS = (*NAMED_COLUMN_ENDINGS, ".npz", *HDF5_ENDINGS, *LIBSVM_ENDINGS)
UTF_8_HINT = "save it as UTF-8; if it is of an older Windows, iconv -f windows-1252 -t utf-8 OLD > NEW does"


def find_file(path: str, option: str = "data.path=", endings: Sequence[str] = ENDINGS, *, arrays: bool = False) -> Path:
    """The file that ``option``, which errors begin with, names, where a folder of ``arrays`` might be named as well.
    Raises UserError, with the nearest name in its folder, if there is none."""
    file, where = Path(path).expanduser(), f"{option}{path}"
    if file.is_dir():
        also = "; or a folder with X.npy and y.npy" if arrays else ""
        raise UserError(f"{where} is a folder: give a file that ends in {', '.join(endings)}{also}")
    if not file.exists():
        folder = file.parent
        if not folder.is_dir():
            raise UserError(f"{where}: there is no folder '{folder}'; check the path")
        close = get_close_matches(file.name, [f.name for f in folder.iterdir()], n=1)
        hint = f"did you mean '{folder / close[0]}'?" if close else f"check the path (folder '{folder.resolve()}')"
        raise UserError(f"{where}: there is no such file; {hint}")
    return file


def detect_ending(file: Path, where: str) -> str:
    """What says the format of a file. Raises UserError for one that is not known, and for an empty file."""
    packed = file.suffix.lower() in (".gz", ".bz2")
    ending = Path(file.stem if packed else file.name).suffix.lower()
    if ending not in (TEXT_ENDINGS + LIBSVM_ENDINGS if packed else ENDINGS):
        raise UserError(
            f"{where}: unknown ending '{ending + file.suffix if packed else ending}'; "
            f"give one of {', '.join(ENDINGS)} (.gz or .bz2 may follow {', '.join(TEXT_ENDINGS + LIBSVM_ENDINGS)})"
        )
    if not file.stat().st_size:
        raise UserError(f"{where}: the file is empty; give one with data")
    return ending


def explain_damage(where: str, ending: str, error: Exception) -> UserError:
    """What is said of a file that its reader cannot read."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    cure = UTF_8_HINT if isinstance(error, UnicodeDecodeError) else "mend or rename the file"
    return UserError(f"{where}: cannot be read as {ending} ({reason}); {cure}")


def read_table(
    path: str,
    target: str | None = None,
    client: str | None = None,
    ignore: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    *,
    metadata_columns: Mapping[str, str] = MappingProxyType({}),
    record: str | None = None,
    resident: bool | str = True,
) -> ParsedRows:
    """The rows of the file at ``path``, whose ending says the format; of Parquet, HDF5 and arrays in a folder, x stays
    on disk unless it is to be ``resident``, "auto" where it does not fit into memory.

    ``target`` and ``client`` name columns of a file with named ones, which may lack a client; ``ignore`` and ``only``
    the other columns that are to be left out, or to be left; ``aside``, by option, those of them that are no features
    in the end; ``record`` is one whose encoding the columns are to fit. Raises UserError for a file that is missing,
    empty or cannot be read, and for targets, clients and arrays with values that are missing or not numbers.
    """
    where, folder = f"data.path={path}", is_array_folder(path)
    file = Path(path).expanduser() if folder else find_file(path, arrays=True)
    ending = ARRAY_FOLDER if folder else detect_ending(file, where)
    columns: dict[str, Any] = {"target": target, "client": client, "ignore": ignore, "only": only}
    for option, column in columns.items():
        if column is not None and ending not in NAMED_COLUMN_ENDINGS:
            raise UserError(f"data.{option}={column}: a {ending} file has no named columns; leave data.{option} out")
    if ending not in (ARRAY_FOLDER, *HDF5_ENDINGS, PARQUET_ENDING) and resident is False:
        raise UserError(f"data.resident=false: {path} is read whole: write it as .parquet, .h5 or a folder of "
                        "X.npy and y.npy, or leave data.resident out")  # fmt: skip
    try:
        if ending not in NAMED_COLUMN_ENDINGS:
            rows = _arrays(file, ending, path, resident, metadata_columns)
        elif ending == PARQUET_ENDING and stays_on_disk(estimate_bytes(file), resident):
            encoding = read_encoding(record) if record else None
            rows = read_parquet(file, path, **columns, metadata_columns=metadata_columns, encoding=encoding)
        else:
            kinds = read_kinds(record) if record else None
            rows = _named(file, path, ending, **columns, kinds=kinds, aside=metadata_columns)
    except READ_ERRORS as error:
        raise explain_damage(where, ending, error) from error
    if not len(rows.y):
        raise UserError(f"data.path={path}: the file has no rows; give one with data")
    if not (rows.x if rows.frame is None else rows.frame).shape[1]:
        raise UserError(f"data.path={path}: the file has no feature columns; give at least one")
    _finite(rows, path, target)
    return rows


def _named(
    file: Path,
    path: str,
    ending: str,
    *,
    target: str | None,
    client: str | None,
    ignore: Sequence[str] | None,
    only: Sequence[str] | None,
    kinds: Mapping[str, ColumnKind] | None,
    aside: Mapping[str, str],
) -> ParsedRows:
    """The rows of a file with named columns, in memory."""
    where = f"data.path={path}"
    written, remarks = read_named_columns(file, ending, target, client, where=where, kinds=kinds)
    frame = written.frame
    free = frame.drop(columns=[target, client], errors="ignore")
    for option, name in aside.items():
        if name not in free:
            raise UserError(f"data.{option}={name}: there is no such column in {path}; {suggest_columns(name, free)}")
    features = select_features(frame, path, (target, client), ignore, only)
    rows = split_columns(frame, path, target, client, features=features)
    if unread := next((why for name, why in written.unparsed_columns.items() if name in features), None):
        raise UserError(f"{where}: {unread}")
    told = {name: found for name, found in written.missing_tokens.items() if name in features or name == target}
    left_out = [name for name in frame.columns if name not in (*features, target, client)]
    repeated = [] if "group" in aside else suggest_group_columns(frame, left_out, client)
    return replace(rows, warnings=(*remarks, *warn_missing_tokens(told, frame), *repeated))


def _arrays(file: Path, ending: str, path: str, resident: bool | str, aside: Mapping[str, str]) -> ParsedRows:
    """The rows of a file of arrays; ``Rows.aside`` has those that the options group, split and fold name."""
    import pandas as pd

    asked = {option: name for option, name in aside.items() if option in ("group", "split", "fold")}
    for option, name in asked.items():
        if ending in LIBSVM_ENDINGS:
            raise UserError(f"data.{option}={name}: a {ending} file has features and targets only: give a table, or an "
                            f".npz with an array '{name}'")  # fmt: skip
        if name in ARRAY_NAMES:
            raise UserError(f"data.{option}={name}: that array is the rows' {name}: name another one, or none")
    more = list(dict.fromkeys(asked.values()))
    found: dict[str, Any]
    if ending == ARRAY_FOLDER:
        found = read_array_folder(path, resident, more)
    elif ending in HDF5_ENDINGS:
        found = read_hdf5(file, path, resident, more)
    elif ending == ".npz":
        found = read_npz(file, path, more)
    else:
        found = dict(zip("xy", read_libsvm(file, path), strict=True))
    columns = {name: found.pop(name) for name in more}
    return ParsedRows(**found, metadata=pd.DataFrame(columns) if columns else None)


def read_named_columns(
    file: Path,
    ending: str,
    target: str | None,
    client: str | None,
    *,
    where: str = "",
    kinds: Mapping[str, ColumnKind] | None = None,
) -> tuple[ParsedTable, list[str]]:
    """A file with named columns, the names being text, and what to know of how it was read.

    ``target`` and ``client`` name columns whose text stays as it is, if they are there; ``kinds`` are those of columns
    that are known. Raises UserError where two columns have the same name, and one of DAMAGE.
    """
    import pandas as pd

    where, head, remarks = where or str(file), [], []
    if ending == PARQUET_ENDING:
        written = ParsedTable(pd.read_parquet(file))
    elif ending == ".xlsx":
        written, head, remarks = read_excel(file, where, target, client, kinds)
    else:
        written = read_csv_text(file, ending, target, client, kinds)
        head = read_header(file, ending)
    frame = written.frame
    frame.columns = [str(c) for c in frame.columns]
    check_unique_names(head or frame.columns, where)
    return written, [*warn_decimal_commas(written.decimal_comma_columns), *remarks]


def _finite(rows: ParsedRows, path: str, target: str | None) -> None:
    x = rows.x if isinstance(rows.x, np.ndarray) else rows.y[:0]  # on disk: FederatedData.validate looks at them
    for array, name in ((x, None), (rows.y[:, None], f"target '{target}'" if target else "target y")):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row, column = np.argwhere(~np.isfinite(array))[0]
            name = name or f"column '{column}'"
            raise UserError(
                f"data.path={path}: {name} is missing or infinite in row {row + 1}; fill it in or drop the row"
            )
