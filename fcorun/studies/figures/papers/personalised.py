"""Personal models against a global model and against local training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fcorun.base.metrics import PERSONAL_PREFIX
from fcorun.reports.pictures.layout import DASHES, X_LABELS, make_figure, median_x_values, pt
from fcorun.reports.repetitions import pair_replicates
from fcorun.reports.run_table import RunTable, align_seeds, describe_band, seed_band
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.seed_comparison import by_replicate, collect_by_seed, compare, verdict_row

ACCURACY = PERSONAL_PREFIX + "val_accuracy"
GLOBAL = "fedavg"
ALONE = "local"


def draw_accuracies(inputs: FigureInputs) -> Any:
    """Draw three panels: accuracy at the best rates, sparsity against accuracy, and accuracy against communication.

    The first panel has global and personal models, the second all points of the grid.
    """
    inputs.check_one_best_point()
    algos = inputs.algorithms
    cutoff = inputs.tuned.cutoff
    figure, (left, middle, right) = make_figure(3, 3, height=0.17 * len(algos) + 0.45)
    seeds = inputs.tuned.frame.groupby("algo").size().max()
    for i, algo in enumerate(algos):
        style = inputs.line_styles[algo]
        runs = inputs.tuned.frame[inputs.tuned.frame["algo"] == algo]
        marks = {"color": style.colour, "marker": style.marker, "linestyle": "none"}
        if algo != ALONE:  # local training has no global model
            low, median, high = seed_band(runs["tail_val_accuracy"].to_numpy(float))
            left.plot([low, high], [i, i], color=style.colour, linewidth=pt(0.8), linestyle=":")
            left.plot(median, i, **marks | {"markerfacecolor": "white"})
        if runs[f"tail_{ACCURACY}"].notna().any():
            low, median, high = seed_band(runs[f"tail_{ACCURACY}"].to_numpy(float))
            left.plot([low, high], [i, i], color=style.colour, linewidth=pt(1))
            left.plot(median, i, **marks)
    left.set_yticks(range(len(algos)), [inputs.grid_view.algo_title(name) for name in algos])
    tail = inputs.tuned.tail_rounds
    left.set(ylim=(len(algos) - 0.4, -0.6), xlabel=f"validation accuracy\n(mean of last {tail} rounds)")
    title = "open: global model, filled: personal models"
    if seeds > 1:
        title += f";\nbar: {describe_band([seeds], inputs.tuned.seed_kind)}"
    left.set_title(title, pad=pt(3))
    density = f"{PERSONAL_PREFIX}density"
    points = inputs.grid.fold_seeds(ACCURACY)
    for algo in algos:
        style = inputs.line_styles[algo]
        done = points[(points["algo"] == algo) & (points["status"] == "done")]
        middle.scatter(done[density], done["metric"], s=pt(3) ** 2, marker=style.marker, facecolor="none",
                       edgecolor=style.colour, linewidth=pt(0.6))  # fmt: skip
        if len(done):
            best = done.loc[done["metric"].idxmax()]
            middle.plot(best[density], best["metric"], color=style.colour, marker=style.marker, linestyle="none",
                        markeredgecolor="black", markeredgewidth=pt(0.7), markersize=pt(5))  # fmt: skip
    middle.set(xlabel=f"density of personal models:\nshare of |w$_j$| > {cutoff:g}", ylabel="validation accuracy")
    middle.set_title("all points of the grid, edged: best", pad=pt(3))
    _draw_accuracy_against_bytes(inputs, right, seeds)
    return figure


def _draw_accuracy_against_bytes(inputs: FigureInputs, ax: Any, n_seeds: int) -> None:
    """Draw the median accuracy over seeds of each algorithm against the bytes sent."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

    lines = {}
    for algo in inputs.algorithms:
        indices = np.flatnonzero(inputs.tuned.frame["algo"] == algo)
        runs = align_seeds([inputs.tuned_records[int(i)].rows for i in indices])
        accuracies = []
        for rows in runs:
            accuracies.append([row[ACCURACY] if ACCURACY in row else row["val_accuracy"] for row in rows])
        lines[algo] = median_x_values(runs, "bytes", algo), np.median(accuracies, axis=0)
    for i, (algo, (sent, values)) in enumerate(lines.items()):
        style = inputs.line_styles[algo]
        if not sent[-1]:
            ax.axhline(values[-1], color=style.colour, linestyle=style.line_dash, linewidth=pt(1))
            ax.annotate(f"{inputs.grid_view.algo_title(algo)}, nothing sent", (0.03, values[-1]), (0, pt(2)),
                        xycoords=("axes fraction", "data"), textcoords="offset points", zorder=10,
                        bbox={"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 0.5})  # fmt: skip
            continue
        ax.plot(sent[1:], values[1:], color=style.colour, linestyle=DASHES[0], linewidth=pt(0.9),
                marker=style.marker, markevery=(i % 4, 6), markersize=pt(2.5))  # fmt: skip
    ax.set(xscale="log", xlabel=X_LABELS["bytes"], ylabel="validation accuracy")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(EngFormatter("B"))
    ax.set_title("at the best rates" + (", median over seeds" if n_seeds > 1 else ""), pad=pt(3))


def check_personalised(inputs: FigureInputs) -> list[dict[str, str]]:
    """Check the gains of personal models over the global model and over local training."""
    inputs.check_one_best_point()
    seeds = [inputs.seeds_of(record) for record in inputs.tuned_records]
    return check_margins(inputs.tuned, seeds, inputs.lost_seeds_notes)


def check_margins(tuned: RunTable, seeds: Sequence[Any], lost_seeds: Mapping[str, str]) -> list[dict[str, str]]:
    """Check for each method with personal models that it gains accuracy with the same seeds, in every one.

    ``seeds`` are those of each run, as ``FigureInputs.seeds_of``. A row has the median gain and its band over seeds.
    ``lost_seeds`` has a note for each algorithm that lost seeds.
    """
    accuracies = collect_by_seed(tuned.frame["algo"], seeds, tuned.tail_values(ACCURACY))
    rows = []
    for algo, ours in accuracies.items():
        for other in (GLOBAL, ALONE):
            pairs = pair_replicates(by_replicate(ours), by_replicate(accuracies.get(other, {})))
            gains = [100 * (a - b) for a, b in pairs.values()]
            if algo in (GLOBAL, ALONE) or not gains:
                continue
            low, value, high = seed_band(gains)
            measured = f"{value:+.1f} points of accuracy"
            if len(gains) > 1:
                measured += f", {low:+.1f} to {high:+.1f}, {describe_band([len(gains)], tuned.seed_kind)}"
            holds, test = compare(dict(enumerate(gains)), {None: 0.0}, 1, tuned.seed_kind)
            lost = "; ".join(lost_seeds[name] for name in (algo, other) if name in lost_seeds)
            says = f"personal models beat {'one for all' if other == GLOBAL else 'each client alone'}"
            rows.append(verdict_row(algo, says, measured, f"more than {other}", holds, test=test, lost=lost))
    return rows
