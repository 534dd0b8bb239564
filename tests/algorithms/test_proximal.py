"""Methods with client proxes and control variates: their boxes, and where they end."""

import boxes
import numpy as np
import pytest
from helpers import choice_names, ragged
from quadratics import SIZES, Quadratics, outputs_by_round

from fcorun.checks.algorithms import AlgorithmCase, check_reaches_optimum, reason_not_exact

STEPS = ("local_epochs=null", "local_steps=4")
ALL, SOME = "clients_per_round=null", "clients_per_round=2"


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
    "feddyn": ((), lambda q: q.box("feddyn", alpha=1 / q.step)),
    "feddyn partly": ((SOME,), lambda q: q.box("feddyn", alpha=1 / q.step, cohorts=q.drawn.cohort)),
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
    "feddr algo.relaxation=1.5 partly": (
        (SOME,),
        lambda q: q.box("feddr", eta=q.step, alpha=1.5, psi_prox=q.psi, cohorts=q.drawn.cohort),
    ),
    "fedadmm": ((), lambda q: q.box("fedadmm", rho=1 / q.step, psi_prox=q.psi)),
    "fedadmm partly": ((SOME,), lambda q: q.box("fedadmm", rho=1 / q.step, psi_prox=q.psi, cohorts=q.drawn.cohort)),
    "fast_fedda": (STEPS, lambda q: q.box("fast_fedda", gamma=2 * q.L, mu=q.l, steps=4, psi_prox=q.psi)),
    "fedcomposite": (STEPS, lambda q: q.box("zhang", eta=0.02, eta_g=0.7, steps=4, psi_prox=q.psi)),
}


@pytest.mark.parametrize("case", BOXES)
def test_agrees_with_its_box(case, tmp_path):
    name, *own = case.split()
    overrides, box = BOXES[case]
    rates = ["algo.client_lr=0.02", "algo.server_lr=0.7"] if name in ("scaffold", "fedcomposite") else []
    own = [text for text in own if "=" in text]
    config = ragged(tmp_path, f"algo={name}", *own, *rates, "reg.strength=0.4", "rounds=15", *overrides, sizes=SIZES)
    ours, theirs = outputs_by_round(config), box(Quadratics(config))
    assert np.abs(theirs[-1]).max() > 0.05
    np.testing.assert_allclose(ours, theirs, atol=1e-11)


# ---------------------------------------------------------------- where they end

# The rates that suit that problem, where an algorithm's own do not.
RATES: dict[str, tuple[str, ...]] = dict.fromkeys(("scaffold", "fedcomposite"), ("algo.client_lr=0.02",))
EXACT = {
    name: case
    for name in choice_names("algo")
    if not reason_not_exact(case := AlgorithmCase(name, RATES.get(name, ())))
}


@pytest.mark.parametrize("name", EXACT)
def test_reaches_the_optimum(name):
    """Where it takes part of the clients, with two of four, too; fedgd needs all of them."""
    partly = EXACT[name].traits.partial and name != "fedgd"
    check_reaches_optimum(EXACT[name], ("null", "2") if partly else ("null",))


def test_at_least_these_are_exact():
    assert set(EXACT) >= {
        *("fedgd", "fedsplit", "feddyn", "fedpd", "scaffold", "proxskip", "feddr", "fedadmm", "fedcomposite"),
    }
    composite = {name for name, case in EXACT.items() if case.traits.exact == "composite"}
    assert composite >= {"fedsplit", "proxskip", "feddr", "fedadmm", "fedcomposite"}
    partly = {name for name, case in EXACT.items() if case.traits.partial}
    assert partly >= {"feddyn", "scaffold", "feddr", "fedadmm"}


@pytest.mark.parametrize("steps", [2, 10])
def test_fedgd_ends_at_its_wrong_point(steps, tmp_path):
    config = ragged(
        tmp_path, "algo=fedgd", f"algo.steps={steps}", "reg=none", "rounds=2000", "eval_every=2000", sizes=SIZES
    )
    q = Quadratics(config)
    wrong = boxes.fedgd_fixed_point(q.H, q.c, q.p, 1 / q.L, steps)
    np.testing.assert_allclose(outputs_by_round(config)[-1], wrong, atol=1e-8)
    assert np.abs(wrong - boxes.optimum(q.H, q.c, q.p)).max() > 1e-3


@pytest.mark.parametrize("mu", [0.5, 5.0])
def test_fedprox_ends_at_its_wrong_point(mu, tmp_path):
    config = ragged(
        tmp_path, "algo=fedprox", f"algo.mu={mu}", "reg=none", "rounds=2000", "eval_every=2000", sizes=SIZES
    )
    q = Quadratics(config)
    wrong = boxes.fedprox_fixed_point(q.H, q.c, q.p, 1 / mu)
    np.testing.assert_allclose(outputs_by_round(config)[-1], wrong, atol=1e-8)
    assert np.abs(wrong - boxes.optimum(q.H, q.c, q.p)).max() > 1e-3


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


def test_fedsplit_on_losses_that_are_not_strongly_convex(tmp_path):
    """Theorem 2: clients with fewer rows than parameters, on f + lambda / 2 ||. - x_1||^2."""
    config = ragged(tmp_path, "algo=fedsplit", "algo.anchor=0.01", "reg=none", "rounds=4000", "eval_every=4000",
                    sizes=(3, 4, 5, 6))  # fmt: skip
    q = Quadratics(config)
    assert np.linalg.eigvalsh(q.H)[:, 0].max() < 1e-9
    np.testing.assert_allclose(outputs_by_round(config)[-1], boxes.optimum(q.H + 0.01 * np.eye(7), q.c, q.p), atol=1e-8)


def test_skipping_communication_ends_elsewhere(tmp_path):
    config = ragged(tmp_path, "algo=fedpd", "algo.skip=0.3", "reg=none", "rounds=400", "eval_every=400", sizes=SIZES)
    q = Quadratics(config)
    assert np.abs(outputs_by_round(config)[-1] - boxes.optimum(q.H, q.c, q.p)).max() > 1e-4
