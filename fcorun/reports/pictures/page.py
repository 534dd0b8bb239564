"""What all pictures have in common: looks, a style, pages measured in inches."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's palette, told apart by colour-blind readers too, and lines told apart in print without colours.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))
_MARKERS = "os^DvPX<"

COLUMN, PAGE = 3.3, 6.9  # the width of a column of print, and of two
FORMATS = ("png", "pdf", "svg")
STYLE: dict[Any, Any] = {
    **{"font.size": 7.5, "axes.labelsize": 7.5, "axes.titlesize": 7.5, "legend.fontsize": 7, "lines.linewidth": 1.3},
    **{"xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "axes.linewidth": 0.6, "lines.markersize": 3.5},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25},
    **{"grid.linewidth": 0.5, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "axes.axisbelow": True},
}


@dataclass(frozen=True)
class Look:
    """How an algorithm is drawn in every picture of a sweep, or a point in a picture of points."""

    colour: str
    dash: Any
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """What matplotlib is told of a line."""
        return {"color": self.colour, "linestyle": self.dash}


def look(i: int) -> Look:
    """The i-th of 49 looks; the first seven differ in colour, dash and marker."""
    return Look(COLOURS[i % 7], DASHES[(i + i // 7) % 7], _MARKERS[i % 8])


def page(
    count: int,
    across: int,
    width: float,
    *,
    height: float,
    left: float = 0.5,
    right: float = 0.08,
    top: float = 0.08,
    bottom: float = 0.42,
    gap: tuple[float, float] = (0.58, 0.5),
) -> tuple[Any, list[Any]]:
    """A figure of ``count`` panels, ``across`` in a row, and its axes. All lengths in inches; ``height`` a panel's.

    ``left`` ... ``bottom`` are margins around all panels, ``gap`` what lies between two columns and two rows.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-count // across)
    tall = top + bottom + rows * height + (rows - 1) * gap[1]
    figure = Figure(figsize=(width, tall), dpi=300)
    FigureCanvasAgg(figure)
    each = (width - left - right - (across - 1) * gap[0]) / across
    axes = []
    for i in range(count):
        x, y = left + (i % across) * (each + gap[0]), bottom + (rows - 1 - i // across) * (height + gap[1])
        axes.append(figure.add_axes((x / width, y / tall, each / width, height / tall)))
    return figure, axes


def columns(count: int) -> int:
    """How many of ``count`` panels stand side by side."""
    return {1: 1, 2: 2, 3: 3, 4: 2}.get(count, 3)


def legend(figure: Any, handles: Sequence[Any], texts: Sequence[str], handlelength: float = 2.6) -> None:
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


def content(figure: Any, format: str = "png") -> bytes:
    """A figure as the content of a file, with room for all labels whatever their length."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format, bbox_inches=figure.get_tightbbox().padded(0.03))  # "tight" draws it twice
    return buffer.getvalue()
