"""What the command says when something goes wrong, and its exit code."""

import sys

from fcorun.composing.sentences import is_bad_input, sentence
from fcorun.errors import HostLost, NotWritten, describe, printable


def report(error: BaseException) -> int:
    """Say what went wrong; the exit code."""
    if "debug=true" in sys.argv or "debug=True" in sys.argv:
        import traceback

        traceback.print_exception(error)
        more = ""
    else:
        more = " (debug=true shows the traceback)"
    if isinstance(error, KeyboardInterrupt):
        print("interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
    elif isinstance(error, HostLost):
        print(printable(f"fcorun: failed: {error}"), file=sys.stderr)
    elif is_bad_input(error):
        print(printable(f"fcorun: {sentence(error)}"), file=sys.stderr)
    elif isinstance(error, NotWritten):
        print(printable(f"fcorun: {error}"), file=sys.stderr)
    else:
        print(printable(f"fcorun: {describe(error)}{more}"), file=sys.stderr)
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if is_bad_input(error) else 1
