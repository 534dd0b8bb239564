"""The readers of tables by the ending of the file: rows to train on, and data frames of new rows."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError
from fcorun.rows.disk_matrix import widen
from fcorun.tables.array_files import (
    ARRAY_NAMES,
    HDF5_ENDINGS,
    is_array_folder,
    read_array_folder,
    read_hdf5,
    read_hdf5_dataset,
    read_libsvm,
    read_npz,
    stays_on_disk,
)
from fcorun.tables.column_files import ParsedTable, estimate_bytes, read_csv_text, read_excel, read_header, read_parquet
from fcorun.tables.column_roles import ColumnRoles, ParsedRows, check_unique_names
from fcorun.tables.columns import ColumnKind, names_as_text, require_numbers, to_plain_array
from fcorun.tables.data_warnings import warn_decimal_commas, warn_missing_tokens, warn_repeated_rows
from fcorun.tables.encoding import read_encoding, read_kinds
from fcorun.tables.splits import suggest_group_columns

LIBSVM_ENDINGS = (".libsvm", ".svm", ".svmlight", ".txt")
TEXT_ENDINGS = (".csv", ".tsv")
PARQUET_ENDING = ".parquet"
NAMED_COLUMN_ENDINGS = (*TEXT_ENDINGS, PARQUET_ENDING, ".xlsx")
ENDINGS = (*NAMED_COLUMN_ENDINGS, ".npz", *HDF5_ENDINGS, *LIBSVM_ENDINGS)
ARRAY_FOLDER = "folder of .npy"  # stands for the ending of a folder in errors
# base classes of the errors that the readers raise for a damaged or mislabelled file
READ_ERRORS = (ValueError, OSError, EOFError, KeyError, NotImplementedError, Warning, zlib.error, zipfile.BadZipFile)
UTF_8_HINT = "save it as UTF-8; if it is of an older Windows, iconv -f windows-1252 -t utf-8 OLD > NEW does"


def find_file(path: str, option: str = "data.path=", endings: Sequence[str] = ENDINGS, *, arrays: bool = False) -> Path:
    """Return the file at ``path``. Raises UserError, which begins with ``option``, if there is no such file.

    The error suggests a similar name in the same folder. An error about a folder lists ``endings``, and mentions a
    folder of arrays if ``arrays``.
    """
    file = Path(path).expanduser()
    where = f"{option}{path}"
    if file.is_dir():
        also = "; or a folder with X.npy and y.npy" if arrays else ""
        raise UserError(f"{where} is a folder: give a file that ends in {', '.join(endings)}{also}")
    if not file.exists():
        folder = file.parent
        if not folder.is_dir():
            raise UserError(f"{where}: there is no folder '{folder}'; check the path")
        similar = get_close_matches(file.name, [entry.name for entry in folder.iterdir()], n=1)
        hint = f"did you mean '{folder / similar[0]}'?" if similar else f"check the path (folder '{folder.resolve()}')"
        raise UserError(f"{where}: there is no such file; {hint}")
    return file


def detect_ending(file: Path, where: str) -> str:
    """Return the ending that says the format of a file, without .gz or .bz2.

    Raises UserError for an unknown ending, and for an empty file.
    """
    compressed = file.suffix.lower() in (".gz", ".bz2")
    ending = Path(file.stem if compressed else file.name).suffix.lower()
    compressible = TEXT_ENDINGS + LIBSVM_ENDINGS
    if ending not in (compressible if compressed else ENDINGS):
        raise UserError(
            f"{where}: unknown ending '{ending + file.suffix if compressed else ending}'; "
            f"give one of {', '.join(ENDINGS)} (.gz or .bz2 may follow {', '.join(compressible)})"
        )
    if not file.stat().st_size:
        raise UserError(f"{where}: the file is empty; give one with data")
    return ending


def explain_damage(where: str, ending: str, error: Exception) -> UserError:
    """Return the UserError for a file that its reader cannot read."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    advice = UTF_8_HINT if isinstance(error, UnicodeDecodeError) else "mend or rename the file"
    return UserError(f"{where}: cannot be read as {ending} ({reason}); {advice}")


