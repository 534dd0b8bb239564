"""Locks of files: those of the operating system, or claims where the file system refuses such locks.

A claim is a folder with one file. The folder appears whole, by the renaming of a prepared one. The file's name is the
token of the process that has the claim, and a thread of that process counts in the file. Another process takes the
claim over, by renaming the file, which one process alone can do, after it has itself seen the count unchanged for
``_STALE_SECONDS``: no clocks of machines or files are compared. A process that could not count in time, as one that was
suspended, looks for its files before it trusts its claims: see ``Lock.is_held``.

A process that has locks respects claims, and one whose machine is short of locks, which may be for a moment, respects
the files that others may have locked.
"""

import errno
import os
import secrets
import shutil
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import filelock

from fcorun.base.system.files import check_interrupted, write_new

_REFUSALS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of a file system without locks
_POLL_SECONDS = 0.01
_BEAT_SECONDS = 4.0  # between two counts
_STALE_SECONDS = 60.0
_SAFE_SHARE = 0.7  # of these, after which a process that has not counted looks whether it has its claims
_SHORTAGE_SECONDS = 10.0  # for which a machine that is short of locks is asked again


_found_refusals: dict[int, int] = {}  # the error of each device that was asked for a lock; 0 if it has locks


class LockedError(Exception):
    """A lock that another process has."""


class Lock(ABC):
    """A lock that this process has, until ``release`` or the end of the process; also a context.

    Attributes:
        is_taken_over: whether the process that had the lock before may live on, as one that is suspended.
    """

    is_taken_over: bool = False

    @property
    @abstractmethod
    def is_held(self) -> bool:
        """Return whether no other process has taken the lock over."""

    @abstractmethod
    def release(self) -> None:
        """Give the lock back, and remove its file. Does nothing if that was done."""

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def acquire(path: Path, seconds: float = 0.0) -> Lock:
    """Lock the file ``path``, which need not exist.

    The claim of a process that has not been seen to count is watched until it is stale, however few ``seconds`` are.

    Args:
        seconds: the longest wait for a process that has the lock; negative: as long as it takes.

    Raises LockedError if another process keeps the lock, OSError if its file cannot be created, and KeyboardInterrupt
    if a signal was noted while a claim was waited for.
    """
    refusal = _find_refusal(path)
    if refusal:
        return _acquire_claim(path, seconds, is_short=refusal == errno.ENOLCK)
    try:
        lock = _SystemLock(path, _lock_file(path, seconds))
    except filelock.Timeout:
        raise LockedError(str(path)) from None
    if claim_folder(path.absolute()).exists():  # that of a process without locks
        try:
            with _acquire_claim(path, seconds) as claim:
                lock.is_taken_over = claim.is_taken_over
        except BaseException:
            lock.release()
            raise
    return lock


def _find_refusal(path: Path) -> int:
    """Return the error by which the file system of ``path`` refuses locks; 0 if it has them.

    It is asked once for each file system, by a file of this process's own.
    """
    device = path.parent.stat().st_dev
    if device not in _found_refusals:
        own = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")  # by its name it is removed after a kill
        try:
            _lock_file(own, seconds=1.0).release()  # made again if it was removed
            _found_refusals[device] = 0
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            _found_refusals[device] = error.errno
        finally:
            own.unlink(missing_ok=True)
    return _found_refusals[device]


def _lock_file(path: Path, seconds: float) -> filelock.BaseFileLock:
    """Lock a file by the operating system; one that is short of locks is asked again, for a while."""
    lock = filelock.FileLock(path, fallback_to_soft=False, thread_local=False)
    end = time.monotonic() + _SHORTAGE_SECONDS
    while True:
        try:
            lock.acquire(timeout=seconds, poll_interval=_POLL_SECONDS)
            return lock
        except OSError as error:
            if error.errno != errno.ENOLCK or end <= time.monotonic():
                raise
        check_interrupted()
        time.sleep(_POLL_SECONDS)


def _acquire_claim(path: Path, seconds: float, is_short: bool = False) -> Lock:
    """Claim a file; where the machine ``is_short`` of locks, only if no process can have locked the file itself."""
    folder = claim_folder(path.absolute())
    end = time.monotonic() + seconds
    while True:
        is_taken_over = _read_owner(folder) is not None
        if not (is_short and path.exists()) and _CLAIMS.take(folder):
            if not (is_short and path.exists()):  # one that has locked it since then has seen the claim
                return _Claim(folder, is_taken_over)
            _CLAIMS.drop(folder)
        is_over = seconds >= 0 and end <= time.monotonic()
        if is_over and is_short and path.exists():
            sentence = f"{os.strerror(errno.ENOLCK)}, and a process may have locked {path.name}: if none has, delete it"
            raise OSError(errno.ENOLCK, sentence, str(path))
        if is_over and _CLAIMS.was_seen_counting(folder):
            raise LockedError(str(path))
        check_interrupted()
        time.sleep(_POLL_SECONDS)


def is_locked(path: Path) -> bool:
    """Return whether a process has, or may have, the lock of ``path``. Writes nothing."""
    claim = claim_folder(path.absolute())
    if claim.exists():
        return not _CLAIMS.is_stale(claim)
    if not path.exists():
        return False
    try:
        with filelock.FileLock(path, fallback_to_soft=False).acquire(timeout=0):
            return False
    except (filelock.Timeout, OSError):
        return True


def claim_folder(path: Path) -> Path:
    """Return the folder that is the claim of a file where the file system refuses locks."""
    return path.with_name(f"{path.name}.claim")


