"""The metric over the numbers that vary: heat maps over two numbers, learning rates first, lines over one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fcorun.reports.pictures import layout
from fcorun.reports.pictures.layout import pt
from fcorun.reports.pictures.picture import Picture
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.run_table import SEED_KEYS, DataFrame, describe_band, format_number, is_number

CLIENT_LR, SERVER_LR = "algo.client_lr", "algo.server_lr"
RATES = (CLIENT_LR, SERVER_LR)
_LABELS = {CLIENT_LR: "client learning rate $\\eta_c$", SERVER_LR: "server learning rate $\\eta_s$"}
_MAX_HORIZONTAL_TICKS = 4  # tick labels that fit side by side; more are vertical
_MAX_TICKS = 16  # labels that fit at all; of more values the axis has ticks of its own
_GREY = (0.82, 0.82, 0.82, 1)
RateValues = tuple[Any, ...]  # the values of some numbers, None for a key without a number, such as "auto"
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
class Panel:
    """The numbers of a panel with the algorithms over them: two numbers of one algorithm, or one of several."""

    keys: Sequence[str]
    algorithms: Sequence[AlgorithmPoints]

    @property
    def is_map(self) -> bool:
        """True for a map over two numbers; other panels have a line for each algorithm."""
        return len(self.keys) == 2


@dataclass(frozen=True)
class MetricOverNumbers:
    """The metric over the numbers that vary.

    Attributes:
        view: the runs.
        points: all points, rows of ``RunTable.fold_seeds``.
        panels: the panels, of which maps come first.
    """

    view: ProblemView
    points: DataFrame
    panels: Sequence[Panel]

    @property
    def keys(self) -> list[str]:
        """The keys of the numbers of all panels."""
        return list(dict.fromkeys(key for panel in self.panels for key in panel.keys))


def collect_numbers(view: ProblemView) -> MetricOverNumbers | None:
    """Return the metric over all numbers that vary; None if no number varies for an algorithm with runs that are done.

    An algorithm with two such numbers, learning rates first, has a map. Algorithms with one number share a panel of
    lines for it.
    """
    points = view.table.fold_seeds(view.metric)
    excluded = (*SEED_KEYS, *view.table.problem_keys(view.metric))
    candidates = [key for key in dict.fromkeys((*RATES, *view.table.varied_keys)) if key not in excluded]
    maps = []
    lines: dict[str, list[AlgorithmPoints]] = {}
    for algo in view.curve_styles:
        frame: Any = view.table.frame[view.table.frame["algo"] == algo]
        numeric = [key for key in candidates if key in frame and len(_distinct_numbers(frame[key])) > 1]
        keys = numeric[:2]
        algorithm = AlgorithmPoints(algo, best_by_rates(points, algo, view.higher_is_better, keys))
        values_of_runs = {tuple(row["rows"]): _rate_values(row, keys) for row in points.to_dict("records")}
        best_rows = [row for row in view.best_rows() if row["algo"] == algo]
        if best_rows:
            best = values_of_runs[tuple(best_rows[0]["rows"])]
            tied = dict.fromkeys(values_of_runs[tuple(runs)] for runs in best_rows[0]["tied"])
            algorithm = replace(algorithm, best=best, tied=[values for values in tied if values != best])
        if keys and algorithm.done and len(keys) == 2:
            maps.append(Panel(keys, [algorithm]))
        elif keys and algorithm.done:
            lines.setdefault(keys[0], []).append(algorithm)
    panels = [*maps, *(Panel([key], algorithms) for key, algorithms in lines.items())]
    return MetricOverNumbers(view, points, panels) if panels else None


def _distinct_numbers(column: Any) -> list[float]:
    """Return the different numbers of a column, sorted, without texts such as "auto" and empty cells."""
    return sorted(set(filter(is_number, column.tolist())))


def best_by_rates(points: DataFrame, algo: str, higher_is_better: bool, keys: Sequence[str]) -> BestByRates:
    """Return for each value of ``keys`` the best point of an algorithm there, a row of ``RunTable.fold_seeds``.

    If no point is done there, a diverged point is returned. Values where no run has ended are left out. So are points
    that lack a number.
    """
    sign = -1 if higher_is_better else 1
    best: BestByRates = {}
    for row in points[points["algo"] == algo].to_dict("records"):
        values = _rate_values(row, keys)
        is_done = row["status"] == "done" and np.isfinite(row["metric"])
        if None in values or not (is_done or row["status"] == "diverged"):
            continue
        previous = best.setdefault(values, row)
        if is_done and (previous["status"] != "done" or sign * row["metric"] < sign * previous["metric"]):
            best[values] = row
    return best


def _rate_values(row: Mapping[str, Any], keys: Sequence[str]) -> RateValues:
    """Return the numbers of ``keys``, None for "auto" and for an empty cell."""
    return tuple(row[key] if is_number(row[key]) else None for key in keys)


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


def _describe_undrawn_best(content: MetricOverNumbers) -> list[str]:
    """Return which algorithms are best at a value that has no place on an axis, such as auto."""
    view = content.view
    drawn_keys = {points.algo: panel.keys for panel in content.panels for points in panel.algorithms}
    texts = []
    for row in view.best_rows():
        for key in drawn_keys.get(row["algo"], ()):
            if not is_number(row[key]):
                value = format_number(row[key]) or "null"
                texts.append(f"{view.algo_title(row['algo'])} is best at {key}={value}, which is not drawn")
    return texts


def draw(content: MetricOverNumbers) -> Any:
    """Return a figure with a panel for each map, all on one colour scale, and for each number with lines."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    view = content.view
    maps = [panel for panel in content.panels if panel.is_map]
    values = [row["metric"] for panel in maps for points in panel.algorithms for row in points.done.values()]
    low, high = colour_range(np.array(values), view.higher_is_better)
    norm = LogNorm(low, high) if low > 0 and high > 100 * low else Normalize(low, high)
    colours = ScalarMappable(norm, "viridis" if view.higher_is_better else "viridis_r")  # bright colours are better
    count = len(content.panels)
    figure, axes = layout.make_figure(count, 2 if count == 4 else min(count, 3), height=2.0)
    entries: dict[str, Any] = {}
    for ax, panel in zip(axes, content.panels, strict=True):
        if panel.is_map:
            (points,) = panel.algorithms
            draw_heat_map(ax, points, colours)
            ax.set_title(view.algo_title(points.algo), pad=pt(3))
            ax.set_ylabel(_axis_label(panel.keys[1]))
        else:
            _draw_lines(ax, panel, content)
            entries |= layout.collect_entries([ax])
        ax.set_xlabel(_axis_label(panel.keys[0]))
    if maps:
        extend = "max" if max(values) > high else "neither"
        bar = figure.colorbar(colours, ax=axes[: len(maps)], aspect=30, label=_metric_label(view), extend=extend)
        bar.ax.grid(False)
    _add_number_legend(figure, content, entries)
    return figure


