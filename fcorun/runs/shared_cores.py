"""The cores that groups of runs share while they are computed side by side."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field

from fcorun.base.system.files import check_interrupted, defer_interruption, wait_for_first
from fcorun.base.system.machine import available_cores, compute_policy, current_hosts

_CALLS_AT_ONCE = 4  # at most: the data of each group are in memory


@dataclass
class SharedCores:
    """The cores of this machine, for each of which one batch of runs computes at a time.

    Numbers do not depend on what else computes: BLAS, whose threads are those of the process and decide how it divides
    a sum, has one thread, whatever other groups there are.

    Attributes:
        count: the number of cores.
        set_up: held by a group that loads its data, resolves its numbers and builds its engine, or uses a tracker.
    """

    count: int = field(default_factory=available_cores)
    set_up: threading.Lock = field(default_factory=threading.Lock)
    _groups_left: int = field(default=0, init=False)
    _free: int = field(init=False)
    _queue: deque[object] = field(default_factory=deque, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)

    def __post_init__(self):
        self._free = self.count

    @contextmanager
    def take(self, n_cores: int) -> Iterator[None]:
        """Hold ``n_cores`` cores, or all if these are fewer, within the context; wait for them in the order of calls.

        Raises KeyboardInterrupt if a signal was noted meanwhile.
        """
        n_cores = min(n_cores, self.count)
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            self._changed.wait_for(lambda: self._queue[0] is ticket and self._free >= n_cores)
            self._queue.popleft()
            self._free -= n_cores
            self._changed.notify_all()  # the next in the queue may find a free core, too
        try:
            check_interrupted()
            yield
        finally:
            with self._changed:
                self._free += n_cores
                self._changed.notify_all()

    def run_side_by_side(
        self, calls: Sequence[Callable[[], None]], ends_early: Callable[[], bool], *, one_by_one: bool
    ) -> None:
        """Make calls that take cores, in threads: as many at once as there are cores, up to ``_CALLS_AT_ONCE``.

        With ``one_by_one``, on GPUs, and on several hosts each call waits for the one before, in this thread.

        Args:
            ends_early: asked after each call whether calls that have not begun are left out.

        Raises the first error of a call, after the calls that have begun have ended.
        """
        at_once = min(self.count, _CALLS_AT_ONCE, len(calls))
        if one_by_one or at_once == 1 or current_hosts() is not None or not compute_policy().threaded_batches:
            for call in calls:
                call()
                if ends_early():
                    return
            return
        self._groups_left = len(calls)
        with defer_interruption(), ThreadPoolExecutor(at_once) as pool:
            running = {pool.submit(copy_context().run, call) for call in calls}
            try:
                while running and not ends_early():
                    ended, running = wait_for_first(running)
                    self._groups_left = len(running)
                    for call in ended:
                        call.result()
            finally:
                pool.shutdown(cancel_futures=True)

    @property
    def share(self) -> int:
        """Return the number of cores for each group of those that are left, at least 1."""
        return -(-self.count // max(1, min(self._groups_left, _CALLS_AT_ONCE)))

    def has_idle(self) -> bool:
        """Return whether a core is free for which nothing waits, nor a group that computes nothing yet."""
        busy = self.count - self._free
        return self._free > 0 and not self._queue and self._groups_left <= busy
