"""Methods of few rounds against gradient methods: the gap and the coefficients' error against rounds and bytes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.reports.pictures.layout import add_legend, choose_unit, make_figure, x_values
from fcorun.reports.pictures.style import pt
from fcorun.studies.figures.figure_inputs import FigureInputs

FLOOR = 1e-13  # smaller gaps are rounding errors, drawn and reported as this one
_GAPS = np.logspace(-1, -10, 91)  # for which the cheapest method is found
_SHORT = 12  # a curve of no more evaluations has a mark at each


def draw_costs(inputs: FigureInputs) -> Any:
    """Draw the first panel's metric against rounds and bytes, and the second one's against bytes; medians over seeds.

    A curve ends where its method sends nothing more, or where the gap is a rounding error.
    """
    gap, error = inputs.figure.panels
    curves = curves_by_algorithm(inputs, inputs.figure.panels)
    figure, axes = make_figure(3, 3, height=1.9)
    factor, label = choose_unit("bytes", max(curve["bytes"][-1] for curve in curves.values()))
    handles, titles = [], []
    for algo, curve in curves.items():
        style = inputs.line_styles[algo]
        curve = end_at_floor(curve, gap)
        line = {"color": style.colour, "linestyle": style.line_dash, "linewidth": pt(0.9)}
        every = 1 if len(curve["rounds"]) <= _SHORT else len(curve["rounds"]) // 8
        marks = {"marker": style.marker, "markersize": pt(3), "markerfacecolor": "none", "markevery": every}
        if len(curve["rounds"]) == 1:
            marks |= {"markersize": pt(4.5), "zorder": 5}
        sent = curve["bytes"] / factor
        axes[0].plot(curve["rounds"], np.maximum(curve[gap], FLOOR), **line, **marks)
        axes[1].plot(sent, np.maximum(curve[gap], FLOOR), **line, **marks)
        handles += axes[2].plot(sent, curve[error], **line, **marks)
        titles.append(inputs.title(algo))
    for ax, metric in zip(axes, (gap, gap, error), strict=True):
        scale = "linear" if metric == error else "log"
        ax.set(xscale="log", yscale=scale, xlabel=label, ylabel=inputs.tuned.axis_label(metric))
    axes[0].set_xlabel("communication round")
    n_seeds = inputs.tuned.frame.groupby("algo").size().max()
    if n_seeds > 1:
        axes[0].set_title(f"median over {n_seeds} {inputs.tuned.seed_kind}", pad=pt(3))
    add_legend(figure, handles, titles)
    return figure


def median_curve(runs: Sequence[Sequence[dict[str, float]]]) -> dict[str, np.ndarray]:
    """Return the medians over runs of each column, from the first round to the last one that sends something.

    Raises UserError for runs that send nothing.
    """
    rounds = min(len(rows) for rows in runs)
    sent = np.median([x_values(rows[:rounds], "bytes", "a run") for rows in runs], axis=0)
    if not sent[-1]:
        raise UserError("a run that sends nothing, such as algo=centralized, has no curve against bytes: leave it out "
                        "of the figure")  # fmt: skip
    stop = 1 + next(k for k, value in enumerate(sent) if value == sent[-1])
    curve = {"rounds": np.array([row["round"] for row in runs[0][1:stop]]), "bytes": sent[1:stop]}
    for name in runs[0][0]:
        values = [[row.get(name, np.nan) for row in rows[1:stop]] for rows in runs]
        curve.setdefault(name, np.median(values, axis=0))
    return curve


def end_at_floor(curve: dict[str, np.ndarray], gap: str) -> dict[str, np.ndarray]:
    """Return a curve up to the first gap that is a rounding error."""
    at_floor = np.flatnonzero(curve[gap] <= FLOOR)
    return {name: values[: at_floor[0] + 1] for name, values in curve.items()} if len(at_floor) else curve


def find_costs(curve: dict[str, np.ndarray], axis: str, metric: str = "suboptimality") -> np.ndarray:
    """Return the rounds or bytes at which a curve first is at each gap of ``_GAPS``, infinite where it never is."""
    costs = []
    for target in _GAPS:
        reached = np.flatnonzero(curve[metric] <= target)
        costs.append(curve[axis][reached[0]] if len(reached) else np.inf)
    return np.array(costs)


def check_costs(inputs: FigureInputs) -> list[dict[str, str]]:
    """Report for each method its last gap, what that cost, and for which gaps no other method sends less."""
    curves = curves_by_algorithm(inputs, ["suboptimality"])
    rows = []
    for axis in ("bytes", "rounds"):
        costs = {algo: find_costs(curve, axis) for algo, curve in curves.items()}
        least = np.min(list(costs.values()), axis=0)
        for algo, cost in costs.items():
            is_least = (cost == least) & np.isfinite(cost)
            rows.append({
                "algo": algo, "says": f"needs the fewest {axis} for some gap",
                "measured": f"{_describe_gaps(is_least)}; ends at {_describe_end(curves[algo])}",
                "wanted": f"no more {axis} than any other", "holds": "yes" if is_least.any() else "no", "test": "",
                "note": "",
            })  # fmt: skip
    return rows


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


def _describe_end(curve: dict[str, np.ndarray]) -> str:
    gap = f"{curve['suboptimality'][-1]:.1g}" if curve["suboptimality"][-1] > FLOOR else f"below {FLOOR:g}"
    rounds = f"{curve['rounds'][-1]:g} round" + ("s" if curve["rounds"][-1] > 1 else "")
    return f"{gap} after {rounds} and {curve['bytes'][-1] / 1000:,.0f} kB"
