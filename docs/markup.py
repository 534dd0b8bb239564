"""Pieces of Markdown for MyST."""

import re
from pathlib import Path


def marked(text: str) -> str:
    """Escape plain text for Markdown; text between double backticks becomes code."""
    escaped = ""
    for index, part in enumerate(re.split(r"``(.+?)``", " ".join(text.split()))):
        is_code = index % 2 == 1
        escaped += f"`{part}`" if is_code else re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", part)
    return escaped


def short(path: Path) -> str:
    """Return the end of a path, from the folder of the package or of the configuration files on."""
    parts = path.resolve().parts
    start = max(len(parts) - 1 - parts[::-1].index(top) for top in ("fcorun", "conf") if top in parts)
    return "/".join(parts[start:])


def listing(path: Path | str, language: str) -> list[str]:
    return [f"````{language}", Path(path).read_text(encoding="utf-8").rstrip(), "````", ""]


def documented(directive: str, name: str, *options: str) -> list[str]:
    """Return the directive with which autodoc documents an object."""
    return ["```{eval-rst}", f".. {directive}:: {name}", *(f"   {option}" for option in options), "```", ""]


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines] + [""]


def tree(names: list[str]) -> list[str]:
    """Return a hidden table of contents of the pages below."""
    return ["```{toctree}", ":hidden:", *names, "```", ""]


def joined(*parts: str | list[str]) -> str:
    return "\n".join(line for part in parts for line in ([part] if isinstance(part, str) else part)) + "\n"
