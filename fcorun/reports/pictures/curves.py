"""The picture of one run."""

import math
from collections.abc import Sequence
from typing import Any

from fcorun.metrics import CATALOGUE, PERSONAL, Catalogue, Metric, silent
from fcorun.reports.pictures.axis import along, scale_y, unit, whole_x
from fcorun.reports.pictures.page import columns, content, label_y, look, page
from fcorun.reports.pictures.style import drawn_in

Rows = Sequence[dict[str, float]]
_ROW = 0.14  # inches of a row of a legend
Panel = tuple[str, dict[str, str]]  # the label of its axis, and what the legend calls each metric that it shows


def draw_run(
    rows: Rows,
    label: str,
    cutoff: float,
    *,
    x: str = "rounds",
    metrics: Catalogue = CATALOGUE,
    format: str = "png",
    style: str = "paper",
) -> bytes:
    """curves.png: what the problem of this run is about, against ``x``, as the content of a file of this format
    and style.

    A baseline is drawn against its iterations where it has no ``x``; no rows give empty axes. Raises UserError for
    others that have not.
    """
    with drawn_in(style):
        return content(draw(rows, label, cutoff, x, metrics), format)


def draw(rows: Rows, label: str, cutoff: float, x: str, metrics: Catalogue) -> Any:
    """The figure of ``draw_run``."""
    baseline = len(rows) > 1 and silent({"bytes_up": 0} | rows[-1])
    x = "iterations" if baseline and not rows[-1].get(x) else x
    places = along(rows, x, label)
    factor, across = unit(x, max(places, default=0))
    shown = panels(list(rows[-1]) if rows else ["objective", "train_loss"], cutoff, metrics)
    count = columns(len(shown))
    below = 0.58 if "(" in across else 0.45
    above = _ROW * max(len(lines) // 2 for _, lines in shown)  # for legends, which cover no line there
    figure, axes = page(len(shown), count, height=1.65 if count > 1 else 2.0, title=[label], left=0.7, top=0.1 + above,
                        bottom=below, gap=(0.74, below + 0.08 + above))  # fmt: skip
    for ax, (words, lines) in zip(axes, shown, strict=True):
        _draw_panel(ax, rows, [place / factor for place in places], lines, [metrics[name] for name in lines])
        ax.set_xlabel(across.replace(" (", "\n("))
        label_y(ax, words)
        whole_x(ax, x)
    return figure


def _draw_panel(ax: Any, rows: Rows, places: list[float], lines: dict[str, str], known: Sequence[Metric]) -> None:
    for i, (name, text) in enumerate(lines.items()):
        values = [row[name] for row in rows]
        dot = "." if sum(map(math.isfinite, values)) == 1 else ""  # of one value there is no line
        ax.plot(places, values, **look(i).line, marker=dot, label=text)
    values = [row[metric.name] for row in rows for metric in known if metric.log]
    scale_y(ax, values, share=any(metric.share for metric in known))
    ax.margins(x=0.02)
    if len(lines) > 1:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0.2, labelspacing=0.2,
                  handlelength=2, handletextpad=0.5, columnspacing=0.6, borderpad=0)  # fmt: skip


def panels(names: Sequence[str], cutoff: float, metrics: Catalogue = CATALOGUE) -> list[Panel]:
    """What to draw for a run that has these metrics; a panel of one line is called as the metric is."""
    wanted: list[Panel] = [("", {"suboptimality" if "suboptimality" in names else "objective": ""})]
    part = "val_" if any(name.startswith("val_") for name in names) else "train_"
    kind = "accuracy" if "train_accuracy" in names or PERSONAL + "train_accuracy" in names else "loss"
    if PERSONAL + "train_loss" in names:
        own = PERSONAL + part + kind
        lines = {part + kind: "global", own: "own", own + "_q10": "own, 10 %", own + "_q90": "own, 90 %"}
        wanted.append((metrics[part + kind].words(cutoff), lines))
        wanted += [
            (metrics[name].words(cutoff), {name: "global", PERSONAL + name: "own"})
            for name in ("density", "rank")
            if PERSONAL + name in names
        ]
    else:
        words = "accuracy" if kind == "accuracy" else "mean loss"
        wanted.append((words, {f"train_{kind}": "training", f"val_{kind}": "validation"}))
        support = {"support_f1": "F1", "support_precision": "precision", "support_recall": "recall"}
        support |= {"density": "density"}
        wanted += [(f"support {{|w$_j$| > {cutoff:g}}}", support)] if "support_f1" in names else [("", {"density": ""})]
        wanted += [("", {"rank": ""}), ("", {"recovery_error": ""})] if "rank" in names else []
    of_users = [name for name in names if name in metrics and name not in CATALOGUE and name.startswith(part)]
    wanted += [("", {name: ""}) for name in of_users]
    there = [(words, {name: text for name, text in lines.items() if name in names}) for words, lines in wanted]
    return [(words or metrics[next(iter(lines))].words(cutoff), lines) for words, lines in there if lines]
