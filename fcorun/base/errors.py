"""Errors whose text is one sentence for the user, and functions that word and clean such sentences."""

import errno
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb
from typing import Any

FEW_EVENTS = 5  # events, or rows of a class: scores of fewer say little about a model

_LONGEST_NAME = 100  # letters of a name in a list
_SHOWN = 3  # names or rows that a warning lists

_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room on that disk, and give the same command again"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "give a folder that can be written to"),
}
CLIENT_NOTE_PREFIX = "in client "  # begins a note on an error that names the client and the round
_PACKAGE_FOLDER = f"{Path(__file__).parents[1]}{os.sep}"
_LIBRARY_MARKS = ("site-packages", "<", "lib/python", "\\Lib\\")  # parts of the names of files of libraries
_NO_VALUE = "the value of a traced number (a rate, a strength, a value of the model or the data) is not known"
_TRACER_ERRORS = {
    "TracerBoolConversionError": f"{_NO_VALUE} to `if`, `and`, `or` or `while`; use jnp.where",
    "ConcretizationTypeError": f"{_NO_VALUE}, to float() or int() for example; use jax.numpy",
    "TracerIntegerConversionError": f"{_NO_VALUE} as a whole number; use jax.numpy",
    "TracerArrayConversionError": f"{_NO_VALUE} to NumPy; use jax.numpy",
}

