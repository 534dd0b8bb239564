"""Noise that is correlated between rounds: its matrix, its sensitivity by brute force, its account, and runs."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import engine_of, fails, ragged, small, snapshots, verify
from scipy.special import binom

from fcorun import run
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import communication
from fcorun.interface.checks.problems import numbers_of
from fcorun.methods.communication.correlated_privacy import BandedPrivacy, TreePrivacy
from fcorun.methods.communication.gaussian_privacy import GaussianPrivacy
from fcorun.methods.communication.privacy_account import count_epsilon

dp_accounting = pytest.importorskip("dp_accounting")

TURNS = ("clients_per_round=cyclic:0.2", "data.clients=100")
MECHANISMS = {"tree": TreePrivacy(noise=2.0, clip=0.5), "banded": BandedPrivacy(noise=2.0, clip=0.5, bands=4)}


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("check", communication.PRIVACY_CHECKS, ids=lambda check: check.__name__)
def test_correlated_noise_has_the_properties_of_privacy(check, name):
    verify(check, communication.CommunicationCase("privacy", name))


# ---------------------------------------------------------------- matrices, in NumPy


def list_nodes(rounds):
    """Return the first and the last round, from 1, of each node that parts the first r rounds, for each r."""
    by_round = []
    for last in range(1, rounds + 1):
        nodes, end = [], last
        while end:
            size = end & -end
            nodes.append((end - size + 1, end))
            end -= size
        by_round.append(nodes)
    return by_round


def expand_root(count):
    """Return the first coefficients of the power series of sqrt(1 - x)."""
    lags = np.arange(count)
    return binom(0.5, lags) * (-1.0) ** lags


def build_matrices(name, rounds):
    """Return B, by which noises become that of each round, and C, which makes their sums of rounds."""
    if name == "banded":
        coefficients = expand_root(4)
        b = sum(coefficients[lag] * np.eye(rounds, k=-lag) for lag in range(4))
        return b, np.linalg.inv(b)
    by_round = list_nodes(rounds)
    nodes = sorted({node for nodes in by_round for node in nodes})
    sums = np.array([[node in nodes_of_sum for node in nodes] for nodes_of_sum in by_round], float)
    in_node = np.array([[first <= r <= last for r in range(1, rounds + 1)] for first, last in nodes], float)
    np.testing.assert_array_equal(sums @ in_node, np.tri(rounds))  # sums of nodes are the sums of the first rounds
    return np.diff(sums, axis=0, prepend=0), in_node


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_noise_of_rounds_has_the_covariance_of_its_matrix(name):
    rounds, count = 13, 20_000
    draw = jax.jit(MECHANISMS[name].draw_noise)
    message = {"weights": jnp.zeros(count), "bias": jnp.zeros(())}
    drawn = np.stack([draw(message, jnp.array([3, 5], jnp.uint32), number)["weights"] for number in range(rounds)])
    b, c = build_matrices(name, rounds)
    expected = b @ b.T  # noise times clip is 1
    deviations = np.sqrt((expected**2 + np.outer(expected.diagonal(), expected.diagonal())) / count)
    assert np.abs((drawn @ drawn.T / count - expected) / deviations).max() < 5
    np.testing.assert_allclose(b @ c, np.eye(rounds), atol=1e-12)
    for count in range(1, rounds + 1):
        of_sum = np.linalg.norm(b[:count].sum(axis=0))
        assert MECHANISMS[name].sum_noise(count) == pytest.approx(of_sum, rel=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("separation", [2, 3, 4, 5])
def test_no_client_changes_more_than_the_sensitivity(name, separation):
    """All sets of rounds with the separation are tried; messages that differ in direction change less."""
    rng = np.random.default_rng(0)
    for rounds in (1, 2, 5, 8, 11, 13):
        _, c = build_matrices(name, rounds)
        largest = 0.0
        for taken in itertools.product((False, True), repeat=rounds):
            numbers = np.flatnonzero(taken)
            if len(numbers) and (np.diff(numbers) >= separation).all():
                change = np.linalg.norm(c[:, numbers].sum(axis=1))
                directions = rng.standard_normal((len(numbers), 2))
                directions /= np.linalg.norm(directions, axis=1, keepdims=True)
                assert np.linalg.norm(c[:, numbers] @ directions) <= change + 1e-12
                largest = max(largest, change)
        found = MECHANISMS[name].find_sensitivity(rounds, separation)
        is_exact = name == "banded" or separation in (2, 4)
        assert largest - 1e-12 <= found <= largest * (1 + 1e-12 if is_exact else 1.15), (rounds, largest)


# ---------------------------------------------------------------- accounts


def test_one_participation_in_a_tree_costs_what_the_accountant_says():
    """An accountant of Renyi divergences knows trees in which a client takes part once."""
    for rounds in (1, 7, 64, 1000):
        relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL  # one of whom messages count as 0
        accountants = [dp_accounting.rdp.RdpAccountant(neighboring_relation=relation) for _ in range(2)]
        accountants[0].compose(dp_accounting.SingleEpochTreeAggregationDpEvent(3.0, rounds))
        sensitivity = MECHANISMS["tree"].find_sensitivity(rounds, rounds)
        accountants[1].compose(dp_accounting.GaussianDpEvent(3.0 / sensitivity))
        first, second = (accountant.get_epsilon(1e-5) for accountant in accountants)
        assert first == pytest.approx(second, rel=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
def test_an_account_is_that_of_one_gaussian_mechanism(name):
    privacy = MECHANISMS[name]
    for rounds in (1, 40, 101):
        sensitivity = privacy.find_sensitivity(rounds, 10)
        epsilon = privacy.find_epsilon(rounds, "cyclic:0.1")
        assert epsilon == count_epsilon(2.0 / sensitivity, 1e-5, 1)
        noise = privacy.find_noise(epsilon, rounds, "cyclic:0.1")
        assert 2.0 <= noise < 2.004
    assert privacy.find_epsilon(0, "cyclic:0.1") == 0


def test_a_band_of_one_is_gaussian_noise():
    banded, gaussian = BandedPrivacy(noise=2.0, bands=1), GaussianPrivacy(noise=2.0)
    assert banded.find_epsilon(101, "cyclic:0.1") == pytest.approx(gaussian.find_epsilon(101, "cyclic:0.1"), rel=1e-12)
    message = {"weights": jnp.zeros(5)}
    drawn, expected = (privacy.draw_noise(message, (3, 5), 7)["weights"] for privacy in (banded, gaussian))
    np.testing.assert_array_equal(drawn, expected)


def test_sums_of_many_rounds_have_less_noise_at_the_same_epsilon():
    """10,000 clients, 100 in each of 1,000 rounds: the deviation of the noise in the sum of all, for epsilon 16."""
    rounds, turns = 1000, "cyclic:0.01"
    deviations = {"gaussian": GaussianPrivacy().find_noise(16, rounds, turns) * math.sqrt(rounds)}
    deviations["tree"] = TreePrivacy().find_noise(16, rounds, turns) * math.sqrt(rounds.bit_count())
    for bands in (16, 32):
        sums = np.cumsum(np.where(np.arange(rounds) < bands, expand_root(rounds), 0))
        deviations[bands] = BandedPrivacy(bands=bands).find_noise(16, rounds, turns) * np.linalg.norm(sums)
    rounded = {name: round(float(value), 1) for name, value in deviations.items()}
    assert rounded == {"gaussian": 34.4, "tree": 9.9, 16: 7.5, 32: 6.0}
    by_chance = 10.0 / math.sqrt(rounds)  # of cohorts by a probability, which hide who takes part
    assert count_epsilon(by_chance, 1e-5, rounds, 0.01) > 16


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_model_is_the_sum_of_all_messages_and_of_noise_that_cancels(tmp_path, name):
    """Sums are divided by the weight of an average cohort, whoever takes part or drops out: clients are unequal."""
    sizes = (3, 7, 10, 2, 5) * 24
    config = ragged(tmp_path, "algo=fedavg", "reg=none", "algo.client_lr=0.05", "algo.server_lr=1", "batch_size=null",
                    "objective.intercept=false", "data.standardize=none", f"privacy={name}", "privacy.clip=0.04",
                    "privacy.noise=3", "clients_per_round=cyclic:0.21", "faults=dropout", "faults.dropout=0.3",
                    "rounds=9", sizes=sizes)  # fmt: skip
    federation = engine_of(config).federation
    train, schedule, privacy = federation.data.train, federation.schedule, prepare(config).privacy
    x, y, sizes, w = np.asarray(train.x, float), np.asarray(train.y, float), np.array(sizes), np.zeros(6)
    key, threshold = jnp.asarray(schedule.draw_noise_key()), schedule.faults.dropout_threshold
    models, n_clipped = [w], 0
    for number in range(9):
        cohort = schedule.draw_cohort(number)
        assert len(cohort) == 25
        total = sizes.max() * np.asarray(privacy.draw_noise({"weights": jnp.zeros(6)}, key, number)["weights"], float)
        for client in cohort[schedule.draw_present(np.array([number]), cohort[None], threshold)[0]]:
            rows = slice(train.offsets[client], train.offsets[client + 1])
            change = -0.05 * 2 * x[rows].T @ (x[rows] @ w - y[rows]) / sizes[client]
            n_clipped += np.linalg.norm(change) > 0.04
            total += sizes[client] * change * min(1, 0.04 / np.linalg.norm(change))
        w = w + total / (25 / 120 * sizes.sum())
        models.append(w)
    found = [snapshot.solution["weights"][0] for snapshot in snapshots(config)]
    np.testing.assert_allclose(found, models, rtol=1e-6, atol=2e-8)  # noise is drawn in float32
    assert n_clipped > 0


@pytest.mark.parametrize(
    "algo",
    ["fedavg", "fedavg_threshold", "feddualavg", "feddualavg_osp", "fedcomposite", "fedmid", "fedmid_osp", "scaffold"],
)
def test_servers_that_take_a_prox_in_each_round_say_so(algo):
    """All others add up messages, so that two rounds are one of the sum of both."""
    config = small(f"algo={algo}", "reg.strength=0.5", "data.clients=100", "clients_per_round=null", "privacy=gaussian")
    federation = engine_of(config).federation
    algorithm, problem = federation.bind(numbers_of(config))
    problem = replace(problem.for_side("server"), share=1.0)
    rng = np.random.default_rng(0)

    def draw_message():
        def draw(leaf):
            values = rng.standard_normal(leaf.shape)
            return jnp.asarray(values if leaf.shape else abs(values), leaf.dtype)  # sums of rates are positive

        return jax.tree.map(draw, federation.shapes.uploads[0])

    first, second = draw_message(), draw_message()
    start, _ = algorithm.init(problem, problem.zeros(jnp.float32))
    after_both = algorithm.server(problem, algorithm.server(problem, start, first), second)
    after_sum = algorithm.server(problem, start, jax.tree.map(jnp.add, first, second))
    pairs = zip(jax.tree.leaves(after_both), jax.tree.leaves(after_sum), strict=True)
    is_sum = all(np.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in pairs)
    assert is_sum != algorithm.traits.loses_sum_of_messages


def test_a_record_names_the_cost_and_an_algorithm_without_a_sum():
    config = small("algo=fedmid", *TURNS, "privacy=banded", "privacy.epsilon=4", "privacy.delta=1e-3", "rounds=12")
    record = run(config, "here")
    section = record.summary["privacy"]
    assert 3.99 < section["epsilon"] == record.metrics["epsilon"].iloc[-1] <= 4
    assert section["participations"] == 3
    assert (np.diff(record.metrics["epsilon"]) >= 0).all()
    assert "that of algo=fedmid applies psi in each round" in Path("here/run.log").read_text(encoding="utf-8")
    assert not prepare(small("algo=feddualavg", *TURNS, "privacy=banded")).warning


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("clients_per_round=null",), ("privacy=tree", "clients_per_round=cyclic:0.1", "privacy=gaussian")),
        (("clients_per_round=poisson:0.4",), ("privacy=tree", "clients_per_round=cyclic:0.1")),
        (("clients_per_round=20",), ("privacy=tree", "clients_per_round=cyclic:0.1")),
        (("clients_per_round=cyclic:1",), ("privacy=tree", "clients_per_round=cyclic:0.1")),
        (("uplink=topk",), ("uplink=topk", "privacy=gaussian privacy.noise_by=clients")),
        (("privacy.epsilon=1", "privacy.noise=1"), ("give one of them",)),
        (("stop={epsilon: 0.01}",), ("stop.epsilon=0.01", "raise privacy.noise")),
    ],
)
def test_runs_without_an_account_are_refused(overrides, words):
    with fails(*words):
        prepare(small("algo=fedavg", "reg=none", *TURNS, "privacy=tree", *overrides))
