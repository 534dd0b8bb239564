"""The metric over the numbers that vary, learning rates first: heat maps over two numbers, lines over one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcorun.reports.pictures.layout import (
    add_legend,
    escape_dollars,
    legend_name,
    make_figure,
    set_y_label,
    set_y_scale,
)
from fcorun.reports.pictures.picture import Picture
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.pictures.style import pt
from fcorun.reports.run_table import SEED_KEYS, DataFrame, format_number, is_number
from fcorun.reports.seed_bands import describe_band

CLIENT_LR, SERVER_LR = "algo.client_lr", "algo.server_lr"
RATES = (CLIENT_LR, SERVER_LR)
_LABELS = {CLIENT_LR: "client learning rate $\\eta_c$", SERVER_LR: "server learning rate $\\eta_s$"}
_SYMBOLS = {CLIENT_LR: "$\\eta_c$", SERVER_LR: "$\\eta_s$"}
_RATE_NAMES = {CLIENT_LR: "client rate", SERVER_LR: "server rate"}
_MAX_HORIZONTAL_TICKS = 4  # tick labels that fit side by side; more are vertical
_MAX_TICKS = 16  # labels that fit at all; of more values the axis has ticks of its own
_GREY = (0.82, 0.82, 0.82, 1)
RateValues = tuple[Any, ...]  # the values of some numbers, None for a key without a number
BestByRates = dict[RateValues, dict[str, Any]]  # the best point at each value of some numbers


@dataclass(frozen=True)
class AlgorithmPoints:
    """The points of one algorithm over some numbers.

    Attributes:
        algo: the name of the algorithm.
        by_values: the best point at each value of the numbers.
        best: the values of the best point, None before the algorithm has one.
        tied: the values of the points that are tied with it.
    """

    algo: str
    by_values: BestByRates
    best: RateValues | None = None
    tied: Sequence[RateValues] = ()

    @property
    def done(self) -> BestByRates:
        """The points that are done."""
        return {values: row for values, row in self.by_values.items() if row["status"] == "done"}

    @property
    def diverged(self) -> list[RateValues]:
        """The values at which runs diverged."""
        return [values for values, row in self.by_values.items() if row["status"] != "done"]


@dataclass(frozen=True)
class MetricOverNumbers:
    """The metric over the numbers that vary: maps, or lines against one number in each panel.

    Attributes:
        view: the runs.
        points: all points, rows of ``RunTable.fold_seeds``.
        keys: the keys of the numbers.
        maps: algorithms over two numbers, a panel each.
        lines: for each key the algorithms over this number, a panel with a line for each.
        limits: the ends of the colour scale of maps.
    """

    view: ProblemView
    points: DataFrame
    keys: Sequence[str]
    maps: Sequence[AlgorithmPoints] = ()
    lines: Mapping[str, Sequence[AlgorithmPoints]] = field(default_factory=dict)
    limits: tuple[float, float] = (0.0, 1.0)

    @property
    def caption(self) -> str:
        """The sentences below the picture on a page, which shows one panel in a picture."""
        view = self.view
        problem = f", {view.problem}" if view.problem else ""
        if not self.maps:
            (key,) = self.keys
            algos = [points.algo for points in self.lines[key]]
            undrawn = _describe_undrawn_best(view, self.keys, algos)
            legend = "; ".join(filter(None, ("Rings mark the best points", undrawn)))
            return f"{view.metric} against {key}{problem}. {legend}."
        (points,) = self.maps
        legend = _describe_undrawn_best(view, self.keys, [points.algo]) or "The ring marks the best point"
        if points.tied:
            legend += ", small rings points tied with it"
        if points.diverged:
            legend += ", crosses runs that diverged"
        title = f"{view.table.algo_title(points.algo)}{problem}"
        return f"{title}: {view.metric} over {self.keys[0]} and {self.keys[1]}. {legend}."


def collect_rates(view: ProblemView) -> MetricOverNumbers | None:
    """Return the metric over the learning rates; None if no algorithm has several.

    If both vary for some algorithm, each algorithm has a map; that of an algorithm with numbers of one rate is a strip.
    """
    points = view.table.fold_seeds(view.metric)
    varied = {}
    for algo, group in points.groupby("algo", sort=False):
        if (group["status"] == "done").any():
            varied[algo] = [rate for rate in RATES if rate in points and len(_distinct_numbers(group[rate])) > 1]
    algos = [algo for algo in view.curve_styles if varied.get(algo)]
    if any(len(varied[algo]) == 2 for algo in algos):
        maps = [_collect_algorithm(view, points, algo, RATES) for algo in algos]
        maps = [each for each in maps if each.by_values]
        return MetricOverNumbers(view, points, RATES, maps, limits=_colour_limits(view, maps)) if maps else None
    lines = {}
    for rate in RATES:
        of_rate = [_collect_algorithm(view, points, algo, [rate]) for algo in algos if rate in varied[algo]]
        if of_rate:
            lines[rate] = of_rate
    return MetricOverNumbers(view, points, list(lines), lines=lines) if lines else None


def collect_numbers(view: ProblemView) -> list[MetricOverNumbers]:
    """Return the metric over all numbers that vary, a picture for each panel.

    An algorithm with two such numbers, learning rates first, has a map. Algorithms with one number share a panel of
    lines for it.
    """
    points = view.table.fold_seeds(view.metric)
    maps: list[tuple[list[str], AlgorithmPoints]] = []
    lines: dict[str, list[AlgorithmPoints]] = {}
    for algo in view.curve_styles:
        keys = _find_numeric_keys(view, algo)
        of_algo = _collect_algorithm(view, points, algo, keys)
        if keys and of_algo.by_values and len(keys) == 2:
            maps.append((keys, of_algo))
        elif keys and of_algo.by_values:
            lines.setdefault(keys[0], []).append(of_algo)
    limits = _colour_limits(view, [of_algo for _, of_algo in maps])
    pictures = [MetricOverNumbers(view, points, keys, [of_algo], limits=limits) for keys, of_algo in maps]
    return pictures + [MetricOverNumbers(view, points, [key], lines={key: lines[key]}) for key in lines]


def _find_numeric_keys(view: ProblemView, algo: str) -> list[str]:
    """Return at most two keys with several numbers among the runs of an algorithm, learning rates first."""
    frame: Any = view.table.frame[view.table.frame["algo"] == algo]
    excluded = (*SEED_KEYS, *view.table.problem_keys(view.metric))
    numeric = []
    for key in dict.fromkeys((*RATES, *view.table.varied_keys)):
        if key in frame and key not in excluded and len(_distinct_numbers(frame[key])) > 1:
            numeric.append(key)
    return numeric[:2]


def _distinct_numbers(column: Any) -> list[float]:
    """Return the different numbers of a column, sorted, without texts such as "auto" and empty cells."""
    return sorted(set(filter(is_number, column.tolist())))


def _collect_algorithm(view: ProblemView, points: DataFrame, algo: str, keys: Sequence[str]) -> AlgorithmPoints:
    """Return one algorithm's points over the numbers of ``keys``."""
    best, tied = locate_best(view, points, keys)
    by_values = best_by_rates(points, algo, view.higher_is_better, keys)
    return AlgorithmPoints(algo, by_values, best.get(algo), tied.get(algo, []))


