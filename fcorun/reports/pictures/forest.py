"""Forest plots: a row for each feature, with its numbers beside it; of a meta-analysis, a row for each client."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fcorun.reports.pictures.layout import COLOURS, make_figure, pt, render_formats, shorten_name, style_context
from fcorun.reports.pictures.picture import Picture
from fcorun.results.inference.methods import INTERVALS_FILE, INTERVALS_TEXT
from fcorun.results.models.inference_table import InferenceTable, format_p, order_by_p_value
from fcorun.results.models.meta_analysis import MetaAnalysisTable

MAX_ROWS = 40
_MAX_PANELS, _MAX_CLIENTS = 12, 24  # of a meta-analysis
_ROW = 0.132  # inches of a row
_LETTER = 0.054  # inches of a letter of a column
_GAP = 0.16  # inches between two columns of text
_MAX_DECIMALS = 6
_MAX_NAME = 30  # letters of a name
_REFERENCE = "reference"


def make_files(table: InferenceTable, sentences: Sequence[str], style: str = "paper") -> dict[str, str | bytes]:
    """Return the files of intervals by name: the table, the ``sentences`` about them, and the forest plot."""
    files: dict[str, str | bytes] = {INTERVALS_FILE: table.to_csv()}
    files[INTERVALS_TEXT] = "".join(f"{sentence}\n" for sentence in sentences)
    with style_context(style):
        contents = render_formats(draw_forest(table), ("png", "pdf"))
    return files | {f"inference.{format}": content for format, content in contents.items()}


def draw_forest(table: InferenceTable) -> Any:
    """Return the forest plot of a table, in the current style.

    Points and lines are estimates and intervals per standard deviation of a feature, so that features can be compared,
    and of a feature with two values per unit, since nothing lies between 0 and 1. Of models with a ratio they are
    ratios on a logarithmic axis. The columns beside them have these numbers, and those per unit. Of more than 40
    features, those with the smallest p values are drawn, else all features with an interval, and reference levels, in
    the order of the data. The intercept and terms of curves are in the file, not in the figure. A meta-analysis has a
    panel for each feature instead, with the estimates of the clients.
    """
    if isinstance(table, MetaAnalysisTable) and order_by_p_value(table):
        return _draw_meta_analysis(table)
    drawable = [row for row in order_by_p_value(table) if table.features[row] not in table.curve_of_feature]
    rows = list(drawable[:MAX_ROWS])
    if len(drawable) <= MAX_ROWS:
        rows = sorted({*drawable, *(row for row, method in enumerate(table.method) if method == _REFERENCE)})
    names = [shorten_name(table.display_names[row], _MAX_NAME) for row in rows]
    n_drawable = len(drawable)
    shown = f"the {MAX_ROWS} smallest p values of {n_drawable} features, " if n_drawable > MAX_ROWS else ""
    notes = [table.title, f"{shown}p values not corrected for {n_drawable} tests"]
    figure, (ax,) = make_figure(1, 1, height=_ROW * (len(rows) + 0.4) + 2 * _GAP, title=notes, wide=True)
    positions = np.arange(len(rows))[::-1]
    _draw_intervals(ax, table, rows, positions)
    end = 0.0
    for heading, *texts in _text_columns(table, rows):  # aligned on the right, below their headings
        end += _GAP + _LETTER * max(len(line) for text in (heading, *texts) for line in text.split("\n"))
        _write(ax, heading, (end, None), style="italic" if heading == "p" else "normal")
        for text, y in zip(texts, positions, strict=True):
            _write(ax, text, (end, y))
    _name_rows(ax, positions, names)
    name = table.ratio_name or "coefficient"
    class_suffix = f" of '{table.outcome}'" if table.outcome else ""
    is_per_unit = _is_per_unit(table, [row for row in rows if table.method[row] != _REFERENCE])
    step = "per unit" if is_per_unit.all() else "per standard deviation of the feature"
    if is_per_unit.any() and not is_per_unit.all():
        step = "per SD, or per unit of two values"
    ax.set_xlabel(f"{name}{class_suffix} {step}", parse_math=False)
    return figure


def _is_per_unit(table: InferenceTable, rows: list[int]) -> np.ndarray:
    """Return which rows are drawn per unit: features with two values, where the data have units."""
    return (table.has_two_values & np.isfinite(table.estimate))[rows]


def _draw_intervals(ax: Any, table: InferenceTable, rows: list[int], positions: np.ndarray) -> None:
    """Draw a square and a line for each row, per standard deviation or per unit."""
    is_per_unit = _is_per_unit(table, rows)
    unscaled = []
    for name in ("low", "estimate", "high"):
        per_deviation = getattr(table, f"{name}_standardized")[rows]
        unscaled.append(np.where(is_per_unit, getattr(table, name)[rows], per_deviation))
    limits = axis_limits(unscaled, bool(table.ratio_name))
    draw_lines(ax, _to_ratios(table, unscaled), positions, limits=limits, ratio=table.ratio_name)


def draw_lines(
    ax: Any,
    intervals: list[np.ndarray],
    positions: np.ndarray,
    *,
    limits: tuple[float, float],
    ratio: str = "",
    sizes: np.ndarray | None = None,
    colours: Sequence[str] | None = None,
) -> None:
    """Draw low ends, estimates and high ends at these heights; an arrow ends a line that leaves the axis.

    ``ratio`` is the name of ratios, "" of differences. ``sizes`` are those of the squares, in points. Without
    ``colours``, those of intervals without the null are blue, and all others grey.
    """
    low, middle, high = intervals
    null = 1.0 if ratio else 0.0
    if ratio:
        ax.set_xscale("log")
    smallest, largest = limits
    ax.axvline(null, color="black", linewidth=pt(0.6))
    if sizes is None:
        sizes = np.full(len(middle), 3.6)
    drawn = colours or np.where((low > null) | (high < null), COLOURS[0], "0.45").tolist()
    rows = np.column_stack([positions, *intervals, sizes])
    for (y, left, point, right, size), colour in zip(rows, drawn, strict=True):
        if np.isnan(point):
            continue
        ax.plot([max(left, smallest), min(right, largest)], [y, y], color=colour, linewidth=pt(1.1), zorder=2)
        if smallest <= point <= largest:
            ax.plot([point], [y], "s", color=colour, markersize=pt(size), zorder=3)
        if left < smallest:
            ax.plot([smallest], [y], "<", color=colour, markersize=pt(3.2), clip_on=False, zorder=3)
        if right > largest:
            ax.plot([largest], [y], ">", color=colour, markersize=pt(3.2), clip_on=False, zorder=3)
    ax.set_xlim(smallest, largest)
    if ratio:
        _set_ratio_ticks(ax, smallest, largest)
    else:
        ax.locator_params(axis="x", nbins=5)


def _to_ratios(table: InferenceTable, intervals: list[np.ndarray]) -> list[np.ndarray]:
    """Return lower ends, estimates and upper ends as ratios where the model has these."""
    with np.errstate(over="ignore"):
        return [np.exp(values) for values in intervals] if table.ratio_name else intervals


def _name_rows(ax: Any, positions: np.ndarray, names: Sequence[str]) -> None:
    """Name the rows of a panel, from the top down."""
    ax.set_yticks(positions, names, parse_math=False)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.grid(False, axis="y")
    ax.set_ylim(-0.7, len(names) - 0.3)


def axis_limits(intervals: list[np.ndarray], is_ratio: bool) -> tuple[float, float]:
    """Return the ends of the axis: those of all intervals, unless a few of them would flatten the rest.

    The intervals are low ends, estimates and high ends of coefficients, and the axis has ratios if ``is_ratio``.
    """
    low, middle, high = intervals
    is_drawn = np.isfinite(low) & np.isfinite(high)
    if not is_drawn.any():
        return (0.5, 2.0) if is_ratio else (-1.0, 1.0)
    low, middle, high = low[is_drawn], middle[is_drawn], high[is_drawn]
    typical = 4 * float(np.median(high - low)) + float(np.percentile(np.abs(middle), 90))
    smallest = max(min(float(low.min()), 0.0), -typical)
    largest = min(max(float(high.max()), 0.0), typical)
    margin = 0.04 * (largest - smallest) or 1.0
    ends = (smallest - margin, largest + margin)
    return (float(np.exp(ends[0])), float(np.exp(ends[1]))) if is_ratio else ends


def _set_ratio_ticks(ax: Any, smallest: float, largest: float, share: float = 0.16) -> None:
    """Set plain numbers as ticks of an axis of ratios, at least so large a share of its length from each other."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    choices = (0.05, 0.1, 0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
    within = [value for value in choices if smallest <= value <= largest]
    spread = np.log(largest / smallest)
    ticks = [1.0]
    for value in sorted(within, key=lambda value: abs(np.log(value))):
        if all(abs(np.log(value / other)) > share * spread for other in ticks):
            ticks.append(value)
    ax.xaxis.set_major_locator(FixedLocator(sorted(ticks)) if len(ticks) > 1 else MaxNLocator(2))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _text_columns(table: InferenceTable, rows: list[int]) -> list[list[str]]:
    """Return the columns of text right of the axis, each with its heading first: estimates and p values."""
    level = f"({100 * table.level:g}% CI)"
    name = table.ratio_name or "coefficient"
    null = 1.0 if table.ratio_name else 0.0
    columns = []
    for unit, kind in (("SD", "_standardized"), ("unit", "")):
        if unit == "SD" or np.isfinite(table.estimate[rows]).any():
            values = [getattr(table, f"{end}{kind}")[rows] for end in ("low", "estimate", "high")]
            low, middle, high = _to_ratios(table, values)
            texts = [format_interval(*numbers, null) for numbers in zip(low, middle, high, strict=True)]
            if unit == "SD":
                texts = ["" if hidden else text for text, hidden in zip(texts, _is_per_unit(table, rows), strict=True)]
            if any(texts):
                columns.append([f"{name} per {unit}\n{level}", *texts])
    for column in columns:
        for i, row in enumerate(rows, 1):
            if table.method[row] == _REFERENCE:
                column[i] = _REFERENCE
    return [*columns, ["p", *(format_p(table.p_value[row]) for row in rows)]]


