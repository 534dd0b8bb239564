"""Client proxes: the inner solvers against closed forms, and their stopping rules."""

import numpy as np
import pytest
from helpers import fails, flat, ragged, snapshots
from quadratics import SIZES, outputs_by_round
from scipy.optimize import minimize

from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["gradient", "accelerated", "newton"])
def test_inner_solvers_reach_the_closed_form(solver, tmp_path):
    rest = ("algo=fedsplit", "reg.strength=0.4", "rounds=5")
    exact = outputs_by_round(ragged(tmp_path, *rest, sizes=SIZES))
    inner = ragged(
        tmp_path, *rest, f"algo.solver={solver}", "algo.iterations=2000", "algo.tolerance=1e-12", sizes=SIZES
    )
    np.testing.assert_allclose(outputs_by_round(inner), exact, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["exact", "accelerated"])
@pytest.mark.parametrize(("task", "ridge"), [("binary", 0.0), ("binary", 0.1), ("multiclass", 0.1)])
def test_proximal_points_of_logistic_regression_are_those_of_scipy(task, ridge, solver, tmp_path):
    config = ragged(tmp_path, "algo=fedprox", "algo.mu=0.2", f"algo.solver={solver}", "algo.iterations=5000",
                    f"objective.ridge={ridge}", "rounds=1", task=task)  # fmt: skip
    experiment = prepare(config)
    data, expected = load_data(experiment), 0.0
    outputs = 3 if task == "multiclass" else 1
    for m, size in enumerate(data.train.sizes):
        x, y = (part[data.train.offsets[m] : data.train.offsets[m + 1]] for part in (data.train.x, data.train.y))

        def h(w, x=x, y=y):
            weights, bias = w[: 6 * outputs].reshape(6, outputs), w[6 * outputs :]
            score = x @ weights + bias
            if outputs == 1:
                loss = np.logaddexp(0, score[:, 0]) - y * score[:, 0]
            else:
                loss = np.logaddexp.reduce(score, axis=1) - score[np.arange(len(y)), y]
            return loss.mean() + ridge / 2 * np.sum(weights**2) + 0.2 / 2 * w @ w

        expected += size / len(data.train.y) * minimize(h, np.zeros(7 * outputs), tol=1e-10).x
    solution = snapshots(config)[-1].solution
    np.testing.assert_allclose(flat({k: v[0] for k, v in solution.items()}), expected, atol=2e-6)


@pytest.mark.slow
def test_newton_lowers_a_loss_that_is_not_convex(tmp_path):
    rest = ("objective=mlp", "objective.hidden=[4]", "reg=none", "rounds=1", "algo.iterations=30")
    config = ragged(tmp_path, "algo=fedprox", "algo.mu=0.05", *rest, task="binary", sizes=(20,))
    start, end = snapshots(config)
    moved = sum(np.sum((end.solution[k] - start.solution[k]) ** 2) for k in end.solution)
    assert moved > 1e-3
    assert end.metrics["train_loss"][0] + 0.05 / 2 * moved < start.metrics["train_loss"][0] - 1e-3


@pytest.mark.slow
def test_newton_stops_when_rounding_prevents_progress(tmp_path):
    rest = ("algo=fedprox", "algo.mu=1e-4", "algo.solver=newton", "rounds=2", "eval_every=2")
    exact = ragged(tmp_path, *rest[:2], *rest[3:], sizes=SIZES)
    single = ragged(tmp_path, *rest, sizes=SIZES) | {"precision": "float32"}
    np.testing.assert_allclose(outputs_by_round(single)[-1], outputs_by_round(exact)[-1], rtol=2e-3, atol=2e-3)
    assert snapshots(single)[-1].work[0, 0] < 2 * 78 * 150  # of 2 * 78 examples, not all 100 steps of Newton's method


@pytest.mark.slow
def test_a_gamma_inexact_solve_stops_at_gamma_times_the_gradient(tmp_path):
    rest = ("algo=fedprox", "algo.mu=0.1", "algo.solver=gradient", "algo.iterations=10000", "reg=none", "rounds=1")
    gradients = []
    distance = []
    exact = outputs_by_round(ragged(tmp_path, "algo=fedprox", "algo.mu=0.1", "reg=none", "rounds=1"))[0]
    for gamma in (0.9, 0.1, 1e-4):
        config = ragged(tmp_path, *rest, f"algo.gamma={gamma}", "algo.tolerance=0", sizes=(20,))
        one, data = outputs_by_round(config)[0], load_data(prepare(config))
        x = np.column_stack([data.train.x, np.ones(len(data.train.y))])
        slope = 2 / 20 * x.T @ (x @ one - data.train.y) + 0.1 * one
        assert np.linalg.norm(slope) <= gamma * np.linalg.norm(2 / 20 * x.T @ data.train.y)
        gradients.append(snapshots(config)[-1].work[0, 0])
        several = ragged(tmp_path, *rest, f"algo.gamma={gamma}", "algo.tolerance=0")
        distance.append(np.abs(outputs_by_round(several)[0] - exact).max())
    assert gradients[0] < gradients[1] < gradients[2]
    assert distance[0] > distance[1] > distance[2]
    with fails("algo.gamma=0.5", "algo.solver"):
        prepare(ragged(tmp_path, "algo=fedprox", "algo.gamma=0.5"))
