"""A file system that refuses locks, on which claims become stale soon."""

import errno
import fcntl
import os

from fcorun.base.system import locks

BEAT_SECONDS, STALE_SECONDS = 0.1, 1.5


def refuse_locks(patch, error: int = errno.ENOSYS, stale_seconds: float = STALE_SECONDS) -> None:
    """Have calls for locks fail as on Lustre without ``-o flock``, by ``patch(owner, name, value)``."""

    def refuse(*_):
        raise OSError(error, os.strerror(error))

    patch(fcntl, "flock", refuse)
    patch(locks, "_BEAT_SECONDS", BEAT_SECONDS)
    patch(locks, "_STALE_SECONDS", stale_seconds)
    patch(locks, "_SHORTAGE_SECONDS", 0.2)
    patch(locks, "_found_refusals", {})
