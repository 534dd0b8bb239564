"""What the tab key completes of the commands beside the running of experiments; keys and choices are Hydra's."""

import contextlib
import io
import re
from collections.abc import Iterator

from fcorun.cli import commands
from fcorun.cli.key_docs import GROUPS, read_root_keys
from fcorun.configuration.search_path import find_choices


def completions(line: str) -> tuple[list[str], bool]:
    """What the last word of a command line may become, and whether that is all: where it may be a key or a choice of a
    run as well, Hydra knows more."""
    words = line.split()[1:]
    last = words.pop() if words and not line[-1].isspace() else ""
    if words and words[0] not in commands.COMMANDS:
        return [], False
    known = _following(words[0], last) if words else commands.COMMANDS
    return [word for word in known if word.startswith(last)], bool(words)


def _following(command: str, last: str) -> Iterator[str]:
    """What may follow a command; where nothing is known, shells complete names of files."""
    if last.startswith("-"):
        yield from _options(command)
    elif command == "figure":
        yield from find_choices("experiment")
    elif command == "list":
        yield from (*GROUPS, "experiment")
    elif command == "help":
        group, equals, _ = last.partition("=")
        yield from (
            (f"{group}={name}" for name in find_choices(group))
            if equals
            else (*GROUPS, "experiment", *read_root_keys())
        )


def _options(command: str) -> list[str]:
    """The options of a command, as its help tells them."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        commands.main([command, "--help"])
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", told.getvalue())))
