"""Methods with client proxes, control variates and server optimisers: their boxes, fixed points, rates and counts."""

import json

import boxes
import jax
import numpy as np
import optax
import pytest
from helpers import fails, flat, names, plugin_class, ragged, small, small_for, snapshots
from quadratics import SIZES, Quadratics, path
from scipy.optimize import minimize

from fcorun import compose, run
from fcorun.algorithms import Algorithm
from fcorun.cli.console import Console
from fcorun.experiment import reference
from fcorun.experiment.experiment import prepare
from fcorun.problem import solver
from fcorun.problem.quadratic import curvature

STEPS = ("local_epochs=null", "local_steps=4")
LONG = ("reg=none", "rounds=2000", "eval_every=2000")
ALL, SOME = "clients_per_round=null", "clients_per_round=2"


# ---------------------------------------------------------------- the boxes

BOXES = {
    "fedgd": ((), lambda q: q.box("fedgd", s=1 / q.L, e=1)),
    "fedgd algo.steps=5 algo.step=0.05": ((), lambda q: q.box("fedgd", s=0.05, e=5)),
    "fedprox": ((), lambda q: q.box("fedprox", mu=1 / q.step)),
    "fedsplit": ((), lambda q: q.box("fedsplit", s=q.step, psi_prox=q.psi)),
    "fedsplit algo.relaxation=1": ((), lambda q: q.box("fedsplit", s=q.step, psi_prox=q.psi, relaxation=1.0)),
    "fedsplit algo.anchor=0.3 algo.step=0.2": (
        (),
        lambda q: q.box("fedsplit", s=0.2, psi_prox=q.psi, ridge=0.3),
    ),
    "feddyn": ((), lambda q: q.box("feddyn", alpha=1 / q.step)),
    "feddyn partly": ((SOME,), lambda q: q.box("feddyn", alpha=1 / q.step, cohorts=q.drawn.cohort)),
    "fedpd": ((), lambda q: q.box("fedpd", s=q.step)),
    "scaffold algo.option=1": (
        STEPS,
        lambda q: q.box("scaffold", client_lr=0.02, server_lr=0.7, steps=4, option=1),
    ),
    "scaffold": (
        (*STEPS, SOME),
        lambda q: q.box("scaffold", client_lr=0.02, server_lr=0.7, steps=4, cohorts=q.drawn.cohort),
    ),
    "proxskip algo.probability=0.3": (
        (),
        lambda q: q.box(
            "proxskip",
            gamma=1 / q.L,
            probability=0.3,
            psi_prox=q.psi,
            steps=1 + np.floor(np.log(1 - q.drawn.chances[:, 0]) / np.log(0.7)).astype(int),
        ),
    ),
    "feddr": ((), lambda q: q.box("feddr", eta=q.step, psi_prox=q.psi)),
    "feddr algo.relaxation=1.5 partly": (
        (SOME,),
        lambda q: q.box("feddr", eta=q.step, alpha=1.5, psi_prox=q.psi, cohorts=q.drawn.cohort),
    ),
    "fedadmm": ((), lambda q: q.box("fedadmm", rho=1 / q.step, psi_prox=q.psi)),
    "fedadmm partly": ((SOME,), lambda q: q.box("fedadmm", rho=1 / q.step, psi_prox=q.psi, cohorts=q.drawn.cohort)),
    "fast_fedda": (STEPS, lambda q: q.box("fast_fedda", gamma=2 * q.L, mu=q.l, steps=4, psi_prox=q.psi)),
    "fedcomposite": (STEPS, lambda q: q.box("zhang", eta=0.02, eta_g=0.7, steps=4, psi_prox=q.psi)),
}


@pytest.mark.parametrize("case", BOXES)
def test_agrees_with_its_box(case, tmp_path):
    name, *own = case.split()
    overrides, box = BOXES[case]
    rates = ["algo.client_lr=0.02", "algo.server_lr=0.7"] if name in ("scaffold", "fedcomposite") else []
    own = [text for text in own if "=" in text]
    config = ragged(tmp_path, f"algo={name}", *own, *rates, "reg.strength=0.4", "rounds=15", *overrides, sizes=SIZES)
    ours, theirs = path(config), box(Quadratics(config))
    assert np.abs(theirs[-1]).max() > 0.05
    np.testing.assert_allclose(ours, theirs, atol=1e-11)


