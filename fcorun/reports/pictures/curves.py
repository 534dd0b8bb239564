"""The picture of one run."""

import io
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fcorun.metrics import PERSONAL, silent
from fcorun.reports.pictures.axis import along, unit

# Okabe and Ito's palette, told apart by colour-blind readers too, and lines told apart in print without colours.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))

_DPI, _TICK = 150, 7  # pixels an inch, and of a tick

Panel = tuple[str, tuple[tuple[str, str], ...], bool]  # axis label, (metric, legend) of each line, logarithmic


def panels(names: list[str], cutoff: float) -> tuple[Panel, ...]:
    """What to draw for a run that has these metrics."""
    gap = "suboptimality" in names
    first = ("suboptimality", "gap  Φ(w) - Φ*") if gap else ("objective", "objective  Φ(w) = F(w) + ψ(w)")
    chosen: list[Panel] = [(first[1], ((first[0], ""),), True)]
    if PERSONAL + "train_loss" in names:
        return tuple(chosen + _own_panels(names, cutoff))
    if "train_accuracy" in names:
        chosen.append(("accuracy", (("train_accuracy", "training"), ("val_accuracy", "validation")), False))
    else:
        chosen.append(("mean loss", (("train_loss", "training"), ("val_loss", "validation")), True))
    support = f"|wⱼ| > {cutoff:g}"
    if "f1" in names:
        lines = (("f1", "F1"), ("precision", "precision"), ("recall", "recall"), ("density", "density"))
        chosen.append((f"support {{{support}}}", lines, False))
    elif "density" in names:
        chosen.append((f"share of {support}", (("density", ""),), False))
    if "rank" in names:
        chosen.append((f"rank: sing. values > {cutoff:g}", (("rank", ""),), False))
        if "recovery_error" in names:
            chosen.append(("distance from the true W", (("recovery_error", ""),), True))
    return tuple((label, tuple(line for line in lines if line[0] in names), log) for label, lines, log in chosen)


def _own_panels(names: list[str], cutoff: float) -> list[Panel]:
    """What to draw of the clients' own models beside the global one."""
    split = "val" if PERSONAL + "val_loss" in names else "train"
    kind = "accuracy" if "train_accuracy" in names else "loss"
    own = f"{PERSONAL}{split}_{kind}"
    lines = ((f"{split}_{kind}", "global"), (own, "own"), (own + "_q10", "own, 10 %"), (own + "_q90", "own, 90 %"))
    label = f"{'validation' if split == 'val' else 'training'} {kind}"
    found: list[Panel] = [(label, tuple(line for line in lines if line[0] in names), kind == "loss")]
    for name, text in (("density", f"share of |wⱼ| > {cutoff:g}"), ("rank", f"rank: sing. values > {cutoff:g}")):
        if PERSONAL + name in names:
            found.append((text, ((name, "global"), (PERSONAL + name, "own")), False))
    return found


