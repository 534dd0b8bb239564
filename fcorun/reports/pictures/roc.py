"""The picture of ROC and precision-recall curves on held-out rows."""

from typing import Any

from fcorun.reports.pictures.curve_groups import CurveView, shape_square
from fcorun.reports.pictures.layout import COLOURS, add_legend, collect_entries, make_figure, pt
from fcorun.reports.pictures.picture import Picture


def draw(view: CurveView) -> Any:
    """Return the figure: sensitivity against 1 - specificity, and precision against sensitivity."""
    figure, (roc, precision) = make_figure(2, 2, height=2.75, title=view.heading)
    roc.plot([0, 1], [0, 1], color="0.6", linewidth=pt(0.7), linestyle=(0, (2, 2)))
    scores = view.scores("")
    precision.axhline(scores["prevalence"], color="0.6", linewidth=pt(0.7), linestyle=(0, (2, 2)))
    for client in ["", *view.clients]:
        points = view.select(view.curves.roc, client)
        if not points:  # rows of one class
            continue
        sensitivity = [point["sensitivity"] for point in points]
        of_client = view.scores(client)
        areas = f"AUC {of_client['auc']:.2f}, AP {of_client['average_precision']:.2f}"
        label = view.client_label(client, areas) if client else f"all rows: {areas}"
        style = view.line_style(client)
        roc.plot([point["false_positive_rate"] for point in points], sensitivity, label=label or None, **style)
        shares = [points[1]["precision"], *(point["precision"] for point in points[1:])]
        precision.plot(sensitivity, shares, drawstyle="steps-pre", **style)  # as the average precision is summed
    (point,) = [row for row in view.select(view.curves.decision, "") if row["chosen"]]
    style = {"color": COLOURS[3], "marker": "o", "markersize": pt(4), "linestyle": "", "zorder": 3.5}
    label = f"threshold {view.threshold:.3g}"
    roc.plot([1 - point["specificity"]], [point["sensitivity"]], label=label, **style)
    if point["n_flagged"]:
        precision.plot([point["sensitivity"]], [point["ppv"]], label=label, **style)
    for ax in (roc, precision):
        shape_square(ax)
    roc.set_xlabel("1 \N{MINUS SIGN} specificity")
    roc.set_ylabel("sensitivity")
    precision.set_xlabel("sensitivity (recall)")
    precision.set_ylabel("positive predictive value (precision)")
    add_legend(figure, collect_entries([roc]), parse_math=False)
    return figure


PICTURE = Picture(
    "roc",
    CurveView,
    lambda view: view,
    draw,
    caption="ROC and precision-recall curves. AP is the average precision; dashed: a model without information.",
)