def best_by_rates(points: DataFrame, algo: str, higher_is_better: bool, keys: Sequence[str]) -> BestByRates:
    """Return for each value of ``keys`` the best point of an algorithm there, a row of ``RunTable.fold_seeds``.

    If no point is done there, a diverged point is returned. Values where no run has ended are left out. So are points
    that lack a number which other points have.
    """
    sign = -1 if higher_is_better else 1
    rows = points[points["algo"] == algo].to_dict("records")
    has_numbers = [any(is_number(row[key]) for row in rows) for key in keys]
    best: BestByRates = {}
    for row in rows:
        values = _rate_values(row, keys)
        is_done = row["status"] == "done" and np.isfinite(row["metric"])
        lacks_number = any(value is None and numeric for value, numeric in zip(values, has_numbers, strict=True))
        if lacks_number or not (is_done or row["status"] == "diverged"):
            continue
        previous = best.setdefault(values, row)
        if is_done and (previous["status"] != "done" or sign * row["metric"] < sign * previous["metric"]):
            best[values] = row
    return best


def _rate_values(row: Mapping[str, Any], keys: Sequence[str]) -> RateValues:
    """Return the numbers of ``keys``, None for "auto" and for an empty cell."""
    return tuple(row[key] if is_number(row[key]) else None for key in keys)


