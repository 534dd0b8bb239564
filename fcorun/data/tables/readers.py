"""The readers of tables by the ending of the file: rows to train on, and data frames of new rows for predictions."""

import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fcorun.base.config import AUTO
from fcorun.base.errors import UserError, abbreviate, first_line, word
from fcorun.base.system.files import file_digest
from fcorun.base.system.machine import format_gib
from fcorun.data.rows.features import to_table
from fcorun.data.tables.array_files import (
    ARRAY_FOLDER,
    ARRAY_NAMES,
    HDF5_ENDINGS,
    PARQUET_ENDING,
    describe_size,
    estimate_bytes,
    is_array_folder,
    read_arrays,
    read_libsvm,
    read_parquet,
    stays_on_disk,
)
from fcorun.data.tables.cells import is_missing, names_as_text, read_names
from fcorun.data.tables.column_roles import ColumnRoles, ParsedRows, check_unique_names
from fcorun.data.tables.columns import Column
from fcorun.data.tables.data_warnings import warn_missing_tokens, warn_repeated_rows
from fcorun.data.tables.encoding import read_columns, read_encoding
from fcorun.data.tables.excel_files import read_excel
from fcorun.data.tables.parsed_table import FileOptions, ParsedTable, add_codes, mask_codes
from fcorun.data.tables.splits import suggest_group_columns
from fcorun.data.tables.text_files import read_csv_text
from fcorun.data.tables.triples import RowNumbers, is_triples_file, read_triples

LIBSVM_ENDINGS = (".libsvm", ".svm", ".svmlight", ".txt")
TEXT_ENDINGS = (".csv", ".tsv")
NAMED_COLUMN_ENDINGS = (*TEXT_ENDINGS, PARQUET_ENDING, ".xlsx")
ENDINGS = (*NAMED_COLUMN_ENDINGS, ".npz", *HDF5_ENDINGS, *LIBSVM_ENDINGS)
# base classes of the errors that the readers raise for a damaged or mislabelled file
READ_ERRORS = (ValueError, OSError, EOFError, KeyError, RuntimeError, Warning, zlib.error, zipfile.BadZipFile)
UTF_8_HINT = "save it as UTF-8; if it is of an older Windows, iconv -f windows-1252 -t utf-8 OLD > NEW does"
# where ``FileOptions`` are a user's to give
ENCODING_HINT = "give `data.encoding=windows-1252` if it is of an older Windows, or save it as UTF-8"
_NO_OPTIONS = FileOptions()
_CLIENT_COLUMNS = {"client", "neighbour"}  # of files beside the data
_FILES_OF_OPTIONS = {
    "sheet": (".xlsx",),
    "encoding": TEXT_ENDINGS,
    "na": NAMED_COLUMN_ENDINGS,
    "sparse": LIBSVM_ENDINGS,
}
_SILENT_SECONDS = 30.0  # after which a table that is still being read is told of


def find_file(path: str, option: str = "data.path=", endings: Sequence[str] = ENDINGS, *, arrays: bool = False) -> Path:
    """Return the file at ``path``. Raises UserError, which begins with ``option``, if there is no such file.

    The error suggests a similar name in the same folder. An error about a folder lists ``endings``, and mentions a
    folder of arrays if ``arrays``.
    """
    file = Path(path).expanduser()
    where = f"`{option}{path}`"
    if not option:
        where = path
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


@contextmanager
def explain_damage(where: str, ending: str, encoding_hint: str = UTF_8_HINT) -> Iterator[None]:
    """Raise UserError in place of the error of a reader that cannot read a file."""
    try:
        yield
    except READ_ERRORS as error:
        advice = encoding_hint if isinstance(error, UnicodeDecodeError) else "mend or rename the file"
        raise UserError(f"{where}: cannot be read as {ending} ({first_line(error)}); {advice}") from error


def check_file_options(options: FileOptions, ending: str) -> None:
    """Raise UserError for an option of files of another format, unless the option is optional."""
    for option, endings in _FILES_OF_OPTIONS.items():
        value = getattr(options, option)
        if value not in (None, AUTO) and ending not in endings and option not in options.optional:
            typed = str(value).lower() if isinstance(value, bool) else value
            raise UserError(f"`data.{option}={typed}` is for {', '.join(endings)}, and the file is {ending}: leave "
                            f"`data.{option}` out")  # fmt: skip


