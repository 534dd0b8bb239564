"""Charts over all points of a problem: the metric over what was varied, and structure against quality."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from fcorun.reports.page.elements import FOREGROUND, Page, axis_type, format_value, label_to_html, line_style, to_text
from fcorun.reports.pictures.heat_map import CLIENT_LR, SERVER_LR, BestByRates, RateValues
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.pictures.rates import best_by_rates, colour_range, locate_best
from fcorun.reports.pictures.structure import structure_and_quality
from fcorun.reports.run_table import SEED_KEYS, is_number

_AXIS_TITLES = {
    CLIENT_LR: "client learning rate &#951;<sub>c</sub>",
    SERVER_LR: "server learning rate &#951;<sub>s</sub>",
}


def add_metric_charts(page: Page, view: ProblemView) -> list[str]:
    """Add charts of the metric over the numbers that vary, learning rates first, and return their elements.

    An algorithm with two such numbers has a map. Algorithms with one number share a chart of lines for it.
    """
    keys_of_algo = {algo: keys for algo in view.curve_styles if (keys := _find_numeric_keys(view, algo))}
    points = view.table.fold_seeds(view.metric)
    best_of_algo = {}
    for algo, keys in keys_of_algo.items():
        best_of_algo[algo] = best_by_rates(points, algo, view.higher_is_better, keys)
    values = [row["metric"] for rows in best_of_algo.values() for row in rows.values() if row["status"] == "done"]
    value_range = colour_range(np.array(values), view.higher_is_better)
    charts: list[str] = []
    lines: dict[str, dict[str, BestByRates]] = {}
    for algo, keys in keys_of_algo.items():
        if not best_of_algo[algo]:
            continue
        if len(keys) == 2:
            best, tied = locate_best(view, points, keys)
            rings = best.get(algo, ()), tied.get(algo, [])
            charts.append(_add_map(page, view, algo, keys, best_of_algo[algo], value_range=value_range, rings=rings))
        else:
            lines.setdefault(keys[0], {})[algo] = best_of_algo[algo]
    for key, rows_of_algo in lines.items():
        best, _ = locate_best(view, points, [key])
        charts.append(_add_line_chart(page, view, key, rows_of_algo, best))
    return charts


def _find_numeric_keys(view: ProblemView, algo: str) -> list[str]:
    """Return at most two keys with several numbers among the runs of an algorithm, learning rates first."""
    frame: Any = view.table.frame[view.table.frame["algo"] == algo]
    excluded = (*SEED_KEYS, *view.table.problem_keys(view.metric))
    numeric = []
    for key in dict.fromkeys((CLIENT_LR, SERVER_LR, *view.table.varied_keys)):
        if key not in frame or key in excluded:
            continue
        if len(set(filter(is_number, frame[key].tolist()))) > 1:
            numeric.append(key)
    return numeric[:2]


def _add_map(
    page: Page,
    view: ProblemView,
    algo: str,
    keys: list[str],
    rows: BestByRates,
    *,
    value_range: tuple[float, float],
    rings: tuple[RateValues, list[RateValues]],
) -> str:
    """Add one algorithm's map and return its element.

    The values of a grid are at equal distances; the points of a search are at their values. ``rings`` has the best
    point, and the points that are tied with it, which get smaller rings.
    """
    xs = sorted({point[0] for point in rows}, key=_none_first)
    ys = sorted({point[1] for point in rows}, key=_none_first)
    low, high = value_range
    is_log = low > 0 and high > 100 * low

    def colour(value: float) -> float:
        return math.log10(max(value, low)) if is_log else value

    label = label_to_html(view.table.axis_label(view.metric, tail=True))
    colour_bar: dict[str, Any] = {"title": {"text": label, "side": "right"}, "thickness": 12}
    if is_log:
        ticks = _log_ticks(low, high)
        colour_bar |= {"tickvals": [math.log10(tick) for tick in ticks], "ticktext": [f"{tick:g}" for tick in ticks]}
    colours = {"colorscale": "Viridis", "reversescale": not view.higher_is_better, "colorbar": colour_bar}
    done = {point: row for point, row in rows.items() if row["status"] == "done"}
    is_grid = 2 * len(rows) >= len(xs) * len(ys)
    if is_grid:
        trace = _grid_trace(view, keys, rows, xs, ys, colour=colour)
        traces = [trace | {"zmin": colour(low), "zmax": colour(high)} | colours]
    else:
        marker = {
            "size": 10,
            "color": [colour(row["metric"]) for row in done.values()],
            "cmin": colour(low),
            "cmax": colour(high),
            "showscale": True,
            **colours,
        }
        traces = [_marker_trace(view, keys, done, marker=marker, is_grid=False)]

    best, tied = rings
    diverged = [point for point in rows if point not in done]
    for points, name, symbol, size in (
        ([best], "best", "circle-open", 20),
        (tied, "tied", "circle-open", 11),
        (diverged, "diverged", "x-thin", 9),
    ):
        marked = {point: rows[point] for point in points if point in rows}
        if marked:
            shade = "white" if is_grid and symbol != "x-thin" else FOREGROUND
            marker = {"symbol": symbol, "size": size, "line": {"width": 2, "color": shade}, "color": shade}
            traces.append(_marker_trace(view, keys, marked, marker=marker, is_grid=is_grid) | {"name": name})
    title = view.table.algo_title(algo)
    if view.problem:
        title += f", {view.problem}"
    legend = _describe_undrawn_best(view, keys, [algo]) or "The ring marks the best point"
    if tied:
        legend += ", small rings points tied with it"
    if diverged:
        legend += ", crosses runs that diverged"
    return page.add_chart(
        f"{title}: {view.metric} over {keys[0]} and {keys[1]}. {legend}.",
        traces,
        title={"text": to_text(title)},
        xaxis={"title": {"text": _axis_title(keys[0])}, "type": "category" if is_grid else axis_type(xs)},
        yaxis={"title": {"text": _axis_title(keys[1])}, "type": "category" if is_grid else axis_type(ys)},
    )


def _grid_trace(
    view: ProblemView,
    keys: list[str],
    rows: BestByRates,
    xs: Sequence[float | None],
    ys: Sequence[float | None],
    *,
    colour: Callable[[float], float],
) -> dict[str, Any]:
    """Return the trace of a map whose points are a grid; points that are not done have no colour."""
    colours = []
    texts = []
    for y in ys:
        done = [(x, y) in rows and rows[x, y]["status"] == "done" for x in xs]
        colours.append([colour(rows[x, y]["metric"]) if is_done else None for x, is_done in zip(xs, done, strict=True)])
        texts.append([_hover(view, keys, (x, y), rows[x, y]) if (x, y) in rows else "not run" for x in xs])
    return {
        "type": "heatmap",
        "x": [_tick_label(x) for x in xs],
        "y": [_tick_label(y) for y in ys],
        "z": colours,
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "xgap": 1,
        "ygap": 1,
    }


def _none_first(value: float | None) -> tuple[bool, float]:
    return (value is not None, value or 0)


def _marker_trace(
    view: ProblemView, keys: list[str], rows: BestByRates, *, marker: dict[str, Any], is_grid: bool
) -> dict[str, Any]:
    """Return a trace with a marker at each point of a map."""
    positions = [tuple(map(_tick_label, point)) if is_grid else point for point in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x for x, _ in positions],
        "y": [y for _, y in positions],
        "marker": marker,
        "text": [_hover(view, keys, point, row) for point, row in rows.items()],
        "showlegend": False,
        "hovertemplate": "%{text}<extra></extra>",
    }


def _add_line_chart(
    page: Page, view: ProblemView, key: str, rows_of_algo: dict[str, BestByRates], best: dict[str, RateValues]
) -> str:
    """Add a chart of the metric against one number, a line for each algorithm with a ring at its best point."""
    traces = []
    tried = []
    for algo, rows in rows_of_algo.items():
        tried += [point[0] for point in rows if point[0] is not None]
        done = sorted(point for point, row in rows.items() if row["status"] == "done" and point[0] is not None)
        xs = [point[0] for point in done]
        diverged = [point[0] for point, row in rows.items() if row["status"] == "diverged"]
        line = {
            "type": "scatter",
            "mode": "lines+markers",
            "x": xs,
            "y": [rows[point]["metric"] for point in done],
            "line": line_style(view.curve_styles[algo]),
            "text": [_hover(view, [key], point, rows[point]) for point in done],
            "name": to_text(view.table.algo_title(algo)) + _describe_diverged(diverged, xs),
            "showlegend": True,
            "hovertemplate": "%{text}<extra></extra>",
        }
        traces.append(line)
        point = best.get(algo)
        if point in rows:
            ring = {
                "type": "scatter",
                "mode": "markers",
                "x": [point[0]],
                "y": [rows[point]["metric"]],
                "marker": {"symbol": "circle-open", "size": 14, "color": FOREGROUND, "line": {"width": 2}},
                "showlegend": False,
                "hoverinfo": "skip",
            }
            traces.append(ring)
    values = [value for trace in traces for value in trace["y"]]
    is_log = min(values, default=0) > 0 and view.table.metrics[view.metric].log and max(values) > 4 * min(values)
    problem = f", {view.problem}" if view.problem else ""
    y_title = label_to_html(view.table.axis_label(view.metric, tail=True))
    legend = "; ".join(filter(None, ("Rings mark the best points", _describe_undrawn_best(view, [key], rows_of_algo))))
    return page.add_chart(
        f"{view.metric} against {key}{problem}. {legend}.",
        traces,
        xaxis={"title": {"text": _axis_title(key)}, "type": axis_type(tried)},
        yaxis={"title": {"text": y_title}, "type": "log" if is_log else "linear"},
    )


def add_structure_chart(page: Page, view: ProblemView) -> str:
    """Add a chart of structure against quality over all points that are done; "" if one of them was not measured."""
    chart = structure_and_quality(view)
    if chart is None:
        return ""
    structure, quality, points = chart
    best = {tuple(row["rows"]) for row in view.best_rows()}
    keys = [key for key in view.table.varied_keys if key not in SEED_KEYS]
    traces = []
    for algo, style in view.curve_styles.items():
        rows = points[points["algo"] == algo].to_dict("records")
        if not rows:
            continue
        is_best = [tuple(row["rows"]) in best for row in rows]
        marker = {
            "size": [13 if ringed else 7 for ringed in is_best],
            "color": line_style(style)["color"],
            "opacity": 0.7,
            "line": {"width": [2 if ringed else 0 for ringed in is_best], "color": FOREGROUND},
        }
        trace = {
            "type": "scatter",
            "mode": "markers",
            "name": to_text(view.table.algo_title(algo)),
            "x": [row[structure] for row in rows],
            "y": [row["metric"] for row in rows],
            "marker": marker,
            "text": [_hover(view, keys, None, row) for row in rows],
            "showlegend": True,
            "hovertemplate": "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
        }
        traces.append(trace)
    problem = f", {view.problem}" if view.problem else ""
    x_title = label_to_html(view.table.axis_label(structure, tail=True)).replace("<br>", ", ")
    y_title = label_to_html(view.table.axis_label(quality, tail=True))
    return page.add_chart(
        f"{quality} against {structure}{problem}, a mark for each point that is done. "
        f"Rings mark the best by {view.metric}.",
        traces,
        xaxis={"title": {"text": x_title}},
        yaxis={"title": {"text": y_title}, "type": "log" if view.table.metrics[quality].log else "linear"},
    )


def _describe_undrawn_best(view: ProblemView, keys: Sequence[str], algos: Collection[str]) -> str:
    """Return which of the algorithms are best at a value that has no place on an axis, such as auto; "" without any."""
    texts = []
    for row in view.best_rows():
        if row["algo"] in algos:
            title = view.table.algo_title(row["algo"])
            undrawn = [f"{key}={format_value(row[key]) or 'null'}" for key in keys if not is_number(row[key])]
            texts += [f"{title} is best at {text}, which is not drawn" for text in undrawn]
    return "; ".join(texts)


def _describe_diverged(diverged: Sequence[float], done: Sequence[float]) -> str:
    """Return the values of a number at which runs diverged, as text."""
    if not diverged:
        return ""
    if done and min(diverged) > max(done):
        return f" (diverged from {min(diverged):g} on)"
    return f" (diverged at {', '.join(f'{value:g}' for value in diverged)})"


def _hover(view: ProblemView, keys: Sequence[str], point: tuple | None, row: dict[str, Any]) -> str:
    """Return the text under the pointer: the keys of a point, and at a ``point`` of rates the metric."""
    values = [row[key] for key in keys] if point is None else point
    lines = [f"{to_text(key)}={to_text(value)}" for key, value in zip(keys, values, strict=True) if format_value(value)]
    if row["status"] != "done":
        lines.append(to_text(row["status"]))
    elif point is not None:
        seeds = f", median of {row['seeds']} seeds" if row["seeds"] > 1 else ""
        lines.append(f"{to_text(view.metric)} {to_text(row['metric'])}{seeds}")
    return "<br>".join(lines)


def _tick_label(value: Any) -> str:
    return "none" if value is None else f"{value:g}"


def _axis_title(key: str) -> str:
    return _AXIS_TITLES.get(key, to_text(key))


def _log_ticks(low: float, high: float) -> list[float]:
    """Return a few powers of ten between two numbers, or the two numbers if fewer than two lie between."""
    exponents = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    ticks = [10.0**exponent for exponent in exponents[:: max(1, len(exponents) // 6)]]
    return ticks if len(ticks) > 1 else [float(f"{low:.2g}"), float(f"{high:.2g}")]
