"""The picture of calibration on held-out rows: observed shares against predicted probabilities."""

import math
from typing import Any

import numpy as np

from fcorun.base.records.few_rows import LEAST_ROWS
from fcorun.reports.pictures.curve_groups import CurveView, describe_sizes, shape_square
from fcorun.reports.pictures.layout import COLOURS, add_legend_above, make_figure, pt
from fcorun.reports.pictures.picture import Picture

_BAR_WIDTH = 5  # in percent
_DENSITY_HEIGHT = 0.1  # of the bars below the curves, as a share of the axis


def collect_view(view: CurveView) -> CurveView | None:
    """Return the view; None for few rows, which have neither bins nor a smooth line."""
    return view if view.select(view.curves.calibration, "") else None


def draw(view: CurveView) -> Any:
    """Return the figure: all rows with bins and a smooth line, and beside it the smooth line of each client."""
    with_line = [client for client in view.clients if _points(view, client, "smooth")]
    n_panels = 2 if with_line else 1
    figure, axes = make_figure(n_panels, n_panels, height=2.75, title=view.heading)
    limit = _axis_limit(view)
    for ax in axes:
        ax.plot([0, limit], [0, limit], color="0.6", linewidth=pt(0.7), linestyle=(0, (2, 2)))
        shape_square(ax, limit)
        ax.set_xlabel("predicted probability")
    axes[0].set_ylabel("observed share")
    _draw_all_rows(axes[0], view, limit)
    if with_line:
        for client in ["", *with_line]:
            label = view.client_label(client, "") if client else "all rows"
            _draw_line(axes[1], view, client, label)
        axes[1].set_ylabel("observed share, smoothed")
        add_legend_above(axes[1], 2)
    return figure


def _points(view: CurveView, client: str, kind: str) -> list[dict[str, Any]]:
    return [row for row in view.select(view.curves.calibration, client) if row["kind"] == kind]


def _axis_limit(view: CurveView) -> float:
    """Return the end of both axes, a multiple of 0.1, so that rare outcomes fill the panel."""
    largest = max((row["probability"] for row in view.select(view.curves.calibration, "")), default=1.0)
    largest = max([largest, *(np.nanmax([row["high"], row["observed"]]) for row in _points(view, "", "bin"))])
    for client in ["", *view.clients]:
        for point in _points(view, client, "smooth"):
            largest = max(largest, point["probability"], point["observed"])
    return min(math.ceil(10 * largest - 1e-9) / 10, 1.0)


def _draw_line(ax: Any, view: CurveView, client: str, label: str) -> None:
    """Draw the smooth line of a client, or of all rows for ""."""
    line = _points(view, client, "smooth")
    if line:
        x, y = [point["probability"] for point in line], [point["observed"] for point in line]
        ax.plot(x, y, label=label, **view.line_style(client))


def _draw_all_rows(ax: Any, view: CurveView, limit: float) -> None:
    """Draw bins with intervals, the smooth line, and below them the distribution of the probabilities."""
    _draw_line(ax, view, "", "smoothed")
    bins = _points(view, "", "bin")
    if bins:
        observed = [row["observed"] for row in bins]
        sizes = describe_sizes(row["n"] for row in bins)
        interval = "95 % interval"
        if all(math.isnan(row["low"]) for row in bins):
            interval = "no interval: rows of a group depend on each other"
        errors = [[row["observed"] - row["low"] for row in bins], [row["high"] - row["observed"] for row in bins]]
        ax.errorbar(
            [row["probability"] for row in bins],
            observed,
            errors,
            color=COLOURS[0],
            marker="o",
            markersize=pt(3),
            linestyle="",
            elinewidth=pt(0.7),
            capsize=pt(1.5),
            label=f"{len(bins)} {'group' if len(bins) == 1 else 'groups'} of {sizes} rows, {interval}",
            zorder=3.2,
        )
    # bars below 0: numbers of rows by probability, differences of those flagged at the thresholds between bars
    flagged = {row["threshold"]: row["n_flagged"] for row in view.select(view.curves.decision, "")}
    counts = [int(view.scores("")["n"]), *(flagged.get(i / 100, 0) for i in range(_BAR_WIDTH, 101, _BAR_WIDTH))]
    numbers = -np.diff(counts)
    numbers[numbers < LEAST_ROWS] = 0
    heights = numbers * (_DENSITY_HEIGHT * limit / max(numbers.max(), 1))
    base = -1.25 * _DENSITY_HEIGHT * limit
    n_shown = max(round(100 * limit), 1) // _BAR_WIDTH
    edges = np.arange(n_shown + 1) * _BAR_WIDTH / 100
    ax.stairs(base + heights[:n_shown], edges, baseline=base, fill=True, color="0.65", linewidth=0)
    ax.set_ylim(base - 0.01 * limit, 1.02 * limit)
    ax.set_yticks([tick for tick in ax.get_xticks() if 0 <= tick <= limit])
    scores = view.scores("")
    lines = [
        f"slope {scores['calibration_slope']:.2f}",
        f"intercept {scores['calibration_intercept']:.2f}",
        f"expected/observed {scores['expected_over_observed']:.2f}",
        f"Brier score {scores['brier']:.3f}",
    ]
    text = "\n".join(lines).replace("-", "\N{MINUS SIGN}")
    ax.text(0.97, 0.16, text, transform=ax.transAxes, ha="right", va="bottom", linespacing=1.3)
    add_legend_above(ax, 1)


PICTURE = Picture(
    "calibration",
    CurveView,
    collect_view,
    draw,
    place=1,
    caption="Calibration: groups of about equally many rows, and a smooth line (loess); bars below: the predicted "
    f"probabilities, in steps of {_BAR_WIDTH / 100:g}, without bars of fewer than {LEAST_ROWS} rows. Dashed: perfect "
    "calibration. Clients with 100 rows or more have a line.",
)