def read_table(path: str, roles: ColumnRoles, *, record: str | None = None, resident: bool | str = True) -> ParsedRows:
    """Read the rows of the file at ``path``, whose ending says the format.

    Raises UserError for a file that is missing, empty or damaged, and for targets, clients and arrays with values that
    are missing or not numbers.

    Args:
        path: the file, or a folder of .npy files.
        roles: the roles of named columns. Of a file of arrays, ``group``, ``split`` and ``fold`` name arrays.
        record: the folder of a record whose encoding the columns are to fit, or None.
        resident: whether the features of Parquet, HDF5 and folders are read into memory. With "auto", they stay on disk
            if they do not fit into memory.
    """
    where = f"data.path={path}"
    if is_array_folder(path):
        file, ending = Path(path).expanduser(), ARRAY_FOLDER
    else:
        file = find_file(path, arrays=True)
        ending = detect_ending(file, where)
    has_named_columns = ending in NAMED_COLUMN_ENDINGS
    for option in ("target", "client", "ignore", "only", "keep"):
        column = getattr(roles, option)
        if column is not None and not has_named_columns:
            raise UserError(f"data.{option}={column}: a {ending} file has no named columns; leave data.{option} out")
    if ending not in (ARRAY_FOLDER, *HDF5_ENDINGS, PARQUET_ENDING) and resident is False:
        raise UserError(f"data.resident=false: {path} is read whole: write it as .parquet, .h5 or a folder of "
                        "X.npy and y.npy, or leave data.resident out")  # fmt: skip
    try:
        if not has_named_columns:
            rows = _read_arrays(file, path, ending, roles, resident)
        elif ending == PARQUET_ENDING and stays_on_disk(estimate_bytes(file), resident):
            rows = read_parquet(file, path, roles, read_encoding(record) if record else None)
        else:
            rows = _read_frame(file, path, ending, roles, read_kinds(record) if record else None)
    except READ_ERRORS as error:
        raise explain_damage(where, ending, error) from error
    if not len(rows.y):
        raise UserError(f"data.path={path}: the file has no rows; give one with data")
    features = rows.x if rows.frame is None else rows.frame
    if not features.shape[1]:
        others = " and ".join(f"data.{option}" for option in roles.metadata)
        besides = f" besides {others}" if others else ""
        raise UserError(f"data.path={path}: the file has no feature columns{besides}; give at least one")
    if isinstance(rows.x, np.ndarray):  # rows on disk are checked by FederatedData.validate
        _check_finite(rows.x, path, None)
    _check_finite(rows.y[:, None], path, f"target '{roles.target}'" if roles.target else "target y")
    return rows


