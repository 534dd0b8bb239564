"""Pieces of the page: escaped text, tables, sections, and what a chart is told."""

import json
import math
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from rich.markup import render
from rich.table import Table as Shown

from fcorun.reports.pictures.layout import COLOURS
from fcorun.system.files import read_regular_file

_WIDEST = 9  # columns of a table of the terminal on a sheet
_MANY = 12  # claims; more are printed in two columns
_RIGHT = ' class="number"'
_LARGEST = 600_000  # bytes of a picture that the page holds
FOREGROUND = "@fg"  # in a chart, the colour of text: black where the page is light
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
Chart = dict[str, Any]


# of a verdict its class of style, its mark and its words; what is none of them was not measured, or not tried
_VERDICTS = {
    "yes": ("yes", "✓", "holds"),
    "no": ("no", "✗", "does not hold"),
    "not distinguishable": ("unclear", "?", "not distinguishable"),
}


@dataclass(frozen=True)
class PageSection:
    """A section of the page.

    Attributes:
        name: its id.
        heading: its heading, as text.
        inner: its HTML.
        folded: whether it opens only when a reader asks for it, and is left out of print.
    """

    name: str
    heading: str
    content: str
    collapsed: bool = False


@dataclass
class Page:
    """The sections of a page in their order, and the data that its charts are drawn from.

    Attributes:
        sections: the sections, in their order.
        charts: plotly's traces and layouts, colours by ``FOREGROUND`` where these depend on the theme.
        curves: what ``fcorun.reports.page.curves`` found.
    """

    sections: list[PageSection] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    curves: dict[str, Any] | None = None

    def add_section(self, name: str, heading: str, *blocks: str, collapsed: bool = False) -> None:
        """Add a section of these blocks, if there are any."""
        if any(blocks):
            self.sections.append(PageSection(name, heading, "\n".join(filter(None, blocks)), collapsed))

    def add_chart(self, about: str, traces: list[dict[str, Any]], **layout: Any) -> str:
        """The place of a chart in a section; ``about`` is what it shows, in words."""
        self.charts.append({"traces": traces, "layout": layout})
        told = escape(about)
        place = f'<div class="chart" role="img" aria-label="{told}" data-chart="{len(self.charts) - 1}"></div>'
        return f"<figure>{place}<figcaption>{told}</figcaption></figure>"


