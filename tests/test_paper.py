"""What the paper claims of federated LASSO, at full size: 64 clients, 1024 features, half of them of no use."""

import pytest

from fcorun import compose, run

pytestmark = pytest.mark.slow


def metrics(*overrides):
    """Metrics by round."""
    return run(compose(["data=lasso", "eval_every=250", *overrides])).metrics.set_index("round")


def test_feddualavg_identifies_the_support():
    f1 = metrics("algo=feddualavg")["f1"]
    assert f1[250] > 0.95
    assert f1[500] > 0.98


def test_fedmid_is_dense():
    assert metrics("algo=fedmid")["density"][500] > 0.9


def test_feddualavg_osp_is_sparse():
    assert metrics("algo=feddualavg_osp")["density"][500] < 0.6


def test_the_centralized_solver_recovers_the_support():
    last = metrics("algo=centralized", "algo.tolerance=1e-4").iloc[-1]
    assert last["recall"] == 1
    assert last["f1"] > 0.95
