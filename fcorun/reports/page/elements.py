"""Elements of the page: escaped text, tables, sections, charts."""

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
from rich.table import Table as RichTable

from fcorun.base.system.files import read_regular_file
from fcorun.reports.pictures.layout import DASHES, CurveStyle

_MAX_PAPER_COLUMNS = 9  # of a table of the terminal on a sheet of paper
_MANY_CLAIMS = 12  # more are printed in two columns
_NUMBER_CLASS = ' class="number"'
_MAX_PICTURE_BYTES = 600_000
FOREGROUND = "@fg"  # in a chart, the colour of text: black on a light page
_DASHES = ("solid", "dash", "dot", "dashdot", "longdashdot", "1px,6px", "longdash")  # those of the pictures
Chart = dict[str, Any]


# class of style, mark and words of each result of a claim; other results are open: not measured, or not tried
_CLAIM_RESULTS = {
    "yes": ("yes", "✓", "holds"),
    "no": ("no", "✗", "does not hold"),
    "not distinguishable": ("unclear", "?", "not distinguishable"),
    "not decided": ("unclear", "?", "not decided"),
}


@dataclass(frozen=True)
class PageSection:
    """A section of the page.

    Attributes:
        name: the id of the element.
        heading: the heading, as text.
        content: the HTML below the heading.
        collapsed: the section opens on demand, and is left out of print.
    """

    name: str
    heading: str
    content: str
    collapsed: bool = False


@dataclass
class Page:
    """The sections of a page, and the data of its charts.

    Attributes:
        sections: the sections, in their order.
        charts: traces and layouts of plotly, with ``FOREGROUND`` for colours that depend on the theme.
        curves: the result of ``fcorun.reports.page.page_curves.collect_curves``.
    """

    sections: list[PageSection] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    curves: dict[str, Any] | None = None

    def add_section(self, name: str, heading: str, *blocks: str, collapsed: bool = False) -> None:
        """Add a section of these blocks of HTML, unless all are empty."""
        if any(blocks):
            self.sections.append(PageSection(name, heading, "\n".join(filter(None, blocks)), collapsed))

    def add_chart(self, caption: str, traces: list[dict[str, Any]], **layout: Any) -> str:
        """Add a chart and return the element that it is drawn into, with its caption."""
        self.charts.append({"traces": traces, "layout": layout})
        text = escape(caption)
        element = f'<div class="chart" role="img" aria-label="{text}" data-chart="{len(self.charts) - 1}"></div>'
        return f"<figure>{element}<figcaption>{text}</figcaption></figure>"


def line_style(style: CurveStyle) -> dict[str, Any]:
    """Return the line of an algorithm, with the colour and the dash that it has in the pictures."""
    colour = FOREGROUND if style.colour == "#000000" else style.colour
    return {"color": colour, "dash": _DASHES[DASHES.index(style.line_dash)]}


def axis_type(values: Iterable[float | None]) -> str:
    """Return the scale of an axis of these values: logarithmic if all are positive, else linear."""
    return "log" if min((value for value in values if value is not None), default=0) > 0 else "linear"


def label_to_html(text: str) -> str:
    """Return a label of a picture as HTML, with subscripts.

    >>> label_to_html("|w$_j$| > 0.1")
    '|w<sub>j</sub>| &gt; 0.1'
    """
    text = re.sub(r"\\mathrm\{([^}]*)\}", r"\1", escape(text, quote=False))
    return re.sub(r"\$_\{?([^}$]*)\}?\$", r"<sub>\1</sub>", text).replace("\n", "<br>")


def to_text(value: Any) -> str:
    """Return a value as escaped text for a chart, which renders HTML."""
    return escape(format_value(value), quote=False)


