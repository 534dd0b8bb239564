"""The picture of structure against quality over all points that are done: how far it depends on the rates."""

from typing import Any

from fcorun.base.metrics import PERSONAL_PREFIX, structure_metrics
from fcorun.reports.pictures.layout import (
    add_legend,
    escape_dollars,
    legend_name,
    make_figure,
    set_y_label,
    set_y_scale,
)
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.pictures.style import pt
from fcorun.reports.run_table import DataFrame


def draw(view: ProblemView) -> Any | None:
    """Return a figure with a mark for each point, the best ringed; None if structure or quality was not measured."""
    table = view.table
    chart = structure_and_quality(view)
    if chart is None:
        return None
    structure, quality, points = chart
    figure, (ax,) = make_figure(1, 1, height=2.0, left=0.68, bottom=0.58)
    for algo, style in view.curve_styles.items():
        rows = points[points["algo"] == algo]
        if len(rows):
            ax.scatter(
                rows[structure],
                rows["metric"],
                s=pt(3.7) ** 2,
                marker=style.marker,
                facecolor="none",
                edgecolor=style.colour,
                linewidth=pt(0.8),
                label=legend_name(view.algo_title(algo)),
            )
    best = {tuple(row["rows"]) for row in view.best_rows()}
    ringed = points[[tuple(runs) in best for runs in points["rows"]]]
    ring = ax.scatter(
        ringed[structure],
        ringed["metric"],
        s=pt(7.4) ** 2,
        facecolor="none",
        edgecolor="black",
        linewidth=pt(0.9),
    )
    ring.set_label(f"best by {view.metric}" + (f", {escape_dollars(view.problem)}" if view.problem else ""))
    set_y_scale(ax, list(points["metric"]) if table.metrics[quality].log else [])
    ax.set(xlabel=table.axis_label(structure, tail=True))
    set_y_label(ax, table.axis_label(quality))
    add_legend(figure, *ax.get_legend_handles_labels(), handlelength=1)
    return figure


def structure_and_quality(view: ProblemView) -> tuple[str, str, DataFrame] | None:
    """Return a metric of structure, one of quality, and the points that are done and have both; None without any.

    Both metrics are of the same models: the personal models, or the shared model. The quality is the same function for
    all points.
    """
    table = view.table
    structures = [name for name in structure_metrics(view.metric)[::-1] if name in table.tail_metrics]
    if view.metric.startswith(PERSONAL_PREFIX):
        qualities = [PERSONAL_PREFIX + "val_loss", PERSONAL_PREFIX + "val_accuracy"]
    else:
        qualities = ["support_f1", "val_loss", "val_accuracy"]
    qualities = [name for name in qualities if name in table.tail_metrics and table.is_one_function(name)]
    if not structures or not qualities:
        return None
    structure, quality = structures[0], qualities[0]
    points = table.fold_seeds(quality)
    points = points[(points["status"] == "done") & points["metric"].notna() & points[structure].notna()]
    return (structure, quality, points) if len(points) else None