# ---------------------------------------------------------------- where they end

EXACT = [
    (name, reg, cohort)
    for name in names("algo")
    if issubclass(kind := plugin_class("algo", name), Algorithm)
    for reg in {"": (), "smooth": ("none",), "composite": ("none", "l1")}[
        prepare(small_for(name, ALL)).algo.exact  # type: ignore[union-attr]
    ]
    for cohort in ((ALL, SOME) if kind.partial and name != "fedgd" else (ALL,))
]


@pytest.mark.parametrize(("name", "reg", "cohort"), EXACT)
def test_reaches_the_optimum(name, reg, cohort, tmp_path):
    """What is marked exact does, in float64, on clients that differ; where it takes part of them, with two of four."""
    rest = ["algo.client_lr=0.02", *STEPS] if name in ("scaffold", "fedcomposite") else []
    strength = ["reg.strength=0.3"] if reg == "l1" else []
    config = ragged(tmp_path, f"algo={name}", f"reg={reg}", *strength, cohort, *rest, "rounds=3000", "eval_every=3000",
                    sizes=SIZES)  # fmt: skip
    experiment = prepare(config)
    with jax.enable_x64(True):
        problem, rows = experiment.problem(experiment.load()), reference.gathered(experiment.load(), "examples")
        *_, best = solver.minimize(problem, rows, 1e-15, 100_000)
    assert best.certified
    if reg == "l1":
        assert 0 < np.count_nonzero(best.w["weights"]) < 6
    np.testing.assert_allclose(path(config)[-1], flat(best.w), atol=1e-8)


def test_at_least_these_are_exact():
    smooth = {name for name, reg, _ in EXACT}
    assert smooth >= {
        "fedgd",
        "fedsplit",
        "feddyn",
        "fedpd",
        "scaffold",
        "proxskip",
        "feddr",
        "fedadmm",
        "fedcomposite",
    }
    composite = {name for name, reg, _ in EXACT if reg == "l1"}
    assert composite >= {"fedsplit", "proxskip", "feddr", "fedadmm", "fedcomposite"}
    assert {"feddyn", "scaffold", "feddr", "fedadmm"} <= {name for name, _, cohort in EXACT if cohort == SOME}


@pytest.mark.parametrize("steps", [2, 10])
def test_fedgd_ends_at_its_wrong_point(steps, tmp_path):
    config = ragged(
        tmp_path, "algo=fedgd", f"algo.steps={steps}", "reg=none", "rounds=2000", "eval_every=2000", sizes=SIZES
    )
    q = Quadratics(config)
    wrong = boxes.fedgd_fixed_point(q.H, q.c, q.p, 1 / q.L, steps)
    np.testing.assert_allclose(path(config)[-1], wrong, atol=1e-8)
    assert np.abs(wrong - boxes.optimum(q.H, q.c, q.p)).max() > 1e-3


@pytest.mark.parametrize("mu", [0.5, 5.0])
def test_fedprox_ends_at_its_wrong_point(mu, tmp_path):
    config = ragged(
        tmp_path, "algo=fedprox", f"algo.mu={mu}", "reg=none", "rounds=2000", "eval_every=2000", sizes=SIZES
    )
    q = Quadratics(config)
    wrong = boxes.fedprox_fixed_point(q.H, q.c, q.p, 1 / mu)
    np.testing.assert_allclose(path(config)[-1], wrong, atol=1e-8)
    assert np.abs(wrong - boxes.optimum(q.H, q.c, q.p)).max() > 1e-3


