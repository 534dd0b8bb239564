"""Pieces of the page: escaped text, tables, sections, and what a chart is told."""

import json
import math
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from rich.markup import render
from rich.table import Table as Shown

from fcorun.reports.pictures.page import COLOURS

_LARGEST = 600_000  # bytes of a picture that the page holds
FOREGROUND = "@fg"  # in a chart, the colour of text: black where the page is light
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
Chart = dict[str, Any]


@dataclass
class Page:
    """What the page is made of: its sections in their order, and the data that its charts are drawn from.

    Attributes:
        sections: of each its id, its heading and its HTML.
        charts: plotly's traces and layouts, colours by ``FOREGROUND`` where these depend on the theme.
        curves: what ``fcorun.reports.page.curves`` found.
    """

    sections: list[tuple[str, str, str]] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    curves: dict[str, Any] | None = None

    def add(self, name: str, heading: str, *blocks: str) -> None:
        """A section of these blocks, if there are any."""
        if any(blocks):
            self.sections.append((name, heading, "\n".join(filter(None, blocks))))

    def chart(self, about: str, traces: list[dict[str, Any]], **layout: Any) -> str:
        """The place of a chart in a section; ``about`` is what it shows, in words."""
        self.charts.append({"traces": traces, "layout": layout})
        told = escape(about)
        return (f'<figure><div class="chart" role="img" aria-label="{told}" data-chart="{len(self.charts) - 1}"></div>'
                f"<figcaption>{told}</figcaption></figure>")  # fmt: skip


def drawn_as(i: int) -> dict[str, Any]:
    """The line of the i-th algorithm, in the colours of the pictures."""
    colour = COLOURS[i % 7]
    return {"color": FOREGROUND if colour == "#000000" else colour, "dash": _DASHES[(i + i // 7) % 6]}


def axis_type(values: Iterable[float | None]) -> str:
    """How an axis of these values is scaled: by logarithms only where all of them have one."""
    return "log" if min((value for value in values if value is not None), default=0) > 0 else "linear"


def words(text: str) -> str:
    """A label of a picture as HTML, its indices low.

    >>> words("|w$_j$| > 0.1")
    '|w<sub>j</sub>| &gt; 0.1'
    """
    text = re.sub(r"\\mathrm\{([^}]*)\}", r"\1", escape(text, quote=False))
    return re.sub(r"\$_\{?([^}$]*)\}?\$", r"<sub>\1</sub>", text).replace("\n", "<br>")


def said(value: Any) -> str:
    """A value for a chart, which takes text for HTML."""
    return escape(short(value), quote=False)


def short(value: Any) -> str:
    """A value as a table shows it; empty where there is none."""
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def cell(value: Any) -> str:
    """A cell; a number has its digits beside it where it is shown with fewer, to sort by."""
    text, mark = short(value), ""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        mark = " data-v" if float(text) == value else f' data-v="{value:.9g}"'
    return f"<td{mark}>{escape(text)}</td>"


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], name: str = "", caption: str = "") -> str:
    """A table; one with a name is sorted by its heads."""
    top = sorting(heads, heads) if name else "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "\n".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return framed(f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>", name, caption)


def sorting(keys: Iterable[str], heads: Iterable[str]) -> str:
    """Heads that sort a table, each with the key that the page's address has for it."""
    return "".join(
        f'<th scope="col" aria-sort="none" data-key="{escape(key)}"><button type="button">{escape(head)}</button></th>'
        for key, head in zip(keys, heads, strict=True)
    )


def framed(inner: str, name: str, caption: str) -> str:
    """A table that scrolls by itself where it is wider than the page."""
    told = f"<caption>{escape(caption)}</caption>" if caption else ""
    mark = f' id="{name}"' if name else ""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption or name or "table")}">' \
           f"<table{mark}>{told}{inner}</table></div>"  # fmt: skip


def rich_table(shown: Shown, caption: str = "") -> str:
    """A table of the terminal."""
    heads = [" ".join(str(column.header).replace(".\n", ".").split()) for column in shown.columns]
    columns = [[render(str(text)).plain for text in column.cells] for column in shown.columns]
    return table(heads, zip(*columns, strict=True), caption=caption)


def notes(lines: Iterable[str]) -> str:
    """Sentences, a line each; nothing where there are none."""
    told = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="notes">{told}</ul>' if told else ""


def paragraph(text: str, kind: str = "") -> str:
    """Text as a paragraph."""
    return f"<p{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{escape(text)}</p>"


def folded(summary: str, inner: str) -> str:
    """Something that is shown when it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def embedded(content: Any) -> str:
    """JSON that may stand in an element of HTML, for it ends none; numbers that are not finite are null."""
    text = json.dumps(_finite(content), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    if hasattr(content, "item"):
        content = content.item()
    return None if isinstance(content, float) and not math.isfinite(content) else content


def embedded_picture(path: Path, about: str) -> str:
    """A PNG as an element of HTML; nothing where there is none, and its place where it is too large."""
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    if not content.startswith(b"\x89PNG"):
        return ""
    told = escape(about)
    if len(content) > _LARGEST:
        return f"<p>{told}: {escape(str(path))}, which is too large for this page.</p>"
    return (f'<figure class="picture"><img alt="{told}" src="data:image/png;base64,{b64encode(content).decode()}">'
            f"<figcaption>{told}</figcaption></figure>")  # fmt: skip
