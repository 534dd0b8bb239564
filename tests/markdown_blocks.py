"""Pages of Markdown with blocks of code, as their tests read them."""

import math
import re
import shlex
from dataclasses import dataclass, field

from markdown_it import MarkdownIt

NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"


@dataclass
class Block:
    """A block of code: its language, its text, what a comment before it says, and the lines shown after it."""

    language: str
    text: str
    marks: dict[str, str]
    shown: list[str] = field(default_factory=list)


def blocks(page: str) -> list[Block]:
    """The blocks of a page in their order."""
    found, marks = [], {}
    for token in MarkdownIt().parse(page):
        if token.type == "html_block":
            marks |= dict(re.findall(r"<!-- ([a-z ]+): (.+?) -->", token.content))
        elif token.type == "fence" and token.info == "text":
            if found:  # else a sentence that is shown by itself
                found[-1].shown += token.content.splitlines()
        elif token.type == "fence":
            found.append(Block(token.info, token.content, marks))
            marks = {}
    return found


def commands(text: str) -> list[list[str]]:
    """The words of each line of a shell."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def alike(shown: str, line: str) -> bool:
    """Whether two lines are the same but for white space, identities, and a tenth of a number, or a unit of the last
    digit shown."""
    shown, line = (re.sub(r"-[0-9a-f]{8}\b", "-HASH", " ".join(text.split())) for text in (shown, line))
    if re.sub(NUMBER, "0", shown) != re.sub(NUMBER, "0", line):
        return False
    pairs = zip(re.findall(NUMBER, shown), re.findall(NUMBER, line), strict=True)
    return all(math.isclose(float(one), float(other), rel_tol=0.1, abs_tol=slack(one)) for one, other in pairs)


def slack(shown: str) -> float:
    """A unit of the last digit of a number that is shown, but no more than 0.01; of a whole number nothing."""
    digits, _, power = shown.partition("e")
    _, point, decimals = digits.partition(".")
    return min(1.1 * 10.0 ** (int(power or 0) - len(decimals)), 0.011) if point or power else 0.0


def missing(shown: list[str], out: str) -> list[str]:
    """The lines shown that did not come out, in their order."""
    lines, lost = iter(out.splitlines()), []
    for text in shown:
        if text != "..." and not any(alike(text, line) for line in lines):
            lost.append(text)
            lines = iter(())
    return lost