def _write(ax: Any, text: str, position: tuple[float, float | None], **options: Any) -> None:
    """Write a text that ends so many inches right of the axis, at the height of a row, or above all rows."""
    inches, y = position
    coordinates = ("axes fraction", "data" if y is not None else "axes fraction")
    vertical = "center" if y is not None else "bottom"
    offset = (pt(72 * inches), 0 if y is not None else pt(2))
    options |= {"textcoords": "offset points", "ha": "right", "va": vertical, "annotation_clip": False}
    ax.annotate(text, (1, 1 if y is None else y), offset, xycoords=coordinates, **options)


def format_interval(low: float, middle: float, high: float, null: float) -> str:
    """Return an estimate and its interval as text; "" if one of the three numbers is not finite.

    The width of the interval sets the decimals; more are given where an end would round to ``null`` or to 0.
    """
    if not np.isfinite([low, middle, high]).all():
        return ""
    width = high - low
    is_near_1 = null == 1 and abs(middle - 1) < 0.01  # with three digits it may be "1 (1 to 1)"
    least = 1e-10 if is_near_1 else 1e-4
    if not width or not least <= width < 1e5:
        return f"{middle:.3g} ({low:.3g} to {high:.3g})".replace("-", "\N{MINUS SIGN}")
    decimals = max(0, 1 - int(np.floor(np.log10(width))))
    if null and high < 100:  # of ratios, journals print two decimals
        decimals = max(decimals, 2)
    other_values = [end for end in (low, high) if end not in (null, 0)]  # which must look neither like null nor like 0
    while decimals < _MAX_DECIMALS and any(round(end, decimals) in (null, 0) for end in other_values):
        decimals += 1
    low, middle, high = (round(value, decimals) + 0.0 for value in (low, middle, high))  # no -0
    return f"{middle:.{decimals}f} ({low:.{decimals}f} to {high:.{decimals}f})".replace("-", "\N{MINUS SIGN}")


