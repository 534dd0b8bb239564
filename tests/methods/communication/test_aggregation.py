"""Aggregation rules against NumPy loops and closed forms, in runs on quadratic losses, and what they refuse."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import choice_names, engine_of, fails, ragged, small, traits_of, verify, write_choice
from quadratics import SIZES, Quadratics, outputs_by_round

from fcorun import ClippedMean, CoordinateMedian, GeometricMedian, Krum, TrimmedMean
from fcorun.engine.engine import message_bytes
from fcorun.experiment.build import check_data, load_data
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import communication, single_uploads
from fcorun.interface.checks.algorithms import AlgorithmCase
from fcorun.interface.checks.property_check import Violation
from fcorun.methods.communication.aggregation import WeightedMean, combine_uploads

RULES = choice_names("aggregate")
CASES = {name: communication.CommunicationCase("aggregate", name) for name in RULES}
GRADIENT = ("algo=fedgd", "algo.step=0.03", "clients_per_round=null")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def draw(n_uploads, size=3, seed=0):
    return np.random.default_rng(seed).standard_normal((n_uploads, size))


def combine(rule, uploads, weights=None):
    if weights is None:
        weights = np.full(len(uploads), 1 / len(uploads))
    return np.asarray(combine_uploads(rule, jnp.asarray(uploads), jnp.asarray(weights)))


# ---------------------------------------------------------------- the properties of every rule


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("check", communication.RULE_CHECKS[:6], ids=lambda check: check.__name__)
def test_every_rule_has_the_properties_of_combinations(name, check):
    applies = verify(check, CASES[name])
    assert applies or (name, check.__name__) in {("mean", "check_wrong_uploads"), ("krum", "check_divided_weights")}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RULES if name != "mean"])
@pytest.mark.parametrize("check", communication.RULE_CHECKS[6:], ids=lambda check: check.__name__)
def test_every_rule_has_the_properties_of_runs(name, check):
    verify(check, CASES[name])


@dataclass(frozen=True)
class First(WeightedMean):
    """A rule that takes the first upload, claims to bear wrong ones, and forgets the type."""

    source = "ours"

    def count_tolerated(self, n_uploads):
        return 1

    def combine(self, uploads, weights):
        return jax.tree.map(lambda values: values[0].astype(jnp.float16), uploads)


def test_a_wrong_rule_violates_the_properties():
    for check in single_uploads.RULE_CHECKS[1:]:
        if check is not single_uploads.check_divided_weights:
            with pytest.raises(Violation):
                check(First())


# ---------------------------------------------------------------- the rules


@pytest.mark.parametrize("n_uploads", [1, 4, 7])
def test_equal_weights_give_the_usual_medians_and_trimmed_means(n_uploads):
    uploads = draw(n_uploads)
    np.testing.assert_allclose(combine(CoordinateMedian(), uploads), np.median(uploads, axis=0), rtol=1e-12)
    cut = n_uploads // 3
    trimmed = np.sort(uploads, axis=0)[cut : n_uploads - cut].mean(axis=0)
    np.testing.assert_allclose(combine(TrimmedMean(trim=cut / n_uploads), uploads), trimmed, rtol=1e-12)


def test_weights_count_as_copies():
    """Three copies of an upload count as one upload of three times the weight."""
    uploads = draw(5)
    copies = [3, 1, 2, 1, 4]
    for rule in (CoordinateMedian(), TrimmedMean(trim=0.3), GeometricMedian(), ClippedMean(), ClippedMean(radius=0.5)):
        weighted = combine(rule, uploads, np.array(copies) / sum(copies))
        np.testing.assert_allclose(weighted, combine(rule, np.repeat(uploads, copies, axis=0)), rtol=1e-9)


def test_a_cut_divides_an_upload():
    """A cut of 0.25 at either end leaves 0.25, 0.25 and 0 of the weights 0.5, 0.3 and 0.2."""
    combined = combine(TrimmedMean(trim=0.25), np.array([[1.0], [2.0], [9.0]]), np.array([0.5, 0.3, 0.2]))
    np.testing.assert_allclose(combined, [1.5], rtol=1e-12)


def test_geometric_medians_in_closed_form():
    """The median on a line; the point between the diagonals of a quadrangle; the point of Fermat of a triangle."""
    line = np.outer([0.0, 1.0, 5.0], [1.0, 2.0])
    quadrangle = np.array([[0.0, 0.0], [4.0, 4.0], [0.0, 2.0], [2.0, 0.0]])  # the diagonals meet at (1, 1)
    right_angle = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    fermat = (3 - np.sqrt(3)) / 6  # at which the corners appear under 120 degrees
    for uploads, expected in ((line, line[1]), (quadrangle, [1, 1]), (right_angle, [fermat, fermat])):
        np.testing.assert_allclose(combine(GeometricMedian(iterations=200), uploads), expected, atol=1e-5)


def test_centred_clipping_is_the_loop_of_the_paper():
    uploads = draw(6)
    center = np.median(uploads, axis=0)
    for _ in range(4):
        moves = [upload - center for upload in uploads]
        clipped = [move * min(1, 0.7 / np.linalg.norm(move)) for move in moves]
        center = center + np.mean(clipped, axis=0)
    np.testing.assert_allclose(combine(ClippedMean(radius=0.7, iterations=4), uploads), center, rtol=1e-12)


@pytest.mark.parametrize(("liars", "keep"), [(1, 1), (2, 3)])
def test_krum_is_the_loop_of_the_paper(liars, keep):
    uploads = draw(9)
    weights = np.arange(1, 10) / 45
    scores = []
    for upload in uploads:
        squares = sorted(np.sum((upload - other) ** 2) for other in uploads)
        scores.append(sum(squares[1 : 9 - liars - 2 + 1]))  # the first is the upload's own
    best = np.argsort(scores)[:keep]
    expected = weights[best] @ uploads[best] / weights[best].sum()
    np.testing.assert_allclose(combine(Krum(liars=liars, keep=keep), uploads, weights), expected, rtol=1e-12)


@pytest.mark.parametrize("rule", [CoordinateMedian(), TrimmedMean(), GeometricMedian(), ClippedMean(), Krum()])
def test_an_upload_that_did_not_arrive_does_not_count(rule):
    uploads = draw(8)
    expected = combine(rule, uploads[:6], np.full(6, 1 / 6))
    uploads[6:] = np.nan
    np.testing.assert_allclose(combine(rule, uploads, np.array([1 / 6] * 6 + [0, 0])), expected, rtol=1e-12)
    assert not combine(rule, uploads, np.zeros(8)).any()


@pytest.mark.parametrize("rule", [CoordinateMedian(), TrimmedMean(), GeometricMedian(), ClippedMean(), Krum()])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_rule_hides_an_upload_that_is_not_finite(rule, value):
    uploads = draw(6)
    uploads[2, 1] = value
    assert np.isnan(combine(rule, uploads)).all()


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("edges", [None, [0, 0, 0, 1]])
def test_a_run_takes_medians_of_gradient_steps(tmp_path, edges):
    """Against a loop in NumPy: each edge takes the median of its clients, and the root the mean of the edges."""
    tree = () if edges is None else ("topology=tree", f"topology.map={edges}".replace(" ", ""))
    overrides = (*GRADIENT, "reg=none", "aggregate=coordinate_median", "client_weighting=uniform", "rounds=6", *tree)
    outputs = outputs_by_round(ragged(tmp_path, *overrides, sizes=SIZES))
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    w, expected = np.zeros(7), []
    for _ in range(6):
        steps = np.array([-0.03 * (q.H[m] @ w - q.c[m]) for m in range(4)])
        of_star, of_tree = np.median(steps, axis=0), 0.75 * np.median(steps[:3], axis=0) + 0.25 * steps[3]
        w = w + (of_star if edges is None else of_tree)
        expected.append(w)
    np.testing.assert_allclose(outputs, expected, atol=1e-12)


@pytest.mark.slow
def test_fedcomposite_combines_the_changes_of_its_clients(tmp_path):
    """A median of changes from a common point is a median of the points, and all clients know the number of steps."""
    uniform = ("algo=fedcomposite", "algo.client_lr=0.02", "algo.server_lr=0.7", "aggregate=coordinate_median",
               "client_weighting=uniform", "local_epochs=null", "local_steps=4")  # fmt: skip
    config = ragged(tmp_path, *uniform, "reg.strength=0.4", "rounds=6", sizes=SIZES)
    q = Quadratics(config)
    steps = {"eta": 0.02, "eta_g": 0.7, "steps": 4}
    expected = q.box("zhang", **steps, psi_prox=q.psi, combine=lambda points: np.median(points, axis=0))
    np.testing.assert_allclose(outputs_by_round(config), expected[:6], atol=1e-11)
    assert np.abs(np.array(expected) - q.box("zhang", **steps, psi_prox=q.psi)).max() > 1e-3


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("algo=scaffold", "reg=none"), ("algo=scaffold", "increments", "aggregate=krum")),
        (("algo=feddr",), ("algo=feddr", "increments", "aggregate=krum")),
        (("algo=ef21", "algo.step=0.1"), ("algo=ef21", "remember", "aggregate=krum")),
        (("algo=diana", "algo.step=0.1"), ("algo=diana", "remember", "aggregate=krum")),
        (("algo=fedsplit",), ("algo=fedsplit", "sends points", "aggregate=krum")),
        (("algo=newton",), ("algo=newton", "Hessians", "aggregate=krum")),
        (("algo=fedavg", "uplink=topk"), ("uplink=topk", "aggregate=krum")),
        (("algo=fedavg", "topology=graph"), ("aggregate=krum", "topology=graph")),
        (
            ("algo=fedavg", "topology=asynchronous", "topology.buffer=2", "clock=lognormal"),
            ("aggregate=krum", "topology=asynchronous"),
        ),
        (("algo=centralized",), ("algo=centralized", "aggregate")),
        (("algo=fedavg", "clients_per_round=4"), ("aggregate=krum", "5 clients", "4 send")),
        (("algo=fedavg", "topology=tree", "clients_per_round=8"), ("each edge", "clients_per_round=null")),
    ],
)
def test_what_cannot_be_combined_is_refused(overrides, words):
    with fails(*words):
        prepare(small("clients_per_round=null", "aggregate=krum", *overrides))


def test_a_receiver_with_too_few_clients_is_refused(tmp_path):
    tree = ("topology=tree", "topology.map=[0,0,0,0,0,1,1]")
    experiment = prepare(ragged(tmp_path, *GRADIENT, "reg=none", "aggregate=krum", *tree, sizes=[4] * 7))
    with fails("aggregate=krum", "5 clients", "2 send"):
        check_data(experiment, load_data(experiment))
    with fails("aggregate.trim=0.5", "less than 0.5"):
        TrimmedMean(trim=0.5)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("aggregate=coordinate_median", "faults.liars=3"), ("3 liars among 6", "bears 2", "faults.liars")),
        (("aggregate=trimmed_mean", "aggregate.trim=0.3", "faults.liars=0.34"), ("2 liars among 6", "bears 1")),
        (("aggregate=krum", "faults.liars=[0,1]"), ("2 liars among 6", "aggregate=krum", "bears 1")),
        (("aggregate=coordinate_median", "clients_per_round=3", "faults.liars=3"), ("1.5 liars among 3", "bears 1")),
    ],
)
def test_more_liars_than_a_rule_bears_are_refused(overrides, words):
    experiment = prepare(small("algo=fedavg", "reg=none", "clients_per_round=null", "faults=sign_flip", *overrides))
    with fails(*words):
        check_data(experiment, load_data(experiment))


def test_liars_that_a_rule_bears_are_accepted_and_by_the_mean_any():
    for rule, liars in (("coordinate_median", 2), ("trimmed_mean", 1), ("krum", 1), ("mean", 5)):
        experiment = prepare(small("algo=fedavg", "reg=none", "clients_per_round=null", "faults=sign_flip",
                                   f"aggregate={rule}", f"faults.liars={liars}"))  # fmt: skip
        check_data(experiment, load_data(experiment))


@pytest.mark.parametrize(("clients", "cohort"), [(24, "null"), (64, "null"), (64, 10), (64, 12)])
def test_the_default_share_of_liars_is_one_that_the_trimmed_mean_bears(clients, cohort):
    experiment = prepare(small("algo=fedavg", "reg=none", "faults=sign_flip", "aggregate=trimmed_mean",
                               f"data.clients={clients}", f"clients_per_round={cohort}"))  # fmt: skip
    check_data(experiment, load_data(experiment))
    assert experiment.faults.count_liars(24) == 4  # 4.8, as the rule cuts off


def test_the_list_of_algorithms_says_which_take_any_rule():
    takes_any = {name for name in choice_names("algo") if not traits_of(name).why_means_only}
    assert {"fedavg", "feddualavg", "fedmid", "fedprox", "fedgd", "fednova", "fedcomposite"} < takes_any
    assert not takes_any & {"scaffold", "feddyn", "fedadmm", "proxskip", "fedpd", "fedcef", "gram", "meta_analysis"}


# ---------------------------------------------------------------- servers that take single uploads


LARGEST = """
from dataclasses import dataclass

