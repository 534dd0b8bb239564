"""Pictures of Federated Composite Optimization by Yuan, Zaheer and Reddi (ICML 2021)."""

from dataclasses import replace
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.metrics import CATALOGUE
from fcorun.reports.pictures.layout import COLOURS, DASHES, add_legend, make_figure
from fcorun.reports.pictures.style import pt
from fcorun.reports.run_table import RunTable
from fcorun.studies.figures.figure_checks import AVERAGING_LABELS
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.papers.theory import select_fastest_runs


def collect_client_solutions(inputs: FigureInputs) -> dict[int, np.ndarray]:
    """Return the weights that each client finds on its own data, by the number of the client.

    Raises UserError without such a run, and for a client with several runs.
    """
    solutions = {}
    for record, algo in zip(inputs.grid_records, inputs.grid.frame["algo"], strict=True):
        if algo == "one_client" and record.finished:
            client = record.config["algo"]["client"]
            if client in solutions:
                raise UserError(f"figure.draw=averaging needs one run of algo=one_client for each client, and client "
                                f"{client} has several: give all runs one value")  # fmt: skip
            solutions[client] = record.solution["weights"]
    if not solutions:
        raise UserError("figure.draw=averaging needs runs of algo=one_client that are done, one for each client")
    return dict(sorted(solutions.items()))


def add_averages(inputs: FigureInputs) -> RunTable:
    """Return the table of the best points with two more rows: the clients' mean solution, and their densest."""
    import pandas as pd

    solutions = list(collect_client_solutions(inputs).values())
    cutoff = inputs.grid.cutoff
    mean_density = _density(np.mean(solutions, axis=0), cutoff)
    densest = max(_density(w, cutoff) for w in solutions)
    rows = pd.DataFrame({"algo": list(AVERAGING_LABELS), "tail_density": [mean_density, densest]})
    return replace(inputs.tuned, frame=pd.concat([inputs.tuned.frame, rows]))


def _density(w: np.ndarray, cutoff: Any) -> float:
    return float(np.mean(np.abs(w) > cutoff))


def draw_averaging(inputs: FigureInputs) -> Any:
    """Draw the curse of primal averaging: supports of the clients' solutions, of their mean, and of the algorithms."""
    from matplotlib.colors import ListedColormap

    solutions = collect_client_solutions(inputs)
    cutoff = inputs.grid.cutoff
    strips = [(f"client {m} alone", w) for m, w in solutions.items()]
    strips.append(("mean of the clients' solutions", np.mean(list(solutions.values()), axis=0)))
    for row in inputs.grid_view.best_rows():
        if row["algo"] != "one_client":
            strips.append(
                (inputs.grid_view.algo_title(row["algo"]), inputs.grid_records[row["rows"][0]].solution["weights"])
            )
    figure, (ax,) = make_figure(1, 1, wide=True, height=0.21 * len(strips))
    is_nonzero = np.array([np.abs(w) > cutoff for _, w in strips], float)
    ax.imshow(
        is_nonzero, aspect="auto", interpolation="nearest", cmap=ListedColormap(["#F2F2F2", COLOURS[0]]), vmin=0, vmax=1
    )
    ax.set_yticks(range(len(strips)), [label for label, _ in strips])
    ax.set_yticks(np.arange(len(strips) - 1) + 0.5, minor=True)
    ax.grid(visible=False)
    ax.grid(which="minor", axis="y", color="white", linewidth=pt(2), alpha=1)
    ax.tick_params(length=0, which="both")
    ax.set_xlabel(f"coefficient j (blue where |w$_j$| > {cutoff:g})")
    for i, (_, w) in enumerate(strips):
        density = f"{_density(w, cutoff):.2f}"
        ax.annotate(density, (1.02, i), xycoords=("axes fraction", "data"), va="center")
    ax.annotate("density", (1.02, 1.0), (0, pt(4)), xycoords="axes fraction", textcoords="offset points")
    return figure


def draw_rates(inputs: FigureInputs) -> Any:
    """Draw the gap against rounds at each client_lr with the server_lr that is first to reach a gap of 0.1.

    A bound is drawn where its theorem applies: that of theorem 4.1 at the smallest client_lr, those of 4.2 and 4.3
    where their conditions hold.
    """
    runs = select_fastest_runs(inputs.grid_records)
    styles = {f"theorem 4.{i + 1}": {"color": COLOURS[i], "linestyle": DASHES[i + 1]} for i in range(3)}
    gap_label = CATALOGUE["suboptimality"].axis_label(None)
    figure, axes = make_figure(len(runs), min(3, len(runs)), height=1.9)
    for ax, (record, rounds, gaps, bounds) in zip(axes, runs, strict=True):
        ax.plot(rounds, gaps, color="black", label="measured, last iterate")
        for theorem, bound in bounds.items():
            ax.plot(rounds, bound, **styles[theorem], label=f"bound of {theorem}")
        ax.set(xscale="log", yscale="log", xlabel="communication round", ylabel=gap_label)
        ax.set_title("$\\eta_c$ = {client_lr:g}, $\\eta_s$ = {server_lr:g}".format(**record.config["algo"]), pad=pt(3))
    limits = [limit for ax in axes for limit in ax.get_ylim()]
    for ax in axes:
        ax.set_ylim(min(limits), max(limits))
    handles = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles[label] = handle
    add_legend(figure, list(handles.values()), list(handles))
    return figure
