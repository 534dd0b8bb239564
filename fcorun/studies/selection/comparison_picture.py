"""Picture of a comparison: the difference of each candidate to the shared model, client by client."""

from typing import Any

import numpy as np

from fcorun.reports.pictures.layout import COLOURS, make_figure, render_figure, shorten_name
from fcorun.reports.pictures.style import pt, style_context
from fcorun.results.scores.score import all_scores
from fcorun.studies.selection.comparison import ALL, BETTER, SHARED, WORSE, ModelComparison

_ROW = 0.16  # inches of a client
_MAX_CLIENTS = 40
_MAX_NAME = 26  # letters of a client's name
_COLOURS = {BETTER: COLOURS[2], WORSE: COLOURS[3]}


def draw_comparison(comparison: ModelComparison) -> dict[str, bytes]:
    """Return the contents of comparison.png and comparison.pdf: a forest plot for each candidate, on one scale."""
    names = [name for name in comparison.candidates if name != SHARED]
    clients = [ALL, *(comparison.clients[:_MAX_CLIENTS] if len(comparison.clients) > 1 else [])]
    label = comparison.score_label
    has_events = comparison.find(SHARED, ALL).events is not None
    title = f"{comparison.experiment.settings.title}: " if comparison.experiment.settings.title else ""
    notes = [
        f"{title}{label} minus that of the shared model, out of fold, with "
        f"{100 * comparison.options.level:g} % intervals ({'events / rows' if has_events else 'rows'}). Green: better "
        "than the shared model, red-orange: worse, grey: cannot be told apart"
    ]
    if len(comparison.clients) > _MAX_CLIENTS:
        notes.append(f"The first {_MAX_CLIENTS} of {len(comparison.clients)} clients")
    across = min(4, len(names))
    with style_context(comparison.experiment.settings.style):
        labels = []
        for client in clients:
            row = comparison.find(SHARED, client)
            size = f"{row.n:,}" if row.events is None else f"{row.events:,} / {row.n:,}"
            labels.append(f"{shorten_name(client, _MAX_NAME) if client else 'all'} ({size})")
        figure, axes = make_figure(len(names), across, height=_ROW * (len(clients) + 1), title=notes, wide=True)
        limits = _limits(comparison, names, clients)
        for i, (ax, name) in enumerate(zip(axes, names, strict=True)):
            _draw_candidate(ax, comparison, name, clients, limits)
            ax.set_title(name.replace("_", " "), fontsize=pt(8), parse_math=False)
            ax.set_yticks(range(len(clients)), labels if i % across == 0 else [""] * len(clients), parse_math=False)
            ax.tick_params(axis="y", length=0)
        better = "above" if all_scores()[comparison.score].higher else "below"
        text = f"difference in {label} ({better} 0: better than the shared model)"
        figure.supxlabel(text, fontsize=pt(8), parse_math=False)
        return {ending: render_figure(figure, ending) for ending in ("png", "pdf")}


def _draw_candidate(
    ax: Any, comparison: ModelComparison, name: str, clients: list[str], limits: tuple[float, float]
) -> None:
    """Draw the difference and its interval of each client; an arrow ends an interval that leaves the axis."""
    low, high = limits
    ax.axvline(0, color="black", linewidth=pt(0.6))
    for y, client in enumerate(clients):
        row = comparison.find(name, client)
        assert row.difference is not None
        assert row.difference_low is not None
        assert row.difference_high is not None
        colour = _COLOURS.get(row.verdict, "0.45")
        left, right = row.difference_low, row.difference_high
        if np.isfinite([left, right]).all():
            ax.plot([max(left, low), min(right, high)], [y, y], color=colour, linewidth=pt(1.1))
            for end, is_outside, marker in ((low, left < low, "<"), (high, right > high, ">")):
                if is_outside:
                    ax.plot([end], [y], marker, color=colour, markersize=pt(3.2), clip_on=False)
        if low <= row.difference <= high:
            ax.plot([row.difference], [y], "D" if client == ALL else "s", color=colour, markersize=pt(3.6))
    ax.axhline(0.5, color="0.8", linewidth=pt(0.5))
    ax.set(xlim=limits, ylim=(len(clients) - 0.4, -0.6))
    ax.locator_params(axis="x", nbins=3)
    ax.grid(False, axis="y")
    ax.spines["left"].set_visible(False)


def _limits(comparison: ModelComparison, names: list[str], clients: list[str]) -> tuple[float, float]:
    """Return the ends of the axis: 0 and those of all intervals, unless a few would flatten the rest."""
    rows = [comparison.find(name, client) for name in names for client in clients]
    ends = np.array([[row.difference_low, row.difference_high] for row in rows], float)
    points = np.array([row.difference for row in rows], float)
    points = points[np.isfinite(points)]
    ends = ends[np.isfinite(ends).all(axis=1)]
    if not len(ends):
        ends = points[:, None]
    if not len(ends):
        return -1.0, 1.0
    typical = 3 * float(np.percentile(np.abs(ends), 75)) or 1.0
    low, high = max(min(ends.min(), 0), -typical), min(max(ends.max(), 0), typical)
    margin = 0.05 * (high - low) or 1.0
    return float(low - margin), float(high + margin)
