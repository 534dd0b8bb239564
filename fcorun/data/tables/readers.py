"""The readers of tables by the ending of the file: rows to train on, and data frames of new rows for predictions."""

import bz2
import csv
import gzip
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError, abbreviate, first_line
from fcorun.data.tables.array_files import (
    ARRAY_FOLDER,
    ARRAY_NAMES,
    HDF5_ENDINGS,
    estimate_bytes,
    is_array_folder,
    read_arrays,
    read_libsvm,
    read_parquet,
    stays_on_disk,
)
from fcorun.data.tables.cells import (
    MISSING_TOKENS,
    coerce_numbers,
    exact_float_options,
    find_missing_tokens,
    names_as_text,
    parse_numbers,
    read_names,
)
from fcorun.data.tables.column_roles import ColumnRoles, ParsedRows, check_unique_names
from fcorun.data.tables.columns import Column
from fcorun.data.tables.columns.infer_kind import infer_kind
from fcorun.data.tables.data_warnings import warn_missing_tokens, warn_repeated_rows
from fcorun.data.tables.encoding import read_columns, read_encoding
from fcorun.data.tables.splits import suggest_group_columns

# Files with named columns: CSV, TSV and XLSX as data frames.

_OPEN: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
_NUMBER = r"\s*[+-]?\d+(?:,\d+)?(?:[eE][+-]?\d+)?\s*"  # a comma may be a decimal comma
_COMMA_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*"  # or separate thousands


@dataclass
class ParsedTable:
    """A table as read from a file.

    Attributes:
        frame: a pandas.DataFrame.
        missing_tokens: by column, the tokens for missing values in it (``fcorun.data.tables.cells``).
        unparsed_columns: by column whose numbers have commas, the reason why these were not read as decimal commas.
        header: the names of columns as written, where pandas may have changed them.
        warnings: sentences about how the file was read.
    """

    frame: Any
    missing_tokens: dict[str, list[str]] = field(default_factory=dict)
    unparsed_columns: dict[str, str] = field(default_factory=dict)
    header: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_csv_text(
    file: Path, ending: str, target: str | None, text_columns: Sequence[str], kinds: Mapping[str, Column]
) -> ParsedTable:
    """Read a CSV or TSV file.

    The separator of a .csv file is the semicolon if its first line has semicolons and no commas outside quotes, else
    the comma.

    Commas in numbers are read as decimal commas where that is certain: no number of the file has a point, and some
    number cannot have a separator of thousands (0,5 or 12,25, but not 1,234). Elsewhere such columns stay text. The
    ``text_columns``, such as the clients, always stay text. A text ``target`` stays text in a file without semicolons
    whose features have no commas.

    Tokens such as NA are missing values among numbers and names among text. ``kinds`` are the known kinds of columns:
    those of levels stay text, as they do in a file with names among them.
    """
    import pandas as pd

    options: Any = {"sep": detect_separator(file, ending), "index_col": False, "low_memory": False}
    options |= exact_float_options() | _blank_line_options(file, ending)
    as_written = [*text_columns, *(name for name, column in kinds.items() if column.has_levels)]
    dtypes: Any = dict.fromkeys(as_written, str)  # a client "007", or a level "01", keeps its name
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
        frame: Any = pd.read_csv(file, dtype=dtypes, keep_default_na=False, na_values=[""], **options)
        tokens = find_missing_tokens(frame, text_columns)
        original = {name: frame[name] for name in tokens}
        if tokens:  # the numbers in columns with tokens are read as those of other columns
            reread: Any = pd.read_csv(file, usecols=list(tokens), **options)
            for name in tokens:
                frame[name] = reread[name]
        converted, unparsed = _convert_decimal_commas(file, frame, target, as_written, options)
    restore_level_columns(frame, original, target, kinds)
    header = [name for name in _read_first_line(file, ending) if name]
    table = ParsedTable(frame, tokens, unparsed, header)
    if converted:
        columns = abbreviate(list(map(repr, converted)))
        table.warnings.append(f"commas in {columns} are read as decimal commas, 1,5 as 1.5: check that they are")
    return table


