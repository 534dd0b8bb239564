"""The curves of the best point of each algorithm: metrics against rounds, bytes, evaluations or time."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.metrics import (
    CATALOGUE,
    GAP_METRICS,
    PERSONAL_PREFIX,
    global_name,
    is_baseline_row,
    metric_of,
    structure_metrics,
)
from fcorun.reports.pictures import layout
from fcorun.reports.pictures.layout import pt
from fcorun.reports.pictures.picture import Picture
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.run_table import (
    GridEdge,
    RunTable,
    align_seeds,
    average_evaluations,
    describe_band,
    seed_band,
    seeds_agree,
)
from fcorun.reports.unfinished import describe_shares_above
from fcorun.results.models.coefficients import personal_only

_SYMBOLS = {
    "algo.client_lr": "$\\eta_c$",
    "algo.server_lr": "$\\eta_s$",
    "reg.strength": "strength",
    "algo.step": "s",
    "algo.rho": "$\\rho$",
    "algo.mu": "$\\mu$",
    "algo.alpha": "$\\alpha$",
    "algo.gamma": "$\\gamma$",
}
_LEARNING_RATES = ("algo.client_lr", "algo.server_lr")
_LARGEST, _SMALLEST = "$\\uparrow$", "$\\downarrow$"  # marks of values at the edge of the grid


@dataclass(frozen=True)
class Curve:
    """The curve of a point: its label, its style, and the evaluations of each seed."""

    label: str
    style: layout.CurveStyle
    runs: list[list[dict[str, float]]]

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


@dataclass(frozen=True)
class BestCurves:
    """The curves of the best points, the metrics of the panels, the x axes, and notes that end the legend."""

    curves: Sequence[Curve]
    metrics: Sequence[str]
    x_axes: Sequence[str]
    table: RunTable
    notes: Sequence[str]


def collect_curves(view: ProblemView) -> BestCurves | None:
    """Return a curve for each algorithm and the metrics of the panels; None if no run is done.

    Raises UserError for panels of ``view`` that no run measured.
    """
    rows = view.best_rows()
    edges = view.grid_edges()
    if not rows:
        return None
    settings = [_format_settings(view, row, edges) for row in rows]
    common = {}  # the settings that several points have, all with the same value
    for key in dict.fromkeys(key for values in settings for key in values):
        values = [point[key] for point in settings if key in point]
        if len(values) > 1 and len(set(values)) == 1:
            common[key] = values[0]
    curves = []
    styles = dict(view.curve_styles)
    n_styles = len(styles)
    for row, values in zip(rows, settings, strict=True):
        label = view.algo_title(row["algo"])
        specific = {key: value for key, value in values.items() if key not in common}
        if specific:
            label += f": {_join_settings(specific)}"
        if row["tied"]:
            label += f" (tied with {len(row['tied'])})"
        measured = [run for run in row["rows"] if view.records[run].rows]  # else metrics.csv is missing
        if not measured:
            continue
        repetitions = view.table.group_repetitions(measured)
        runs = [average_evaluations([view.records[run].rows for run in group]) for group in repetitions]
        curves.append(Curve(label, styles[row["algo"]], runs))
        styles[row["algo"]] = layout.curve_style(n_styles)  # of the algorithm's line under another condition
        n_styles += 1
    if not curves:
        return None
    notes = [layout.escape_dollars(view.problem)] if view.problem else []
    if common:
        notes.append(f"all: {_join_settings(common)}")
    if any(mark in value for values in settings for value in values.values() for mark in (_LARGEST, _SMALLEST)):
        notes.append(f"{_LARGEST}, {_SMALLEST}: largest, smallest tried: try beyond")
    best = view.table.take([run for row in rows for run in row["rows"]])
    unlike = best.unlike_rounds(view.metric)
    if unlike and "rounds" in view.x_axes:
        notes.append(f"a round of {', '.join(map(view.algo_title, unlike))} is one upload: see x=bytes")
    if far := describe_shares_above(view.table, rows, view.metric):
        notes.append(layout.escape_dollars(far))
    measured = list(dict.fromkeys(name for curve in curves for name in curve.runs[0][-1]))
    panels = _choose_measured_panels(view, best, measured)
    for name in panels:
        if not best.is_one_function(name):
            notes.append(f"{name}: another function for each {' and '.join(best.function_keys(name))}")
    return BestCurves(curves, panels, view.x_axes, view.table, notes)


def _join_settings(values: dict[str, str]) -> str:
    return ", ".join(f"{_SYMBOLS.get(key, key)} = {value}" for key, value in values.items())


def _choose_measured_panels(view: ProblemView, best: RunTable, measured: Sequence[str]) -> list[str]:
    """Return the panels of ``view``, or those that its problem calls for. Raises UserError as ``collect_curves``.

    Metrics that are another function for some of the ``best`` runs share no panel, unless ``view`` asks for it.
    """
    comparable = [name for name in measured if best.is_one_function(name)]
    if view.panels:
        panels = list(view.panels)
    else:
        panels = choose_sweep_panels(comparable, view.metric)
        panels = [name for name in panels if name in comparable or name not in measured]
        panels = panels or [view.metric]
    missing = [name for name in panels if name not in measured and global_name(name) not in measured]
    panels = [name for name in panels if name not in missing]
    if missing and (view.panels or not panels):
        raise UserError(
            f"figure.panels: {', '.join(missing)} was not measured: leave it out, or run what measures it "
            "(suboptimality: `reference=true`; gap: `gap=true`)"
        )
    return panels


def choose_sweep_panels(names: Sequence[str], metric: str) -> list[str]:
    """Return the metrics to draw for runs that have these metrics ``names`` and are judged by ``metric``."""
    panels = [next((name for name in (*GAP_METRICS, "objective") if name in names), "train_loss")]
    quality = ("val_loss", "val_accuracy", "train_accuracy")
    panels.append(next((name for name in quality if name in names), "train_loss"))
    panels = [name for name in panels if name in names]  # runs with personal models alone have neither
    if any(name.startswith(PERSONAL_PREFIX) for name in names):
        personal = [PERSONAL_PREFIX + name for name in ("val_loss", "val_accuracy", "train_loss", "train_accuracy")]
        if metric in personal:
            personal.insert(0, metric)
        panels.append(next((name for name in personal if name in names), metric))
        panels += [name for name in structure_metrics(PERSONAL_PREFIX) if name in names]
    else:
        panels += [name for name in ("support_f1", *structure_metrics("")) if name in names]
    if metric in names and metric not in CATALOGUE:  # declared by a plug-in
        panels.append(metric)
    return list(dict.fromkeys(panels))


def _format_settings(view: ProblemView, row: dict[str, Any], edges: Sequence[GridEdge]) -> dict[str, str]:
    """Return the settings of a best point as text: those that vary among its algorithm's points, and learning rates.

    Values at the edge of the grid have a mark.
    """
    varied = view.list_settings(row["algo"])
    marks = {}
    for edge in edges:
        if edge.algo == row["algo"] and edge.value == row.get(edge.key):  # not of its best point on another problem
            marks[edge.key] = _LARGEST if edge.is_largest else _SMALLEST
    settings = {}
    for key in view.table.varied_keys:
        if key not in varied and key not in _LEARNING_RATES:
            continue
        value = row[key]
        if key in view.table.conditions and view.table.read_problems([key], [row["runs"]]) == [(None,)]:
            value = "null"
        if value != value or (value is None and key not in varied):
            continue
        text = f"{value:g}" if isinstance(value, float) else layout.escape_dollars(str(value))
        settings[key] = text + marks.get(key, "")
    return settings


def draw(content: BestCurves) -> Any:
    """Return a figure of curves, the median and the band over seeds, a panel for each metric.

    With several x axes, each has a column of panels, and each metric a row. Raises UserError for a run that did not
    count an x axis.
    """
    curves, x_axes, table = content.curves, content.x_axes, content.table
    panels = [(name, x) for name in content.metrics for x in x_axes]
    is_matrix = len(x_axes) > 1
    across = len(x_axes) if is_matrix else layout.count_panel_columns(len(panels))
    figure, axes = layout.make_figure(len(panels), across, height=1.65 if across > 1 else 2.0, is_matrix=is_matrix)
    notes = list(content.notes)
    for ax, (name, x) in zip(axes, panels, strict=True):
        values = [value for curve in curves for value in _draw_curve(ax, curve, name, x)]
        metric = table.metrics[name]
        layout.set_y_scale(ax, values if metric.log else [], metric.bounded)
        if layout.end_lines_at_rounding(ax):
            notes.append("curves end at rounding errors")
        layout.set_x_axis(ax, x, table.metrics)
        if len(x_axes) > 3:  # narrow panels
            ax.set_xlabel(textwrap.fill(ax.get_xlabel(), 20))
        layout.set_y_label(ax, table.axis_label(name))
        if is_matrix:
            ax.label_outer()
        ax.margins(x=0.02)
    _add_curve_legend(figure, axes, replace(content, notes=list(dict.fromkeys(notes))))
    return figure


def _add_curve_legend(figure: Any, axes: Sequence[Any], content: BestCurves) -> None:
    """Add a legend with the curves of all panels, the meaning of the bands, and notes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    hidden = find_hidden_curves(axes)
    entries = {}
    for text, handle in layout.collect_entries(axes).items():
        entries[f"{text} (same line as {hidden[text]})" if text in hidden else text] = handle
    with_seeds = [curve for curve in content.curves if len(curve.runs) > 1]
    with_band = [len(curve.runs) for curve in with_seeds if not curve.has_equal_seeds]
    blank = Line2D([], [], linestyle="none")
    if with_band:
        band = describe_band(with_band, content.table.seed_kind)
        entries[f"median and {band}"] = Patch(color="0.5", alpha=0.35, linewidth=0)
    if len(with_band) < len(with_seeds):
        entries["no band: seeds agree"] = blank
    entries |= dict.fromkeys(map(layout.wrap_note, content.notes), blank)
    layout.add_legend(figure, entries)


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
            is_hidden = True
            for panel, path in paths.items():
                other = earlier_paths[panel]
                is_hidden &= path.shape == other.shape and np.allclose(path, other, 0, half_line, equal_nan=True)
            if is_hidden:
                hidden.setdefault(label, earlier.partition(":")[0])
    return hidden


def _draw_curve(ax: Any, curve: Curve, name: str, x: str) -> list[float]:
    """Draw a curve of a metric, and return the values that the y axis must include.

    Clients without personal models have the shared one. Clients that send nothing have no shared model to draw.
    """
    if personal_only(curve.runs[0]) and not name.startswith(PERSONAL_PREFIX):
        return []
    label = layout.legend_name(curve.label)
    if curve.is_level:
        # seeds differ in their iterations
        level = float(np.median([metric_of(rows[-1], name) for rows in curve.runs]))
        ax.axhline(level, label=f"{label} (its solution)", **curve.style.line_kwargs)
        return [level]
    runs = align_seeds(curve.runs)
    xs = layout.median_x_values(runs, x, curve.plain_label)
    values = []
    for rows in runs:
        values.append([metric_of(row, name) for row in rows])
    low, median, high = seed_band(np.array(values))
    ax.plot(xs, median, label=label, **curve.style.line_kwargs)
    if len(curve.runs) > 1 and not curve.has_equal_seeds:
        ax.fill_between(xs, low, high, color=curve.style.colour, alpha=0.2, linewidth=0)
    return [*low, *high]


PICTURE = Picture("best", ProblemView, collect_curves, draw, place=1)
