"""Neighbours of FedAvg and FedDualAvg: their boxes in plain NumPy, identities, and refusals."""

import neighbour_boxes
import numpy as np
import pytest
from helpers import fails, ragged, snapshots
from quadratics import SIZES, Quadratics, outputs_by_round

from fcorun.experiment.prepare import prepare

STEPS = ("local_epochs=null", "local_steps=4")
RATES = ("algo.client_lr=0.02", "algo.server_lr=0.7")
LR = "algo.client_lr=0.02"


def box(quadratics, name, **options):
    """Return the points of a method of neighbour_boxes.py after each round."""
    q, method = quadratics, getattr(neighbour_boxes, name)
    return np.array(method(q.H, q.c, q.p, np.zeros(7), len(q.drawn.cohort), **options))


def constants(q):
    """Return the losses of the clients at 0."""
    y = q.data.train.y
    return q.data.train.sum_by_client(y**2) / q.data.train.sizes


CASES = {
    "fedexp algo.epsilon=0.01": ((LR, *STEPS), lambda q: box(q, "fedexp", lr=0.02, steps=4, epsilon=0.01)),
    "mime_lite algo.momentum=0.6": ((LR, *STEPS), lambda q: box(q, "mime_lite", lr=0.02, steps=4, beta=0.6)),
    "fedlin": ((LR, *STEPS), lambda q: box(q, "fedlin", lr=0.02, steps=[4] * 4)),
    "qfedavg algo.q=0.5": (
        (LR, *STEPS),
        lambda q: box(q, "qfedavg", lr=0.02, steps=4, q=0.5, constants=constants(q)),
    ),
    "afl algo.weight_lr=0.3": ((LR,), lambda q: box(q, "afl", lr=0.02, weight_lr=0.3, constants=constants(q))),
    "fedavg_cd algo.sweeps=2 algo.step=0.9": (
        ("algo.server_lr=0.7",),
        lambda q: box(q, "fedavg_cd", sweeps=2, step=0.9, server_lr=0.7, strength=0.4),
    ),
    "fedavg_threshold algo.threshold=0.3": (
        (LR, *STEPS, "algo.server_lr=1"),
        lambda q: box(q, "fedavg_threshold", lr=0.02, steps=4, threshold=0.3, psi_prox=q.psi),
    ),
    "c_fedda algo.radius=0.6": (
        (*RATES, *STEPS),
        lambda q: box(q, "constrained_fedda", lr=0.02, server_lr=0.7, steps=4, strength=0.4, radius=0.6),
    ),
    "mc_fedda algo.radius=0.6 algo.stage_rounds=4 algo.shrink=0.7": (
        (*RATES, *STEPS),
        lambda q: box(
            q,
            "constrained_fedda",
            **{"lr": 0.02, "server_lr": 0.7, "steps": 4, "strength": 0.4},
            **{"radius": 0.6, "stage_rounds": 4, "shrink": 0.7},
        ),
    ),
    "fedprox algo.solver=sgd algo.mu=0.5": (
        ("algo.inner_lr=0.02", *STEPS),
        lambda q: box(q, "fedprox_steps", lr=0.02, mu=0.5, steps=np.full((15, 4), 4)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_algorithms_agree_with_their_boxes(case, tmp_path):
    name, *options = case.split()
    overrides, expect = CASES[case]
    config = ragged(tmp_path, f"algo={name}", *options, "reg.strength=0.4", "rounds=15", *overrides, sizes=SIZES)
    expected = expect(Quadratics(config))
    assert np.abs(expected[-1]).max() > 0.05
    np.testing.assert_allclose(outputs_by_round(config), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("algo=mime_lite algo.momentum=0", "algo=fedavg algo.server_lr=1"),
        ("algo=qfedavg algo.q=0", "algo=fedavg algo.server_lr=1"),
        ("algo=c_fedda algo.server_lr=0.7", "algo=feddualavg algo.server_lr=0.7"),
        ("algo=mc_fedda algo.server_lr=0.7", "algo=feddualavg algo.server_lr=0.7"),
    ],
)
def test_special_cases_are_the_base_methods(one, other, tmp_path):
    options = (LR, "batch_size=4", "reg.strength=0.4", "rounds=6")
    ends = [outputs_by_round(ragged(tmp_path, *text.split(), *options, sizes=SIZES)) for text in (one, other)]
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-12)


@pytest.mark.parametrize(("name", "passes"), [("qfedavg", 2), ("afl", 1)])
def test_losses_that_servers_ask_for_count_as_passes(name, passes, tmp_path):
    """The loss of q-FedAvg at the received model has no gradient beside it; that of AFL has."""
    config = ragged(tmp_path, f"algo={name}", "reg=none", "batch_size=null", "rounds=3", sizes=SIZES)
    assert snapshots(config)[-1].work[0, 0] == passes * 3 * sum(SIZES)


def test_one_client_of_many_sweeps_solves_the_lasso(tmp_path):
    """Coordinate descent of a single client ends at the optimum of F + psi."""
    ends = []
    for options in (("algo=fedavg_cd", "algo.step=1", "algo.sweeps=2000", "rounds=1"), ("algo=fedsplit", "rounds=600")):
        ends.append(outputs_by_round(ragged(tmp_path, "reg.strength=0.4", *options, sizes=(30,)))[-1])
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-6)


@pytest.mark.slow
def test_agnostic_learning_lowers_the_worst_loss(tmp_path):
    """After many rounds the largest loss of a client is below that of the minimizer of F."""
    config = ragged(tmp_path, "algo=afl", "reg=none", "rounds=4000", "eval_every=4000", sizes=SIZES)
    q = Quadratics(config)
    best = np.linalg.solve(np.tensordot(q.p, q.H, 1), q.p @ q.c)

    def worst(w):
        return (np.einsum("i,mij,j->m", w, q.H, w) / 2 - q.c @ w + constants(q)).max()

    assert worst(outputs_by_round(config)[-1]) < 0.99 * worst(best)


@pytest.mark.slow
def test_stragglers_take_fewer_steps(tmp_path):
    """With all clients stragglers, the steps are uniform from 1 to 4: the mean move is between that of 1 and of 4."""
    options = ("algo=fedprox", "algo.solver=sgd", "algo.mu=0.5", "algo.inner_lr=0.02", "reg=none", "rounds=1")
    ends = {}
    for name, steps, share in (("one", 1, 0.0), ("some", 4, 1.0), ("all", 4, 0.0)):
        config = ragged(tmp_path, *options, "local_epochs=null", f"local_steps={steps}", f"algo.stragglers={share}",
                        sizes=SIZES)  # fmt: skip
        ends[name] = np.linalg.norm(outputs_by_round(config)[-1])
    assert ends["one"] < ends["some"] < ends["all"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("algo=fedavg_cd", "reg=group_lasso"), "fedavg_cd"),
        (("algo=c_fedda", "reg=nuclear"), "c_fedda"),
    ],
)
def test_what_has_no_meaning_is_refused(overrides, sentence, tmp_path):
    with fails(sentence):
        prepare(ragged(tmp_path, *overrides, sizes=SIZES))
