"""The decision curve on held-out rows: the net benefit against the threshold."""

from typing import Any

from fcorun.reports.pictures.curve_groups import CurveView, add_legend_above, legend_height
from fcorun.reports.pictures.layout import COLOURS, make_figure
from fcorun.reports.pictures.style import pt

_LEGEND_COLUMNS = 2


def draw(view: CurveView) -> Any:
    """Return the figure: the net benefit of the model, of flagging all rows, and of flagging none."""
    top = 0.12 + legend_height(4, _LEGEND_COLUMNS)
    figure, (ax,) = make_figure(1, 1, height=2.3, title=view.heading, left=0.6, top=top)
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
    add_legend_above(ax, _LEGEND_COLUMNS)
    return figure
