"""The checks of regularizers, on every regularizer of conf/reg and on faulty ones."""

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from helpers import choice_names, small, snapshots, verify
from studies.selection.test_each_choice import PENALTIES

from fcorun.experiment.prepare import prepare
from fcorun.interface.checks.property_check import run_checks
from fcorun.interface.checks.regularizers import (
    CHECKS,
    RegularizerCase,
    check_conjugate,
    check_prox_minimizes,
    check_strength_max,
    check_subgradient,
    regularizer_cases,
)
from fcorun.methods.regularizers import L1, Box, Regularizer

pytestmark = pytest.mark.usefixtures("x64")


def composed(name):
    reg = prepare(small(f"reg={name}")).reg
    return replace(reg, strength_tv=0.4) if any(field.name == "strength_tv" for field in fields(reg)) else reg


REGULARIZERS = {name: composed(name) for name in choice_names("reg")}
FOLLOWING = {f"{n}, strength_tv follows": replace(r, strength_tv=None) for n, r in REGULARIZERS.items()
             if any(field.name == "strength_tv" for field in fields(r))}  # fmt: skip
CASES = {name: regularizer_cases(reg) for name, reg in (REGULARIZERS | FOLLOWING).items()}


EVERY_SHAPE = (
    check_prox_minimizes,
    check_conjugate,
    check_subgradient,
    check_strength_max,
)  # other checks run on the first shape only


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "case"),
    [
        pytest.param(
            check,
            case,
            id=f"{name}-{case.shape}-{check.__name__}",
            marks=[] if check is check_prox_minimizes and case is cases[0] else pytest.mark.slow,
        )
        for name, cases in CASES.items()
        for case in cases
        for check in CHECKS
        if case is cases[0] or check in EVERY_SHAPE
    ],
)
def test_every_regularizer_passes_every_check(check, case):
    verify(check, case)


def test_every_regularizer_takes_a_vector_or_a_matrix():
    assert all(CASES.values())


@pytest.mark.slow
def test_every_check_runs_on_some_regularizer():
    for check in CHECKS:
        assert any(verify(check, case) for cases in CASES.values() for case in cases), check.__name__


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in REGULARIZERS if name not in PENALTIES])
def test_rounds(name):
    """A few rounds of a real run: finite metrics, and constraints hold. The others run in test_each_choice.py."""
    for last in snapshots(small(f"reg={name}", "algo=fedmid", "algo.client_lr=0.01", "algo.server_lr=0.5", "rounds=2")):
        assert all(np.isfinite(value).all() for value in last.metrics.values())
        assert not last.diverged.any()
    assert ("violation" in last.metrics) == hasattr(REGULARIZERS[name], "violation")
    assert last.metrics.get("violation", np.zeros(1)).max() <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "prox"),
    [
        ("l1", 0.7 * 3.5, [0.86, 0.36, -1.86]),
        ("l2", 0.7 * 5.25, [1 / 1.28, 0.5 / 1.28, -2 / 1.28]),
        ("linf", 0.7 * 2, [1, 0.5, -1.86]),
        ("tv", 0.7 * 3, [0.86, 0.5, -1.86]),
        ("group_lasso", 0.7 * (1.25**0.5), [1 - 0.14 / 1.25**0.5, 0.5 - 0.07 / 1.25**0.5]),
    ],
)
def test_values_computed_by_hand(name, value, prox):
    w, case = np.asarray([[1, 0.5, -2.0][: len(prox)]]), RegularizerCase(REGULARIZERS[name], (len(prox),))
    assert case.evaluate("value", w)[0] == pytest.approx(value)
    np.testing.assert_allclose(case.evaluate("prox", w, np.full(1, 0.2))[0], prox, rtol=1e-12)


@dataclass(frozen=True)
class Wrong(L1):
    """A regularizer with the mistake named by ``fault``."""

    fault: str = ""
    convex = True

    def value(self, w):
        return super().value(w) + (1.0 if self.fault == "value" else 0.0)

    def prox(self, z, t):
        if self.fault == "prox":
            return super().prox(z, 2 * t)
        prox = super().prox(z, t)
        return prox.astype("float32") if self.fault == "precision" else prox

    def subgradient(self, w):
        return super().subgradient(w) * (1.5 if self.fault == "subgradient" else 1.0)

    def strength_max(self, gradient):
        return super().strength_max(gradient) * (1.5 if self.fault == "strength_max" else 1.0)


@dataclass(frozen=True)
class Inside(Box):
    """A set with a projection that does nothing."""

    convex = True

    def project(self, z):
        return z


FAULTS = {
    "value": ("a finite, nonnegative psi", "value(0) should be 0 and is 1"),
    "prox": ("prox(z, t) minimizes", "at a u that is not prox(z, t), should be at least"),
    "precision": ("prox(z, t) minimizes", "of a z in float64 should be in float64, too, and is in float32"),
    "subgradient": ("psi(u) >= psi(w) + <subgradient(w), u - w>", "value(u) should be at least"),
    "strength_max": (
        "0 minimizes <gradient, w> + psi(w) just above strength_max",
        "prox(-gradient, 1) should have nonzero entries with a strength",
    ),
}


def failures(reg: Regularizer) -> dict[str, str]:
    return {
        result.name: result.message
        for result in run_checks(CHECKS, regularizer_cases(reg)[0])
        if result.status == "failed"
    }


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_method_fails_its_check(fault):
    check_name, sentence = FAULTS[fault]
    failed = failures(Wrong(0.3, fault=fault))
    assert any(name.startswith(check_name) and sentence in message for name, message in failed.items()), failed


@pytest.mark.slow
def test_a_correct_regularizer_fails_no_check():
    assert failures(Wrong(0.3)) == {}
    outside = "project() returns members of the set, keeps members, and violation() is the distance"
    assert "has moved none" in failures(Inside())[outside]
