"""The commands other than runs and sweeps: they choose strengths, make figures, explain keys, and read records."""

import sys
from collections.abc import Sequence
from importlib import import_module

from fcorun.base.errors import UserError, describe_error, escape_controls
from fcorun.base.system.files import interruptible, interruptible_at_once

# each command is a module of this package, NAME_command, with a function ``run``
COMMANDS = (
    *("select", "stability", "compare", "figure", "help", "list", "new", "check"),
    *("results", "report", "plot", "weights", "infer", "scores", "predict", "cite", "rm"),
    *("plan", "site"),
)


def main(argv: Sequence[str]) -> int:
    """Run the command ``argv[0]``; return its exit code: 0, 1 for a failure, 2 for bad input, 130 if interrupted."""
    try:
        with interruptible(), interruptible_at_once():
            return import_module(f"{__name__}.{argv[0]}_command").run(argv[1:])
    except UserError as error:
        print(escape_controls(f"fcorun: {error}"), file=sys.stderr)
        return 2
    except OSError as error:
        print(escape_controls(f"fcorun: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        print(escape_controls(f"fcorun: {describe_error(error)}"), file=sys.stderr)
        return 1
