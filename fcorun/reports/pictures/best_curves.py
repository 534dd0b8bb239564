"""The curves of the best point of each algorithm: metrics against rounds, bytes, evaluations or time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fcorun.base.errors import UserError
from fcorun.base.metrics import CATALOGUE, GAP_METRICS, PERSONAL_PREFIX, global_name, structure_metrics
from fcorun.reports.grid_edges import GridEdge
from fcorun.reports.pictures.layout import escape_dollars
from fcorun.reports.pictures.picture import Picture
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.pictures.seed_curves import Curve, draw_curves
from fcorun.reports.run_table import RunTable

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
    common = _find_common_settings(settings)
    curves = []
    for row, values in zip(rows, settings, strict=True):
        label = view.algo_title(row["algo"])
        specific = {key: value for key, value in values.items() if key not in common}
        if specific:
            label += f": {_join_settings(specific)}"
        if row["tied"]:
            label += f" (tied with {len(row['tied'])})"
        runs = [evaluations for run in row["rows"] if (evaluations := view.records[run].rows)]
        if not runs:  # metrics.csv is missing
            continue
        curves.append(Curve(label, view.curve_styles[row["algo"]], runs))
    if not curves:
        return None
    notes = [escape_dollars(view.problem)] if view.problem else []
    if common:
        notes.append(f"all: {_join_settings(common)}")
    if any(mark in value for values in settings for value in values.values() for mark in (_LARGEST, _SMALLEST)):
        notes.append(f"{_LARGEST}, {_SMALLEST}: largest, smallest tried: try beyond")
    measured = list(dict.fromkeys(name for curve in curves for name in curve.runs[0][-1]))
    panels = _choose_measured_panels(view, rows, measured)
    return BestCurves(curves, panels, view.x_axes, view.table, notes)


def draw(content: BestCurves) -> Any:
    """Return the figure of ``draw_curves``. Raises UserError for a run that did not count the quantity of an axis."""
    return draw_curves(content.curves, content.metrics, content.x_axes, content.table, content.notes)


def _find_common_settings(settings: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the settings that several points have, all with the same value."""
    common = {}
    for key in dict.fromkeys(key for values in settings for key in values):
        values = [point[key] for point in settings if key in point]
        if len(values) > 1 and len(set(values)) == 1:
            common[key] = values[0]
    return common


def _join_settings(values: dict[str, str]) -> str:
    return ", ".join(f"{_SYMBOLS.get(key, key)} = {value}" for key, value in values.items())


def _choose_measured_panels(view: ProblemView, rows: Sequence[dict[str, Any]], measured: Sequence[str]) -> list[str]:
    """Return the panels of ``view``, or those that its problem calls for. Raises UserError as ``collect_curves``.

    Metrics that are another function for some of the points share no panel, unless ``view`` asks for it.
    """
    differing = {key for key in view.table.objective_keys() if len({repr(row[key]) for row in rows}) > 1}
    comparable = [name for name in measured if not differing & set(view.table.function_keys(name))]
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
    varied = view.table.varied_by_algo.get(row["algo"], [])
    problem_keys = view.table.problem_keys(view.metric)
    marks = {edge.key: _LARGEST if edge.is_largest else _SMALLEST for edge in edges if edge.algo == row["algo"]}
    settings = {}
    for key in view.table.varied_keys:
        if key in problem_keys or (key not in varied and key not in _LEARNING_RATES):
            continue
        value = row[key]
        if value != value or (value is None and key not in varied):
            continue
        text = f"{value:g}" if isinstance(value, float) else escape_dollars(str(value))
        settings[key] = text + marks.get(key, "")
    return settings


PICTURE = Picture("best", ProblemView, collect_curves, draw, place=1)
