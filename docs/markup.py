"""Pieces of Markdown, as MyST reads it."""

import re
from pathlib import Path


def marked(text: str) -> str:
    """Plain text as Markdown that shows it as it is; what stands between double backticks is code."""
    parts = re.split(r"``(.+?)``", " ".join(text.split()))
    return "".join(f"`{p}`" if at % 2 else re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", p) for at, p in enumerate(parts))


def short(path: Path) -> str:
    """The end of a path, from the folder of the package or of the configuration files on."""
    parts = path.resolve().parts
    at = max(len(parts) - 1 - parts[::-1].index(top) for top in ("fcorun", "conf") if top in parts)
    return "/".join(parts[at:])


def listing(path: Path | str, language: str) -> list[str]:
    return [f"````{language}", Path(path).read_text(encoding="utf-8").rstrip(), "````", ""]


def documented(directive: str, what: str, *options: str) -> list[str]:
    """What autodoc makes of an object."""
    return ["```{eval-rst}", f".. {directive}:: {what}", *(f"   {option}" for option in options), "```", ""]


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines] + [""]


def tree(names: list[str]) -> list[str]:
    """The hidden list of the pages below."""
    return ["```{toctree}", ":hidden:", *names, "```", ""]


def joined(*parts: str | list[str]) -> str:
    return "\n".join(line for part in parts for line in ([part] if isinstance(part, str) else part)) + "\n"
