"""An objective's ridge, and an objective without an intercept."""

import numpy as np
import pytest
from helpers import flat, ragged, small
from quadratics import SIZES

from fcorun import run


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "binary"])
def test_ridge_is_part_of_every_loss(task, tmp_path):
    """A ridge equals psi = l2 with half the strength."""
    overrides = ("algo=centralized", "algo.tolerance=1e-13")
    ridge = run(ragged(tmp_path / "1", *overrides, "reg=none", "objective.ridge=0.6", task=task), "ridge")
    penalty = run(ragged(tmp_path / "2", *overrides, "reg=l2", "reg.strength=0.3", task=task), "penalty")
    np.testing.assert_allclose(flat(ridge.solution), flat(penalty.solution), atol=1e-8)
    np.testing.assert_allclose(ridge.metrics["objective"].iloc[-1], penalty.metrics["objective"].iloc[-1], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "binary", "multiclass"])
def test_without_an_intercept_there_is_no_bias(task, tmp_path):
    config = ragged(tmp_path, "algo=fedsplit", "reg=none", "objective.intercept=false", "objective.ridge=0.3",
                    "rounds=500", "eval_every=500", sizes=SIZES, task=task)  # fmt: skip
    record = run(config, "run")
    assert set(record.solution) == {"weights"}
    central = run(config | {"algo": {**small("algo=centralized")["algo"], "tolerance": 1e-13}}, "central")
    np.testing.assert_allclose(record.solution["weights"], central.solution["weights"], atol=1e-7)
