"""Low-rank matrices: their data, and problems in matrices."""

import numpy as np
import pytest
from helpers import not_none, snapshots

from fcorun import UserError
from fcorun.experiment.build import load_data
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.prepare import prepare

SMALL_LOWRANK = (
    *("data=lowrank", "data.rows=5", "data.columns=4", "data.rank=2", "data.clients=6", "data.samples=12"),
    *("clients_per_round=3", "batch_size=5", "rounds=4", "eval_every=2"),
)


@pytest.mark.slow
@pytest.mark.parametrize("reg", ["l1", "nuclear"])
def test_lowrank_is_a_problem_in_matrices(reg):
    config = compose([*SMALL_LOWRANK, f"reg={reg}"])
    last = snapshots(config)[-1]
    assert last.solution["weights"].shape == (1, 5, 4)
    assert ("support_f1" in last.metrics) == (reg == "l1")
    assert ("rank" in last.metrics) == (reg == "nuclear")
    error = np.linalg.norm(last.solution["weights"][0] - not_none(load_data(prepare(config)).truth)["weights"])
    np.testing.assert_allclose(last.metrics["recovery_error"], error, rtol=1e-5)


def test_lowrank_data():
    data = load_data(prepare(compose(list(SMALL_LOWRANK))))
    assert (data.train.x.shape[1], data.features.shape, not_none(data.truth)["weights"].shape) == (20, (5, 4), (5, 4))
    noise = data.train.y - data.train.x @ not_none(data.truth)["weights"].ravel() - not_none(data.truth)["bias"]
    assert 0.7 < noise.std() < 1.3
    assert np.linalg.matrix_rank(not_none(data.truth)["weights"]) == 2


def test_lowrank_refuses_an_impossible_rank():
    with pytest.raises(UserError, match=r"data\.rank=33"):
        prepare(compose(["data=lowrank", "data.rank=33"]))