def _axis_label(key: str) -> str:
    return _LABELS.get(key, layout.escape_dollars(key))


def draw_heat_map(ax: Any, points: AlgorithmPoints, colours: Any) -> None:
    """Draw one algorithm's map, with rings at its best point and those that are tied with it.

    The values of a grid are at equal distances. Points of a search, which are no grid, are at their values.
    """
    xs = sorted({values[0] for values in points.by_values})
    ys = sorted({values[1] for values in points.by_values})
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
    ax.set_xticks(range(len(xs)), [f"{x:g}" for x in xs], rotation=rotation)
    ax.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
    ax.grid(False)
    ax.tick_params(length=pt(2))


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


def _draw_lines(ax: Any, panel: Panel, content: MetricOverNumbers) -> None:
    """Draw the metric against a number, a line for each algorithm."""
    (key,) = panel.keys
    drawn_values: list[float] = []
    height = 1.04  # above the panel
    for points in panel.algorithms:
        drawn_values += _draw_line(ax, content, key, points)
        cross = cross_marker(content.view.curve_styles[points.algo].colour)
        for (x,) in points.diverged:
            ax.plot(x, height, **cross, transform=ax.get_xaxis_transform(), clip_on=False)
        if points.diverged:
            height += 0.06
    tried = _distinct_numbers(content.view.table.frame[key])
    if tried[0] > 0:
        ax.set_xscale("log")
    if len(tried) <= _MAX_TICKS:
        rotation = 90 if len(tried) > _MAX_HORIZONTAL_TICKS else 0
        ax.set_xticks(tried, [f"{value:g}" for value in tried], rotation=rotation)
        ax.minorticks_off()
    layout.set_y_scale(ax, drawn_values if content.view.table.metrics[content.view.metric].log else [])
    layout.set_y_label(ax, _metric_label(content.view))


