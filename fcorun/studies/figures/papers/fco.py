"""Pictures of Federated Composite Optimization by Yuan, Zaheer and Reddi (ICML 2021), and bounds of its theorems.

Theorems 4.1 to 4.3 hold up to absolute constants, which are set to 1, for the average of the iterates. They are
compared with the gap of the last iterate. The constants are computed for least squares over all clients with the
Euclidean mirror map alone: there each has a closed form.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import pandas as pd

from fcorun.base.errors import UserError
from fcorun.base.metrics import CATALOGUE
from fcorun.base.records.record import Record
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.build import build_engine, build_problem, load_data
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms.feddualavg import FedDualAvg
from fcorun.methods.communication.contracts import Identity, Star
from fcorun.methods.mirror_maps.mirror_map import Euclidean
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.methods.problem import solver
from fcorun.methods.problem.solver import gather_rows
from fcorun.reports.build_table import find_varied_keys
from fcorun.reports.pictures.layout import COLOURS, DASHES, add_legend, collect_entries, make_figure, pt
from fcorun.reports.run_table import RunTable
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.seed_comparison import UNCLEAR, RoundsToTarget, find_rounds_to_target, verdict_row

_ROUNDS = 5  # the constants are taken over the minibatches of these rounds
AVERAGING_LABELS = ("mean of the clients", "densest client")  # rows beside the solutions of single clients
_TARGET_GAP = 0.1  # larger client steps should reach this gap first


@dataclass(frozen=True)
class BoundConstants:
    """Constants of the bounds; those with ``norm`` in their name use ||w||^2 = w'Qw / ||Q||_2, of Assumption 2,
    with Q the Hessian of F.

    Attributes:
        B: ||w* - w0||^2 / 2.
        M, K: the numbers of clients, and of local steps in a round.
        L, L_norm: the largest smoothness of a minibatch's loss.
        variance, variance_norm: sigma^2, the largest variance of a minibatch's gradient, at w0 or at w*.
        heterogeneity_norm: zeta^2, the largest squared distance of a client's gradient from the mean gradient,
            at the same points.
        gradient: G^2, the largest squared norm of a minibatch gradient, at the same points.
    """

    B: float
    M: int
    K: int
    L: float
    L_norm: float
    variance: float
    variance_norm: float
    heterogeneity_norm: float
    gradient: float


def _check_problem(experiment: PreparedExperiment, data: FederatedData) -> None:
    """Refuse other methods, and problems other than least squares over clients that weigh alike. Raises UserError."""
    objective, train = experiment.objective, data.train
    is_plain_method = type(experiment.algo) is FedDualAvg and isinstance(experiment.mirror, Euclidean)
    links = (experiment.topology, experiment.uplink, experiment.downlink)
    if not is_plain_method or not all(isinstance(link, (Star, Identity)) for link in links):
        raise UserError("the bounds of the theorems are those of algo=feddualavg with mirror=euclidean, topology=star "
                        "and messages that are not compressed")  # fmt: skip
    if not isinstance(objective, LeastSquares) or experiment.settings.clients_per_round is not None:
        raise UserError("the bounds of the theorems are computed for objective=least_squares and all clients only")
    is_plain = objective.intercept and not objective.ridge and train.weight is None and train.offset is None
    if not is_plain or data.features.scale != 1:
        raise UserError("the bounds of the theorems need least squares with an intercept (objective.intercept=true), "
                        "and no ridge, no weights, no offsets and no scaled features")  # fmt: skip
    if experiment.settings.client_weighting == "examples" and len(set(train.sizes)) > 1:
        raise UserError("the bounds of the theorems weigh all clients alike: give client_weighting=uniform")


def compute_constants(experiment: PreparedExperiment, data: FederatedData) -> BoundConstants:
    """Compute the constants of a least-squares problem. Raises UserError for any other problem."""
    _check_problem(experiment, data)
    with jax.enable_x64(True):
        problem = build_problem(experiment, data)
        for iterate in solver.minimize(problem, gather_rows(data, experiment.settings.client_weighting)):  # noqa: B007
            pass  # the last iterate is the optimum
    optimum = np.append(np.ravel(iterate.w["weights"]), float(iterate.w["bias"]))
    start = np.zeros_like(optimum)
    x = np.column_stack([data.train.x.astype(float), np.ones(len(data.train.y))])  # the intercept is a feature of ones
    y = data.train.y.astype(float)
    clients = [slice(a, b) for a, b in zip(data.train.offsets, data.train.offsets[1:], strict=False)]
    q = np.mean([2 * x[rows].T @ x[rows] / len(y[rows]) for rows in clients], axis=0)
    q_norm = np.linalg.eigvalsh(q)[-1]
    try:
        root = np.linalg.inv(np.linalg.cholesky(q))  # root' root = Q^-1
    except np.linalg.LinAlgError as error:
        raise UserError("the bounds of the theorems need a Hessian that is invertible: take more rows than features, "
                        "and no features that follow from others") from error  # fmt: skip

    def squared_dual_norm(g: np.ndarray) -> float:
        """Return ||Q||_2 g'Q^-1 g."""
        return float(q_norm * np.sum((root @ g) ** 2))

    def gradient(rows: Any, w: np.ndarray) -> np.ndarray:
        return 2 * x[rows].T @ (x[rows] @ w - y[rows]) / len(y[rows])

    schedule = build_engine(experiment, data).federation.schedule
    batches = schedule.draw_rounds(0, _ROUNDS).rows  # (rounds, clients, K, batch)
    smoothness = smoothness_norm = 0.0
    variances = [0.0]
    variances_norm = [0.0]
    heterogeneities = [0.0]
    squared_gradients = [0.0]
    for m, client_rows in enumerate(clients):
        drawn = [] if schedule.full_batch_steps else batches[:, m].reshape(-1, batches.shape[-1])
        minibatches = [rows[rows >= 0] for rows in drawn if (rows >= 0).any()]  # -1 pads
        if not minibatches:
            minibatches = [np.arange(client_rows.start, client_rows.stop)]
        for rows in minibatches:
            scaled = x[rows] / np.sqrt(len(rows) / 2)
            smoothness = max(smoothness, np.linalg.norm(scaled, 2) ** 2)
            smoothness_norm = max(smoothness_norm, q_norm * np.linalg.norm(scaled @ root.T, 2) ** 2)
        for w in (start, optimum):
            mean = gradient(client_rows, w)
            gradients = [gradient(rows, w) for rows in minibatches]
            mean_of_clients = np.mean([gradient(rows, w) for rows in clients], axis=0)
            variances.append(float(np.mean([np.sum((g - mean) ** 2) for g in gradients])))
            variances_norm.append(float(np.mean([squared_dual_norm(g - mean) for g in gradients])))
            heterogeneities.append(squared_dual_norm(mean - mean_of_clients))
            squared_gradients.append(max(float(np.sum(g**2)) for g in gradients))
    return BoundConstants(
        B=float(np.sum(optimum**2) / 2),
        M=len(clients),
        K=int(schedule.full_batch_steps or batches.shape[2]),
        L=float(smoothness),
        L_norm=float(smoothness_norm),
        variance=max(variances),
        variance_norm=max(variances_norm),
        heterogeneity_norm=max(heterogeneities),
        gradient=max(squared_gradients),
    )