@dataclass
class _SystemLock(Lock):
    """A lock of the operating system, which ends with the process."""

    path: Path
    lock: filelock.BaseFileLock
    is_taken_over: bool = False

    @property
    def is_held(self) -> bool:
        return True

    def release(self) -> None:
        if self.lock.is_locked:  # else the file may be another process's by now
            self.path.unlink(missing_ok=True)
            self.lock.release()


@dataclass
class _Claim(Lock):
    """A claim by a folder."""

    folder: Path
    is_taken_over: bool

    @property
    def is_held(self) -> bool:
        return _CLAIMS.holds(self.folder)

    def release(self) -> None:
        _CLAIMS.drop(self.folder)


@dataclass
class _Seen:
    """The count of another process when its claim was read.

    Attributes:
        count: the largest count in its claims.
        since: when that was first seen, in seconds of ``time.monotonic``.
        counts: whether it has been seen to count.
    """

    count: int
    since: float
    counts: bool = False


@dataclass
class _Claims:
    """The claims of this process, and what it has seen of other processes.

    Attributes:
        token: the name of this process's file in its claims.
        pid: this process, which may be the fork of another.
        folders: the claims.
        count: the number of rounds in which the thread has counted in all claims.
        counted: when the last whole round began, in seconds of ``_seconds_of_the_machine``.
        others: the other processes by their tokens.
    """

    token: str = ""
    pid: int = 0
    folders: set[Path] = field(default_factory=set)
    count: int = 0
    counted: float = 0.0
    others: dict[str, _Seen] = field(default_factory=dict)
    guard: threading.RLock = field(default_factory=threading.RLock)

    def take(self, folder: Path) -> bool:
        """Take a claim that nobody has or that is stale; return whether this process has it now, by this call."""
        with self.guard:
            if self.pid != os.getpid():
                self.pid, self.token, self.folders = os.getpid(), secrets.token_hex(8), set()
                threading.Thread(target=self._count_on, daemon=True).start()
            if not self.folders:
                self.counted = _seconds_of_the_machine()
            owner = _read_owner(folder)
            if owner is None:
                taken = self._create(folder)
            elif owner == self.token:  # by a renaming that a server did, and answered by an error
                taken = folder not in self.folders
            else:
                taken = self.is_stale(folder) and _rename(folder / owner, folder / self.token)
            if taken:
                self.folders.add(folder)
            return taken

    def _create(self, folder: Path) -> bool:
        """Make a claim; return False if another process was faster."""
        prepared = folder.with_name(f"{folder.name}.{secrets.token_hex(8)}")
        prepared.mkdir()
        write_new(prepared / self.token, self._content())
        if _rename(prepared, folder):
            return True
        shutil.rmtree(prepared, ignore_errors=True)
        return False

    def drop(self, folder: Path) -> None:
        """Give a claim back, unless it has been lost."""
        with self.guard:
            if folder in self.folders:
                self.folders.remove(folder)
                with suppress(OSError):
                    (folder / self.token).unlink()
                    folder.rmdir()

    def holds(self, folder: Path) -> bool:
        """Return whether this process has a claim.

        If it has not counted for long, it counts, and looks a beat later whether its file is still there: another
        process may have been about to take the claim over.
        """
        if folder not in self.folders:
            return False
        if _seconds_of_the_machine() - self.counted < _SAFE_SHARE * _STALE_SECONDS:
            return True
        self.count += 1
        try:
            self._write_count(folder)
            time.sleep(_BEAT_SECONDS)
            self._write_count(folder)
        except OSError:
            return False
        return True

    def is_stale(self, folder: Path) -> bool:
        """Return whether the process that has a claim was seen not to count for long enough."""
        owner = _read_owner(folder)
        if owner is None or owner == self.token:
            return False
        try:
            counter, digits = (folder / owner).read_text(encoding="ascii").split()
            count = int(digits) if counter == owner else -1  # it has taken the claim over, and not counted yet
        except (OSError, ValueError):  # given back, or taken over, or being written
            return False
        now = time.monotonic()
        seen = self.others.setdefault(owner, _Seen(count, now))
        if count > seen.count:  # its other claims may be a round behind
            self.others[owner] = seen = _Seen(count, now, counts=True)
        return now - seen.since >= _STALE_SECONDS

    def was_seen_counting(self, folder: Path) -> bool:
        """Return whether the process that has a claim is this one, or one that has been seen to count."""
        owner = _read_owner(folder)
        return owner == self.token or (owner in self.others and self.others[owner].counts)

    def _count_on(self) -> None:
        """Count in all claims, again and again."""
        while True:
            time.sleep(_BEAT_SECONDS)
            began, is_whole = _seconds_of_the_machine(), True
            self.count += 1
            for folder in list(self.folders):
                try:
                    self._write_count(folder)
                except FileNotFoundError:  # taken over by another process, or given back
                    self.folders.discard(folder)
                except OSError:
                    is_whole = False
            if is_whole:
                self.counted = began

    def _content(self) -> bytes:
        """Return the content of this process's files, all of which are of one length."""
        return f"{self.token} {self.count:020d}".encode()

    def _write_count(self, folder: Path) -> None:
        descriptor = os.open(folder / self.token, os.O_WRONLY)  # is not created: it would be in another's claim
        try:
            os.write(descriptor, self._content())
        finally:
            os.close(descriptor)


_CLAIMS = _Claims()


def _read_owner(folder: Path) -> str | None:
    """Return the token of the process that has a claim; None if there is no such process."""
    try:
        return next(iter(os.listdir(folder)), None)
    except FileNotFoundError:
        return None


def _rename(source: Path, target: Path) -> bool:
    """Rename a file that may be gone, or a folder to a name that may be taken; return whether that was done."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _seconds_of_the_machine() -> float:
    """Return seconds that go on while the machine is suspended."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # of Linux
    return time.clock_gettime(clock)
