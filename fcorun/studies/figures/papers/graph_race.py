"""Methods without a server on several graphs: the gap against rounds, and rounds against the spectral gap."""

from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.metrics import CATALOGUE
from fcorun.reports.pictures.layout import add_legend, curve_style, make_figure
from fcorun.reports.pictures.style import pt
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.papers.few_rounds import FLOOR, curves_by_algorithm, end_at_floor
from fcorun.studies.figures.rounds_to_target import find_rounds_to_target

_TARGET = 1e-6  # the gap to which rounds are counted


def draw_graphs(inputs: FigureInputs) -> Any:
    """Draw a panel for each method with a curve for each graph, and the rounds to a gap against the spectral gap.

    Curves are medians over seeds, and end where the gap is a rounding error. The name of an algorithm is METHOD_GRAPH,
    and its title begins with that of the method and a comma. A method has no mark in the last panel for a graph on
    which it does not come to the gap. Raises UserError for other names.
    """
    curves = curves_by_algorithm(inputs, ["suboptimality"])
    for algo in curves:
        if "_" not in algo:
            raise UserError(f"figure.draw=graph_race needs names METHOD_GRAPH: give algo.name={algo}_GRAPH")
    spectral_gaps = dict(zip(inputs.tuned.frame["algo"], inputs.tuned.column("spectral_gap"), strict=True))
    methods = list(dict.fromkeys(algo.rpartition("_")[0] for algo in curves))
    graphs = list(dict.fromkeys(algo.rpartition("_")[2] for algo in curves))
    n_panels = len(methods) + 1
    figure, axes = make_figure(n_panels, n_panels, height=1.7)
    handles = {}
    for i, method in enumerate(methods):
        of_method = [algo for algo in curves if algo.rpartition("_")[0] == method]
        rounds_to_gap = []
        for algo in of_method:
            graph, curve = algo.rpartition("_")[2], curves[algo]
            style = curve_style(graphs.index(graph)).line_kwargs | {"linewidth": pt(1)}
            shown = end_at_floor(curve, "suboptimality")
            (handles[graph],) = axes[i].plot(shown["rounds"], np.maximum(shown["suboptimality"], FLOOR), **style)
            at_target = (curve["suboptimality"] <= _TARGET).tolist()
            rounds_to_gap.append(find_rounds_to_target(curve["rounds"].tolist(), at_target).latest)
        title = inputs.title(of_method[0]).partition(",")[0]
        axes[i].set_title(title, pad=pt(3))
        reached = np.isfinite(rounds_to_gap)
        if reached.any():
            marks = {"marker": curve_style(i).marker, "markersize": pt(4), "markerfacecolor": "none", "color": "black"}
            line = {"linestyle": ":", "linewidth": pt(0.7)}
            gaps = np.array([spectral_gaps[algo] for algo in of_method])
            axes[-1].plot(gaps[reached], np.array(rounds_to_gap)[reached], label=title, **marks, **line)
    top = max(ax.get_ylim()[1] for ax in axes[:-1])
    for ax in axes[:-1]:
        ax.set(yscale="log", ylim=(FLOOR / 3, top), xlabel="communication round")
        ax.tick_params(labelleft=ax is axes[0])
    axes[0].set_ylabel(CATALOGUE["suboptimality"].axis_label(inputs.tuned.cutoff))
    axes[-1].set(xscale="log", xlabel="spectral gap of the graph")
    axes[-1].set_ylim(0, 1.3 * axes[-1].get_ylim()[1])  # room for the legend
    axes[-1].set_title(f"rounds to a gap of $10^{{{np.log10(_TARGET):.0f}}}$", pad=pt(3))
    axes[-1].legend(frameon=False, loc="upper right")
    add_legend(figure, list(handles.values()), list(handles))
    return figure