def _convert_decimal_commas(
    file: Path, frame: Any, target: str | None, text_columns: Sequence[str], options: dict[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """Convert the columns with decimal commas to numbers, in place.

    Returns the names of the converted columns, and by name the reason why points elsewhere forbid the conversion.
    """
    import pandas as pd
    from pandas.api import types

    candidates = {}  # columns of numbers without points, at least one with a comma
    is_certain = False  # some comma cannot separate thousands
    for name, dtype in frame.dtypes.items():
        if types.is_numeric_dtype(dtype) or name in text_columns:
            continue
        values = frame[name].dropna().astype(str)
        with_comma = values[values.str.contains(",", regex=False)]
        if len(with_comma) and values.str.fullmatch(_NUMBER).all():
            candidates[name] = values
            is_certain = is_certain or not with_comma.str.fullmatch(_COMMA_THOUSANDS).all()
    if not is_certain or (options["sep"] != ";" and list(candidates) == [target]):
        return [], {}

    text = pd.read_csv(file, dtype=str, **options)
    for other in frame.select_dtypes("number").columns:
        with_point = text[other][text[other].str.contains(".", regex=False, na=False)]
        if not len(with_point):
            continue
        reasons = {}
        for name, values in candidates.items():
            with_comma = values[values.str.contains(",", regex=False)]
            reasons[str(name)] = (f"column '{name}' holds '{with_comma.iloc[0]}' in row {with_comma.index[0] + 1}, and "
                                  "commas are not read as decimal commas in a file that has points, too, "
                                  f"'{with_point.iloc[0].strip()}' in column '{other}': write all numbers of the file "
                                  "with decimal points, or all with decimal commas, and none with points that "
                                  "separate thousands")  # fmt: skip
        return [], reasons
    for name, values in candidates.items():
        frame[name] = parse_numbers(values.str.replace(",", "."))
    return [str(name) for name in candidates], {}


def _blank_line_options(file: Path, ending: str) -> dict[str, Any]:
    """Return the options with which pandas.read_csv reads a blank line of a file with one column as a row with a gap.

    Blank lines before the header and at the end are no rows. Files with more columns need no options: a row without
    values has separators.
    """
    if len(_read_first_line(file, ending)) != 1:
        return {}
    with _open_text(file) as content:
        has_text = [bool(line.strip()) for line in content]
    n_lines = len(has_text)
    first = has_text.index(True)
    end = n_lines - has_text[::-1].index(True)
    return {"skip_blank_lines": False, "skiprows": [*range(first), *range(end, n_lines)]}


def _read_first_line(file: Path, ending: str) -> list[str]:
    """Return the cells, some of them maybe empty, in the first line of a CSV or TSV file that is not blank."""
    with _open_text(file) as content:
        lines = csv.reader((line for line in content if line.strip()), delimiter=detect_separator(file, ending))
        return next(lines, [])


def _open_text(file: Path) -> Any:
    """Open a file of text, which may be compressed."""
    return _OPEN.get(file.suffix.lower(), open)(file, "rt", encoding="utf-8-sig", newline="")


def detect_separator(file: Path, ending: str) -> str:
    """Return the separator of the columns of a CSV or TSV file."""
    if ending == ".tsv":
        return "\t"
    with _OPEN.get(file.suffix.lower(), open)(file, "rb") as content:
        line = next((line for line in content if line.strip()), b"")
    first_line = re.sub(rb'"[^"]*"', b"", line)
    if b";" in first_line and b"," not in first_line:
        return ";"
    return ","


def restore_level_columns(
    frame: Any, original: Mapping[str, Any], target: str | None, kinds: Mapping[str, Column]
) -> None:
    """Put back the ``original`` columns whose tokens are names; ``frame`` has gaps in place of the tokens.

    Tokens are names in a column of levels, whose kind ``kinds`` may give. In the ``target`` they are labels unless
    all other values are numbers.
    """
    for name, column in original.items():
        known = kinds.get(str(name))
        if known is not None:
            holds_names = known.has_levels
        elif str(name) == target:
            holds_names = bool(coerce_numbers(frame[name])[1].any())
        else:
            try:
                holds_names = infer_kind(frame[name], "", None).has_levels
            except UserError:  # dates, or text among numbers: reading the features raises the error
                holds_names = False
        if holds_names:
            frame[name] = column


def read_excel(
    file: Path, where: str, target: str | None, text_columns: Sequence[str], kinds: Mapping[str, Column]
) -> ParsedTable:
    """Read the first sheet, with a warning about more sheets. Errors of formulas are gaps.

    Tokens such as NA are treated as in ``read_csv_text``. Raises UserError where openpyxl is not installed.
    """
    import pandas as pd

    try:
        import openpyxl  # noqa: F401  # pyright: ignore[reportMissingModuleSource]
    except ImportError as error:
        raise UserError(f"{where} needs openpyxl: pip install 'fcorun[xlsx]', or save it as .csv") from error
    with warnings.catch_warnings(action="ignore"), pd.ExcelFile(file, engine="openpyxl") as book:  # styles are ignored
        first, *others = map(str, book.sheet_names)
        first_row: Any = book.parse(first, header=None, nrows=1)
        header = [str(name) for name in first_row.to_numpy().ravel().tolist() if not pd.isna(name)]
        frame: Any = book.parse(first, dtype=object, keep_default_na=False, na_values=[""])
        frame = frame.infer_objects()  # numbers stored as text stay objects, and are reported later
    sheet_warnings = [f"of {len(others) + 1} sheets the first, '{first}', is read"] if others else []
    tokens = find_missing_tokens(frame, text_columns)
    original = {name: frame[name] for name in tokens}
    for name, column in original.items():
        frame[name] = column.mask(column.isin(MISSING_TOKENS)).infer_objects()
    restore_level_columns(frame, original, target, kinds)
    return ParsedTable(frame, {str(name): tokens[name] for name in tokens}, header=header, warnings=sheet_warnings)


# The readers by the ending of the file.

LIBSVM_ENDINGS = (".libsvm", ".svm", ".svmlight", ".txt")
TEXT_ENDINGS = (".csv", ".tsv")
PARQUET_ENDING = ".parquet"
NAMED_COLUMN_ENDINGS = (*TEXT_ENDINGS, PARQUET_ENDING, ".xlsx")
ENDINGS = (*NAMED_COLUMN_ENDINGS, ".npz", *HDF5_ENDINGS, *LIBSVM_ENDINGS)
# base classes of the errors that the readers raise for a damaged or mislabelled file
READ_ERRORS = (ValueError, OSError, EOFError, KeyError, NotImplementedError, Warning, zlib.error, zipfile.BadZipFile)
UTF_8_HINT = "save it as UTF-8; if it is of an older Windows, iconv -f windows-1252 -t utf-8 OLD > NEW does"


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
def explain_damage(where: str, ending: str) -> Iterator[None]:
    """Raise UserError in place of the error of a reader that cannot read a file."""
    try:
        yield
    except READ_ERRORS as error:
        advice = UTF_8_HINT if isinstance(error, UnicodeDecodeError) else "mend or rename the file"
        raise UserError(f"{where}: cannot be read as {ending} ({first_line(error)}); {advice}") from error


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
    where = f"`data.path={path}`"
    if is_array_folder(path):
        file = Path(path).expanduser()
        ending = ARRAY_FOLDER
    else:
        file = find_file(path, arrays=True)
        ending = detect_ending(file, where)
    has_named_columns = ending in NAMED_COLUMN_ENDINGS
    for option in ("target", "client", "ignore", "only", "keep", "weight", "offset", "event"):
        column = getattr(roles, option)
        if column is not None and not has_named_columns:
            raise UserError(
                f"`data.{option}={column}`: a {ending} file has no named columns; leave `data.{option}` out"
            )
    if ending not in (ARRAY_FOLDER, *HDF5_ENDINGS, PARQUET_ENDING) and resident is False:
        raise UserError(f"`data.resident=false`: {path} is read whole: write it as .parquet, .h5 or a folder of "
                        "X.npy and y.npy, or leave `data.resident` out")  # fmt: skip
    with explain_damage(where, ending):
        if not has_named_columns:
            rows = _read_arrays(file, path, ending, roles, resident)
        elif ending == PARQUET_ENDING and stays_on_disk(estimate_bytes(file), resident):
            rows = read_parquet(file, path, roles, read_encoding(record) if record else None)
        else:
            kinds = read_columns(record) if record else None
            table = read_named_columns(file, ending, roles.target, roles.text_columns, where=where, kinds=kinds)
            table.warnings += warn_repeated_rows(table.frame)
            rows = parse_columns(table, path, roles)
    if not len(rows.y):
        raise UserError(f"`data.path={path}`: the file has no rows; give one with data")
    features = rows.x if rows.frame is None else rows.frame
    if not features.shape[1]:
        others = " and ".join(f"data.{option}" for option in roles.metadata)
        besides = f" besides {others}" if others else ""
        raise UserError(f"`data.path={path}`: the file has no feature columns{besides}; give at least one")
    if isinstance(rows.x, np.ndarray):  # rows on disk are checked by FederatedData.validate
        _check_finite(rows.x, path, None)
    _check_finite(rows.y[:, None], path, f"target '{roles.target}'" if roles.target else "target y")
    return rows


def _check_finite(values: np.ndarray, path: str, name: str | None) -> None:
    """Raise UserError for a missing or infinite value (N, d); ``name`` is that of the values, or None for columns."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        name = name or f"column '{column}'"
        raise UserError(
            f"`data.path={path}`: {name} is missing or infinite in row {row + 1}; fill it in or drop the row"
        )


def parse_columns(table: ParsedTable, path: str, roles: ColumnRoles) -> ParsedRows:
    """Return the rows of a table with named columns.

    Raises UserError for columns that are missing or cannot be read, and for targets and clients with gaps.
    """
    where = f"`data.path={path}`"
    frame = table.frame
    features = roles.select_features(frame, path)
    rows = roles.separate_columns(frame, path, features)
    used = [*features, *roles.metadata.values()]
    for name, reason in table.unparsed_columns.items():
        if name in used:
            raise UserError(f"{where}: {reason}")
    tokens = {name: tokens for name, tokens in table.missing_tokens.items() if name in (*used, roles.target)}
    warnings = [*table.warnings, *warn_missing_tokens(tokens, frame)]
    if roles.group is None:
        left_out = [name for name in frame.columns if name not in (*used, roles.target, roles.client)]
        warnings += suggest_group_columns(frame, left_out, features, roles.client)
    return replace(rows, warnings=tuple(warnings))


def _read_arrays(file: Path, path: str, ending: str, roles: ColumnRoles, resident: bool | str) -> ParsedRows:
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
        x, y, first_index = read_libsvm(file, path)
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
) -> ParsedTable:
    """Read a file with named columns, with text as names of its columns.

    The column ``target`` and the ``text_columns``, if the file has them, keep their text. ``kinds`` are the known kinds
    of columns. Raises UserError, which begins with ``where``, for two columns with the same name and a damaged file.
    """
    import pandas as pd

    with explain_damage(where, ending):
        if ending == PARQUET_ENDING:
            table = ParsedTable(pd.read_parquet(file))
        elif ending == ".xlsx":
            table = read_excel(file, where, target, text_columns, kinds or {})
        else:
            table = read_csv_text(file, ending, target, text_columns, kinds or {})
    table.frame.columns = [str(name) for name in table.frame.columns]
    check_unique_names(table.header or table.frame.columns, where)
    return table


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
    clients: Any = None
    with explain_damage(path, ending):
        if ending in LIBSVM_ENDINGS:
            x = read_libsvm(file, path, first_index)[0]
            frame = pd.DataFrame(np.pad(x, ((0, 0), (0, max(n_features - x.shape[1], 0)))))
        elif ending in (".npz", *HDF5_ENDINGS):
            arrays = read_arrays(file, ending, path, ("X",), ("client",))
            frame = pd.DataFrame(arrays["x"])
            clients = pd.Series(arrays["client"]) if "client" in arrays else None
        else:
            text_columns = [name for name in (client, *keep) if name is not None and name not in (kinds or {})]
            table = read_named_columns(file, ending, None, text_columns, where=path, kinds=kinds)
            frame = table.frame
            if warnings is not None:
                warnings += [f"{path}: {warning}" for warning in table.warnings]
            clients = frame.pop(client) if client in frame else None
    if not len(frame):
        raise UserError(f"{path}: the file has no rows; give one with data")
    if clients is None:
        return frame, None
    return frame, read_names(clients)
