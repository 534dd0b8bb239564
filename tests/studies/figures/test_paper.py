"""Claims of the paper at full size: federated LASSO, low-rank estimation, norm balls on handwriting."""

import numpy as np
import pytest
from helpers import SHARED

from fcorun import compose, run

pytestmark = pytest.mark.slow

REAL = SHARED / "data"


def metrics(*overrides):
    """Run federated LASSO; return metrics by name and round."""
    return run(compose(["data=lasso", "eval_every=250", *overrides])).metrics.set_index("round").to_dict()


def test_feddualavg_identifies_the_support():
    f1 = metrics("algo=feddualavg")["support_f1"]
    assert f1[250] > 0.95
    assert f1[500] > 0.98


def test_fedmid_is_dense():
    assert metrics("algo=fedmid")["density"][500] > 0.9


def test_feddualavg_osp_is_sparse():
    assert metrics("algo=feddualavg_osp")["density"][500] < 0.6


def test_the_centralized_solver_recovers_the_support():
    history = metrics("algo=centralized", "algo.tolerance=1e-3")
    last = max(history["support_f1"])
    assert history["support_recall"][last] == 1
    assert history["support_f1"][last] > 0.95


def test_feddualavg_finds_the_exact_rank_in_under_100_rounds():
    rows = run(compose(["data=lowrank", "algo=feddualavg", "rounds=95", "eval_every=5"])).metrics
    assert rows["rank"].iloc[-1] == 16
    assert rows["rank"].iloc[1] > 16
    assert rows["recovery_error"].iloc[-1] < 1.2


@pytest.mark.parametrize(("reg", "radius", "rates"), [("l1_ball", 100, (0.3, 0.1)), ("l2_ball", 3, (0.3, 0.03))])
def test_norm_balls_on_real_digits(reg, radius, rates):
    """Solutions are feasible at every evaluation; at tuned rates the loss of FedDualAvg is at most that of FedMiD."""
    if not (REAL / "fed_emnist_digitsonly_train.h5").exists():
        pytest.skip(f"no federated EMNIST in {REAL}")
    common = (f"data.root={REAL}", "data.fraction_clients=1", f"reg={reg}", f"reg.radius={radius}", "rounds=50")
    losses = {}
    for algo, rate in zip(("feddualavg", "fedmid"), rates, strict=True):
        config = compose(["data=femnist", *common, f"algo={algo}", f"algo.client_lr={rate}", "algo.server_lr=1"])
        record = run(config)
        assert max(record.metrics["violation"]) <= 1e-5
        assert np.linalg.norm(record.solution["weights"].ravel(), 1 if reg == "l1_ball" else 2) <= radius * (1 + 1e-6)
        losses[algo] = record.summary["tail"]["train_loss"]
    assert losses["feddualavg"] <= losses["fedmid"]
