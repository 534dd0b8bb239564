"""Algorithms with a model for each client: boxes, fixed points and identities."""

import boxes
import numpy as np
import personal_boxes as personal
import personal_fixed_points
import pytest
from helpers import flat, ragged, snapshots
from quadratics import SIZES, Quadratics, client_models_by_round, outputs_by_round, own_models

from fcorun import run

SOME = "clients_per_round=2"
STEPS = ("local_epochs=null", "local_steps=3")
SMOOTH = ("reg=l1", "reg.strength=0.4", "reg.apply_to=[weights,bias]", "algo.tolerance=1e-10")


def geometric(draws, probability):
    return 1 + np.floor(np.log(1 - draws) / np.log(1 - probability)).astype(int)


def coin_flips(q, probability):
    """Return the coin flips of L2GD, 1 for a pull, and the last flip of each round."""
    steps = geometric(q.drawn.shared_uniforms[:, 0], probability)
    pulls = geometric(q.drawn.shared_uniforms[:, 1], 1 - probability)
    flips = np.concatenate([np.repeat([0, 1], counts) for counts in zip(steps, pulls, strict=True)])
    return list(flips), np.cumsum(steps + pulls) - 1


def l2gd(q, lam, probability):
    flips, ends = coin_flips(q, probability)
    step = 0.04 * len(q.p)  # alpha = n * algo.step
    points, models = personal.mixture(q.H, q.c, q.p, np.zeros(7), flips, step, lam, probability)
    return np.array(points)[ends], np.array(models)[ends]


