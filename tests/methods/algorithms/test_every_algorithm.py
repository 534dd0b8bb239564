"""Every algorithm of fcorun has the properties of an algorithm."""

import numpy as np
import pytest
from helpers import choice_names, flat, grid, plugin_class, run_grid, small_for, traits_of, verify

from fcorun import run
from fcorun.base.errors import UserError
from fcorun.base.system.machine import use_precision
from fcorun.interface.checks.algorithms import (
    CHECKS,
    AlgorithmCase,
    check_contract,
    check_reaches_optimum,
    check_repeatability,
    check_restores_domain,
    check_rounds_without_messages,
    check_sparse_rows,
    check_two_devices,
    require_restored_domain,
)
from fcorun.interface.checks.property_check import Violation
from fcorun.methods.algorithms import Algorithm, Baseline

FEDERATED = [name for name in choice_names("algo") if issubclass(plugin_class("algo", name), Algorithm)]
BASELINES = [name for name in choice_names("algo") if issubclass(plugin_class("algo", name), Baseline)]


def test_every_choice_is_an_algorithm_or_a_baseline():
    assert sorted(FEDERATED + BASELINES) == choice_names("algo")


# in tests/engine/test_devices.py, test_proximal.py, and below
TESTED_ELSEWHERE = (check_two_devices, check_reaches_optimum, check_rounds_without_messages, check_restores_domain)


@pytest.mark.parametrize(
    ("check", "case"),
    [
        pytest.param(
            check, case, id=f"{name}-{check.__name__}", marks=[] if check is check_contract else pytest.mark.slow
        )
        for name in choice_names("algo")
        for case in [AlgorithmCase(name)]
        for check in CHECKS
        if check not in TESTED_ELSEWHERE and (name in FEDERATED or check in (check_repeatability, check_sparse_rows))
    ],
)
def test_every_algorithm_has_the_properties(check, case):
    with use_precision("float64" if case.needs_float64 else "float32"):
        verify(check, case)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FEDERATED if plugin_class("algo", name).computed_rounds is not None])
def test_rounds_without_messages_keep_the_model(name):
    check_rounds_without_messages(AlgorithmCase(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in FEDERATED if traits_of(name).hierarchy and traits_of(name).psi_sides]
)
def test_an_algorithm_restores_the_domain_of_psi_if_and_only_if_it_says_so(name):
    if traits_of(name).restores_domain:
        check_restores_domain(AlgorithmCase(name))
    else:
        with pytest.raises((Violation, UserError)):  # fedavg_subgradient takes no constraint
            require_restored_domain(AlgorithmCase(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_lowers_the_objective(name):
    record = run(small_for(name), "one")
    if name != "one_client":  # the optimum of one client may be worse than 0 for the others
        assert record.metrics["objective"].iloc[-1] < record.metrics["objective"].iloc[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["feddualavg", "scaffold", "local", "pfedme", "pfedmac_s", "pfedmac_sh"])
def test_a_diverging_run_does_not_change_the_others(name):
    base = small_for(name, "precision=float64", "rounds=40", *AlgorithmCase(name).exact_overrides)
    rate = base["algo"]["client_lr"]
    rate = 1 / base["algo"].get("lam", 1e3) if rate == "auto" else rate
    points = grid(base, {"algo.client_lr": [rate, 1e12, rate / 2]})
    first, diverged, last = run_grid(points, ["first", "diverged", "last"])
    assert [r.status["status"] for r in (first, diverged, last)] == ["done", "diverged", "done"]
    alone = run(points[2], "alone")
    has_inner_solver = "iterations" in base["algo"]  # rounding may change when an inner solver stops
    ignored = ("seconds", "grad_evals", "prox_evals") if has_inner_solver else ("seconds",)
    compared = [key for key in alone.metrics if key not in ignored]
    rtol = 1e-8 if has_inner_solver else 1e-10
    np.testing.assert_allclose(last.metrics[compared], alone.metrics[compared], rtol=rtol)
    # the diverged run keeps its last finite state, and reports the round of the divergence
    assert diverged.metrics["round"].iloc[0] == 0
    assert np.isfinite(diverged.metrics.to_numpy(float)).all()
    assert len(diverged.metrics) < len(first.metrics)
    assert diverged.metrics["round"].max() < diverged.status["round"] <= 40
    assert np.isfinite(flat(diverged.solution)).all()
    # it ends before the step that was not finite, or at a point whose loss is not finite
    ends = (run(points[1] | {"rounds": diverged.status["round"] - back}, f"end{back}").solution for back in (1, 0))
    assert any(np.allclose(flat(diverged.solution), flat(end), rtol=1e-6, atol=0) for end in ends)
    assert str(diverged.status["round"]) in diverged.status["reason"]
