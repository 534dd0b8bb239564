"""Algorithms with client proxes and control variates: boxes and fixed points."""

import boxes
import numpy as np
import pytest
from helpers import choice_names, plugin_class, ragged, traits_of
from quadratics import SIZES, Quadratics, outputs_by_round

from fcorun.interface.checks.algorithms import AlgorithmCase, check_reaches_optimum
from fcorun.methods.algorithms import Algorithm

STEPS = ("local_epochs=null", "local_steps=4")
ALL, SOME = "clients_per_round=null", "clients_per_round=2"
SOLVED = "algo.tolerance=1e-13"


# ---------------------------------------------------------------- the boxes

BOXES = {
    "fedgd": ((), lambda q: q.box("fedgd", s=1 / q.L, e=1)),
    "fedgd algo.steps=5 algo.step=0.05": ((), lambda q: q.box("fedgd", s=0.05, e=5)),
    "fedprox": ((), lambda q: q.box("fedprox", mu=1 / q.step)),
    "fedsplit": ((), lambda q: q.box("fedsplit", s=q.step, psi_prox=q.psi)),
    "fedsplit algo.relaxation=1": ((), lambda q: q.box("fedsplit", s=q.step, psi_prox=q.psi, relaxation=1.0)),
    "fedsplit algo.anchor=0.3 algo.step=0.2": (
        (),
        lambda q: q.box("fedsplit", s=0.2, psi_prox=q.psi, ridge=0.3),
    ),
    "fedsplit_accelerated": (
        (),
        lambda q: q.box("fedsplit_accelerated", s=0.95 / q.L, mu=q.l, psi_prox=q.psi),
    ),
    "fedsplit_accelerated algo.step=0.05 algo.mu=0": (
        (),
        lambda q: q.box("fedsplit_accelerated", s=0.05, psi_prox=q.psi),
    ),
    "feddyn": ((), lambda q: q.box("feddyn", alpha=1 / q.step)),
    "feddyn with cohorts": ((SOME,), lambda q: q.box("feddyn", alpha=1 / q.step, cohorts=q.drawn.cohort)),
    "fedpd": ((), lambda q: q.box("fedpd", s=q.step)),
    "scaffold algo.option=1": (
        STEPS,
        lambda q: q.box("scaffold", client_lr=0.02, server_lr=0.7, steps=4, option=1),
    ),
    "scaffold": (
        (*STEPS, SOME),
        lambda q: q.box("scaffold", client_lr=0.02, server_lr=0.7, steps=4, cohorts=q.drawn.cohort),
    ),
    "proxskip algo.probability=0.3": (
        (),
        lambda q: q.box(
            "proxskip",
            gamma=1 / q.L,
            probability=0.3,
            psi_prox=q.psi,
            steps=1 + np.floor(np.log(1 - q.drawn.shared_uniforms[:, 0]) / np.log(0.7)).astype(int),
        ),
    ),
    "feddr": ((), lambda q: q.box("feddr", eta=q.step, psi_prox=q.psi)),
    "feddr algo.relaxation=1.5 with cohorts": (
        (SOME,),
        lambda q: q.box("feddr", eta=q.step, alpha=1.5, psi_prox=q.psi, cohorts=q.drawn.cohort),
    ),
    "fedadmm": ((), lambda q: q.box("fedadmm", rho=1 / q.step, psi_prox=q.psi)),
    "fedadmm with cohorts": (
        (SOME,),
        lambda q: q.box("fedadmm", rho=1 / q.step, psi_prox=q.psi, cohorts=q.drawn.cohort),
    ),
    "dane": ((SOLVED,), lambda q: q.box("dane", mu=q.pooled_L - q.l, psi_prox=q.psi)),
    "dane algo.mu=2 algo.eta=0.7": ((SOLVED,), lambda q: q.box("dane", mu=2.0, eta=0.7, psi_prox=q.psi)),
    "edsl": ((SOLVED,), lambda q: q.box("edsl", mu=q.pooled_L - q.l, psi_prox=q.psi)),
    "edsl algo.client=2 algo.mu=2": ((SOLVED,), lambda q: q.box("edsl", mu=2.0, client=2, psi_prox=q.psi)),
    "fast_fedda": (STEPS, lambda q: q.box("fast_fedda", gamma=2 * q.L, mu=q.l, steps=4, psi_prox=q.psi)),
    "fedcomposite": (STEPS, lambda q: q.box("zhang", eta=0.02, eta_g=0.7, steps=4, psi_prox=q.psi)),
    "ef21 uplink.fraction=0.34 algo.step=0.05": (
        (),
        lambda q: q.box("ef21", gamma=0.05, compress=boxes.top(2), psi_prox=q.psi),
    ),
    "fedcef uplink.fraction=0.34": (
        STEPS,
        lambda q: q.box("fedcef", eta=0.02, eta_g=0.7, steps=4, compress=boxes.top(2), psi_prox=q.psi),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BOXES)
def test_algorithms_agree_with_their_boxes(case, tmp_path):
    name, *options = case.split()
    overrides, box = BOXES[case]
    rates = ["algo.client_lr=0.02", "algo.server_lr=0.7"] if name in ("scaffold", "fedcomposite", "fedcef") else []
    options = [text for text in options if "=" in text]
    config = ragged(
        tmp_path, f"algo={name}", *options, *rates, "reg.strength=0.4", "rounds=15", *overrides, sizes=SIZES
    )
    expected = box(Quadratics(config))
    assert np.abs(expected[-1]).max() > 0.05
    np.testing.assert_allclose(outputs_by_round(config), expected, atol=1e-11)


# ---------------------------------------------------------------- fixed points

# Rates that suit the problem, for algorithms whose defaults do not.
RATES: dict[str, tuple[str, ...]] = dict.fromkeys(("scaffold", "fedcomposite"), ("algo.client_lr=0.02",))
RATES |= dict.fromkeys(("diana", "ef21", "fedcef"), ("uplink.fraction=0.5",))  # with the default they take longer
FEDERATED = [name for name in choice_names("algo") if issubclass(plugin_class("algo", name), Algorithm)]
EXACT = {name: AlgorithmCase(name, RATES.get(name, ())) for name in FEDERATED if traits_of(name).exact}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_exact_algorithms_reach_the_optimum(name):
    """Algorithms with partial participation reach the optimum with two of four clients too, except for fedgd."""
    partly = EXACT[name].traits.partial and name != "fedgd"
    check_reaches_optimum(EXACT[name], ("null", "2") if partly else ("null",))


def test_known_exact_algorithms_have_the_trait():
    assert set(EXACT) >= {
        *("fedgd", "fedsplit", "feddyn", "fedpd", "scaffold", "proxskip", "feddr", "fedadmm", "fedcomposite"),
        *("dane", "edsl"),
    }
    composite = {name for name, case in EXACT.items() if case.traits.exact == "composite"}
    assert composite >= {"fedsplit", "proxskip", "feddr", "fedadmm", "fedcomposite", "dane", "edsl"}
    partly = {name for name, case in EXACT.items() if case.traits.partial}
    assert partly >= {"feddyn", "scaffold", "feddr", "fedadmm"}


@pytest.mark.slow
@pytest.mark.parametrize("steps", [2, 10])
def test_fedgd_ends_at_its_closed_form(steps, tmp_path):
    config = ragged(
        tmp_path, "algo=fedgd", f"algo.steps={steps}", "reg=none", "rounds=2000", "eval_every=2000", sizes=SIZES
    )
    q = Quadratics(config)
    closed = boxes.fedgd_fixed_point(q.H, q.c, q.p, 1 / q.L, steps)
    np.testing.assert_allclose(outputs_by_round(config)[-1], closed, atol=1e-8)
    assert np.abs(closed - boxes.optimum(q.H, q.c, q.p)).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 5.0])
