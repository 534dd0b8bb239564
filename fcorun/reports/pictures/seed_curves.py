"""Curves with bands over seeds, of several points: a panel for each metric and each x axis."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.base.metrics import PERSONAL_PREFIX, global_name, is_baseline_row
from fcorun.reports.pictures.layout import (
    CurveStyle,
    add_legend,
    choose_unit,
    count_panel_columns,
    legend_name,
    make_figure,
    set_x_ticks,
    set_y_label,
    set_y_scale,
    x_values,
)
from fcorun.reports.pictures.style import pt
from fcorun.reports.run_table import RunTable
from fcorun.reports.seed_bands import describe_band, seed_band, seeds_agree

SeedRuns = list[list[dict[str, float]]]


@dataclass(frozen=True)
class Curve:
    """The curve of a point: its label, its style, and the evaluations of each seed."""

    label: str
    style: CurveStyle
    runs: SeedRuns

    @property
    def plain_label(self) -> str:
        """The label without mathematics."""
        return re.sub(r"[$\\]", "", self.label)

    @property
    def is_level(self) -> bool:
        """True for a level line: a baseline, which has no rounds, or one evaluation alone, as of a relaxed model."""
        return all(len(run) == 1 or is_baseline_row(run[-1]) for run in self.runs)

    @property
    def has_equal_seeds(self) -> bool:
        """True if all seeds agree at every evaluation, so that the curve has no band."""
        last = self.runs[0][-1]
        names = ("objective", PERSONAL_PREFIX + "train_loss", "train_loss")  # relaxed models have no objective
        metric = next(name for name in names if name in last)
        evaluations = zip(*self.runs, strict=False)
        return all(seeds_agree([row[metric] for row in rows]) for rows in evaluations)

    @property
    def ends_early(self) -> bool:
        """True if a seed stopped before another one: the curve has the rounds of all seeds alone."""
        return not self.is_level and len({rows[-1]["round"] for rows in self.runs}) > 1

    @property
    def personal_only(self) -> bool:
        """True if clients train personal models and send nothing."""
        last = self.runs[0][-1]
        return not last["bytes_up"] and any(name.startswith(PERSONAL_PREFIX) for name in last)


def draw_curves(
    curves: Sequence[Curve],
    metrics: Sequence[str],
    x_axes: Sequence[str],
    table: RunTable,
    notes: Sequence[str] = (),
) -> Any:
    """Return a figure of curves, the median and the band over seeds, a panel for each metric.

    With several ``x_axes``, each has a column of panels, and each metric a row. ``notes`` end the legend. Raises
    UserError for a run that did not count an x axis.
    """
    units = {}
    for x in x_axes:
        values = []
        for curve in curves:
            if not curve.is_level:
                for rows in curve.runs:
                    values += x_values(rows, x, curve.plain_label)
        units[x] = choose_unit(x, max(values, default=0), table.metrics)
    panels = [(name, x) for name in metrics for x in x_axes]
    is_matrix = len(x_axes) > 1
    across = len(x_axes) if is_matrix else count_panel_columns(len(panels))
    is_narrow = len(x_axes) > 3  # units go to a second line
    figure, axes = make_figure(len(panels), across, height=1.65 if across > 1 else 2.0)
    for i, (ax, (name, x)) in enumerate(zip(axes, panels, strict=True)):
        row, column = divmod(i, across)
        if is_matrix:
            _share_axes(ax, axes[row * across], axes[column - across])
        factor, label = units[x]
        values = [value for curve in curves for value in _draw_curve(ax, curve, name, x, factor)]
        metric = table.metrics[name]
        set_y_scale(ax, values if metric.log else [], metric.bounded)
        if not is_matrix or i >= len(panels) - across:
            ax.set_xlabel(label.replace(" (", "\n(") if is_narrow else label)
        if not is_matrix or column == 0:
            set_y_label(ax, table.axis_label(name))
        ax.margins(x=0.02)
        set_x_ticks(ax, x)
    _add_curve_legend(figure, axes, curves, notes, table)
    return figure


def _add_curve_legend(
    figure: Any, axes: Sequence[Any], curves: Sequence[Curve], notes: Sequence[str], table: RunTable
) -> None:
    """Add a legend with the curves of all panels, the meaning of the bands, and notes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handle_of = {}
    for ax in axes:
        handle_of |= {text: handle for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    hidden = find_hidden_curves(axes)
    entries = {}
    for text, handle in handle_of.items():
        entries[f"{text} (same line as {hidden[text]})" if text in hidden else text] = handle
    with_seeds = [curve for curve in curves if len(curve.runs) > 1]
    with_band = [len(curve.runs) for curve in with_seeds if not curve.has_equal_seeds]
    blank = Line2D([], [], linestyle="none")
    if with_band:
        band = describe_band(with_band, table.seed_kind)
        entries[f"median and {band}"] = Patch(color="0.5", alpha=0.35, linewidth=0)
    if len(with_band) < len(with_seeds):
        entries["no band: seeds agree"] = blank
    if any(curve.ends_early for curve in curves):
        entries["curves end where their first seed stopped"] = blank
    entries |= dict.fromkeys(notes, blank)
    add_legend(figure, list(entries.values()), list(entries))


def find_hidden_curves(axes: Sequence[Any]) -> dict[str, str]:
    """Return the labels of curves that lie on an earlier curve in every panel, with the name of that curve."""
    paths_of_label: dict[str, dict[int, Any]] = {}
    for panel, ax in enumerate(axes):
        for line in ax.lines:
            label = str(line.get_label())
            if not label.startswith("_"):
                path = line.get_transform().transform_path(line.get_path()).vertices
                paths_of_label.setdefault(label, {})[panel] = path
    half_line = pt(0.6) * axes[0].figure.dpi / 72  # pixels
    hidden: dict[str, str] = {}
    curves = list(paths_of_label.items())
    for i, (label, paths) in enumerate(curves):
        for earlier, earlier_paths in curves[:i]:
            if paths.keys() != earlier_paths.keys():
                continue
            if all(_is_same_path(paths[panel], earlier_paths[panel], half_line) for panel in paths):
                hidden.setdefault(label, earlier.partition(":")[0])
    return hidden


def _is_same_path(path: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    return path.shape == other.shape and np.allclose(path, other, rtol=0, atol=tolerance, equal_nan=True)


def _share_axes(ax: Any, first_in_row: Any, last_in_column: Any) -> None:
    """Share the y axis of a panel with the first panel of its row, and the x axis with the last of its column."""
    if ax is not first_in_row:
        ax.sharey(first_in_row)
        ax.tick_params(labelleft=False)
    if ax is not last_in_column:
        ax.sharex(last_in_column)
        ax.tick_params(labelbottom=False)


def _draw_curve(ax: Any, curve: Curve, name: str, x: str, factor: float) -> list[float]:
    """Draw a curve of a metric, and return the values that the y axis must include.

    Clients without personal models have the shared one. Clients that send nothing have no shared model to draw.
    """
    if curve.personal_only and not name.startswith(PERSONAL_PREFIX):
        return []
    label = legend_name(curve.label)
    if curve.is_level:
        level = float(
            np.median([_metric_of(rows[-1], name) for rows in curve.runs])
        )  # seeds differ in their iterations
        ax.axhline(level, label=f"{label} (its solution)", **curve.style.line_kwargs)
        return [level]
    xs, low, median, high = _compute_band(curve, name, x)
    ax.plot(xs / factor, median, label=label, **curve.style.line_kwargs)
    if len(curve.runs) > 1 and not curve.has_equal_seeds:
        ax.fill_between(xs / factor, low, high, color=curve.style.colour, alpha=0.2, linewidth=0)
    return [*low, *high]


def _compute_band(curve: Curve, name: str, x: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the median of ``x``, and the low end, the median and the high end of a metric, at common rounds."""
    row_of_round = [{row["round"]: row for row in rows} for rows in curve.runs]
    rounds = sorted(set.intersection(*(set(rows) for rows in row_of_round)))
    xs = []
    values = []
    for rows in row_of_round:
        common = [rows[r] for r in rounds]
        xs.append(x_values(common, x, curve.plain_label))
        values.append([_metric_of(row, name) for row in common])
    low, median, high = seed_band(np.array(values))
    return np.median(xs, axis=0), low, median, high


def _metric_of(row: dict[str, float], name: str) -> float:
    """Return a metric of an evaluation; without personal models that of the shared model, NaN without either."""
    return row.get(name, row.get(global_name(name), np.nan))
