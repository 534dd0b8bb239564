"""What all pictures have in common: looks, pages measured in inches, titles, legends, files."""

import io
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fcorun.reports.pictures.style import current_style, pt

# Okabe and Ito's palette, told apart by colour-blind readers too, and lines told apart in print without colours.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))
_MARKERS = "os^DvPX<"

_LINE, _LETTERS = 0.13, 16.5  # on paper: inches of a line of a title, letters an inch

FORMATS = ("png", "pdf", "svg")


@dataclass(frozen=True)
class CurveStyle:
    """How an algorithm is drawn in every picture of a sweep, or a point in a picture of points."""

    colour: str
    line_dash: Any
    marker: str

    @property
    def line_kwargs(self) -> dict[str, Any]:
        """What matplotlib is told of a line."""
        return {"color": self.colour, "linestyle": self.line_dash}


def curve_style(i: int) -> CurveStyle:
    """The i-th of 49 looks; the first seven differ in colour, dash and marker."""
    return CurveStyle(COLOURS[i % 7], DASHES[(i + i // 7) % 7], _MARKERS[i % 8])


def make_figure(
    count: int,
    across: int,
    *,
    height: float,
    title: Sequence[str] = (),
    wide: bool = False,
    left: float = 0.55,
    right: float = 0.08,
    top: float = 0.08,
    bottom: float = 0.45,
    gap: tuple[float, float] = (0.6, 0.55),
) -> tuple[Any, list[Any]]:
    """A figure of ``count`` panels, ``across`` in a row, and its axes, as wide as a column of the style if a row has
    one panel and it is not to be ``wide``, else as its page. All lengths in inches on paper; ``height`` a panel's.

    ``left`` ... ``bottom`` are margins around all panels, ``gap`` what lies between two columns and two rows. The
    paragraphs of ``title`` stand above all of that.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, scale, width = -(-count // across), current_style().scale, current_style().layout_width(2 if wide else across)
    lines = [line for text in title for line in textwrap.wrap(text, int(_LETTERS * width))]
    top += _LINE * len(lines)
    tall = top + bottom + rows * height + (rows - 1) * gap[1]
    figure = Figure(figsize=(width * scale, tall * scale))
    FigureCanvasAgg(figure)
    if lines:
        figure.suptitle("\n".join(lines), y=1 - 0.03 / tall, parse_math=False)
    each = (width - left - right - (across - 1) * gap[0]) / across
    axes = []
    for i in range(count):
        x, y = left + (i % across) * (each + gap[0]), bottom + (rows - 1 - i // across) * (height + gap[1])
        axes.append(figure.add_axes((x / width, y / tall, each / width, height / tall)))
    return figure, axes


def set_y_label(ax: Any, words: str) -> None:
    """Label the y axis, in lines no longer than it is high, which end before a symbol or an explanation."""
    most = _LETTERS * ax.get_position().height * ax.figure.get_figheight() / current_style().scale
    if any(len(_shown(line)) > most for line in words.split("\n")):
        words = words.replace("  ", "\n").replace(": ", ":\n")
    lines: list[str] = []
    for part in words.split("\n"):
        first, *more = part.split(" ")
        lines.append(first)
        for word in more:
            longer = f"{lines[-1]} {word}"
            lines = [*lines[:-1], longer] if len(_shown(longer)) <= most else [*lines, word]
    ax.set_ylabel("\n".join(lines))


def _shown(text: str) -> str:
    """The letters of a label that has mathematics in it: |w$_j$| is |wj|."""
    return re.sub(r"\\mathrm|[${}_^]", "", text)


def count_panel_columns(count: int) -> int:
    """How many of ``count`` panels stand side by side."""
    return {1: 1, 2: 2, 3: 3, 4: 2}.get(count, 3)


def add_legend(figure: Any, handles: Sequence[Any], texts: Sequence[str], handlelength: float = 2.6) -> None:
    """A legend on top of the figure, which grows by its height; in as many columns as fit, at most three."""
    tight = {"borderaxespad": 0.2, "labelspacing": 0.25, "columnspacing": 1.2, "handlelength": handlelength}
    for ncols in (3, 2, 1):
        found = figure.legend(handles, texts, loc="upper center", ncols=ncols, frameon=False, **tight)
        box = found.get_window_extent(figure.canvas.get_renderer())
        if ncols == 1 or box.width < figure.bbox.width:
            break
        found.remove()
    width, tall = figure.get_size_inches()
    more = box.height / figure.dpi
    places = [(ax, ax.get_position().bounds) for ax in figure.axes]
    figure.set_size_inches(width, tall + more)
    share = tall / (tall + more)
    for ax, (x, y, wide, high) in places:
        ax.set_position((x, y * share, wide, high * share))


def render_figure(figure: Any, format: str = "png") -> bytes:
    """A figure as the content of a file: as wide as it is, or wider where a label sticks out, and as high as what it
    shows."""
    from matplotlib.transforms import Bbox

    shown, (width, _) = figure.get_tightbbox(), figure.get_size_inches()  # "tight" would draw it twice
    out = pt(0.03)
    left, right = (min(0.0, shown.x0 - out), max(width, shown.x1 + out))
    buffer = io.BytesIO()
    box = Bbox.from_extents(left, shown.y0 - out, right, shown.y1 + out)
    figure.savefig(buffer, format=format, bbox_inches=box)
    return buffer.getvalue()
