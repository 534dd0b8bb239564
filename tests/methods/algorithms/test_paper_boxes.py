"""The algorithms of the paper against its boxes in plain NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import flat, ragged, snapshots
from paper_boxes import boxes, drawn

from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms.algorithm import LocalData
from fcorun.methods.algorithms.feddualavg import FedDualAvg, FedDualAvgOSP
from fcorun.methods.mirror_maps import Euclidean
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.methods.problem.problem import Problem
from fcorun.methods.regularizers.l1 import L1

PAPER = ["fedavg", "fedavg_subgradient", "fedmid", "fedmid_osp", "feddualavg", "feddualavg_osp"]

CASES = {
    "cohorts": ["batch_size=4", "clients_per_round=2"],
    "uniform weights": ["batch_size=4", "client_weighting=uniform", "local_epochs=2"],
    "full batches": ["batch_size=null", "local_steps=3"],
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", PAPER)
def test_algorithms_agree_with_their_boxes(name, case, tmp_path):
    config = ragged(
        tmp_path, f"algo={name}", "algo.client_lr=0.03", "algo.server_lr=0.8", "reg.strength=0.4", *CASES[case]
    )
    experiment = prepare(config)
    data = load_data(experiment)
    outputs = [flat({k: v[0] for k, v in s.solution.items()}) for s in snapshots(config)]
    expected = boxes(name, data.train.x, data.train.y, 0.03, 0.8, 0.4, drawn(experiment, data))
    assert np.abs(expected[-1]).max() > 0.05
    np.testing.assert_allclose(outputs, expected, atol=1e-12)


@pytest.mark.parametrize("kind", [FedDualAvg, FedDualAvgOSP])
def test_small_steps_add_up_in_float32_after_many_rounds(kind):
    """At 9,000 float32 resolves 0.001, which would lose 2 % of each step of 0.01."""
    problem = Problem(LeastSquares(), L1(1e-5), Euclidean(), {"weights": (2,), "bias": ()})
    x, y = jnp.ones((4, 2), "float32"), jnp.arange(4, dtype="float32")
    data = LocalData(x, y, jnp.zeros((0, 1), "int32"), "float32", full_batch_steps=100)
    server = kind(client_lr=0.01, server_lr=1.0).init(problem, problem.zeros("float32"))[0]
    server["elapsed"] += 9000
    upload, _ = kind(client_lr=0.01, server_lr=1.0).local(problem, server, None, data.with_whole_data(jnp.arange(4)))
    np.testing.assert_allclose(upload["elapsed"], 1, rtol=1e-5)