def locate_best(
    view: ProblemView, points: DataFrame, keys: Sequence[str]
) -> tuple[dict[str, RateValues], dict[str, list[RateValues]]]:
    """Return the values of ``keys`` at each algorithm's best point, and at the points that are tied with it.

    The best point is that of the table; ``points`` are those of ``RunTable.fold_seeds``.
    """
    values_of_runs = {tuple(row["rows"]): _rate_values(row, keys) for row in points.to_dict("records")}
    best = {}
    tied = {}
    for row in view.best_rows():
        algo = row["algo"]
        best[algo] = values_of_runs[tuple(row["rows"])]
        others = [values_of_runs[tuple(runs)] for runs in row["tied"]]
        tied[algo] = list(dict.fromkeys(other for other in others if other != best[algo]))
    return best, tied


def _colour_limits(view: ProblemView, maps: Sequence[AlgorithmPoints]) -> tuple[float, float]:
    """Return the ends of the colour scale that maps share."""
    return colour_range(np.array(_values_of(maps)), view.higher_is_better)


def _values_of(maps: Sequence[AlgorithmPoints]) -> list[float]:
    return [row["metric"] for points in maps for row in points.done.values()]


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


def _describe_undrawn_best(view: ProblemView, keys: Sequence[str], algos: Collection[str]) -> str:
    """Return which of the algorithms are best at a value that has no place on an axis, such as auto; "" without any."""
    texts = []
    for row in view.best_rows():
        if row["algo"] in algos:
            title = view.table.algo_title(row["algo"])
            undrawn = [f"{key}={format_number(row[key]) or 'null'}" for key in keys if not is_number(row[key])]
            texts += [f"{title} is best at {text}, which is not drawn" for text in undrawn]
    return "; ".join(texts)


def draw(content: MetricOverNumbers) -> Any:
    """Return a figure of maps, or of lines."""
    return _draw_maps(content) if content.maps else _draw_lines(content)


