"""Own models of clients against one for all and each alone: what is gained, and identities of the methods."""

from functools import cache
from typing import Any

import jax
import numpy as np

from fcorun.experiment.build import build_engine, build_problem, load_data, resolve_auto
from fcorun.experiment.prepare import prepare
from fcorun.experiment.reference import gather_rows
from fcorun.figures.comparison import compare
from fcorun.figures.figure_inputs import FigureInputs
from fcorun.figures.papers.fedsplit import compute_gradient_coefficients
from fcorun.figures.spec import compose
from fcorun.metrics import PERSONAL_PREFIX
from fcorun.problem import inner_solvers
from fcorun.problem.problem import Batch
from fcorun.problem.vector import Vector
from fcorun.reports.pictures.axis import choose_unit, x_values
from fcorun.reports.pictures.layout import DASHES, make_figure
from fcorun.reports.pictures.style import pt
from fcorun.reports.run_table import RunTable
from fcorun.reports.seed_bands import describe_band, seed_band

ACCURACY, GLOBAL, ALONE = PERSONAL_PREFIX + "val_accuracy", "fedavg", "local"


def draw_accuracies(of: FigureInputs) -> Any:
    """Three panels: the accuracy of global and own models at the best rates, sparsity against accuracy over all points
    of the grid, and accuracy against communication."""
    algos, cutoff = of.algorithms, of.tuned.cutoff
    figure, (left, middle, right) = make_figure(3, 3, height=0.17 * len(algos) + 0.45, left=1.1, bottom=0.62, top=0.28,
                                         gap=(0.55, 0.5))  # fmt: skip
    seeds = of.tuned.frame.groupby("algo").size().max()
    for place, algo in enumerate(algos):
        look, own = of.line_styles[algo], of.tuned.frame[of.tuned.frame["algo"] == algo]
        marks = {"color": look.colour, "marker": look.marker, "linestyle": "none"}
        if algo != ALONE:  # it has no global model
            low, value, high = seed_band(own["tail_val_accuracy"].to_numpy(float))
            left.plot([low, high], [place, place], color=look.colour, linewidth=pt(0.8), linestyle=":")
            left.plot(value, place, **marks | {"markerfacecolor": "white"})
        if own[f"tail_{ACCURACY}"].notna().any():
            low, value, high = seed_band(own[f"tail_{ACCURACY}"].to_numpy(float))
            left.plot([low, high], [place, place], color=look.colour, linewidth=pt(1))
            left.plot(value, place, **marks)
    left.set_yticks(range(len(algos)), [of.grid.algo_title(name) for name in algos])
    tail = of.tuned.tail_rounds
    left.set(ylim=(len(algos) - 0.4, -0.6), xlabel=f"validation accuracy\n(mean of last {tail} rounds)")
    left.set_title("open: global model, filled: own models" + (f";\nbar: {describe_band([seeds], of.tuned.seed_kind)}"
                   if seeds > 1 else ""), pad=pt(3))  # fmt: skip
    density = f"{PERSONAL_PREFIX}density"
    folded = of.grid.fold_seeds(ACCURACY)
    for algo in algos:
        look = of.line_styles[algo]
        every = folded[(folded["algo"] == algo) & (folded["status"] == "done")]
        middle.scatter(every[density], every["metric"], s=pt(3) ** 2, marker=look.marker, facecolor="none",
                       edgecolor=look.colour, linewidth=pt(0.6))  # fmt: skip
        if len(every):
            best = every.loc[every["metric"].idxmax()]
            middle.plot(best[density], best["metric"], color=look.colour, marker=look.marker, linestyle="none",
                        markeredgecolor="black", markeredgewidth=pt(0.7), markersize=pt(5))  # fmt: skip
    middle.set(xlabel=f"density of own models:\nshare of |w$_j$| > {cutoff:g}", ylabel="validation accuracy")
    middle.set_title("all points of the grid, edged: best", pad=pt(3))
    _against_bytes(of, right, seeds)
    return figure


