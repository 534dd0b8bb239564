"""Files of arrays: .npz, HDF5, folders of .npy files, and LIBSVM; and copies of rows in the cache."""

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fcorun.base.errors import UserError, suggest_name
from fcorun.base.system.files import cache_dir, file_digest
from fcorun.base.system.machine import free_host_memory
from fcorun.data.rows.disk_matrix import READ_BYTES, DiskMatrix, memory_dtype, widen
from fcorun.data.tables.cells import names_as_text

HDF5_ENDINGS = (".h5", ".hdf5")
ON_DISK_WARNING = "stay on disk and are read when they are needed"  # the end of a warning about rows
ARRAY_NAMES = ("X", "y", "client", "validation", "test")
_MEMORY_SHARE = 0.25  # rows that take more of the free memory stay on disk
_MASKS = ("validation", "test")  # arrays that mark held-out rows
MAX_DENSE_BYTES = 8e9


def stays_on_disk(n_bytes: int, resident: bool | str) -> bool:
    """Return whether rows of so many bytes stay on disk: not ``resident``, or too large for memory if it is "auto"."""
    if resident == "auto":
        return n_bytes > free_host_memory() * _MEMORY_SHARE
    return not resident


def read_array_folder(path: str, resident: bool | str, extra_arrays: Sequence[str] = ()) -> dict[str, Any]:
    """Return the arrays of a folder of .npy files: "x" (N, d), "y" (N,), and ``extra_arrays``.

    The arrays client, validation and test are returned if the folder has them. X is a memory map where it stays on
    disk. Raises UserError for arrays that are missing or do not fit each other.
    """
    files = _array_files(path, extra_arrays)
    for name in ("X", "y", *extra_arrays):
        if name not in files:
            raise UserError(
                f"`data.path={path}`: the folder has no {name}.npy; {suggest_name(name, [*files] or ARRAY_NAMES)}"
            )
    try:
        mapped = _load_npy(files["X"], mmap_mode="r")
        keep_mapped = stays_on_disk(mapped.size * memory_dtype(mapped.dtype).itemsize, resident)
        arrays = {}
        for name, file in files.items():
            arrays[name] = mapped if keep_mapped and name == "X" else _load_npy(file)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"`data.path={path}`: cannot be read as .npy ({error}); save arrays of numbers by numpy.save") \
            from error  # fmt: skip
    return {name: wrap_memory_map(array) for name, array in check_arrays(arrays, path).items()}


def _load_npy(file: Path, mmap_mode: Literal["r"] | None = None) -> np.ndarray:
    """Return the array of an .npy file, by ``mmap_mode`` as a memory map. Raises ValueError for other files."""
    array = np.load(file, allow_pickle=False, mmap_mode=mmap_mode)
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{file.name} is an .npz")
    return array


