"""The style and the layout of all pictures: sizes, curve styles, figures, axes, titles, legends, files.

Pictures are laid out in inches and points of a paper, and a style scales all of that to a paper's column, or to slides.
The current style is set for a block of code, as matplotlib's own settings are.
"""

import io
import math
import re
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from fcorun.base.config import CurveAxis, Settings
from fcorun.base.errors import UserError
from fcorun.base.metrics import CATALOGUE, MetricCatalogue
from fcorun.base.picture_style import PICTURE_WIDTHS, name_picture_style

# Okabe and Ito's palette, which colour-blind readers can tell apart; dashes tell lines apart in print without colours.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))
_MARKERS = "os^DvPX<"

# of text on paper: inches of a line, letters an inch, and inches of the labels below a panel
_TEXT_LINE = 0.13
_LETTERS_PER_INCH = 16.5
_X_LABELS = 0.45

_PAD = 0.03  # inches around the content of a picture, on paper

X_LABELS = {
    "rounds": "communication round",
    "iterations": "iteration",  # of a baseline, which has no rounds
    "bytes": "communication, up and down",
    "grad_evals": "gradients (examples)",
    "seconds": "time (s)",
    "simulated_seconds": "simulated time (s)",
}
_COLUMNS = {"rounds": "round", "iterations": "round"}  # the columns of metrics.csv that axes of another name show
_INTEGER_AXES = ("rounds", "iterations")
_UNITS = {"bytes": "B", "grad_evals": ""}  # of axes whose ticks have prefixes, such as k and M


@dataclass(frozen=True)
class PrintStyle:
    """The medium that pictures are drawn for.

    Attributes:
        column_width: inches, the width of a picture with one panel in a row.
        page_width: inches, the width of a picture with several panels in a row.
        scale: the factor by which sizes of texts, lines and gaps for paper are multiplied.
    """

    column_width: float
    page_width: float
    scale: float

    @property
    def most_across(self) -> int:
        """The number of panels of which a row has room."""
        return int(self.page_width / self.scale / _LEAST_PANEL)

    @property
    def rc_params(self) -> dict[Any, Any]:
        """The settings of matplotlib: labels of axes have 8 points on paper, other texts 7.

        Fonts are embedded in PDF as TrueType, since journals refuse Type 3.
        """
        sizes = {
            "font.size": FONT_SIZE,
            "axes.labelsize": 8,
            "axes.titlesize": FONT_SIZE,
            "axes.titlepad": 4,
            "axes.labelpad": 3,
            "legend.fontsize": FONT_SIZE,
            "legend.title_fontsize": FONT_SIZE,
            "figure.titlesize": FONT_SIZE,
            "lines.linewidth": 1.3,
            "lines.markersize": 3.5,
            "axes.linewidth": 0.6,
            "grid.linewidth": 0.5,
            "patch.linewidth": 0.8,
            "hatch.linewidth": 0.6,
        }
        for axis in ("xtick", "ytick"):
            sizes |= {f"{axis}.labelsize": FONT_SIZE, f"{axis}.major.width": 0.6, f"{axis}.minor.width": 0.4}
            sizes |= {f"{axis}.major.size": 3, f"{axis}.minor.size": 1.8, f"{axis}.major.pad": 3}
        return {name: value * self.scale for name, value in sizes.items()} | {
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "axes.axisbelow": True,
            "pdf.fonttype": 42,
            "svg.fonttype": "none",  # texts stay texts, which readers can search
            "svg.hashsalt": "fcorun",  # the same names of elements each time
            "font.sans-serif": ["DejaVu Sans"],  # SVG lists all of these for each text
            "figure.constrained_layout.h_pad": 0.04 * self.scale,
            "figure.constrained_layout.w_pad": 0.04 * self.scale,
            "figure.dpi": 300 / self.scale,
            "savefig.dpi": "figure",
        }


FONT_SIZE = 7.0  # points on paper, of the smallest text
STYLES = {
    "paper": PrintStyle(3.5, 7.0, 1.0),
    "slides": PrintStyle(6.8, 13.0, 2.0),
    **{name_picture_style("paper", width): PrintStyle(width, width, 1.0) for width in PICTURE_WIDTHS},
}
_LEAST_PANEL = 2.1  # inches on paper
_stack = [STYLES["paper"]]
_lock = threading.RLock()  # matplotlib's settings are shared by all threads