# control characters of terminals and marks that reverse the direction of a text, with their escapes
_CONTROL_CODES = [*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_PYTHON_FORMAT = warnings.formatwarning
_ESCAPES = {code: chr(code).encode("unicode_escape").decode() for code in _CONTROL_CODES}

Door = Callable[[str], str]  # words an option: see ``word``
_DOOR: ContextVar[Door | None] = ContextVar("door", default=None)
_OPTION = re.compile("`([^`]+)`")


def word(sentence: str) -> str:
    """Return a sentence whose options, which stand between backticks, are in the words of the door of the program.

    Options are written as the command has them, which is also how they are worded without a door.

    >>> word("`algo.client_lr=-1` must be positive")
    'algo.client_lr=-1 must be positive'
    """
    door = _DOOR.get() or _word_for_command
    return _OPTION.sub(lambda match: door(match[1]), sentence)


def _word_for_command(option: str) -> str:
    return option


@contextmanager
def words_of(door: Door) -> Iterator[None]:
    """Have a door word the options of sentences that are made within the context."""
    token = _DOOR.set(door)
    try:
        yield
    finally:
        _DOOR.reset(token)


@contextmanager
def words_of_command() -> Iterator[None]:
    """Have the command line word options within the context, also where it calls functions for Python."""
    with words_of(_word_for_command):
        yield


def is_command() -> bool:
    """Return whether the command line words options, not a Python program."""
    return _DOOR.get() is _word_for_command


class UserError(Exception):
    """Bad input. The command line prints the sentence alone, without a traceback, and exits with 2.

    Options stand between backticks in the sentence: see ``word``.
    """

    def __init__(self, sentence: object):
        super().__init__(word(str(sentence)))


class MetricError(UserError):
    """A ``metric`` or an axis ``x`` that is unknown, or that cannot compare runs or be an axis."""


class RemoteError(Exception):
    """An error of another process, already described in one line."""


class HostLost(RemoteError):
    """The loss of one of several hosts that compute together."""


class WriteError(OSError):
    """A file that could not be written.

    Its name is ``filename``. The text is a sentence, with a remedy if one is known.
    """

    def __str__(self) -> str:
        remedy = f"; {_REMEDIES[self.errno]}" if self.errno in _REMEDIES else ""
        return f"{self.filename} cannot be written ({self.strerror}){remedy}"


def describe_error(error: BaseException) -> str:
    """Return an error as one line.

    The line holds the error's kind (unless the error is already a sentence), its first line, the line of a user's own
    file where it was raised, and the client and round, as far as they are known. Errors of JAX about traced values are
    replaced by an explanation.
    """
    line = first_line(error)
    if not isinstance(error, (UserError, RemoteError, WriteError)):
        line = _TRACER_ERRORS.get(type(error).__name__, f"{type(error).__name__}: {line}")
        if location := find_user_line(error):
            line += f", {location}"
    notes = getattr(error, "__notes__", [])
    return line + "".join(f", {note}" for note in notes if note.startswith(CLIENT_NOTE_PREFIX))


def find_error_line(error: BaseException, outside: str = " ") -> str:
    """Return the last line of an error's traceback that is in no library and outside of a folder.

    The line is given as "FILE line N"; "" if the traceback has no such line.
    """
    frames = extract_tb(error.__traceback__)
    frames = [f for f in frames if not f.filename.startswith(outside) and not _is_library_file(f.filename)]
    return f"{Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""


def find_user_line(error: BaseException) -> str:
    """Return the last line of an error's traceback that is in a user's own file: "FILE line N", or ""."""
    return find_error_line(error, outside=_PACKAGE_FOLDER)


def is_user_file(name: str) -> bool:
    """Return whether a file belongs to the user: neither to fcorun nor to a library."""
    return not (name.startswith(_PACKAGE_FOLDER) or _is_library_file(name))


def _is_library_file(name: str) -> bool:
    return any(mark in name for mark in _LIBRARY_MARKS)


def escape_controls(text: str) -> str:
    r"""Return a text with control characters of terminals, except tabs and line ends, as escapes.

    >>> escape_controls("\x1b[2J and so on")
    '\\x1b[2J and so on'
    """
    return text.translate(_ESCAPES)


class EscapedControls:
    """A mixin of rich's Console: texts show control characters as escapes, as they could move the cursor."""

    def render_str(self, text: str, **options: Any) -> Any:
        return super().render_str(escape_controls(text), **options)  # type: ignore[misc]


def format_warning(*arguments: Any, **options: Any) -> str:
    """Return Python's text of a warning with control characters escaped, as a warning may quote a record."""
    return escape_controls(_PYTHON_FORMAT(*arguments, **options))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, and the next one if the first ends in a colon.

    >>> first_line(TypeError("they differ:\\n\\n  * one is int32"))
    'they differ: * one is int32'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def check_type(value: object, types: type | tuple[type, ...], argument: str, advice: str) -> None:
    """Raise UserError, which ends with ``advice``, for an argument of another type."""
    if not isinstance(value, types):
        raise UserError(f"{argument} is {describe_type(value)}: {advice}")


def describe_type(value: object) -> str:
    """Return the type of a value in words.

    >>> describe_type(3), describe_type(None), describe_type(int)
    ('of type int', 'None', 'the class int')
    """
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"


def suggest_name(name: object, valid: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest valid name, and all valid names.

    >>> suggest_name("fedualavg", ["fedavg", "feddualavg"])
    "did you mean 'feddualavg'? (valid: fedavg, feddualavg)"
    """
    valid = sorted(valid)
    close = get_close_matches(str(name), valid, n=1)
    suggestion = f"did you mean '{close[0]}'? " if close else ""
    return f"{suggestion}(valid: {', '.join(_shorten_name(name) for name in valid) or 'none'})"


def _shorten_name(name: str) -> str:
    """Return a name in a list, the beginning of a very long one, as of a column in another encoding."""
    if len(name) > _LONGEST_NAME:
        return f"{name[:_LONGEST_NAME]}..."
    return name or "an empty text"


def warn_similar_names(kind: str, names: Iterable) -> list[str]:
    """Return a warning about names that differ in capitals or spaces only; ``kind`` is their plural noun."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if isinstance(name, str):
            groups.setdefault(normalize_name(name), []).append(name)
    similar = [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]
    if not similar:
        return []
    return [f"{kind} {abbreviate(similar)} differ in capitals or spaces only: if they are the same, write them alike"]


def normalize_name(name: str) -> str:
    """Return a name in lower case and without spaces."""
    return "".join(name.split()).casefold()


def find_spelling(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is ``name``, or differs from it in capitals or spaces only; None if there is none.

    >>> find_spelling("st.gallen ", ["Basel", "St. Gallen"])
    'St. Gallen'
    """
    normalized = normalize_name(name)
    return next((known_name for known_name in known if normalize_name(known_name) == normalized), None)


def abbreviate(items: Sequence[str], shown: int = _SHOWN) -> str:
    """Return the first items, and the number of the others: "a, b, c and 4 more"."""
    more = len(items) - shown
    return ", ".join(items[:shown]) + (f" and {more} more" if more > 0 else "")


def abbreviate_sentences(sentences: Sequence[str]) -> str:
    """Return the first sentences, each after a semicolon, and the number of the others."""
    more = f"; and {len(sentences) - _SHOWN} more like these" if len(sentences) > _SHOWN else ""
    return "; ".join(sentences[:_SHOWN]) + more


def describe_rows(rows: Sequence[int]) -> str:
    """Return the number of rows and the first few of them, counted from 1; ``rows`` are indices in order."""
    first = ", ".join(str(row + 1) for row in rows[:_SHOWN])
    if len(rows) == 1:
        return f"row {first}"
    return f"{len(rows)} rows ({first}{', ...' if len(rows) > _SHOWN else ''})"


def describe_few_events(events: Mapping[str, int], noun: str = "events") -> str:
    """Return a sentence that names the clients with few events, or groups with events; "" if there are none.

    >>> describe_few_events({"Bern": 3, "Lund": 12, "Oslo": 0})
    'scores from fewer than 5 events say little: Bern (3), Oslo (0)'
    """
    few = [f"{client} ({count})" for client, count in events.items() if count < FEW_EVENTS]
    return f"scores from fewer than {FEW_EVENTS} {noun} say little: {abbreviate(few)}" if few else ""