def _against_bytes(of: FigureInputs, ax: Any, seeds: int) -> None:
    lines = {}
    for algo in of.algorithms:
        places = np.flatnonzero(of.tuned.frame["algo"] == algo)
        runs = [of.tuned_records[int(place)].rows for place in places]
        values = np.median(
            [[row[ACCURACY] if ACCURACY in row else row["val_accuracy"] for row in rows] for rows in runs], axis=0
        )
        lines[algo] = np.array(x_values(runs[0], "bytes", algo)), values
    factor, label = choose_unit("bytes", max(sent[-1] for sent, _ in lines.values()))
    for i, (algo, (sent, values)) in enumerate(lines.items()):
        look = of.line_styles[algo]
        if not sent[-1]:
            ax.axhline(values[-1], color=look.colour, linestyle=look.line_dash, linewidth=pt(1))
            ax.annotate(f"{of.grid.algo_title(algo)}, nothing sent", (0.03, values[-1]), (0, pt(2)),
                        xycoords=("axes fraction", "data"), textcoords="offset points", zorder=10,
                        bbox={"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 0.5})  # fmt: skip
            continue
        ax.plot(sent[1:] / factor, values[1:], color=look.colour, linestyle=DASHES[0], linewidth=pt(0.9),
                marker=look.marker, markevery=(i % 4, 6), markersize=pt(2.5))  # fmt: skip
    ax.set(xscale="log", xlabel=label.replace(" (", "\n("), ylabel="validation accuracy")
    set_few_ticks(ax)
    ax.set_title("at the best rates" + (", median over seeds" if seeds > 1 else ""), pad=pt(3))


def set_few_ticks(ax: Any) -> None:
    """Plain numbers at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def check_personalised(of: FigureInputs) -> list[dict[str, str]]:
    """How much own models gain over the global one and over each client alone, and identities of the methods."""
    return (
        check_margins(of.tuned, [record.config["data"].get("seed", 0) for record in of.tuned_records])
        + check_identities()
    )


def check_margins(tuned: RunTable, seeds: list[int]) -> list[dict[str, str]]:
    """For each method with own models, the gain in accuracy on the same data: median and band over seeds of the data.

    It holds if it is more than 0 in every seed.
    """
    accuracy, algos = tuned.tail_values(ACCURACY), list(tuned.frame["algo"])
    found = {(algo, seed): value for algo, seed, value in zip(algos, seeds, accuracy, strict=True)}
    rows = []
    for algo in dict.fromkeys(algos):
        for other in (GLOBAL, ALONE):
            gains = [100 * (found[algo, s] - found[other, s]) for s in dict.fromkeys(seeds)
                     if (algo, s) in found and (other, s) in found]  # fmt: skip
            if algo in (GLOBAL, ALONE) or not gains:
                continue
            low, value, high = seed_band(gains)
            spread = (
                f", {low:+.1f} to {high:+.1f}, {describe_band([len(gains)], tuned.seed_kind)}" if len(gains) > 1 else ""
            )
            holds, test = compare(dict(enumerate(gains)), {None: 0.0}, 1, tuned.seed_kind)
            rows.append(_row(algo, f"own models beat {'one for all' if other == GLOBAL else 'each client alone'}",
                             f"{value:+.1f} points of accuracy{spread}", f"more than {other}", True)
                        | {"holds": holds, "test": test, "note": ""})  # fmt: skip
    return rows


SMALL_PROBLEM = (
    *("data=lasso", "data.clients=6", "data.samples=30", "data.features=5", "data.nonzeros=3", "reg=none"),
    *("clients_per_round=null", "batch_size=null", "precision=float64"),
)


@cache
def check_identities() -> list[dict[str, str]]:
    """Those of the slides on pFedMac, on least squares in float64 where everything is known in closed form."""
    experiment = prepare(compose([*SMALL_PROBLEM, "algo=local"]))
    data = load_data(experiment)
    h, c = compute_gradient_coefficients(data, experiment.objective)
    p, values = data.sizes / data.sizes.sum(), np.linalg.eigvalsh(h)
    alone = np.linalg.solve(h, c[..., None])[..., 0]
    shared = np.linalg.solve(np.tensordot(p, h, 1), p @ c)
    rows = []

    rest = ["algo.lam=1.7", "algo.client_lr=0.3", "objective.intercept=false", "rounds=20", "eval_every=1",
            "local_epochs=3", "batch_size=7"]  # fmt: skip
    [ours] = run_client_models(["algo=pfedmac", "algo.ridge=0", "objective.ridge=1.7", *rest])
    [theirs] = run_client_models(["algo=pfedme", *rest])
    gap = float(np.abs(ours - theirs).max())
    rows.append(_row("pfedmac", "is pFedMe minus the quadratic term: same own models when it is added to f",
                     f"largest difference of 20 rounds {gap:.1g}", "below 1e-6", gap < 1e-6))  # fmt: skip

    long = ["algo=mixture", "algo.variance_reduction=true", "rounds=3000", "eval_every=3000"]
    strong = [[f"algo.lam={factor * values.max()}"] for factor in (10, 100)]
    ended, *others = run_client_models(long, ["algo.lam=0", "algo.probability=0.02"], *strong)
    gap = float(np.abs(ended[-1] - alone).max())
    rows.append(_row("mixture", "with lambda = 0 is local: own models at each client's own optimum",
                     f"distance {gap:.1g}", "below 1e-6", gap < 1e-6))  # fmt: skip
    far = [float(np.abs(other[-1] - shared).max()) for other in others]
    rows.append(_row("mixture", "with lambda to infinity is consensus: own models tend to the optimum of F",
                     f"distance {far[0]:.2g}, and {far[1]:.2g} with 10 times the lambda", "a tenth, within 10 %",
                     abs(far[0] / far[1] - 10) < 1))  # fmt: skip

    lam, gap = 0.8 * values.min(), 0.0
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        problem = build_problem(experiment, data)

        @jax.jit
        def least(batch: Batch, at: Vector) -> jax.Array:
            """min_u f(u) - lam <at, u>."""
            f = inner_solvers.Subproblem(problem, batch, 0 * at, weight=0.0, linear=lam * at)
            return f.value(inner_solvers.newton(f, 0 * at, inner_solvers.StoppingRule(50, 1e-12)))

        for m, x in enumerate(rng.standard_normal((len(p), h.shape[1]))):
            at = Vector({"weights": jax.numpy.asarray(x[:-1]), "bias": jax.numpy.asarray(x[-1])})
            batch = gather_rows(data, "uniform", slice(int(data.offsets[m]), int(data.offsets[m + 1])))
            value = float(least(batch, at)) + lam / 2 * x @ x
            conjugate = (lam * x + c[m]) @ np.linalg.solve(h[m], lam * x + c[m]) / 2 - _constant(data, m)
            gap = max(gap, abs(value - (lam / 2 * x @ x - conjugate)))
    rows.append(_row("pfedmac", "F(x) = lambda / 2 ||x||^2 - f*(lambda x), the conjugate in closed form",
                     f"largest difference {gap:.1g}", "below 1e-9", gap < 1e-9))  # fmt: skip
    return rows


def _constant(data: Any, m: int) -> float:
    """f_m(0) of least squares."""
    return float(np.mean(data.y[data.offsets[m] : data.offsets[m + 1]].astype(float) ** 2))


def run_client_models(overrides: list[str], *points: list[str]) -> list[np.ndarray]:
    """The clients' own models after each evaluation of runs on SMALL that differ in the numbers of ``points``, each
    (evaluations, M, p), the bias last."""
    runs = [prepare(compose([*SMALL_PROBLEM, *overrides, *point])) for point in points or [[]]]
    data = load_data(runs[0])
    runs = [resolve_auto(experiment, data)[0] for experiment in runs]
    with jax.enable_x64(True):
        computed = build_engine(runs[0], data).run([experiment.numbers() for experiment in runs])
        found = [snapshot.client_models for snapshot in computed if snapshot.client_models]
    return [
        np.array([np.column_stack([models[n][g] for n in ("weights", "bias") if n in models]) for models in found])
        for g in range(len(runs))
    ]


def _row(algo: str, says: str, measured: str, wanted: str, holds: bool) -> dict[str, str]:
    return {"algo": algo, "says": says, "measured": measured, "wanted": wanted, "holds": "yes" if holds else "no",
            "test": "", "note": ""}  # fmt: skip
