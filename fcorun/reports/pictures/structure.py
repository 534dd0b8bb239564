"""Structure against quality over all points that are done: how much depends on the rates."""

from typing import Any

from fcorun.metrics import PERSONAL_PREFIX, structure_metrics
from fcorun.reports.pictures.axis import set_y_scale
from fcorun.reports.pictures.layout import add_legend, make_figure, set_y_label
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.pictures.style import pt
from fcorun.reports.run_table import DataFrame


def draw(view: ProblemView) -> Any | None:
    """A mark for each point, the best ringed; None if structure or quality was not measured."""
    found, table = structure_and_quality(view), view.table
    if found is None:
        return None
    x, quality, folded = found
    figure, (ax,) = make_figure(1, 1, height=2.0, left=0.68, bottom=0.58)
    for name in (name for name in view.curve_styles if (folded["algo"] == name).any()):
        points, look = folded[folded["algo"] == name], view.curve_styles[name]
        ax.scatter(points[x], points["metric"], s=pt(3.7) ** 2, marker=look.marker, facecolor="none",
                   edgecolor=look.colour, linewidth=pt(0.8), label=table.algo_title(name))  # fmt: skip
    best = {tuple(row["rows"]) for row in view.best_rows()}
    ringed = folded[[tuple(rows) in best for rows in folded["rows"]]]
    ring = ax.scatter(
        ringed[x], ringed["metric"], s=pt(7.4) ** 2, facecolor="none", edgecolor="black", linewidth=pt(0.9)
    )
    ring.set_label(f"best by {view.metric}" + (f", {view.problem}" if view.problem else ""))
    set_y_scale(ax, list(folded["metric"]) if table.metrics[quality].log else [])
    ax.set(xlabel=table.axis_label(x, tail=True))
    set_y_label(ax, table.axis_label(quality))
    add_legend(figure, *ax.get_legend_handles_labels(), handlelength=1)
    return figure


def structure_and_quality(view: ProblemView) -> tuple[str, str, DataFrame] | None:
    """The figure of structure, that of quality, and the points that are done and have both; None if there are none."""
    table = view.table
    x = next((name for name in structure_metrics(view.metric)[::-1] if name in table.tail_metrics), None)
    own, shared = ("val_loss", "val_accuracy"), ("support_f1", "val_loss", "val_accuracy")
    names = (
        [PERSONAL_PREFIX + name for name in own] if view.metric.startswith(PERSONAL_PREFIX) else shared
    )  # both of the same models
    quality = next((name for name in names if name in table.tail_metrics), None)
    if x is None or quality is None:
        return None
    folded = table.fold_seeds(quality)
    folded = folded[(folded["status"] == "done") & folded["metric"].notna() & folded[x].notna()]
    return (x, quality, folded) if len(folded) else None
