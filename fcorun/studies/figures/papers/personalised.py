"""Personal models against a global model and against local training: gains, and identities of the methods."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np

from fcorun.base.metrics import PERSONAL_PREFIX
from fcorun.experiment.build import build_engine, build_problem, load_data, resolve_auto
from fcorun.experiment.prepare import prepare
from fcorun.methods.problem import inner_solvers
from fcorun.methods.problem.problem import Batch, Vector
from fcorun.methods.problem.solver import gather_rows
from fcorun.reports.pictures.layout import DASHES, choose_unit, make_figure, median_x_values, pt
from fcorun.reports.repetitions import pair_replicates
from fcorun.reports.run_table import RunTable, align_seeds, describe_band, seed_band
from fcorun.studies.figures.figure_inputs import FigureInputs
from fcorun.studies.figures.papers.fedsplit_figures import compute_gradient_coefficients
from fcorun.studies.figures.seed_comparison import by_replicate, collect_by_seed, compare, verdict_row
from fcorun.studies.figures.spec import compose

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
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    lines = {}
    for algo in inputs.algorithms:
        indices = np.flatnonzero(inputs.tuned.frame["algo"] == algo)
        runs = align_seeds([inputs.tuned_records[int(i)].rows for i in indices])
        accuracies = []
        for rows in runs:
            accuracies.append([row[ACCURACY] if ACCURACY in row else row["val_accuracy"] for row in rows])
        lines[algo] = median_x_values(runs, "bytes", algo), np.median(accuracies, axis=0)
    factor, label = choose_unit("bytes", max(sent[-1] for sent, _ in lines.values()))
    for i, (algo, (sent, values)) in enumerate(lines.items()):
        style = inputs.line_styles[algo]
        if not sent[-1]:
            ax.axhline(values[-1], color=style.colour, linestyle=style.line_dash, linewidth=pt(1))
            ax.annotate(f"{inputs.grid_view.algo_title(algo)}, nothing sent", (0.03, values[-1]), (0, pt(2)),
                        xycoords=("axes fraction", "data"), textcoords="offset points", zorder=10,
                        bbox={"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 0.5})  # fmt: skip
            continue
        ax.plot(sent[1:] / factor, values[1:], color=style.colour, linestyle=DASHES[0], linewidth=pt(0.9),
                marker=style.marker, markevery=(i % 4, 6), markersize=pt(2.5))  # fmt: skip
    ax.set(xscale="log", xlabel=label.replace(" (", "\n("), ylabel="validation accuracy")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_title("at the best rates" + (", median over seeds" if n_seeds > 1 else ""), pad=pt(3))


def check_personalised(inputs: FigureInputs) -> list[dict[str, str]]:
    """Check the gains of personal models over the global model and over local training, and identities."""
    inputs.check_one_best_point()
    seeds = [inputs.seeds_of(record) for record in inputs.tuned_records]
    return check_margins(inputs.tuned, seeds, inputs.lost_seeds_notes) + check_identities()


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


SMALL_PROBLEM = (
    *("data=lasso", "data.clients=6", "data.samples=30", "data.features=5", "data.nonzeros=3", "reg=none"),
    *("clients_per_round=null", "batch_size=null", "precision=float64"),
)


@cache
def check_identities() -> list[dict[str, str]]:
    """Check identities of the slides on pFedMac, on least squares in float64, whose solutions have a closed form."""
    experiment = prepare(compose([*SMALL_PROBLEM, "algo=local"]))
    data = load_data(experiment)
    h, c = compute_gradient_coefficients(data, experiment.objective)  # the gradients H_j x - c_j
    p = data.train.sizes / data.train.sizes.sum()
    values = np.linalg.eigvalsh(h)
    client_optima = np.linalg.solve(h, c[..., None])[..., 0]
    global_optimum = np.linalg.solve(np.tensordot(p, h, 1), p @ c)
    rows = []

    settings = ["algo.lam=1.7", "algo.client_lr=0.3", "objective.intercept=false", "rounds=20", "eval_every=1",
            "local_epochs=3", "batch_size=7"]  # fmt: skip
    [ours] = run_client_models(["algo=pfedmac", "algo.ridge=0", "objective.ridge=1.7", *settings])
    [theirs] = run_client_models(["algo=pfedme", *settings])
    gap = float(np.abs(ours - theirs).max())
    rows.append(verdict_row("pfedmac", "is pFedMe minus the quadratic term: same personal models when it is added to f",
                     f"largest difference of 20 rounds {gap:.1g}", "below 1e-6", gap < 1e-6))  # fmt: skip

    long_run = ["algo=mixture", "algo.variance_reduction=true", "rounds=3000", "eval_every=3000"]
    strong_coupling = [[f"algo.lam={factor * values.max()}"] for factor in (10, 100)]
    uncoupled, *coupled = run_client_models(long_run, ["algo.lam=0", "algo.probability=0.02"], *strong_coupling)
    gap = float(np.abs(uncoupled[-1] - client_optima).max())
    rows.append(verdict_row("mixture", "with lambda = 0 is local: personal models at each client's own optimum",
                     f"distance {gap:.1g}", "below 1e-6", gap < 1e-6))  # fmt: skip
    distances = [float(np.abs(models[-1] - global_optimum).max()) for models in coupled]
    rows.append(verdict_row("mixture", "with lambda to infinity is consensus: personal models tend to the optimum of F",
                     f"distance {distances[0]:.2g}, and {distances[1]:.2g} with 10 times the lambda",
                     "a tenth, within 10 %", abs(distances[0] / distances[1] - 10) < 1))  # fmt: skip

    lam = 0.8 * values.min()
    gap = 0.0
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        problem = build_problem(experiment, data)

        @jax.jit
        def minimum(batch: Batch, at: Vector) -> jax.Array:
            """Return min_u f(u) - lam <at, u>."""
            f = inner_solvers.Subproblem(problem, batch, 0 * at, weight=0.0, linear=lam * at)
            return f.value(inner_solvers.newton(f, 0 * at, inner_solvers.StoppingRule(50, 1e-12)))

        for m, x in enumerate(rng.standard_normal((len(p), h.shape[1]))):
            rows_of_client = slice(int(data.train.offsets[m]), int(data.train.offsets[m + 1]))
            at = Vector({"weights": jax.numpy.asarray(x[:-1]), "bias": jax.numpy.asarray(x[-1])})
            value = float(minimum(gather_rows(data, "uniform", rows_of_client), at)) + lam / 2 * x @ x
            loss_at_zero = float(np.mean(data.train.y[rows_of_client].astype(float) ** 2))
            conjugate = (lam * x + c[m]) @ np.linalg.solve(h[m], lam * x + c[m]) / 2 - loss_at_zero
            gap = max(gap, abs(value - (lam / 2 * x @ x - conjugate)))
    rows.append(verdict_row("pfedmac", "F(x) = lambda / 2 ||x||^2 - f*(lambda x), the conjugate in closed form",
                     f"largest difference {gap:.1g}", "below 1e-9", gap < 1e-9))  # fmt: skip
    return rows


def run_client_models(overrides: list[str], *points: list[str]) -> list[np.ndarray]:
    """Run small problems that differ in the numbers of ``points``; return the personal models at each evaluation.

    Each run has an array (evaluations, M, p), the bias last.
    """
    runs = [prepare(compose([*SMALL_PROBLEM, *overrides, *point])) for point in points or [[]]]
    data = load_data(runs[0])
    runs = [resolve_auto(experiment, data)[0] for experiment in runs]
    with jax.enable_x64(True):
        computed = build_engine(runs[0], data).run([experiment.numbers() for experiment in runs])
        evaluations = [snapshot.client_models for snapshot in computed if snapshot.client_models]
    results = []
    for g in range(len(runs)):
        models = []
        for evaluation in evaluations:
            models.append(np.column_stack([evaluation[name][g] for name in ("weights", "bias") if name in evaluation]))
        results.append(np.array(models))
    return results