def _draw_line(ax: Any, content: MetricOverNumbers, key: str, points: AlgorithmPoints) -> list[float]:
    """Draw one algorithm's line with its band and rings, and return the values that the y axis must include."""
    view = content.view
    style = view.curve_styles[points.algo]
    title = layout.legend_name(view.algo_title(points.algo))
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


def _metric_label(view: ProblemView) -> str:
    """Return the label of the metric, with the rounds of its tail average."""
    tail = view.table.tail_rounds
    return view.table.axis_label(view.metric) + "\nmean of last " + (f"{tail} rounds" if tail else "rounds")


def _add_number_legend(figure: Any, content: MetricOverNumbers, entries: dict[str, Any]) -> None:
    """Add a legend: the lines, which are ``entries``, the rings and crosses, the meaning of bands, and notes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    view, points = content.view, content.points
    blank = Line2D([], [], linestyle="none")
    has_lines = bool(entries)
    for panel in content.panels:
        for algorithm in panel.algorithms:
            if algorithm.best in algorithm.by_values:
                entries["best"] = Line2D([], [], **ring_marker())
            if any(values in algorithm.by_values for values in algorithm.tied):
                entries["tied with it"] = Line2D([], [], **ring_marker(tie=True))
    seeds = points["rows"].map(lambda rows: len(view.table.group_repetitions(rows))).max()
    seed_kind = view.table.seed_kind
    if (points["status"] == "diverged").any():
        suffix = f" with any of {seeds} {seed_kind}" if seeds > 1 else ""
        entries[f"diverged{suffix}"] = Line2D([], [], **cross_marker())
    with_band = points[(points["status"] == "done") & (points["seeds"] > 1)]
    if has_lines and len(with_band) and with_band["agree"].all():
        entries[f"{seeds} {seed_kind} agree"] = blank
    elif has_lines and len(with_band):
        band = describe_band(with_band["seeds"], seed_kind)
        entries[f"median and {band}"] = Patch(color="0.5", alpha=0.35, linewidth=0)
    elif seeds > 1:
        entries[f"median of {seeds} {seed_kind}"] = Patch(color="#21918c", linewidth=0)  # a colour of the map
    if view.problem:
        entries[layout.escape_dollars(view.problem)] = blank
    excluded = (*SEED_KEYS, *content.keys, *view.table.problem_keys(view.metric))
    others = [key for key in view.table.varied_keys if key not in excluded]
    others = [key for key in others if (points.groupby("algo")[key].nunique(dropna=False) > 1).any()]
    if others:
        entries[f"each at its best {' and '.join(others)}"] = blank
    entries |= dict.fromkeys(map(layout.wrap_note, _describe_undrawn_best(content)), blank)
    layout.add_legend(figure, entries, handlelength=2.6 if has_lines else 1)


PICTURE = Picture(
    "rates",
    ProblemView,
    collect_numbers,
    draw,
    title="What was varied",
    caption="The metric over the numbers that vary. Rings mark the best points, small rings points tied with them, "
    "crosses runs that diverged.",
)
