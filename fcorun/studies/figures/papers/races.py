"""Pictures of races between methods, and the cheapest method for each gap: medians over seeds at the best points.

A curve ends where its method sends nothing more, or where the gap is a rounding error.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.metrics import CATALOGUE, COUNTERS
from fcorun.reports.pictures.layout import (
    COLOURS,
    X_LABELS,
    add_legend,
    count_panel_columns,
    curve_style,
    make_figure,
    median_x_values,
    pt,
    set_y_label,
)
from fcorun.reports.run_table import align_seeds
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.seed_comparison import UNCLEAR, find_rounds_to_target, verdict_row

FLOOR = 1e-13  # smaller gaps are rounding errors, drawn and reported as this one
_GAPS = np.logspace(-1, -10, 91)  # for which the cheapest method is found
_SHORT = 12  # a curve of no more evaluations has a mark at each
_TARGET = 1e-6  # the gap to which rounds on graphs are counted
_METHODS_OF_COLUMN = {  # the methods of each column of panels, by the first part of an algorithm's name
    "one gradient a round": ("gradient", "diana", "ef21"),
    "local steps": ("feddualavg", "fedmid", "fedcef"),
    "random and proximal steps": ("proxskip", "fedsplit"),
}
_DASHES = {"": "-", "plain": "-", "topk": "--", "qsgd": "--", "topk_sparse": ":", "qsgd_sparse": ":"}


def draw_costs(inputs: FigureInputs) -> Any:
    """Draw the first panel's metric against rounds and bytes, and the second one's against bytes."""
    from matplotlib.ticker import EngFormatter

    gap, error = inputs.figure.panels
    curves = curves_by_algorithm(inputs, inputs.figure.panels)
    figure, axes = make_figure(3, 3, height=1.9)
    handles = {}
    for algo, curve in curves.items():
        style = inputs.line_styles[algo]
        shown = end_at_floor(curve, gap)
        n_rounds = len(shown["rounds"])
        line = {"color": style.colour, "linestyle": style.line_dash, "linewidth": pt(0.9), "marker": style.marker}
        line |= {"markersize": pt(3), "markerfacecolor": "none"}
        line |= {"markevery": 1 if n_rounds <= _SHORT else n_rounds // 8}
        if n_rounds == 1:
            line |= {"markersize": pt(4.5), "zorder": 5}
        axes[0].plot(shown["rounds"], shown[gap], **line)
        axes[1].plot(shown["bytes"], shown[gap], **line)
        (handles[inputs.title(algo)],) = axes[2].plot(shown["bytes"], shown[error], **line)
    for ax, metric in zip(axes, (gap, gap, error), strict=True):
        scale = "linear" if metric == error else "log"
        ax.set(xscale="log", yscale=scale, xlabel=X_LABELS["bytes"], ylabel=inputs.tuned.axis_label(metric))
        if ax is not axes[0]:
            ax.xaxis.set_major_formatter(EngFormatter("B"))
    axes[0].set_xlabel(X_LABELS["rounds"])
    n_seeds = inputs.tuned.frame.groupby("algo").size().max()
    if n_seeds > 1:
        axes[0].set_title(f"median over {n_seeds} {inputs.tuned.seed_kind}", pad=pt(3))
    add_legend(figure, handles)
    return figure


def median_curve(runs: Sequence[Sequence[dict[str, float]]]) -> dict[str, np.ndarray]:
    """Return the medians over runs of each column, from the first round to the last one that sends something.

    Raises UserError for runs that send nothing.
    """
    runs = align_seeds(runs)
    sent = median_x_values(runs, "bytes", "a run")
    if not sent[-1]:
        raise UserError("a run that sends nothing, such as algo=centralized, has no curve against bytes: leave it out "
                        "of the figure")  # fmt: skip
    stop = 1 + next(k for k, value in enumerate(sent) if value == sent[-1])
    curve = {"rounds": np.array([row["round"] for row in runs[0][1:stop]]), "bytes": sent[1:stop]}
    for name in runs[0][0]:
        values = [[row.get(name, np.nan) for row in rows[1:stop]] for rows in runs]
        curve.setdefault(name, np.nanmedian(values, axis=0) if name in COUNTERS else np.median(values, axis=0))
    return curve


def end_at_floor(curve: dict[str, np.ndarray], gap: str) -> dict[str, np.ndarray]:
    """Return a curve up to the first gap that is a rounding error, where its gap is FLOOR."""
    at_floor = np.flatnonzero(curve[gap] <= FLOOR)
    shown = {name: values[: at_floor[0] + 1] for name, values in curve.items()} if len(at_floor) else curve
    return shown | {gap: np.maximum(shown[gap], FLOOR)}


def check_costs(inputs: FigureInputs) -> list[dict[str, str]]:
    """Report for each method its last gap, what that cost, and for which gaps no other method sends less.

    A gap costs what was sent when the median curve came to it for good. Costs whose bounds by the evaluations overlap
    are not distinguishable. What holds is not decided if seeds of any method were lost.
    """
    curves = curves_by_algorithm(inputs, ["suboptimality"])
    lost = "; ".join(note for algo, note in inputs.lost_seeds_notes.items() if algo in curves)
    rows = []
    for axis in ("bytes", "rounds"):
        costs = {algo: _bound_costs(curve, axis) for algo, curve in curves.items()}
        for algo, (fewest, most) in costs.items():
            others = np.array([bounds for name, bounds in costs.items() if name != algo]).reshape(-1, 2, len(_GAPS))
            is_least = np.isfinite(most) & (most <= others[:, 0].min(0, initial=np.inf))
            may_be_least = np.isfinite(most) & (fewest <= others[:, 1].min(0, initial=np.inf))
            holds: bool | str = bool(is_least.any())
            test = ""
            if may_be_least.any() and not holds:
                holds = UNCLEAR
                test = "evaluations too far apart"
            rounds, sent, gap = (curves[algo][name][-1] for name in ("rounds", "bytes", "suboptimality"))
            end = f"{gap:.1g}" if gap > FLOOR else f"below {FLOOR:g}"
            end += f" after {rounds:g} round{'s' if rounds > 1 else ''} and {sent / 1000:,.0f} kB"
            says = f"needs the fewest {axis} for some gap"
            wanted = f"no more {axis} than any other"
            measured = f"{_describe_gaps(is_least)}; ends at {end}"
            rows.append(verdict_row(algo, says, measured, wanted, holds, test=test, lost=lost))
    return rows


def _bound_costs(curve: dict[str, np.ndarray], axis: str) -> np.ndarray:
    """Return the least and the largest cost of each gap of ``_GAPS`` (2, gaps), infinite for one that is not reached.

    A curve that leaves a gap again has not reached it. At the least a method came to a gap in the first round after
    the evaluation before, of which each is taken to send as much.
    """
    amounts = curve[axis]
    since_last = np.diff(amounts, prepend=0.0)
    earliest = amounts - since_last + since_last / np.diff(curve["rounds"], prepend=0.0)
    bounds = np.full((2, len(_GAPS)), np.inf)
    for k, target in enumerate(_GAPS):
        reached = find_rounds_to_target(range(len(amounts)), (curve["suboptimality"] <= target).tolist()).latest
        if np.isfinite(reached):
            bounds[:, k] = earliest[int(reached)], amounts[int(reached)]
    return bounds


def curves_by_algorithm(inputs: FigureInputs, metrics: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
    """Return the median curve of each algorithm to draw, over its runs at its best point.

    Raises UserError as ``FigureInputs.check_one_best_point`` and ``median_curve``, and for an algorithm that did not
    measure all ``metrics``.
    """
    inputs.check_one_best_point()
    runs: dict[str, list[Sequence[dict[str, float]]]] = {algo: [] for algo in inputs.algorithms}
    for algo, record in zip(inputs.tuned.frame["algo"], inputs.tuned_records, strict=True):
        if algo in runs:
            runs[algo].append(record.rows)
    curves = {algo: median_curve(of_algo) for algo, of_algo in runs.items()}
    for algo, curve in curves.items():
        for metric in metrics:
            if metric not in curve:
                raise UserError(f"figure: {algo} did not measure {metric}: take another metric, or leave {algo} out")
    return curves


def _describe_gaps(is_least: np.ndarray) -> str:
    """Return the ranges of gaps of ``_GAPS`` at which a method is the cheapest, as text."""
    indices = np.flatnonzero(is_least)
    if not len(indices):
        return "for no gap"
    ranges = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    ends = [(span[0], "on" if span[-1] == len(_GAPS) - 1 else f"to {_GAPS[span[-1]]:.1g}") for span in ranges]
    return "for gaps " + ", ".join(f"from {_GAPS[first]:.1g} {end}" for first, end in ends)


def draw_bytes(inputs: FigureInputs) -> Any:
    """Draw the first figure panel's metric above the second one's against bytes, a column for each kind of method.

    Curves are medians over seeds, and end where the method sends nothing more, or the gap is a rounding error. The name
    of an algorithm is METHOD or METHOD_COMPRESSOR: within a column, the method has a colour, the compressor a dash.
    Methods of no column, such as Newton's, which sends matrices, are black, in each column; a method of one round, or
    of one evaluation, is a mark.
    """
    from matplotlib.ticker import EngFormatter

    gap, score = inputs.figure.panels
    curves = curves_by_algorithm(inputs, inputs.figure.panels)
    figure, axes = make_figure(6, 3, height=1.6)
    for i, ax in enumerate(axes[1:], 1):
        ax.sharex(axes[0])
        if i % 3:
            ax.sharey(axes[i - i % 3])
    in_columns = {method for methods in _METHODS_OF_COLUMN.values() for method in methods}
    in_each_column = {algo for algo in curves if algo.partition("_")[0] not in in_columns}
    one_shot = [algo for algo, curve in curves.items() if len(curve["bytes"]) == 1]
    for column, (kind, methods) in enumerate(_METHODS_OF_COLUMN.items()):
        top = axes[column]
        bottom = axes[column + 3]
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
            top.plot(curve["bytes"], curve[gap], linewidth=pt(1), **style)
            bottom.plot(curve["bytes"], curve[score], linewidth=pt(1), **style)
        top.set_title(kind, pad=pt(3))
        top.set(yscale="log")
        bottom.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.3))
    for i, ax in enumerate(axes):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(EngFormatter("B"))
        ax.tick_params(labelleft=i % 3 == 0, labelbottom=i >= 3)
    axes[0].set_ylabel(inputs.tuned.axis_label(gap))
    axes[3].set_ylabel(inputs.tuned.axis_label(score))
    axes[4].set_xlabel(X_LABELS["bytes"])
    return figure


def draw_graphs(inputs: FigureInputs) -> Any:
    """Draw a panel for each method with a curve for each graph, and the rounds to a gap against the spectral gap.

    Curves are medians over seeds, and end where the gap is a rounding error. The name of an algorithm is METHOD_GRAPH,
    and its title begins with that of the method and a comma. A method has no mark in the last panel for a graph on
    which it does not come to the gap, and a line down to the first round in which it may have come there. Raises
    UserError for names without the graph of their runs.
    """
    curves = curves_by_algorithm(inputs, ["suboptimality"])
    graph_of: dict[str, str] = {}
    for algo, record in zip(inputs.tuned.frame["algo"], inputs.tuned_records, strict=True):
        if algo in curves:
            graph_of[algo] = Path(str(record.config["topology"].get("graph"))).stem  # edges of edges.csv
    method_of = {algo: algo.removesuffix(f"_{graph}") for algo, graph in graph_of.items()}
    for algo, graph in graph_of.items():
        if method_of[algo] == algo:
            raise UserError(f"figure.draw=graph_race needs names METHOD_GRAPH: give algo.name={algo}_{graph}")
    spectral_gaps = dict(zip(inputs.tuned.frame["algo"], inputs.tuned.column("spectral_gap"), strict=True))
    methods = list(dict.fromkeys(method_of.values()))
    graphs = list(dict.fromkeys(graph_of.values()))
    n_panels = len(methods) + 1
    across = count_panel_columns(n_panels)
    figure, axes = make_figure(n_panels, across, height=1.7)
    handles = {}
    for i, method in enumerate(methods):
        of_method = [algo for algo in curves if method_of[algo] == method]
        of_method.sort(
            key=lambda algo: np.nan_to_num(spectral_gaps[algo], nan=np.inf)
        )  # the order of the line of the last panel
        rounds_to_gap = []
        for algo in of_method:
            graph = graph_of[algo]
            curve = curves[algo]
            style = curve_style(graphs.index(graph)).line_kwargs | {"linewidth": pt(1)}
            shown = end_at_floor(curve, "suboptimality")
            (handles[graph],) = axes[i].plot(shown["rounds"], shown["suboptimality"], **style)
            at_target = (curve["suboptimality"] <= _TARGET).tolist()
            rounds_to_gap.append(find_rounds_to_target(curve["rounds"].tolist(), at_target))
        title = inputs.title(of_method[0]).partition(",")[0]
        axes[i].set_title(title, pad=pt(3))
        earliest, latest = np.array(rounds_to_gap).T
        reached = np.isfinite(latest)
        if reached.any():
            marks = {"marker": curve_style(i).marker, "markersize": pt(4), "markerfacecolor": "none", "color": "black"}
            line = {"linestyle": ":", "linewidth": pt(0.7)}
            gaps = np.array([spectral_gaps[algo] for algo in of_method])
            axes[-1].plot(gaps[reached], latest[reached], label=title, **marks, **line)
            axes[-1].vlines(gaps[reached], earliest[reached], latest[reached], color="black", linewidth=pt(0.7))
    top = max(ax.get_ylim()[1] for ax in axes[:-1])
    for i, ax in enumerate(axes[:-1]):
        ax.set(yscale="log", ylim=(FLOOR / 3, top), xlabel="communication round")
        ax.tick_params(labelleft=i % across == 0)
        if i % across == 0:
            ax.set_ylabel(CATALOGUE["suboptimality"].axis_label(inputs.tuned.cutoff))
    axes[-1].set(xscale="log", xlabel="spectral gap of the graph")
    axes[-1].set_ylim(0, 1.3 * axes[-1].get_ylim()[1])  # room for the legend
    title = f"rounds to a gap of $10^{{{np.log10(_TARGET):.0f}}}$"
    if unknown := dict.fromkeys(graph_of[algo] for algo in curves if np.isnan(spectral_gaps[algo])):
        title += f"\nedges drawn anew, no spectral gap: {', '.join(unknown)}"
    axes[-1].set_title(title, pad=pt(3))
    axes[-1].legend(frameon=False, loc="upper right")
    add_legend(figure, handles)
    return figure


def draw_identification(inputs: FigureInputs) -> Any:
    """Draw two panels against rounds, of the run with the first seed of each algorithm.

    They are the number of entries that are zero in only one of the solution and the optimum, and the gap. A dot on each
    curve is the round from which on the pattern is the optimum's to the end of the run.
    """
    from matplotlib.lines import Line2D

    figure, axes = make_figure(2, 2, height=2.0)
    handles = {}
    for i, algo in enumerate(inputs.algorithms):
        style = inputs.line_styles[algo]
        rows = inputs.tuned_records[list(inputs.tuned.frame["algo"]).index(algo)].rows
        width = 1.6 * 0.8**i  # curves that coincide stay visible below each other
        line = {"color": style.colour, "linestyle": style.line_dash, "linewidth": pt(width)}
        dot = {"color": style.colour, "marker": "o", "markersize": pt(2 + 2 * width), "zorder": 5, "clip_on": False}
        rounds = np.array([row["round"] for row in rows])
        is_identified = rounds == rows[-1].get("identified_round", np.nan)
        for ax, metric in zip(axes, inputs.figure.panels, strict=True):
            values = np.array([row.get(metric, np.nan) for row in rows], float)
            if metric == "suboptimality":
                values = np.maximum(values, FLOOR)
            (handles[inputs.title(algo)],) = ax.plot(rounds, values, **line)
            if is_identified.any():  # else the layout has room for a dot at the picture's corner
                ax.plot(rounds[is_identified], values[is_identified], **dot)
    from_here_on = Line2D([], [], linestyle="", color="black", marker="o", markersize=pt(4))
    handles["from here on zero where the optimum is zero"] = from_here_on
    for ax, metric in zip(axes, inputs.figure.panels, strict=True):
        ax.set_xscale("symlog", linthresh=10)
        ax.set(xlim=(0, None), xlabel="communication round")
        set_y_label(ax, inputs.tuned.axis_label(metric))
    errors, gap = axes
    errors.set_yscale("symlog", linthresh=1)
    errors.set(ylim=(0, None))
    gap.set_yscale("log")
    add_legend(figure, handles)
    return figure
