"""The decision curve on held-out rows: the net benefit against the threshold."""

from typing import Any

from fcorun.reports.pictures.curve_groups import CurveView
from fcorun.reports.pictures.layout import COLOURS, add_legend, collect_entries, make_figure, pt
from fcorun.reports.pictures.picture import Picture


def draw(view: CurveView) -> Any:
    """Return the figure: the net benefit of the model, of flagging all rows, and of flagging none."""
    figure, (ax,) = make_figure(1, 1, height=2.3, title=view.heading)
    rows = view.select(view.curves.decision, "")
    prevalence = view.scores("")["prevalence"]
    thresholds = [row["threshold"] for row in rows]
    ax.plot(thresholds, [row["net_benefit"] for row in rows], label="model", **view.line_style(""))
    flag_all = [row["net_benefit_all"] for row in rows]
    ax.plot(thresholds, flag_all, color=COLOURS[1], linestyle="--", linewidth=pt(1.1), label="treat all")
    ax.axhline(0, color=COLOURS[0], linestyle=":", linewidth=pt(1.1), label="treat none")
    ax.axvline(view.threshold, color=COLOURS[3], linewidth=pt(0.8), label=f"threshold {view.threshold:.3g}")
    ax.set_xlim(0, max([*(row["threshold"] for row in rows if row["n_flagged"]), view.threshold]))
    ax.set_ylim(-0.15 * prevalence, 1.1 * prevalence)
    ax.set_xlabel("threshold probability")
    ax.set_ylabel("net benefit")
    add_legend(figure, collect_entries([ax]))
    return figure


PICTURE = Picture(
    "decision",
    CurveView,
    lambda view: view,
    draw,
    place=2,
    caption="Decision curve: the net benefit, (true positives - false positives t / (1 - t)) / n, of treating the rows "
    "whose probability is at least the threshold t (above it at 0.5), beside treating all rows and none.",
)