@contextmanager
def style_context(name: str = "paper") -> Iterator[None]:
    """Draw pictures, and write their files, in the style of this name within the block; one thread at a time.

    The user's matplotlibrc, which matplotlib reads in the current folder too, is ignored.
    """
    import matplotlib as mpl

    with _lock, mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLES[name].rc_params)
        _stack.append(STYLES[name])
        try:
            yield
        finally:
            _stack.pop()


def current_style() -> PrintStyle:
    """Return the style of the innermost ``style_context``."""
    return _stack[-1]


def pt(points: float) -> float:
    """Return points on paper as points of the current style."""
    return points * current_style().scale


@dataclass(frozen=True)
class CurveStyle:
    """The colour, dash and marker of a curve: of an algorithm in pictures of sweeps, of a feature in paths."""

    colour: str
    line_dash: Any
    marker: str

    @property
    def line_kwargs(self) -> dict[str, Any]:
        """The arguments of a line for matplotlib."""
        return {"color": self.colour, "linestyle": self.line_dash}


def curve_style(i: int) -> CurveStyle:
    """Return the i-th of 49 styles; the first seven differ in colour, dash and marker."""
    return CurveStyle(COLOURS[i % 7], DASHES[(i + i // 7) % 7], _MARKERS[i % 8])


def make_figure(
    count: int, across: int, *, height: float, title: Sequence[str] = (), wide: bool = False, is_matrix: bool = False
) -> tuple[Any, list[Any]]:
    """Return a figure of ``count`` panels, ``across`` in a row or as many as the page has room for, and its axes.

    The figure is as wide as the page of the style, or as its column if a row has one panel and ``wide`` is false.
    Margins are those of matplotlib's constrained layout, which makes room for labels, titles and legends.

    Args:
        height: about the height of a panel, in inches on paper.
        title: paragraphs above all panels.
        is_matrix: panels of a column share the x axis, and panels of a row the y axis.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style = current_style()
    if not is_matrix:
        across = min(across, style.most_across)
    n_rows = -(-count // across)
    width = style.page_width if wide or across > 1 else style.column_width
    width /= style.scale
    lines = [line for text in title for line in textwrap.wrap(text, int(_LETTERS_PER_INCH * width))]
    total_height = _TEXT_LINE * len(lines) + n_rows * (height + _X_LABELS)
    figure = Figure(figsize=(width * style.scale, total_height * style.scale), layout="constrained")
    FigureCanvasAgg(figure)
    if lines:
        figure.suptitle("\n".join(lines), parse_math=False)
    shared: dict[str, Any] = {"sharex": "col", "sharey": "row"} if is_matrix else {}
    panels = list(figure.subplots(n_rows, across, squeeze=False, **shared).flat)
    for ax in panels[count:]:
        ax.remove()
    return figure, panels[:count]


def set_y_label(ax: Any, text: str) -> None:
    """Label the y axis in lines that are no longer than the axis; lines end before a symbol or an explanation.

    A comparison such as |w| > 0.1 stays in one line.
    """
    text = re.sub(r" ([<>]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)
    style = current_style()
    max_letters = int(_LETTERS_PER_INCH * ax.get_position().height * ax.figure.get_figheight() / style.scale)
    hidden = r"\\mathrm|[${}_^]"  # of |w$_j$|, which a reader sees as |wj|
    if any(len(re.sub(hidden, "", line)) > max_letters for line in text.split("\n")):
        text = text.replace("  ", "\n").replace(": ", ":\n")
    lines = []
    for line in text.split("\n"):
        n_hidden = sum(map(len, re.findall(hidden, line)))
        lines.append(textwrap.fill(line, max_letters + n_hidden, break_long_words=False))
    ax.set_ylabel("\n".join(lines).replace("\N{NO-BREAK SPACE}", " "))


def count_panel_columns(count: int) -> int:
    """Return how many of ``count`` panels stand side by side on a page of the current style."""
    return min({1: 1, 2: 2, 3: 3, 4: 2}.get(count, 3), current_style().most_across)


def wrap_note(text: str) -> str:
    """Return a note below the panels in lines that fit onto a page of the current style."""
    style = current_style()
    return textwrap.fill(text, int(0.85 * _LETTERS_PER_INCH * style.page_width / style.scale))


def legend_name(name: str) -> str:
    """Return the text of a legend entry for a name; matplotlib shows no entry whose text begins with "_"."""
    return f"\N{ZERO WIDTH SPACE}{name}" if name.startswith("_") else name


def shorten_name(name: str, max_letters: int) -> str:
    """Return a name at most as wide as ``max_letters`` usual letters, with an ellipsis before its last third."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(name, FontProperties(size=FONT_SIZE), ismath=False)
    n_usual_letters = max(len(name), width / 72 * _LETTERS_PER_INCH)  # W and letters of Asia are wider
    if n_usual_letters <= max_letters:
        return name
    max_letters = int(max_letters * len(name) / n_usual_letters)
    n_end = max_letters // 3
    return f"{name[: max_letters - n_end - 1].rstrip()}…{name[len(name) - n_end :].lstrip()}"


def escape_dollars(text: str) -> str:
    """Return a text with its "$" escaped, so that matplotlib reads no formula in it."""
    return text.replace("$", "\\$")


def collect_entries(axes: Sequence[Any]) -> dict[str, Any]:
    """Return the entries of a legend for the labelled curves of these panels: the handle of each text."""
    entries = {}
    for ax in axes:
        handles, texts = ax.get_legend_handles_labels()
        entries |= dict(zip(texts, handles, strict=True))
    return entries


def add_legend(figure: Any, entries: Mapping[str, Any], handlelength: float = 2.6, parse_math: bool = True) -> None:
    """Add a legend below the panels, for which the figure grows, in as many columns as fit, at most three.

    ``entries`` has the handle of each text. With ``parse_math=False`` a "$" begins no formula.
    """
    options: dict[str, Any] = {"labelspacing": 0.25, "columnspacing": 1.2, "handlelength": handlelength}
    options |= {"handles": list(entries.values()), "labels": list(entries)}
    options |= {"loc": "outside lower center", "frameon": False}
    for n_columns in (3, 2, 1):
        legend = figure.legend(ncols=n_columns, **options)
        for text in legend.get_texts():
            text.set_parse_math(parse_math)
        box = legend.get_window_extent(figure.canvas.get_renderer())
        if box.width < figure.bbox.width:
            break
        if n_columns > 1:
            legend.remove()
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + box.height / figure.dpi)


def add_legend_above(ax: Any, columns: int, **options: Any) -> None:
    """Add a legend above a panel, so that the legend covers no curve. A "$" in a name begins no formula."""
    options |= {"borderaxespad": 0.3, "labelspacing": 0.25, "columnspacing": 1.0, "handlelength": 2.2, "frameon": False}
    legend = ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, **options)
    for text in legend.get_texts():
        text.set_parse_math(False)


def render_formats(figure: Any, formats: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of the files of a figure by format, cropped to what is drawn, which is measured once.

    SVG has its texts as texts, and is the same each time.
    """
    renderer = figure.canvas.get_renderer()
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
        figure.set_layout_engine(None)
    # not "tight", for which matplotlib draws each file twice
    box = figure.get_tightbbox(renderer).padded(pt(_PAD))
    contents = {}
    for format in formats:
        buffer = io.BytesIO()
        metadata = {"Date": None} if format == "svg" else None
        figure.savefig(buffer, format=format, bbox_inches=box, metadata=metadata)
        contents[format] = buffer.getvalue()
    return contents


def study_formats(settings: Settings) -> tuple[str, ...]:
    """Return the formats of the pictures of a study: PNG, and PDF if the settings ask for it."""
    return ("png", "pdf") if settings.pdf else ("png",)


def render_picture(name: str, figure: Any, settings: Settings) -> dict[str, bytes]:
    """Return the contents of the files of a study's picture by name."""
    contents = render_formats(figure, study_formats(settings))
    return {f"{name}.{format}": content for format, content in contents.items()}


def sum_bytes(row: Mapping[str, float]) -> float:
    """Return the bytes that were sent until an evaluation, summed over directions and levels."""
    return sum(row.get(name, 0) for name in ("bytes_up", "bytes_down", "edge_bytes_up", "edge_bytes_down"))


def x_values(rows: Sequence[dict[str, float]], x: str, run: str) -> list[float]:
    """Return the positions of a run's evaluations on the axis ``x``.

    Raises UserError, which names the run ``run``, if the run did not count ``x``.
    """
    if x == "bytes":
        return [sum_bytes(row) for row in rows]
    if not has_counted(rows, x):
        counted = [name for name in get_args(CurveAxis) if name in ("rounds", "bytes") or name in rows[0]]
        advice = f"choose x as one of {', '.join(counted)}"
        if x == "simulated_seconds":
            advice += ", or run it again with a clock"
        elif x in get_args(CurveAxis):
            advice += ", or run it again with `force=true`"
        raise UserError(f"`x={x}` was not counted in {run}; {advice}")
    return [row[_COLUMNS.get(x, x)] for row in rows]


def has_counted(rows: Sequence[dict[str, float]], x: str) -> bool:
    """Return whether a run has counted ``x``, as each counts rounds and bytes."""
    return x == "bytes" or not rows or _COLUMNS.get(x, x) in rows[0]


def median_x_values(runs: Sequence[Sequence[dict[str, float]]], x: str, run: str) -> np.ndarray:
    """Return the position of each evaluation on the axis ``x``, the median over seeds that ``align_seeds`` returns.

    Only seeds that have not ended count. Raises UserError as ``x_values``.
    """
    return np.maximum.accumulate(np.nanmedian([x_values(rows, x, run) for rows in runs], axis=0))


def set_x_axis(ax: Any, x: str, metrics: MetricCatalogue = CATALOGUE) -> None:
    """Label an x axis, with ticks that fit side by side; an axis that is a metric has the label of ``metrics``."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    ax.set_xlabel(X_LABELS[x] if x in X_LABELS else metrics[x].axis_label(None))
    if x in _UNITS:
        ax.xaxis.set_major_formatter(EngFormatter(_UNITS[x]))
    ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=x in _INTEGER_AXES, min_n_ticks=1))


_ROUNDING = 1e-5  # of differences of metrics in float32, as a share of the largest value


def set_y_scale(ax: Any, values: Sequence[float], bounded: bool = False) -> None:
    """Set a logarithmic y axis with few, plain ticks if positive values span enough, else a linear one.

    The axis of a ``bounded`` metric is linear, from 0 to 1, and so is one with values below zero by more than rounding,
    which a logarithm would hide.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    positive = [value for value in values if 0 < value < math.inf]
    has_negative = any(-math.inf < value < -_ROUNDING * max(positive, default=0) for value in values)
    if bounded or has_negative or not positive or max(positive) < 4 * min(positive):
        ax.set_yscale("linear")
        if bounded:
            ax.set_ylim(-0.03, 1.03)
        return
    largest = max(positive)
    smallest = max(min(positive), 1e-30 * largest)  # no difference of numbers in float64 is so small
    margin = (largest / smallest) ** 0.05
    # set before the scale: matplotlib's own limits overflow for huge values
    ax.set_ylim(smallest / max(margin, 2), largest * margin)
    # clipped, since a band without the points of its lower edge would be another polygon
    ax.set_yscale("log", nonpositive="clip")
    ax.yaxis.set_major_locator(LogLocator(subs=(1,) if largest > 300 * smallest else (1, 2, 5), numticks=8))
    ax.yaxis.set_minor_locator(NullLocator())
    in_powers = any("e" in f"{limit:g}" for limit in ax.get_ylim())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _format_tick(value, in_powers)))


def end_lines_at_rounding(ax: Any) -> bool:
    """End the lines of a logarithmic y axis at their first value that is not positive; return whether one ends so.

    That value is a rounding error, and so are the positive ones after it.
    """
    ends_early = False
    for line in ax.lines if ax.get_yscale() == "log" else []:
        values = np.array(line.get_ydata(), float)
        is_rounding = np.logical_or.accumulate(values <= 0)
        line.set_ydata(np.where(is_rounding, np.nan, values))
        ends_early |= bool(is_rounding.any())
    return ends_early


def _format_tick(value: float, in_powers: bool) -> str:
    """Return a number as a tick label, all of an axis in one notation: ``in_powers`` of ten where some are huge."""
    if not in_powers:
        return f"{value:g}"
    digits, _, exponent = f"{value:.0e}".partition("e")
    factor = "" if digits == "1" else f"{digits}\\cdot"
    return f"${factor}10^{{{int(exponent)}}}$"
