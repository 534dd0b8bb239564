"""Frank-Wolfe and FedFW: boxes in plain NumPy, rates, bytes of extreme points, and oracles of constraint sets."""

from itertools import product

import numpy as np
import pytest
from helpers import fails, flat, ragged, rows_of, small, snapshots
from quadratics import SIZES, Quadratics

from fcorun import compose, run
from fcorun.experiment.build import load_data
from fcorun.experiment.optimality_gap import advise
from fcorun.experiment.prepare import prepare
from fcorun.methods.regularizers import Box, L1Ball, LInfBall, NuclearBall, Simplex

RUN = ("algo=fed_frank_wolfe", "objective.intercept=false", "clients_per_round=null")


def _vertex(gradient, radius):
    """Return the vertex of the l1 ball with the smallest inner product with ``gradient``."""
    entry = np.abs(gradient).argmax()
    return -radius * np.sign(gradient[entry]) * np.eye(len(gradient))[entry]


def _fed_frank_wolfe(q, penalty, radius, rounds):
    """Take the steps of docs/equations on the losses x'Hx / 2 - c'x without the intercept."""
    H, c = q.H[:, :6, :6], q.c[:, :6]
    x, server, outputs = np.zeros((len(q.p), 6)), np.zeros(6), []
    for k in range(1, rounds + 1):
        weight, step = penalty * np.sqrt(k + 1), 2 / (k + 1)
        gradients = [H[m] @ x[m] - c[m] + weight * (x[m] - server) for m in range(len(q.p))]
        points = np.array([_vertex(gradient, radius) for gradient in gradients])
        x = (1 - step) * x + step * points
        server = (1 - step) * server + step * q.p @ points
        outputs.append(server)
    return np.array(outputs)


@pytest.mark.slow
def test_a_run_takes_the_steps_of_its_box(tmp_path):
    rest = ["reg=l1_ball", "reg.radius=1.5", "algo.penalty=0.4", "rounds=12", "eval_every=1"]
    config = ragged(tmp_path, *RUN, *rest, sizes=SIZES)
    outputs = np.array([flat({k: v[0] for k, v in s.solution.items()}) for s in snapshots(config)])[1:]
    expected = _fed_frank_wolfe(Quadratics(config), 0.4, 1.5, 12)
    np.testing.assert_allclose(outputs, expected, atol=1e-12)
    assert np.abs(expected).sum(axis=1).max() <= 1.5 + 1e-12
    assert len(np.unique(expected.round(6), axis=0)) == 12


SERVER_STEPS = ("algo=frank_wolfe", *RUN[1:], "reg=l1_ball", "reg.radius=1.5")


@pytest.mark.parametrize("order", [2, 1])
def test_steps_of_the_server_are_those_of_its_box(order, tmp_path):
    config = ragged(
        tmp_path, *SERVER_STEPS, f"algo.order={order}", "batch_size=null", "rounds=12", "eval_every=1", sizes=SIZES
    )
    q, x, expected = Quadratics(config), np.zeros(6), []
    for k in range(1, 13):
        gradient = q.p @ np.array([H[:6, :6] @ x - c[:6] for H, c in zip(q.H, q.c, strict=True)])
        x = x + order / (k + order - 1) * (_vertex(gradient, 1.5) - x)
        expected.append(x)
    outputs = [flat({name: value[0] for name, value in s.solution.items()}) for s in snapshots(config)[1:]]
    np.testing.assert_allclose(outputs, expected, atol=1e-12)
    assert len(np.unique(np.round(expected, 6), axis=0)) == 12


@pytest.mark.parametrize(("unit", "noise_by"), [("client", "server"), ("row", "server"), ("row", "clients")])
def test_clipped_gradients_of_noise_point_elsewhere(unit, noise_by, tmp_path):
    """Without noise the run is as it is without privacy; with much of it all vertices are about as likely."""
    pytest.importorskip("dp_accounting")
    base = (*SERVER_STEPS, "data.clients=100", "local_steps=1", "batch_size=null", "rounds=200", "precision=float64")
    private = ("privacy=gaussian", f"privacy.unit={unit}", f"privacy.noise_by={noise_by}", "privacy.clip=1e3")
    plain, quiet, noisy = (
        snapshots(small(*base, *more))[-1].solution["weights"][0]
        for more in ((), (*private, "privacy.noise=1e-18"), (*private, "privacy.noise=1e6"))
    )
    np.testing.assert_allclose(quiet, plain, rtol=1e-9)
    assert (np.abs(noisy) > 0).sum() > 1.5 * (np.abs(plain) > 0).sum()


