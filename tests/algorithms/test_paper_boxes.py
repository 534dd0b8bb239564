"""The algorithms of the paper against its boxes in plain NumPy."""

import numpy as np
import pytest
from helpers import flat, ragged, snapshots
from paper_boxes import boxes, drawn

from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare

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
