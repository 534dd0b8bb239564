"""The cores that groups of runs share while they are computed side by side."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field

from fcorun.base.system.files import check_interrupted, defer_interruption, wait_for_first
from fcorun.base.system.machine import available_cores, compute_policy, current_hosts

_CALLS_AT_ONCE = 4  # at most: the data of each group are in memory
_group: ContextVar[int] = ContextVar("_group", default=0)  # of this thread, a number


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
    _held: Counter[int] = field(default_factory=Counter, init=False)  # by group
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
            self._held[_group.get()] += n_cores
            self._changed.notify_all()  # the next in the queue may find a free core, too
        try:
            check_interrupted()
            yield
        finally:
            with self._changed:
                self._free += n_cores
                self._held[_group.get()] -= n_cores
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

        def run_group(number: int) -> None:
            _group.set(number)
            calls[number]()

        with defer_interruption(), ThreadPoolExecutor(at_once) as pool:
            running = {pool.submit(copy_context().run, run_group, number) for number in range(len(calls))}
            try:
                while running and not ends_early():
                    ended, running = wait_for_first(running)
                    self._groups_left = len(running)
                    for call in ended:
                        call.result()
            finally:
                pool.shutdown(cancel_futures=True)

    @property
    def _groups_at_once(self) -> int:
        """The number of groups that compute or set up; the others wait for these."""
        return min(self._groups_left, _CALLS_AT_ONCE)

    @property
    def share(self) -> int:
        """Return the number of cores for each group that computes or sets up, at least 1."""
        return -(-self.count // max(1, self._groups_at_once))

    def has_idle(self) -> bool:
        """Return whether a core is free for this thread's group.

        Its group then holds less than its share, nothing waits for a core, and no other group sets up.
        """
        with self._changed:
            is_free = self._free > 0 and not self._queue
            n_computing = sum(held > 0 for held in self._held.values())
            return is_free and n_computing >= self._groups_at_once and self._held[_group.get()] < self.share
