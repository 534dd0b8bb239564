"""Who is computing a record: the holder of a lock of the operating system, which ends with its process."""

import os
import platform
from pathlib import Path
from typing import Any

import filelock

LOCK_FILE = ".lock"
_PATIENCE = 0.05  # seconds: as long as somebody may be looking


def try_lock(folder: Path) -> filelock.BaseFileLock | None:
    """The lock of a folder, for this process; None when another one has it. Raises OSError where it cannot be made."""
    lock = filelock.FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=_PATIENCE, poll_interval=_PATIENCE / 10)
    except filelock.Timeout:
        return None
    return lock


def process_info() -> dict[str, Any]:
    """What a record says of the process that computes it."""
    return {"pid": os.getpid(), "host": platform.node()}


def is_abandoned(folder: Path, status: dict[str, Any]) -> bool:
    """Whether nobody is computing a record whose status is "running": its process was killed.

    Of another machine's process that cannot be known, for a folder over a network need not share its locks.
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
