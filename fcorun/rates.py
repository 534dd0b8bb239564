"""The picture of a metric over the learning rates: heat maps where both vary, lines where one does."""

from typing import TYPE_CHECKING, Any

import numpy as np

from fcorun.curves import scale_y
from fcorun.metrics import HIGHER_IS_BETTER
from fcorun.page import COLUMN, PAGE, Look, legend, page, words
from fcorun.table import SEEDS, keys, points

if TYPE_CHECKING:
    import pandas as pd

CLIENT, SERVER = "algo.client_lr", "algo.server_lr"
_WORDS = {CLIENT: "client learning rate $\\eta_c$", SERVER: "server learning rate $\\eta_s$"}
_CROSS: dict[str, Any] = {"marker": "x", "color": "0.25", "markersize": 4, "markeredgewidth": 0.9, "linestyle": "none"}
_RING: dict[str, Any] = {"marker": "o", "color": "none", "markeredgecolor": "black", "markersize": 8,
                         "markeredgewidth": 1.0, "linestyle": "none"}  # fmt: skip


def draw_rates(frame: "pd.DataFrame", metric: str, looks: dict[str, Look]) -> Any | None:
    """The metric over the learning rates on one data set, a figure; None if no algorithm has several."""
    folded = points(frame, metric)
    vary = {
        algo: [rate for rate in (CLIENT, SERVER) if rate in folded and group[rate].nunique() > 1]
        for algo, group in folded.groupby("algo", sort=False)
    }
    if any(len(rates) == 2 for rates in vary.values()):
        return _heat_maps(frame, folded, metric, [algo for algo in looks if vary.get(algo)])
    if any(vary.values()):
        return _lines(frame, folded, metric, looks, vary)
    return None


def cells(folded: "pd.DataFrame", algo: str, metric: str, rates: list[str]) -> dict[tuple[float, ...], dict[str, Any]]:
    """For each value of ``rates`` the best point of an algorithm there, as a row of ``fcorun.table.points``.

    Where none is done, a diverged one; values where nothing has ended are left out.
    """
    sign = -1 if HIGHER_IS_BETTER[metric] else 1
    found: dict[tuple[float, ...], dict[str, Any]] = {}
    for row in folded[folded["algo"] == algo].to_dict("records"):
        place = tuple(row[rate] for rate in rates)
        done = row["status"] == "done" and np.isfinite(row["metric"])
        if any(value is None or value != value for value in place) or not (done or row["status"] == "diverged"):
            continue
        old = found.get(place)
        if old is None or (done and (old["status"] != "done" or sign * row["metric"] < sign * old["metric"])):
            found[place] = row
    return found


def _heat_maps(frame: "pd.DataFrame", folded: "pd.DataFrame", metric: str, algos: list[str]) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize

    at = {algo: cells(folded, algo, metric, [CLIENT, SERVER]) for algo in algos}
    values = [row["metric"] for found in at.values() for row in found.values() if row["status"] == "done"]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    norm = LogNorm(low, high) if low > 0 and high > 100 * low else Normalize(low, high if high > low else low + 1e-9)
    colours = ScalarMappable(norm, "viridis" if HIGHER_IS_BETTER[metric] else "viridis_r")  # the brighter the better

    across = min(len(algos), 3)
    width = COLUMN if across == 1 else PAGE
    figure, axes = page(len(algos), across, width, height=1.9, left=0.55, right=0.85, top=0.42, bottom=0.68,
                        gap=(0.5, 0.95))  # fmt: skip
    for ax, algo in zip(axes, algos, strict=True):
        _heat_map(ax, at[algo], colours, metric)
        ax.set_title(algo, pad=3)
    for ax in axes[::across]:
        ax.set_ylabel(_WORDS[SERVER])
    for i in range(len(algos)):
        if i + across >= len(algos):
            axes[i].set_xlabel(_WORDS[CLIENT])
    tall = figure.get_figheight()
    bar = figure.add_axes((1 - 0.77 / width, 0.68 / tall, 0.09 / width, 1.9 / tall))
    figure.colorbar(colours, cax=bar, label=_tail(frame, folded, metric, [CLIENT, SERVER]))
    bar.grid(False)
    _marks(figure, folded)
    return figure


