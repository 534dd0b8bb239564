"""One algorithm's points over two learning rates: a heat map of a grid, or single points of a search."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fcorun.base.records.record import Record
from fcorun.reports.pictures.style import pt

CLIENT_LR, SERVER_LR = "algo.client_lr", "algo.server_lr"
_RATE_NAMES = {CLIENT_LR: "client rate", SERVER_LR: "server rate"}
MAX_HORIZONTAL_TICKS = 4  # tick labels that fit side by side; more are vertical
RateValues = tuple[Any, ...]  # the values of some learning rates, None for a rate without a number
BestByRates = dict[RateValues, dict[str, Any]]  # the best point at each value of some rates
_GREY = (0.82, 0.82, 0.82, 1)


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


def draw_heat_map(ax: Any, points: BestByRates, colours: Any, best: RateValues, tied: Sequence[RateValues]) -> None:
    """Draw one algorithm's map, with rings at the ``best`` point and those that are ``tied`` with it.

    The rates of a grid are at equal distances. Points of a search, which are no grid, are at their values.
    """
    client_rates = sorted({rates[0] for rates in points})
    server_rates = sorted({rates[1] for rates in points})
    rings = [(best, ring_marker()), *((rates, ring_marker(tie=True)) for rates in tied)]
    if 2 * len(points) < len(client_rates) * len(server_rates):
        return _draw_scatter(ax, points, colours, rings)
    image = np.ones((len(server_rates), len(client_rates), 4))  # white where nothing was run
    for (client_rate, server_rate), row in points.items():
        x, y = client_rates.index(client_rate), server_rates.index(server_rate)
        if row["status"] == "done":
            image[y, x] = colours.to_rgba(row["metric"])
        else:
            image[y, x] = _GREY
            ax.plot(x, y, **cross_marker())
    ax.imshow(image, origin="lower", aspect="auto", interpolation="nearest")
    for rates, marker in rings:
        if rates in points:
            x, y = client_rates.index(rates[0]), server_rates.index(rates[1])
            ax.plot(x, y, **marker | {"markeredgewidth": pt(2.2)})
            ax.plot(x, y, **marker | {"markeredgecolor": "white"})
    rotation = 90 if len(client_rates) > MAX_HORIZONTAL_TICKS else 0
    ax.set_xticks(range(len(client_rates)), [_format_rate(rate) for rate in client_rates], rotation=rotation)
    ax.set_yticks(range(len(server_rates)), [_format_rate(rate) for rate in server_rates])
    ax.grid(False)
    ax.tick_params(length=pt(2))


def _format_rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:g}"


def label_missing_rates(ax: Any, points: BestByRates, records: Sequence[Record]) -> None:
    """Label the axis of a rate without numbers: the algorithm has no such rate, or the rate is auto."""
    rates, row = next(iter(points.items()))
    config = records[row["rows"][0]].flat_config
    for axis, key, value in zip((ax.xaxis, ax.yaxis), (CLIENT_LR, SERVER_LR), rates, strict=True):
        if value is not None:
            continue
        setting = config.get(key)
        axis.set_ticks([0], [f"no {_RATE_NAMES[key]}" if setting is None else f"{_RATE_NAMES[key]} {setting}"])
        if axis is ax.yaxis:
            ax.tick_params(axis="y", rotation=90)
            for label in ax.get_yticklabels():
                label.set_verticalalignment("center")


def _draw_scatter(ax: Any, points: Mapping[tuple, dict], colours: Any, rings: Sequence[tuple]) -> None:
    """Draw one algorithm's points at the values of their rates, with rings at the best point and tied ones."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for rates, row in points.items():
        if row["status"] == "done":
            ax.plot(
                *rates,
                "o",
                color=colours.to_rgba(row["metric"]),
                markersize=pt(6),
                markeredgecolor="0.4",
                markeredgewidth=pt(0.4),
            )
    for rates, row in points.items():
        if row["status"] != "done":
            ax.plot(*rates, **cross_marker())
    for rates, marker in rings:
        if rates in points:
            ax.plot(*rates, **marker | {"markersize": pt(9)})
    client_rates, server_rates = zip(*points, strict=True)
    for axis, set_scale, values in ((ax.xaxis, ax.set_xscale, client_rates), (ax.yaxis, ax.set_yscale, server_rates)):
        if min(values) > 0:
            set_scale("log")
            axis.set_major_locator(LogLocator(subs=(1,) if max(values) > 100 * min(values) else (1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
            axis.set_minor_formatter(NullFormatter())