def test_fedsplit_contracts_as_theorem_1_says(tmp_path):
    config = ragged(tmp_path, "algo=fedsplit", "reg=none", "rounds=60", sizes=SIZES)
    q = Quadratics(config)
    best = boxes.optimum(q.H, q.c, q.p)
    distance = np.linalg.norm(path(config) - best, axis=1)
    dual = q.step * (np.einsum("mij,j->mi", q.H, best) - q.c)  # z* = x* + s grad f(x*)
    start = np.sqrt(q.p @ (np.linalg.norm(best + dual, axis=1) ** 2))
    factor = 1 - 2 / (np.sqrt(q.L / q.l) + 1)
    assert (distance <= start * factor ** np.arange(1, 61) + 1e-12).all()
    assert distance[30] > 1e-12
    assert distance[-1] < 1e-6


def test_fedsplit_on_losses_that_are_not_strongly_convex(tmp_path):
    """Theorem 2: clients with fewer rows than parameters, on f + lambda / 2 ||. - x_1||^2."""
    config = ragged(tmp_path, "algo=fedsplit", "algo.anchor=0.01", "reg=none", "rounds=4000", "eval_every=4000",
                    sizes=(3, 4, 5, 6))  # fmt: skip
    q = Quadratics(config)
    assert np.linalg.eigvalsh(q.H)[:, 0].max() < 1e-9
    np.testing.assert_allclose(path(config)[-1], boxes.optimum(q.H + 0.01 * np.eye(7), q.c, q.p), atol=1e-8)


def test_skipping_communication_ends_elsewhere(tmp_path):
    config = ragged(tmp_path, "algo=fedpd", "algo.skip=0.3", "reg=none", "rounds=400", "eval_every=400", sizes=SIZES)
    q = Quadratics(config)
    assert np.abs(path(config)[-1] - boxes.optimum(q.H, q.c, q.p)).max() > 1e-4


# ---------------------------------------------------------------- client proxes


@pytest.mark.parametrize("solver_of", ["gradient", "accelerated", "newton"])
def test_inner_solvers_come_to_the_closed_form(solver_of, tmp_path):
    rest = ("algo=fedsplit", "reg.strength=0.4", "rounds=5")
    exact = path(ragged(tmp_path, *rest, sizes=SIZES))
    inner = ragged(
        tmp_path, *rest, f"algo.solver={solver_of}", "algo.iterations=2000", "algo.tolerance=1e-12", sizes=SIZES
    )
    np.testing.assert_allclose(path(inner), exact, atol=1e-10)


@pytest.mark.parametrize("solver_of", ["exact", "accelerated"])
@pytest.mark.parametrize(("task", "ridge"), [("binary", 0.0), ("binary", 0.1), ("multiclass", 0.1)])
def test_first_proximal_points_of_logistic_regression(task, ridge, solver_of, tmp_path):
    config = ragged(tmp_path, "algo=fedprox", "algo.mu=0.2", f"algo.solver={solver_of}", "algo.iterations=5000",
                    f"objective.ridge={ridge}", "rounds=1", task=task)  # fmt: skip
    experiment = prepare(config)
    data, expected = experiment.load(), 0.0
    outputs = 3 if task == "multiclass" else 1
    for m, size in enumerate(data.sizes):
        x, y = (part[data.offsets[m] : data.offsets[m + 1]] for part in (data.x, data.y))

        def h(w, x=x, y=y):
            weights, bias = w[: 6 * outputs].reshape(6, outputs), w[6 * outputs :]
            score = x @ weights + bias
            if outputs == 1:
                loss = np.logaddexp(0, score[:, 0]) - y * score[:, 0]
            else:
                loss = np.logaddexp.reduce(score, axis=1) - score[np.arange(len(y)), y]
            return loss.mean() + ridge / 2 * np.sum(weights**2) + 0.2 / 2 * w @ w

        expected += size / len(data.y) * minimize(h, np.zeros(7 * outputs), tol=1e-10).x
    found = snapshots(config)[-1].solution
    np.testing.assert_allclose(flat({k: v[0] for k, v in found.items()}), expected, atol=2e-6)


