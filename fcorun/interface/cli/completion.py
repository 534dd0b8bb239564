"""Tab completion of the commands; keys and choices of runs are completed by Hydra."""

import contextlib
import io
import re
from collections.abc import Iterable

from fcorun.experiment.configuration.key_docs import GROUPS, read_root_keys
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.interface.cli import commands

# the fields of InferenceOptions, whose import takes too long for a press of the tab key, and out=
INFER_KEYS = (
    *("method=auto", "method=debiased", "method=wald", "method=split", "level=0.95"),
    *("cluster=auto", "cluster=none", "cluster=client", "cluster=group", "errors=robust", "errors=model"),
    *("seed=", "imputations=", "out="),
)


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
        help_text = io.StringIO()
        with contextlib.redirect_stdout(help_text), contextlib.suppress(SystemExit):
            commands.main([command, "--help"])
        return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_text.getvalue())))
    if command == "figure":
        return find_choices("experiment")
    if command == "infer":  # without a letter, folders are completed
        return INFER_KEYS if last_word else ()
    if command == "list":
        return (*GROUPS, "experiment")
    if command == "help":
        group, equals, _ = last_word.partition("=")
        if equals:
            return [f"{group}={name}" for name in find_choices(group)]
        return (*GROUPS, "experiment", *read_root_keys())
    return ()