def _check_finite(values: np.ndarray, path: str, name: str | None) -> None:
    """Raise UserError for a missing or infinite value (N, d); ``name`` is that of the values, or None for columns."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        name = name or f"column '{column}'"
        raise UserError(f"data.path={path}: {name} is missing or infinite in row {row + 1}; fill it in or drop the row")


def _read_frame(
    file: Path, path: str, ending: str, roles: ColumnRoles, kinds: Mapping[str, ColumnKind] | None
) -> ParsedRows:
    """Read the rows of a file with named columns into memory."""
    where = f"data.path={path}"
    table, warnings = read_named_columns(file, ending, roles.target, roles.text_columns, where=where, kinds=kinds)
    return parse_columns(table, path, roles, [*warnings, *warn_repeated_rows(table.frame)])


def parse_columns(table: ParsedTable, path: str, roles: ColumnRoles, warnings: Sequence[str] = ()) -> ParsedRows:
    """Return the rows of a table with named columns; ``warnings`` are those on how its file was read.

    Raises UserError for columns that are missing or cannot be read, and for targets and clients with gaps.
    """
    where = f"data.path={path}"
    frame = table.frame
    features = roles.select_features(frame, path)
    rows = roles.split_columns(frame, path, features)
    used = [*features, *roles.metadata.values()]
    for name, reason in table.unparsed_columns.items():
        if name in used:
            raise UserError(f"{where}: {reason}")
    tokens = {name: tokens for name, tokens in table.missing_tokens.items() if name in (*used, roles.target)}
    warnings = [*warnings, *warn_missing_tokens(tokens, frame)]
    if roles.group is None:
        left_out = [name for name in frame.columns if name not in (*used, roles.target, roles.client)]
        warnings += suggest_group_columns(frame, left_out, roles.client)
    return replace(rows, warnings=tuple(warnings))


def _read_arrays(file: Path, path: str, ending: str, roles: ColumnRoles, resident: bool | str) -> ParsedRows:
    """Read the rows of a file of arrays; ``metadata`` has the arrays that the roles group, split and fold name."""
    import pandas as pd

    options = {option: name for option, name in roles.metadata.items() if option in ("group", "split", "fold")}
    for option, name in options.items():
        if ending in LIBSVM_ENDINGS:
            raise UserError(f"data.{option}={name}: a {ending} file has features and targets only: give a table, or an "
                            f".npz with an array '{name}'")  # fmt: skip
        if name in ARRAY_NAMES:
            raise UserError(f"data.{option}={name}: that array is the rows' {name}: name another one, or none")
    names = list(dict.fromkeys(options.values()))
    arrays: dict[str, Any]
    if ending == ARRAY_FOLDER:
        arrays = read_array_folder(path, resident, names)
    elif ending in HDF5_ENDINGS:
        arrays = read_hdf5(file, path, resident, names)
    elif ending == ".npz":
        arrays = read_npz(file, path, names)
    else:
        x, y, first_index = read_libsvm(file, path)
        arrays = {"x": x, "y": y, "first_index": first_index}
    metadata = {name: arrays.pop(name) for name in names}
    return ParsedRows(**arrays, metadata=pd.DataFrame(metadata) if metadata else None)


def read_named_columns(
    file: Path,
    ending: str,
    target: str | None,
    text_columns: Sequence[str],
    *,
    where: str = "",
    kinds: Mapping[str, ColumnKind] | None = None,
) -> tuple[ParsedTable, list[str]]:
    """Read a file with named columns. Return the table, with text as names of its columns, and warnings.

    The column ``target`` and the ``text_columns``, if the file has them, keep their text. ``kinds`` are the known kinds
    of columns. Raises UserError for two columns with the same name, and one of READ_ERRORS for a damaged file.
    """
    import pandas as pd

    where = where or str(file)
    header: list[str] = []
    warnings: list[str] = []
    if ending == PARQUET_ENDING:
        table = ParsedTable(pd.read_parquet(file))
    elif ending == ".xlsx":
        table, header, warnings = read_excel(file, where, target, text_columns, kinds)
    else:
        table = read_csv_text(file, ending, target, text_columns, kinds)
        header = read_header(file, ending)
    table.frame.columns = [str(name) for name in table.frame.columns]
    check_unique_names(header or table.frame.columns, where)
    return table, [*warn_decimal_commas(table.decimal_comma_columns), *warnings]


def read_dataframe(
    path: str,
    client: str | None = None,
    n_features: int = 0,
    kinds: Mapping[str, ColumnKind] | None = None,
    keep: Sequence[str] = (),
    first_index: int | None = None,
) -> tuple[Any, np.ndarray | None]:
    """Return the rows of a file as a pandas.DataFrame, and the client of each row as text or None, shape (n,).

    The second value is None where the file names no clients. Values are not checked.

    Args:
        path: the file. The columns of .npz, HDF5 and LIBSVM files are numbered from 0.
        client: the column of clients of a file with named columns. Of .npz and HDF5 files it is the array client.
        n_features: the least number of columns of a LIBSVM file, whose lines leave zeros out.
        kinds: the kinds of the record's columns: tokens such as NA are gaps among numbers, and levels among text.
        keep: columns whose text is read as it is written, unless ``kinds`` has them.
        first_index: the index of the first feature of a LIBSVM file, 0 or 1; None: 1 unless some index is 0.

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
            frame = read_named_columns(file, ending, None, text_columns, kinds=kinds)[0].frame
            frame.columns = [str(name) for name in frame.columns]
            clients = frame.pop(client) if client in frame else None
    except READ_ERRORS as error:
        raise explain_damage(path, ending, error) from error
    if not len(frame):
        raise UserError(f"{path}: the file has no rows; give one with data")
    if clients is None:
        return frame, None
    names, present = np.full(len(clients), None, object), clients.notna().to_numpy()
    names[present] = names_as_text(to_plain_array(clients[present].infer_objects())).astype(object)
    return frame, names


def _read_array_file(file: Path, ending: str, path: str) -> tuple[Any, Any]:
    """Return the array X of an .npz or HDF5 file as a DataFrame, and the array client as a Series or None."""
    import h5py
    import pandas as pd

    with file.open("rb") as stream:
        if ending in HDF5_ENDINGS:
            with h5py.File(stream) as content:
                arrays = {name: read_hdf5_dataset(content[name]) for name in ("X", "client") if name in content}
        else:
            content = np.load(stream, allow_pickle=False)
            arrays = {name: content[name] for name in ("X", "client") if name in content.files}
    arrays = {name: widen(values) for name, values in arrays.items()}
    x, clients = arrays.get("X"), arrays.get("client")
    if x is None or x.ndim != 2:
        raise UserError(f"{path}: there is no matrix 'X'; save the rows as X, of shape (rows, features)")
    if clients is None:
        return pd.DataFrame(x), None
    return pd.DataFrame(x), pd.Series(clients.astype(str) if clients.dtype.kind == "S" else clients)


def require_finite_numbers(series: Any, where: str) -> np.ndarray:
    """Return a column as finite numbers, shape (N,). Raises UserError, which begins with ``where``."""
    values = require_numbers(series, where)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = int((~np.isfinite(values)).argmax()) + 1
        raise UserError(f"{where} is missing or infinite in row {row}; fill it in or drop the row")
    return values