def _heat_map(ax: Any, found: dict[tuple[float, ...], dict[str, Any]], colours: Any, metric: str) -> None:
    """One algorithm's map. The rates stand at equal distances, whatever their values."""
    clients, servers = (sorted({place[i] for place in found}) for i in (0, 1))
    picture = np.ones((len(servers), len(clients), 4))  # white where nothing was run
    for (client, server), row in found.items():
        x, y = clients.index(client), servers.index(server)
        if row["status"] == "done":
            picture[y, x] = colours.to_rgba(row["metric"])
        else:
            picture[y, x] = (0.82, 0.82, 0.82, 1)
            ax.plot(x, y, **_CROSS)
    ax.imshow(picture, origin="lower", aspect="auto", interpolation="nearest")
    best = _best(found, metric)
    if best is not None:
        for ring in (_RING | {"markeredgewidth": 2.2}, _RING | {"markeredgecolor": "white"}):
            ax.plot(clients.index(best[0]), servers.index(best[1]), **ring)
    ax.set_xticks(range(len(clients)), [f"{rate:g}" for rate in clients], rotation=90 if len(clients) > 4 else 0)
    ax.set_yticks(range(len(servers)), [f"{rate:g}" for rate in servers])
    ax.grid(False)
    ax.tick_params(length=2)


def _lines(frame: "pd.DataFrame", folded: "pd.DataFrame", metric: str, looks: dict[str, Look], vary: dict) -> Any:
    """The metric against each rate that some algorithm has several of."""
    rates = [rate for rate in (CLIENT, SERVER) if any(rate in own for own in vary.values())]
    figure, axes = page(len(rates), len(rates), PAGE if len(rates) > 1 else COLUMN, height=1.9, left=0.6,
                        top=0.12 + 0.15 * -(-(len(vary) + 2) // 2), bottom=0.45)  # fmt: skip
    for ax, rate in zip(axes, rates, strict=True):
        spread: list[float] = []
        for i, algo in enumerate(algo for algo in looks if rate in vary.get(algo, ())):
            look, found = looks[algo], cells(folded, algo, metric, [rate])
            done = sorted((place[0], row["metric"], row["low"], row["high"])
                          for place, row in found.items() if row["status"] == "done")  # fmt: skip
            x, middle, low, high = zip(*done, strict=True) if done else ((), (), (), ())
            ax.plot(x, middle, color=look.colour, linestyle=look.dash, marker=look.marker, label=algo)
            ax.fill_between(x, low, high, color=look.colour, alpha=0.2, linewidth=0)
            spread += [*low, *high]
            best = _best(found, metric)
            if best is not None:
                ax.plot(*best, found[best]["metric"], **_RING)
            # Crosses stand at the bad end, a row of them an algorithm.
            height = 0.04 + 0.05 * i if HIGHER_IS_BETTER[metric] else 0.96 - 0.05 * i
            for place, row in found.items():
                if row["status"] != "done":
                    ax.plot(*place, height, **_CROSS | {"color": look.colour}, transform=ax.get_xaxis_transform())
        if frame[rate].min() > 0:
            ax.set_xscale("log")
        scale_y(ax, spread)
        ax.set(xlabel=_WORDS[rate], ylabel=_tail(frame, folded, metric, [rate]))
    _marks(figure, folded, axes[0])
    return figure


def _best(found: dict[tuple[float, ...], dict[str, Any]], metric: str) -> tuple[float, ...] | None:
    """Where the best point that is done lies."""
    done = {place: row["metric"] for place, row in found.items() if row["status"] == "done"}
    return (max if HIGHER_IS_BETTER[metric] else min)(done, key=done.__getitem__) if done else None


def _tail(frame: "pd.DataFrame", folded: "pd.DataFrame", metric: str, rates: list[str]) -> str:
    """The metric, and how the value of a point came about."""
    parts = ["mean of last " + (f"{tail} rounds" if (tail := frame.attrs.get("tail_rounds")) else "rounds")]
    if (seeds := folded["seeds"].max()) > 1:
        parts.append(f"median of {seeds} seeds")
    others = [key for key in keys(frame) if key not in (*SEEDS, *rates)]
    others = [key for key in others if (folded.groupby("algo")[key].nunique(dropna=False) > 1).any()]
    if others:
        parts.append(f"best {', '.join(others)}")
    return words(metric, frame.attrs.get("cutoff")) + "\n" + ", ".join(parts)


def _marks(figure: Any, folded: "pd.DataFrame", lines: Any = None) -> None:
    """The legend: what lines there are, the ring of the best point, the cross of a diverged one."""
    from matplotlib.lines import Line2D

    handles, texts = lines.get_legend_handles_labels() if lines is not None else ([], [])
    handles, texts = [*handles, Line2D([], [], **_RING)], [*texts, "best"]
    seeds = folded["rows"].map(len).max()
    if (folded["status"] == "diverged").any():
        handles.append(Line2D([], [], **_CROSS))
        texts.append("diverged" + (f" with any of {seeds} seeds" if seeds > 1 else ""))
    if lines is not None and seeds > 1:
        from matplotlib.patches import Patch

        handles.append(Patch(color="0.5", alpha=0.35, linewidth=0))
        texts.append(f"median and 10-90 % over {seeds} seeds")
    legend(figure, handles, texts, columns=2 if lines is not None else len(texts))
