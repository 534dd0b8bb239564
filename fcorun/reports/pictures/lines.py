"""Curves of several runs side by side: a panel for each metric and what it is drawn against."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.metrics import PERSONAL, shared, silent
from fcorun.reports.pictures.axis import along, scale_y, unit, whole_x
from fcorun.reports.pictures.page import Look, columns, label_y, legend, page
from fcorun.reports.pictures.style import pt
from fcorun.reports.spread import agree, band, over
from fcorun.reports.table import Table

Runs = list[list[dict[str, float]]]


@dataclass(frozen=True)
class Line:
    """A curve: how it is called and drawn, and the rows of each seed."""

    label: str
    look: Look
    runs: Runs

    @property
    def name(self) -> str:
        """Its label in plain text."""
        return re.sub(r"[$\\]", "", self.label)

    @property
    def level(self) -> bool:
        """Whether it is a baseline's: it communicates nothing, its iterations are no rounds, its solution counts."""
        return len(self.runs[0]) > 1 and silent(self.runs[0][-1])

    @property
    def same(self) -> bool:
        """Whether its seeds agree all the way: there is no band to be drawn."""
        last = self.runs[0][-1]
        metric = next((name for name in ("objective", PERSONAL + "train_loss") if name in last), "")
        return all(agree([row[metric] for row in at]) for at in zip(*self.runs, strict=False))

    @property
    def alone(self) -> bool:
        """Whether its clients make models of their own and send nothing."""
        last = self.runs[0][-1]
        return not last["bytes_up"] and any(name.startswith(PERSONAL) for name in last)


def draw_lines(
    lines: Sequence[Line], shown: Sequence[str], xs: Sequence[str], table: Table, notes: Sequence[str] = ()
) -> Any:
    """A figure of curves, median and band over seeds.

    ``shown`` are its metrics, ``xs`` what they are drawn against: several make a column each, with a metric a row;
    ``table`` knows the metrics; ``notes`` end the legend. Raises UserError for a run that did not count an x.
    """
    curves = [line for line in lines if not line.level]
    places = {x: [value for line in curves for rows in line.runs for value in along(rows, x, line.name)] for x in xs}
    units = {x: unit(x, max(values, default=0)) for x, values in places.items()}
    panels = [(name, x) for name in shown for x in xs]
    crossed = len(xs) > 1
    across = len(xs) if crossed else columns(len(panels))
    height = 1.65 if across > 1 else 2.0
    narrow = len(xs) > 3  # panels so narrow that the unit goes below
    figure, axes = page(len(panels), across, height=height, left=0.7, bottom=0.58 if narrow else 0.45,
                        gap=(0.15, 0.15) if crossed else (0.74, 0.55))  # fmt: skip
    for place, (ax, (name, x)) in enumerate(zip(axes, panels, strict=True)):
        if crossed:
            _share(ax, axes[place - place % across], axes[place % across - across])
        factor, label = units[x]
        values = [value for line in lines for value in _draw(ax, line, name, x, factor)]
        metric = table.metrics[name]
        scale_y(ax, values if metric.log else [], metric.share)
        if not crossed or place >= len(panels) - across:
            ax.set_xlabel(label.replace(" (", "\n(") if narrow else label)
        if not crossed or place % across == 0:
            label_y(ax, table.words(name))
        ax.margins(x=0.02)
        whole_x(ax, x)
    _legend(figure, axes, lines, notes, table)
    return figure


def _legend(figure: Any, axes: Sequence[Any], lines: Sequence[Line], notes: Sequence[str], table: Table) -> None:
    """The lines of all panels, what a band is, and notes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = {text: handle for ax in axes for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    below = covered(axes)
    shown = {f"{text} (same line as {below[text]})" if text in below else text: shown[text] for text in shown}
    several = [line for line in lines if len(line.runs) > 1]
    spread = [len(line.runs) for line in several if not line.same]
    if spread:
        shown[f"median and {over(spread, table.seed_kind)}"] = Patch(color="0.5", alpha=0.35, linewidth=0)
    if len(spread) < len(several):
        shown["no band: seeds agree"] = Line2D([], [], linestyle="none")
    shown |= {note: Line2D([], [], linestyle="none") for note in notes}
    legend(figure, list(shown.values()), list(shown))


def covered(axes: Sequence[Any]) -> dict[str, str]:
    """The labels of lines that lie on an earlier one wherever they are drawn, with how that one is called."""
    drawn: dict[str, dict[int, Any]] = {}
    for place, ax in enumerate(axes):
        for line in (line for line in ax.lines if not str(line.get_label()).startswith("_")):
            path = line.get_transform().transform_path(line.get_path()).vertices
            drawn.setdefault(str(line.get_label()), {})[place] = path
    near = pt(0.6) * axes[0].figure.dpi / 72  # pixels, half of a line
    found: dict[str, str] = {}
    for number, (label, own) in enumerate(drawn.items()):
        for other, others in list(drawn.items())[:number]:
            if own.keys() == others.keys() and all(_alike(own[at], others[at], near) for at in own):
                found.setdefault(label, other.partition(":")[0])
    return found


def _alike(one: np.ndarray, other: np.ndarray, near: float) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=0, atol=near, equal_nan=True)


def _share(ax: Any, first: Any, last: Any) -> None:
    """Give a panel the y axis of the first one in its row and the x axis of the last one in its column."""
    if ax is not first:
        ax.sharey(first)
        ax.tick_params(labelleft=False)
    if ax is not last:
        ax.sharex(last)
        ax.tick_params(labelbottom=False)


def _draw(ax: Any, line: Line, name: str, x: str, factor: float) -> list[float]:
    """Draw a line; the values that its axis must hold. Clients without own models have the global one; where nothing is
    sent there is no global model to speak of."""
    if line.alone and not name.startswith(PERSONAL):
        return []
    if line.level:
        _, _, middle, _ = _bands(line, name, "iterations")
        ax.axhline(middle[-1], label=f"{line.label} (its solution)", **line.look.line)
        return [middle[-1]]
    across, low, middle, high = _bands(line, name, x)
    ax.plot(across / factor, middle, label=line.label, **line.look.line)
    if len(line.runs) > 1 and not line.same:
        ax.fill_between(across / factor, low, high, color=line.look.colour, alpha=0.2, linewidth=0)
    return [*low, *high]


def _bands(line: Line, name: str, x: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """At the rounds that all runs have: the median of ``x``, and low end, median and high end of a metric."""
    common = sorted(set.intersection(*({row["round"] for row in rows} for rows in line.runs)))
    found = [{row["round"]: row for row in rows} for rows in line.runs]
    across = np.median([along([at[r] for r in common], x, line.name) for at in found], axis=0)
    values = np.array([[at[r].get(name, at[r].get(shared(name), np.nan)) for r in common] for at in found])
    low, middle, high = band(values)
    return across, low, middle, high
