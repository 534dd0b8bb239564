"""Files of arrays (.npz, HDF5, folders of .npy files, LIBSVM), and features that stay on disk, of Parquet files too."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from fcorun.base.config import AUTO
from fcorun.base.errors import UserError, suggest_name
from fcorun.base.system.files import cache_dir, choose_temporary, file_digest
from fcorun.base.system.machine import format_gib, free_memory_for_rows
from fcorun.data.rows.disk_matrix import READ_BYTES, DiskMatrix, memory_dtype, widen
from fcorun.data.rows.sparse_disk_matrix import NONZERO, SparseDiskMatrix
from fcorun.data.rows.sparse_matrix import MOST_INDICES, SparseMatrix
from fcorun.data.tables.column_roles import ColumnRoles, ParsedRows, check_unique_names
from fcorun.data.tables.columns import NumberColumn
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tables.text_files import OPEN_COMPRESSED, open_bytes

HDF5_ENDINGS = (".h5", ".hdf5")
PARQUET_ENDING = ".parquet"
ARRAY_FOLDER = "folder of .npy"  # stands for the ending of a folder in errors
ON_DISK_WARNING = "stay on disk and are read when they are needed"  # the end of a warning about rows
ARRAY_NAMES = ("X", "y", "client", "validation", "test")
_MEMORY_SHARE = 0.25  # rows that take more of the free memory stay on disk
_MANY_CELLS = 5e7
_MANY_COLUMNS = 20_000
_MANY_CHARACTERS = 5e8
_IDLE_SECONDS = 3600.0  # of a file of rows in the cache whose process was killed
_MASKS = ("validation", "test")  # arrays that mark held-out rows
_MAX_DENSE_NUMBERS = 2e9  # of a LIBSVM file
_SMALL_NUMBERS = 2**24  # of a LIBSVM file that is made dense, however few are not 0
_SPARSE_SHARE = 0.1  # of nonzeros, up to which a larger file stays sparse
_MOST_FEATURES = 2**27
_POINTER_BYTES = 8  # of a cell of text
_NAME_BYTES = 58  # of a name of one letter, such as that of a client, which is an object of Python


class NonzeroBlock(NamedTuple):
    """Nonzeros of sparse rows on disk, in the order of the rows.

    Attributes:
        columns, values: (z,).
        lengths: the numbers of nonzeros of rows, (n,). The lengths of all blocks are those of all rows.
        y: the targets of these rows, (n,), or empty.
    """

    columns: np.ndarray
    values: np.ndarray
    lengths: np.ndarray
    y: np.ndarray = np.empty(0)


def stays_on_disk(n_bytes: int, resident: bool | str) -> bool:
    """Return whether rows of so many bytes stay on disk: not ``resident``, or too large for memory if it is "auto"."""
    if resident == "auto":
        return n_bytes > free_memory_for_rows() * _MEMORY_SHARE
    return not resident


def read_arrays(
    file: Path,
    ending: str,
    where: str,
    required: Sequence[str],
    optional: Sequence[str] = (),
    resident: bool | str = True,
) -> dict[str, Any]:
    """Return arrays of an .npz, an HDF5 file or a folder of .npy files that fit each other, X as "x", all text as str.

    X is a DiskMatrix where it stays on disk: that of a folder or an HDF5 file, unless it is ``resident``. Optional
    arrays may be absent.

    Raises UserError, which begins with ``where``, for arrays that are missing, hold no numbers or text, or do not fit
    each other, and ValueError or OSError for a damaged file.
    """
    names = (*required, *optional)
    if ending in HDF5_ENDINGS:
        import h5py

        with h5py.File(file) as content:
            _check_names(required, content, where)
            arrays = {name: _read_hdf5(file, content, name, where, resident) for name in names if name in content}
    elif ending == ".npz":
        with file.open("rb") as stream:  # given a path, numpy leaves a damaged file open
            content = np.load(stream, allow_pickle=False)
            if isinstance(content, np.ndarray):
                raise ValueError("it holds a single array")
            _check_names(required, content.files, where)
            arrays = {name: _read_array(content, name, where) for name in names if name in content.files}
    else:
        files = find_arrays(str(file), names)
        _check_names(required, files, where)
        arrays = {name: _load_npy(files[name], name == "X", resident) for name in names if name in files}
    return _check_arrays(arrays, where)


def _check_names(required: Sequence[str], available: Iterable[str], where: str) -> None:
    """Raise UserError, which begins with ``where``, if a required array is not available."""
    for name in required:
        if name not in available:
            raise UserError(f"{where}: there is no array '{name}'; {suggest_name(name, [*available] or ARRAY_NAMES)}")


def _load_npy(file: Path, may_stay: bool, resident: bool | str) -> np.ndarray:
    """Return the array of an .npy file, as a memory map where it stays on disk. Raises ValueError for other files."""
    array = np.load(file, allow_pickle=False, mmap_mode="r" if may_stay else None)
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{file.name} is an .npz")
    if may_stay and not stays_on_disk(array.size * memory_dtype(array.dtype).itemsize, resident):
        return np.load(file, allow_pickle=False)
    return array


def _read_hdf5(file: Path, content: Any, name: str, where: str, resident: bool | str) -> np.ndarray:
    """Return an array of an open HDF5 file, text as str; a matrix that stays on disk as a memory map.

    It is mapped from the file itself. If the file stores it compressed or in chunks, a copy in the cache is mapped.

    Raises UserError, which begins with ``where``, unless the file itself holds the values: a file from somebody else
    may read no other file, and a digest of the file stands for all values.
    """
    import h5py
    from h5py import h5o  # type: ignore[attr-defined]

    dataset: Any = content.get(name)  # None for a link to nothing
    is_held = isinstance(dataset, h5py.Dataset) and dataset.shape is not None
    if is_held:
        is_in_file = h5o.get_info(dataset.id).fileno == h5o.get_info(content.id).fileno
        is_held = is_in_file and not dataset.is_virtual and not dataset.external
    if not is_held:
        raise UserError(f"{where}: '{name}' is no data set with values in the file itself, but a group, a link, empty "
                        "or stored in other files; write it as an array of numbers or text")  # fmt: skip
    dataset = content[name]
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return np.asarray(dataset.asstr()[()], dtype=str)
    n_bytes = dataset.size * memory_dtype(dataset.dtype).itemsize
    if dataset.ndim != 2 or dataset.dtype.hasobject or not stays_on_disk(n_bytes, resident):
        return dataset[()]
    offset = dataset.id.get_offset()
    if offset is not None and not dataset.compression and dataset.dtype.isnative:
        return np.memmap(file, dataset.dtype, "r", offset, dataset.shape)
    step = max(1, READ_BYTES // max(dataset.dtype.itemsize * dataset.shape[1], 1))
    blocks = (dataset[start : start + step] for start in range(0, len(dataset), step))
    return cache_blocks([file_digest(file), name], dataset.shape, dataset.dtype.newbyteorder("="), blocks)


def find_arrays(path: str, names: Sequence[str]) -> dict[str, Path]:
    """Return those .npy files of a folder that have the arrays of these names, by name."""
    files = sorted(Path(path).expanduser().glob("*.npy"))
    return {file.stem: file for file in files if file.stem in names}


def is_array_folder(path: str) -> bool:
    """Return whether ``path`` is a folder with one of the arrays of ``ARRAY_NAMES``."""
    return any(file.is_file() for file in find_arrays(path, ARRAY_NAMES).values())


def _read_array(content: Any, name: str, where: str) -> np.ndarray:
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
            f"{where}: array '{name}' holds Python objects, which may be anything: save it as {hint}"
        ) from error


def _check_arrays(arrays: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return arrays that fit each other, X as "x" and all text as str. Raises UserError for arrays that do not fit."""
    checked = {}
    for name, array in arrays.items():
        if not isinstance(array, np.memmap):
            array = widen(array)
        checked[name] = array.astype(str) if array.dtype.kind == "S" else array
    x = checked.pop("X")
    if x.ndim != 2 or memory_dtype(x.dtype).kind not in "fiub":
        raise UserError(f"{where}: X must be a matrix of numbers; it is {x.ndim}-dimensional {x.dtype}")
    for name, array in checked.items():
        if array.shape != x.shape[:1]:
            raise UserError(f"{where}: {name} has shape {array.shape}; X has {len(x)} rows, make them agree")
        if array.dtype.kind in "VO":
            raise UserError(f"{where}: {name} has the type {array.dtype}; save it as numbers or text")
        if name in _MASKS and array.dtype != bool:
            raise UserError(f"{where}: {name} is {array.dtype}; save it as booleans, True for held out")
        if name in _MASKS and len(x) and array.all():
            raise UserError(f"{where}: {name} marks every row as held out; leave some to train on")
    if x.dtype == bool:
        x = x.view(np.int8)
    if isinstance(x, np.memmap):
        x = DiskMatrix.from_memmap(x)
    return {"x": x, **checked}


