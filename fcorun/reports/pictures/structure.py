"""The picture of structure against quality over all points that are done: how far it depends on the rates."""

from dataclasses import dataclass
from typing import Any

from fcorun.base.metrics import PERSONAL_PREFIX, structure_metrics
from fcorun.reports.pictures import layout
from fcorun.reports.pictures.layout import pt
from fcorun.reports.pictures.picture import Picture
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.run_table import DataFrame


@dataclass(frozen=True)
class StructureAndQuality:
    """Points that have both a metric of structure and one of quality, of the same models.

    Attributes:
        view: the runs that the points are of.
        structure, quality: the names of the metrics. The quality is the same function for all points.
        points: the points that are done, rows of ``RunTable.fold_seeds`` by the quality.
    """

    view: ProblemView
    structure: str
    quality: str
    points: DataFrame


def collect_points(view: ProblemView) -> StructureAndQuality | None:
    """Return the points that are done and have structure and quality; None if either was not measured.

    Both metrics are of the same models: the personal models, or the shared model.
    """
    table = view.table
    structures = [name for name in structure_metrics(view.metric)[::-1] if name in table.tail_metrics]
    qualities = ["support_f1", "val_loss", "val_accuracy"]
    if view.metric.startswith(PERSONAL_PREFIX):
        qualities = [PERSONAL_PREFIX + "val_loss", PERSONAL_PREFIX + "val_accuracy"]
    qualities = [name for name in qualities if name in table.tail_metrics and table.is_one_function(name)]
    if not structures or not qualities:
        return None
    points = table.fold_seeds(qualities[0])
    points = points[(points["status"] == "done") & points["metric"].notna() & points[structures[0]].notna()]
    return StructureAndQuality(view, structures[0], qualities[0], points) if len(points) else None


def draw(content: StructureAndQuality) -> Any:
    """Return a figure with a mark for each point, the best ringed."""
    view, points = content.view, content.points
    table = view.table
    figure, (ax,) = layout.make_figure(1, 1, height=2.0)
    for algo, style in view.curve_styles.items():
        rows = points[points["algo"] == algo]
        if len(rows):
            ax.scatter(
                rows[content.structure],
                rows["metric"],
                s=pt(3.7) ** 2,
                marker=style.marker,
                facecolor="none",
                edgecolor=style.colour,
                linewidth=pt(0.8),
                label=layout.legend_name(view.algo_title(algo)),
            )
    best = {tuple(row["rows"]) for row in view.best_rows()}
    ringed = points[[tuple(runs) in best for runs in points["rows"]]]
    ring = ax.scatter(
        ringed[content.structure],
        ringed["metric"],
        s=pt(7.4) ** 2,
        facecolor="none",
        edgecolor="black",
        linewidth=pt(0.9),
    )
    ring.set_label(f"best by {view.metric}" + (f", {layout.escape_dollars(view.problem)}" if view.problem else ""))
    layout.set_y_scale(ax, list(points["metric"]) if table.metrics[content.quality].log else [])
    ax.set(xlabel=table.axis_label(content.structure, tail=True))
    layout.set_y_label(ax, table.axis_label(content.quality))
    layout.add_legend(figure, layout.collect_entries([ax]), handlelength=1)
    return figure


PICTURE = Picture(
    "structure",
    ProblemView,
    collect_points,
    draw,
    place=2,
    title="Structure against quality",
    caption="A mark for each point that is done; rings mark the best.",
)
