"""Coefficients at the end of a run that are not the optimum's, although the objective hardly falls any more."""

import numpy as np
import pytest
from helpers import ragged

from fcorun import run
from fcorun.experiment.build import load_data
from fcorun.experiment.optimality_gap import can_measure_movement, measure_movement
from fcorun.experiment.prepare import prepare

SIZES = (40, 60)
X = np.random.default_rng(4).standard_normal((100, 4)) @ np.diag([1, 1, 1, 0.2])
COUNTS = np.random.default_rng(5).poisson(np.exp(0.3 + X @ [0.5, -0.3, 0, 0.4]))
OWN = ("algo=fedavg", "algo.client_lr=0.2", "algo.server_lr=1", "objective=poisson", "eval_every=10")


def counts(folder, *overrides):
    return ragged(folder, *OWN, *overrides, sizes=SIZES, x=X, y=COUNTS)


@pytest.mark.slow
@pytest.mark.parametrize("reg", [("reg=none",), ("reg=l1", "reg.strength=0.02", "algo=feddualavg")])
def test_the_movement_is_the_distance_to_the_optimum(tmp_path, reg):
    """Here, where some steps of the solver reach it."""
    experiment = prepare(counts(tmp_path, *reg))
    data = load_data(experiment)
    solved = ("algo=centralized", "objective=poisson", *reg[: 2 if len(reg) > 1 else 1])
    best = run(ragged(tmp_path, *solved, sizes=SIZES, x=X, y=COUNTS), "best").solution
    size = np.sqrt((data.train.x**2).mean(axis=0))
    largest = np.abs(best["weights"] * size).max()
    assert measure_movement(experiment, data, best) < 1e-5
    for j in (0, 3):
        off = {name: value.copy() for name, value in best.items()}
        off["weights"][j] *= 1.1
        assert measure_movement(experiment, data, off) == pytest.approx(
            0.1 * abs(best["weights"][j]) * size[j] / largest, rel=0.15
        )


@pytest.mark.slow
def test_a_large_movement_gives_a_warning_and_more_rounds_help(tmp_path):
    early, late = (run(counts(tmp_path, "reg=none", f"rounds={rounds}"), f"r{rounds}") for rounds in (150, 1500))
    assert early.summary["moved"] > 0.02
    assert "the coefficients have not reached the optimum" in early.status["reason"]
    assert "more rounds may help" in early.status["reason"]
    assert late.summary["moved"] < 0.02
    assert late.status["reason"] == ""


@pytest.mark.parametrize(
    ("overrides", "alone", "expected"),
    [
        (("reg=l1",), True, True),
        (("reg=l1", "algo=feddualavg"), True, True),
        (("algo=ditto", "algo.lam=1"), True, False),
        (("algo=scaffold", "reg=l1"), True, False),
    ],
)
def test_movement_is_measured_for_convex_problems_only(tmp_path, overrides, alone, expected):
    experiment = prepare(ragged(tmp_path, "algo=fedmid", "algo.client_lr=0.1", "algo.server_lr=1", *overrides))
    assert can_measure_movement(experiment, load_data(experiment), single_run=alone) == expected
