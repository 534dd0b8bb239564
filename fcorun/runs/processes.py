"""Helper processes that end when the one that started them does, however it ends."""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import forkserver, resource_tracker
from queue import SimpleQueue
from typing import Any

MANY = 8  # so many runs are worth the start of helpers
RECORDS = (  # what helpers import to complete records and to report on them
    *(
        "fcorun.runs.complete",
        "fcorun.reports.results",
        "pandas",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
    ),
    *("PIL.ImageDraw", "PIL.ImageFont"),
)
_FORKING = "forkserver" in multiprocessing.get_all_start_methods()


def import_ahead(imports: Sequence[str]) -> None:
    """Have the process that helpers are forked from import what they need, while this one does something else."""
    if _FORKING:
        multiprocessing.set_forkserver_preload(list(imports))
        resource_tracker.ensure_running()  # which would lift the mask
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is for this process
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


class Helpers:
    """Some processes that call functions of picklable arguments. A context manager, which waits for all calls.

    Unlike those of concurrent.futures, a helper whose parent was killed reads the end of its pipe and leaves.
    """

    def __init__(self, count: int, imports: Sequence[str]):
        context: Any = multiprocessing.get_context("forkserver" if _FORKING else "spawn")
        import_ahead(imports)
        self.idle: SimpleQueue = SimpleQueue()
        self.threads = ThreadPoolExecutor(count)
        # In a thread, since the first to be started waits until the imports are done.
        self.starting = threading.Thread(target=self._start, args=(context, count))
        self.starting.start()

    def _start(self, context: Any, count: int) -> None:
        for _ in range(count):
            here, there = context.Pipe()
            context.Process(target=_serve, args=(there,), daemon=True).start()
            there.close()
            self.idle.put(here)

    def submit(self, function: Callable, *arguments: Any) -> Future:
        """The call, as a future."""
        return self.threads.submit(self._call, function, arguments)

    def _call(self, function: Callable, arguments: tuple) -> Any:
        pipe = self.idle.get()
        try:
            if pipe is None:
                return function(*arguments)
            pipe.send((function, arguments))
            result, error = pipe.recv()
        except (EOFError, OSError):  # the helper is gone: this process does its work from now on
            if pipe is None:
                raise
            pipe = None
            return function(*arguments)
        finally:
            self.idle.put(pipe)
        if error is not None:
            raise error
        return result

    def __enter__(self) -> "Helpers":
        return self

    def __exit__(self, *error: Any) -> None:
        self.starting.join()
        self.threads.shutdown(wait=True)
        while not self.idle.empty():
            if (pipe := self.idle.get()) is not None:
                pipe.close()


def _serve(pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which finishes what it has begun
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((function(*arguments), None))
        except Exception as error:
            pipe.send((None, error))
