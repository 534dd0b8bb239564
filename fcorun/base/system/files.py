"""Interruption by signals, caches, files that appear whole or not at all, rows of large files, and digests."""

import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from fcorun.base.errors import WriteError

if TYPE_CHECKING:
    import numpy as np


# Signals that end a process: noted when they arrive, and acted on between steps, so that no file stays half-written.
#
# Ctrl-C, a scheduler's request to end (SIGTERM) and a closed terminal (SIGHUP) are one thing here, an interruption.
# Outside of ``interruptible``, as in a notebook, Ctrl-C raises KeyboardInterrupt as usual.

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
POLL_SECONDS = 0.5  # the length of a wait between two calls of ``check_interrupted``
_DOUBLE_SIGNAL_SECONDS = 0.2  # within them a second signal counts as the first: ``timeout`` sends a process two


@dataclass
class _State:
    """The interruption of this process.

    Attributes:
        noted: whether a signal has arrived.
        at_once: whether the first signal raises KeyboardInterrupt at the line where it arrives.
    """

    noted: bool = False
    at_once: bool = False


_STATE = _State()  # one for the process, as handlers of signals are


def check_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal has been noted. To be called between steps, in any thread."""
    if is_interrupted():
        raise KeyboardInterrupt


def is_interrupted() -> bool:
    """Return whether a signal has been noted."""
    return _STATE.noted


def set_interrupted(noted: bool) -> None:
    """Note an interruption of this process as a signal does, or forget one that has been noted."""
    _STATE.noted = noted


def wait_for_first(running: set[Future]) -> tuple[set[Future], set[Future]]:
    """Wait until at least one future is done; return the done futures and the others. Raises KeyboardInterrupt."""
    while True:
        check_interrupted()
        done, others = wait(running, POLL_SECONDS, FIRST_COMPLETED)
        if done:
            return done, others


@contextmanager
def interruptible() -> Iterator[None]:
    """Note signals within the context, except ignored ones (as SIGHUP is under nohup).

    A second signal ends the process at once; the record's lock is then free, which marks the run as interrupted. A
    nested ``interruptible`` changes nothing.
    """
    if any(signal.getsignal(kind) is _note for kind in SIGNALS):
        yield
        return
    previous_handlers = {kind: signal.getsignal(kind) for kind in SIGNALS}
    handled = [kind for kind, handler in previous_handlers.items() if handler not in (signal.SIG_IGN, None)]
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    threading.Thread(target=_exit_at_second_signal, args=(reader, handled), daemon=True).start()
    _STATE.noted = False
    previous_wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for kind in handled:
        signal.signal(kind, _note)
    try:
        yield
    finally:
        for kind in handled:
            signal.signal(kind, previous_handlers[kind])
        signal.set_wakeup_fd(previous_wakeup)
        writer.close()
        _STATE.noted = False


@contextmanager
def interruptible_at_once() -> Iterator[None]:
    """Let a signal raise KeyboardInterrupt at the line where it arrives: for long steps that write no file."""
    with _set_at_once(True):
        check_interrupted()  # a signal may have arrived before
        yield


@contextmanager
def defer_interruption() -> Iterator[None]:
    """Only note a signal within the context, even inside ``interruptible_at_once``: for writing files."""
    with _set_at_once(False):
        yield


@contextmanager
def _set_at_once(at_once: bool) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # signal handlers run in the main thread
        yield
        return
    before = _STATE.at_once
    _STATE.at_once = at_once
    try:
        yield
    finally:
        _STATE.at_once = before


def _note(*_: Any) -> None:
    is_first = not _STATE.noted
    _STATE.noted = True
    if is_first and _STATE.at_once:
        raise KeyboardInterrupt


def _exit_at_second_signal(reader: socket.socket, kinds: Collection[int]) -> None:
    """End the process at the second of these signals.

    The signal numbers arrive through a socket, because a handler would wait until the main thread returns from a
    program that computes or compiles.
    """
    first_time = None
    with reader:
        while number := reader.recv(1):
            if number[0] not in kinds:
                continue
            now = time.monotonic()
            if first_time is None:
                first_time = now
            if now > first_time + _DOUBLE_SIGNAL_SECONDS:
                if sys.stdout.isatty():
                    os.write(sys.stdout.fileno(), b"\x1b[?25h")  # shows the cursor, which a progress bar hides
                os._exit(130)


def ignore_signals() -> None:
    """Ignore signals for the rest of the process, whose work is done."""
    for kind in SIGNALS:
        signal.signal(kind, signal.SIG_IGN)


# Caches of results that can be computed again: in memory by a key, and on disk.
#
# On disk are compiled programs, optima, digests of files, rows of tables, and voxels of scans.

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
    """Return a writable folder ``name``, below $FCORUN_CACHE or the user's cache folder, or else a temporary one."""
    from platformdirs import user_cache_dir

    cache = Path(os.environ.get("FCORUN_CACHE") or user_cache_dir("fcorun", appauthor=False))
    with suppress(OSError):
        folder = cache / name
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    folder = _temporary_folder() / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache  # one for the process
def _temporary_folder() -> Path:
    """Return a new folder of this process. Programs are loaded from it: nobody else can have made it."""
    return Path(tempfile.mkdtemp(prefix="fcorun-"))


