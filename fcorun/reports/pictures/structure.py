"""Structure against quality over all points that are done: how much depends on the rates."""

from typing import Any

from fcorun.metrics import PERSONAL, structure
from fcorun.reports.pictures.axis import scale_y
from fcorun.reports.pictures.page import label_y, legend, page
from fcorun.reports.pictures.style import pt
from fcorun.reports.pictures.view import View
from fcorun.reports.table import Frame


def draw(view: View) -> Any | None:
    """A mark for each point, the best ringed; None if structure or quality was not measured."""
    found, table = figures(view), view.table
    if found is None:
        return None
    x, quality, folded = found
    figure, (ax,) = page(1, 1, height=2.0, left=0.68, bottom=0.58)
    for name in (name for name in view.looks if (folded["algo"] == name).any()):
        points, look = folded[folded["algo"] == name], view.looks[name]
        ax.scatter(points[x], points["metric"], s=pt(3.7) ** 2, marker=look.marker, facecolor="none",
                   edgecolor=look.colour, linewidth=pt(0.8), label=table.title(name))  # fmt: skip
    best = {tuple(row["rows"]) for row in view.best_rows()}
    ringed = folded[[tuple(rows) in best for rows in folded["rows"]]]
    ring = ax.scatter(
        ringed[x], ringed["metric"], s=pt(7.4) ** 2, facecolor="none", edgecolor="black", linewidth=pt(0.9)
    )
    ring.set_label(f"best by {view.metric}" + (f", {view.problem}" if view.problem else ""))
    scale_y(ax, list(folded["metric"]) if table.metrics[quality].log else [])
    ax.set(xlabel=table.words(x, tail=True))
    label_y(ax, table.words(quality))
    legend(figure, *ax.get_legend_handles_labels(), handlelength=1)
    return figure


def figures(view: View) -> tuple[str, str, Frame] | None:
    """The figure of structure, that of quality, and the points that are done and have both; None if there are none."""
    table = view.table
    x = next((name for name in structure(view.metric)[::-1] if name in table.tails), None)
    own, shared = ("val_loss", "val_accuracy"), ("support_f1", "val_loss", "val_accuracy")
    names = [PERSONAL + name for name in own] if view.metric.startswith(PERSONAL) else shared  # both of the same models
    quality = next((name for name in names if name in table.tails), None)
    if x is None or quality is None:
        return None
    folded = table.points(quality)
    folded = folded[(folded["status"] == "done") & folded["metric"].notna() & folded[x].notna()]
    return (x, quality, folded) if len(folded) else None
