"""Bytes to the optimum with and without compressed messages: the gap and the support's F1 score against bytes."""

from typing import Any

import numpy as np

from fcorun.reports.pictures.layout import COLOURS, choose_unit, make_figure
from fcorun.reports.pictures.style import pt
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.papers.few_rounds import FLOOR, curves_by_algorithm, end_at_floor

_METHODS_OF_COLUMN = {  # the methods of each column of panels, by the first part of an algorithm's name
    "one gradient a round": ("gradient", "diana", "ef21"),
    "local steps": ("feddualavg", "fedmid", "fedcef"),
    "random and proximal steps": ("proxskip", "fedsplit"),
}
_DASHES = {"": "-", "plain": "-", "topk": "--", "qsgd": "--", "topk_sparse": ":", "qsgd_sparse": ":"}


def draw_bytes(inputs: FigureInputs) -> Any:
    """Draw the first figure panel's metric above the second one's against bytes, a column for each kind of method.

    Curves are medians over seeds, and end where the method sends nothing more, or the gap is a rounding error. The name
    of an algorithm is METHOD or METHOD_COMPRESSOR: within a column, the method has a colour, the compressor a dash.
    Methods of no column, such as Newton's, which sends matrices, are black, in each column; a method of one round, or
    of one evaluation, is a mark.
    """
    gap, score = inputs.figure.panels
    curves = curves_by_algorithm(inputs, inputs.figure.panels)
    factor, label = choose_unit("bytes", max(curve["bytes"][-1] for curve in curves.values()))
    figure, axes = make_figure(6, 3, height=1.6)
    in_columns = {method for methods in _METHODS_OF_COLUMN.values() for method in methods}
    in_each_column = {algo for algo in curves if algo.partition("_")[0] not in in_columns}
    one_shot = [algo for algo, curve in curves.items() if len(curve["bytes"]) == 1]
    for column, (kind, methods) in enumerate(_METHODS_OF_COLUMN.items()):
        top, bottom = axes[column], axes[column + 3]
        for algo in curves:
            method, _, compressor = algo.partition("_")
            if method in methods:
                colour = COLOURS[methods.index(method)]
                style = {"color": colour, "linestyle": _DASHES.get(compressor, "-."), "label": inputs.title(algo)}
            elif algo in one_shot:
                marks = {"marker": "*", "markersize": pt(6), "zorder": 5, "clip_on": False}
                length = "one round" if curves[algo]["rounds"][0] == 1 else "one evaluation"
                style = {"color": "black", "linestyle": "", "label": f"{inputs.title(algo)}, {length}", **marks}
            elif algo in in_each_column:
                style = {"color": "black", "marker": ".", "markersize": pt(4), "label": inputs.title(algo)}
            else:
                continue
            curve = end_at_floor(curves[algo], gap)
            top.plot(curve["bytes"] / factor, np.maximum(curve[gap], FLOOR), linewidth=pt(1), **style)
            bottom.plot(curve["bytes"] / factor, curve[score], linewidth=pt(1), **style)
        top.set_title(kind, pad=pt(3))
        top.set(yscale="log")
        bottom.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.3))
    for row, metric in enumerate((gap, score)):
        panels = axes[3 * row : 3 * row + 3]
        limits = np.array([ax.get_ylim() for ax in panels])
        for ax in panels:
            ax.set(xscale="log", ylim=(limits[:, 0].min(), limits[:, 1].max()))
            ax.tick_params(labelleft=ax is panels[0], labelbottom=row == 1)
        panels[0].set_ylabel(inputs.tuned.axis_label(metric))
    ends = np.array([ax.get_xlim() for ax in axes])
    for ax in axes:
        ax.set_xlim(ends[:, 0].min(), ends[:, 1].max())
    axes[4].set_xlabel(label)
    return figure