def state_dir(name: str) -> Path:
    """Return the folder ``name`` below $FCORUN_STATE, or below the user's folder of states; it need not exist."""
    from platformdirs import user_state_dir

    return Path(os.environ.get("FCORUN_STATE") or user_state_dir("fcorun", appauthor=False)) / name


# Files that appear whole, and rows of large files.

_RETRIES = 20
_RETRY_SECONDS = 0.05
_IDLE_SECONDS = 1.0  # of a temporary file whose process was killed: a process that begins anew takes longer


def write_atomically(path: Path, content: bytes | str, durable: bool = False, private: bool = False) -> None:
    """Write a file so that readers see its old content or the new one, never a part. Raises WriteError.

    With ``durable`` the file is on the disk when the function returns, and outlasts a power cut. A ``private`` file can
    be read by its owner alone.
    """
    temporary = choose_temporary(path)
    with defer_interruption(), name_file_in_errors(path):
        try:
            write_new(temporary, content.encode() if isinstance(content, str) else content, durable, private)
            replace_file(temporary, path)
            if durable and sys.platform != "win32":  # the names of the folder's files; Windows has no such call
                descriptor = os.open(path.parent, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except FileExistsError:  # the file, or link, is not this function's
            raise
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def choose_temporary(path: Path, idle_seconds: float = _IDLE_SECONDS) -> Path:
    """Return a new name beside ``path`` for its content until that is whole.

    Temporary files of ``path`` that killed processes have left are removed: those not written to for ``idle_seconds``.
    """
    temporary = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")
    with suppress(OSError):
        for name in filter(temporary.fullmatch, os.listdir(path.parent)):
            if time.time() - path.with_name(name).lstat().st_mtime > idle_seconds:
                path.with_name(name).unlink()
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def write_new(path: Path, content: bytes, durable: bool = False, private: bool = False) -> None:
    """Create a file and write it. Raises FileExistsError for a name that exists; a link is not followed."""
    mode = 0o600 if private else 0o666
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        if durable:
            file.flush()
            os.fsync(file.fileno())


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


def find_paths(folder: Path, name: str) -> list[Path]:
    """Return the sorted paths of this name in and under a folder; other processes may remove folders meanwhile."""
    parents = [Path(parent) for parent, folders, files in os.walk(folder) if name in folders or name in files]
    return sorted(parent / name for parent in parents)


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


# Digests of files.

_CACHED_DIGEST_BYTES = 2**24  # digests of larger files are cached
_SAMPLES = 64
_SAMPLE_BYTES = 4096


def file_digest(file: Path) -> str:
    """Return the SHA-256 of a file.

    The digest of a large file is cached under the file's path, size, time of change, and samples of its content.
    """
    status = file.stat()
    if status.st_size < _CACHED_DIGEST_BYTES:
        return _sha256(file)
    samples = hashlib.sha256()
    with file.open("rb") as stream:
        for i in range(_SAMPLES):
            stream.seek(max(status.st_size - _SAMPLE_BYTES, 0) * i // (_SAMPLES - 1))
            samples.update(stream.read(_SAMPLE_BYTES))
    key = [str(file.resolve()), status.st_size, status.st_mtime_ns, samples.hexdigest()]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    cached = None
    with suppress(OSError):
        cached = cache_dir("digests") / name
        return cached.read_text(encoding="utf-8")
    digest = _sha256(file)
    if cached is not None:
        with suppress(OSError):  # a digest that is not cached is computed again
            write_atomically(cached, digest)
    return digest


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
