"""Problems within which points are compared, by the values of their keys, null among them.

A baseline does not depend on some conditions of a sweep, such as the cohort, and belongs to each of their values.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final

OPEN: Final = object()  # in place of the value of a condition on which a run does not depend
_EXACT_DIGITS = 17  # by which every two floats differ


def fits_problem(own: Sequence[Any], problem: Sequence[Any]) -> bool:
    """Return whether a run whose ``own`` values these are belongs to a problem: equal values, or OPEN ones."""
    return all(mine is OPEN or mine == value for mine, value in zip(own, problem, strict=True))


def group_problems(problems: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[int]]:
    """Return the positions of each problem in a list. One with OPEN values joins those that have its other values."""
    groups: dict[tuple[Any, ...], list[int]] = {problem: [] for problem in problems}
    joined: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for problem in groups:
        closed = [other for other in groups if OPEN in problem and other != problem and fits_problem(problem, other)]
        joined[problem] = closed or [problem]
    for position, problem in enumerate(problems):
        for other in joined[problem]:
            groups[other].append(position)
    return {problem: positions for problem, positions in groups.items() if positions}


def format_problems(problems: Sequence[tuple[Any, ...]], digits: int = 4) -> list[tuple[str, ...]]:
    """Return the values of problems as texts that differ where the values do, with at least so many digits.

    The text of OPEN is empty.
    """
    columns = [_format_values(values, digits) for values in zip(*problems, strict=True)]
    return [tuple(texts[i] for texts in columns) for i in range(len(problems))]


def _format_values(values: Sequence[Any], digits: int) -> list[str]:
    numbers = {value for value in values if isinstance(value, float)}
    while digits < _EXACT_DIGITS and len({f"{number:.{digits}g}" for number in numbers}) < len(numbers):
        digits += 1
    paths = shorten_paths({value for value in values if isinstance(value, str)})
    texts = []
    for value in values:
        if value is OPEN:
            texts.append("")
        elif value is None:
            texts.append("null")
        else:
            texts.append(f"{value:.{digits}g}" if isinstance(value, float) else paths.get(value, str(value)))
    return texts


def names_a_folder(text: str) -> bool:
    """Return whether a value of a configuration names a folder of this machine."""
    posix = PurePosixPath(text)
    is_below_root = posix.is_absolute() and len(posix.parts) > 2
    return is_below_root or PureWindowsPath(text).is_absolute() or text.startswith("~/")


def shorten_paths(texts: Collection[str]) -> dict[str, str]:
    """Return the last parts of each path among values, as many as tell all apart, since pictures are sent to others.

    >>> shorten_paths(["/home/jane/a/t.csv", "/home/jane/b/t.csv"])
    {'/home/jane/a/t.csv': 'a/t.csv', '/home/jane/b/t.csv': 'b/t.csv'}
    """
    parts = {text: [text] for text in texts}
    for text in filter(names_a_folder, texts):
        parts[text] = re.split(r"[\\/]+", text.rstrip("\\/"))
    for n_parts in range(1, max(map(len, parts.values()), default=0) + 1):
        short = {text: "/".join(names[-n_parts:]) for text, names in parts.items()}
        if len({*short.values()}) == len(parts):
            return short
    return {text: text for text in texts}
