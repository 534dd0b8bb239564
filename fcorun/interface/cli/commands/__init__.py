"""The commands other than runs and sweeps: they choose strengths, make figures, explain keys, and read records."""

import sys
from collections.abc import Sequence
from importlib import import_module

from fcorun.base.errors import UserError, describe_error, escape_controls
from fcorun.base.system.files import interruptible, interruptible_at_once
from fcorun.experiment.configuration.search_path import use_config_dir

# each command is a module of this package, NAME_command, with a function ``run``
COMMANDS = (
    *("select", "stability", "permute", "compare", "figure", "help", "list", "new", "check"),
    *("results", "watch", "report", "publish", "archive", "plot"),
    *("weights", "infer", "scores", "predict", "cite", "rm"),
    *("plan", "site"),
)

STUDIES = ("select", "stability", "permute", "compare", "figure")  # draw many pictures


def main(argv: Sequence[str]) -> int:
    """Run the command that ``argv`` names; return its exit code.

    The code is 0, 1 for a failure, 2 for bad input, 130 if interrupted.
    """
    config_dir, (name, *arguments) = split_config_dir(argv)
    if name == "new" and config_dir is not None:  # makes the folder
        arguments += ["--config-dir", config_dir]
        config_dir = None
    try:
        with interruptible(), interruptible_at_once(), use_config_dir(config_dir):
            return import_module(f"{__name__}.{name}_command").run(arguments)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        sentence = str(error) if isinstance(error, (UserError, OSError)) else describe_error(error)
        if isinstance(error, FileNotFoundError) and error.filename:
            sentence = f"{error.filename} is not there: give a folder that has it, or run it again with force=true"
        print(escape_controls(f"fcorun: {sentence}"), file=sys.stderr)
        return 2 if isinstance(error, (UserError, FileNotFoundError)) else 1


def split_config_dir(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the folder that --config-dir names, and the other arguments."""
    config_dir = None
    others = []
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            config_dir = value if equals else next(remaining, "")
        else:
            others.append(argument)
    return config_dir, others
