"""The picture of a metric over the learning rates: heat maps where both vary, lines where one does."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fcorun.reports.pictures.axis import set_y_scale
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
from fcorun.reports.pictures.layout import add_legend, make_figure
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.pictures.style import current_style, pt
from fcorun.reports.run_table import SEED_KEYS, DataFrame
from fcorun.reports.seed_bands import describe_band

_WORDS = {CLIENT_LR: "client learning rate $\\eta_c$", SERVER_LR: "server learning rate $\\eta_s$"}
_SIGNS = {CLIENT_LR: "$\\eta_c$", SERVER_LR: "$\\eta_s$"}


def draw(view: ProblemView) -> Any | None:
    """The metric over the learning rates; None if no algorithm has several."""
    import pandas as pd

    frame = view.table.frame
    rates = [rate for rate in (CLIENT_LR, SERVER_LR) if rate in frame]
    frame = frame.assign(**{rate: pd.to_numeric(frame[rate], errors="coerce") for rate in rates})  # none for "auto"
    view = replace(view, table=replace(view.table, frame=frame))
    folded = view.table.fold_seeds(view.metric)
    vary = {
        algo: [rate for rate in rates if group[rate].nunique() > 1]
        for algo, group in folded.groupby("algo", sort=False)
        if (group["status"] == "done").any()
    }
    if any(len(own) == 2 for own in vary.values()):
        return _heat_maps(view, folded, [algo for algo in view.curve_styles if vary.get(algo)])
    if any(vary.values()):
        return _lines(view, folded, vary)
    return None


def best_by_rates(folded: DataFrame, algo: str, higher: bool, rates: list[str]) -> BestByRates:
    """For each value of ``rates`` the best point of an algorithm there, as a row of ``Table.points``.

    Where none is done, a diverged one; values where nothing has ended are left out, and so are points without a number
    of a rate that others have one of.
    """
    sign, own = -1 if higher else 1, folded[folded["algo"] == algo]
    numbered = [bool(own[rate].notna().any()) for rate in rates]
    found: BestByRates = {}
    for row in own.to_dict("records"):
        place = _place(row, rates)
        done = row["status"] == "done" and np.isfinite(row["metric"])
        lacks = any(value is None and there for value, there in zip(place, numbered, strict=True))
        if lacks or not (done or row["status"] == "diverged"):
            continue
        old = found.get(place)
        if old is None or (done and (old["status"] != "done" or sign * row["metric"] < sign * old["metric"])):
            found[place] = row
    return found


def _place(row: Mapping[str, Any], rates: Sequence[str]) -> RateValues:
    return tuple(None if row[rate] is None or row[rate] != row[rate] else row[rate] for rate in rates)


def _heat_maps(view: ProblemView, folded: DataFrame, algos: list[str]) -> Any | None:
    """A map for each algorithm that has a point to show; one that lacks a rate has a strip."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    at = {
        algo: found
        for algo in algos
        if (found := best_by_rates(folded, algo, view.higher_is_better, [CLIENT_LR, SERVER_LR]))
    }
    algos = list(at)
    if not algos:
        return None
    values = np.array([row["metric"] for found in at.values() for row in found.values() if row["status"] == "done"])
    low, high = colour_range(values, view.higher_is_better)
    norm = LogNorm(low, high) if low > 0 and high > 100 * low else Normalize(low, high)
    colours = ScalarMappable(norm, "viridis" if view.higher_is_better else "viridis_r")  # the brighter the better
    beyond = bool(len(values)) and values.max() > high

    across = 2 if len(algos) == 4 else min(len(algos), 3)
    bottom = 0.72 if any(len({client for client, _ in found}) > MAX_HORIZONTAL_TICKS for found in at.values()) else 0.47
    figure, axes = make_figure(len(algos), across, height=1.9, left=0.58, right=0.9, top=0.2, bottom=bottom,
                        gap=(0.55, 0.17 + bottom))  # fmt: skip
    best, ties = locate_best(view, folded, [CLIENT_LR, SERVER_LR])
    for ax, algo in zip(axes, algos, strict=True):
        draw_heat_map(ax, at[algo], colours, best[algo], ties.get(algo, []))
        label_missing_rates(ax, at[algo], view.records)
        ax.set_title(view.table.algo_title(algo), pad=pt(3))
    for ax in axes[::across]:
        ax.set_ylabel(_WORDS[SERVER_LR])
    for i in range(len(algos)):
        if i + across >= len(algos):
            axes[i].set_xlabel(_WORDS[CLIENT_LR])
    low, high = axes[-1].get_position().y0, axes[0].get_position().y1
    width = current_style().layout_width(across)
    bar = figure.add_axes((1 - 0.82 / width, low, 0.09 / width, high - low))
    figure.colorbar(colours, cax=bar, label=_axis(view), extend="max" if beyond else "neither")
    bar.grid(False)
    _marks(figure, view, folded, [CLIENT_LR, SERVER_LR])
    return figure


