"""The picture of one run."""

import io
import threading
from functools import lru_cache
from typing import Any

import numpy as np

# Okabe and Ito's palette, told apart by colour-blind readers too, and lines told apart in print without colours.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))

Panel = tuple[str, tuple[tuple[str, str], ...], bool]  # axis label, (metric, legend) of each line, logarithmic


def panels(names: list[str], cutoff: float) -> tuple[Panel, ...]:
    """What to draw for a run that has these metrics."""
    gap = "suboptimality" in names
    first = ("suboptimality", "gap  Φ(w) - Φ*") if gap else ("objective", "objective  Φ(w) = F(w) + ψ(w)")
    chosen: list[Panel] = [(first[1], ((first[0], ""),), True)]
    if "train_accuracy" in names:
        chosen.append(("accuracy", (("train_accuracy", "training"), ("val_accuracy", "validation")), False))
    else:
        chosen.append(("mean loss", (("train_loss", "training"), ("val_loss", "validation")), True))
    support = f"|w$_j$| > {cutoff:g}"
    if "f1" in names:
        lines = (("f1", "F1"), ("precision", "precision"), ("recall", "recall"), ("density", "density"))
        chosen.append((f"support {{{support}}}", lines, False))
    elif "density" in names:
        chosen.append((f"density (share of {support})", (("density", ""),), False))
    if "rank" in names:
        chosen.append((f"rank (singular values > {cutoff:g})", (("rank", ""),), False))
    return tuple((label, tuple(line for line in lines if line[0] in names), log) for label, lines, log in chosen)


class _Page:
    """A figure that is laid out once and drawn for many runs: what differs between them is drawn over the rest."""

    def __init__(self, chosen: tuple[Panel, ...], across: str):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        width, margin = 3.3 * len(chosen), 0.8  # inches; the margin holds an axis' labels
        self.figure = Figure(figsize=(width, 2.7), dpi=150)
        self.canvas = FigureCanvasAgg(self.figure)
        self.axes = self.figure.subplots(1, len(chosen), squeeze=False)[0]
        each = (width - margin - 0.1 - margin * (len(chosen) - 1)) / len(chosen)
        self.figure.subplots_adjust(margin / width, 0.18, 1 - 0.1 / width, 0.89, wspace=margin / each)
        self.title = self.figure.suptitle("", fontsize=8, y=0.985)
        self.panels, self.lines = chosen, []
        for ax, (label, lines, log) in zip(self.axes, chosen, strict=True):
            for (name, legend), colour, dash in zip(lines, COLOURS, DASHES, strict=False):
                line = ax.plot([0, 1], [1, 1], linestyle=dash, color=colour, label=legend, animated=True)[0]
                self.lines.append((name, line))
            ax.set(xlabel=across, ylabel=label)
            ax.grid(axis="x", alpha=0.25, linewidth=0.6)
            if any(legend for _, legend in lines):
                ax.legend(frameon=False, fontsize=8, loc="upper right" if log else "lower right")
            ax.yaxis.set_animated(True)
        self.title.set_animated(True)
        self.still: dict[tuple, Any] = {}  # what does not change from run to run, by the rounds and the scales

    def draw(self, rows: list[dict[str, float]], title: str) -> bytes:
        from PIL import Image

        rounds = [row["round"] for row in rows]
        for name, line in self.lines:
            line.set_data(rounds, [row[name] for row in rows])
        self.title.set_text(title)
        for ax, (_, lines, log) in zip(self.axes, self.panels, strict=True):
            ax.relim()
            ax.autoscale_view()
            scale_y(ax, [row[name] for row in rows for name, _ in lines] if log else [])
            if {name for name, _ in lines} & {"f1", "density", "train_accuracy"}:
                ax.set_ylim(-0.03, 1.03)
        span = tuple(ax.get_xlim() for ax in self.axes)
        if span not in self.still:
            self.canvas.draw()
            self.still[span] = self.canvas.copy_from_bbox(self.figure.bbox)
            self.still = dict(list(self.still.items())[-4:])  # diverged runs are shorter than the others
        self.canvas.restore_region(self.still[span])
        renderer = self.canvas.get_renderer()
        for artist in (*(ax.yaxis for ax in self.axes), *(line for _, line in self.lines), self.title):
            artist.draw(renderer)
        buffer = io.BytesIO()
        picture = Image.fromarray(np.asarray(self.canvas.buffer_rgba()))
        picture.convert("RGB").save(buffer, "png", compress_level=2, dpi=(150, 150))
        return buffer.getvalue()


def scale_y(ax: Any, values: list[float]) -> None:
    """A logarithmic y axis with few, plain ticks where positive values span enough; else a linear one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    values = [value for value in values if value > 0]  # a gap may have come down to nothing
    if not values or max(values) < 4 * min(values):
        return ax.set_yscale("linear")
    ax.set_yscale("log", nonpositive="mask")
    # Ten decades below the top there is rounding only, which would flatten the rest.
    ax.set_ylim(bottom=max(0.5 * min(values), 1e-10 * max(values)))
    ax.yaxis.set_major_locator(LogLocator(subs=(1,) if max(values) > 300 * min(values) else (1, 2, 5), numticks=8))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


_page = lru_cache(maxsize=4)(_Page)
_drawing = threading.Lock()  # matplotlib is not made for threads


def draw_curves(rows: list[dict[str, float]], title: str, cutoff: float) -> bytes:
    """curves.png: what this problem is about, against the rounds, as PNG bytes. No rows give empty axes."""
    names = list(rows[-1]) if rows else ["objective", "train_loss"]
    silent = len(rows) > 1 and not rows[-1].get("bytes_up")
    with _drawing:
        return _page(panels(names, cutoff), "iteration" if silent else "communication round").draw(rows, title)
