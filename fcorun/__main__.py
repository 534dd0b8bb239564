"""The entry point of ``fcorun`` and of ``python -m fcorun``."""

import atexit
import gc
import io
import os
import sys
import threading


def main() -> None:
    """Run the command. An interruption while modules are still being imported ends it silently."""
    gc.set_threshold(500_000)  # imports and traced programs are many objects that stay
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # prints "?" for letters that the encoding lacks, as under Windows
    try:
        from fcorun.interface.cli.main import main as command

        command()
        end_process()
    except SystemExit as end:
        if end.code in (None, 0):
            end_process()
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        from fcorun.base.system.files import ignore_signals

        ignore_signals()
        gc.freeze()  # skips the last collection, which takes half a second and frees nothing


def end_process() -> None:
    """End this process, which has succeeded, without the time that Python takes to remove all modules from memory.

    Returns where a thread, a debugger or a profiler goes on, or where the output cannot be written.
    """
    main_thread = threading.main_thread()
    if any(thread is not main_thread and not thread.daemon for thread in threading.enumerate()):
        return
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    is_monitored = monitoring is not None and any(monitoring.get_tool(number) for number in range(6))
    if is_monitored or sys.gettrace() or sys.getprofile() or sys.flags.inspect:
        return
    from fcorun.base.system.files import ignore_signals

    ignore_signals()
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(0)


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]  # the current folder, in which ``python -m`` would look for modules before installed ones
    main()
