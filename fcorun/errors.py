"""What a user did wrong, in one sentence that names the option and the fix."""

import errno
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb

_MAY_HELP = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room on that disk, and give the same command again"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "give a folder that can be written to"),
}
CLIENT_NOTE_PREFIX = "in client "  # begins a note on an error that says at which client and round it came up
_OURS = str(Path(__file__).parent)
_THEIRS = ("site-packages", "<", "lib/python", "\\Lib\\")  # parts of the names of files that are nobody's own
_A_VALUE = "a number that is traced (a rate, a strength, a value of the model or the data) is asked for its value"
_TRACED = {
    "TracerBoolConversionError": f"{_A_VALUE} by `if`, `and`, `or` or `while`; use jnp.where",
    "ConcretizationTypeError": f"{_A_VALUE}, by float() or int() for example; use jax.numpy",
    "TracerIntegerConversionError": f"{_A_VALUE}, as a whole number; use jax.numpy",
    "TracerArrayConversionError": f"{_A_VALUE} by NumPy; use jax.numpy",
}


# characters that steer a terminal, or turn the order of what it shows, and their escapes
_STEERING = [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {code: chr(code).encode("unicode_escape").decode() for code in _STEERING}


class UserError(Exception):
    """Bad input. The command line prints the sentence alone, without a traceback, and exits with 2."""


class UnknownMetric(UserError):
    """A metric to judge by that nothing declares."""


class RemoteError(Exception):
    """What went wrong in another process, already described."""


class HostLost(RemoteError):
    """Of several hosts that compute together one is gone."""


class WriteError(OSError):
    """A file that could not be written, of which ``filename`` is the name: a sentence, with what may help."""

    def __str__(self) -> str:
        help = f"; {_MAY_HELP[self.errno]}" if self.errno in _MAY_HELP else ""
        return f"{self.filename} cannot be written ({self.strerror}){help}"


def describe_error(error: BaseException) -> str:
    """An error in one line: its kind, unless it is the user's, its first line, the client where that is known, and the
    line of a user's own file where it came up, if it did."""
    line = first_line(error)
    if not isinstance(error, (UserError, RemoteError, WriteError)):
        line = _TRACED.get(type(error).__name__, f"{type(error).__name__}: {line}")
        line += f", {where}" if (where := find_user_line(error)) else ""
    return line + "".join(
        f", {note}" for note in getattr(error, "__notes__", []) if note.startswith(CLIENT_NOTE_PREFIX)
    )


def find_error_line(error: BaseException, outside: str = " ") -> str:
    """The last line of an error that is in no library, nor in a file of the folder ``but``: "FILE line N", or ""."""
    frames = extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(outside) and not _of_library(f.filename)]
    return f"{Path(own[-1].filename).name} line {own[-1].lineno}" if own else ""


def escape_controls(text: str) -> str:
    r"""Return a text with the characters that steer a terminal, but for tabs and ends of lines, as escapes.

    >>> printable("\x1b[2J and so on")
    '\\x1b[2J and so on'
    """
    return text.translate(_ESCAPES)


def find_user_line(error: BaseException) -> str:
    """The last line of an error that is in a user's own file: "FILE line N", or ""."""
    return find_error_line(error, outside=_OURS)


def is_user_file(name: str) -> bool:
    """Whether a file of this name is a user's own: neither fcorun's nor a library's."""
    return not (name.startswith(_OURS) or _of_library(name))


def _of_library(name: str) -> bool:
    return any(part in name for part in _THEIRS)


def first_line(error: BaseException) -> str:
    """The first line of an error, with the next one after a colon.

    >>> first_line(TypeError("they differ:\\n\\n  * one is int32"))
    'they differ: * one is int32'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def suggest_name(name: object, valid: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest valid one, and all of them.

    >>> nearest("fedualavg", ["fedavg", "feddualavg"])
    "did you mean 'feddualavg'? (valid: fedavg, feddualavg)"
    """
    valid = sorted(valid)
    close = get_close_matches(str(name), valid, n=1, cutoff=0.5)
    return (f"did you mean '{close[0]}'? " if close else "") + f"(valid: {', '.join(valid) or 'none'})"
