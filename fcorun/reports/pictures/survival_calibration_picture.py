"""The picture of calibration at a time: observed against predicted risks of an event, of groups of held-out rows."""

import math
from dataclasses import dataclass
from typing import Any

from fcorun.reports.pictures.curve_groups import MAX_NAMED, SETS, describe_sizes, shape_square
from fcorun.reports.pictures.layout import COLOURS, add_legend_above, legend_name, make_figure, pt
from fcorun.reports.pictures.picture import Picture
from fcorun.results.survival import ALL_ROWS, GROUP, RiskGroup, SurvivalCalibration

_MARKERS = "osD^vP"


@dataclass(frozen=True)
class SurvivalView:
    """The calibration of a model at a time, and the title of the run."""

    calibration: SurvivalCalibration
    title: str


def draw(view: SurvivalView) -> Any:
    """Return the figure: groups of all rows, and beside them those of each client, or all its rows if they are few.

    Vertical lines are intervals. Groups without an observed risk are left out; the legend counts the others.
    """
    calibration = view.calibration
    (everything,) = calibration.select("", ALL_ROWS)
    observed = everything.observed
    heading = [view.title, f"{everything.n:,} {SETS[calibration.split]}, risk of an event up to {calibration.at:g}: "
               f"{observed.events:,} events, {observed.censored:,} rows censored before, {observed.at_risk:,} at risk "
               "then"]  # fmt: skip
    heading += [calibration.substitution] if calibration.substitution else []
    clients = calibration.clients
    named = clients if len(clients) <= MAX_NAMED else []
    n_panels = 2 if clients else 1
    figure, axes = make_figure(n_panels, n_panels, height=2.75, title=heading)
    values = [group.predicted for group in calibration.groups]
    for group in calibration.groups:
        values += [end for end in (group.observed.risk, group.observed.high) if not math.isnan(end)]
    limit = min(math.ceil(10 * max(values) - 1e-9) / 10, 1.0)  # so that rare events fill the panel
    for ax in axes:
        ax.plot([0, limit], [0, limit], color="0.6", linewidth=pt(0.7), linestyle=(0, (2, 2)))
        shape_square(ax, limit)
        ax.set_xlabel("predicted risk")
        ax.set_ylabel("observed risk (Kaplan-Meier)")
    interval = f"{100 * calibration.level:g} % interval"
    if all(math.isnan(group.observed.low) for group in calibration.groups):
        interval = "no interval"
    groups = calibration.select("", GROUP)
    if groups:
        n_known = sum(not math.isnan(group.observed.risk) for group in groups)
        counted = f"{len(groups)} groups" if n_known == len(groups) else f"{n_known} of {len(groups)} groups"
        label = f"{counted} of {describe_sizes(group.n for group in groups)} rows, {interval}"
        _draw_groups(axes[0], groups, label, COLOURS[0], "o")
    else:
        _draw_groups(axes[0], [everything], f"all rows, {interval}", COLOURS[0], "o")
    add_legend_above(axes[0], 1)
    for i, client in enumerate(clients):
        of_client = calibration.select(client, GROUP) or calibration.select(client, ALL_ROWS)
        colour, marker = (COLOURS[i], _MARKERS[i]) if named else ("0.6", "o")
        _draw_groups(axes[1], of_client, legend_name(client) if named else "", colour, marker)
    if named:
        add_legend_above(axes[1], 3)
    return figure


def _draw_groups(ax: Any, groups: list[RiskGroup], label: str, colour: str, marker: str) -> None:
    """Draw a point with its interval for each group that has an observed risk."""
    for group in groups:
        risk = group.observed
        if math.isnan(risk.risk):
            continue
        if not math.isnan(risk.low):
            ax.plot([group.predicted] * 2, [risk.low, risk.high], color=colour, linewidth=pt(0.7), zorder=3)
        ax.plot([group.predicted], [risk.risk], marker, color=colour, markersize=pt(3), zorder=3.2, label=label or None)
        label = ""  # one entry in the legend


PICTURE = Picture("calibration", SurvivalView, lambda view: view, draw)
