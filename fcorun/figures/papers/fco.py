"""Pictures of federated composite optimization of Yuan, Zaheer and Reddi (ICML 2021)."""

from dataclasses import replace
from typing import Any

import numpy as np

from fcorun.figures.checks import AVERAGING_LABELS
from fcorun.figures.figure_inputs import FigureInputs
from fcorun.figures.papers.theory import select_best_runs
from fcorun.metrics import CATALOGUE
from fcorun.reports.pictures.layout import COLOURS, DASHES, add_legend, make_figure
from fcorun.reports.pictures.style import pt
from fcorun.reports.run_table import RunTable


def collect_client_solutions(of: FigureInputs) -> dict[int, np.ndarray]:
    """The weights that each client finds on its own data, by its number."""
    algos = zip(of.grid_records, of.grid.frame["algo"], strict=True)
    alone = [record for record, algo in algos if algo == "one_client" and record.finished]
    found = {record.config["algo"]["client"]: record.solution["weights"] for record in alone}
    return dict(sorted(found.items()))


def add_averages(of: FigureInputs) -> RunTable:
    """The table of the best points, with what is claimed of the solutions of single clients and of their mean."""
    import pandas as pd

    alone = list(collect_client_solutions(of).values())
    mean, densest = AVERAGING_LABELS
    shares = {
        mean: _density(np.mean(alone, axis=0), of.grid.cutoff),
        densest: max(_density(w, of.grid.cutoff) for w in alone),
    }
    more = pd.DataFrame({"algo": list(shares), "tail_density": list(shares.values())})
    return replace(of.tuned, frame=pd.concat([of.tuned.frame, more]))


def _density(w: np.ndarray, cutoff: Any) -> float:
    return float(np.mean(np.abs(w) > cutoff))


def draw_averaging(of: FigureInputs) -> Any:
    """The curse of primal averaging: the solutions of single clients, their mean, and what the algorithms find."""
    from matplotlib.colors import ListedColormap

    alone, cutoff = collect_client_solutions(of), of.grid.cutoff
    strips = [(f"client {m} alone", w) for m, w in alone.items()]
    strips.append(("mean of the clients' solutions", np.mean(list(alone.values()), axis=0)))
    for row in of.grid_view.best_rows():
        if row["algo"] != "one_client":
            strips.append((of.grid.algo_title(row["algo"]), of.grid_records[row["rows"][0]].solution["weights"]))
    figure, (ax,) = make_figure(1, 1, wide=True, height=0.21 * len(strips), left=1.75, right=0.75, bottom=0.5, top=0.25)
    picture = np.array([np.abs(w) > cutoff for _, w in strips], float)
    ax.imshow(
        picture, aspect="auto", interpolation="nearest", cmap=ListedColormap(["#F2F2F2", COLOURS[0]]), vmin=0, vmax=1
    )
    ax.set_yticks(range(len(strips)), [label for label, _ in strips])
    ax.set_yticks(np.arange(len(strips) - 1) + 0.5, minor=True)
    ax.grid(visible=False)
    ax.grid(which="minor", axis="y", color="white", linewidth=pt(2), alpha=1)
    ax.tick_params(length=0, which="both")
    ax.set_xlabel(f"coefficient j (blue where |w$_j$| > {cutoff:g})")
    for place, (_, w) in enumerate(strips):
        share = f"{_density(w, cutoff):.2f}"
        ax.annotate(share, (1.02, place), xycoords=("axes fraction", "data"), va="center")
    ax.annotate("density", (1.02, 1.0), (0, pt(4)), xycoords="axes fraction", textcoords="offset points")
    return figure


def draw_rates(of: FigureInputs) -> Any:
    """The gap against the rounds at each client_lr with its best server_lr, and the bounds of theorems 4.1 to 4.3."""
    runs = select_best_runs(of.grid_records)
    looks = {f"theorem 4.{i + 1}": {"color": COLOURS[i], "linestyle": DASHES[i + 1]} for i in range(3)}
    gap = CATALOGUE["suboptimality"].axis_label(None)
    figure, axes = make_figure(len(runs), min(3, len(runs)), height=1.9, left=0.6, top=0.25)
    for ax, (record, rounds, gaps, bounds) in zip(axes, runs, strict=True):
        ax.plot(rounds, gaps, color="black", label="measured, last iterate")
        for text, bound in bounds.items():
            ax.plot(rounds, bound, **looks[text], label=f"bound of {text}")
        ax.set(xscale="log", yscale="log", xlabel="communication round", ylabel=gap)
        ax.set_title("$\\eta_c$ = {client_lr:g}, $\\eta_s$ = {server_lr:g}".format(**record.config["algo"]), pad=pt(3))
    heights = [limit for ax in axes for limit in ax.get_ylim()]
    for ax in axes:
        ax.set_ylim(min(heights), max(heights))
    seen = {text: handle for ax in axes for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
    add_legend(figure, list(seen.values()), list(seen))
    return figure
