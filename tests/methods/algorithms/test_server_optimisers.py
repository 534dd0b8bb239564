"""Server optimizers and Fast-FedDA: a box in NumPy, and identities with FedDualAvg."""

import boxes
import numpy as np
import pytest
from helpers import ragged, snapshots
from quadratics import SIZES, Quadratics, outputs_by_round

from fcorun import compose

SOME = "clients_per_round=2"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_server_optimizers_agree_with_their_box(name, tmp_path):
    """Algorithm 2 of Reddi et al. has no bias correction, starts v at tau^2, and adds tau outside the root."""
    rest = ["algo.client_lr=0.05", "algo.beta1=0.8", "reg=none", "batch_size=4", SOME]
    config = ragged(tmp_path, f"algo={name}", "algo.server_lr=0.3", *rest, "rounds=6", sizes=SIZES)
    q = Quadratics(config)
    x, w = np.column_stack([q.data.train.x, np.ones(len(q.data.train.y))]), np.zeros(7)
    lr, beta1, beta2, tau = 0.3, 0.8, 0.99, 1e-3
    m, v, outputs = np.zeros(7), np.full(7, tau**2), []
    for cohort, rows in zip(q.drawn.cohort, q.drawn.rows, strict=True):
        delta = np.zeros(7)
        for client, batches in zip(cohort, rows, strict=True):
            local = w
            for r in (batch[batch >= 0] for batch in batches if (batch >= 0).any()):
                local = local - 0.05 * 2 / len(r) * x[r].T @ (x[r] @ local - q.data.train.y[r])
            delta += q.p[client] / q.p[cohort].sum() * (local - w)
        m = beta1 * m + (1 if name == "fedavgm" else 1 - beta1) * delta
        if name == "fedadagrad":
            v = v + delta**2
        elif name == "fedyogi":
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        w = w + lr * (m if name == "fedavgm" else m / (np.sqrt(v) + tau))
        outputs.append(w)
    np.testing.assert_allclose(outputs_by_round(config), outputs, atol=1e-10)


@pytest.mark.slow
def test_without_momentum_the_dual_optimizer_is_feddualavg(tmp_path):
    rest = ["algo.client_lr=0.03", "algo.server_lr=0.8", "reg.strength=0.4", "batch_size=4", SOME]
    plain = outputs_by_round(ragged(tmp_path, "algo=feddualavg", *rest))
    np.testing.assert_allclose(
        outputs_by_round(ragged(tmp_path, "algo=feddualopt", "algo.beta1=0", *rest)), plain, atol=1e-12
    )
    assert np.abs(outputs_by_round(ragged(tmp_path, "algo=feddualopt", *rest)) - plain).max() > 1e-3


@pytest.mark.slow
def test_momentum_on_the_dual_keeps_the_fixed_point(tmp_path):
    config = ragged(tmp_path, "algo=feddualopt", "algo.client_lr=0.02", "algo.server_lr=0.1", "reg.strength=0.3",
                    "batch_size=null", "rounds=4000", "eval_every=4000", sizes=SIZES)  # fmt: skip
    q = Quadratics(config)
    np.testing.assert_allclose(outputs_by_round(config)[-1], boxes.optimum(q.H, q.c, q.p, q.psi), atol=1e-6)


@pytest.mark.slow
def test_without_strong_convexity_fast_fedda_is_feddualavg(tmp_path):
    rest = ["reg.strength=0.4", "batch_size=4", SOME]
    fast = ragged(tmp_path, "algo=fast_fedda", "algo.mu=0", "algo.gamma=25", *rest)
    dual = ragged(tmp_path, "algo=feddualavg", "algo.client_lr=0.04", "algo.server_lr=1", *rest)
    np.testing.assert_allclose(outputs_by_round(fast), outputs_by_round(dual), atol=1e-12)


@pytest.mark.slow
def test_fast_fedda_with_the_nuclear_norm():
    rest = ["data=lowrank", "data.clients=4", "data.samples=12", "data.rows=6", "data.columns=6", "data.rank=2",
            "data.validation_samples=2", "clients_per_round=2", "batch_size=4", "rounds=8", "eval_every=8",
            "precision=float64"]  # fmt: skip
    fast = snapshots(compose(["algo=fast_fedda", "algo.mu=0", "algo.gamma=100", *rest]))[-1]
    dual = snapshots(compose(["algo=feddualavg", "algo.client_lr=0.01", "algo.server_lr=1", *rest]))[-1]
    np.testing.assert_allclose(fast.solution["weights"], dual.solution["weights"], atol=1e-12)
    assert 0 < np.linalg.matrix_rank(fast.solution["weights"][0], tol=1e-6) < 6
