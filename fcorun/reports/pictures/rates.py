"""The picture of a metric over the learning rates: heat maps if both vary for some algorithm, else lines."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fcorun.reports.pictures.heat_map import (
    CLIENT_LR,
    MAX_HORIZONTAL_TICKS,
    SERVER_LR,
    BestByRates,
    RateValues,
    cross_marker,
    draw_heat_map,
    label_missing_rates,
    ring_marker,
)
from fcorun.reports.pictures.layout import add_legend, escape_dollars, legend_name, make_figure, set_y_scale
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.pictures.style import current_style, pt
from fcorun.reports.run_table import SEED_KEYS, DataFrame, is_number
from fcorun.reports.seed_bands import describe_band

_LABELS = {CLIENT_LR: "client learning rate $\\eta_c$", SERVER_LR: "server learning rate $\\eta_s$"}
_SYMBOLS = {CLIENT_LR: "$\\eta_c$", SERVER_LR: "$\\eta_s$"}


def draw(view: ProblemView) -> Any | None:
    """Return a figure of the metric over the learning rates; None if no algorithm has several."""
    import pandas as pd

    frame = view.table.frame
    rates = [rate for rate in (CLIENT_LR, SERVER_LR) if rate in frame]
    numbers = {rate: pd.to_numeric(frame[rate], errors="coerce") for rate in rates}  # nan for "auto"
    view = replace(view, table=replace(view.table, frame=frame.assign(**numbers)))
    points = view.table.fold_seeds(view.metric)
    varied = {}
    for algo, group in points.groupby("algo", sort=False):
        if (group["status"] == "done").any():
            varied[algo] = [rate for rate in rates if group[rate].nunique() > 1]
    if any(len(algo_rates) == 2 for algo_rates in varied.values()):
        return _draw_heat_maps(view, points, [algo for algo in view.curve_styles if varied.get(algo)])
    if any(varied.values()):
        return _draw_lines(view, points, varied)
    return None


def best_by_rates(points: DataFrame, algo: str, higher_is_better: bool, rates: list[str]) -> BestByRates:
    """Return for each value of ``rates`` the best point of an algorithm there, a row of ``RunTable.fold_seeds``.

    If no point is done there, a diverged point is returned. Values where no run has ended are left out. So are points
    that lack a rate which other points have.
    """
    sign = -1 if higher_is_better else 1
    rows = points[points["algo"] == algo].to_dict("records")
    has_numbers = [any(_rate_values(row, [rate]) != (None,) for row in rows) for rate in rates]
    best: BestByRates = {}
    for row in rows:
        values = _rate_values(row, rates)
        is_done = row["status"] == "done" and np.isfinite(row["metric"])
        lacks_number = any(value is None and numeric for value, numeric in zip(values, has_numbers, strict=True))
        if lacks_number or not (is_done or row["status"] == "diverged"):
            continue
        previous = best.setdefault(values, row)
        if is_done and (previous["status"] != "done" or sign * row["metric"] < sign * previous["metric"]):
            best[values] = row
    return best


def _rate_values(row: Mapping[str, Any], rates: Sequence[str]) -> RateValues:
    """Return the numbers of ``rates``, None for "auto" and for an empty cell."""
    return tuple(row[rate] if is_number(row[rate]) else None for rate in rates)


def _draw_heat_maps(view: ProblemView, points: DataFrame, algos: list[str]) -> Any | None:
    """Return a figure with a map for each algorithm that has a point.

    The map of an algorithm with numbers of one rate only is a strip.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    rates = [CLIENT_LR, SERVER_LR]
    best_of_algo = {}
    for algo in algos:
        if best := best_by_rates(points, algo, view.higher_is_better, rates):
            best_of_algo[algo] = best
    if not best_of_algo:
        return None
    values = [row["metric"] for best in best_of_algo.values() for row in best.values() if row["status"] == "done"]
    low, high = colour_range(np.array(values), view.higher_is_better)
    norm = LogNorm(low, high) if low > 0 and high > 100 * low else Normalize(low, high)
    colours = ScalarMappable(norm, "viridis" if view.higher_is_better else "viridis_r")  # bright colours are better
    has_outliers = bool(values) and max(values) > high

    count = len(best_of_algo)
    across = 2 if count == 4 else min(count, 3)
    has_vertical_ticks = any(
        len({client_rate for client_rate, _ in best}) > MAX_HORIZONTAL_TICKS for best in best_of_algo.values()
    )
    bottom = 0.72 if has_vertical_ticks else 0.47
    figure, axes = make_figure(
        count, across, height=1.9, left=0.58, right=0.9, top=0.2, bottom=bottom, gap=(0.55, 0.17 + bottom)
    )
    best_values, tied = locate_best(view, points, rates)
    ring_entries: dict[str, Any] = {}
    for ax, (algo, best) in zip(axes, best_of_algo.items(), strict=True):
        draw_heat_map(ax, best, colours, best_values[algo], tied.get(algo, []))
        ring_entries |= _legend_of_rings(best, best_values[algo], tied.get(algo, []))
        label_missing_rates(ax, best, view.records)
        ax.set_title(view.algo_title(algo), pad=pt(3))
    for ax in axes[::across]:
        ax.set_ylabel(_LABELS[SERVER_LR])
    for ax in axes[max(count - across, 0) :]:
        ax.set_xlabel(_LABELS[CLIENT_LR])
    bottom, top = axes[-1].get_position().y0, axes[0].get_position().y1
    width = current_style().layout_width(across)
    colour_bar = figure.add_axes((1 - 0.82 / width, bottom, 0.09 / width, top - bottom))
    figure.colorbar(colours, cax=colour_bar, label=_metric_label(view), extend="max" if has_outliers else "neither")
    colour_bar.grid(False)
    _add_rate_legend(figure, view, points, rates, ring_entries=ring_entries)
    return figure