def test_newton_on_a_loss_that_is_not_convex_lowers_it(tmp_path):
    rest = ("objective=mlp", "objective.hidden=[4]", "reg=none", "rounds=1", "algo.iterations=30")
    config = ragged(tmp_path, "algo=fedprox", "algo.mu=0.05", *rest, task="binary", sizes=(20,))
    start, end = snapshots(config)
    moved = sum(np.sum((end.solution[k] - start.solution[k]) ** 2) for k in end.solution)
    assert moved > 1e-3
    assert end.metrics["train_loss"][0] + 0.05 / 2 * moved < start.metrics["train_loss"][0] - 1e-3


def test_newton_stops_where_rounding_ends_it(tmp_path):
    rest = ("algo=fedprox", "algo.mu=1e-4", "algo.solver=newton", "rounds=2", "eval_every=2")
    exact = ragged(tmp_path, *rest[:2], *rest[3:], sizes=SIZES)
    single = ragged(tmp_path, *rest, sizes=SIZES) | {"precision": "float32"}
    np.testing.assert_allclose(path(single)[-1], path(exact)[-1], rtol=2e-3, atol=2e-3)
    assert snapshots(single)[-1].work[0, 0] < 2 * 78 * 150  # of 2 * 78 examples, not all 100 steps of Newton's method


def test_more_gradients_than_32_bits_hold_are_counted(tmp_path):
    fixed = ("algo=fedgd", "algo.steps=3000000", "algo.step=1e-9", "rounds=1", "objective.intercept=false")
    config = ragged(tmp_path, *fixed, sizes=(1000,), features=1)
    assert snapshots(config)[-1].work[0, 0] == 3 * 10**9


def test_flat_losses_have_no_auto_step(tmp_path):
    config = ragged(tmp_path, "algo=fedgd", "objective.intercept=false", x=np.zeros((20, 6)))
    experiment = prepare(config)
    with fails("algo=fedgd", "flat", "auto"):
        experiment.resolved(experiment.load())


def test_a_gamma_inexact_solve_stops_at_gamma_times_the_gradient(tmp_path):
    rest = ("algo=fedprox", "algo.mu=0.1", "algo.solver=gradient", "algo.iterations=10000", "reg=none", "rounds=1")
    taken, distance = [], []
    exact = path(ragged(tmp_path, "algo=fedprox", "algo.mu=0.1", "reg=none", "rounds=1"))[0]
    for gamma in (0.9, 0.1, 1e-4):
        config = ragged(tmp_path, *rest, f"algo.gamma={gamma}", "algo.tolerance=0", sizes=(20,))
        one, data = path(config)[0], prepare(config).load()
        x = np.column_stack([data.x, np.ones(len(data.y))])
        slope = 2 / 20 * x.T @ (x @ one - data.y) + 0.1 * one
        assert np.linalg.norm(slope) <= gamma * np.linalg.norm(2 / 20 * x.T @ data.y)
        taken.append(snapshots(config)[-1].work[0, 0])
        several = ragged(tmp_path, *rest, f"algo.gamma={gamma}", "algo.tolerance=0")
        distance.append(np.abs(path(several)[0] - exact).max())
    assert taken[0] < taken[1] < taken[2]
    assert distance[0] > distance[1] > distance[2]
    with fails("algo.gamma=0.5", "algo.solver"):
        prepare(ragged(tmp_path, "algo=fedprox", "algo.gamma=0.5"))