def colour_range(values: np.ndarray, higher: bool) -> tuple[float, float]:
    """The ends of a colour scale. Losses that are far out, of runs that all but diverged, lie beyond it."""
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if not higher and low > 0:
        q1, q3 = np.quantile(np.log(values), (0.25, 0.75))
        high = float(values[np.log(values) <= q3 + 1.5 * (q3 - q1)].max())
    room = 0.01 * max(abs(low), abs(high), 1e-9)  # a bar of almost equal values would have an unreadable axis
    return (low, high) if high - low > room else (low - room, high + room)


def _lines(view: ProblemView, folded: DataFrame, vary: Mapping[Any, list[str]]) -> Any:
    """The metric against each rate that some algorithm has several of."""
    rates = [rate for rate in (CLIENT_LR, SERVER_LR) if any(rate in own for own in vary.values())]
    most = max(view.table.frame[rate].nunique() for rate in rates)
    figure, axes = make_figure(
        len(rates),
        len(rates),
        height=1.9,
        left=0.72,
        bottom=0.72 if most > MAX_HORIZONTAL_TICKS else 0.47,
        gap=(0.8, 0.5),
    )
    for ax, rate in zip(axes, rates, strict=True):
        tops, ties = locate_best(view, folded, [rate])
        spread: list[float] = []
        crosses: list[tuple[float, int, str]] = []
        for algo in (algo for algo in view.curve_styles if rate in vary.get(algo, ())):
            look, found = view.curve_styles[algo], best_by_rates(folded, algo, view.higher_is_better, [rate])
            done = sorted((place[0], row["metric"], row["low"], row["high"])
                          for place, row in found.items() if row["status"] == "done")  # fmt: skip
            x, middle, low, high = zip(*done, strict=True) if done else ((), (), (), ())
            ax.plot(x, middle, **look.line_kwargs, marker=look.marker, label=view.table.algo_title(algo))
            ax.fill_between(x, low, high, color=look.colour, alpha=0.2, linewidth=0)
            spread += [*low, *high]
            without = folded[(folded["algo"] == algo) & folded[rate].isna() & (folded["status"] == "done")]["metric"]
            if len(without):  # it has no place on the axis
                level = without.max() if view.higher_is_better else without.min()
                told = f"{view.table.algo_title(algo)}, auto" + (" (best)" if tops.get(algo) == (None,) else "")
                ax.axhline(level, color=look.colour, linestyle=":", linewidth=pt(1), label=told)
                spread.append(level)
            for place, mark in (
                (tops.get(algo), ring_marker()),
                *((tie, ring_marker(tie=True)) for tie in ties.get(algo, [])),
            ):
                if place in found:
                    ax.plot(*place, found[place]["metric"], **mark)
            line = len({colour for *_, colour in crosses})
            crosses += [(place[0], line, look.colour) for place, row in found.items() if row["status"] != "done"]
        tried = sorted(view.table.frame[rate].dropna().unique())
        if tried[0] > 0:
            ax.set_xscale("log")
        ax.set_xticks(tried, [f"{value:g}" for value in tried], rotation=90 if len(tried) > MAX_HORIZONTAL_TICKS else 0)
        ax.minorticks_off()
        set_y_scale(ax, spread)
        _strip(ax, crosses, low=view.higher_is_better)
        ax.set(xlabel=_WORDS[rate], ylabel=_axis(view))
    _marks(figure, view, folded, rates, axes)
    return figure