def line_style(i: int) -> dict[str, Any]:
    """The line of the i-th algorithm, in the colours of the pictures."""
    colour = COLOURS[i % 7]
    return {"color": FOREGROUND if colour == "#000000" else colour, "dash": _DASHES[(i + i // 7) % 6]}


def axis_type(values: Iterable[float | None]) -> str:
    """How an axis of these values is scaled: by logarithms only where all of them have one."""
    return "log" if min((value for value in values if value is not None), default=0) > 0 else "linear"


def label_to_html(text: str) -> str:
    """A label of a picture as HTML, its indices low.

    >>> words("|w$_j$| > 0.1")
    '|w<sub>j</sub>| &gt; 0.1'
    """
    text = re.sub(r"\\mathrm\{([^}]*)\}", r"\1", escape(text, quote=False))
    return re.sub(r"\$_\{?([^}$]*)\}?\$", r"<sub>\1</sub>", text).replace("\n", "<br>")


def to_text(value: Any) -> str:
    """A value for a chart, which takes text for HTML."""
    return escape(format_value(value), quote=False)


def format_value(value: Any) -> str:
    """A value as a table shows it; empty where there is none."""
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table_cell(value: Any, right: bool = False) -> str:
    """Return a cell; a number has its digits beside it where it is shown with fewer, to sort by."""
    text, mark = format_value(value), _RIGHT * right
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        mark += " data-v" if float(text) == value else f' data-v="{value:.9g}"'
    return f"<td{mark}>{escape(text)}</td>"


def html_table(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], name: str = "", caption: str = "", numbers: Sequence[int] = ()
) -> str:
    """Return a table. One with a name is sorted by its heads; columns of text at ``numbers`` are aligned as numbers."""
    rows = [*rows]
    right = {i for i in range(len(heads)) if i in numbers or _numeric([row[i] for row in rows])}
    plain = (f'<th scope="col"{_RIGHT * (i in right)}>{escape(head)}</th>' for i, head in enumerate(heads))
    top = sortable_headers(heads, heads) if name else "".join(plain)
    body = "\n".join(f"<tr>{''.join(table_cell(v, i in right) for i, v in enumerate(row))}</tr>" for row in rows)
    return scrollable_table(f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>", name, caption)


def _numeric(values: Sequence[Any]) -> bool:
    """Whether all values that there are are numbers."""
    there = [value for value in values if value is not None and value != ""]
    return bool(there) and all(isinstance(value, (int, float)) for value in there)


def facts_table(rows: Iterable[tuple[str, Any]], caption: str = "") -> str:
    """Return a table of two columns without heads: what is known of one thing."""
    body = "".join(f'<tr><th scope="row">{escape(name)}</th>{table_cell(value)}</tr>' for name, value in rows)
    return scrollable_table(f'<tbody class="facts">{body}</tbody>', "", caption)


def sortable_headers(keys: Iterable[str], heads: Iterable[str]) -> str:
    """Return heads that sort a table, each with the key that the page's address has for it.

    On paper, where browsers leave buttons out of repeated heads, the text beside the button is shown instead.
    """
    return "".join(
        f'<th scope="col" aria-sort="none" data-key="{escape(key)}"><button type="button">{escape(head)}</button>'
        f'<span class="paper" aria-hidden="true">{escape(head)}</span></th>'
        for key, head in zip(keys, heads, strict=True)
    )


def scrollable_table(inner: str, name: str, caption: str) -> str:
    """A table that scrolls by itself where it is wider than the page."""
    told = f"<caption>{escape(caption)}</caption>" if caption else ""
    mark = f' id="{name}"' if name else ""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption or name or "table")}">' \
           f"<table{mark}>{told}{inner}</table></div>"  # fmt: skip


def from_rich_table(shown: Shown, keys: Collection[str] = ()) -> str:
    """Return a table of the terminal. Where it is too wide for a sheet of paper, its columns ``keys`` are one there."""
    heads = [" ".join(str(column.header).replace(".\n", ".").split()) for column in shown.columns]
    columns = [[render(str(text)).plain for text in column.cells] for column in shown.columns]
    right = [place for place, column in enumerate(shown.columns) if column.justify == "right"]
    screen = html_table(heads, zip(*columns, strict=True), numbers=right)
    if len(heads) <= _WIDEST:
        return screen
    joined = [place for place, head in enumerate(heads) if head in keys]
    first, *others = (place for place in range(len(heads)) if place not in joined)
    rows = []
    for row in zip(*columns, strict=True):
        point = ", ".join(f"{heads[place].removeprefix('algo.')}={row[place]}" for place in joined if row[place])
        rows.append([row[first], point, *(row[place] for place in others)])
    return screen_or_paper(screen, html_table([heads[first], "point", *(heads[place] for place in others)], rows))


def claims_list(rows: Sequence[dict[str, Any]]) -> str:
    """Return what is claimed as a list, a mark before each claim; ``rows`` are those of claims.csv.

    The algorithm is named in front where several claims are worded alike, and the note stands below what does not hold.
    """
    alike = Counter(row.get("says") for row in rows)
    items = []
    for row in rows:
        algo, says, note = (escape(str(row.get(key) or "")) for key in ("algo", "says", "note"))
        kind, mark, word = _VERDICTS.get(str(row.get("holds")), ("open", "·", str(row.get("holds") or "not measured")))
        claim = f"{algo}: {says}" if alike[row.get("says")] > 1 else says
        below = f'<p class="small">{note[:1].upper()}{note[1:]}.</p>' if note and kind != "yes" else ""
        items.append(f'<li class="{kind}"><span class="mark" aria-hidden="true">{mark}</span><div><p class="claim">'
                     f'{claim} <span class="word">{escape(word)}</span></p>{below}</div></li>')  # fmt: skip
    kind = "verdicts many" if len(items) > _MANY else "verdicts"
    return f'<ul class="{kind}">{"".join(items)}</ul>' if items else ""


def bullet_list(lines: Iterable[str]) -> str:
    """Return sentences, a line each; nothing where there are none."""
    told = "".join(f"<li>{escape(line)}</li>" for line in lines if line)
    return f'<ul class="notes">{told}</ul>' if told else ""


def paragraph(text: str, kind: str = "") -> str:
    """Return text as a paragraph; nothing where there is none."""
    if not text:
        return ""
    return f"<p{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{escape(text)}</p>"


def render_section(of: PageSection) -> str:
    """Return a section with its heading; a folded one opens by its heading."""
    heading = f'<h2 id="{of.name}-h">{escape(of.heading)}</h2>'
    inner = (
        f"<details><summary>{heading}</summary>\n{of.content}\n</details>"
        if of.collapsed
        else f"{heading}\n{of.content}"
    )
    kind = ' class="folded"' if of.collapsed else ""
    return f'<section id="{of.name}"{kind} aria-labelledby="{of.name}-h">{inner}\n</section>'


def chart_grid(*charts: str) -> str:
    """Return charts two by two, the last of an odd number as wide as two."""
    return f'<div class="charts">{"".join(charts)}</div>' if any(charts) else ""


def screen_or_paper(screen: str, paper: str) -> str:
    """Return something that is shown in one form on a screen and in another on paper."""
    return f'<div class="screen">{screen}</div><div class="paper" aria-hidden="true">{paper}</div>'


def collapsible(summary: str, inner: str) -> str:
    """Return something that is shown when a reader asks for it, and is left out of print."""
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def embed_json(content: Any) -> str:
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


def embed_picture(path: Path, about: str) -> str:
    """A PNG as an element of HTML; nothing where there is none, and its place where it is too large."""
    told = escape(about)
    try:
        if path.lstat().st_size > _LARGEST:
            return f"<p>{told}: {escape(str(path))}, which is too large for this page.</p>"
        content = read_regular_file(path, _LARGEST)
    except OSError:
        return ""
    if not content.startswith(b"\x89PNG"):
        return ""
    return (f'<figure class="picture"><img alt="{told}" src="data:image/png;base64,{b64encode(content).decode()}">'
            f"<figcaption>{told}</figcaption></figure>")  # fmt: skip
