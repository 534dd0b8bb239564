"""The command ``fcorun``."""

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError, format_warning, suggest_name
from fcorun.base.system.files import interruptible
from fcorun.base.system.machine import close_hosts, current_hosts
from fcorun.experiment.configuration.search_path import use_config_dir, warn_overridden
from fcorun.interface.cli import commands
from fcorun.interface.cli.error_report import report_error
from fcorun.interface.cli.usage import examples, help_text


def main() -> None:
    """Run the command ``fcorun``. Exit with 2 for bad input, 1 for a failure, 130 when interrupted."""
    code: Any = 0
    warnings.formatwarning = format_warning
    try:
        _run_command(sys.argv[1:])
    except SystemExit as end:
        code = end.code or 0
        raise
    except KeyboardInterrupt:
        code = 130
        raise
    except BaseException:
        code = 1
        if current_hosts():
            # close_hosts below then ends this process by os._exit, before Python would print the traceback
            import traceback

            traceback.print_exc()
        raise
    finally:
        close_hosts(code)


def _run_command(command_line: list[str]) -> None:
    config_dir, arguments = _split_config_dir(command_line)
    if arguments == ["--version"]:
        from fcorun.base.system.machine import fcorun_version

        print(f"fcorun {fcorun_version()}")
        return
    if not arguments:
        print(
            f"{examples()}  fcorun --help                                        choices, and keys by what they are for"
        )
        return
    is_completion_option = arguments[0] in ("-sc", "--shell-completion")
    is_completing = is_completion_option and any("query=" in word for word in arguments)
    if is_completing:
        config_dir, is_complete = _print_completions(os.environ.get("COMP_LINE", ""))
        if is_complete:
            return
    if arguments[0] in commands.COMMANDS:
        config_option = ["--config-dir", config_dir] if config_dir is not None else []
        sys.exit(commands.main([arguments[0], *config_option, *arguments[1:]]))
    if not re.search("[=~]|^-", arguments[0]):
        suggestion = suggest_name(arguments[0], commands.COMMANDS)
        sys.exit(
            report_error(UserError(f"'{arguments[0]}' is neither KEY=VALUE nor a command: {suggestion}"), arguments)
        )
    try:
        with use_config_dir(config_dir), interruptible():
            if {"--help", "-h"} & set(arguments):
                try:
                    print(help_text(), end="", flush=True)
                except BrokenPipeError:  # the reader of the pipe has gone away (``| head``)
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return
            from fcorun.reports.pictures.drawing_processes import start_drawing_processes

            # Before JAX is imported, which takes as long as matplotlib. A lost host ends this process at once, which
            # would leave drawing processes to the system.
            if not any(argument.startswith("hosts") for argument in arguments):
                start_drawing_processes()
            from fcorun.experiment.configuration.compose import normalize_overrides, translate_folder
            from fcorun.interface.cli.hydra_app import compose_and_run

            arguments = normalize_overrides(translate_folder(arguments))
            if not is_completing:
                warn_overridden()
            failures = compose_and_run(arguments)
    except UserError as error:
        failures = [error]
    codes = []
    for error in failures:
        codes.append(int(error.code or 0) if isinstance(error, SystemExit) else report_error(error, arguments))
    if codes:
        sys.exit(max(codes))


def _print_completions(line: str) -> tuple[str | None, bool]:
    """Print the completions of a command line.

    Return the folder of its --config-dir, if that exists, and whether these are all completions, so that Hydra need
    not add any.
    """
    from fcorun.interface.cli.completion import completions

    config_dir, words = _split_config_dir(line.split(" "))
    if config_dir and not Path(config_dir).is_dir():
        config_dir = None
    with use_config_dir(config_dir or None):
        candidates, is_complete = completions(" ".join(words))
    print(*candidates, sep="\n", end="\n" if candidates else "")
    return config_dir, is_complete


def _split_config_dir(arguments: list[str]) -> tuple[str | None, list[str]]:
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
