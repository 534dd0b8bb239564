"""The lock of a record's folder: an operating-system lock that ends with the process that computes the record."""

import os
import platform
from pathlib import Path
from typing import Any

import filelock

LOCK_FILE = ".lock"
IN_USE = "is being computed by another process: stop that process, or wait for it to end"  # said of a folder
_TIMEOUT = 0.05  # seconds to wait for a process that only looks whether the folder is locked


def try_lock(folder: Path) -> filelock.BaseFileLock | None:
    """Lock a folder for this process; None if another process has the lock. Raises OSError if it cannot be created."""
    lock = filelock.FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=_TIMEOUT, poll_interval=_TIMEOUT / 10)
    except filelock.Timeout:
        return None
    return lock


def process_info() -> dict[str, Any]:
    """Return the entries of status.json on the process that computes the record."""
    return {"pid": os.getpid(), "host": platform.node()}


def is_abandoned(folder: Path, status: dict[str, Any]) -> bool:
    """Return whether no process computes a record whose status is "running", because its process was killed.

    Returns False for a process of another machine, because a folder over a network need not share its locks.
    """
    if status.get("host", platform.node()) != platform.node():
        return False
    if not (folder / LOCK_FILE).exists():
        return True
    try:
        with filelock.FileLock(folder / LOCK_FILE).acquire(timeout=0):
            return True
    except (filelock.Timeout, OSError):
        return False
