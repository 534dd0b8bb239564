"""The picture of one run."""

import math
from collections.abc import Sequence
from typing import Any

from fcorun.metrics import CATALOGUE, PERSONAL_PREFIX, Metric, MetricCatalogue, is_baseline_row
from fcorun.reports.pictures.axis import choose_unit, set_x_ticks, set_y_scale, x_values
from fcorun.reports.pictures.layout import count_panel_columns, curve_style, make_figure, render_figure, set_y_label
from fcorun.reports.pictures.style import style_context

Evaluations = Sequence[dict[str, float]]
_ROW = 0.14  # inches of a row of a legend
Panel = tuple[str, dict[str, str]]  # the label of its axis, and what the legend calls each metric that it shows


def draw_run(
    rows: Evaluations,
    label: str,
    cutoff: float,
    *,
    x: str = "rounds",
    metrics: MetricCatalogue = CATALOGUE,
    format: str = "png",
    style: str = "paper",
) -> bytes:
    """curves.png: what the problem of this run is about, against ``x``, as the content of a file of this format
    and style.

    A baseline is drawn against its iterations where it has no ``x``; no rows give empty axes. Raises UserError for
    others that have not.
    """
    with style_context(style):
        return render_figure(draw(rows, label, cutoff, x, metrics), format)


def draw(rows: Evaluations, label: str, cutoff: float, x: str, metrics: MetricCatalogue) -> Any:
    """The figure of ``draw_run``."""
    baseline = len(rows) > 1 and is_baseline_row({"bytes_up": 0} | rows[-1])
    x = "iterations" if baseline and not rows[-1].get(x) else x
    places = x_values(rows, x, label)
    factor, across = choose_unit(x, max(places, default=0))
    shown = choose_run_panels(list(rows[-1]) if rows else ["objective", "train_loss"], cutoff, metrics)
    count = count_panel_columns(len(shown))
    below = 0.58 if "(" in across else 0.45
    above = _ROW * max(len(lines) // 2 for _, lines in shown)  # for legends, which cover no line there
    figure, axes = make_figure(
        len(shown),
        count,
        height=1.65 if count > 1 else 2.0,
        title=[label],
        left=0.7,
        top=0.1 + above,
        bottom=below,
        gap=(0.74, below + 0.08 + above),
    )
    for ax, (words, lines) in zip(axes, shown, strict=True):
        _draw_panel(ax, rows, [place / factor for place in places], lines, [metrics[name] for name in lines])
        ax.set_xlabel(across.replace(" (", "\n("))
        set_y_label(ax, words)
        set_x_ticks(ax, x)
    return figure


def _draw_panel(
    ax: Any, rows: Evaluations, places: list[float], lines: dict[str, str], known: Sequence[Metric]
) -> None:
    for i, (name, text) in enumerate(lines.items()):
        values = [row[name] for row in rows]
        dot = "." if sum(map(math.isfinite, values)) == 1 else ""  # of one value there is no line
        ax.plot(places, values, **curve_style(i).line_kwargs, marker=dot, label=text)
    values = [row[metric.name] for row in rows for metric in known if metric.log]
    set_y_scale(ax, values, bounded=any(metric.bounded for metric in known))
    ax.margins(x=0.02)
    if len(lines) > 1:
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0.2, labelspacing=0.2,
                  handlelength=2, handletextpad=0.5, columnspacing=0.6, borderpad=0)  # fmt: skip


def choose_run_panels(names: Sequence[str], cutoff: float, metrics: MetricCatalogue = CATALOGUE) -> list[Panel]:
    """What to draw for a run that has these metrics; a panel of one line is called as the metric is."""
    wanted: list[Panel] = [("", {"suboptimality" if "suboptimality" in names else "objective": ""})]
    part = "val_" if any(name.startswith("val_") for name in names) else "train_"
    kind = "accuracy" if "train_accuracy" in names or PERSONAL_PREFIX + "train_accuracy" in names else "loss"
    if PERSONAL_PREFIX + "train_loss" in names:
        own = PERSONAL_PREFIX + part + kind
        lines = {part + kind: "global", own: "own", own + "_q10": "own, 10 %", own + "_q90": "own, 90 %"}
        wanted.append((metrics[part + kind].axis_label(cutoff), lines))
        wanted += [
            (metrics[name].axis_label(cutoff), {name: "global", PERSONAL_PREFIX + name: "own"})
            for name in ("density", "rank")
            if PERSONAL_PREFIX + name in names
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
    return [(words or metrics[next(iter(lines))].axis_label(cutoff), lines) for words, lines in there if lines]