@pytest.mark.slow
def test_the_suboptimality_of_steps_of_the_server_falls_with_the_rounds(tmp_path):
    """F(x_k) - F* is O(1 / k): a hundred times the rounds leave a fiftieth of it."""
    rest = ["batch_size=null", "rounds=3000", "eval_every=30", "reference=true"]
    record = run(ragged(tmp_path, *SERVER_STEPS, *rest, sizes=SIZES), tmp_path / "run")
    suboptimality = record.metrics["suboptimality"].to_numpy(float)
    assert 0 <= suboptimality[-1] <= suboptimality[1] / 50
    assert record.metrics["prox_evals"].iloc[-1] == 0


@pytest.mark.slow
def test_the_suboptimality_falls_as_the_paper_says(tmp_path):
    """F(x_k) - F* is O(k^(-1/2)): a hundred times the rounds leave at most a tenth of it. Each model is feasible."""
    rest = ["reg=l1_ball", "reg.radius=1.5", "algo.penalty=2.5", "rounds=3000", "eval_every=30", "reference=true"]
    record = run(ragged(tmp_path, *RUN, *rest, sizes=SIZES), tmp_path / "run")
    suboptimality = record.metrics["suboptimality"].to_numpy(float)
    assert 0 < suboptimality[-1] <= suboptimality[1] / 10
    assert record.metrics["violation"].to_numpy(float).max() <= 1e-12
    assert record.metrics["prox_evals"].iloc[-1] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reg", "size"),
    [
        ("l1_ball", 4 + 4),  # an index, and a number
        ("simplex", 4 + 4),
        ("linf_ball", 4 + 3),  # the radius, and a bit for each of 20 entries
        ("box", 8 + 3),
        ("l2_ball", 20 * 4),
    ],
)
def test_bytes_are_those_of_an_extreme_point(reg, size, tmp_path):
    record = run(small(*RUN, f"reg={reg}", "rounds=2"), tmp_path / "run")
    assert record.metrics["bytes_up"].iloc[-1] == 2 * 6 * size


@pytest.mark.slow
def test_a_matrix_of_rank_one_is_two_vectors(tmp_path):
    matrices = ("data=lowrank", "data.rows=5", "data.columns=4", "data.rank=2", "data.clients=3", "data.samples=20")
    rest = ("data.validation_samples=4", "reg=nuclear_ball", "reg.radius=2", "rounds=1", "eval_every=1")
    record = run(compose([*RUN, *matrices, *rest]), tmp_path / "run")
    assert record.metrics["bytes_up"].iloc[-1] == 3 * (5 + 4) * 4
    mean = np.linalg.svd(record.solution["weights"], compute_uv=False)
    assert 1 < mean.sum() <= 2 * (1 + 1e-5)
    assert np.count_nonzero(mean > 1e-5) <= 3  # of three matrices of rank one


def test_a_run_above_the_optimum_is_advised_to_go_on(tmp_path):
    experiment = prepare(ragged(tmp_path, *RUN, "reg=l1_ball", sizes=SIZES))
    assert advise(experiment, load_data(experiment), falling=False).endswith("more rounds may help")


# ---------------------------------------------------------------- minimizers of linear functions


def _vertices_of_cube(low, high):
    return np.array(list(product((low, high), repeat=4)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("reg", "vertices"),
    [
        (L1Ball(radius=1.5), 1.5 * np.concatenate([np.eye(4), -np.eye(4)])),
        (Simplex(total=2.0), 2.0 * np.eye(4)),
        (LInfBall(radius=0.5), _vertices_of_cube(-0.5, 0.5)),
        (Box(lower=-1.0, upper=3.0), _vertices_of_cube(-1, 3)),
    ],
)
def test_the_minimizer_is_the_best_of_all_vertices(reg, vertices):
    for gradient in np.random.default_rng(0).standard_normal((5, 4)):
        best = vertices[(vertices @ gradient).argmin()]
        np.testing.assert_allclose(reg.linear_minimizer(gradient), best, atol=1e-15)


@pytest.mark.usefixtures("x64")
def test_the_minimizer_of_the_nuclear_ball_has_rank_one_and_the_dual_norm():
    gradient = np.random.default_rng(0).standard_normal((4, 3))
    point = np.asarray(NuclearBall(radius=2.0).linear_minimizer(gradient))
    np.testing.assert_allclose(np.linalg.svd(point, compute_uv=False), [2, 0, 0], atol=1e-14)
    assert (gradient * point).sum() == pytest.approx(-2 * np.linalg.norm(gradient, 2), rel=1e-14)


@pytest.mark.slow
def test_an_intercept_may_have_a_ball_of_its_own(tmp_path):
    with fails("leaves bias free", "objective.intercept=false"):
        prepare(small("algo=fed_frank_wolfe", "reg=l1_ball", "clients_per_round=null"))
    bounded = ("algo=fed_frank_wolfe", "reg=l1_ball", "reg.apply_to=[weights,bias]", "clients_per_round=null")
    record = run(small(*bounded, "rounds=3"), tmp_path / "run")
    assert float(np.abs(record.solution["bias"])) <= record.config["reg"]["radius"]
    assert rows_of(record)["violation"].to_numpy(float).max() <= 1e-5