@pytest.mark.parametrize("intercept", ["true", "false"])
@pytest.mark.parametrize("ridge", [0.0, 0.2])
@pytest.mark.parametrize("sizes", [(3, 4, 9), SIZES])
def test_bounds_on_the_curvature(sizes, ridge, intercept, tmp_path):
    config = ragged(
        tmp_path, "algo=fedsplit", f"objective.ridge={ridge}", f"objective.intercept={intercept}", sizes=sizes
    )
    experiment = prepare(config)
    data = experiment.load()
    least, most = curvature(experiment.objective, data)
    x = np.column_stack([data.x, np.ones(len(data.y))]) if intercept == "true" else data.x
    diagonal = ridge * np.append(np.ones(6), np.zeros(x.shape[1] - 6))
    values = [
        np.linalg.eigvalsh(2 / (b - a) * x[a:b].T @ x[a:b] + np.diag(diagonal))
        for a, b in zip(data.offsets, data.offsets[1:], strict=False)
    ]
    assert least <= np.min(values) + 1e-12
    assert most >= np.max(values) - 1e-12
    if not (ridge and intercept == "true"):
        np.testing.assert_allclose((least, most), (max(np.min(values), 0), np.max(values)), rtol=1e-10, atol=1e-10)


def test_logistic_bounds_hold_where_it_bends_most(tmp_path):
    experiment = prepare(ragged(tmp_path, "algo=fedsplit", task="binary"))
    data = experiment.load()
    _, most = curvature(experiment.objective, data)
    x = np.column_stack([data.x, np.ones(len(data.y))])
    own = [x[a:b] for a, b in zip(data.offsets, data.offsets[1:], strict=False)]
    np.testing.assert_allclose(most, max(np.linalg.eigvalsh(part.T @ part / 4 / len(part))[-1] for part in own))


def test_the_bounds_are_in_the_summary(tmp_path):
    config = ragged(tmp_path, "algo=fedsplit", "reg=none", sizes=SIZES)
    q, told = Quadratics(config), json.loads((run(config, "run").folder / "summary.json").read_text())["curvature"]
    np.testing.assert_allclose([told["least"], told["most"]], [q.l, q.L])
    np.testing.assert_allclose([told["condition"], told["algo.step"]], [q.L / q.l, q.step])
    given = run(ragged(tmp_path, "algo=fedsplit", "algo.step=0.1", sizes=SIZES), "given")
    assert given.summary["curvature"] is None


def test_what_auto_cannot_know_is_refused(tmp_path):
    with fails("algo=fedsplit", "objective=mlp", "algo.step"):
        prepare(ragged(tmp_path, "algo=fedsplit", "objective=mlp", task="binary"))
    with fails("a value for algo.step", "algo.solver=newton"):
        prepare(ragged(tmp_path, "algo=fedsplit", "objective=mlp", "algo.solver=gradient", task="binary"))
    with fails("algo.step=large", "number", "auto"):
        prepare(small("algo=fedsplit", "algo.step=large"))
    with fails("algo.step=-1.0", "positive"):
        prepare(small("algo=fedsplit", "algo.step=-1"))
    with fails("algo.relaxation=2.5", "at most 2"):
        prepare(small("algo=fedsplit", "algo.relaxation=2.5"))


# ---------------------------------------------------------------- an objective's ridge, and no intercept


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_ridge_is_part_of_every_loss(task, tmp_path):
    """It is psi = l2 with half the strength, but in F."""
    rest = ("algo=centralized", "algo.tolerance=1e-13")
    ridge = run(ragged(tmp_path / "1", *rest, "reg=none", "objective.ridge=0.6", task=task), "ridge")
    penalty = run(ragged(tmp_path / "2", *rest, "reg=l2", "reg.strength=0.3", task=task), "penalty")
    np.testing.assert_allclose(flat(ridge.solution), flat(penalty.solution), atol=1e-8)
    np.testing.assert_allclose(ridge.metrics["objective"].iloc[-1], penalty.metrics["objective"].iloc[-1], rtol=1e-9)


@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_without_an_intercept_there_is_no_bias(task, tmp_path):
    config = ragged(tmp_path, "algo=fedsplit", "reg=none", "objective.intercept=false", "objective.ridge=0.3",
                    "rounds=500", "eval_every=500", sizes=SIZES, task=task)  # fmt: skip
    record = run(config, "run")
    assert set(record.solution) == {"weights"}
    central = run(config | {"algo": {**small("algo=centralized")["algo"], "tolerance": 1e-13}}, "central")
    np.testing.assert_allclose(record.solution["weights"], central.solution["weights"], atol=1e-7)