def colour_range(values: np.ndarray, higher_is_better: bool) -> tuple[float, float]:
    """Return the ends of a colour scale. Losses that are outliers, of runs that nearly diverged, lie beyond it."""
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if not higher_is_better and low > 0:
        q1, q3 = np.quantile(np.log(values), (0.25, 0.75))
        high = float(values[np.log(values) <= q3 + 1.5 * (q3 - q1)].max())
    margin = 0.01 * max(abs(low), abs(high), 1e-9)  # without it, the axis of almost equal values is unreadable
    return (low, high) if high - low > margin else (low - margin, high + margin)


def _draw_lines(view: ProblemView, points: DataFrame, varied: Mapping[Any, list[str]]) -> Any:
    """Return a figure of the metric against each rate that some algorithm has several numbers of."""
    rates = [rate for rate in (CLIENT_LR, SERVER_LR) if any(rate in keys for keys in varied.values())]
    max_numbers = max(view.table.frame[rate].nunique() for rate in rates)
    bottom = 0.72 if max_numbers > MAX_HORIZONTAL_TICKS else 0.47
    figure, axes = make_figure(len(rates), len(rates), height=1.9, left=0.72, bottom=bottom, gap=(0.8, 0.5))
    ring_entries: dict[str, Any] = {}
    for ax, rate in zip(axes, rates, strict=True):
        best_values, tied = locate_best(view, points, [rate])
        drawn_values: list[float] = []
        crosses: list[tuple[float, int, str]] = []
        for algo, style in view.curve_styles.items():
            if rate not in varied.get(algo, ()):
                continue
            title = legend_name(view.algo_title(algo))
            best = best_by_rates(points, algo, view.higher_is_better, [rate])
            done = []
            for values, row in best.items():
                if row["status"] == "done":
                    done.append((values[0], row["metric"], row["low"], row["high"]))
            xs, median, low, high = zip(*sorted(done), strict=True) if done else ((), (), (), ())
            ax.plot(xs, median, **style.line_kwargs, marker=style.marker, label=title)
            ax.fill_between(xs, low, high, color=style.colour, alpha=0.2, linewidth=0)
            drawn_values += [*low, *high]
            is_auto = (points["algo"] == algo) & points[rate].isna() & (points["status"] == "done")
            auto = points[is_auto]["metric"]
            if len(auto):  # a level line, since auto has no position on the axis
                level = auto.max() if view.higher_is_better else auto.min()
                label = f"{title}, auto" + (" (best)" if best_values.get(algo) == (None,) else "")
                ax.axhline(level, color=style.colour, linestyle=":", linewidth=pt(1), label=label)
                drawn_values.append(level)
            rings = [(best_values.get(algo), ring_marker())]
            rings += [(values, ring_marker(tie=True)) for values in tied.get(algo, [])]
            for values, marker in rings:
                if values in best:
                    ax.plot(*values, best[values]["metric"], **marker)
            ring_entries |= _legend_of_rings(best, best_values.get(algo), tied.get(algo, []))
            line = len({colour for *_, colour in crosses})
            for values, row in best.items():
                if row["status"] != "done":
                    crosses.append((values[0], line, style.colour))
        tried = sorted(view.table.frame[rate].dropna().unique())
        if tried[0] > 0:
            ax.set_xscale("log")
        rotation = 90 if len(tried) > MAX_HORIZONTAL_TICKS else 0
        ax.set_xticks(tried, [f"{value:g}" for value in tried], rotation=rotation)
        ax.minorticks_off()
        set_y_scale(ax, drawn_values)
        _draw_diverged_strip(ax, crosses, at_bottom=view.higher_is_better)
        ax.set(xlabel=_LABELS[rate], ylabel=_metric_label(view))
    _add_rate_legend(figure, view, points, rates, ring_entries=ring_entries, axes=axes)
    return figure