def _check_names_no_column(roles: ColumnRoles, ending: str) -> None:
    """Raise UserError for options that name a column of a file without names of columns."""
    for option in ("target", "client", "ignore", "only", "keep", "weight", "offset", "event"):
        column = getattr(roles, option)
        if column is not None:
            raise UserError(
                f"`data.{option}={column}`: a {ending} file has no named columns; leave `data.{option}` out"
            )


def read_table(
    path: str,
    roles: ColumnRoles,
    *,
    record: str | None = None,
    resident: bool | str = True,
    options: FileOptions = _NO_OPTIONS,
    triples: str | None = None,
) -> ParsedRows:
    """Read the rows of the file at ``path``, whose ending says the format.

    Raises UserError for a missing, empty or damaged file, and for targets, clients and arrays with values that are
    missing or not numbers.

    Args:
        path: the file, or a folder of .npy files.
        roles: the roles of named columns. Of a file of arrays, ``group``, ``split`` and ``fold`` name arrays.
        record: the folder of a record whose encoding the columns are to fit, or None.
        resident: whether features are read into memory; "auto": unless they take too much of it.
        options: how a file with named columns is read.
        triples: a Parquet file with the features of the rows, which are sparse; ``path`` then has no features.
    """
    where = f"`data.path={path}`"
    if is_array_folder(path):
        file = Path(path).expanduser()
        ending = ARRAY_FOLDER
    else:
        file = find_file(path, arrays=True)
        ending = detect_ending(file, where)
    has_named_columns = ending in NAMED_COLUMN_ENDINGS
    if not has_named_columns:
        _check_names_no_column(roles, ending)
    if triples is not None:
        roles = _choose_no_features(roles, triples, has_named_columns)
    may_stay = triples is not None or ending in (ARRAY_FOLDER, *HDF5_ENDINGS, PARQUET_ENDING)
    if resident is False and not may_stay and not (ending in LIBSVM_ENDINGS and options.sparse):
        raise UserError(f"`data.resident=false`: {path} is read whole: write it as .parquet, .h5 or a folder of "
                        "X.npy and y.npy, or leave `data.resident` out")  # fmt: skip
    check_file_options(options, ending)
    with explain_damage(where, ending):
        if not has_named_columns:
            rows = _read_arrays(file, path, ending, roles, resident, sparse=options.sparse)
        elif ending == PARQUET_ENDING and triples is None and stays_on_disk(estimate_bytes(file), resident):
            _tell_size(file, ending, where)
            if options.na is not None:
                raise UserError(f"`data.na={options.na}` needs rows in memory, and those of {path} stay on disk: give "
                                "`data.resident=true`, or leave `data.na` out")  # fmt: skip
            rows = read_parquet(file, path, roles, read_encoding(record) if record else None)
        else:
            kinds = read_columns(record) if record else None
            table = read_named_columns(
                file,
                ending,
                roles.target,
                roles.text_columns,
                where=where,
                kinds=kinds,
                options=options,
                encoding_hint=ENCODING_HINT,
            )
            if triples is None:
                table.warnings += warn_repeated_rows(table.frame, roles.client)
            rows = parse_columns(table, path, roles)
            if triples is not None and len(rows.y):
                rows = replace(rows, x=read_features(triples, table.frame, where, resident), frame=None)
    if not len(rows.y):
        raise UserError(f"{where}: the file has no rows; give one with data")
    features = rows.x if rows.frame is None else rows.frame
    if not features.shape[1]:
        others = " and ".join(f"data.{option}" for option in roles.metadata)
        besides = f" besides {others}" if others else ""
        raise UserError(f"`data.path={path}`: the file has no feature columns{besides}; give at least one")
    if isinstance(rows.x, np.ndarray):  # rows on disk are checked by FederatedData.validate
        _check_finite(rows.x, path, None)
    _check_finite(rows.y[:, None], path, f"target '{roles.target}'" if roles.target else "target y")
    return rows