def _draw_meta_analysis(table: MetaAnalysisTable) -> Any:
    """Return a panel for each feature, with a row for each client and a last one for the combined estimate.

    Numbers are per unit of the feature, ratios where the model has these. The size of a square is the weight of the
    client. Of more than 12 features those with the smallest p values have panels, and of more than 24 clients those of
    most weight have rows.
    """
    from scipy.special import ndtri

    drawable = order_by_p_value(table)
    rows = sorted(drawable[:_MAX_PANELS])
    clients = np.sort(np.argsort(-table.weights.sum(axis=1), kind="stable")[:_MAX_CLIENTS])
    notes = [table.title]
    if len(rows) < len(drawable):
        notes.append(f"the {len(rows)} smallest p values of {len(drawable)} features")
    if len(clients) < len(table.weights):
        notes.append(f"the {len(clients)} clients of most weight, of {len(table.weights)}")
    names = [shorten_name(table.clients.clients[m], _MAX_NAME // 2) for m in clients]
    height = _ROW * (len(names) + 3)
    figure, axes = make_figure(len(rows), min(2, len(rows)), height=height, title=["; ".join(notes)], wide=True)
    null = 1.0 if table.ratio_name else 0.0
    half = ndtri((1 + table.level) / 2) * table.clients.standard_errors
    positions = np.arange(len(names) + 1)[::-1]
    for ax, row in zip(axes, rows, strict=True):
        of_clients = table.clients.estimates[clients, row]
        unscaled = [
            np.append(of_clients - half[clients, row], table.low[row]),
            np.append(of_clients, table.estimate[row]),
            np.append(of_clients + half[clients, row], table.high[row]),
        ]
        intervals = _to_ratios(table, unscaled)
        limits = axis_limits(unscaled, bool(table.ratio_name))
        sizes = 2 + 4 * np.append(np.sqrt(table.weights[clients, row]), 0.5)
        draw_lines(ax, intervals, positions, limits=limits, ratio=table.ratio_name, sizes=sizes)
        if table.ratio_name:
            _set_ratio_ticks(ax, *limits, share=0.25)
        else:
            ax.locator_params(axis="x", nbins=3)
        ax.axvline(intervals[1][-1], color=COLOURS[0], linewidth=pt(0.6), linestyle=":")
        texts = [format_interval(low, middle, high, null) for low, middle, high in zip(*intervals, strict=True)]
        end = _GAP + _LETTER * max(map(len, texts))
        for text, y in zip(texts, positions, strict=True):
            _write(ax, text, (end, y))
        ax.axhline(0.5, color="0.8", linewidth=pt(0.5))
        _name_rows(ax, positions, [*names, f"{table.clients.effects} effects"])
        name = shorten_name(table.display_names[row], _MAX_NAME)
        variation = f"I² {table.i2[row]:.0%}, τ² {table.tau2[row]:.2g}, p of Q {format_p(table.q_p_value[row])}"
        ax.set_title(f"{name}: p {format_p(table.p_value[row])}; {variation}", parse_math=False)
    class_suffix = f" of '{table.outcome}'" if table.outcome else ""
    label = f"{table.ratio_name or 'coefficient'}{class_suffix} per unit of the feature"
    figure.supxlabel(label, fontsize=pt(8), parse_math=False)
    return figure


def _collect_meta_analysis(table: MetaAnalysisTable) -> MetaAnalysisTable | None:
    """Return the table of a meta-analysis if a feature has an interval."""
    return table if order_by_p_value(table) else None


PICTURE = Picture("inference", MetaAnalysisTable, _collect_meta_analysis, draw_forest)
