"""FedAc against its box in NumPy, and its acceleration; Fed-HT and FedIter-HT against theirs."""

import boxes
import numpy as np
import pytest
from helpers import ragged
from quadratics import Quadratics, outputs_by_round

SIZES = (12, 20, 16, 30)
STEPS = ("local_epochs=null", "local_steps=4")


def fedac(q, rounds, eta, gamma, mu, variant, steps):
    alpha = 1 / (gamma * mu) if variant == 1 else 3 / (2 * gamma * mu) - 1 / 2
    beta = alpha + 1 if variant == 1 else (2 * alpha**2 - 1) / (alpha - 1)
    w = v = np.zeros(7)
    points = []
    for _ in range(rounds):
        ends = []
        for h, c in zip(q.H, q.c, strict=True):
            x, y = w, v
            for _ in range(steps):
                middle = x / beta + (1 - 1 / beta) * y
                g = h @ middle - c
                x, y = (1 - 1 / alpha) * x + middle / alpha - gamma * g, middle - eta * g
            ends.append((x, y))
        w, v = (q.p @ np.array([end[k] for end in ends]) for k in (0, 1))
        points.append(v)
    return points


@pytest.mark.slow
@pytest.mark.parametrize("variant", [1, 2])
def test_fedac_agrees_with_its_box(variant, tmp_path):
    numbers = {"client_lr": 0.02, "gamma": 0.05, "mu": 0.3}
    options = [f"algo.{name}={value}" for name, value in numbers.items()]
    config = ragged(tmp_path, "algo=fedac", *options, f"algo.variant={variant}", *STEPS, "rounds=10", sizes=SIZES)
    expected = fedac(Quadratics(config), 10, 0.02, 0.05, 0.3, variant, 4)
    np.testing.assert_allclose(outputs_by_round(config), expected, atol=1e-11)


@pytest.mark.slow
def test_acceleration_pays_on_ill_conditioned_rows(tmp_path):
    """With one step of full gradients FedAc is Nesterov's method, and FedAvg gradient descent."""
    x = np.random.default_rng(0).standard_normal((78, 6)) * np.logspace(0, -1.2, 6)
    y = x @ np.arange(1.0, 7)
    distances = {}
    for name in ("fedac", "fedavg"):
        options = ("reg=none", "rounds=300", "eval_every=300", "objective.ridge=0.001")
        config = ragged(tmp_path / name, f"algo={name}", *options, sizes=SIZES, x=x, y=y)
        q = Quadratics(config)
        h, b = np.tensordot(q.p, q.H, 1) + 0.001 * np.diag([1] * 6 + [0]), q.p @ q.c
        distances[name] = np.abs(outputs_by_round(config)[-1] - np.linalg.solve(h, b)).max()
    assert distances["fedac"] < 0.1 * distances["fedavg"]


def hard(v, count):
    """Keep the entries of largest magnitude but for the intercept, the last one."""
    kept = np.zeros_like(v)
    largest = np.argsort(-np.abs(v[:-1]))[:count]
    kept[largest], kept[-1] = v[largest], v[-1]
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedht", "fediterht"])
def test_hard_thresholding_agrees_with_its_box_and_finds_the_support(name, tmp_path):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((78, 6))
    y = x @ [2.0, 0, 0, -1.5, 0, 0] + 0.05 * rng.standard_normal(78)
    options = ("reg=l0_ball", "reg.nonzeros=2", "algo.client_lr=0.02", *STEPS, "rounds=30")
    config = ragged(tmp_path, f"algo={name}", *options, sizes=SIZES, x=x, y=y)
    q = Quadratics(config)
    w, points = np.zeros(7), []
    for _ in range(30):
        local = boxes.copies(w, len(q.p))
        for _ in range(4):
            local = local - 0.02 * (np.einsum("mij,mj->mi", q.H, local) - q.c)
            if name == "fediterht":
                local = np.array([hard(v, 2) for v in local])
        w = hard(q.p @ local, 2)
        points.append(w)
    np.testing.assert_allclose(outputs_by_round(config), points, atol=1e-11)
    assert set(np.flatnonzero(points[-1][:-1])) == {0, 3}