def test_fedprox_ends_at_its_closed_form(mu, tmp_path):
    config = ragged(
        tmp_path, "algo=fedprox", f"algo.mu={mu}", "reg=none", "rounds=2000", "eval_every=2000", sizes=SIZES
    )
    q = Quadratics(config)
    closed = boxes.fedprox_fixed_point(q.H, q.c, q.p, 1 / mu)
    np.testing.assert_allclose(outputs_by_round(config)[-1], closed, atol=1e-8)
    assert np.abs(closed - boxes.optimum(q.H, q.c, q.p)).max() > 1e-3


@pytest.mark.slow
def test_fedsplit_contracts_as_theorem_1_says(tmp_path):
    config = ragged(tmp_path, "algo=fedsplit", "reg=none", "rounds=60", sizes=SIZES)
    q = Quadratics(config)
    best = boxes.optimum(q.H, q.c, q.p)
    distance = np.linalg.norm(outputs_by_round(config) - best, axis=1)
    dual = q.step * (np.einsum("mij,j->mi", q.H, best) - q.c)  # z* = x* + s grad f(x*)
    start = np.sqrt(q.p @ (np.linalg.norm(best + dual, axis=1) ** 2))
    factor = 1 - 2 / (np.sqrt(q.L / q.l) + 1)
    assert (distance <= start * factor ** np.arange(1, 61) + 1e-12).all()
    assert distance[30] > 1e-12
    assert distance[-1] < 1e-6


@pytest.mark.slow
def test_fedsplit_on_losses_that_are_not_strongly_convex(tmp_path):
    """Theorem 2: clients with fewer rows than parameters, on f + lambda / 2 ||. - x_1||^2."""
    config = ragged(tmp_path, "algo=fedsplit", "algo.anchor=0.01", "reg=none", "rounds=4000", "eval_every=4000",
                    sizes=(3, 4, 5, 6))  # fmt: skip
    q = Quadratics(config)
    assert np.linalg.eigvalsh(q.H)[:, 0].max() < 1e-9
    np.testing.assert_allclose(outputs_by_round(config)[-1], boxes.optimum(q.H + 0.01 * np.eye(7), q.c, q.p), atol=1e-8)


@pytest.mark.slow
def test_fedpd_with_skipped_communication_misses_the_optimum(tmp_path):
    config = ragged(tmp_path, "algo=fedpd", "algo.skip=0.3", "reg=none", "rounds=400", "eval_every=400", sizes=SIZES)
    q = Quadratics(config)
    assert np.abs(outputs_by_round(config)[-1] - boxes.optimum(q.H, q.c, q.p)).max() > 1e-4
