"""What the command says when something goes wrong, and its exit code."""

import sys
from pathlib import Path

from fcorun.composing.sentences import is_bad_input, sentence
from fcorun.errors import HostLost, describe


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
        print(f"fcorun: failed: {error}", file=sys.stderr)
    elif is_bad_input(error):
        print(f"fcorun: {sentence(error)}", file=sys.stderr)
    else:
        print(f"fcorun: {describe(error)}{_place(error)}{more}", file=sys.stderr)
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if is_bad_input(error) else 1


def _place(error: BaseException) -> str:
    """Where in a user's own file an error came up, if it did."""
    from traceback import extract_tb

    ours, theirs = str(Path(__file__).parent.parent), ("site-packages", "<", "lib/python")
    frames = [f for f in extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    own = [f for f in frames if not any(part in f.filename for part in theirs)]
    return f", {Path(own[-1].filename).name} line {own[-1].lineno}" if own else ""
