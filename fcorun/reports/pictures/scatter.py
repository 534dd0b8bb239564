"""Points over two rates that are no grid, as a search leaves them."""

from collections.abc import Mapping, Sequence
from typing import Any

CROSS: dict[str, Any] = {
    "marker": "x",
    "color": "0.25",
    "markersize": 4,
    "markeredgewidth": 0.9,
    "linestyle": "none",
}  # a point that diverged


def scatter(ax: Any, found: Mapping[tuple, dict], colours: Any, rings: Sequence[tuple]) -> None:
    """One algorithm's points where they are, with a ring around the best, and around those that are as good."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    done = {place: row["metric"] for place, row in found.items() if row["status"] == "done"}
    for place in done:
        ax.plot(*place, "o", color=colours.to_rgba(done[place]), markersize=6, markeredgecolor="0.4",
                markeredgewidth=0.4)  # fmt: skip
    for place in found.keys() - done.keys():
        ax.plot(*place, **CROSS)
    for place, ring in rings:
        if place in found:
            ax.plot(*place, **ring | {"markersize": 9})
    clients, servers = zip(*found, strict=True)
    for axis, scale, rates in ((ax.xaxis, ax.set_xscale, clients), (ax.yaxis, ax.set_yscale, servers)):
        if min(rates) > 0:
            scale("log")
            axis.set_major_locator(LogLocator(subs=(1,) if max(rates) > 100 * min(rates) else (1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
            axis.set_minor_formatter(NullFormatter())
