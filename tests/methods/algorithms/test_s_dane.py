"""S-DANE with exact solutions is DANE; with rough ones it comes to the optimum."""

import boxes
import numpy as np
import pytest
from helpers import ragged
from quadratics import Quadratics, outputs_by_round

SIZES = (12, 20, 16, 30)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_with_exact_solutions_it_is_dane(mu, tmp_path):
    exact = ("algo.iterations=20000", "algo.tolerance=1e-13", "reg=none", "rounds=5")
    steady, dane = (
        outputs_by_round(ragged(tmp_path, f"algo={name}", *numbers, *exact, sizes=SIZES))
        for name, numbers in (("s_dane", ("algo.lam=2", f"algo.mu={mu}")), ("dane", ("algo.mu=2",)))
    )
    np.testing.assert_allclose(steady, dane, atol=1e-9)


@pytest.mark.slow
def test_two_steps_of_the_clients_come_to_the_optimum(tmp_path):
    options = ("algo.iterations=2", "reg=none", "rounds=1000", "eval_every=1000")
    config = ragged(tmp_path, "algo=s_dane", *options, sizes=SIZES)
    q = Quadratics(config)
    np.testing.assert_allclose(outputs_by_round(config)[-1], boxes.optimum(q.H, q.c, q.p), atol=1e-8)


@pytest.mark.slow
def test_a_round_with_rough_solutions_moves_the_centre_by_the_gradients(tmp_path):
    """The centre of the second round follows from the solutions of the first, whatever their accuracy."""
    options = ("algo.iterations=1", "reg=none", "algo.lam=2", "algo.mu=0.3", "rounds=2", "eval_every=1")
    config = ragged(tmp_path, "algo=s_dane", *options, sizes=SIZES)
    q = Quadratics(config)
    center, points = np.zeros(7), []
    for _ in range(2):
        gradients = np.einsum("mij,j->mi", q.H, center) - q.c
        local = center - (q.p @ gradients) / (q.L + 2)  # one gradient step of length 1 / (L + lam)
        points.append(local)
        pull = 2 * center + 0.3 * local - (np.tensordot(q.p, q.H, 1) @ local - q.p @ q.c)
        center = pull / 2.3
    np.testing.assert_allclose(outputs_by_round(config), points, atol=1e-9)