def _choose_no_features(roles: ColumnRoles, triples: str, has_named_columns: bool) -> ColumnRoles:
    """Return the roles of columns where all features are in the file ``triples``.

    Raises UserError for rows of a file without named columns.
    """
    if not has_named_columns:
        raise UserError(f"`data.triples={triples}` has the features of a table with named columns: give `data.path`, "
                        f"one of {', '.join(NAMED_COLUMN_ENDINGS)}")  # fmt: skip
    return replace(roles, only=[])


def read_features(triples: str, table: Any, source: str, resident: bool | str = True) -> Any:
    """Return the features of the lines of a table, a DataFrame that ``source`` names, as ``read_triples`` does.

    Raises UserError.
    """
    where = f"`data.triples={triples}`"
    with explain_damage(where, PARQUET_ENDING):
        row_numbers = RowNumbers.from_table(table, source)
        return read_triples(find_file(triples, "data.triples="), where, row_numbers, resident)


def _check_finite(values: np.ndarray, path: str, name: str | None) -> None:
    """Raise UserError for a missing or infinite value (N, d); ``name`` is that of the values, or None for columns."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        name = name or f"column '{column}'"
        raise UserError(
            f"`data.path={path}`: {name} is missing or infinite in row {row + 1}; fill it in or drop the row"
        )


def _tell_size(file: Path, ending: str, where: str) -> None:
    """Print the size of a large file before the file is read."""
    if size := describe_size(file, ending):
        advice = "which may take minutes; a file of fewer rows or columns takes less"
        print(word(f"{where}: reading {size}, {advice}"), file=sys.stderr, flush=True)


@contextmanager
def telling_of_long_reading(where: str) -> Iterator[None]:
    """Print each half minute that a table is still being read, and how much memory this process has by then."""
    ended = threading.Event()
    begin = time.monotonic()

    def tell() -> None:
        while not ended.wait(_SILENT_SECONDS):
            seconds = time.monotonic() - begin
            memory = format_gib(psutil.Process().memory_info().rss)
            print(word(f"{where}: still being read after {seconds:.0f} s, with {memory} of memory"), file=sys.stderr)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def parse_columns(table: ParsedTable, path: str, roles: ColumnRoles) -> ParsedRows:
    """Return the rows of a table with named columns.

    Raises UserError for columns that are missing or cannot be read, and for targets and clients with gaps.
    """
    where = f"`data.path={path}`"
    frame = table.frame
    features = roles.select_features(frame, path)
    rows = roles.separate_columns(frame, path, features)
    used = {*features, *roles.metadata.values()}
    known = {*used, roles.target}
    for name, reason in table.unparsed_columns.items():
        if name in used:
            raise UserError(f"{where}: {reason}")
    tokens = {name: tokens for name, tokens in table.missing_tokens.items() if name in known}
    warnings = [*table.warnings, *warn_missing_tokens(tokens, frame)]
    warnings += [text for name, text in table.column_warnings.items() if name in used]
    if roles.group is None:
        left_out = [name for name in frame.columns if name not in known and name != roles.client]
        warnings += suggest_group_columns(frame, left_out, features, roles.client)
    return replace(rows, warnings=tuple(warnings))


def _read_arrays(
    file: Path, path: str, ending: str, roles: ColumnRoles, resident: bool | str, sparse: bool | str
) -> ParsedRows:
    """Read the rows of a file of arrays; ``metadata`` has the arrays that the roles group, split and fold name."""
    import pandas as pd

    where = f"`data.path={path}`"
    options = {option: name for option, name in roles.metadata.items() if option in ("group", "split", "fold")}
    for option, name in options.items():
        if ending in LIBSVM_ENDINGS:
            raise UserError(f"`data.{option}={name}`: a {ending} file has features and targets only: give a table, "
                            f"or an .npz with an array '{name}'")  # fmt: skip
        if name in ARRAY_NAMES:
            raise UserError(f"`data.{option}={name}`: that array is the rows' {name}: name another one, or none")
    if ending in LIBSVM_ENDINGS:
        x, y, first_index = read_libsvm(file, path, sparse=sparse, resident=resident)
        return ParsedRows(x, y, first_index=first_index)
    names = list(dict.fromkeys(options.values()))
    arrays = read_arrays(file, ending, where, ("X", "y", *names), ("client", "validation", "test"), resident=resident)
    if "client" in arrays:
        arrays["client"] = names_as_text(arrays["client"])
        has_no_client = np.isin(arrays["client"], ["", "nan", "NaT"])
        if has_no_client.any():
            raise UserError(f"{where}: row {int(has_no_client.argmax()) + 1} has no client; give each row the name of "
                            "its client")  # fmt: skip
    metadata = {name: arrays.pop(name) for name in names}
    return ParsedRows(**arrays, metadata=pd.DataFrame(metadata) if metadata else None)


def read_named_columns(
    file: Path,
    ending: str,
    target: str | None,
    text_columns: Sequence[str],
    *,
    where: str,
    kinds: Mapping[str, Column] | None = None,
    options: FileOptions = _NO_OPTIONS,
    encoding_hint: str = UTF_8_HINT,
) -> ParsedTable:
    """Read a file with named columns, with text as names of its columns.

    The column ``target`` and the ``text_columns``, if the file has them, keep their text. ``kinds`` are the known kinds
    of columns. A column without a name and a value is left out, as a separator at the end of each line makes one.

    Raises UserError, which begins with ``where``, for two columns with the same name and a damaged file.
    """
    import pandas as pd

    with explain_damage(where, ending, encoding_hint):
        _tell_size(file, ending, where)
        if ending == PARQUET_ENDING:
            table = ParsedTable(pd.read_parquet(file))
        elif ending == ".xlsx":
            table = read_excel(file, target, text_columns, kinds or {}, where=where, options=options)
        else:
            table = read_csv_text(file, ending, target, text_columns, kinds or {}, where=where, options=options)
    frame = table.frame
    frame.columns = [str(name) for name in frame.columns]
    check_unique_names(table.header or frame.columns, where)
    codes = options.codes_by_column(list(frame.columns), text_columns)
    table.missing_tokens = add_codes(table.missing_tokens, mask_codes(frame, codes))
    found = {code for column_codes in table.missing_tokens.values() for code in column_codes}
    unused = {code for column_codes in codes.values() for code in column_codes} - found
    if unused and "na" not in options.optional:
        quoted = abbreviate([f"'{code}'" for code in sorted(unused)])
        table.warnings.append(word(f"no cell holds {quoted}, which `data.na` gives: check how the file writes gaps"))
    unnamed = [name for name in frame.columns if name.startswith("Unnamed: ") and is_missing(frame[name]).all()]
    return replace(table, frame=frame.drop(columns=unnamed))


def digest_option_file(path: str, option: str) -> str:
    """Return the beginning of the digest of a CSV file that an option names. Raises UserError if there is none."""
    return file_digest(find_file(path, f"{option}=", (".csv",)))[:16]


def read_option_file(path: str, option: str, columns: Sequence[str], content: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file that an option names: the texts of their cells by column, "" for none.

    Clients have their names in tables. Rows without any value are left out. Raises UserError for a file that cannot be
    read, and for one without these ``columns``, which asks for the ``content`` in words.
    """
    where = f"`{option}={path}`"
    frame = read_named_columns(find_file(path, f"{option}=", (".csv",)), ".csv", None, columns, where=where).frame
    for column in columns:
        if column not in frame:
            raise UserError(f"{where} has no column '{column}': give {content}")
    frame = frame.dropna(how="all").fillna("")
    for column in _CLIENT_COLUMNS.intersection(columns):
        frame[column] = names_as_text(frame[column].to_numpy(str))
    return frame.to_dict("records")


