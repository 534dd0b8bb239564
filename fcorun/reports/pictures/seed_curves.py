"""Curves of several runs side by side: a panel for each metric and what it is drawn against."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.metrics import PERSONAL_PREFIX, global_name, is_baseline_row
from fcorun.reports.pictures.axis import choose_unit, set_x_ticks, set_y_scale, x_values
from fcorun.reports.pictures.layout import CurveStyle, add_legend, count_panel_columns, make_figure, set_y_label
from fcorun.reports.pictures.style import pt
from fcorun.reports.run_table import RunTable
from fcorun.reports.seed_bands import describe_band, seed_band, seeds_agree

SeedRuns = list[list[dict[str, float]]]


@dataclass(frozen=True)
class Curve:
    """A curve: how it is called and drawn, and the rows of each seed."""

    label: str
    style: CurveStyle
    runs: SeedRuns

    @property
    def plain_label(self) -> str:
        """Its label in plain text."""
        return re.sub(r"[$\\]", "", self.label)

    @property
    def is_baseline(self) -> bool:
        """Whether it is a baseline's: it communicates nothing, its iterations are no rounds, its solution counts."""
        return len(self.runs[0]) > 1 and is_baseline_row(self.runs[0][-1])

    @property
    def has_equal_seeds(self) -> bool:
        """Whether its seeds agree all the way: there is no band to be drawn."""
        last = self.runs[0][-1]
        metric = next((name for name in ("objective", PERSONAL_PREFIX + "train_loss") if name in last), "")
        return all(seeds_agree([row[metric] for row in at]) for at in zip(*self.runs, strict=False))

    @property
    def personal_only(self) -> bool:
        """Whether its clients make models of their own and send nothing."""
        last = self.runs[0][-1]
        return not last["bytes_up"] and any(name.startswith(PERSONAL_PREFIX) for name in last)


def draw_curves(
    lines: Sequence[Curve], shown: Sequence[str], xs: Sequence[str], table: RunTable, notes: Sequence[str] = ()
) -> Any:
    """A figure of curves, median and band over seeds.

    ``shown`` are its metrics, ``xs`` what they are drawn against: several make a column each, with a metric a row;
    ``table`` knows the metrics; ``notes`` end the legend. Raises UserError for a run that did not count an x.
    """
    curves = [line for line in lines if not line.is_baseline]
    places = {
        x: [value for line in curves for rows in line.runs for value in x_values(rows, x, line.plain_label)] for x in xs
    }
    units = {x: choose_unit(x, max(values, default=0)) for x, values in places.items()}
    panels = [(name, x) for name in shown for x in xs]
    crossed = len(xs) > 1
    across = len(xs) if crossed else count_panel_columns(len(panels))
    height = 1.65 if across > 1 else 2.0
    narrow = len(xs) > 3  # panels so narrow that the unit goes below
    figure, axes = make_figure(len(panels), across, height=height, left=0.7, bottom=0.58 if narrow else 0.45,
                        gap=(0.15, 0.15) if crossed else (0.74, 0.55))  # fmt: skip
    for place, (ax, (name, x)) in enumerate(zip(axes, panels, strict=True)):
        if crossed:
            _share(ax, axes[place - place % across], axes[place % across - across])
        factor, label = units[x]
        values = [value for line in lines for value in _draw(ax, line, name, x, factor)]
        metric = table.metrics[name]
        set_y_scale(ax, values if metric.log else [], metric.bounded)
        if not crossed or place >= len(panels) - across:
            ax.set_xlabel(label.replace(" (", "\n(") if narrow else label)
        if not crossed or place % across == 0:
            set_y_label(ax, table.axis_label(name))
        ax.margins(x=0.02)
        set_x_ticks(ax, x)
    _legend(figure, axes, lines, notes, table)
    return figure


def _legend(figure: Any, axes: Sequence[Any], lines: Sequence[Curve], notes: Sequence[str], table: RunTable) -> None:
    """The lines of all panels, what a band is, and notes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = {text: handle for ax in axes for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    below = find_hidden_curves(axes)
    shown = {f"{text} (same line as {below[text]})" if text in below else text: shown[text] for text in shown}
    several = [line for line in lines if len(line.runs) > 1]
    spread = [len(line.runs) for line in several if not line.has_equal_seeds]
    if spread:
        shown[f"median and {describe_band(spread, table.seed_kind)}"] = Patch(color="0.5", alpha=0.35, linewidth=0)
    if len(spread) < len(several):
        shown["no band: seeds agree"] = Line2D([], [], linestyle="none")
    shown |= {note: Line2D([], [], linestyle="none") for note in notes}
    add_legend(figure, list(shown.values()), list(shown))


def find_hidden_curves(axes: Sequence[Any]) -> dict[str, str]:
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


def _draw(ax: Any, line: Curve, name: str, x: str, factor: float) -> list[float]:
    """Draw a line; the values that its axis must hold. Clients without own models have the global one; where nothing is
    sent there is no global model to speak of."""
    if line.personal_only and not name.startswith(PERSONAL_PREFIX):
        return []
    if line.is_baseline:
        _, _, middle, _ = _bands(line, name, "iterations")
        ax.axhline(middle[-1], label=f"{line.label} (its solution)", **line.style.line_kwargs)
        return [middle[-1]]
    across, low, middle, high = _bands(line, name, x)
    ax.plot(across / factor, middle, label=line.label, **line.style.line_kwargs)
    if len(line.runs) > 1 and not line.has_equal_seeds:
        ax.fill_between(across / factor, low, high, color=line.style.colour, alpha=0.2, linewidth=0)
    return [*low, *high]


def _bands(line: Curve, name: str, x: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """At the rounds that all runs have: the median of ``x``, and low end, median and high end of a metric."""
    common = sorted(set.intersection(*({row["round"] for row in rows} for rows in line.runs)))
    found = [{row["round"]: row for row in rows} for rows in line.runs]
    across = np.median([x_values([at[r] for r in common], x, line.plain_label) for at in found], axis=0)
    values = np.array([[at[r].get(name, at[r].get(global_name(name), np.nan)) for r in common] for at in found])
    low, middle, high = seed_band(values)
    return across, low, middle, high
