"""The picture of one run: curves of its metrics."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fcorun.base.metrics import (
    CATALOGUE,
    GAP_METRICS,
    PERSONAL_PREFIX,
    SPLIT_PREFIXES,
    MetricCatalogue,
    is_baseline_row,
)
from fcorun.reports.pictures import layout
from fcorun.reports.pictures.picture import Picture

Evaluations = Sequence[dict[str, float]]
Panel = tuple[str, dict[str, str]]  # the label of the y axis, and the label of each metric in the legend


@dataclass(frozen=True)
class RunView:
    """The evaluations of one run, and how they are shown.

    Attributes:
        rows: the evaluations.
        label: the title of the picture.
        cutoff: the value above which an entry counts as nonzero.
        x: the axis that metrics are drawn against.
        metrics: the metrics of the run, with those that its objective declares.
    """

    rows: Evaluations
    label: str
    cutoff: float
    x: str = "rounds"
    metrics: MetricCatalogue = field(default_factory=lambda: CATALOGUE)


def has_only_ends(rows: Evaluations) -> bool:
    """Return whether a baseline was evaluated at its start and its end alone: a line between would show no iterates."""
    return len(rows) == 2 and _is_baseline(rows)


def _is_baseline(rows: Evaluations) -> bool:
    return len(rows) > 1 and is_baseline_row({"bytes_up": 0} | rows[-1])


def draw(view: RunView) -> Any:
    """Return the figure of a run's metrics against ``x``.

    A baseline that did not count ``x`` is drawn against its iterations; no rows give empty axes. Raises UserError for
    another run that did not count ``x``.
    """
    rows, x, metrics = view.rows, view.x, view.metrics
    if _is_baseline(rows) and not rows[-1].get(x):
        x = "iterations"
    xs = layout.x_values(rows, x, view.label)
    panels = choose_run_panels(list(rows[-1]) if rows else ["objective", "train_loss"], view.cutoff, metrics)
    across = layout.count_panel_columns(len(panels))
    figure, axes = layout.make_figure(len(panels), across, height=1.65 if across > 1 else 2.0, title=[view.label])
    for ax, (y_label, labels) in zip(axes, panels, strict=True):
        for i, (name, label) in enumerate(labels.items()):
            values = [row[name] for row in rows]
            style = layout.curve_style(i).line_kwargs
            if sum(map(math.isfinite, values)) == 1:  # which no line shows
                style["marker"] = "."
            if has_only_ends(rows):
                style |= {"marker": ".", "linestyle": "none"}
            ax.plot(xs, values, **style, label=label)
        log_values = [row[name] for row in rows for name in labels if metrics[name].log]
        layout.set_y_scale(ax, log_values, bounded=any(metrics[name].bounded for name in labels))
        layout.end_lines_at_rounding(ax)
        ax.margins(x=0.02)
        if len(labels) > 1:
            layout.add_legend_above(ax, 2)
        layout.set_x_axis(ax, x, metrics)
        layout.set_y_label(ax, y_label)
    return figure


def choose_run_panels(names: Sequence[str], cutoff: float, metrics: MetricCatalogue = CATALOGUE) -> list[Panel]:
    """Return the panels for a run with these metrics; a panel without a label of its own is labelled by its metric."""
    panels: list[Panel] = [("", {next((name for name in GAP_METRICS if name in names), "objective"): ""})]
    split = "val_" if any(name.startswith("val_") for name in names) else "train_"
    has_accuracy = "train_accuracy" in names or PERSONAL_PREFIX + "train_accuracy" in names
    score = "accuracy" if has_accuracy else "loss"
    if PERSONAL_PREFIX + "train_loss" in names:
        shared, personal = split + score, PERSONAL_PREFIX + split + score
        labels = {shared: "global", personal: "personal"}
        labels |= {f"{personal}_q10": "personal, 10 %", f"{personal}_q90": "personal, 90 %"}
        panels.append((metrics[shared].axis_label(cutoff), labels))
        for name in ("density", "rank"):
            if PERSONAL_PREFIX + name in names:
                panels.append((metrics[name].axis_label(cutoff), {name: "global", PERSONAL_PREFIX + name: "personal"}))
    else:
        labels = {f"train_{score}": "training", f"val_{score}": "validation"}
        panels.append(("accuracy" if has_accuracy else "mean loss", labels))
        if "support_f1" in names:
            labels = {"support_f1": "F1", "support_precision": "precision", "support_recall": "recall"}
            panels.append((f"support {{|w$_j$| > {cutoff:g}}}", labels | {"density": "density"}))
        else:
            panels.append(("", {"density": ""}))
        if "rank" in names:
            panels += [("", {"rank": ""}), ("", {"recovery_error": ""})]
    for name in names:
        of_other_split = name.startswith((PERSONAL_PREFIX, *SPLIT_PREFIXES)) and not name.startswith(split)
        if name in metrics and name not in CATALOGUE and not of_other_split:  # declared by a plug-in
            panels.append(("", {name: ""}))
    measured = []
    for y_label, labels in panels:
        labels = {name: label for name, label in labels.items() if name in names}
        if labels:
            measured.append((y_label or metrics[next(iter(labels))].axis_label(cutoff), labels))
    return measured


def _collect(view: RunView) -> RunView | None:
    return None if has_only_ends(view.rows) else view


PICTURE = Picture("curves", RunView, _collect, draw)