def read_libsvm(
    file: Path,
    path: str,
    first_index: int | None = None,
    sparse: bool | str = AUTO,
    resident: bool | str = True,
    least_features: int = 0,
) -> tuple[Any, np.ndarray, int]:
    """Return the features (N, d), the targets (N,), float64, and the index of the first feature, 0 or 1.

    The features are a SparseMatrix if ``sparse``; with "auto", if a tenth of them or less is not 0, of a file that is
    not small as a dense array. Features that are not ``resident`` are a SparseDiskMatrix, whatever "auto" would choose;
    those of a compressed file are ``resident`` if it is "auto".

    Features in memory are float32 if that has all their digits, else float64, so that a run has the digits of its
    precision.

    The lines are ``label index:value ..``. Values that a line leaves out are 0. Comments and ``qid:`` are ignored.
    Without ``first_index``, indices count from 1 unless some index is 0. Rows in memory have at least
    ``least_features``.

    Raises ValueError for lines of another form, and UserError, which names ``data.path=path``, where the dense array
    would be too large, or the cache cannot be written, and for an index 0 where ``first_index`` is 1.
    """
    from scipy.sparse import csr_matrix
    from sklearn.datasets import load_svmlight_file

    n_bytes = _estimate_nonzero_bytes(file)
    if sparse and stays_on_disk(n_bytes, resident):
        key = [file_digest(file), "nonzeros of all lines"]
        where = f"`data.path={path}`"
        x, y = cache_nonzeros(key, n_bytes, _read_libsvm_blocks(file, where), where, from_zero=False)
        _check_number_of_features(x.n_features, path)
        return x, y, x.first_column
    try:
        matrix: Any
        with open_bytes(file) as stream:
            matrix, y = load_svmlight_file(stream, dtype=np.float64, zero_based=True)[:2]  # type: ignore[arg-type]
    except OverflowError as error:
        raise _refuse_index(f"`data.path={path}`") from error
    has_index_0 = len(matrix.indices) > 0 and matrix.indices.min() == 0
    if first_index is None:
        first_index = 0 if has_index_0 else 1
    if first_index == 1 and has_index_0:
        raise UserError(
            f"{path} has an index 0, and the indices of the record's file count from 1: number both files from 1"
        )
    matrix.indices -= first_index  # in place: a slice of the columns would copy the matrix twice
    n_rows, n_features = matrix.shape[0], matrix.shape[1] - first_index
    single = matrix.data.astype(np.float32)
    values = single if (single == matrix.data).all() else matrix.data
    matrix = csr_matrix((values, matrix.indices, matrix.indptr), (n_rows, max(n_features, least_features)))
    _check_number_of_features(n_features, path)
    if sparse == AUTO:
        sparse = n_rows * n_features > _SMALL_NUMBERS and matrix.nnz <= _SPARSE_SHARE * n_rows * n_features
    if sparse:
        return SparseMatrix.from_scipy(matrix, f"`data.path={path}`"), y, first_index
    if n_rows * n_features > _MAX_DENSE_NUMBERS:
        raise UserError(
            f"`data.path={path}`: {n_rows} rows of {n_features} features would take "
            f"{1e-9 * matrix.dtype.itemsize * n_rows * n_features:.0f} GB as a dense array, more than "
            f"{_MAX_DENSE_NUMBERS:,.0f} numbers: give `data.sparse=true`, or keep fewer rows or features"
        )
    return matrix.toarray(), y, first_index


