"""Every algorithm runs, and the same again; goes on where it was broken off; comes to the same in a batch."""

import numpy as np
import pytest
from helpers import choice_names, flat, plugin_class, small_for

from fcorun import grid, run, run_grid
from fcorun.algorithms import Algorithm, Baseline
from fcorun.checks.algorithms import CHECKS, AlgorithmCase, check_reaches_optimum, check_two_devices
from fcorun.checks.check import never_skip

FEDERATED = [name for name in choice_names("algo") if issubclass(plugin_class("algo", name), Algorithm)]
BASELINES = [name for name in choice_names("algo") if issubclass(plugin_class("algo", name), Baseline)]


def test_every_algorithm_is_of_one_kind():
    assert sorted(FEDERATED + BASELINES) == choice_names("algo")


ELSEWHERE = (check_two_devices, check_reaches_optimum)  # tests/engine/test_devices.py and test_proximal.py try these


@pytest.mark.parametrize(
    ("check", "case"),
    [
        pytest.param(check, case, id=f"{name}-{check.name}")
        for name in choice_names("algo")
        for case in [AlgorithmCase(name)]
        for check in CHECKS
        if check.run not in ELSEWHERE and (name in FEDERATED or check.skip_reason is never_skip)
    ],
)
def test_every_algorithm_obeys(check, case):
    check.run(case)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_lowers_the_objective(name):
    record = run(small_for(name), "one")
    if name != "one_client":  # the best for one client may be worse than nothing for the others
        assert record.metrics["objective"].iloc[-1] < record.metrics["objective"].iloc[0]


@pytest.mark.parametrize("name", ["feddualavg", "scaffold", "local", "pfedme", "pfedmac_s", "pfedmac_sh"])
def test_one_diverging_run_leaves_the_others_alone(name):
    base = small_for(name, "precision=float64", "rounds=40", *AlgorithmCase(name).exact_overrides)
    rate = base["algo"]["client_lr"]
    rate = 1 / base["algo"].get("lam", 1e3) if rate == "auto" else rate
    points = grid(base, {"algo.client_lr": [rate, 1e12, rate / 2]})
    first, lost, last = run_grid(points, ["first", "lost", "last"])
    assert [r.status["status"] for r in (first, lost, last)] == ["done", "diverged", "done"]
    alone = run(points[2], "alone")
    inner = "iterations" in base["algo"]  # where an inner solver stops may be a matter of rounding
    left = ("seconds", *(("grad_evals", "prox_evals") if inner else ()))
    shown = [key for key in alone.metrics if key not in left]
    np.testing.assert_allclose(last.metrics[shown], alone.metrics[shown], rtol=1e-8 if inner else 1e-10)
    # the diverged one keeps what it had, and says where it was lost
    assert lost.metrics["round"].iloc[0] == 0
    assert np.isfinite(lost.metrics.to_numpy(float)).all()
    assert len(lost.metrics) < len(first.metrics)
    assert lost.metrics["round"].max() < lost.status["round"] <= 40
    assert np.isfinite(flat(lost.solution)).all()
    # it stays where it was lost: before the step that was not finite, or at a point whose loss is not
    ends = (run(points[1] | {"rounds": lost.status["round"] - back}, f"end{back}").solution for back in (1, 0))
    assert any(np.allclose(flat(lost.solution), flat(end), rtol=1e-6, atol=0) for end in ends)
    assert str(lost.status["round"]) in lost.status["reason"]