def _draw_maps(content: MetricOverNumbers) -> Any:
    """Return a figure with a map for each algorithm, on one colour scale."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    view = content.view
    low, high = content.limits
    norm = LogNorm(low, high) if low > 0 and high > 100 * low else Normalize(low, high)
    colours = ScalarMappable(norm, "viridis" if view.higher_is_better else "viridis_r")  # bright colours are better
    has_outliers = max(_values_of(content.maps), default=low) > high
    count = len(content.maps)
    across = 2 if count == 4 else min(count, 3)
    figure, axes = make_figure(count, across, height=2.0)
    ring_entries: dict[str, Any] = {}
    for ax, points in zip(axes, content.maps, strict=True):
        draw_heat_map(ax, points, colours)
        ring_entries |= _legend_of_rings(points)
        _label_missing_numbers(ax, content, points)
        ax.set_title(view.algo_title(points.algo), pad=pt(3))
    for ax in axes[::across]:
        ax.set_ylabel(_axis_label(content.keys[1]))
    for ax in axes[max(count - across, 0) :]:
        ax.set_xlabel(_axis_label(content.keys[0]))
    extend = "max" if has_outliers else "neither"
    figure.colorbar(colours, ax=axes, aspect=30, label=_metric_label(view), extend=extend).ax.grid(False)
    _add_number_legend(figure, content, ring_entries)
    return figure


def _axis_label(key: str) -> str:
    return _LABELS.get(key, escape_dollars(key))


def draw_heat_map(ax: Any, points: AlgorithmPoints, colours: Any) -> None:
    """Draw one algorithm's map, with rings at its best point and those that are tied with it.

    The values of a grid are at equal distances. Points of a search, which are no grid, are at their values.
    """
    xs = sorted({values[0] for values in points.by_values}, key=_none_first)
    ys = sorted({values[1] for values in points.by_values}, key=_none_first)
    rings = [(points.best, ring_marker()), *((values, ring_marker(tie=True)) for values in points.tied)]
    rings = [(values, marker) for values, marker in rings if values in points.by_values]
    if 2 * len(points.by_values) < len(xs) * len(ys):
        return _draw_scatter(ax, points.by_values, colours, rings)
    image = np.ones((len(ys), len(xs), 4))  # white where nothing was run
    for (x, y), row in points.by_values.items():
        place = ys.index(y), xs.index(x)
        if row["status"] == "done":
            image[place] = colours.to_rgba(row["metric"])
        else:
            image[place] = _GREY
            ax.plot(place[1], place[0], **cross_marker())
    ax.imshow(image, origin="lower", aspect="auto", interpolation="nearest")
    for (x, y), marker in rings:
        ax.plot(xs.index(x), ys.index(y), **marker | {"markeredgewidth": pt(2.2)})
        ax.plot(xs.index(x), ys.index(y), **marker | {"markeredgecolor": "white"})
    rotation = 90 if len(xs) > _MAX_HORIZONTAL_TICKS else 0
    ax.set_xticks(range(len(xs)), [_format_number(x) for x in xs], rotation=rotation)
    ax.set_yticks(range(len(ys)), [_format_number(y) for y in ys])
    ax.grid(False)
    ax.tick_params(length=pt(2))


def _none_first(value: float | None) -> tuple[bool, float]:
    return (value is not None, value or 0)


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def ring_marker(tie: bool = False) -> dict[str, Any]:
    """Return the marker of the best point, a smaller one for a point that is tied with it."""
    return {
        "marker": "o",
        "color": "none",
        "markeredgecolor": "black",
        "markersize": pt(4.5 if tie else 8),
        "markeredgewidth": pt(1.0),
        "linestyle": "none",
    }


def cross_marker(colour: str = "0.25") -> dict[str, Any]:
    """Return the marker of a point that diverged."""
    return {"marker": "x", "color": colour, "markersize": pt(4), "markeredgewidth": pt(0.9), "linestyle": "none"}


def _draw_scatter(ax: Any, points: BestByRates, colours: Any, rings: Sequence[tuple]) -> None:
    """Draw one algorithm's points at their values, with rings at the best point and tied ones."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    done = {"markersize": pt(6), "markeredgecolor": "0.4", "markeredgewidth": pt(0.4)}
    for values, row in points.items():
        if row["status"] == "done":
            ax.plot(*values, "o", color=colours.to_rgba(row["metric"]), **done)
    for values, row in points.items():
        if row["status"] != "done":
            ax.plot(*values, **cross_marker())
    for values, marker in rings:
        ax.plot(*values, **marker | {"markersize": pt(9)})
    xs, ys = zip(*points, strict=True)
    for axis, set_scale, values in ((ax.xaxis, ax.set_xscale, xs), (ax.yaxis, ax.set_yscale, ys)):
        if min(values) > 0:
            set_scale("log")
            axis.set_major_locator(LogLocator(subs=(1,) if max(values) > 100 * min(values) else (1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())


def _label_missing_numbers(ax: Any, content: MetricOverNumbers, points: AlgorithmPoints) -> None:
    """Label the axis of a key without numbers: the algorithm has no such key, or its value is auto."""
    values, row = next(iter(points.by_values.items()))
    config = content.view.records[row["rows"][0]].flat_config
    for axis, key, value in zip((ax.xaxis, ax.yaxis), content.keys, values, strict=True):
        if value is not None:
            continue
        name, setting = _RATE_NAMES.get(key, key), config.get(key)
        axis.set_ticks([0], [f"no {name}" if setting is None else f"{name} {setting}"])
        if axis is ax.yaxis:
            ax.tick_params(axis="y", rotation=90)
            for label in ax.get_yticklabels():
                label.set_verticalalignment("center")


def _draw_lines(content: MetricOverNumbers) -> Any:
    """Return a figure of the metric against each number that some algorithm has several values of."""
    figure, axes = make_figure(len(content.lines), len(content.lines), height=1.9)
    ring_entries: dict[str, Any] = {}
    for ax, (key, algorithms) in zip(axes, content.lines.items(), strict=True):
        drawn_values: list[float] = []
        crosses: list[tuple[float, int, str]] = []
        for points in algorithms:
            drawn_values += _draw_line(ax, content, key, points)
            ring_entries |= _legend_of_rings(points)
            line = len({colour for *_, colour in crosses})
            colour = content.view.curve_styles[points.algo].colour
            crosses += [(values[0], line, colour) for values in points.diverged]
        tried = _distinct_numbers(content.view.table.frame[key])
        if tried[0] > 0:
            ax.set_xscale("log")
        if len(tried) <= _MAX_TICKS:
            rotation = 90 if len(tried) > _MAX_HORIZONTAL_TICKS else 0
            ax.set_xticks(tried, [f"{value:g}" for value in tried], rotation=rotation)
            ax.minorticks_off()
        set_y_scale(ax, drawn_values)
        _draw_diverged_strip(ax, crosses, at_bottom=content.view.higher_is_better)
        ax.set_xlabel(_axis_label(key))
        set_y_label(ax, _metric_label(content.view))
    _add_number_legend(figure, content, ring_entries, axes)
    return figure


def _draw_line(ax: Any, content: MetricOverNumbers, key: str, points: AlgorithmPoints) -> list[float]:
    """Draw one algorithm's line with its band and rings, and return the values that the y axis must include."""
    view = content.view
    style = view.curve_styles[points.algo]
    title = legend_name(view.algo_title(points.algo))
    rows = [points.by_values[values] for values in sorted(points.done)]
    xs = [values[0] for values in sorted(points.done)]
    low = [row["low"] for row in rows]
    high = [row["high"] for row in rows]
    ax.plot(xs, [row["metric"] for row in rows], **style.line_kwargs, marker=style.marker, label=title)
    ax.fill_between(xs, low, high, color=style.colour, alpha=0.2, linewidth=0)
    drawn_values = [*low, *high]
    table = content.points
    is_auto = (table["algo"] == points.algo) & ~table[key].map(is_number) & (table["status"] == "done")
    auto = table[is_auto]["metric"]
    if len(auto):  # a level line, since auto has no position on the axis
        level = auto.max() if view.higher_is_better else auto.min()
        label = f"{title}, auto" + (" (best)" if points.best == (None,) else "")
        ax.axhline(level, color=style.colour, linestyle=":", linewidth=pt(1), label=label)
        drawn_values.append(level)
    for values, marker in [(points.best, ring_marker()), *((tie, ring_marker(tie=True)) for tie in points.tied)]:
        if values in points.by_values:
            ax.plot(*values, points.by_values[values]["metric"], **marker)
    return drawn_values


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


def _legend_of_rings(points: AlgorithmPoints) -> dict[str, Any]:
    """Return the entries of a legend for the rings of an algorithm that are drawn."""
    from matplotlib.lines import Line2D

    entries = {}
    if points.best in points.by_values:
        entries["best"] = Line2D([], [], **ring_marker())
    if any(values in points.by_values for values in points.tied):
        entries["tied with it"] = Line2D([], [], **ring_marker(tie=True))
    return entries


def _describe_edges(view: ProblemView, keys: Sequence[str]) -> list[str]:
    """Return advice on what to try beyond the edges of the grid, a line for each number and direction."""
    algos_at_edge: dict[tuple[str, bool], list[str]] = {}
    for edge in view.grid_edges():
        if edge.key in keys:
            algos_at_edge.setdefault((edge.key, edge.is_largest), []).append(view.algo_title(edge.algo))
    lines = []
    for (key, is_largest), algos in algos_at_edge.items():
        tried, beyond = ("largest", "larger") if is_largest else ("smallest", "smaller")
        lines.append(f"best is the {tried} {_SYMBOLS.get(key, key)}, try {beyond}: {', '.join(algos)}")
    return lines


def _metric_label(view: ProblemView) -> str:
    """Return the label of the metric, with the rounds of its tail average."""
    tail = view.table.tail_rounds
    return view.table.axis_label(view.metric) + "\nmean of last " + (f"{tail} rounds" if tail else "rounds")


def _add_number_legend(
    figure: Any, content: MetricOverNumbers, ring_entries: Mapping[str, Any], axes: Sequence[Any] = ()
) -> None:
    """Add a legend: the lines, the rings and crosses, the meaning of values and bands, and notes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    view, points = content.view, content.points
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
    entries |= dict.fromkeys(_describe_edges(view, content.keys), blank)
    if view.problem:
        entries[escape_dollars(view.problem)] = blank
    excluded = (*SEED_KEYS, *content.keys, *view.table.problem_keys(view.metric))
    others = [key for key in view.table.varied_keys if key not in excluded]
    others = [key for key in others if (points.groupby("algo")[key].nunique(dropna=False) > 1).any()]
    if others:
        entries[f"each at its best {' and '.join(others)}"] = blank
    add_legend(figure, list(entries.values()), list(entries), handlelength=2.6 if axes else 1)


PICTURE = Picture("rates", ProblemView, collect_rates, draw, title="What was varied", collect_parts=collect_numbers)