PFEDMAC = ("algo.lam={lam}", "algo.client_lr={eta}", "algo.server_lr=0.9", *STEPS)
BOXES = {
    "local": (("algo.client_lr=0.02",), lambda q: q.personal("apfl", 0.02, 1, np.ones(4))),
    "apfl algo.alpha=0.3": (
        ("algo.client_lr=0.02", *STEPS),
        lambda q: q.personal("apfl", 0.02, 3, np.full(4, 0.3)),
    ),
    "apfl algo.adaptive=true": (
        ("algo.client_lr=0.02", *STEPS, SOME),
        lambda q: q.personal("apfl", 0.02, 3, np.full(4, 0.5), adaptive=True, cohorts=q.drawn.cohort),
    ),
    "ditto": (
        ("algo.client_lr=0.02", "algo.personal_lr=0.03", "algo.lam=0.5", *STEPS, SOME),
        lambda q: q.personal("ditto", 0.02, 3, 0.5, 0.03, 3, cohorts=q.drawn.cohort),
    ),
    "pfedme": (
        ("algo.lam=2", "algo.client_lr=0.3", "algo.server_lr=0.9", *STEPS, SOME),
        lambda q: q.personal("pfedme", 2.0, 0.3, 3, 0.9, cohorts=q.drawn.cohort),
    ),
    "pfedme algo.solver=gradient": (
        ("algo.lam=2", "algo.client_lr=0.3", "algo.server_lr=0.9", *STEPS, "algo.iterations=500", SMOOTH[-1]),
        lambda q: q.personal("pfedme", 2.0, 0.3, 3, 0.9),
    ),
    "mixture": (
        ("algo.lam=0.6", "algo.step=0.04", "algo.probability=0.3"),
        lambda q: l2gd(q, 0.6, 0.3),
    ),
    "pfedmac": (PFEDMAC, lambda q: q.personal("pfedmac", 0.8 * q.l, 0.7 / q.l, 3, 0.9)),
    "pfedmac_s": (
        (*PFEDMAC, *SMOOTH, "algo.iterations=5000"),
        lambda q: q.personal("pfedmac", 0.8 * q.l, 0.7 / q.l, 3, 0.9, inner=personal.l1(0.4)),
    ),
    "pfedmac_s algo.solver=gradient": (
        (*PFEDMAC, *SMOOTH, "algo.iterations=50000", SOME),
        lambda q: q.personal("pfedmac", 0.8 * q.l, 0.7 / q.l, 3, 0.9, inner=personal.l1(0.4), cohorts=q.drawn.cohort),
    ),
    "pfedmac_s algo.sparsity=logcosh": (
        (*PFEDMAC, *SMOOTH, "algo.rho=0.1"),
        lambda q: q.personal("pfedmac", 0.8 * q.l, 0.7 / q.l, 3, 0.9, inner=personal.logcosh(0.4, 0.1)),
    ),
    "pfedmac_s algo.sparsity=huber": (
        (*PFEDMAC, *SMOOTH, "algo.rho=0.1"),
        lambda q: q.personal("pfedmac", 0.8 * q.l, 0.7 / q.l, 3, 0.9, inner=personal.huber(0.4, 0.1)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BOXES)
def test_algorithms_agree_with_their_boxes(case, tmp_path):
    overrides, box = BOXES[case]
    rest = ["reg=none"] if "reg=l1" not in overrides else []
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    texts = [text.format(lam=0.8 * q.l, eta=0.7 / q.l) for text in overrides]
    name, *options = case.split()
    config = ragged(tmp_path, f"algo={name}", *options, *rest, "rounds=12", *texts, sizes=SIZES)
    points, expected = box(Quadratics(config))
    assert np.abs(expected[-1] - expected[-1].mean(axis=0)).max() > 0.05
    np.testing.assert_allclose(client_models_by_round(config), expected, atol=1e-8)
    if name != "local":
        np.testing.assert_allclose(outputs_by_round(config), points, atol=1e-8)


@pytest.mark.slow
def test_pfedmac_sh_agrees_with_its_box(tmp_path):
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    lam = 0.8 * q.l
    options = (f"algo.lam={lam}", f"algo.client_lr={0.7 / lam}", "algo.server_lr=0.9", *STEPS)
    tree = ("topology=tree", "topology.edges=2", "topology.rounds=2", "algo.edge_lam=0.5", "algo.edge_lr=1.2")
    for smooth, inner in ((("reg=none", SMOOTH[-1]), personal.solve), (SMOOTH, personal.l1(0.4))):
        config = ragged(tmp_path, "algo=pfedmac_sh", "algo.iterations=5000", *smooth, *options, *tree, "rounds=12",
                        sizes=SIZES)  # fmt: skip
        edges = [[0, 1], [2, 3]]
        points, expected = Quadratics(config).personal(
            *("pfedmac_sh", edges, lam, 0.5, 0.7 / lam, 1.2, 3, 2, 0.9), inner=inner
        )
        np.testing.assert_allclose(outputs_by_round(config), points, atol=1e-8)
        np.testing.assert_allclose(client_models_by_round(config), expected, atol=1e-8)


# ---------------------------------------------------------------- fixed points

LONG = ("rounds=4000", "eval_every=4000", "reg=none")


def run_to_end(tmp_path, name, *overrides, **options):
    """Return the final point and the final models of a run of many rounds."""
    config = ragged(tmp_path, f"algo={name}", *LONG, *overrides, sizes=SIZES, **options)
    *_, last = snapshots(config)
    return flat({k: v[0] for k, v in last.solution.items()}), own_models(last)


@pytest.fixture
def q(tmp_path):
    return Quadratics(ragged(tmp_path, sizes=SIZES))


def assert_near(actual, closed):
    np.testing.assert_allclose(actual, closed, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("eta", "steps"), [(0.5, 1), (0.2, 4)])
def test_pfedme_ends_at_its_fixed_point(eta, steps, q, tmp_path):
    x, models = run_to_end(
        tmp_path, "pfedme", "algo.lam=2", f"algo.client_lr={eta}", "local_epochs=null", f"local_steps={steps}"
    )
    h, c = personal.envelopes(q.H, q.c, 2.0)
    assert_near(x, boxes.fedgd_fixed_point(h, c, q.p, eta, steps))
    if steps == 1:
        assert_near(models, [boxes.prox(q.H[i], q.c[i], 0.5, x) for i in range(4)])


@pytest.mark.slow
def test_pfedmac_ends_at_its_optimum(q, tmp_path):
    lam = 0.8 * q.l
    x, models = run_to_end(tmp_path, "pfedmac", f"algo.lam={lam}", f"algo.client_lr={1 / lam}")
    closed, closed_models = personal_fixed_points.pfedmac_optimum(q.H, q.c, q.p, lam)
    assert_near(x, closed)
    assert_near(models, closed_models)


@pytest.mark.slow
def test_sparse_pfedmac_ends_at_its_optimum(q, tmp_path):
    lam = 0.8 * q.l
    x, models = run_to_end(
        tmp_path,
        "pfedmac_s",
        f"algo.lam={lam}",
        f"algo.client_lr={1 / lam}",
        *SMOOTH,
        "rounds=1500",
        "eval_every=1500",
        "algo.iterations=2000",
    )
    closed, closed_models = personal_fixed_points.pfedmac_optimum(q.H, q.c, q.p, lam, boxes.soft(0.4))
    assert_near(x, closed)
    assert_near(models, closed_models)
    assert 0 < np.count_nonzero(models == 0) < models.size
    np.testing.assert_array_equal(models == 0, closed_models == 0)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "edge_rounds"), [(1, 1), (3, 2)])