def _draw_diverged_strip(ax: Any, crosses: list[tuple[float, int, str]], at_bottom: bool) -> None:
    """Draw crosses (x, line, colour) in a strip at the bad end of the y axis, a line for each algorithm."""
    from matplotlib.patches import Rectangle

    if not crosses:
        return
    share = 0.03 + 0.055 * (1 + max(line for _, line, _ in crosses))
    transform = ax.yaxis.get_transform()
    bottom, top = transform.transform(ax.get_ylim())
    strip = (top - bottom) * share / (1 - share)
    limits = (bottom - strip, top) if at_bottom else (bottom, top + strip)
    ax.set_ylim(transform.inverted().transform(limits))
    corner = (0, 0 if at_bottom else 1 - share)
    ax.add_patch(Rectangle(corner, 1, share, transform=ax.transAxes, color="0.94", linewidth=0, zorder=0.1))
    for x, line, colour in crosses:
        height = 0.045 + 0.055 * line
        y = height if at_bottom else 1 - height
        ax.plot(x, y, **cross_marker(colour), transform=ax.get_xaxis_transform())


def locate_best(
    view: ProblemView, points: DataFrame, rates: Sequence[str]
) -> tuple[dict[str, RateValues], dict[str, list[RateValues]]]:
    """Return the values of ``rates`` at each algorithm's best point, and at the points that are tied with it.

    The best point is that of the table; ``points`` are those of ``RunTable.fold_seeds``.
    """
    values_of_runs = {tuple(row["rows"]): _rate_values(row, rates) for row in points.to_dict("records")}
    best = {}
    tied = {}
    for row in view.best_rows():
        algo = row["algo"]
        values = values_of_runs[tuple(row["rows"])]
        best[algo] = values
        others = [values_of_runs[tuple(runs)] for runs in row["tied"]]
        tied[algo] = list(dict.fromkeys(other for other in others if other != values))
    return best, tied


def _legend_of_rings(best: BestByRates, best_values: RateValues | None, tied: Sequence[RateValues]) -> dict[str, Any]:
    """Return the entries of a legend for the rings of an algorithm that are drawn, which are at points of ``best``."""
    from matplotlib.lines import Line2D

    entries = {}
    if best_values in best:
        entries["best"] = Line2D([], [], **ring_marker())
    if any(values in best for values in tied):
        entries["tied with it"] = Line2D([], [], **ring_marker(tie=True))
    return entries


def _describe_edges(view: ProblemView, rates: Sequence[str]) -> list[str]:
    """Return advice on what to try beyond the edges of the grid, a line for each rate and direction."""
    algos_at_edge: dict[tuple[str, bool], list[str]] = {}
    for edge in view.grid_edges():
        if edge.key in rates:
            algos_at_edge.setdefault((edge.key, edge.is_largest), []).append(view.algo_title(edge.algo))
    lines = []
    for (rate, is_largest), algos in algos_at_edge.items():
        tried, beyond = ("largest", "larger") if is_largest else ("smallest", "smaller")
        lines.append(f"best is the {tried} {_SYMBOLS[rate]}, try {beyond}: {', '.join(algos)}")
    return lines


def _metric_label(view: ProblemView) -> str:
    """Return the label of the metric, with the rounds of its tail average."""
    tail = view.table.tail_rounds
    return view.table.axis_label(view.metric) + "\nmean of last " + (f"{tail} rounds" if tail else "rounds")


def _add_rate_legend(
    figure: Any,
    view: ProblemView,
    points: DataFrame,
    rates: list[str],
    *,
    ring_entries: Mapping[str, Any],
    axes: Sequence[Any] = (),
) -> None:
    """Add a legend: the lines, the rings and crosses, the meaning of values and bands, and notes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    blank = Line2D([], [], linestyle="none")
    entries: dict[str, Any] = {}
    for ax in axes:
        entries |= {text: handle for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    entries |= ring_entries
    seeds = points["rows"].map(len).max()
    seed_kind = view.table.seed_kind
    if (points["status"] == "diverged").any():
        suffix = f" with any of {seeds} {seed_kind}" if seeds > 1 else ""
        entries[f"diverged{suffix}"] = Line2D([], [], **cross_marker())
    with_band = points[(points["status"] == "done") & (points["seeds"] > 1)]
    if axes and len(with_band) and with_band["agree"].all():
        entries[f"{seeds} {seed_kind} agree"] = blank
    elif axes and len(with_band):
        band = describe_band(with_band["seeds"], seed_kind)
        entries[f"median and {band}"] = Patch(color="0.5", alpha=0.35, linewidth=0)
    elif seeds > 1:
        entries[f"median of {seeds} {seed_kind}"] = Patch(color="#21918c", linewidth=0)  # a colour of the map
    entries |= dict.fromkeys(_describe_edges(view, rates), blank)
    if view.problem:
        entries[escape_dollars(view.problem)] = blank
    excluded = (*SEED_KEYS, *rates, *view.table.problem_keys(view.metric))
    others = [key for key in view.table.varied_keys if key not in excluded]
    others = [key for key in others if (points.groupby("algo")[key].nunique(dropna=False) > 1).any()]
    if others:
        entries[f"each at its best {' and '.join(others)}"] = blank
    add_legend(figure, list(entries.values()), list(entries), handlelength=2.6 if axes else 1)
