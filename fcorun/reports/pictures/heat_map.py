"""One algorithm's points over two rates: a map, or where they are no grid, as a search leaves them, points."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fcorun.records.record import Record
from fcorun.reports.pictures.style import pt

CLIENT_LR, SERVER_LR = "algo.client_lr", "algo.server_lr"
_LACKS = {CLIENT_LR: "client rate", SERVER_LR: "server rate"}
MAX_HORIZONTAL_TICKS = 4  # so many tick labels fit side by side
RateValues = tuple[Any, ...]  # values of some rates, None of one that an algorithm has no number of
BestByRates = dict[RateValues, dict[str, Any]]  # the best point at each value of some rates


def ring_marker(tie: bool = False) -> dict[str, Any]:
    """The mark around the best point, a smaller one around one that is tied with it."""
    return {"marker": "o", "color": "none", "markeredgecolor": "black", "markersize": pt(4.5 if tie else 8),
            "markeredgewidth": pt(1.0), "linestyle": "none"}  # fmt: skip


def cross_marker(colour: str = "0.25") -> dict[str, Any]:
    """The mark of a point that diverged."""
    return {"marker": "x", "color": colour, "markersize": pt(4), "markeredgewidth": pt(0.9), "linestyle": "none"}


def draw_heat_map(ax: Any, found: BestByRates, colours: Any, best: tuple, ties: Sequence[tuple]) -> None:
    """One algorithm's map. The rates stand at equal distances, whatever their values; those of a search, which are no
    grid, where they are."""
    clients, servers = (sorted({place[i] for place in found}) for i in (0, 1))
    if 2 * len(found) < len(clients) * len(servers):
        return _scatter(ax, found, colours, [(best, ring_marker()), *((tie, ring_marker(tie=True)) for tie in ties)])
    picture = np.ones((len(servers), len(clients), 4))  # white where nothing was run
    for (client, server), row in found.items():
        x, y = clients.index(client), servers.index(server)
        if row["status"] == "done":
            picture[y, x] = colours.to_rgba(row["metric"])
        else:
            picture[y, x] = (0.82, 0.82, 0.82, 1)
            ax.plot(x, y, **cross_marker())
    ax.imshow(picture, origin="lower", aspect="auto", interpolation="nearest")
    for place, kind in ((best, ring_marker()), *((tie, ring_marker(tie=True)) for tie in ties)):
        if place in found:
            for mark in (kind | {"markeredgewidth": pt(2.2)}, kind | {"markeredgecolor": "white"}):
                ax.plot(clients.index(place[0]), servers.index(place[1]), **mark)
    told = [["" if rate is None else f"{rate:g}" for rate in values] for values in (clients, servers)]
    ax.set_xticks(range(len(clients)), told[0], rotation=90 if len(clients) > MAX_HORIZONTAL_TICKS else 0)
    ax.set_yticks(range(len(servers)), told[1])
    ax.grid(False)
    ax.tick_params(length=pt(2))


def label_missing_rates(ax: Any, found: BestByRates, records: Sequence[Record]) -> None:
    """In place of the values of a rate that an algorithm has no number of: that it has none, or that it is auto."""
    place, row = next(iter(found.items()))
    config = records[row["rows"][0]].flat_config
    for axis, rate, value in zip((ax.xaxis, ax.yaxis), (CLIENT_LR, SERVER_LR), place, strict=True):
        if value is None:
            given = config.get(rate)
            told = f"no {_LACKS[rate]}" if given is None else f"{_LACKS[rate]} {given}"
            axis.set_ticks([0], [told])
            if axis is ax.yaxis:
                ax.tick_params(axis="y", rotation=90)
                for label in ax.get_yticklabels():
                    label.set_verticalalignment("center")


def _scatter(ax: Any, found: Mapping[tuple, dict], colours: Any, rings: Sequence[tuple]) -> None:
    """One algorithm's points where they are, with a ring around the best, and around those that are as good."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    done = {place: row["metric"] for place, row in found.items() if row["status"] == "done"}
    for place in done:
        ax.plot(*place, "o", color=colours.to_rgba(done[place]), markersize=pt(6), markeredgecolor="0.4",
                markeredgewidth=pt(0.4))  # fmt: skip
    for place in found.keys() - done.keys():
        ax.plot(*place, **cross_marker())
    for place, mark in rings:
        if place in found:
            ax.plot(*place, **mark | {"markersize": pt(9)})
    clients, servers = zip(*found, strict=True)
    for axis, scale, rates in ((ax.xaxis, ax.set_xscale, clients), (ax.yaxis, ax.set_yscale, servers)):
        if min(rates) > 0:
            scale("log")
            axis.set_major_locator(LogLocator(subs=(1,) if max(rates) > 100 * min(rates) else (1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
            axis.set_minor_formatter(NullFormatter())
