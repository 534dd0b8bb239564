"""Processes that draw pictures while the command computes.

To import matplotlib and to lay out a picture takes half a second each, which a run of two seconds should not wait for.
The processes are those of a ``ProcessPoolExecutor`` that a fork server starts, which has imported matplotlib and the
pictures. A Python program draws in its own process, since such an executor imports the program's script again.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_PROCESSES = 2
_PRELOADED = ["matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "matplotlib.figure"]
_PICTURES = ("run_curves", "coefficient_picture", "rates", "best_curves")
_PICTURES += ("roc", "calibration_picture", "decision", "selection_picture")
_PRELOADED += [f"{__package__}.{picture}" for picture in _PICTURES]  # none of these imports JAX
_PRELOADED += ["fcorun.results.score_intervals.intervals"]  # which a page has computed here, too
_executors: list[ProcessPoolExecutor] = []  # none, or the one of the command


def start_drawing_processes() -> None:
    """Have pictures drawn in processes of their own from now on, where the system has a fork server."""
    if _executors or "forkserver" not in multiprocessing.get_all_start_methods():
        return
    os.environ["PYTHONSAFEPATH"] = "1"  # for the fork server, which would import pandas' numexpr from this folder
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    executor = ProcessPoolExecutor(_PROCESSES, context, initializer=_follow_parent)
    _executors.append(executor)
    # The first call starts the fork server, and waits until the server has imported these.
    threading.Thread(target=executor.submit, args=(os.getpid,)).start()


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent process, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()


def draw_later(
    draw: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Callable[[], Result]:
    """Begin a call in another process, and return the function that waits for its result and returns it.

    Without drawing processes the call happens in this process, when the result is asked for. A call that fails in
    another process, to which its arguments may not be sent, is repeated in this one. The function returned raises what
    ``draw`` raises here.
    """
    if not _executors:
        return lambda: draw(*arguments, **options)
    drawing = _executors[0].submit(draw, *arguments, **options)

    def wait() -> Result:
        if drawing.exception() is not None:
            return draw(*arguments, **options)
        return drawing.result()

    return wait
