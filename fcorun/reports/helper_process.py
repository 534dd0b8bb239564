"""A second process that calls functions while this one computes, and imports in a background thread.

Importing matplotlib and drawing hold Python's lock: in a thread they would stop everything else for as long.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from fcorun.base.errors import format_warning

PLOTTING_MODULES = (
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.legend",
    "matplotlib.ticker",
)
TABLE_MODULES = ("pandas",)
_FIRST_PICTURE = "fcorun.reports.pictures.layout:draw_nothing"
# of the process that draws the pictures of a run, and of a sweep
RUN_DRAWING_MODULES = (
    *PLOTTING_MODULES,
    "fcorun.reports.pictures.run_curves",
    "fcorun.reports.pictures.coefficient_picture",
    _FIRST_PICTURE,
)
SWEEP_DRAWING_MODULES = (
    *PLOTTING_MODULES,
    *TABLE_MODULES,
    "fcorun.reports.pictures.sweep_pictures",
    _FIRST_PICTURE,
    "pandas.core.methods.to_dict",
)
T = TypeVar("T")
_PROGRAM = "from fcorun.reports.helper_process import serve_calls; serve_calls()"


def import_targets(*targets: str) -> None:
    """Import modules; MODULE:FUNCTION also calls a function, whose result the function keeps in a cache.

    Ends at the first module that is not installed: the code that needs the module reports it.
    """
    with suppress(ImportError):
        for target in targets:
            name, _, function = target.partition(":")
            module = import_module(name)
            if function:
                getattr(module, function)()


def import_in_background(*targets: str) -> None:
    """Call ``import_targets`` in a thread, so that a later import of the modules returns at once."""
    threading.Thread(target=import_targets, args=targets, daemon=True).start()


class HelperProcess:
    """A process that calls functions, which return values and do nothing else. A context manager.

    The process imports modules when it starts, and forks for each call, so that calls run at once and share the
    imports. Signals of the terminal do not reach the forks, which end with this process. This process makes a call
    itself if a fork fails, or if no helper was started.
    """

    def __init__(self):
        self.process: subprocess.Popen | None = None
        self.threads = ThreadPoolExecutor()  # each sends a call, and waits for its value

    def __enter__(self) -> "HelperProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.threads.shutdown()
        if self.process is not None:
            self.process.kill()  # it holds nothing that would be lost
            self.process.wait()
            self.connection.close()

    def start(self, *targets: str) -> bool:
        """Start the process, which imports ``targets``, and return whether it has been started.

        MODULE:FUNCTION has the process call a function, too, whose cache the forks share.
        The process is not started if this one has imported the first module, nor on Windows, which cannot fork.
        """
        if self.process is None and targets[0] not in sys.modules and hasattr(socket, "send_fds"):
            connection, other_end = socket.socketpair()
            try:
                with other_end:
                    self.process = subprocess.Popen(
                        [sys.executable, "-P", "-c", _PROGRAM, *targets],  # -P: not the current folder on the path
                        stdin=other_end.fileno(),
                        stdout=2,  # a function prints to standard error
                        start_new_session=True,
                    )
                self.connection = connection
            except OSError:
                connection.close()
        return self.process is not None

    def submit(self, function: Callable, *arguments: Any, **options: Any) -> Future:
        """Begin to call a function of fcorun, and return its future value."""
        return self.threads.submit(self._call, partial(function, *arguments, **options))

    def _call(self, call: Callable[[], Any]) -> Any:
        if self.process is not None:
            with suppress(Exception):  # the process has ended, or is sent what has no pickle
                here, there = socket.socketpair()
                with here, here.makefile("rwb") as stream:
                    with there:
                        socket.send_fds(self.connection, [b"call"], [there.fileno()])
                    pickle.dump(call, stream)
                    stream.flush()
                    has_value, value = pickle.load(stream)
                    if has_value:
                        return value
        return call()


def begin_call(
    helper: HelperProcess | None, function: Callable[..., T], *arguments: Any, **options: Any
) -> Callable[[], T]:
    """Begin to call a function in the helper process; return a function that waits for the value.

    Without a helper process, the returned function makes the call.
    """
    if helper is None:
        return partial(function, *arguments, **options)
    return helper.submit(function, *arguments, **options).result


def serve_calls() -> None:
    """Import modules, then fork for each connection that arrives at standard input, until its end."""
    warnings.formatwarning = format_warning
    import_targets(*sys.argv[1:])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks leave no exit status
    with suppress(OSError), socket.socket(fileno=0) as arrivals:
        while True:
            message, descriptors, _, _ = socket.recv_fds(arrivals, 16, 1)
            if not message:
                break
            with socket.socket(fileno=descriptors[0]) as connection:
                if os.fork() == 0:
                    arrivals.close()
                    _answer(connection)
    os._exit(0)


def _answer(connection: socket.socket) -> None:
    """Call the function that arrives at a connection, send its value back, and end this process."""
    with suppress(BaseException), connection.makefile("rwb") as stream:
        call = pickle.load(stream)
        try:
            answer = pickle.dumps((True, call()))
        except Exception:  # this function fails again, and with a traceback, in the process that waits for its value
            answer = pickle.dumps((False, None))
        stream.write(answer)
    os._exit(0)
