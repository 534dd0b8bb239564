"""A file system that refuses locks, on which claims become stale soon."""

import errno
import fcntl
import os

from fcorun.base.system import locks

BEAT_SECONDS, STALE_SECONDS = 0.1, 1.5


def refuse_locks(patch) -> None:
    """Have calls for locks fail as on Lustre without ``-o flock``, by ``patch(owner, name, value)``."""

    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    patch(fcntl, "flock", refuse)
    patch(locks, "_BEAT_SECONDS", BEAT_SECONDS)
    patch(locks, "_STALE_SECONDS", STALE_SECONDS)
    patch(locks, "_devices_with_locks", set())