def read_dataframe(
    path: str,
    client: str | None = None,
    n_features: int = 0,
    kinds: Mapping[str, Column] | None = None,
    keep: Sequence[str] = (),
    first_index: int | None = None,
    warnings: list[str] | None = None,
    options: FileOptions = _NO_OPTIONS,
) -> tuple[Any, np.ndarray | None]:
    """Return the rows of a file as a pandas.DataFrame, and the client of each row as text or None, shape (n,).

    Sparse rows of a LIBSVM file are a csr_array of scipy.sparse.

    The second value is None where the file names no clients. Values are not checked.

    Args:
        path: the file. The columns of .npz, HDF5 and LIBSVM files are numbered from 0.
        client: the column of clients of a file with named columns, by its name in the record or in the site's own file.
            Of .npz and HDF5 files it is the array client.
        n_features: the least number of columns of a LIBSVM file, whose lines leave zeros out.
        kinds: the kinds of the record's columns: tokens such as NA are gaps among numbers, and levels among text, which
            is read as it is written.
        keep: columns whose text is read as it is written, unless ``kinds`` has them, by one of these names.
        first_index: the index of the first feature of a LIBSVM file, 0 or 1; None: 1 unless some index is 0.
        warnings: a list to which warnings on how the file was read are appended.
        options: how the file is read, with named columns.

    Raises UserError for a file that is missing, empty or cannot be read.
    """
    import pandas as pd

    file = find_file(path, "")
    ending = detect_ending(file, path)
    check_file_options(options, ending)
    clients: Any = None
    with telling_of_long_reading(path), explain_damage(path, ending):
        if ending in LIBSVM_ENDINGS:
            frame = to_table(read_libsvm(file, path, first_index, least_features=n_features)[0])
        elif ending == PARQUET_ENDING and not kinds and is_triples_file(file):  # of a record without named columns
            raise UserError(f"{path} holds triples, which do not tell rows of zeros at the end: give a table with a "
                            f"line for each row, and `data.triples={path}`")  # fmt: skip
        elif ending in (".npz", *HDF5_ENDINGS):
            arrays = read_arrays(file, ending, path, ("X",), ("client",))
            frame = pd.DataFrame(arrays["x"])
            clients = pd.Series(arrays["client"]) if "client" in arrays else None
        else:
            rename = options.rename or {}
            named = [{name, rename.get(name, name)} for name in (client, *keep) if name is not None]
            text_columns = [name for names in named if names.isdisjoint(kinds or ()) for name in names]
            table = _read_new_columns(file, ending, path, text_columns, kinds=kinds or {}, options=options)
            frame = table.frame
            if warnings is not None:
                warnings += [f"{path}: {warning}" for warning in table.warnings]
            client_column = None if client is None else options.find_column(client, frame)
            clients = frame.pop(client_column) if client_column in frame else None
    if not frame.shape[0]:
        raise UserError(f"{path}: the file has no rows; give one with data")
    if clients is None:
        return frame, None
    return frame, read_names(clients)