@dataclass(frozen=True)
class _Scale:
    """An axis from ``low`` to ``high``; ``subs`` are the multiples of a power of ten that have ticks, none: linear."""

    low: float
    high: float
    subs: tuple[int, ...] = ()

    def places(self, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """Where values lie, 0 at the low end and 1 at the high one; nan for what no logarithmic axis can show."""
        if not self.subs:
            return (np.asarray(values) - self.low) / (self.high - self.low)
        positive = np.where(np.asarray(values) > 0, values, np.nan)
        return (np.log(positive) - math.log(self.low)) / math.log(self.high / self.low)


def _scale(values: Sequence[float], log: bool) -> _Scale:
    """A logarithmic axis with few, plain ticks where positive values span enough; else a linear one."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    positive = [value for value in finite if value > 0]  # a gap may have come down to nothing
    if not log or not positive or max(positive) < 4 * min(positive):
        low, high = min(finite), max(finite)
        room = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
        return _Scale(low - room, high + room)
    most = max(positive)
    least = max(min(positive), 2e-10 * most)  # ten decades below there is rounding only, which would flatten the rest
    return _Scale(0.5 * least, most * (most / least) ** 0.05, (1,) if most > 300 * least else (1, 2, 5))


@lru_cache(maxsize=64)
def _ticks(scale: _Scale) -> tuple[list[tuple[float, str]], str]:
    """The place and the label of each tick, and what matplotlib has taken out of all labels: "1e6", "+1e3"."""
    from matplotlib.ticker import LogLocator, MaxNLocator, ScalarFormatter

    locator = LogLocator(subs=scale.subs, numticks=8) if scale.subs else MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
    values = [value for value in locator.tick_values(scale.low, scale.high) if scale.low <= value <= scale.high]
    texts, common = [f"{value:g}" for value in values], ""
    if not scale.subs:
        formatter: Any = ScalarFormatter()
        formatter.create_dummy_axis()
        formatter.axis.set_view_interval(scale.low, scale.high)
        texts, common = formatter.format_ticks(values), formatter.get_offset()
    return list(zip(scale.places(values).tolist(), texts, strict=True)), common


class _Page:
    """A figure that is laid out once and drawn for many runs: what differs between them is drawn over the rest.

    matplotlib's axes go from 0 to 1; scales, ticks and their labels are our own, since its own take most of the time.
    """

    def __init__(self, chosen: tuple[Panel, ...], across: str):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.font_manager import findfont
        from PIL import ImageFont

        width, height, margin = 3.3 * len(chosen), 2.7, 0.8  # inches; the margin holds an axis' labels
        figure = Figure(figsize=(width, height), dpi=_DPI)
        self.canvas = FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(chosen), squeeze=False)[0]
        each = (width - margin - 0.1 - margin * (len(chosen) - 1)) / len(chosen)
        figure.subplots_adjust(margin / width, 0.18, 1 - 0.1 / width, 0.89, wspace=margin / each)
        self.panels, self.grids, self.lines = chosen, [], []
        for ax, (label, lines, log) in zip(axes, chosen, strict=True):
            ax.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
            ax.set_xlabel(across, labelpad=20)
            ax.set_ylabel(label, labelpad=39)
            self.grids += ax.plot([], [], color="#b0b0b0", alpha=0.25, linewidth=0.6, animated=True)
            self.lines.append(
                [
                    (name, ax.plot([], [], linestyle=dash, color=colour, label=legend, animated=True)[0])
                    for (name, legend), colour, dash in zip(lines, COLOURS, DASHES, strict=False)
                ]
            )
            if any(legend for _, legend in lines):
                ax.legend(frameon=False, fontsize=8, loc="upper right" if log else "lower right")
        self.canvas.draw()
        self.still = self.canvas.copy_from_bbox(figure.bbox)
        self.boxes = [(ax.bbox.x0, height * _DPI - ax.bbox.y0, ax.bbox.width, ax.bbox.height) for ax in axes]
        self.large, self.small = (ImageFont.truetype(findfont("DejaVu Sans"), size * _DPI / 72) for size in (10, 8))
        self.palette = _palette()

    def draw(self, rows: list[dict[str, float]], along: Sequence[float], title: str) -> bytes:
        from PIL import Image, ImageDraw

        across = _scale(along if len(rows) > 1 else [0, 1, *along], log=False)
        scales = [self._up(panel, rows) for panel in self.panels]
        self._draw_lines(rows, across.places(along), scales, [place for place, _ in _ticks(across)[0]])
        picture = Image.fromarray(np.asarray(self.canvas.buffer_rgba())).convert("RGB")
        pen = ImageDraw.Draw(picture)
        for (left, bottom, width, height), up in zip(self.boxes, scales, strict=True):
            for place, text in _ticks(across)[0]:
                at = round(left + place * width)
                pen.line((at, bottom, at, bottom + _TICK), "black", 2)
                pen.text((at, bottom + 2 * _TICK), text, "black", self.large, "mt")
            ticks, common = _ticks(up)
            for place, text in ticks:
                at = round(bottom - place * height)
                pen.line((left - _TICK, at, left, at), "black", 2)
                pen.text((left - 2 * _TICK, at), text, "black", self.large, "rm")
            pen.text((left, bottom - height - 4), common, "black", self.large, "ls")
        pen.text((picture.width / 2, 6), title, "black", self.small, "mt")
        buffer = io.BytesIO()
        few = picture.quantize(palette=self.palette, dither=Image.Dither.NONE)
        few.save(buffer, "png", compress_level=1, dpi=(_DPI, _DPI))
        return buffer.getvalue()

    def _up(self, panel: Panel, rows: list[dict[str, float]]) -> _Scale:
        """The y axis of a panel."""
        _, lines, log = panel
        if {name for name, _ in lines} & {"f1", "density", "train_accuracy"}:
            return _Scale(-0.03, 1.03)
        return _scale([row[name] for row in rows for name, _ in lines], log)

    def _draw_lines(self, rows: list[dict], across: np.ndarray, scales: list[_Scale], marks: list[float]) -> None:
        self.canvas.restore_region(self.still)
        renderer = self.canvas.get_renderer()
        for up, grid, lines in zip(scales, self.grids, self.lines, strict=True):
            grid.set_data(np.repeat(marks, 3), [0, 1, np.nan] * len(marks))
            grid.draw(renderer)
            for name, line in lines:
                line.set_data(across, up.places([row[name] for row in rows]))
                line.set_marker("" if len(rows) > 1 else ".")
                line.draw(renderer)


def _palette() -> Any:
    """The lines' colours in steps from white, as an image that holds them: with few colours a PNG is written fast."""
    from PIL import Image

    colours = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in COLOURS])
    steps = np.array([0, *np.linspace(0.06, 1, 35)])[:, None, None]  # nothing so near to white that it is taken for it
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.rint(255 + steps * (colours - 255)).astype(np.uint8).tobytes())
    return palette


def scale_y(ax: Any, values: list[float]) -> None:
    """A logarithmic y axis with few, plain ticks where positive values span enough; else a linear one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    scale = _scale(values, log=True)
    if not scale.subs:
        return ax.set_yscale("linear")
    ax.set_yscale("log", nonpositive="mask")
    ax.set_ylim(bottom=scale.low)
    ax.yaxis.set_major_locator(LogLocator(subs=scale.subs, numticks=8))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))


def _power(value: float) -> str:
    """A number as a tick says it: a very large or small one as a power of ten."""
    digits, e, exponent = f"{value:g}".partition("e")
    times = "" if digits == "1" else f"{digits}\\cdot"
    return f"${times}10^{{{int(exponent)}}}$" if e else digits


_page = lru_cache(maxsize=4)(_Page)
_drawing = threading.Lock()  # matplotlib is not made for threads


def draw_curves(rows: list[dict[str, float]], title: str, cutoff: float, x: str = "rounds") -> bytes:
    """curves.png: what this problem is about, against ``x``, as PNG bytes. No rows give empty axes.

    A baseline is drawn against its iterations where it has no ``x``. Raises UserError for others that have not.
    """
    names = list(rows[-1]) if rows else ["objective", "train_loss"]
    baseline = len(rows) > 1 and silent({"bytes_up": 0} | rows[-1])
    x = "iterations" if baseline and not rows[-1].get(x) else x
    places = along(rows, x, title)
    factor, label = unit(x, max(places, default=0))
    with _drawing:
        return _page(panels(names, cutoff), label).draw(rows, [place / factor for place in places], title)
