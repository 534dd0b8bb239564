"""What the pictures of a sweep have in common: looks of algorithms, words for metrics, pages measured in inches."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fcorun.reports.pictures.curves import COLOURS, DASHES
from fcorun.reports.table import Frame

COLUMN, PAGE = 3.3, 6.9  # the width of a column of print, and of two
STYLE: dict[Any, Any] = {
    **{"font.size": 7.5, "axes.labelsize": 7.5, "axes.titlesize": 7.5, "legend.fontsize": 7, "lines.linewidth": 1.3},
    **{"xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "axes.linewidth": 0.6, "lines.markersize": 3.5},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25},
    **{"grid.linewidth": 0.5, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "axes.axisbelow": True},
}
_MARKERS = "os^DvPX<"
_WORDS = {
    "objective": "objective  Φ(w) = F(w) + ψ(w)",
    "suboptimality": "gap  Φ(w) - Φ*",
    "train_loss": "training loss",
    "val_loss": "validation loss",
    "train_accuracy": "training accuracy",
    "val_accuracy": "validation accuracy",
    "recovery_error": "‖w - w$_{\\mathrm{true}}$‖$_2$",
    "f1": "F1 of {support}",
    "precision": "precision of {support}",
    "recall": "recall of {support}",
    "density": "density: share of {support}",
    "rank": "rank: singular values > {cutoff}",
    "personal_train_loss": "training loss of own models",
    "personal_val_loss": "validation loss of own models",
    "personal_train_accuracy": "training accuracy of own models",
    "personal_val_accuracy": "validation accuracy of own models",
    "personal_density": "density of own models",
    "personal_rank": "rank of own models",
    "personal_recovery_error": "‖w$_m$ - w$_{m,\\mathrm{true}}$‖$_2$, mean over clients",
}


@dataclass(frozen=True)
class Look:
    """How an algorithm is drawn in every picture of a sweep, or a point in a picture of points."""

    colour: str
    dash: Any
    marker: str


def looks_of(frame: Frame) -> dict[str, Look]:
    """The look of each algorithm of a table, in the order of the table."""
    names = dict.fromkeys(name for name in frame["algo"] if isinstance(name, str))
    return {name: look(i) for i, name in enumerate(names)}


def look(i: int) -> Look:
    """The i-th of 49 looks; the first seven differ in colour, dash and marker."""
    return Look(COLOURS[i % 7], DASHES[(i + i // 7) % 7], _MARKERS[i % 8])


def title(frame: Frame, algo: str) -> str:
    """What pictures call an algorithm."""
    return frame.attrs.get("titles", {}).get(algo, algo)


def words(metric: str, cutoff: float | None, tail: int | None = None) -> str:
    """A metric as an axis names it, with its cutoff, and with the rounds of its tail if they are given."""
    size = "cutoff" if cutoff is None else f"{cutoff:g}"
    text = _WORDS.get(metric, metric)
    text = text.replace("{support}", f"|w$_j$| > {size}").replace("{cutoff}", size)
    return text + (f"\nmean of last {tail} rounds" if tail else "")


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


def legend(figure: Any, handles: Sequence[Any], texts: Sequence[str], handlelength: float = 2.6) -> None:
    """A legend on top of the figure, which grows by its height; in as many columns as fit, at most three."""
    tight = {"borderaxespad": 0.2, "labelspacing": 0.25, "columnspacing": 1.2, "handlelength": handlelength}
    width, tall = figure.get_size_inches()
    for columns in (3, 2, 1):
        found = figure.legend(handles, texts, loc="upper center", ncols=columns, frameon=False, **tight)
        box = found.get_window_extent(figure.canvas.get_renderer())
        if columns == 1 or box.width < figure.bbox.width:
            break
        found.remove()
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
