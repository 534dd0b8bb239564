"""The command ``fcorun``."""

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import yaml

from fcorun.cli import commands
from fcorun.cli.error_report import report_error
from fcorun.cli.hydra_app import compose_and_run
from fcorun.cli.terminal import format_warning
from fcorun.configuration.overrides import normalize_overrides
from fcorun.configuration.search_path import packaged_config_dir, use_config_dir, warn_overridden
from fcorun.errors import UserError, suggest_name
from fcorun.system.hosts import current_hosts, shutdown
from fcorun.system.interruption import interruptible


def main() -> None:
    """The command ``fcorun``. Exits with 2 for bad input, 1 for a failure, 130 when interrupted."""
    code: Any = 0
    warnings.formatwarning = format_warning
    try:
        _command()
    except SystemExit as end:
        code = end.code or 0
        raise
    except KeyboardInterrupt:
        code = 130
        raise
    except BaseException:
        code = 1
        if current_hosts():  # leaving them ends this process
            import traceback

            traceback.print_exc()
        raise
    finally:
        shutdown(code)


def _command() -> None:
    folder, arguments = _own_folder(sys.argv[1:])
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"fcorun {version('fcorun')}")
        return
    if not arguments:
        print(_short_help())
        return
    if completing := arguments[0] in ("-sc", "--shell-completion") and any("query=" in word for word in arguments):
        folder, whole = _completed(os.environ.get("COMP_LINE", ""))
        if whole:
            return
    if arguments[0] in commands.COMMANDS:
        sys.exit(commands.main([arguments[0], *(["--config-dir", folder] if folder else []), *arguments[1:]]))
    if not re.search("[=~]|^-", arguments[0]):
        known = suggest_name(arguments[0], commands.COMMANDS)
        sys.exit(report_error(UserError(f"'{arguments[0]}' is neither KEY=VALUE nor a command: {known}")))
    try:
        with use_config_dir(folder), interruptible():
            sys.argv[1:] = normalize_overrides(arguments)
            if not completing:
                warn_overridden()
            failures = compose_and_run()
    except UserError as error:
        failures = [error]
    if failures:
        sys.exit(max([int(e.code or 0) if isinstance(e, SystemExit) else report_error(e) for e in failures]))


def _completed(line: str) -> tuple[str | None, bool]:
    """Print what the tab key may complete of a command line that is one of a command's; the folder that --config-dir
    names on it, if there is one, and whether that is all."""
    from fcorun.cli.completion import completions

    folder, words = _own_folder(line.split(" "))
    folder = folder if folder and Path(folder).is_dir() else None
    with use_config_dir(folder):
        found, whole = completions(" ".join(words))
    print(*found, sep="\n", end="\n" if found else "")
    return folder, whole


def _own_folder(arguments: list[str]) -> tuple[str | None, list[str]]:
    """What --config-dir names, and the other arguments."""
    folder, others, given = None, [], iter(arguments)
    for argument in given:
        name, equals, value = argument.partition("=")
        if name in ("--config-dir", "-cd"):
            folder = value if equals else next(given, "")
        else:
            others.append(argument)
    return folder, others


def _short_help() -> str:
    """The examples of ``fcorun --help``, without the choices and keys."""
    help = yaml.safe_load(Path(packaged_config_dir(), "hydra", "help", "fcorun.yaml").read_text(encoding="utf-8"))
    return f"{help['header']}  fcorun --help                                        choices, and the most used keys"
