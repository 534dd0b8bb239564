"""What a user did wrong, in one sentence that names the option and the fix."""

from collections.abc import Iterable
from difflib import get_close_matches

WHERE = "in client "  # begins a note on an error that says at which client and round it came up


class UserError(Exception):
    """Bad input. The command line prints the sentence alone, without a traceback, and exits with 2."""


class UnknownMetric(UserError):
    """A metric to judge by that nothing declares."""


class Elsewhere(Exception):
    """What went wrong in another process, already described."""


class HostLost(Elsewhere):
    """Of several hosts that compute together one is gone."""


def describe(error: BaseException) -> str:
    """An error in one line: its kind, unless it is the user's, its first line, and the client where that is known."""
    line = first_line(error)
    where = "".join(f", {note}" for note in getattr(error, "__notes__", []) if note.startswith(WHERE))
    return (line if isinstance(error, (UserError, Elsewhere)) else f"{type(error).__name__}: {line}") + where


def first_line(error: BaseException) -> str:
    """The first line of an error, with the next one after a colon.

    >>> first_line(TypeError("they differ:\\n\\n  * one is int32"))
    'they differ: * one is int32'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def nearest(name: object, valid: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest valid one, and all of them.

    >>> nearest("fedualavg", ["fedavg", "feddualavg"])
    "did you mean 'feddualavg'? (valid: fedavg, feddualavg)"
    """
    valid = sorted(valid)
    close = get_close_matches(str(name), valid, n=1, cutoff=0.5)
    return (f"did you mean '{close[0]}'? " if close else "") + f"(valid: {', '.join(valid) or 'none'})"
