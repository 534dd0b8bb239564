"""The entry point of ``fcorun`` and of ``python -m fcorun``."""

import gc
import io
import os
import sys


def main() -> None:
    """Run the command. An interruption while modules are still being imported ends it silently."""
    gc.set_threshold(500_000)  # imports and traced programs are many objects that stay
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # prints "?" for letters that the encoding lacks, as under Windows
    try:
        from fcorun.interface.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        from fcorun.base.system.files import ignore_signals

        ignore_signals()
        gc.freeze()  # skips the last collection, which takes half a second and frees nothing


if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]  # the current folder, in which ``python -m`` would look for modules before installed ones
    main()
