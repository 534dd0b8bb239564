"""``fcorun``, and ``python -m fcorun``."""

import gc
import io
import os
import sys

from fcorun.system.interruption import ignore_signals


def main() -> None:
    """The command; an interruption while modules are still being imported ends it in silence."""
    gc.set_threshold(50_000)  # importing makes many objects that stay
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where it cannot have all letters, as under Windows, it has a ?
    try:
        from fcorun.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        ignore_signals()
        gc.freeze()  # there is nothing to collect at the end of a process, which takes half a second else


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]  # the current folder, in which Python's -m would find modules before installed ones
    main()
