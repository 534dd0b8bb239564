"""Blocks of code in pages of Markdown, and their comparison with actual output."""

import math
import re
import shlex
from dataclasses import dataclass, field

from markdown_it import MarkdownIt

NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"


@dataclass
class Block:
    """A block of code: its language, its text, the marks in a comment before it, and the output shown after it."""

    language: str
    text: str
    marks: dict[str, str]
    shown: list[str] = field(default_factory=list)


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in their order."""
    result, marks = [], {}
    for token in MarkdownIt().parse(page):
        if token.type == "html_block":
            marks |= dict(re.findall(r"<!-- ([a-z ]+): (.+?) -->", token.content))
        elif token.type == "fence" and token.info == "text":
            if result:  # otherwise it is no output of a block
                result[-1].shown += token.content.splitlines()
        elif token.type == "fence":
            result.append(Block(token.info, token.content, marks))
            marks = {}
    return result


def commands(text: str) -> list[list[str]]:
    """Return the words of each line of a shell script."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def alike(shown: str, line: str) -> bool:
    """Return whether two lines are the same except for white space, identities, and small differences of numbers.

    Numbers may differ by a tenth, or by a unit of the last digit shown.
    """
    shown, line = (re.sub(r"-[0-9a-f]{8}\b", "-HASH", " ".join(text.split())) for text in (shown, line))
    if re.sub(NUMBER, "0", shown) != re.sub(NUMBER, "0", line):
        return False
    pairs = zip(re.findall(NUMBER, shown), re.findall(NUMBER, line), strict=True)
    return all(math.isclose(float(one), float(other), rel_tol=0.1, abs_tol=slack(one)) for one, other in pairs)


def slack(shown: str) -> float:
    """Return a unit of the last digit of a number, at most 0.01; 0 for a whole number."""
    digits, _, power = shown.partition("e")
    _, point, decimals = digits.partition(".")
    return min(1.1 * 10.0 ** (int(power or 0) - len(decimals)), 0.011) if point or power else 0.0


def missing(shown: list[str], out: str) -> list[str]:
    """Return the lines shown that the output lacks, in their order."""
    lines, missing_lines = iter(out.splitlines()), []
    for text in shown:
        if text != "..." and not any(alike(text, line) for line in lines):
            missing_lines.append(text)
            lines = iter(())
    return missing_lines