def read_hdf5(file: Path, path: str, resident: bool | str, extra_arrays: Sequence[str] = ()) -> dict[str, Any]:
    """Return the arrays of an HDF5 file, as ``read_array_folder`` does.

    An X that stays on disk is mapped from the file itself. If the file stores it compressed or in chunks, a copy in
    the cache is mapped instead.
    """
    import h5py

    try:
        with h5py.File(file) as content:
            for name in ("X", "y", *extra_arrays):
                if name not in content:
                    raise UserError(
                        f"`data.path={path}`: there is no data set '{name}'; {suggest_name(name, list(content))}"
                    )
            arrays = {}
            for name in (*ARRAY_NAMES, *extra_arrays):
                if name in content and name != "X":
                    arrays[name] = read_hdf5_array(content, name, f"`data.path={path}`")
            x = _open_hdf5_array(content, "X", f"`data.path={path}`")
            n_bytes = x.size * memory_dtype(x.dtype).itemsize
            if x.ndim != 2 or x.dtype.hasobject or not stays_on_disk(n_bytes, resident):
                arrays["X"] = x[()]
            elif (offset := x.id.get_offset()) is not None and not x.compression and x.dtype.isnative:
                arrays["X"] = np.memmap(file, x.dtype, "r", offset, x.shape)
            else:
                step = max(1, READ_BYTES // max(x.dtype.itemsize * x.shape[1], 1))
                blocks = (x[start : start + step] for start in range(0, len(x), step))
                arrays["X"] = cache_blocks([file_digest(file), "X"], x.shape, x.dtype.newbyteorder("="), blocks)
    except OSError as error:
        raise UserError(f"`data.path={path}`: cannot be read as HDF5 ({error}); mend or rename the file") from error
    return {name: wrap_memory_map(array) for name, array in check_arrays(arrays, path).items()}


def read_hdf5_array(content: Any, name: str, where: str) -> np.ndarray:
    """Return an array of an open HDF5 file, text as str. Raises UserError as ``_open_hdf5_array``."""
    import h5py

    dataset = _open_hdf5_array(content, name, where)
    is_text = h5py.check_string_dtype(dataset.dtype) is not None
    if is_text:
        return np.asarray(dataset.asstr()[()], dtype=str)
    return dataset[()]


def _open_hdf5_array(content: Any, name: str, where: str) -> Any:
    """Return the data set of a name that an open HDF5 file has.

    Raises UserError, which begins with ``where``, unless the file itself holds the values: a file from somebody else
    may read no other file, and a digest of the file stands for all values.
    """
    import h5py
    from h5py import h5o  # type: ignore[attr-defined]

    dataset = content.get(name)  # None for a link to nothing
    if isinstance(dataset, h5py.Dataset) and dataset.shape is not None:
        is_in_file = h5o.get_info(dataset.id).fileno == h5o.get_info(content.id).fileno
        if is_in_file and not dataset.is_virtual and not dataset.external:
            return dataset
    raise UserError(f"{where}: '{name}' is no data set with values in the file itself, but a group, a link, empty or "
                    "stored in other files; write it as an array of numbers or text")  # fmt: skip


def wrap_memory_map(array: np.ndarray) -> Any:
    """Return a memory map as DiskMatrix, any other array as it is."""
    if isinstance(array, np.memmap):
        return DiskMatrix.from_memmap(array)
    return array


def cache_blocks(key: list, shape: tuple[int, int], dtype: np.dtype, blocks: Iterator[np.ndarray]) -> np.ndarray:
    """Return a memory map of these blocks of rows from the cache, where they are written unless ``key`` is cached.

    Raises UserError where the cache cannot be written, and the errors of ``blocks``.
    """
    read_errors = []

    def read_blocks() -> Iterator[np.ndarray]:
        try:
            yield from blocks
        except OSError as error:
            read_errors.append(error)
            raise

    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    file = cache_dir("rows") / f"{name}.npy"
    if not file.exists():
        temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("wb") as out:
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(out, header)
                for block in read_blocks():
                    out.write(np.ascontiguousarray(block, dtype).data)
            os.replace(temporary, file)
        except OSError as error:
            if read_errors:
                raise
            size = shape[0] * shape[1] * dtype.itemsize / 2**30
            raise UserError(f"{size:.3g} GiB of rows cannot be written to {file.parent} ({error.strerror}): set "
                            "FCORUN_CACHE=FOLDER to another folder") from error  # fmt: skip
        finally:
            temporary.unlink(missing_ok=True)
    return np.load(file, mmap_mode="r")


def folder_digest(path: str, extra_arrays: Sequence[str] = ()) -> Mapping[str, str]:
    """Return the digests of the arrays of a folder by name, those of ``extra_arrays`` included."""
    return {name: file_digest(file) for name, file in _array_files(path, extra_arrays).items()}


def _array_files(path: str, extra_arrays: Sequence[str]) -> dict[str, Path]:
    """Return the .npy files of a folder by the name of their array."""
    files = sorted(Path(path).expanduser().glob("*.npy"))
    return {file.stem: file for file in files if file.stem in (*ARRAY_NAMES, *extra_arrays)}


def read_npz(file: Path, path: str, extra_arrays: Sequence[str] = ()) -> dict[str, Any]:
    """Return the arrays "x" and "y", "client", "validation" and "test" if the file has them, and ``extra_arrays``.

    Raises UserError for arrays that are missing or do not fit each other, and ValueError for a single array.
    """
    with file.open("rb") as stream:  # given a path, numpy leaves a damaged file open
        content = np.load(stream, allow_pickle=False)
        if isinstance(content, np.ndarray):
            raise ValueError("it holds a single array")
        for name in ("X", "y", *extra_arrays):
            if name not in content.files:
                raise UserError(f"`data.path={path}`: there is no array '{name}'; {suggest_name(name, content.files)}")
        names = ("X", "y", "client", *_MASKS, *extra_arrays)
        arrays = {name: _read_array(content, name, path) for name in names if name in content.files}
    return check_arrays(arrays, path)


def check_arrays(arrays: dict[str, Any], path: str) -> dict[str, Any]:
    """Return arrays that fit each other, X as "x" and all text as str. Raises UserError for arrays that do not fit."""
    checked = {}
    for name, array in arrays.items():
        if not isinstance(array, np.memmap):
            array = widen(array)
        checked[name] = array.astype(str) if array.dtype.kind == "S" else array
    x = checked.pop("X")
    if x.ndim != 2 or memory_dtype(x.dtype).kind not in "fiub":
        raise UserError(f"`data.path={path}`: X must be a matrix of numbers; it is {x.ndim}-dimensional {x.dtype}")
    for name, array in checked.items():
        if array.shape != x.shape[:1]:
            raise UserError(f"`data.path={path}`: {name} has shape {array.shape}; X has {len(x)} rows, make them agree")
        if array.dtype.kind in "VO":
            raise UserError(f"`data.path={path}`: {name} has the type {array.dtype}; save it as numbers or text")
    for name in _MASKS:
        mask = checked.get(name)
        if mask is None:
            continue
        if mask.dtype != bool:
            raise UserError(f"`data.path={path}`: {name} is {mask.dtype}; save it as booleans, True for held out")
        if len(x) and mask.all():
            raise UserError(f"`data.path={path}`: {name} marks every row as held out; leave some to train on")
    if "client" in checked:
        checked["client"] = names_as_text(checked["client"])
        has_no_client = np.isin(checked["client"], ["", "nan", "NaT"])
        if has_no_client.any():
            raise UserError(f"`data.path={path}`: row {int(has_no_client.argmax()) + 1} has no client; give each row "
                            "the name of its client")  # fmt: skip
    return {"x": x.view(np.int8) if x.dtype == bool else x, **checked}


def _read_array(content: Any, name: str, path: str) -> np.ndarray:
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
            f"`data.path={path}`: array '{name}' holds Python objects, which may be anything: save it as {hint}"
        ) from error


