"""The pictures of a sweep: rates.png, best.png and structure.png, to be printed one or two columns wide."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.curves import scale_y
from fcorun.files import write_whole
from fcorun.metrics import read_rows
from fcorun.page import COLUMN, PAGE, STYLE, Look, content, legend, looks_of, page, title, words
from fcorun.rates import draw_rates
from fcorun.record import Record
from fcorun.table import SEEDS, Frame, Rows, best_points, chosen, keys, points

KINDS = ("rates", "best", "structure")
_SHORT = {"algo.client_lr": "$\\eta_c$", "algo.server_lr": "$\\eta_s$", "reg.strength": "strength"}
_RATES = ("algo.client_lr", "algo.server_lr")


def draw_sweep(
    folder: Path,
    records: Sequence[Record],
    frame: Frame,
    metric: str | None = None,
    format: str = "png",
    kinds: Sequence[str] = KINDS,
) -> list[Path]:
    """Draw what a sweep shows into ``folder``, and take away its pictures that no longer hold; the files written.

    rates.png: the metric over client and server learning rate, where at least one varies. best.png: the best point of
    each algorithm against the rounds. structure.png: density or rank against quality. With several data sets, each has
    its own, rates-DATA.png. ``frame`` is fcorun.table.table of ``records``; ``format`` is png, pdf or svg; ``kinds``
    are those to draw. Raises UserError as ``best_points``.
    """
    metric = chosen(frame, metric)
    looks = looks_of(frame)
    sets = [name for name in frame["data"].unique() if isinstance(name, str)]
    written = []
    for name in sets:
        places = np.flatnonzero(frame["data"] == name).tolist()
        part = frame.iloc[places].reset_index(drop=True)
        part.attrs = frame.attrs
        for kind in kinds:
            path = folder / (f"{kind}-{name}.{format}" if len(sets) > 1 else f"{kind}.{format}")
            if _draw(kind, path, part, metric, looks, [records[i] for i in places], format):
                written.append(path)
    return written


def _draw(
    kind: str, path: Path, frame: Frame, metric: str, looks: dict, records: Sequence[Record], format: str
) -> bool:
    """Draw one picture; whether there is one."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        if kind == "best":
            figure = draw_best(frame, metric, looks, records, read_rows)
        else:
            figure = {"rates": draw_rates, "structure": draw_structure}[kind](frame, metric, looks)
        if figure is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, content(figure, format))
    return figure is not None


def panels(names: Sequence[str]) -> list[tuple[str, bool]]:
    """What to show of the best points for runs that have these metrics: (metric, whether logarithmic) of each panel."""
    chosen = ["suboptimality" if "suboptimality" in names else "objective"]
    chosen += [next((m for m in ("val_accuracy", "val_loss", "train_accuracy") if m in names), "train_loss")]
    chosen += [name for name in ("f1", "density", "rank") if name in names]
    return [(name, name in ("suboptimality", "objective", "val_loss", "train_loss")) for name in chosen]


