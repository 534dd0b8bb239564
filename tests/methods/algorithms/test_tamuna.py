"""TAMUNA: its box in plain NumPy, its optimum, its bytes, and what has no meaning without places in a cohort."""

import neighbour_boxes
import numpy as np
import pytest
from helpers import fails, ragged
from quadratics import Quadratics, outputs_by_round

from fcorun.engine.engine import message_bytes
from fcorun.experiment.build import check_data, load_data
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks.problems import engine_of
from fcorun.methods.algorithms.tamuna import TAMUNA

EQUAL = (20,) * 6


def tamuna(folder, *overrides, sizes=EQUAL):
    return ragged(folder, "algo=tamuna", "reg=none", *overrides, sizes=sizes)


@pytest.mark.parametrize(("cohort", "senders"), [("null", 2), ("4", 3), ("5", 5)])
def test_it_agrees_with_its_box(cohort, senders, tmp_path):
    """Also where more clients are in a round than coordinates times senders, and some send nothing."""
    options = (f"clients_per_round={cohort}", f"algo.senders={senders}", "algo.step=0.02", "algo.probability=0.3")
    config = tamuna(tmp_path, *options, "rounds=12")
    q = Quadratics(config)
    order = np.argsort(np.asarray(q.drawn.keys)[..., 0], axis=1)
    cohorts = np.take_along_axis(q.drawn.cohort, order, axis=1)
    assert len({tuple(np.argsort(cohort)) for cohort in cohorts}) > 6  # places differ from round to round
    steps = 1 + np.floor(np.log1p(-q.drawn.shared_uniforms[:, 0]) / np.log1p(-0.3)).astype(int)
    expected = neighbour_boxes.tamuna(q.H, q.c, q.p, np.zeros(7), 12, lr=0.02, probability=0.3, senders=senders,
                                      cohorts=cohorts, steps=steps)  # fmt: skip
    assert np.abs(expected[-1]).max() > 0.05
    np.testing.assert_allclose(outputs_by_round(config), expected, atol=1e-9)


@pytest.mark.parametrize("options", [(), ("clients_per_round=3", "algo.senders=3")])
def test_it_converges_to_the_optimum_with_any_cohort(options, tmp_path):
    config = tamuna(tmp_path, *options, "rounds=1500", "eval_every=1500")
    q = Quadratics(config)
    best = np.linalg.solve(np.tensordot(q.p, q.H, 1), q.p @ q.c)
    np.testing.assert_allclose(outputs_by_round(config)[-1], best, atol=1e-8)


def test_all_senders_make_it_proxskip(tmp_path):
    """With s = c = n the rounds are those of ProxSkip without psi."""
    options = ("algo.step=0.02", "algo.probability=0.3", "rounds=8")
    full = outputs_by_round(tamuna(tmp_path, *options, "algo.senders=6"))
    proxskip = outputs_by_round(ragged(tmp_path, "algo=proxskip", "reg=none", *options, sizes=EQUAL))
    np.testing.assert_allclose(full, proxskip, atol=1e-12)


def test_clients_of_unequal_sizes_weigh_the_same_with_uniform_weights(tmp_path):
    with fails("algo=tamuna needs clients of equal weight", "client_weighting=uniform"):
        engine_of(tamuna(tmp_path, sizes=(12, 20, 16)))
    config = tamuna(tmp_path, "client_weighting=uniform", "rounds=1500", "eval_every=1500", sizes=(12, 20, 16))
    q = Quadratics(config)
    np.testing.assert_allclose(outputs_by_round(config)[-1], np.linalg.solve(q.H.mean(0), q.c.mean(0)), atol=1e-8)


@pytest.mark.parametrize(("cohort", "senders", "numbers"), [("null", 2, 3), ("4", 4, 7), ("4", 3, 6)])
def test_a_client_sends_its_part_of_the_coordinates(cohort, senders, numbers, tmp_path):
    """Each of 7 numbers has s of c senders: at most ceil(7 s / c) a client, and none in the second exchange."""
    options = (f"clients_per_round={cohort}", f"algo.senders={senders}", "precision=float32")
    federation = engine_of(tamuna(tmp_path, *options)).federation
    sizes = message_bytes(federation, federation.algorithm, federation.uplink)
    assert sizes.uploads == (4 * numbers, 0)
    assert sizes.broadcasts == (4 * 7, 4 * 7)


@pytest.mark.parametrize(
    ("options", "sentences"),
    [
        (("clients_per_round=poisson:0.5",), ("divide its work among them", "clients_per_round=null")),
        (("faults=dropout",), ("none may drop out", "faults.dropout")),
        (("topology=tree",), ("topology=tree",)),
        (("uplink=topk",), ("uplink=topk",)),
        (("algo.senders=1",), ("algo.senders=1",)),
    ],
)
def test_what_leaves_coordinates_without_senders_is_refused(options, sentences, tmp_path):
    with fails(*sentences):
        prepare(tamuna(tmp_path, *options))


def test_a_round_of_fewer_clients_than_senders_is_refused(tmp_path):
    with fails("algo=tamuna", "needs 3 clients", "2 take part"):
        experiment = prepare(tamuna(tmp_path, "clients_per_round=2", "algo.senders=3"))
        check_data(experiment, load_data(experiment))


def test_places_are_read_only_where_they_have_a_meaning(tmp_path, monkeypatch):
    monkeypatch.setattr(TAMUNA, "divides_cohort", False)
    with fails("TAMUNA reads LocalData.place", "divides_cohort = True"):
        engine_of(tamuna(tmp_path, "precision=float32")).federation.shapes  # noqa: B018