def _strip(ax: Any, crosses: list[tuple[float, int, str]], low: bool) -> None:
    """Crosses (x, line, colour) in a strip of their own at the bad end of the axis, a line an algorithm."""
    from matplotlib.patches import Rectangle

    if not crosses:
        return
    share = 0.03 + 0.055 * (1 + max(line for _, line, _ in crosses))
    forth, back = ax.yaxis.get_transform(), ax.yaxis.get_transform().inverted()
    bottom, top = forth.transform(ax.get_ylim())
    more = (top - bottom) * share / (1 - share)
    ax.set_ylim(back.transform((bottom - more, top) if low else (bottom, top + more)))
    place = (0, 0 if low else 1 - share)
    ax.add_patch(Rectangle(place, 1, share, transform=ax.transAxes, color="0.94", linewidth=0, zorder=0.1))
    for x, line, colour in crosses:
        height = 0.045 + 0.055 * line
        ax.plot(x, height if low else 1 - height, **cross_marker(colour), transform=ax.get_xaxis_transform())


def locate_best(
    view: ProblemView, folded: DataFrame, rates: Sequence[str]
) -> tuple[dict[str, RateValues], dict[str, list[RateValues]]]:
    """At which values of ``rates`` each algorithm's best point lies, the same one as in the table, and those that are
    tied with it there; ``folded`` is ``Table.points``."""
    places = {tuple(row["rows"]): _place(row, rates) for row in folded.to_dict("records")}
    best, ties = {}, {}
    for row in view.best_rows():
        algo, place = row["algo"], places[tuple(row["rows"])]
        best[algo] = place
        ties[algo] = list(dict.fromkeys(at for rows in row["tied"] if (at := places[tuple(rows)]) != place))
    return best, ties


def _edges(view: ProblemView, rates: Sequence[str]) -> list[str]:
    """What is to be tried beyond the edges of the grid, a line for each direction."""
    found: dict[tuple[str, bool], list[str]] = {}
    for edge in view.grid_edges():
        if edge.key in rates:
            found.setdefault((edge.key, edge.larger), []).append(view.table.algo_title(edge.algo))
    words = {True: "the largest {}, try larger", False: "the smallest {}, try smaller"}
    return [
        f"best is {words[larger].format(_SIGNS[key])}: {', '.join(algos)}" for (key, larger), algos in found.items()
    ]


def _axis(view: ProblemView) -> str:
    """The metric and the rounds of its tail."""
    tail = view.table.tail_rounds
    return view.table.axis_label(view.metric) + "\nmean of last " + (f"{tail} rounds" if tail else "rounds")


def _marks(figure: Any, view: ProblemView, folded: DataFrame, rates: list[str], axes: Sequence[Any] = ()) -> None:
    """The legend: what lines there are, the ring of the best point, the cross of a diverged one, what a value is of."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = {text: handle for ax in axes for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    seeds = folded["rows"].map(len).max()
    kind = view.table.seed_kind
    tops, ties = locate_best(view, folded, rates)
    if not axes or any(None not in place for place in tops.values()):
        shown["best"] = Line2D([], [], **ring_marker())
    if any(ties.values()):
        shown["tied with it"] = Line2D([], [], **ring_marker(tie=True))
    if (folded["status"] == "diverged").any():
        shown["diverged" + (f" with any of {seeds} {kind}" if seeds > 1 else "")] = Line2D([], [], **cross_marker())
    several = folded[(folded["status"] == "done") & (folded["seeds"] > 1)]
    if axes and len(several) and several["agree"].all():
        shown[f"{seeds} {kind} agree"] = Line2D([], [], linestyle="none")
    elif axes and len(several):
        shown[f"median and {describe_band(several['seeds'], kind)}"] = Patch(color="0.5", alpha=0.35, linewidth=0)
    elif seeds > 1:
        shown[f"median of {seeds} {kind}"] = Patch(color="#21918c", linewidth=0)  # of the colour map
    shown |= {note: Line2D([], [], linestyle="none") for note in _edges(view, rates)}
    if view.problem:
        shown[view.problem] = Line2D([], [], linestyle="none")
    others = [
        key for key in view.table.varied_keys if key not in (*SEED_KEYS, *rates, *view.table.problem_keys(view.metric))
    ]
    others = [key for key in others if (folded.groupby("algo")[key].nunique(dropna=False) > 1).any()]
    if others:
        shown[f"each at its best {' and '.join(others)}"] = Line2D([], [], linestyle="none")
    add_legend(figure, list(shown.values()), list(shown), handlelength=2.6 if axes else 1)
