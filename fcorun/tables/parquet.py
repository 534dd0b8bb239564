"""Parquet files that are larger than memory: their columns of numbers, written row by row into the cache once."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError
from fcorun.rows.on_disk import READ_BYTES, DiskRows
from fcorun.tables.array_files import cache_blocks, file_digest
from fcorun.tables.column_selection import check_unique_names, select_features, split_columns, suggest_columns
from fcorun.tables.encoding import Column, Encoding
from fcorun.tables.parsed_rows import ParsedRows


def read_parquet(
    file: Path,
    path: str,
    *,
    target: str | None,
    client: str | None,
    ignore: Sequence[str] | None,
    only: Sequence[str] | None,
    metadata_columns: Mapping[str, str],
    encoding: Encoding | None,
) -> ParsedRows:
    """The rows of a file at ``path``, which stay on disk.

    Its features are the columns as ``chosen``, or those of an ``encoding``; ``aside``, by option, are others that are
    no features, of which ``Rows.aside`` is a frame. Raises UserError where columns are missing, or features are no
    numbers, and what pyarrow raises of a damaged file.
    """
    import pandas as pd
    from pyarrow import parquet

    others = list(dict.fromkeys(metadata_columns.values()))
    where, empty = f"data.path={path}", pd.DataFrame(columns=_columns(parquet.read_schema(file)))
    check_unique_names(list(empty), where)
    features = [name for name in select_features(empty, path, (target, client), ignore, only) if name not in others]
    split_columns(empty, path, target, client, features=features)
    if encoding is not None:
        if coded := [column.name for column in encoding.columns if column.kind != "number" or column.indicator]:
            raise UserError(f"{where}: rows stay on disk, where columns must be numbers, and the encoding has levels "
                            f"or gaps of '{coded[0]}': give a file that fits into memory")  # fmt: skip
        encoding.check_columns(features, where)
        features = [column.name for column in encoding.columns]
    for option, name in metadata_columns.items():
        if name not in empty:
            raise UserError(f"data.{option}={name}: there is no such column in {path}; {suggest_columns(name, empty)}")
    few = [name for name in dict.fromkeys((target, client, *others)) if name is not None]
    frame = pd.read_parquet(file, columns=few)
    frame.columns = [str(name) for name in frame.columns]
    rows = split_columns(frame, path, target, client, features=[])
    made = encoding or Encoding(tuple(Column(name) for name in features))
    x: Any = DiskRows.from_memmap(_values(file, features, where)) if features else rows.x
    return ParsedRows(x, rows.y, rows.client, metadata=frame[others], encoding=made)


def _columns(schema: Any) -> list[str]:
    """The names of the columns but for those that pandas saved an index in, which it reads as an index again."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])  # names, or what a range is made of
    return [name for name in schema.names if name not in index]


def estimate_bytes(file: Path) -> int:
    """About what the columns of a Parquet file take in memory, as 8 bytes a cell. Raises ValueError of a damaged
    file."""
    from pyarrow import parquet

    about = parquet.read_metadata(file)
    return about.num_rows * about.num_columns * 8


def _values(file: Path, names: Sequence[str], where: str) -> np.ndarray:
    """A memory map of these columns, (N, d): a copy in the cache, which is written once, block by block.

    Raises UserError, which begins with ``where``, for columns that are not of numbers.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(file) as given:
        kinds = {name: given.schema_arrow.field(name).type for name in names}
        found = {name: _type(kind) for name, kind in kinds.items()}
        if bad := [name for name, kind in found.items() if kind is None]:
            raise UserError(f"{where}: rows stay on disk, where columns must be numbers, and '{bad[0]}' "
                            f"is {kinds[bad[0]]}: make it numbers, or leave it out by data.ignore")  # fmt: skip
        dtype = np.result_type(*(kind for kind in found.values() if kind is not None))
        dtype = np.dtype(np.int8) if dtype.kind == "b" else dtype
        step = max(1, READ_BYTES // (8 * len(names)))
        blocks = (_block(batch, names, dtype, where) for batch in given.iter_batches(step, columns=list(names)))
        return cache_blocks([file_digest(file), list(names)], (given.metadata.num_rows, len(names)), dtype, blocks)


def _type(kind: Any) -> np.dtype | None:
    """The type of numbers that a column of Arrow holds, or None."""
    from pyarrow import types

    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return np.dtype(kind.to_pandas_dtype()) if numbers else None


def _block(batch: Any, names: Sequence[str], dtype: np.dtype, where: str) -> np.ndarray:
    found = np.empty((batch.num_rows, len(names)), dtype)
    for place, name in enumerate(names):
        column = batch.column(name)
        if column.null_count:
            raise UserError(f"{where}: column '{name}' has gaps, which are filled only where rows are in memory: fill "
                            f"them in, or data.ignore=[{name}]")  # fmt: skip
        found[:, place] = column.to_numpy(zero_copy_only=False)
    return found
