"""What the command says when something goes wrong, and its exit code."""

import sys

from fcorun.configuration.hydra_errors import describe_hydra_error, is_user_error
from fcorun.errors import HostLost, WriteError, describe_error, escape_controls


def report_error(error: BaseException) -> int:
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
        print(escape_controls(f"fcorun: failed: {error}"), file=sys.stderr)
    elif is_user_error(error):
        print(escape_controls(f"fcorun: {describe_hydra_error(error)}"), file=sys.stderr)
    elif isinstance(error, WriteError):
        print(escape_controls(f"fcorun: {error}"), file=sys.stderr)
    else:
        print(escape_controls(f"fcorun: {describe_error(error)}{more}"), file=sys.stderr)
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if is_user_error(error) else 1