def format_value(value: Any) -> str:
    """Return a value as a table shows it; "" for None and nan."""
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table_cell(value: Any, is_number: bool = False) -> str:
    """Return a cell. A number that is shown with fewer digits has all of them in ``data-v``, to sort by."""
    text = format_value(value)
    attributes = _NUMBER_CLASS * is_number
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        attributes += " data-v" if float(text) == value else f' data-v="{value}"'
    return f"<td{attributes}>{escape(text)}</td>"


def html_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Any]],
    name: str = "",
    caption: str = "",
    numbers: Sequence[int] = (),
) -> str:
    """Return a table. A table with a name is sorted by its headers. Text columns ``numbers`` are aligned as numbers."""
    rows = [*rows]
    is_number = [i in numbers or _is_numeric([row[i] for row in rows]) for i in range(len(headers))]
    if name:
        top = sortable_headers(headers, headers)
    else:
        cells = zip(headers, is_number, strict=True)
        top = "".join(f'<th scope="col"{_NUMBER_CLASS * number}>{escape(header)}</th>' for header, number in cells)
    lines = []
    for row in rows:
        cells = "".join(table_cell(value, is_number[i]) for i, value in enumerate(row))
        lines.append(f"<tr>{cells}</tr>")
    body = "\n".join(lines)
    return scrollable_table(f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>", name, caption)


def _is_numeric(values: Sequence[Any]) -> bool:
    """Return True if there are values and all are numbers."""
    present = [value for value in values if value is not None and value != ""]
    return bool(present) and all(isinstance(value, (int, float)) for value in present)


def facts_table(rows: Iterable[tuple[str, Any]], caption: str = "") -> str:
    """Return a table of names and values, without headers."""
    body = "".join(f'<tr><th scope="row">{escape(name)}</th>{table_cell(value)}</tr>' for name, value in rows)
    return scrollable_table(f'<tbody class="facts">{body}</tbody>', "", caption)


def sortable_headers(keys: Iterable[str], headers: Iterable[str]) -> str:
    """Return headers that sort a table, each with the key that the page's address has for it.

    Browsers leave buttons out of repeated headers on paper: the text beside the button is printed instead.
    """
    return "".join(
        f'<th scope="col" aria-sort="none" data-key="{escape(key)}"><button type="button">{escape(header)}</button>'
        f'<span class="paper" aria-hidden="true">{escape(header)}</span></th>'
        for key, header in zip(keys, headers, strict=True)
    )


def scrollable_table(content: str, name: str, caption: str) -> str:
    """Return a table that scrolls by itself if it is wider than the page."""
    caption_element = f"<caption>{escape(caption)}</caption>" if caption else ""
    id_attribute = f' id="{name}"' if name else ""
    return (
        f'<div class="scrollable" tabindex="0" role="region" aria-label="{escape(caption or name or "table")}">'
        f"<table{id_attribute}>{caption_element}{content}</table></div>"
    )


def from_rich_table(table: RichTable, keys: Collection[str] = ()) -> str:
    """Return a table of the terminal as HTML. If it is too wide for paper, its columns ``keys`` are joined there."""
    headers = [" ".join(str(column.header).replace(".\n", ".").split()) for column in table.columns]
    columns = [[render(str(text)).plain for text in column.cells] for column in table.columns]
    numbers = [i for i, column in enumerate(table.columns) if column.justify == "right"]
    screen = html_table(headers, zip(*columns, strict=True), numbers=numbers)
    if len(headers) <= _MAX_PAPER_COLUMNS:
        return screen
    joined = [i for i, header in enumerate(headers) if header in keys]
    first, *others = (i for i in range(len(headers)) if i not in joined)
    rows = []
    for row in zip(*columns, strict=True):
        point = ", ".join(f"{headers[i].removeprefix('algo.')}={row[i]}" for i in joined if row[i])
        rows.append([row[first], point, *(row[i] for i in others)])
    return screen_or_paper(screen, html_table([headers[first], "point", *(headers[i] for i in others)], rows))


def claims_list(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows of claims.csv as a list, a mark before each claim.

    The algorithm is named first if several claims have the same words. The note follows claims that do not hold.
    """
    count = Counter(row.get("says") for row in rows)
    items = []
    for row in rows:
        algo, says, note = (escape(str(row.get(key) or "")) for key in ("algo", "says", "note"))
        holds = row.get("holds")
        style, mark, result = _CLAIM_RESULTS.get(str(holds), ("open", "·", str(holds or "not measured")))
        claim = f"{algo}: {says}" if count[row.get("says")] > 1 else says
        below = f'<p class="small">{note[:1].upper()}{note[1:]}.</p>' if note and style != "yes" else ""
        items.append(
            f'<li class="{style}"><span class="mark" aria-hidden="true">{mark}</span><div><p class="claim">'
            f'{claim} <span class="result">{escape(result)}</span></p>{below}</div></li>'
        )
    list_class = "claims two-columns" if len(items) > _MANY_CLAIMS else "claims"
    return f'<ul class="{list_class}">{"".join(items)}</ul>' if items else ""


def bullet_list(lines: Iterable[str]) -> str:
    """Return sentences as a list, "" without any."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines if line)
    return f'<ul class="notes">{items}</ul>' if items else ""


def warning_list(lines: Iterable[str]) -> str:
    """Return warnings in a box, "" without any."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines if line)
    return f'<div class="warning" role="note"><p>Read the result with care:</p><ul>{items}</ul></div>' if items else ""


def paragraph(text: str, css_class: str = "") -> str:
    """Return text as a paragraph, "" without any."""
    if not text:
        return ""
    attribute = f' class="{css_class}"' if css_class else ""
    return f"<p{attribute}>{escape(text)}</p>"


def render_section(section: PageSection) -> str:
    """Return a section with its heading; a collapsed one opens by its heading."""
    name, content = section.name, section.content
    heading = f'<h2 id="{name}-h">{escape(section.heading)}</h2>'
    if section.collapsed:
        body = f"<details><summary>{heading}</summary>\n{content}\n</details>"
        return f'<section id="{name}" class="collapsed" aria-labelledby="{name}-h">{body}\n</section>'
    return f'<section id="{name}" aria-labelledby="{name}-h">{heading}\n{content}\n</section>'


def chart_grid(*charts: str) -> str:
    """Return charts two by two, the last of an odd number as wide as two."""
    return f'<div class="charts">{"".join(charts)}</div>' if any(charts) else ""


def screen_or_paper(screen: str, paper: str) -> str:
    """Return an element that has one form on a screen and another on paper."""
    return f'<div class="screen">{screen}</div><div class="paper" aria-hidden="true">{paper}</div>'


def collapsible(summary: str, content: str) -> str:
    """Return an element that opens by its summary, and is left out of print."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def embed_json(content: Any) -> str:
    """Return JSON that may stand in an element of HTML, without < and >. Numbers that are not finite are null."""
    text = json.dumps(_replace_nonfinite(content), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _replace_nonfinite(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(key): _replace_nonfinite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_replace_nonfinite(value) for value in content]
    if hasattr(content, "item"):
        content = content.item()
    return None if isinstance(content, float) and not math.isfinite(content) else content


def embed_picture(path: Path, caption: str) -> str:
    """Return a PNG as an element of HTML; "" if the file is missing, and its path if it is too large."""
    text = escape(caption)
    try:
        if path.lstat().st_size > _MAX_PICTURE_BYTES:
            return f"<p>{text}: {escape(str(path))}, which is too large for this page.</p>"
        content = read_regular_file(path, _MAX_PICTURE_BYTES)
    except OSError:
        return ""
    if not content.startswith(b"\x89PNG"):
        return ""
    data = b64encode(content).decode()
    return (
        f'<figure class="picture"><img alt="{text}" src="data:image/png;base64,{data}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


def read_asset(name: str) -> str:
    """Return the content of a file in the folder of this module."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
