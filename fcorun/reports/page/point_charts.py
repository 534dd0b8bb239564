"""Charts over all points of a problem: the metric over what was varied, structure against quality."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fcorun.reports.page.elements import FOREGROUND, Page, axis_type, format_value, label_to_html, line_style, to_text
from fcorun.reports.pictures.heat_map import CLIENT_LR, SERVER_LR, BestByRates, RateValues
from fcorun.reports.pictures.problem_view import ProblemView
from fcorun.reports.pictures.rates import best_by_rates, colour_range, locate_best
from fcorun.reports.pictures.structure import structure_and_quality
from fcorun.reports.run_table import SEED_KEYS

_NAMES = {CLIENT_LR: "client learning rate &#951;<sub>c</sub>", SERVER_LR: "server learning rate &#951;<sub>s</sub>"}


def add_metric_charts(page: Page, view: ProblemView) -> list[str]:
    """The metric over the numbers that vary, rates first: a map for each algorithm of which two do, and one chart of
    lines for those of which one does."""
    import pandas as pd

    found, lines = [], {}
    own = {algo: keys for algo in view.curve_styles if (keys := _varied(view, algo))}
    frame = view.table.frame
    numbers = {key: pd.to_numeric(frame[key], errors="coerce") for keys in own.values() for key in keys}
    view = replace(view, table=replace(view.table, frame=frame.assign(**numbers)))
    folded = view.table.fold_seeds(view.metric)
    at = {algo: best_by_rates(folded, algo, view.higher_is_better, keys) for algo, keys in own.items()}
    values = np.array([row["metric"] for each in at.values() for row in each.values() if row["status"] == "done"])
    ends = colour_range(values, view.higher_is_better)
    for algo, keys in own.items():
        if not at[algo]:
            continue
        if len(keys) == 2:
            tops, ties = locate_best(view, folded, keys)
            rings = tops.get(algo, ()), ties.get(algo, [])
            found.append(_map(page, view, algo, keys, at[algo], ends=ends, rings=rings))
        else:
            lines.setdefault(keys[0], {})[algo] = at[algo]
    return found + [_lines(page, view, key, each, locate_best(view, folded, [key])[0]) for key, each in lines.items()]


def _varied(view: ProblemView, algo: str) -> list[str]:
    """At most two keys that an algorithm has several numbers of, rates first."""
    import pandas as pd

    frame: Any = view.table.frame[view.table.frame["algo"] == algo]
    apart = (*SEED_KEYS, *view.table.problem_keys(view.metric))
    keys = [
        key
        for key in dict.fromkeys((CLIENT_LR, SERVER_LR, *view.table.varied_keys))
        if key in frame and key not in apart
    ]
    return [key for key in keys if pd.Series(pd.to_numeric(frame[key], errors="coerce")).nunique() > 1][:2]


def _map(page: Page, view: ProblemView, algo: str, keys: list[str], at: BestByRates, *, ends: tuple[float, float],
         rings: tuple[RateValues, list[RateValues]]) -> str:  # fmt: skip
    """One algorithm's map, its rates at equal distances; points of a search, which are no grid, where they are.

    ``rings`` are around the best point, and smaller ones around those that are tied with it.
    """
    xs, ys = (sorted({place[i] for place in at}, key=lambda v: (v is not None, v or 0)) for i in (0, 1))
    low, high = ends
    logs = low > 0 and high > 100 * low
    ticks = _ticks(low, high) if logs else None

    def colour(value: float) -> float:
        return math.log10(max(value, low)) if logs else value

    label = label_to_html(view.table.axis_label(view.metric, tail=True))
    bar: dict[str, Any] = {"title": {"text": label, "side": "right"}, "thickness": 12}
    bar |= {"tickvals": [math.log10(tick) for tick in ticks], "ticktext": [f"{t:g}" for t in ticks]} if ticks else {}
    scaled = {"colorscale": "Viridis", "reversescale": not view.higher_is_better, "colorbar": bar}
    done = {place: row for place, row in at.items() if row["status"] == "done"}
    grid = 2 * len(at) >= len(xs) * len(ys)
    if grid:
        z = [[colour(done[x, y]["metric"]) if (x, y) in done else None for x in xs] for y in ys]
        text = [[_hover(view, keys, (x, y), at[x, y]) if (x, y) in at else "not run" for x in xs] for y in ys]
        traces = [{"type": "heatmap", "x": [*map(_tick, xs)], "y": [*map(_tick, ys)], "z": z, "text": text,
                   "zmin": colour(low), "zmax": colour(high), "hovertemplate": "%{text}<extra></extra>",
                   "xgap": 1, "ygap": 1, **scaled}]  # fmt: skip
    else:
        shades = {"size": 10, "color": [colour(row["metric"]) for row in done.values()], "cmin": colour(low),
                  "cmax": colour(high), "showscale": True, **scaled}  # fmt: skip
        traces = [_marks(view, keys, done, marker=shades, grid=False)]
    best, ties = rings
    crosses = [place for place in at if place not in done]
    for places, name, symbol, size in (([best], "best", "circle-open", 20), (ties, "tied", "circle-open", 11),
                                       (crosses, "diverged", "x-thin", 9)):  # fmt: skip
        if shown := {place: at[place] for place in places if place in at}:
            shade = "white" if grid and symbol != "x-thin" else FOREGROUND
            mark = {"symbol": symbol, "size": size, "line": {"width": 2, "color": shade}, "color": shade}
            traces.append(_marks(view, keys, shown, marker=mark, grid=grid) | {"name": name})
    kinds = ["category"] * 2 if grid else [axis_type(values) for values in (xs, ys)]
    title = f"{view.table.algo_title(algo)}{f', {view.problem}' if view.problem else ''}"
    marks = ["The ring marks the best point", *(["small rings points tied with it"] if ties else []),
             *(["crosses runs that diverged"] if crosses else [])]  # fmt: skip
    about = f"{title}: {view.metric} over {keys[0]} and {keys[1]}. {', '.join(marks)}."
    return page.add_chart(about, traces, title={"text": to_text(title)},
                      xaxis={"title": {"text": _axis(keys[0])}, "type": kinds[0]},
                      yaxis={"title": {"text": _axis(keys[1])}, "type": kinds[1]})  # fmt: skip


def _marks(
    view: ProblemView, keys: list[str], shown: BestByRates, *, marker: dict[str, Any], grid: bool
) -> dict[str, Any]:
    """Marks at some places of a map."""
    spots = [tuple(map(_tick, place)) if grid else place for place in shown]
    return {"type": "scatter", "mode": "markers", "x": [x for x, _ in spots], "y": [y for _, y in spots],
            "marker": marker, "text": [_hover(view, keys, place, row) for place, row in shown.items()],
            "showlegend": False, "hovertemplate": "%{text}<extra></extra>"}  # fmt: skip


def _lines(page: Page, view: ProblemView, key: str, each: dict[str, BestByRates], tops: dict[str, RateValues]) -> str:
    """The metric against one number, a line for each algorithm, a ring at its place of ``tops``."""
    traces, tried = [], []
    for algo, at in each.items():
        done = sorted(place for place, row in at.items() if row["status"] == "done" and place[0] is not None)
        tried += [place[0] for place in at if place[0] is not None]
        lost = [place[0] for place, row in at.items() if row["status"] == "diverged"]
        name = to_text(view.table.algo_title(algo)) + _lost(lost, [place[0] for place in done])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": [place[0] for place in done],
                "y": [at[place]["metric"] for place in done],
                "line": line_style([*view.curve_styles].index(algo)),
                "text": [_hover(view, [key], place, at[place]) for place in done],
                "name": name,
                "showlegend": True,
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
        if (best := tops.get(algo)) in at:
            mark = {"symbol": "circle-open", "size": 14, "color": FOREGROUND, "line": {"width": 2}}
            traces.append({"type": "scatter", "mode": "markers", "x": [best[0]], "y": [at[best]["metric"]],
                           "marker": mark, "showlegend": False, "hoverinfo": "skip"})  # fmt: skip
    values = [value for trace in traces for value in trace["y"]]
    many = min(values, default=0) > 0 and view.table.metrics[view.metric].log and max(values) > 4 * min(values)
    about = f"{view.metric} against {key}{f', {view.problem}' if view.problem else ''}. Rings mark the best points."
    return page.add_chart(about, traces,
                      xaxis={"title": {"text": _axis(key)}, "type": axis_type(tried)},
                      yaxis={"title": {"text": label_to_html(view.table.axis_label(view.metric, tail=True))},
                             "type": "log" if many else "linear"})  # fmt: skip


def add_structure_chart(page: Page, view: ProblemView) -> str:
    """Structure against quality over all points that are done; nothing where one of them was not measured."""
    found = structure_and_quality(view)
    if found is None:
        return ""
    x, quality, folded = found
    best = {tuple(row["rows"]) for row in view.best_rows()}
    traces = []
    for i, algo in enumerate(view.curve_styles):
        points = folded[folded["algo"] == algo].to_dict("records")
        ringed = [tuple(row["rows"]) in best for row in points]
        if points:
            line = line_style(i)["color"]
            traces.append({"type": "scatter", "mode": "markers", "name": to_text(view.table.algo_title(algo)),
                           "x": [row[x] for row in points], "y": [row["metric"] for row in points],
                           "marker": {"size": [13 if ring else 7 for ring in ringed], "color": line, "opacity": 0.7,
                                      "line": {"width": [2 if ring else 0 for ring in ringed], "color": FOREGROUND}},
                           "text": [_hover(view, [k for k in view.table.varied_keys if k not in SEED_KEYS], None, row)
                                    for row in points],
                           "showlegend": True, "hovertemplate": "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
                           })  # fmt: skip
    about = f"{quality} against {x}{f', {view.problem}' if view.problem else ''}, a mark for each point that is done."
    metric = view.table.metrics[quality]
    return page.add_chart(
        f"{about} Rings mark the best by {view.metric}.",
        traces,
        xaxis={"title": {"text": label_to_html(view.table.axis_label(x, tail=True)).replace("<br>", ", ")}},
        yaxis={
            "title": {"text": label_to_html(view.table.axis_label(quality, tail=True))},
            "type": "log" if metric.log else "linear",
        },
    )


def _lost(lost: Sequence[float], done: Sequence[float]) -> str:
    """At which values of a number runs diverged, in words."""
    if lost and done and min(lost) > max(done):
        return f" (diverged from {min(lost):g} on)"
    return f" (diverged at {', '.join(f'{value:g}' for value in lost)})" if lost else ""


def _hover(view: ProblemView, keys: Sequence[str], place: tuple | None, row: dict[str, Any]) -> str:
    """What is told of a point under the pointer."""
    values = [row[key] for key in keys] if place is None else place
    told = [f"{to_text(key)}={to_text(value)}" for key, value in zip(keys, values, strict=True) if format_value(value)]
    if row["status"] != "done":
        return "<br>".join([*told, to_text(row["status"])])
    seeds = f", median of {row['seeds']} seeds" if row["seeds"] > 1 else ""
    name = "" if place is None else f"{to_text(view.metric)} {to_text(row['metric'])}{seeds}"
    return "<br>".join([*told, *([name] if name else [])])


def _tick(value: Any) -> str:
    return "none" if value is None else f"{value:g}"


def _axis(key: str) -> str:
    return _NAMES.get(key, to_text(key))


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two numbers, few; or the two."""
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    found = [10.0**p for p in powers[:: max(1, len(powers) // 6)]]
    return found if len(found) > 1 else [float(f"{low:.2g}"), float(f"{high:.2g}")]