def draw_best(
    frame: Frame,
    metric: str,
    looks: dict[str, Look],
    records: Sequence[Record],
    read: Rows,
    shown: Sequence[tuple[str, bool]] | None = None,
) -> Any | None:
    """The best point of each algorithm against the rounds, a figure; or None if nothing is done. One data set.

    ``shown`` is what ``panels`` would choose otherwise.
    """
    best = [row for row in best_points(frame, metric).to_dict("records") if row["seeds"]]
    if not best:
        return None
    runs = {row["algo"]: [rows for i in row["rows"] if (rows := read(records[i].folder))] for row in best}
    names = list(runs[best[0]["algo"]][0][-1])
    shown = shown or panels(names)
    labels = {row["algo"]: _label(frame, row) for row in best}
    seeds = sorted({row["seeds"] for row in best} - {1})
    across = {1: 1, 2: 2, 3: 3, 4: 2}.get(len(shown), 3)
    figure, axes = page(len(shown), across, PAGE if across > 1 else COLUMN, height=1.65)
    for ax, (name, log) in zip(axes, shown, strict=True):
        values: list[float] = []
        for algo, seeds_of in runs.items():
            look = looks[algo]
            rounds, low, middle, high = _bands(seeds_of, name)
            if not seeds_of[0][-1]["bytes_up"] and len(rounds) > 1:  # its iterations are no rounds
                handle = ax.axhline(middle[-1], color=look.colour, linestyle=look.dash)
                handle.set_label(labels[algo] + " (its solution)")
                values.append(middle[-1])
            else:
                ax.plot(rounds, middle, color=look.colour, linestyle=look.dash, label=labels[algo])
                if len(seeds_of) > 1:
                    ax.fill_between(rounds, low, high, color=look.colour, alpha=0.2, linewidth=0)
                values += [*low, *high]
        scale_y(ax, values if log else [])
        if name in ("f1", "precision", "recall", "density") or name.endswith("accuracy"):
            ax.set_ylim(-0.03, 1.03)
        ax.set(xlabel="communication round", ylabel=words(name, frame.attrs.get("cutoff")))
        ax.margins(x=0.02)
    handles, texts = axes[0].get_legend_handles_labels()
    if seeds:
        from matplotlib.patches import Patch

        handles.append(Patch(color="0.5", alpha=0.35, linewidth=0))
        texts.append(f"median and 10-90 % over {' or '.join(map(str, seeds))} seeds")
    legend(figure, handles, texts)
    return figure


def draw_structure(frame: Frame, metric: str, looks: dict[str, Look]) -> Any | None:
    """Structure against quality over all points that are done, a figure; None if either was not measured."""
    x = next((name for name in ("rank", "density") if f"tail_{name}" in frame), None)
    quality = next((name for name in ("f1", "val_accuracy", "val_loss") if f"tail_{name}" in frame), None)
    if x is None or quality is None:
        return None
    folded = points(frame, quality)
    folded = folded[(folded["status"] == "done") & folded["metric"].notna() & folded[x].notna()]
    if not len(folded):
        return None
    algos = [name for name in looks if (folded["algo"] == name).any()]
    figure, (ax,) = page(1, 1, COLUMN, height=2.0, bottom=0.56)
    for name in algos:
        own, look = folded[folded["algo"] == name], looks[name]
        ax.scatter(own[x], own["metric"], s=14, marker=look.marker, facecolor="none", edgecolor=look.colour,
                   linewidth=0.8, label=title(frame, name))  # fmt: skip
    best = {tuple(row["rows"]) for row in best_points(frame, metric).to_dict("records")}
    ringed = folded[[tuple(rows) in best for rows in folded["rows"]]]
    ring = ax.scatter(ringed[x], ringed["metric"], s=55, facecolor="none", edgecolor="black", linewidth=0.9)
    ring.set_label(f"best by {metric}")
    scale_y(ax, list(folded["metric"]) if quality == "val_loss" else [])
    ax.set(xlabel=words(x, frame.attrs.get("cutoff"), tail=frame.attrs.get("tail_rounds")))
    ax.set(ylabel=words(quality, frame.attrs.get("cutoff")))
    legend(figure, *ax.get_legend_handles_labels(), handlelength=1)
    return figure


def _label(frame: Frame, row: dict[str, Any]) -> str:
    """An algorithm with the keys of its best point."""
    told = [key for key in keys(frame) if key not in SEEDS and row[key] is not None and row[key] == row[key]]
    told = [key for key in told if key in _RATES or frame[key].nunique(dropna=False) > 1]
    texts = [f"{_SHORT.get(key, key)} = {row[key]:g}" if isinstance(row[key], float) else f"{key} = {row[key]}"
             for key in told]  # fmt: skip
    return title(frame, row["algo"]) + (": " + ", ".join(texts) if texts else "")


def _bands(runs: list[list[dict[str, float]]], name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The rounds that all runs have, and the 10 %, 50 % and 90 % quantiles of a metric over the runs, at each."""
    common = sorted(set.intersection(*({row["round"] for row in rows} for rows in runs)))
    found = [{row["round"]: row.get(name, np.nan) for row in rows} for rows in runs]
    values = np.array([[at[r] for r in common] for at in found])
    low, middle, high = np.quantile(values, (0.1, 0.5, 0.9), axis=0)
    return np.array(common), low, middle, high
