"""Arrays that may be larger than memory: folders of .npy files and HDF5, digests of them, and copies in the cache."""

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.errors import UserError, suggest_name
from fcorun.rows.on_disk import READ_BYTES, DiskRows, memory_dtype
from fcorun.system.cache import cache_dir
from fcorun.system.files import write_atomically
from fcorun.system.machine import free_device_memory
from fcorun.tables.npz import check_arrays

HDF5_ENDINGS = (".h5", ".hdf5")
ON_DISK_WARNING = "stay on disk and are read when they are needed"  # a remark on rows
ARRAY_NAMES = ("X", "y", "client", "validation", "test")
_SHARE = 0.25  # of the free memory: what takes more stays on disk
_HASHED = 2**28  # bytes: digests of larger files are kept


def stays_on_disk(bytes_: int, resident: bool | str) -> bool:
    """Whether rows of so many bytes stay on disk: as ``resident`` says, or by "auto" where they take too much."""
    return bytes_ > free_device_memory() * _SHARE if resident == "auto" else not resident


def is_array_folder(path: str) -> bool:
    """Whether it is a folder with one of the arrays."""
    return any((Path(path).expanduser() / f"{name}.npy").is_file() for name in ARRAY_NAMES)


def read_array_folder(path: str, resident: bool | str, extra_arrays: Sequence[str] = ()) -> dict[str, Any]:
    """The arrays X.npy (N, d), y.npy (N,) and, if they are there, those of client, validation and test, of a folder,
    and ``more``; X by a memory map where it stays on disk. Raises UserError for arrays that are missing or do not fit
    each other."""
    folder = Path(path).expanduser()
    there = {file.stem: file for file in sorted(folder.glob("*.npy")) if file.stem in (*ARRAY_NAMES, *extra_arrays)}
    for name in ("X", "y", *extra_arrays):
        if name not in there:
            raise UserError(
                f"data.path={path}: the folder has no {name}.npy; {suggest_name(name, [*there] or ARRAY_NAMES)}"
            )
    try:
        mapped = np.load(there["X"], allow_pickle=False, mmap_mode="r")
        stay = stays_on_disk(mapped.size * memory_dtype(mapped.dtype).itemsize, resident)
        found = {name: mapped if stay and name == "X" else np.load(file, allow_pickle=False)
                 for name, file in there.items()}  # fmt: skip
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"data.path={path}: cannot be read as .npy ({error}); save arrays of numbers by numpy.save") \
            from error  # fmt: skip
    return {n: wrap_memory_map(v) for n, v in check_arrays(found, path).items()}


def read_hdf5(file: Path, path: str, resident: bool | str, extra_arrays: Sequence[str] = ()) -> dict[str, Any]:
    """The same of the data sets of an HDF5 file. What stays on disk is read where it lies, or, if it is packed or in
    chunks, from a copy in the cache."""
    import h5py

    try:
        with h5py.File(file) as given:
            for name in ("X", "y", *extra_arrays):
                if not isinstance(given.get(name), h5py.Dataset):
                    raise UserError(
                        f"data.path={path}: there is no data set '{name}'; {suggest_name(name, list(given))}"
                    )
            x: Any = given["X"]
            found = {n: read_hdf5_dataset(given[n]) for n in (*ARRAY_NAMES, *extra_arrays) if n in given and n != "X"}
            if len(x.shape) != 2 or not stays_on_disk(x.size * memory_dtype(x.dtype).itemsize, resident):
                found["X"] = x[()]
            elif (offset := x.id.get_offset()) is not None and not x.compression and x.dtype.isnative:
                found["X"] = np.memmap(file, x.dtype, "r", offset, x.shape)
            else:
                step = max(1, READ_BYTES // max(x.dtype.itemsize * x.shape[1], 1))
                blocks = (x[i : i + step] for i in range(0, len(x), step))
                found["X"] = cache_blocks([file_digest(file), "X"], x.shape, x.dtype.newbyteorder("="), blocks)
    except OSError as error:
        raise UserError(f"data.path={path}: cannot be read as HDF5 ({error}); mend or rename the file") from error
    return {n: wrap_memory_map(v) for n, v in check_arrays(found, path).items()}


def read_hdf5_dataset(values: Any) -> np.ndarray:
    """A data set of HDF5, text as text."""
    return np.asarray(values.asstr()[()], dtype=str) if values.dtype.kind in "SO" else values[()]


def cache_blocks(key: list, shape: tuple[int, int], dtype: np.dtype, blocks: Iterator[np.ndarray]) -> np.ndarray:
    """A memory map of these blocks, one below the other, in the cache, where they are written unless they are there.

    Raises UserError where they cannot be written, and what ``blocks`` raise.
    """
    unread = []

    def read() -> Iterator[np.ndarray]:
        try:
            yield from blocks
        except OSError as error:
            unread.append(error)
            raise

    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    file = cache_dir("rows") / f"{name}.npy"
    if not file.exists():
        temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("wb") as out:
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(out, header)
                for block in read():
                    out.write(np.ascontiguousarray(block, dtype).data)
            os.replace(temporary, file)
        except OSError as error:
            if unread:
                raise
            raise UserError(f"{file.parent} has no room for {shape[0] * shape[1] * dtype.itemsize / 2**30:.3g} GiB "
                            f"of rows ({error.strerror}): FCORUN_CACHE=FOLDER is another place") from error  # fmt: skip
        finally:
            temporary.unlink(missing_ok=True)
    return np.load(file, mmap_mode="r")


def file_digest(file: Path) -> str:
    """The SHA-256 of a file's bytes. That of a large file is worked out once, and found again by the file's place,
    size, time and what stands in some places of it."""
    about = file.stat()
    if about.st_size < _HASHED:
        return _sha256(file)
    key = [str(file.resolve()), about.st_size, about.st_mtime_ns, _samples(file, about.st_size)]
    kept = cache_dir("digests") / hashlib.sha256(json.dumps(key).encode()).hexdigest()
    try:
        return kept.read_text(encoding="utf-8")
    except OSError:
        found = _sha256(file)
        write_atomically(kept, found)
        return found


def folder_digest(path: str, extra_arrays: Sequence[str] = ()) -> Mapping[str, str]:
    """Return the arrays of a folder that it has, those called ``more`` too, by name."""
    files = sorted(Path(path).expanduser().glob("*.npy"))
    there = {file.stem: file for file in files if file.stem in (*ARRAY_NAMES, *extra_arrays)}
    return {name: file_digest(file) for name, file in there.items()}


def _sha256(file: Path) -> str:
    with file.open("rb") as given:
        return hashlib.file_digest(given, "sha256").hexdigest()


def _samples(file: Path, size: int, count: int = 64, width: int = 4096) -> str:
    found = hashlib.sha256()
    with file.open("rb") as given:
        for place in np.linspace(0, max(size - width, 0), count).astype(int).tolist():
            given.seek(place)
            found.update(given.read(width))
    return found.hexdigest()


def wrap_memory_map(values: np.ndarray) -> Any:
    """An array as it is, or the rows that a memory map stands for."""
    return DiskRows.from_memmap(values) if isinstance(values, np.memmap) else values
