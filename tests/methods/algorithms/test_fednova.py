"""FedNova against a loop in NumPy, FedAvg, and the optimum; FedExProx against FedProx."""

import jax
import numpy as np
import pytest

from fcorun.interface.checks.problems import ragged, snapshots

SIZES = (3, 7, 20)
BATCHES = ("local_epochs=1", "batch_size=1", "client_weighting=uniform", "clients_per_round=null")


def solution(config):
    with jax.enable_x64(True):
        end = snapshots(config)[-1].solution
    return np.append(end["weights"][0], end["bias"][0])


def least_squares_of(folder):
    rows = np.load(folder / "rows.npz")
    x = np.column_stack([rows["X"], np.ones(len(rows["y"]))])
    return [(x[rows["client"] == m], rows["y"][rows["client"] == m]) for m in range(len(SIZES))]


@pytest.mark.slow
def test_a_round_is_that_of_the_paper(tmp_path):
    """With one batch of all rows the order of the rows does not matter, and steps are counted by hand."""
    options = ("algo=fednova", "algo.client_lr=0.02", "algo.server_lr=0.7", "client_weighting=uniform", "rounds=3")
    config = ragged(tmp_path, *options, "local_epochs=2", "batch_size=null", sizes=SIZES)
    w = np.zeros(7)
    for _ in range(3):
        directions = []
        for x, y in least_squares_of(tmp_path):
            local = w
            for _ in range(2):
                local = local - 0.02 * 2 * x.T @ (x @ local - y) / len(y)
            directions.append((local - w) / 2)
        w = w + 0.7 * 2 * np.mean(directions, axis=0)
    np.testing.assert_allclose(solution(config), w, atol=1e-12)


@pytest.mark.slow
def test_with_equal_numbers_of_steps_it_is_fedavg(tmp_path):
    options = ("algo.client_lr=0.02", "local_epochs=null", "local_steps=4", "batch_size=2", "rounds=3")
    one, other = (solution(ragged(tmp_path, f"algo={name}", *options, sizes=SIZES)) for name in ("fednova", "fedavg"))
    np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.slow
def test_clients_of_more_steps_do_not_weigh_more(tmp_path):
    """Small steps leave little drift: FedNova ends near the optimum, and FedAvg at that of other weights.

    FedCanon and FedNMap, which claim the same, send means over their steps, too.
    """
    rates = ("reg=none", "algo.client_lr=0.002", "rounds=2000", "eval_every=2000", *BATCHES)
    ends = {}
    for name in ("fednova", "fedcanon", "fednmap", "fedavg"):
        ends[name] = solution(ragged(tmp_path, f"algo={name}", *rates, sizes=SIZES))
    data = least_squares_of(tmp_path)

    def optimum(weights):
        hessian = sum(p * x.T @ x / len(y) for p, (x, y) in zip(weights, data, strict=True))
        return np.linalg.solve(hessian, sum(p * x.T @ y / len(y) for p, (x, y) in zip(weights, data, strict=True)))

    uniform, by_steps = optimum(np.ones(3)), optimum(np.array(SIZES, float))
    apart = np.linalg.norm(uniform - by_steps)
    for name in ("fednova", "fedcanon", "fednmap"):
        assert np.linalg.norm(ends[name] - uniform) < 0.25 * apart, name
    assert np.linalg.norm(ends["fedavg"] - by_steps) < 0.25 * apart


@pytest.mark.slow
@pytest.mark.parametrize("extrapolation", [0.5, 1.5])
def test_extrapolation_keeps_the_fixed_point_of_fedprox(tmp_path, extrapolation):
    options = ("algo=fedprox", "algo.mu=1", "rounds=400", "eval_every=400")
    plain = solution(ragged(tmp_path, *options, sizes=SIZES))
    other = solution(ragged(tmp_path, *options, f"algo.extrapolation={extrapolation}", sizes=SIZES))
    np.testing.assert_allclose(other, plain, atol=1e-8)
    first = [
        solution(ragged(tmp_path, *options[:2], "rounds=1", f"algo.extrapolation={e}", sizes=SIZES)) for e in (1, 2)
    ]
    np.testing.assert_allclose(first[1], 2 * first[0], atol=1e-12)