# ---------------------------------------------------------------- server optimisers


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_server_optimisers_take_the_mean_update_for_a_gradient(name, tmp_path):
    rest = ["algo.client_lr=0.05", "reg=none", "batch_size=4", SOME]
    config = ragged(tmp_path, f"algo={name}", "algo.server_lr=0.3", *rest, "rounds=6", sizes=SIZES)
    made = {
        "fedavgm": optax.sgd(0.3, 0.9),
        "fedadam": optax.adam(0.3, 0.9, 0.99, 1e-3),
        "fedyogi": optax.yogi(0.3, 0.9, 0.99, 1e-3),
        "fedadagrad": optax.adagrad(0.3, eps=1e-3),
    }[name]
    q = Quadratics(config)
    x, w = np.column_stack([q.data.x, np.ones(len(q.data.y))]), np.zeros(7)
    with jax.enable_x64(True):
        state, outputs = made.init(jax.numpy.zeros(7)), []
        for cohort, rows in zip(q.drawn.cohort, q.drawn.rows, strict=True):
            update = np.zeros(7)
            for m, client in zip(cohort, rows, strict=True):
                local = w
                for r in (batch[batch >= 0] for batch in client if (batch >= 0).any()):
                    local = local - 0.05 * 2 / len(r) * x[r].T @ (x[r] @ local - q.data.y[r])
                update += q.p[m] / q.p[cohort].sum() * (local - w)
            step, state = made.update(jax.numpy.asarray(-update), state)
            w = w + np.asarray(step)
            outputs.append(w)
    np.testing.assert_allclose(path(config), outputs, atol=1e-10)


def test_without_momentum_the_dual_optimiser_is_feddualavg(tmp_path):
    rest = ["algo.client_lr=0.03", "algo.server_lr=0.8", "reg.strength=0.4", "batch_size=4", SOME]
    plain = path(ragged(tmp_path, "algo=feddualavg", *rest))
    np.testing.assert_allclose(path(ragged(tmp_path, "algo=feddualopt", "algo.beta1=0", *rest)), plain, atol=1e-12)
    assert np.abs(path(ragged(tmp_path, "algo=feddualopt", *rest)) - plain).max() > 1e-3


def test_momentum_on_the_dual_keeps_the_fixed_point(tmp_path):
    config = ragged(tmp_path, "algo=feddualopt", "algo.client_lr=0.02", "algo.server_lr=0.1", "reg.strength=0.3",
                    "batch_size=null", "rounds=4000", "eval_every=4000", sizes=SIZES)  # fmt: skip
    q = Quadratics(config)
    np.testing.assert_allclose(path(config)[-1], boxes.optimum(q.H, q.c, q.p, q.psi), atol=1e-6)


def test_without_strong_convexity_fast_fedda_is_feddualavg(tmp_path):
    rest = ["reg.strength=0.4", "batch_size=4", SOME]
    fast = ragged(tmp_path, "algo=fast_fedda", "algo.mu=0", "algo.gamma=25", *rest)
    dual = ragged(tmp_path, "algo=feddualavg", "algo.client_lr=0.04", "algo.server_lr=1", *rest)
    np.testing.assert_allclose(path(fast), path(dual), atol=1e-12)


def test_fast_fedda_with_the_nuclear_norm():
    rest = ["data=lowrank", "data.clients=4", "data.samples=12", "data.rows=6", "data.columns=6", "data.rank=2",
            "data.validation_samples=2", "clients_per_round=2", "batch_size=4", "rounds=8", "eval_every=8",
            "precision=float64"]  # fmt: skip
    fast = snapshots(compose(["algo=fast_fedda", "algo.mu=0", "algo.gamma=100", *rest]))[-1]
    dual = snapshots(compose(["algo=feddualavg", "algo.client_lr=0.01", "algo.server_lr=1", *rest]))[-1]
    np.testing.assert_allclose(fast.solution["weights"], dual.solution["weights"], atol=1e-12)
    assert 0 < np.linalg.matrix_rank(fast.solution["weights"][0], tol=1e-6) < 6


