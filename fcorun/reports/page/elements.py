"""Elements of the page: tables, lists, pictures and sections, and the files of a record that these show.

The templates beside this file make the elements, and escape values. An element is HTML; ``""`` is nothing. A file that
is missing or broken is empty.
"""

import json
import math
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from rich.markup import render
from rich.table import Table as RichTable

from fcorun.base.errors import UserError
from fcorun.base.records.formats import read_text
from fcorun.base.records.tables import TableFile
from fcorun.base.system.files import read_regular_file
from fcorun.reports.run_table import format_number

_MANY_CLAIMS = 12  # more are printed in two columns
_MAX_PICTURE_BYTES = 600_000
_COLUMN_WIDTH = 300  # points; wider drawings are as wide as the page

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
    content: Markup
    collapsed: bool = False


@dataclass
class Page:
    """The sections of a page, and the data of its curves.

    Attributes:
        sections: the sections, in their order.
        curves: the result of ``fcorun.reports.page.build_page.collect_curves``.
    """

    sections: list[PageSection] = field(default_factory=list)
    curves: dict[str, Any] | None = None

    def add_section(self, name: str, heading: str, *blocks: str, collapsed: bool = False) -> None:
        """Add a section of these blocks of HTML, unless all are empty."""
        content = Markup("\n").join(filter(None, blocks))
        if content:
            self.sections.append(PageSection(name, heading, content, collapsed))


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what is shown.
        is_number: whether the cell is aligned as a number.
        sorts: whether the text is a number that the table is sorted by.
        exact: the number in all its digits, for sorting and filtering; "" where only the shown digits are told.
    """

    text: str
    is_number: bool = False
    sorts: bool = False
    exact: str = ""


@dataclass(frozen=True)
class Header:
    """The header of a column; with a ``key``, which the address of the page has for the column, it sorts the table."""

    text: str
    is_number: bool = False
    key: str | None = None


@cache
def _environment() -> Environment:
    """Return the templates, which escape all values but those that templates made."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render_template(name: str, **values: Any) -> Markup:
    """Return a file of the folder ``templates`` with these values."""
    return Markup(_environment().get_template(name).render(values))


def read_template(name: str) -> Markup:
    """Return a file of the folder ``templates`` as it is, such as a script."""
    return Markup(Path(__file__).with_name("templates").joinpath(name).read_text(encoding="utf-8"))


def _element(macro: str, *values: Any, **options: Any) -> Markup:
    """Return an element that a macro of elements.html makes of these values, "" of none."""
    return getattr(_environment().get_template("elements.html").module, macro)(*values, **options)


# The macros of elements.html that need no more than their values.
paragraph = partial(_element, "paragraph")
subheading = partial(_element, "subheading")
bullet_list = partial(_element, "bullets")
warning_list = partial(_element, "warnings")
preformatted = partial(_element, "preformatted")
collapsible = partial(_element, "collapsible")
picture_grid = partial(_element, "grid")
screen_or_paper = partial(_element, "screen_or_paper")
link_to_section = partial(_element, "link")
link_to_page = partial(_element, "page_link")


def table_cell(value: Any, is_number: bool = False, is_exact: bool = False) -> Cell:
    """Return a cell of a table, which keeps all digits of a number if it ``is_exact``."""
    text = value if isinstance(value, Markup) else format_number(value)
    sorts = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return Cell(text, is_number, sorts, str(value) if sorts and is_exact else "")


def html_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[Any]],
    name: str = "",
    caption: str = "",
    numbers: Sequence[int] = (),
    keys: Sequence[str] = (),
) -> Markup:
    """Return a table, "" without rows.

    A table with a name is sorted by its headers. Text columns ``numbers`` are aligned as numbers. With ``keys``, by
    which the address of the page names the columns, rows have the numbers of runs, which the script looks up, and
    numbers all their digits, so that the best of several runs is first, and a value is found as it was typed.
    """
    rows = [*rows]
    if not rows:
        return Markup("")
    columns = []
    for i, (header, key) in enumerate(zip(headers, keys or headers, strict=True)):
        present = [row[i] for row in rows if row[i] is not None and row[i] != ""]
        is_number = i in numbers or (bool(present) and all(isinstance(value, (int, float)) for value in present))
        columns.append(Header(header, is_number, key if name else None))
    cells = []
    for row in rows:
        pairs = zip(row, columns, strict=True)
        cells.append([table_cell(value, column.is_number, bool(keys)) for value, column in pairs])
    return _element("table", columns, cells, name, caption, numbers_rows=bool(keys))


