"""Error messages and exit codes of runs and sweeps."""

import sys
from collections.abc import Sequence

from fcorun.base.errors import HostLost, WriteError, describe_error, escape_controls


def report_error(error: BaseException, arguments: Sequence[str]) -> int:
    """Print an error as one line; return the exit code. With debug=true in ``arguments``, print its traceback too."""
    from fcorun.experiment.configuration.hydra_errors import describe_hydra_error, is_user_error

    debug = any(text.lstrip("+").lower() == "debug=true" for text in arguments)
    if debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        print("interrupted; the same command resumes from the last checkpoint", file=sys.stderr)
        return 130
    if isinstance(error, HostLost):
        message = f"failed: {error}"
    elif is_user_error(error):
        message = describe_hydra_error(error)
    elif isinstance(error, WriteError):
        message = str(error)
    else:
        message = describe_error(error) + ("" if debug else " (debug=true shows the traceback)")
    print(escape_controls(f"fcorun: {message}"), file=sys.stderr)
    return 2 if is_user_error(error) else 1
