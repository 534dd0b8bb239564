"""Files that appear whole or not at all, and rows of files that are too large to be in memory."""

import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fcorun.errors import WriteError
from fcorun.system.interruption import defer_interruption

if TYPE_CHECKING:
    import numpy as np


_TRIES, _PAUSE = 20, 0.05  # seconds


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file under a name that no other writer uses, then rename it. Raises NotWritten."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    with defer_interruption(), name_file_in_errors(path):
        try:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
            replace_file(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def append_line(path: Path, line: str) -> None:
    """Add a line to a text file. Raises NotWritten."""
    with defer_interruption(), name_file_in_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


@contextmanager
def name_file_in_errors(path: Path | str) -> Iterator[None]:
    """Have errors of writing a file name that file: that of a full disk names none, and others a temporary one. Raises
    NotWritten."""
    try:
        yield
    except OSError as error:
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


def replace_file(temporary: Path, path: Path) -> None:
    """Rename a file to the name of another. Windows refuses that while a reader has the other one open, so it is tried
    again for a second there."""
    for _ in range(_TRIES if sys.platform == "win32" else 0):
        try:
            os.replace(temporary, path)
        except PermissionError:
            time.sleep(_PAUSE)
        else:
            return
    os.replace(temporary, path)


def remove_path(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_regular_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file that may come from somebody else.

    Raises OSError for a link, which may lead anywhere, for what is no file, and for a file of more than ``most`` bytes.
    """
    about = path.lstat()
    if not stat.S_ISREG(about.st_mode):
        raise OSError(f"{path} is a link or no file: a record consists of plain files")
    if about.st_size > max_bytes:
        raise OSError(f"{path} has {about.st_size:,} bytes, more than the {max_bytes:,} that are read")
    return path.read_bytes()


def read_rows_at(file: IO[bytes], positions: "np.ndarray", out: "np.ndarray", offset: int = 0) -> None:
    """Read the rows at these places, sorted, into ``out``, whose rows are as long as those of the file from ``begin``
    on: those that follow each other by one call. Raises OSError where the file ends before."""
    for first, end, place in _runs(positions):
        part = out[first:end].view("u1").reshape(-1).data
        file.seek(offset + place * out.strides[0])
        while part.nbytes:  # a call reads 2 GiB at most, or less
            if not (read := file.readinto(part)):  # type: ignore[attr-defined]
                raise OSError(f"{getattr(file, 'name', 'a file')} has become shorter")
            part = part[read:]


def write_rows_at(file: IO[bytes], positions: "np.ndarray", rows: "np.ndarray") -> None:
    """Write rows at these places, sorted. Raises OSError where the disk is full."""
    for first, end, place in _runs(positions):
        file.seek(place * rows.strides[0])
        part = rows[first:end].view("u1").reshape(-1).data
        while part.nbytes:  # a call may write a part of it
            part = part[file.write(part) :]


def _runs(places: "np.ndarray") -> Iterator[tuple[int, int, int]]:
    """Of each run of places that follow each other: from where, and up to where, and its first place."""
    import numpy as np

    if len(places):
        begin = np.flatnonzero(np.diff(places, prepend=places[0] - 2) != 1)
        ends = np.append(begin[1:], len(places))
        yield from zip(begin.tolist(), ends.tolist(), places[begin].tolist(), strict=True)
