"""Identification of the optimum's zeros: entries that are zero in one of solution and optimum, and the gap."""

from typing import Any

import numpy as np

from fcorun.reports.pictures.layout import add_legend, make_figure
from fcorun.reports.pictures.style import pt
from fcorun.studies.figures.figure_inputs import FigureInputs

_FLOOR = 1e-13  # smaller gaps are rounding errors


def draw_identification(inputs: FigureInputs) -> Any:
    """Draw two panels against rounds, of the run with the first seed of each algorithm.

    They are the number of entries that are zero in only one of the solution and the optimum, and the gap. A dot on each
    curve is the round from which on the pattern is the optimum's to the end of the run.
    """
    from matplotlib.lines import Line2D

    figure, axes = make_figure(2, 2, height=2.0)
    handles, titles = [], []
    for i, algo in enumerate(inputs.algorithms):
        style = inputs.line_styles[algo]
        rows = inputs.tuned_records[list(inputs.tuned.frame["algo"]).index(algo)].rows
        width = 1.6 * 0.8**i  # curves that coincide stay visible below each other
        line = {"color": style.colour, "linestyle": style.line_dash, "linewidth": pt(width)}
        rounds = np.array([row["round"] for row in rows])
        identified_round = rows[-1].get("identified_round", np.nan)
        for ax, metric in zip(axes, inputs.figure.panels, strict=True):
            values = np.array([row.get(metric, np.nan) for row in rows], float)
            if metric == "suboptimality":
                values = np.maximum(values, _FLOOR)
            handle = ax.plot(rounds, values, **line)
            if not np.isnan(identified_round):
                mark = {
                    "color": style.colour,
                    "marker": "o",
                    "markersize": pt(2 + 2 * width),
                    "zorder": 5,
                    "clip_on": False,
                }
                value = values[np.flatnonzero(rounds == identified_round)[0]]
                ax.plot([identified_round], [value], **mark)
        handles += handle
        titles.append(inputs.title(algo))
    handles.append(Line2D([], [], linestyle="", color="black", marker="o", markersize=pt(4)))
    titles.append("from here on zero where the optimum is zero")
    for ax, metric in zip(axes, inputs.figure.panels, strict=True):
        ax.set_xscale("symlog", linthresh=10)
        ax.set(xlim=(0, None), xlabel="communication round", ylabel=inputs.tuned.axis_label(metric))
    errors, gap = axes
    errors.set_yscale("symlog", linthresh=1)
    errors.set(ylim=(0, None))
    gap.set_yscale("log")
    add_legend(figure, handles, titles)
    return figure