# ---------------------------------------------------------------- what is counted, sent, refused and said


@pytest.mark.parametrize(
    ("overrides", "gradients", "proxes"),
    [
        (["algo=fedavg", "batch_size=4"], 20, 0),  # each of 20 examples once a round
        (["algo=feddualavg", "batch_size=4"], 20, 6),  # 1 + 2 + 3 local steps
        (["algo=fedmid", "batch_size=4", "local_epochs=2"], 40, 13),  # twice, and one on the server
        (["algo=fedmid", "batch_size=4", "reg=none"], 20, 0),
        (["algo=fedmid_osp", "batch_size=4"], 20, 1),
        (["algo=scaffold", "batch_size=4", "algo.option=1"], 40, 0),
        (["algo=fedgd", "algo.steps=7"], 140, 0),
        (["algo=fedsplit"], 0, 4),  # three clients in closed form, and psi
        (["algo=fedsplit", "algo.solver=gradient", "algo.iterations=9", "algo.tolerance=0"], 180, 1),
    ],
)
def test_gradients_and_proxes_are_counted(overrides, gradients, proxes, tmp_path):
    metrics = run(ragged(tmp_path, *overrides, "rounds=6", "eval_every=2"), "run").metrics
    assert metrics["grad_evals"].tolist() == [gradients * r for r in (0, 2, 4, 6)]
    assert metrics["prox_evals"].tolist() == [proxes * r for r in (0, 2, 4, 6)]


def test_steps_of_a_random_number_are_counted(tmp_path):
    config = ragged(tmp_path, "algo=proxskip", "algo.probability=0.3", "rounds=8")
    q = Quadratics(config)
    steps = 1 + np.floor(np.log(1 - q.drawn.chances[:, 0]) / np.log(0.7)).astype(int)
    assert len(set(steps)) > 2
    assert [s.work[0, 0] for s in snapshots(config)] == [0, *(20 * np.cumsum(steps))]


@pytest.mark.parametrize(
    ("name", "up", "down"),
    [("scaffold", 14, 14), ("fedadam", 7, 7), ("feddr", 7, 7), ("fedcomposite", 8, 7), ("fast_fedda", 15, 15)],
)
def test_only_what_a_client_needs_is_sent(name, up, down, tmp_path):
    metrics = run(ragged(tmp_path, f"algo={name}", "rounds=1"), "run").metrics
    assert metrics["bytes_up"].iloc[-1] == 3 * 8 * up
    assert metrics["bytes_down"].iloc[-1] == 3 * 8 * down


@pytest.mark.parametrize("name", ["fedsplit", "proxskip", "fedpd", "fedcomposite"])
def test_what_needs_all_clients_says_so(name):
    with fails(f"algo={name}", "clients_per_round=null"):
        prepare(small(f"algo={name}")).load()


def test_what_takes_all_data_leaves_no_batches():
    assert prepare(small("algo=fedgd")).config["batch_size"] is None
    with fails("algo=fedgd", "local_steps"):
        prepare(small("algo=fedgd", "local_steps=3"))


@pytest.mark.parametrize("name", ["fedavg", "fedavg_subgradient", "fedsplit", "fast_fedda"])
def test_mirror_maps_that_would_do_nothing_are_refused(name):
    with fails(f"algo={name}", "mirror=p_norm"):
        prepare(small(f"algo={name}", "mirror=p_norm"))


def test_what_leaves_psi_out_says_so(capsys):
    with Console() as watch:
        record = run(small("algo=fedavg"), "fedavg", watch)
    said, log = capsys.readouterr().out, (record.folder / "run.log").read_text()
    for text in (said, log):
        assert "algo=fedavg leaves psi out: reg=l1 is measured, not minimised" in text
    assert said.index("leaves psi out") < said.index("round 0")
    for overrides in (["algo=fedavg", "reg=none"], ["algo=feddualavg"], ["algo=fedmid_osp"]):
        assert prepare(small(*overrides)).remark == ""
