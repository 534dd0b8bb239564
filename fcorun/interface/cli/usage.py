"""The help of the command itself, ``fcorun --help``: choices, and keys by what they are for. Needs no Hydra."""

import re
from pathlib import Path
from textwrap import shorten

from fcorun.base.config import SECTIONS
from fcorun.experiment.configuration.search_path import find_choices, packaged_config_dir

_TEMPLATE = Path(__file__).parent / "help.txt"


def examples() -> str:
    """Return the first paragraphs of the help: what fcorun is, and a line for each command."""
    return _TEMPLATE.read_text(encoding="utf-8").partition("\nGroups")[0]


def help_text() -> str:
    """Return the text of ``fcorun --help``, with the choices of the user's own folder."""
    choices = [f"{group}: {', '.join(find_choices(group))}" for group in sorted((*SECTIONS, "experiment"))]
    groups_of_keys = []
    for heading, comments in read_headings().items():
        lines = []
        for key, comment in comments.items():
            lines.append(f"  {key:18} {shorten(comment.partition('; ')[0], 99, placeholder=' ...')}")
        groups_of_keys.append("\n".join([f"{heading}:", "", *lines]))
    text = _TEMPLATE.read_text(encoding="utf-8")
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
