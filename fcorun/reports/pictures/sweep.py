"""The pictures of a sweep: rates.png, best.png and structure.png, to be printed one or two columns wide."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.metrics import PERSONAL
from fcorun.records.formats import read_rows
from fcorun.records.record import Record
from fcorun.reports.pictures.curves import scale_y
from fcorun.reports.pictures.lines import Line, draw_lines
from fcorun.reports.pictures.page import COLUMN, STYLE, Look, content, legend, looks_of, page, title, words
from fcorun.reports.pictures.rates import draw_rates
from fcorun.reports.table import STRUCTURE, Frame, Rows, best_points, chosen, keys, points, structure
from fcorun.system.files import write_whole

KINDS = ("rates", "best", "structure")
_SHORT = {
    **{"algo.client_lr": "$\\eta_c$", "algo.server_lr": "$\\eta_s$", "reg.strength": "strength", "algo.step": "s"},
    **{"algo.rho": "$\\rho$", "algo.mu": "$\\mu$", "algo.alpha": "$\\alpha$", "algo.gamma": "$\\gamma$"},
}
_RATES = ("algo.client_lr", "algo.server_lr")


def draw_sweep(
    folder: Path,
    records: Sequence[Record],
    frame: Frame,
    metric: str | None = None,
    format: str = "png",
    kinds: Sequence[str] = KINDS,
    x: str = "rounds",
) -> list[Path]:
    """Draw what a sweep shows into ``folder``, and take away its pictures that no longer hold; the files written.

    rates.png: the metric over client and server learning rate, where at least one varies. best.png: the best point of
    each algorithm against ``x``. structure.png: density or rank against quality. With several data sets, each has
    its own, rates-DATA.png. ``frame`` is fcorun.reports.table.table of ``records``; ``format`` is png, pdf or svg; ``kinds``
    are those to draw. Raises UserError as ``best_points``, and for a run that did not count ``x``.
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
            if _draw(kind, path, part, metric, looks, [records[i] for i in places], format, x):
                written.append(path)
    return written


def _draw(
    kind: str, path: Path, frame: Frame, metric: str, looks: dict, records: Sequence[Record], format: str, x: str
) -> bool:
    """Draw one picture; whether there is one."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        if kind == "best":
            figure = draw_best(frame, metric, looks, records, read_rows, xs=[x])
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
    if any(name.startswith(PERSONAL) for name in names):
        own = ("val_accuracy", "val_loss", "train_accuracy", "train_loss")
        chosen += [next(PERSONAL + m for m in own if PERSONAL + m in names)]
        chosen += [name for name in structure(PERSONAL) if name in names]
    else:
        chosen += [name for name in ("f1", *STRUCTURE) if name in names]
    return [(name, name == "suboptimality" or name.endswith(("objective", "loss"))) for name in chosen]


def draw_best(
    frame: Frame,
    metric: str,
    looks: dict[str, Look],
    records: Sequence[Record],
    read: Rows,
    shown: Sequence[tuple[str, bool]] | None = None,
    xs: Sequence[str] = ("rounds",),
) -> Any | None:
    """The best point of each algorithm, a figure; or None if nothing is done. One data set.

    ``shown`` is what ``panels`` would choose otherwise, ``xs`` what it is drawn against. Raises UserError for a run
    that did not count an x.
    """
    best = [row for row in best_points(frame, metric).to_dict("records") if row["seeds"]]
    if not best:
        return None
    looked = [
        Line(_label(frame, row), looks[row["algo"]], [rows for i in row["rows"] if (rows := read(records[i].folder))])
        for row in best
    ]
    shown = shown or panels(list(dict.fromkeys(name for line in looked for name in line.runs[0][-1])))
    return draw_lines(looked, shown, xs, frame.attrs.get("cutoff"))


def draw_structure(frame: Frame, metric: str, looks: dict[str, Look]) -> Any | None:
    """Structure against quality over all points that are done, a figure; None if either was not measured."""
    x = next((name for name in structure(metric)[::-1] if f"tail_{name}" in frame), None)
    own = [PERSONAL + name for name in ("val_accuracy", "val_loss")] if metric.startswith(PERSONAL) else []
    quality = next((m for m in (*own, "f1", "val_accuracy", "val_loss") if f"tail_{m}" in frame), None)
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
    scale_y(ax, list(folded["metric"]) if quality.endswith("loss") else [])
    ax.set(xlabel=words(x, frame.attrs.get("cutoff"), tail=frame.attrs.get("tail_rounds")))
    ax.set(ylabel=words(quality, frame.attrs.get("cutoff")))
    legend(figure, *ax.get_legend_handles_labels(), handlelength=1)
    return figure


def _label(frame: Frame, row: dict[str, Any]) -> str:
    """An algorithm with the keys of its best point: those that vary among its points, and rates."""
    vary = frame.attrs.get("varied", {}).get(row["algo"], [])
    told = [key for key in keys(frame) if key in vary or (key in _RATES and row[key] is not None)]
    texts = [f"{_SHORT.get(key, key)} = {row[key]:g}" if isinstance(row[key], float) else f"{key} = {row[key]}"
             for key in told if row[key] == row[key]]  # fmt: skip
    return title(frame, row["algo"]) + (": " + ", ".join(texts) if texts else "")