def test_pfedmac_sh_ends_at_its_fixed_point(steps, edge_rounds, q, tmp_path):
    """With one step of clients and of edges the fixed point is pFedMac's optimum, whatever lambda_2 is."""
    lam = 0.8 * q.l
    tree = ["topology=tree", "topology.map=[0,1,1,0]", f"topology.rounds={edge_rounds}"]
    x, models = run_to_end(
        tmp_path,
        "pfedmac_sh",
        f"algo.lam={lam}",
        f"algo.client_lr={0.7 / lam}",
        "algo.edge_lam=0.5",
        "algo.edge_lr=1.2",
        *tree,
        "local_epochs=null",
        f"local_steps={steps}",
        "algo.iterations=2000",
        SMOOTH[-1],
        "rounds=1000",
        "eval_every=1000",
    )
    edges = [[0, 3], [1, 2]]
    closed = personal_fixed_points.pfedmac_sh_fixed_point(
        q.H, q.c, q.p, edges, lam, 0.5, 0.7 / lam, 1.2, steps, edge_rounds
    )
    assert_near(x, closed)
    if steps == edge_rounds == 1:
        assert_near(x, personal_fixed_points.pfedmac_optimum(q.H, q.c, q.p, lam)[0])
        assert_near(models, [np.linalg.solve(h, c + lam * x) for h, c in zip(q.H, q.c, strict=True)])


@pytest.mark.slow
def test_mixture_with_variance_reduction_ends_at_its_optimum(q, tmp_path):
    best = personal_fixed_points.mixture_optimum(q.H, q.c, q.p, 0.6)
    x, models = run_to_end(tmp_path, "mixture", "algo.lam=0.6", "algo.variance_reduction=true")
    assert_near(models, best)
    assert_near(x, q.p @ best)
    plain = run_to_end(tmp_path, "mixture", "algo.lam=0.6")[1]
    assert 1e-3 < np.abs(plain - best).max() < 1  # the distance from the optimum is of the order of the step


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "s"), [("fedavg", 0.02), ("feddualavg", 0.02)])
def test_ditto_ends_at_its_fixed_point(solver, s, q, tmp_path):
    x, models = run_to_end(tmp_path, "ditto", f"algo.solver={solver}", f"algo.client_lr={s}", "algo.lam=0.5", *STEPS)
    w = boxes.fedgd_fixed_point(q.H, q.c, q.p, s, 3)
    assert_near(x, w)
    assert_near(models, [np.linalg.solve(q.H[i] + 0.5 * np.eye(7), q.c[i] + 0.5 * w) for i in range(4)])


@pytest.mark.slow
def test_apfl_ends_at_its_fixed_point(q, tmp_path):
    s = 1 / q.L
    x, models = run_to_end(
        tmp_path, "apfl", f"algo.client_lr={s}", "algo.alpha=0.6", *STEPS, "rounds=20000", "eval_every=20000"
    )
    w, closed = personal_fixed_points.apfl_fixed_point(q.H, q.c, q.p, s, 3, np.full(4, 0.6))
    assert_near(x, w)
    assert_near(models, closed)


@pytest.mark.slow
def test_local_ends_at_local_optima(q, tmp_path):
    _, models = run_to_end(tmp_path, "local", f"algo.client_lr={1 / q.L}", "rounds=20000", "eval_every=20000")
    assert_near(models, np.linalg.solve(q.H, q.c[..., None])[..., 0])


# ---------------------------------------------------------------- identities


@pytest.mark.slow
def test_pfedmac_is_pfedme_without_its_quadratic_term(tmp_path):
    """pFedMac with the quadratic term added to each f has the iterates of pFedMe."""
    rest = ("algo.lam=2", "algo.client_lr=0.3", "batch_size=5", "clients_per_round=2", "reg=none", "rounds=8")
    one, other = (ragged(tmp_path, *algo, *rest, sizes=SIZES) for algo in (["algo=pfedme"],
                  ["algo=pfedmac", "algo.ridge=2"]))  # fmt: skip
    np.testing.assert_allclose(outputs_by_round(one), outputs_by_round(other), atol=1e-12)
    np.testing.assert_allclose(client_models_by_round(one), client_models_by_round(other), atol=1e-12)


@pytest.mark.slow
def test_the_mixture_has_local_training_and_consensus_as_limits(q, tmp_path):
    local_training = (
        "algo.lam=0",
        "algo.probability=0.5",
        f"algo.step={0.5 / q.L}",
        "rounds=20000",
        "eval_every=20000",
    )
    _, models = run_to_end(tmp_path, "mixture", *local_training)
    assert_near(models, np.linalg.solve(q.H, q.c[..., None])[..., 0])
    x, models = run_to_end(
        tmp_path, "mixture", "algo.lam=1e6", "algo.probability=0.5", "algo.step=5e-7"
    )  # step lam / p = 1
    assert_near(models, np.tile(x, (4, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("ridge", [1e-9, 1e-7, 1e-4])
def test_a_small_ridge_does_not_magnify_rounding(precision, ridge, tmp_path):
    """Outside of a basis of all directions lies rounding alone, which must not be divided by the ridge."""
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    rest = [f"algo.lam={q.l}", "reg=none", f"precision={precision}", "rounds=30", "eval_every=30"]
    none, some = (
        ragged(tmp_path, "algo=pfedmac", f"algo.ridge={value}", *rest, sizes=SIZES) for value in (1e-12, ridge)
    )
    one, other = (run(config, f"r{i}").personal["weights"] for i, config in enumerate((none, some)))
    np.testing.assert_allclose(one, other, atol=0.01)