def read_libsvm(file: Path, path: str, first_index: int | None = None) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the features (N, d), float32, the targets (N,), float64, and the index of the first feature, 0 or 1.

    The lines are ``label index:value ..``. Values that a line leaves out are 0. Comments and ``qid:`` are ignored.
    Without ``first_index``, indices count from 1 unless some index is 0.

    Raises ValueError for lines of another form, and UserError, which names ``data.path=path``, where the dense array
    would be too large, and for an index 0 where ``first_index`` is 1.
    """
    from sklearn.datasets import load_svmlight_file

    try:
        matrix: Any
        matrix, y = load_svmlight_file(str(file), dtype=np.float32, zero_based=True)[:2]  # type: ignore[arg-type]
    except OverflowError as error:
        raise UserError(f"`data.path={path}`: an index is more than {2**31 - 1:,}; keep fewer features") from error
    has_index_0 = len(matrix.indices) > 0 and matrix.indices.min() == 0
    if first_index is None:
        first_index = 0 if has_index_0 else 1
    if first_index == 1 and has_index_0:
        raise UserError(
            f"{path} has an index 0, and the indices of the record's file count from 1: number both files from 1"
        )
    matrix = matrix[:, first_index:]
    n_rows, n_features = matrix.shape
    if 4 * n_rows * n_features > MAX_DENSE_BYTES:
        raise UserError(
            f"`data.path={path}`: {n_rows} rows of {n_features} features would take "
            f"{4e-9 * n_rows * n_features:.0f} GB as a dense array, more than {MAX_DENSE_BYTES / 1e9:.0f}; keep fewer "
            "rows or features"
        )
    return matrix.toarray(), y, first_index