def compute_bounds(c: BoundConstants, client_lr: float, server_lr: float, rounds: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the bound of each applicable theorem on E[Phi] - Phi* after these rounds of FedDualAvg."""
    step = client_lr * server_lr * c.K  # of a round
    bounds = {}
    if step <= 1 / c.L:  # theorem 4.1, for small local steps
        bounds["theorem 4.1"] = c.B / (step * rounds) + step * c.variance / (c.M * c.K)
    if server_lr == 1 and client_lr <= 1 / (4 * c.L):
        without_drift = c.B / (client_lr * c.K * rounds) + client_lr * c.variance / c.M
        bounds["theorem 4.2"] = without_drift + client_lr**2 * c.L * c.K**2 * c.gradient
    if server_lr == 1 and client_lr <= 1 / (4 * c.L_norm):
        drift = c.L_norm * (c.K * c.variance_norm + c.K**2 * c.heterogeneity_norm)
        without_drift = c.B / (client_lr * c.K * rounds) + client_lr * c.variance_norm / c.M
        bounds["theorem 4.3"] = without_drift + client_lr**2 * drift
    return bounds


def check_bounds(records: Sequence[Record]) -> list[dict[str, str]]:
    """Check that measured gaps stay below the bounds, and that the largest client_lr is the first at a small gap.

    A client_lr all of whose runs diverged never comes there. What holds is not decided if some run failed.
    """
    rows = []
    rounds_to_gap = {}
    for record, rounds, gaps, bounds in select_fastest_runs(records):
        algo = record.config["algo"]
        rounds_to_gap[algo["client_lr"]] = (
            find_rounds_to_target([0.0, *rounds], [False, *(gaps <= _TARGET_GAP)]),
            algo["server_lr"],
        )
        for theorem, bound in bounds.items():
            worst = float(np.max(gaps / bound))
            rates = "client_lr={client_lr:g}, server_lr={server_lr:g}".format(**algo)
            says, measured = f"{theorem} bounds the gap at {rates}", f"gap at most {worst:.3g} of the bound"
            rows.append(verdict_row("feddualavg", says, measured, "at most 1, up to a constant", worst <= 1))
    measured = "; ".join(f"rounds with client_lr={rate:g}, server_lr={server:g}: {reached}"
                     for rate, (reached, server) in rounds_to_gap.items())  # fmt: skip
    n_lost = sum(not record.finished for record in records)
    lost = f"{n_lost} of {len(records)} runs failed" if n_lost else ""
    for record in records:
        rate = record.flat_config.get("algo.client_lr")
        if record.finished and rate not in rounds_to_gap:
            rounds_to_gap[rate] = RoundsToTarget(np.inf, np.inf), np.nan
            measured += f"; diverged with client_lr={rate:g}"
    largest = max(rounds_to_gap)
    rounds_of_largest = rounds_to_gap[largest][0]
    others = [reached for rate, (reached, _) in rounds_to_gap.items() if rate != largest]
    holds = UNCLEAR
    if any(rounds_of_largest.earliest > other.latest for other in others) or np.isinf(rounds_of_largest.latest):
        holds = "no"
    if all(rounds_of_largest.latest < other.earliest for other in others) and np.isfinite(rounds_of_largest.latest):
        holds = "yes"
    if not others:  # of a single rate, none comes first
        holds = "not measured"
    says = f"with server_lr tuned for each, the largest client_lr comes first to a gap of {_TARGET_GAP}"
    rows.append(verdict_row("feddualavg", says, measured, "fewest with the largest client_lr", holds, lost=lost))
    return rows


@lru_cache(maxsize=1)
def _compute_constants_once(fingerprint: str, config: str) -> BoundConstants:
    """Compute the constants; the ``fingerprint`` is of the data, which may change under the same configuration."""
    experiment = prepare(json.loads(config))
    return compute_constants(experiment, load_data(experiment))


def select_fastest_runs(
    records: Sequence[Record],
) -> list[tuple[Record, np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
    """Return the record, rounds, gaps and bounds of the run with the fastest server_lr at each client_lr.

    The fastest run is the first that stays at the target gap; of runs that never do, or from the same round on, the one
    with the lowest gap at the end. Theorem 4.1 assumes a small client_lr: its bound is returned for the smallest
    client_lr alone. Raises UserError if the runs do not differ in these two rates alone.
    """
    varied = find_varied_keys([record.flat_config for record in records])
    others = [key for key in varied if key not in ("algo.client_lr", "algo.server_lr")]
    if others:
        raise UserError("the bounds of the theorems are for runs that differ in client_lr and server_lr alone, and "
                        f"these differ in {', '.join(others)}, too: give all runs the same value")  # fmt: skip
    runs: dict[float, list] = {}
    for record in records:
        rows = record.rows[1:]  # not the start, where the bounds are infinite
        if record.status.get("status") == "done" and rows:
            gaps = np.array([row["suboptimality"] for row in rows])
            reached = find_rounds_to_target([row["round"] for row in rows], (gaps <= _TARGET_GAP).tolist()).latest
            runs.setdefault(record.config["algo"]["client_lr"], []).append(
                ((reached, float(gaps[-1])), record, rows, gaps)
            )
    best = [min(runs[rate], key=lambda run: run[0]) for rate in sorted(runs)]
    if not best:
        raise UserError("no run came to an end")
    config = best[0][1].config
    constants = _compute_constants_once(prepare(config).fingerprint, json.dumps(config))
    results = []
    for i, (_, record, rows, gaps) in enumerate(best):
        rounds = np.array([row["round"] for row in rows], float)
        algo = record.config["algo"]
        bounds = compute_bounds(constants, algo["client_lr"], algo["server_lr"], rounds)
        if i > 0:
            bounds.pop("theorem 4.1", None)
        results.append((record, rounds, gaps, bounds))
    return results


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
        title = "$\\eta_c$ = {client_lr:g}, $\\eta_s$ = {server_lr:g}".format(**record.config["algo"])
        if not bounds:
            title += ": no bound applies"
        ax.set_title(title, pad=pt(3))
    limits = [limit for ax in axes for limit in ax.get_ylim()]
    for ax in axes:
        ax.set_ylim(min(limits), max(limits))
    add_legend(figure, collect_entries(axes))
    return figure