def _read_new_columns(
    file: Path,
    ending: str,
    where: str,
    text_columns: Sequence[str],
    kinds: Mapping[str, Column],
    options: FileOptions,
) -> ParsedTable:
    """Return new rows with the names of the record, which are those of the file or of the site that keeps the record.

    The other arguments are those of ``read_named_columns``, by the names of the record.
    """
    own_names = {shared: name for name, shared in (options.rename or {}).items()}

    def read(own_names: Mapping[str, str]) -> ParsedTable:
        na = options.na
        if isinstance(na, dict):
            na = {own_names.get(name, name): codes for name, codes in na.items()}
        return read_named_columns(
            file,
            ending,
            None,
            [own_names.get(name, name) for name in text_columns],
            where=where,
            kinds={own_names.get(name, name): kind for name, kind in kinds.items()},
            options=replace(options, na=na),
            encoding_hint=ENCODING_HINT,
        )

    table = read(own_names)
    renamed = options.find_renamed(list(table.frame.columns), kinds, where)
    if own_names and not renamed:
        table = read({})
        if own_names.keys() & kinds.keys():
            table.warnings.append("names of columns as all sites share them, not as in the site's own file")
        return table
    if renamed:
        names = abbreviate([f"'{name}' is '{shared}'" for name, shared in renamed.items()])
        table.warnings.append(f"names of columns as in the site's own file: {names}")
    return table.rename(renamed)