def _estimate_nonzero_bytes(file: Path) -> int:
    """Estimate the bytes of a LIBSVM file's nonzeros from the colons at its beginning; 0 for a compressed file."""
    if file.suffix.lower() in OPEN_COMPRESSED:
        return 0
    with file.open("rb") as stream:
        text = stream.read(READ_BYTES)
    return NONZERO.itemsize * text.count(b":") * file.stat().st_size // max(len(text), 1)


def _read_libsvm_blocks(file: Path, where: str) -> Iterator[NonzeroBlock]:
    """Yield the rows of a LIBSVM file, READ_BYTES of text at a time. Raises UserError, which begins with ``where``."""
    from sklearn.datasets import load_svmlight_file

    n_rows = 0
    with open_bytes(file) as stream:
        while stream.peek(1):
            try:  # goes on where the last block ended, to the end of the line at ``length``
                part: Any = {"zero_based": True, "n_features": MOST_INDICES, "length": stream.tell() + READ_BYTES}
                matrix, y = load_svmlight_file(stream, **part)
            except OverflowError as error:
                raise _refuse_index(where) from error
            csr = SparseMatrix.from_scipy(matrix, where, n_rows).csr
            yield NonzeroBlock(csr.indices, csr.data, np.diff(csr.indptr), y)
            n_rows += len(y)


