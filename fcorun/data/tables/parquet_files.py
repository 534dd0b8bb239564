"""Parquet files whose features stay on disk: a copy of the features, row after row, in the cache."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.system.files import file_digest
from fcorun.data.rows.disk_matrix import READ_BYTES, DiskMatrix
from fcorun.data.tables.array_files import cache_blocks
from fcorun.data.tables.column_roles import ColumnRoles, ParsedRows, check_unique_names
from fcorun.data.tables.columns import NumberColumn
from fcorun.data.tables.encoding import Encoding


def read_parquet(file: Path, path: str, roles: ColumnRoles, encoding: Encoding | None) -> ParsedRows:
    """Return the rows of a Parquet file, whose features stay on disk.

    The features are the columns that ``roles`` selects, or those of ``encoding``.

    Raises UserError for missing columns, for features that are no numbers or have gaps, and for an encoding with
    levels, and the errors of pyarrow for a damaged file.
    """
    import pandas as pd
    from pyarrow import parquet

    where = f"`data.path={path}`"
    schema = parquet.read_schema(file)
    # names, or the description of a range, of a saved pandas index, which pandas reads as an index again
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    header = pd.DataFrame(columns=[name for name in schema.names if name not in index])
    check_unique_names(list(header), where)
    features = roles.select_features(header, path)
    roles.separate_columns(header, path, features)  # raises the errors of missing columns
    if encoding is not None:
        for column in encoding.columns:
            if not column.copies_numbers:
                raise UserError(f"{where}: rows stay on disk, where columns must be numbers, and the encoding has "
                                f"levels or gaps of '{column.name}': give a file that fits into memory")  # fmt: skip
        encoding.check_columns(features, where)
        features = [column.name for column in encoding.columns]

    names = dict.fromkeys((roles.target, roles.client, *roles.metadata.values(), *(roles.keep or ())))
    frame = pd.read_parquet(file, columns=[name for name in names if name is not None])
    frame.columns = [str(name) for name in frame.columns]
    rows = roles.separate_columns(frame, path, features=[])
    x: Any = DiskMatrix.from_memmap(_cache_columns(file, features, where)) if features else rows.x
    if encoding is None:
        encoding = Encoding(tuple(map(NumberColumn, features)))
    return replace(rows, x=x, frame=None, encoding=encoding)


def estimate_bytes(file: Path) -> int:
    """Estimate the memory that the columns of a Parquet file take, as 8 bytes a cell.

    Raises ValueError for a damaged file.
    """
    from pyarrow import parquet

    metadata = parquet.read_metadata(file)
    return metadata.num_rows * metadata.num_columns * 8


def _cache_columns(file: Path, names: Sequence[str], where: str) -> np.ndarray:
    """Return a memory map of these columns, (N, d): a copy in the cache, which is written once, block by block.

    Raises UserError, which begins with ``where``, for columns that are no numbers, and for those with gaps.
    """
    from pyarrow import parquet, types

    with parquet.ParquetFile(file) as content:
        dtypes = []
        for name in names:
            arrow_type = content.schema_arrow.field(name).type
            if not (types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_boolean(arrow_type)):
                raise UserError(f"{where}: rows stay on disk, where columns must be numbers, and '{name}' "
                                f"is {arrow_type}: make it numbers, or leave it out by `data.ignore`")  # fmt: skip
            dtypes.append(np.dtype(arrow_type.to_pandas_dtype()))
        dtype = np.result_type(*dtypes)
        if dtype.kind == "b":
            dtype = np.dtype(np.int8)
        block_rows = max(1, READ_BYTES // (8 * len(names)))

        def read_blocks() -> Iterator[np.ndarray]:
            for batch in content.iter_batches(block_rows, columns=list(names)):
                block = np.empty((batch.num_rows, len(names)), dtype)
                for index, name in enumerate(names):
                    column = batch.column(name)
                    if column.null_count:
                        raise UserError(
                            f"{where}: column '{name}' has gaps, which are filled only where rows are in memory: fill "
                            f"them in, give `data.resident=true`, or leave the column out, `data.ignore=[{name}]`"
                        )
                    block[:, index] = column.to_numpy(zero_copy_only=False)
                yield block

        shape = (content.metadata.num_rows, len(names))
        return cache_blocks([file_digest(file), list(names)], shape, dtype, read_blocks())
