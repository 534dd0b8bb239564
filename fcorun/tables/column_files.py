"""Files with named columns: CSV, TSV and XLSX as data frames, and Parquet files that are larger than memory."""

import bz2
import csv
import gzip
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError
from fcorun.rows.disk_matrix import READ_BYTES, DiskMatrix
from fcorun.tables.array_files import cache_blocks, file_digest
from fcorun.tables.column_roles import ColumnRoles, ParsedRows, check_unique_names
from fcorun.tables.columns import (
    MISSING_TOKENS,
    ColumnKind,
    exact_float_options,
    find_missing_tokens,
    parse_numbers,
    restore_level_columns,
)
from fcorun.tables.encoding import Column, Encoding

_OPEN: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
_NUMBER = r"\s*[+-]?\d+(?:,\d+)?(?:[eE][+-]?\d+)?\s*"  # a comma may be a decimal comma
_COMMA_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2},\d{3}\s*"  # or separate thousands
_POINT_THOUSANDS = r"\s*[+-]?[1-9]\d{0,2}\.\d{3}\s*"


@dataclass
class ParsedTable:
    """A table as read from a file.

    Attributes:
        frame: a pandas.DataFrame.
        decimal_comma_columns: the columns whose commas were read as decimal commas.
        missing_tokens: by column, the tokens for missing values in it (``fcorun.tables.columns``).
        unparsed_columns: by column whose numbers have commas, the reason why these were not read as decimal commas.
    """

    frame: Any
    decimal_comma_columns: list[str] = field(default_factory=list)
    missing_tokens: dict[str, list[str]] = field(default_factory=dict)
    unparsed_columns: dict[str, str] = field(default_factory=dict)


def read_csv_text(
    file: Path,
    ending: str,
    target: str | None,
    text_columns: Sequence[str],
    kinds: Mapping[str, ColumnKind] | None = None,
) -> ParsedTable:
    """Read a CSV or TSV file.

    The separator of a .csv file is the semicolon if its first line has semicolons and no commas outside quotes, else
    the comma.

    Commas in numbers are read as decimal commas where that is certain: no number of the file has a point, and some
    number cannot have a separator of thousands (0,5 or 12,25, but not 1,234). Elsewhere such columns stay text. The
    ``text_columns``, such as the clients, always stay text. A text ``target`` stays text in a file without semicolons
    whose features have no commas.

    Tokens such as NA are missing values among numbers and names among text. ``kinds`` are the known kinds of columns.
    """
    import pandas as pd

    options: Any = {"sep": detect_separator(file, ending), "index_col": False, "low_memory": False}
    options |= exact_float_options()
    dtypes: Any = dict.fromkeys(text_columns, str)  # a client "007" keeps its name
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
        frame: Any = pd.read_csv(file, dtype=dtypes, keep_default_na=False, na_values=[""], **options)
        tokens = find_missing_tokens(frame, text_columns)
        original = {name: frame[name] for name in tokens}
        if tokens:  # the numbers in columns with tokens are read as those of other columns
            reread: Any = pd.read_csv(file, usecols=list(tokens), **options)
            for name in tokens:
                frame[name] = reread[name]
        converted, unparsed = _convert_decimal_commas(file, frame, target, text_columns, options)
    restore_level_columns(frame, original, target, kinds or {})
    return ParsedTable(frame, converted, tokens, unparsed)