def _refuse_index(where: str) -> UserError:
    return UserError(f"{where}: an index is more than {MOST_INDICES:,}; keep fewer features")


def _check_number_of_features(n_features: int, path: str) -> None:
    """Raise UserError for more features than a LIBSVM file may have."""
    if n_features > _MOST_FEATURES:
        raise UserError(f"`data.path={path}`: the largest index makes {n_features:,} features, whose weights take "
                        f"{8e-9 * n_features:.0f} GB: keep at most {_MOST_FEATURES:,}")  # fmt: skip


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
            if column.features != (column.name,):
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
    """Estimate the memory of a Parquet file's columns, 8 bytes a cell. Raises ValueError for a damaged file."""
    from pyarrow import parquet

    metadata = parquet.read_metadata(file)
    return metadata.num_rows * metadata.num_columns * 8


def least_bytes(file: Path, columns: Collection[str] | None) -> int:
    """Return the least memory of these columns of a Parquet file, of all if ``columns`` is None.

    Texts in ``columns`` are names of clients, groups and the like. Raises ValueError for a damaged file.
    """
    from pyarrow import parquet, types

    row_bytes = 0
    for field in parquet.read_schema(file):
        if columns is None or field.name in columns:
            if types.is_integer(field.type) or types.is_floating(field.type):
                row_bytes += field.type.bit_width // 8
            elif types.is_boolean(field.type) or (columns is None and types.is_dictionary(field.type)):
                row_bytes += 1
            else:
                row_bytes += _POINTER_BYTES if columns is None else _NAME_BYTES
    return parquet.read_metadata(file).num_rows * row_bytes


def describe_size(file: Path, ending: str) -> str:
    """Return the size of a large file with named columns, in words; "" for a file that is read in a few seconds.

    Raises the errors of pyarrow for a damaged file.
    """
    if ending == PARQUET_ENDING:
        from pyarrow import parquet

        metadata = parquet.read_metadata(file)
        if metadata.num_rows * metadata.num_columns > _MANY_CELLS or metadata.num_columns > _MANY_COLUMNS:
            return f"{metadata.num_rows:,} rows of {metadata.num_columns:,} columns"
    elif file.stat().st_size > _MANY_CHARACTERS:
        return f"{file.stat().st_size / 1e9:.1f} GB"
    return ""


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


