"""The command ``fcorun``: its help, tab completion, and what runs a command line."""

import contextlib
import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from textwrap import shorten
from typing import Any

from fcorun.base.config import SECTIONS
from fcorun.base.errors import UserError, format_warning, suggest_name
from fcorun.base.system.files import interruptible
from fcorun.base.system.machine import close_hosts, current_hosts, fcorun_version
from fcorun.experiment.configuration.search_path import (
    find_choices,
    packaged_config_dir,
    use_config_dir,
    warn_overridden,
)
from fcorun.interface.cli import commands

_HELP = Path(__file__).parent / "help.txt"


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
        if current_hosts():  # close_hosts then ends this process by os._exit, before Python would print the traceback
            traceback.print_exc()
        raise
    finally:
        close_hosts(code)


def _run_command(command_line: list[str]) -> None:
    config_dir, arguments = commands.split_config_dir(command_line)
    if arguments == ["--version"]:
        print(f"fcorun {fcorun_version()}")
        return
    if not arguments:
        examples = _HELP.read_text(encoding="utf-8").partition("\nGroups")[0]
        print(
            f"{examples}  fcorun --help                                        choices, and keys by what they are for"
        )
        return
    asks_completion = arguments[0] in ("-sc", "--shell-completion")
    is_completing = asks_completion and any("query=" in word for word in arguments)
    if is_completing:
        config_dir, words = commands.split_config_dir(os.environ.get("COMP_LINE", "").split(" "))
        if not Path(config_dir or "").is_dir():
            config_dir = None
        with use_config_dir(config_dir):
            candidates, is_complete = completions(" ".join(words))
        print(*candidates, sep="\n", end="\n" if candidates else "")
        if is_complete:
            return
    asks_help = not {"--help", "-h"}.isdisjoint(arguments)
    if arguments[0] in commands.COMMANDS:
        if arguments[0] in commands.STUDIES and len(arguments) > 1 and not asks_help:
            _start_drawing_processes(arguments)
        sys.exit(commands.main(command_line))
    try:
        if asks_completion and not re.search(r"\b(query|install|uninstall)=", " ".join(arguments)):
            raise UserError(f"{arguments[0]} needs a shell: give install=bash, install=zsh or install=fish")
        if not re.search("[=~]|^-", arguments[0]):
            suggestion = suggest_name(arguments[0], commands.COMMANDS)
            raise UserError(f"'{arguments[0]}' is neither KEY=VALUE nor a command: {suggestion}")
        with use_config_dir(config_dir), interruptible():
            if asks_help:
                from fcorun.interface.cli.terminal import Terminal

                Terminal().print(help_text(), end="")
                return
            _start_drawing_processes(arguments)
            from fcorun.experiment.configuration.compose import normalize_overrides, translate_folder
            from fcorun.interface.cli.hydra_app import compose_and_run

            arguments = normalize_overrides(translate_folder(arguments))
            if not (is_completing or current_hosts()):  # the command has said it before its hosts start
                warn_overridden()
            failures = compose_and_run(arguments)
    except UserError as error:
        failures = [error]
    if failures:
        from fcorun.interface.cli.hydra_app import report_error

        codes = []
        for error in failures:
            codes.append(int(error.code or 0) if isinstance(error, SystemExit) else report_error(error, arguments))
        sys.exit(max(codes))


# The help of the command itself: choices, and keys by what they are for. Needs no Hydra.


def _start_drawing_processes(arguments: list[str]) -> None:
    """Have pictures drawn by other processes, before JAX is imported, which takes as long as matplotlib.

    A lost host ends this process at once, which would leave drawing processes to the system.
    """
    from fcorun.reports.pictures.drawing_processes import start_drawing_processes

    if not any(argument.startswith("hosts") for argument in arguments):
        start_drawing_processes()


def help_text() -> str:
    """Return the text of ``fcorun --help``, with the choices of the user's own folder."""
    choices = [f"{group}: {', '.join(find_choices(group))}" for group in sorted((*SECTIONS, "experiment"))]
    groups_of_keys = []
    for heading, comments in read_headings().items():
        lines = []
        for key, comment in comments.items():
            lines.append(f"  {key:18} {shorten(comment.partition('; ')[0], 99, placeholder=' ...')}")
        groups_of_keys.append("\n".join([f"{heading}:", "", *lines]))
    text = _HELP.read_text(encoding="utf-8")
    return text.replace("CHOICES", "\n".join(choices)).replace("KEYS", "\n\n".join(groups_of_keys))


def read_headings() -> dict[str, dict[str, str]]:
    """Return the keys and their comments below each heading of conf/config.yaml, a comment on a line of its own."""
    headings: dict[str, dict[str, str]] = {}
    for line in Path(packaged_config_dir(), "config.yaml").read_text(encoding="utf-8").splitlines()[1:]:
        if line.startswith("# "):
            headings[line[2:]] = {}
        elif headings and (match := re.fullmatch(r"(\w+):.*? # (.*)", line)):
            headings[list(headings)[-1]][match[1]] = match[2]
    return headings


# Tab completion of the commands. Keys and choices of runs are completed by Hydra.


def completions(line: str) -> tuple[list[str], bool]:
    """Return the completions of a command line's last word, and whether they are all.

    They are not all for a word that may also be a key or choice of a run, which Hydra completes.
    """
    words = line.split()[1:]
    last_word = words.pop() if words and not line[-1].isspace() else ""
    if words and words[0] not in commands.COMMANDS:
        return [], False
    candidates = _candidates(words[0], last_word) if words else commands.COMMANDS
    if words and words[0] == "scores" and words[-1] == "--resample":
        candidates = ("rows", "groups", "clients")
    return [word for word in candidates if word.startswith(last_word)], bool(words)


def _candidates(command: str, last_word: str) -> Iterable[str]:
    """Return the words that may follow a command; without candidates, shells complete file names."""
    if last_word.startswith("-"):  # the options, read from the command's help
        help_of_command = io.StringIO()
        with contextlib.redirect_stdout(help_of_command), contextlib.suppress(SystemExit):
            commands.main([command, "--help"])
        return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_of_command.getvalue())))
    if command == "figure":
        return find_choices("experiment")
    if command not in ("list", "help"):
        return ()
    from fcorun.experiment.configuration.key_docs import GROUPS, read_root_keys

    group, equals, _ = last_word.partition("=")
    if command == "list":
        return (*GROUPS, "experiment")
    if equals:
        return [f"{group}={name}" for name in find_choices(group)]
    return (*GROUPS, "experiment", *read_root_keys())