import jax.numpy as jnp

from fcorun import Algorithm, Traits


@dataclass(frozen=True)
class LargestLosses(Algorithm):
    source = "ours"
    traits = Traits(psi_sides=(), hierarchy="some")
    step: float = 0.03

    def local(self, problem, server, client, data):
        gradient, loss = problem.gradient(server, data.whole), problem.loss(server, data.whole)
        return {"change": -self.step * gradient, "loss": loss}, client

    def server_all(self, problem, server, uploads, weights):
        chosen = jnp.argsort(jnp.where(weights > 0, uploads["loss"], -jnp.inf))[-2:]
        return server + uploads["change"].map(lambda values: CHANGE)
"""
MEAN_OF_CHOSEN = "values[chosen].mean(axis=0)"


@pytest.fixture
def largest(user_module, tmp_path):
    """A function that writes ``algo=largest``, by default the mean update of the two clients of the largest losses."""

    def write(change=MEAN_OF_CHOSEN):
        user_module("largest", LARGEST.replace("CHANGE", change))
        write_choice(tmp_path / "conf", "algo", "largest", "class: largest.LargestLosses\nstep: 0.03")

    (tmp_path / "conf").mkdir()
    with use_config_dir(tmp_path / "conf"):
        yield write


def test_a_server_chooses_among_single_uploads(largest, tmp_path):
    """No client is lost to rounding: the losses are compared as they are, in no table that shares have multiplied."""
    largest()
    overrides = ("algo=largest", "reg=none", "clients_per_round=null", "rounds=15")
    config = ragged(tmp_path, *overrides, sizes=SIZES)
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    y = q.data.train.y
    constants = [np.mean(rows**2) for rows in np.split(y, q.data.train.offsets[1:-1])]
    w, expected = np.zeros(7), []
    for _ in range(15):
        losses = [w @ q.H[m] @ w / 2 - q.c[m] @ w + constants[m] for m in range(4)]
        chosen = np.argsort(losses)[-2:]
        w = w - 0.03 * np.mean([q.H[m] @ w - q.c[m] for m in chosen], axis=0)
        expected.append(w)
    np.testing.assert_allclose(outputs_by_round(config), expected, atol=1e-12)
    engine = engine_of(config)
    sizes = message_bytes(engine.federation, engine.federation.algorithm, engine.federation.uplink)
    assert sizes.bytes_up(4) == 4 * 8 * 8  # seven numbers and a loss of each client, in float64


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("topology=tree",), ("algo=largest", "topology=tree")),
        (("topology=graph",), ("algo=largest", "topology=graph")),
        (("topology=asynchronous", "topology.buffer=2", "clock=lognormal"), ("algo=largest", "topology=asynchronous")),
        (("aggregate=krum",), ("algo=largest", "leave `aggregate=krum` out".replace("`", ""))),
    ],
)
def test_where_no_server_has_single_uploads_they_are_refused(largest, overrides, words):
    largest()
    with fails(*words):
        prepare(small("algo=largest", "reg=none", "clients_per_round=null", *overrides))


def test_check_tells_a_server_that_depends_on_the_order_of_clients(largest):
    largest()
    check = single_uploads.check_server_of_single_uploads
    assert verify(check, AlgorithmCase("largest"))
    assert not verify(check, AlgorithmCase("fedavg"))
    largest("values[0] + 0 * values[chosen].mean(axis=0)")
    with pytest.raises(Violation, match="permuted"):
        check(AlgorithmCase("largest"))