def cache_blocks(key: list, shape: tuple[int, int], dtype: np.dtype, blocks: Iterator[np.ndarray]) -> np.ndarray:
    """Return a memory map of these blocks of rows from the cache, where they are written unless ``key`` is cached.

    Raises UserError where the cache cannot be written, and the errors of ``blocks``.
    """
    file = _name_in_cache(key, ".npy")

    def write(out: IO[bytes]) -> None:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(out, header)
        for block in blocks:
            out.write(np.ascontiguousarray(block, dtype).data)

    if not file.exists():
        _write_in_cache(file, shape[0] * shape[1] * dtype.itemsize, write)
    return np.load(file, mmap_mode="r")


def cache_nonzeros(
    key: list, n_bytes: int, blocks: Iterator[NonzeroBlock], where: str, from_zero: bool
) -> tuple[SparseDiskMatrix, np.ndarray]:
    """Return the rows of these blocks from the cache, where they are written unless ``key`` is cached, and targets.

    ``n_bytes`` is an estimate of their size. Columns count from 0, or, unless ``from_zero``, from 1 if none is 0.

    Raises UserError, which begins with ``where``, without nonzeros, where the cache cannot be written, and the errors
    of ``blocks``.
    """
    nonzero_file, row_file = _name_in_cache(key, ".nonzeros"), _name_in_cache(key, ".npz")
    lengths = [np.zeros(1, np.int64)]
    targets = []
    column_range = [MOST_INDICES, -1]

    def write_nonzeros(out: IO[bytes]) -> None:
        for block in blocks:
            nonzeros = np.empty(len(block.values), NONZERO)
            nonzeros["column"], nonzeros["value"] = block.columns, block.values
            out.write(nonzeros.view(np.uint8).data)
            lengths.append(block.lengths)
            targets.append(block.y)
            column_range[:] = block.columns.min(initial=column_range[0]), block.columns.max(initial=column_range[1])
        if column_range[1] < 0:
            raise UserError(f"{where} has no number that is not 0: give a file with data")

    def write_rows(out: IO[bytes]) -> None:
        bounds = np.cumsum(np.concatenate(lengths))
        np.savez(out, bounds=bounds, y=np.concatenate(targets), column_range=column_range)

    if not (nonzero_file.exists() and row_file.exists()):
        _write_in_cache(nonzero_file, n_bytes, write_nonzeros)
        _write_in_cache(row_file, 0, write_rows)
    with np.load(row_file) as rows:
        bounds, y, (least, largest) = rows["bounds"], rows["y"], rows["column_range"].tolist()
    first = 0 if from_zero else min(least, 1)
    x = SparseDiskMatrix(
        np.memmap(nonzero_file, NONZERO, "r"),
        np.arange(len(bounds) - 1),
        bounds=bounds,
        n_features=largest + 1 - first,
        first_column=first,
    )
    return x, y


def _name_in_cache(key: list, ending: str) -> Path:
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    return cache_dir("rows") / f"{name}{ending}"


def _write_in_cache(file: Path, n_bytes: int, write: Callable[[IO[bytes]], None]) -> None:
    """Write a file of about ``n_bytes`` bytes in the cache, which appears whole or not at all.

    Raises UserError where the cache cannot be written, and the errors of ``write``.
    """
    temporary = choose_temporary(file, _IDLE_SECONDS)
    try:
        if shutil.disk_usage(file.parent).free < n_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with temporary.open("wb") as out:
            write(out)
        os.replace(temporary, file)
    except OSError as error:
        if error.errno is None:  # of a damaged file, which h5py or pyarrow reads
            raise
        raise UserError(f"{format_gib(n_bytes)} of rows cannot be written to {file.parent} ({error.strerror}): "
                        "set FCORUN_CACHE=FOLDER to another folder") from error  # fmt: skip
    finally:
        temporary.unlink(missing_ok=True)
