"""Server optimisers and Fast-FedDA: their identities with optax and with FedDualAvg."""

import boxes
import jax
import numpy as np
import optax
import pytest
from helpers import ragged, snapshots
from quadratics import SIZES, Quadratics, path

from fcorun import compose

SOME = "clients_per_round=2"


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
