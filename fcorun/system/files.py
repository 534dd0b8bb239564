"""Files that appear whole or not at all, rows of files that are too large for memory, and caches."""

import functools
import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from platformdirs import user_cache_dir

from fcorun.errors import WriteError
from fcorun.system.interruption import defer_interruption

_CACHED_DIGEST_BYTES = 2**28  # digests of larger files are cached

if TYPE_CHECKING:
    import numpy as np


# Caches of results that can be computed again: in memory by a key, and on disk.
#
# Compiled programs, certified optima and masked scans are cached on disk.

T = TypeVar("T")


@dataclass(frozen=True)
class Keyed(Generic[T]):
    """A value that is hashed and compared by its key alone, as an argument of a function with ``lru_cache``."""

    key: str
    value: T = field(compare=False)


def cached_by_key(compute: Callable[..., T]) -> Callable[..., T]:
    """Decorate a pure function whose first argument is a key of all others, so that it computes each result once.

    Unlike with ``lru_cache`` and ``Keyed``, the other arguments, which may be large, are not kept in memory.
    """
    results: dict[Hashable, T] = {}

    @functools.wraps(compute)
    def look_up(key: Hashable, *arguments: Any) -> T:
        if key not in results:
            results[key] = compute(key, *arguments)
        return results[key]

    return look_up


def cache_dir(name: str) -> Path:
    """Return a writable folder ``name`` below $FCORUN_CACHE, the user's cache folder, or a temporary folder.

    Raises OSError if none of them can be written to.
    """
    for base in (os.environ.get("FCORUN_CACHE") or user_cache_dir("fcorun", appauthor=False), tempfile.gettempdir()):
        folder = Path(base) / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise OSError("no writable cache folder; set FCORUN_CACHE")


# Files that appear whole or not at all, and rows of files that are too large for memory.

_RETRIES = 20
_RETRY_SECONDS = 0.05


def write_atomically(path: Path, content: bytes | str, durable: bool = False) -> None:
    """Write a file so that readers see its old content or the new one, never a part. Raises WriteError.

    With ``durable`` the file is on the disk when the function returns, and outlasts a power cut.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with defer_interruption(), name_file_in_errors(path):
        try:
            write_new(temporary, content.encode() if isinstance(content, str) else content, durable)
            replace_file(temporary, path)
            if durable:
                _sync_folder(path.parent)
        except FileExistsError:  # the file, or link, is not this function's
            raise
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_new(path: Path, content: bytes, durable: bool = False) -> None:
    """Create a file and write it. Raises FileExistsError for a name that exists; a link is not followed."""
    with path.open("xb") as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Write the names of a folder's files to the disk. Windows has no such call."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, line: str) -> None:
    """Append a line to a text file. Raises WriteError, also for a link, which may lead out of a record."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # which Windows lacks
    with (
        defer_interruption(),
        name_file_in_errors(path),
        open(os.open(path, flags, 0o666), "a", encoding="utf-8") as file,
    ):
        file.write(f"{line}\n")


@contextmanager
def name_file_in_errors(path: Path | str) -> Iterator[None]:
    """Turn an OSError of the context into a WriteError that names ``path``.

    The system's own errors name a temporary file, or no file at all when the disk is full.
    """
    try:
        yield
    except OSError as error:
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


def replace_file(temporary: Path, path: Path) -> None:
    """Rename a file to ``path``, which may exist.

    Windows refuses to replace a file that a reader has open: there the call is repeated for a second.
    """
    retries = _RETRIES if sys.platform == "win32" else 0
    for _ in range(retries):
        try:
            os.replace(temporary, path)
        except PermissionError:
            time.sleep(_RETRY_SECONDS)
        else:
            return
    os.replace(temporary, path)


def remove_path(path: Path) -> None:
    """Remove a file, or a folder with its content. A path that does not exist is ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file that may come from somebody else.

    Raises OSError for a link (its target may be any file), for anything but a regular file, and for a file of more
    than ``max_bytes`` bytes.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is a link or no file: a record consists of plain files")
    if status.st_size > max_bytes:
        raise OSError(f"{path} has {status.st_size:,} bytes, more than the {max_bytes:,} that are read")
    return path.read_bytes()


def read_rows_at(file: IO[bytes], positions: "np.ndarray", out: "np.ndarray", offset: int = 0) -> None:
    """Read the rows at sorted positions of a file into ``out``, consecutive rows by one call.

    The rows of the file are as long as those of ``out`` and begin ``offset`` bytes after its start. Raises OSError if
    the file ends too early.
    """
    for first, end, position in _consecutive(positions):
        remaining = out[first:end].view("u1").reshape(-1).data
        file.seek(offset + position * out.strides[0])
        while remaining.nbytes:  # the system reads at most 2 GiB a call, and may read less
            count = file.readinto(remaining)  # type: ignore[attr-defined]
            if not count:
                raise OSError(f"{getattr(file, 'name', 'a file')} has become shorter")
            remaining = remaining[count:]


def write_rows_at(file: IO[bytes], positions: "np.ndarray", rows: "np.ndarray") -> None:
    """Write rows at sorted positions of a file. Raises OSError if the disk is full."""
    for first, end, position in _consecutive(positions):
        file.seek(position * rows.strides[0])
        remaining = rows[first:end].view("u1").reshape(-1).data
        while remaining.nbytes:  # a call may write a part only
            remaining = remaining[file.write(remaining) :]


def _consecutive(positions: "np.ndarray") -> Iterator[tuple[int, int, int]]:
    """Yield each block ``positions[first:end]`` of consecutive positions, as (first, end, its first position)."""
    import numpy as np

    if len(positions):
        firsts = np.flatnonzero(np.diff(positions, prepend=positions[0] - 2) != 1)
        ends = np.append(firsts[1:], len(positions))
        yield from zip(firsts.tolist(), ends.tolist(), positions[firsts].tolist(), strict=True)


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file.

    The digest of a large file is cached under the file's path, size, time of change, and samples of its content.
    """
    status = file.stat()
    if status.st_size < _CACHED_DIGEST_BYTES:
        return _sha256(file)
    key = [str(file.resolve()), status.st_size, status.st_mtime_ns, _sample_digest(file, status.st_size)]
    cached = cache_dir("digests") / hashlib.sha256(json.dumps(key).encode()).hexdigest()
    try:
        return cached.read_text(encoding="utf-8")
    except OSError:
        digest = _sha256(file)
        write_atomically(cached, digest)
        return digest


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sample_digest(file: Path, size: int, count: int = 64, width: int = 4096) -> str:
    """Return the SHA-256 of ``count`` samples of ``width`` bytes, spread evenly over a file of ``size`` bytes."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        for i in range(count):
            stream.seek(max(size - width, 0) * i // (count - 1))
            digest.update(stream.read(width))
    return digest.hexdigest()
