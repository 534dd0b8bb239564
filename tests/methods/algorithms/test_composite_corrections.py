"""FedCanon and FedNMap: the proximal gradient method as a special case, and the linear rate that the papers claim."""

import boxes
import numpy as np
import pytest
from helpers import ragged
from quadratics import Quadratics, outputs_by_round

STEPS = ("local_epochs=null", "local_steps=4")
SIZES = (12, 20, 16, 30)
PSI = ("reg.strength=0.4",)
KEYS = {"fedcanon": (), "fednmap": ("algo.lam=0.06",)}


def fedcanon(H, c, p, rounds, client_lr, server_lr, steps, psi_prox):
    """Run FedCanon with full gradients: one prox a round, and a client's mean gradient replaced by the last step."""
    x = previous = np.zeros(c.shape[1])
    total, gradients, out = server_lr * client_lr * steps, np.zeros_like(c), []
    for _ in range(rounds):
        last_step, previous, y = (previous - x) / total, x, np.tile(x, (len(p), 1))
        old, gradients = gradients, np.zeros_like(c)
        for _ in range(steps):
            g = np.einsum("mij,mj->mi", H, y) - c
            gradients += g / steps
            y = y - client_lr * (g - old + last_step)
        x = psi_prox(x - total * p @ gradients, total)
        out.append(x)
    return out


def fednmap(H, c, p, rounds, client_lr, server_lr, steps, psi_prox, lam=0.09):
    """Run FedNMap with full gradients: steps along the normal map, with the mean direction for the client's."""
    z = previous = np.zeros(c.shape[1])
    total, directions, out = server_lr * client_lr * steps, np.zeros_like(c), []
    for _ in range(rounds):
        mean_direction, previous, local = (previous - z) / total, z, np.tile(z, (len(p), 1))
        old, directions = directions, np.zeros_like(c)
        for _ in range(steps):
            for m in range(len(p)):
                w = psi_prox(local[m], lam)
                direction = H[m] @ w - c[m] + (local[m] - w) / lam
                directions[m] += direction / steps
                local[m] = local[m] - client_lr * (direction - old[m] + mean_direction)
        z = z - total * p @ directions
        out.append(psi_prox(z, lam))
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("box", "options"), [(fedcanon, ()), (fednmap, ("algo.lam=0.09",))])
def test_rounds_agree_with_the_box(box, options, tmp_path):
    rates = ("algo.client_lr=0.02", "algo.server_lr=0.7", *STEPS, *options)
    config = ragged(tmp_path, f"algo={box.__name__}", *PSI, *rates, "rounds=15", sizes=SIZES)
    q = Quadratics(config)
    expected = box(q.H, q.c, q.p, 15, client_lr=0.02, server_lr=0.7, steps=4, psi_prox=q.psi)
    assert np.abs(expected[-1]).max() > 0.05
    np.testing.assert_allclose(outputs_by_round(config), expected, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_one_local_step_is_the_proximal_gradient_method(name, tmp_path):
    rates = ("algo.client_lr=0.06", "algo.server_lr=1", *KEYS[name])
    config = ragged(tmp_path, f"algo={name}", *PSI, *rates, "rounds=20", sizes=SIZES)
    q = Quadratics(config)
    h, b = np.tensordot(q.p, q.H, 1), q.p @ q.c
    w, points = np.zeros(7), []
    for _ in range(20):
        w = q.psi(w - 0.06 * (h @ w - b), 0.06)
        points.append(w)
    np.testing.assert_allclose(outputs_by_round(config), points, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_the_distance_falls_by_a_constant_factor_on_unlike_clients(name, tmp_path):
    rates = ("algo.client_lr=0.02", "algo.server_lr=1", "local_epochs=null", "local_steps=5")
    config = ragged(tmp_path, f"algo={name}", *PSI, *rates, "rounds=300", "eval_every=50", sizes=SIZES)
    q = Quadratics(config)
    optimum = boxes.optimum(q.H, q.c, q.p, q.psi)
    apart = np.linalg.norm(np.einsum("mij,j->mi", q.H, optimum) - q.c, axis=1)
    assert apart.min() > 0.5  # no client has its own gradient near 0 at the optimum
    distances = np.abs(outputs_by_round(config) - optimum).max(1)
    factors = distances[1:] / distances[:-1]
    assert distances[-1] < 1e-6
    assert factors.max() < 0.3