def facts_table(rows: Iterable[tuple[str, Any]]) -> Markup:
    """Return a table of names and values, without headers."""
    return _element("table", [], [[table_cell(name), table_cell(value)] for name, value in rows], "", "")


def items_table(headers: Sequence[str], items: Iterable[tuple[Sequence[str], Markup | str]], source: str) -> Markup:
    """Return the items of a reporting list, each with the link to its place on the page, or "" for none."""
    rows = [[*cells, place or "not on this page"] for cells, place in items]
    caption = f"{source} The list says where an item is found; whether it is complete is for its authors to judge."
    return html_table([*headers, "place"], rows, caption=caption)


def from_rich_table(table: RichTable) -> Markup:
    """Return a table of the terminal as HTML."""
    headers = [" ".join(str(column.header).replace(".\n", ".").split()) for column in table.columns]
    columns = [[render(str(text)).plain for text in column.cells] for column in table.columns]
    numbers = [i for i, column in enumerate(table.columns) if column.justify == "right"]
    return html_table(headers, zip(*columns, strict=True), numbers=numbers)


def claims_list(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows of claims.csv as a list, a mark before each claim.

    The algorithm is named first if several claims have the same words. The note follows claims that do not hold.
    """
    count = Counter(row.get("says") for row in rows)
    items = []
    for row in rows:
        algo, says, note = (str(row.get(key) or "") for key in ("algo", "says", "note"))
        holds = row.get("holds")
        style, mark, result = _CLAIM_RESULTS.get(str(holds), ("open", "·", str(holds or "not measured")))
        claim = f"{algo}: {says}" if count[row.get("says")] > 1 else says
        below = f"{note[:1].upper()}{note[1:]}." if note and style != "yes" else ""
        items.append({"style": style, "mark": mark, "result": result, "claim": claim, "note": below})
    return _element("claims", items, len(items) > _MANY_CLAIMS)


def embed_json(content: Any) -> Markup:
    """Return JSON that may stand in an element of HTML, without < and >. Numbers that are not finite are null."""
    text = json.dumps(_replace_nonfinite(content), separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


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
    try:
        if path.lstat().st_size > _MAX_PICTURE_BYTES:
            return paragraph(f"{caption}: {path}, which is too large for this page.")
        content = read_regular_file(path, _MAX_PICTURE_BYTES)
    except OSError:
        return ""
    if not content.startswith(b"\x89PNG"):
        return ""
    return _element("picture", f"data:image/png;base64,{b64encode(content).decode()}", caption)


def embed_drawing(svg: bytes, caption: str) -> Markup:
    """Return an SVG that matplotlib has drawn as an element of HTML.

    The names of groups, which each drawing of a page repeats, are left out; nothing refers to them.
    """
    text = svg.decode().partition("<svg")[2]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="(?:[a-z]+|line2d|matplotlib\.axis|[A-Z]\w*Collection)_\d+"', "", text)
    width = re.search(r' width="([\d.]+)pt"', text)
    is_wide = width is not None and float(width[1]) > _COLUMN_WIDTH
    return _element("drawing", Markup(f"<svg{text}"), caption, is_wide)


def read_table(table: TableFile, folder: Path) -> list[dict[str, str]]:
    """Return the rows of a table of a record or a study as texts; [] if it is missing or damaged."""
    try:
        return table.read_texts(folder)
    except UserError:
        return []


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text; [] if the file is missing or cannot be read."""
    try:
        return read_text(path).splitlines()
    except (OSError, ValueError):
        return []


def parse_float(value: Any) -> float:
    """Return a value of a file as a number, nan for other text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


_LARGEST_COUNT = 2**53  # up to which a float has all whole numbers
# columns of names: a client, a class or a feature may be called 007 or nan
_TEXT_COLUMNS = (
    *("run", "set", "model", "client", "positive", "feature", "class", "held_out"),
    *("algo", "data", "objective", "reg"),
)


def parse_cell(column: str, text: str) -> Any:
    """Return a cell of a CSV as a number if possible, else as text; a cell of a column of names is text."""
    if column in _TEXT_COLUMNS:
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    is_count = text.lstrip("-").isdecimal() and abs(number) < _LARGEST_COUNT
    return int(text) if is_count else number


def csv_table(
    rows: Sequence[dict[str, Any]], name: str = "", caption: str = "", columns: Sequence[str] | None = None
) -> Markup:
    """Return rows of a CSV as a table, with numbers where cells are numbers; by default it has all their columns."""
    if columns is None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = []
    for row in rows:
        cells.append([parse_cell(key, row.get(key) or "") for key in columns])
    return html_table(columns, cells, name, caption)