def _convert_decimal_commas(
    file: Path, frame: Any, target: str | None, text_columns: Sequence[str], options: dict[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """Convert the columns with decimal commas to numbers, in place.

    Returns the names of the converted columns, and by name the reason why points for thousands forbid the conversion.
    """
    import pandas as pd

    candidates = _columns_with_commas(frame, text_columns)
    if not candidates or not _has_certain_decimal_comma(candidates):
        return [], {}
    if options["sep"] != ";" and list(candidates) == [target]:
        return [], {}

    text = pd.read_csv(file, dtype=str, **options)
    with_points = {}
    for name in frame.select_dtypes("number").columns:
        values = text[name][text[name].str.contains(".", regex=False, na=False)]
        if len(values):
            with_points[str(name)] = values
    if with_points:
        for other, values in with_points.items():
            if values.str.fullmatch(_POINT_THOUSANDS).all():
                return [], {
                    str(name): _explain_unparsed(str(name), column, other, values.iloc[0])
                    for name, column in candidates.items()
                }
        return [], {}

    for name, values in candidates.items():
        frame[name] = parse_numbers(values.str.replace(",", "."))
    return [str(name) for name in candidates], {}


def read_header(file: Path, ending: str) -> list[str]:
    """Return the column names in the first line of a CSV or TSV file, as written."""
    with _OPEN.get(file.suffix.lower(), open)(file, "rt", encoding="utf-8-sig", newline="") as content:
        lines = csv.reader(content, delimiter=detect_separator(file, ending))
        return [name for name in next((line for line in lines if line), []) if name]


def detect_separator(file: Path, ending: str) -> str:
    """Return the separator of the columns of a CSV or TSV file."""
    if ending == ".tsv":
        return "\t"
    with _OPEN.get(file.suffix.lower(), open)(file, "rb") as content:
        first_line = re.sub(rb'"[^"]*"', b"", content.readline())
    return ";" if b";" in first_line and b"," not in first_line else ","


def _columns_with_commas(frame: Any, text_columns: Sequence[str]) -> dict[str, Any]:
    """Return the columns of numbers without points, at least one with a comma, that are not among the text columns."""
    from pandas.api import types

    columns = {}
    for name, dtype in frame.dtypes.items():
        if not types.is_numeric_dtype(dtype) and name not in text_columns:
            values = frame[name].dropna().astype(str)
            if values.str.contains(",", regex=False).any() and values.str.fullmatch(_NUMBER).all():
                columns[name] = values
    return columns


def _has_certain_decimal_comma(columns: dict[str, Any]) -> bool:
    """Return whether some comma in these columns cannot separate thousands."""
    for values in columns.values():
        with_comma = values[values.str.contains(",", regex=False)]
        if not with_comma.str.fullmatch(_COMMA_THOUSANDS).all():
            return True
    return False


def _explain_unparsed(name: str, values: Any, other: str, with_point: str) -> str:
    """Explain why the commas of a column stay text: the number ``with_point`` in the column ``other``."""
    with_comma = values[values.str.contains(",", regex=False)]
    return (f"column '{name}' holds '{with_comma.iloc[0]}' in row {with_comma.index[0] + 1}, and commas are not read "
            f"as decimal commas where points separate thousands, '{with_point.strip()}' in column '{other}': "
            f"write '{other}' without them, or '{name}' with decimal points")  # fmt: skip


def read_excel(
    file: Path,
    where: str,
    target: str | None,
    text_columns: Sequence[str],
    kinds: Mapping[str, ColumnKind] | None = None,
) -> tuple[ParsedTable, list[str], list[str]]:
    """Return the table of the first sheet, its header as written, and a warning if the file has more sheets.

    Tokens such as NA are treated as in ``fcorun.tables.column_files.read_csv_text``. Raises UserError where openpyxl is
    not installed.
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
    restore_level_columns(frame, original, target, kinds or {})
    table = ParsedTable(frame, missing_tokens={str(name): column_tokens for name, column_tokens in tokens.items()})
    return table, header, sheet_warnings


def read_parquet(file: Path, path: str, roles: ColumnRoles, encoding: Encoding | None) -> ParsedRows:
    """Return the rows of a Parquet file, whose features stay on disk.

    The features are the columns that ``roles`` selects, or those of ``encoding``.

    Raises UserError for missing columns and for features that are no numbers, and the errors of pyarrow for a damaged
    file.
    """
    import pandas as pd
    from pyarrow import parquet

    where = f"data.path={path}"
    header = pd.DataFrame(columns=_column_names(parquet.read_schema(file)))
    check_unique_names(list(header), where)
    features = roles.select_features(header, path)
    roles.split_columns(header, path, features)  # raises the errors of missing columns
    if encoding is not None:
        for column in encoding.columns:
            if column.kind != "number" or column.indicator:
                raise UserError(f"{where}: rows stay on disk, where columns must be numbers, and the encoding has "
                                f"levels or gaps of '{column.name}': give a file that fits into memory")  # fmt: skip
        encoding.check_columns(features, where)
        features = [column.name for column in encoding.columns]

    names = dict.fromkeys((roles.target, roles.client, *roles.metadata.values(), *(roles.keep or ())))
    frame = pd.read_parquet(file, columns=[name for name in names if name is not None])
    frame.columns = [str(name) for name in frame.columns]
    rows = roles.split_columns(frame, path, features=[])
    x: Any = DiskMatrix.from_memmap(_cache_columns(file, features, where)) if features else rows.x
    if encoding is None:
        encoding = Encoding(tuple(Column(name) for name in features))
    return replace(rows, x=x, frame=None, encoding=encoding)


def _column_names(schema: Any) -> list[str]:
    """Return the names of the columns without those of a saved pandas index, which pandas reads as an index again."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])  # names, or the description of a range
    return [name for name in schema.names if name not in index]


def estimate_bytes(file: Path) -> int:
    """Estimate the memory that the columns of a Parquet file take, as 8 bytes a cell.

    Raises ValueError for a damaged file.
    """
    from pyarrow import parquet

    metadata = parquet.read_metadata(file)
    return metadata.num_rows * metadata.num_columns * 8


def _cache_columns(file: Path, names: Sequence[str], where: str) -> np.ndarray:
    """Return a memory map of these columns, (N, d): a copy in the cache, which is written once, block by block.

    Raises UserError, which begins with ``where``, for columns that are no numbers.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(file) as content:
        dtypes = []
        for name in names:
            arrow_type = content.schema_arrow.field(name).type
            dtype = _numeric_dtype(arrow_type)
            if dtype is None:
                raise UserError(f"{where}: rows stay on disk, where columns must be numbers, and '{name}' "
                                f"is {arrow_type}: make it numbers, or leave it out by data.ignore")  # fmt: skip
            dtypes.append(dtype)
        dtype = np.result_type(*dtypes)
        if dtype.kind == "b":
            dtype = np.dtype(np.int8)
        block_rows = max(1, READ_BYTES // (8 * len(names)))
        batches = content.iter_batches(block_rows, columns=list(names))
        blocks = (_to_block(batch, names, dtype, where) for batch in batches)
        return cache_blocks([file_digest(file), list(names)], (content.metadata.num_rows, len(names)), dtype, blocks)


def _numeric_dtype(arrow_type: Any) -> np.dtype | None:
    """Return the NumPy dtype of an Arrow type of numbers or booleans, None for other types."""
    from pyarrow import types

    is_numeric = types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_boolean(arrow_type)
    return np.dtype(arrow_type.to_pandas_dtype()) if is_numeric else None


def _to_block(batch: Any, names: Sequence[str], dtype: np.dtype, where: str) -> np.ndarray:
    """Return the columns of an Arrow batch as one array (n, d). Raises UserError for a column with gaps."""
    block = np.empty((batch.num_rows, len(names)), dtype)
    for index, name in enumerate(names):
        column = batch.column(name)
        if column.null_count:
            raise UserError(f"{where}: column '{name}' has gaps, which are filled only where rows are in memory: fill "
                            f"them in, or data.ignore=[{name}]")  # fmt: skip
        block[:, index] = column.to_numpy(zero_copy_only=False)
    return block
