"""A second process that calls functions while this one computes.

Importing matplotlib and drawing hold Python's lock: in a thread they would stop everything else for as long.
"""

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from fcorun.errors import format_warning

_PROGRAM = "from fcorun.system.helper_process import serve_calls; serve_calls()"


class HelperProcess:
    """A process that calls functions, which return values and do nothing else. A context manager.

    The process imports ``modules`` first. Signals of the terminal do not reach it, and it ends with this process.
    What it fails to call, this process calls. So it does if it has imported the first of the modules already.
    """

    def __init__(self, *modules: str):
        self.modules = modules
        self.process: subprocess.Popen | None = None
        self.thread = ThreadPoolExecutor(1)  # sends calls, and waits for their values

    def __enter__(self) -> "HelperProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.thread.shutdown()
        if self.process is not None:
            self.process.kill()  # it holds nothing that would be lost
            self.process.communicate()

    def start(self) -> None:
        """Start the process, if calls then take less time."""
        if self.process is None and self.modules[0] not in sys.modules:
            with suppress(OSError):
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, *self.modules],  # -P: without the current folder on the path
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )

    def submit(self, function: Callable, *arguments: Any, **options: Any) -> Future:
        """Begin to call a function of fcorun, and return its future value."""
        return self.thread.submit(self._call, partial(function, *arguments, **options))

    def _call(self, call: Callable[[], Any]) -> Any:
        if self.process is not None:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            with suppress(Exception):  # the process has ended, or is sent what has no pickle
                self.process.stdin.write(pickle.dumps(call))
                self.process.stdin.flush()
                has_value, value = pickle.load(self.process.stdout)
                if has_value:
                    return value
        return call()


def serve_calls() -> None:
    """Call the functions that arrive at standard input, and write their values to standard output, until its end."""
    warnings.formatwarning = format_warning
    calls, values = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # standard output is for values alone
    with suppress(ImportError):
        for module in sys.argv[1:]:
            import_module(module)
    with suppress(EOFError, OSError):
        while True:
            call = pickle.load(calls)
            try:
                answer = pickle.dumps((True, call()))
            except (
                Exception
            ):  # this function fails again, and with a traceback, in the process that waits for its value
                answer = pickle.dumps((False, None))
            values.write(answer)
            values.flush()
    os._exit(0)
