"""Clients that take part in each round by a probability."""

from dataclasses import replace
from itertools import pairwise

import jax
import numpy as np
import pytest
from helpers import engine_of, fails, ragged, small, snapshots
from scipy.stats import binom, kstest

from fcorun.base.system.machine import use_precision
from fcorun.engine.engine import build_traffic, message_bytes
from fcorun.engine.schedule import Schedule
from fcorun.experiment.prepare import prepare

SIZES = (3, 7, 10, 2, 5)
FEDAVG = ("algo=fedavg", "reg=none", "algo.client_lr=0.05", "algo.server_lr=1", "objective.intercept=false")
FULL = (*FEDAVG, "data.standardize=none", "batch_size=null", "rounds=8")


def test_each_client_takes_part_by_itself():
    """Counts are binomial, as are the rounds of each pair; the width of a round exceeds every count."""
    schedule = Schedule(np.arange(201), 3, participation=0.05)
    cohorts = [schedule.draw_participants(number) for number in range(2000)]
    counts = np.array([len(cohort) for cohort in cohorts])
    assert schedule.cohort_size == 51 < 200
    law = binom(200, 0.05)
    assert abs(counts.mean() - 10) < 4 * law.std() / np.sqrt(2000)
    assert abs(counts.var() / law.var() - 1) < 4 * np.sqrt(2 / 2000)
    takes_part = np.zeros((2000, 200))
    for number, cohort in enumerate(cohorts):
        takes_part[number, cohort] = 1
    assert kstest(binom(2000, 0.05).cdf(takes_part.sum(axis=0)), "uniform").pvalue > 1e-3
    together = (takes_part.T @ takes_part)[np.triu_indices(200, 1)]
    assert abs(together.mean() / (2000 * 0.05**2) - 1) < 0.05
    assert 0.5 < together.var() / (2000 * 0.05**2) < 1.5


def test_cohorts_follow_from_the_seed_and_the_round():
    schedule = Schedule(np.arange(201), 3, participation=0.05)
    drawn = schedule.draw_rounds(4, 3)
    for cohort, takes_part, number in zip(drawn.cohort, drawn.faults.takes_part, range(4, 7), strict=True):
        np.testing.assert_array_equal(cohort[takes_part], schedule.draw_participants(number))
        assert len(set(cohort)) == schedule.cohort_size
    assert (replace(schedule, seed=4).draw_rounds(4, 3).faults.takes_part != drawn.faults.takes_part).any()
    larger = replace(schedule, participation=0.1).draw_participants(4)
    assert set(schedule.draw_participants(4)) < set(larger)


@pytest.mark.parametrize("probability", ["0.3", "0.05"])
def test_rounds_are_those_of_a_loop_by_hand(tmp_path, probability):
    """The mean divides by the weight of those that take part; without any the server's model stays."""
    sizes = SIZES * 12
    config = ragged(tmp_path, *FULL, f"clients_per_round=poisson:{probability}", sizes=sizes)
    federation = engine_of(config).federation
    schedule = federation.schedule
    train = federation.data.train
    x, y = np.asarray(train.x, float), np.asarray(train.y, float)
    w = np.zeros(x.shape[1])
    expected = [w]
    evaluations = 0
    cohorts = [schedule.draw_participants(number) for number in range(8)]
    for cohort in cohorts:
        total, weight = np.zeros_like(w), 0
        for client in cohort:
            rows = slice(train.offsets[client], train.offsets[client + 1])
            total -= 0.05 * 2 * x[rows].T @ (x[rows] @ w - y[rows])
            weight += sizes[client]
        if weight:
            w = w + total / weight
        evaluations += weight
        expected.append(w)
    run = snapshots(config)
    models = [snapshot.solution["weights"][0] for snapshot in run]
    np.testing.assert_allclose(models, expected, rtol=1e-10, atol=1e-13)
    assert run[-1].work[0, 0] == evaluations
    with use_precision("float64"):
        sizes = message_bytes(federation, federation.algorithm, federation.uplink)
    sent = sum(map(len, cohorts)) * 8 * x.shape[1]
    assert build_traffic(federation, 8, 0).bytes_after(8, sizes) == {"bytes_up": sent, "bytes_down": sent}


def test_an_empty_cohort_keeps_the_state_of_the_server(tmp_path):
    """Adam's moments would move the model without a message, too."""
    config = ragged(tmp_path, "algo=fedadam", "reg=none", "clients_per_round=poisson:0.2", "rounds=12", sizes=SIZES)
    schedule = engine_of(config).federation.schedule
    models = [snapshot.solution["weights"][0] for snapshot in snapshots(config)]
    is_empty = [len(schedule.draw_participants(number)) == 0 for number in range(12)]
    assert 0 < sum(is_empty) < 12
    assert [bool((a == b).all()) for a, b in pairwise(models)] == is_empty


def test_states_of_clients_that_do_not_take_part_stay(tmp_path):
    config = ragged(tmp_path, "algo=scaffold", "reg=none", "clients_per_round=poisson:0.2", "rounds=1", sizes=SIZES)
    engine = engine_of(config)
    start, end = (snapshot.state["clients"] for snapshot in snapshots(config))
    changed = np.zeros(5, bool)
    for old, new in zip(jax.tree.leaves(start), jax.tree.leaves(end), strict=True):
        changed |= (np.asarray(old) != np.asarray(new)).reshape(5, -1).any(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(changed), engine.federation.schedule.draw_participants(0))


def test_the_probability_1_is_all_clients(tmp_path):
    runs = []
    for cohort in ("null", "poisson:1"):
        config = ragged(tmp_path, "algo=scaffold", "batch_size=3", f"clients_per_round={cohort}", sizes=SIZES)
        runs.append([snapshot.solution["weights"] for snapshot in snapshots(config)])
    np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("algo=newton",), "needs all clients in every round"),
        (("topology=tree",), "has no single server"),
        (("topology=graph",), "has no single server"),
        (("aggregate=krum",), "number of uploads"),
        (("clock=lognormal",), "counts the time"),
        (("faults=dropout",), "leave faults.dropout"),
    ],
)
def test_what_needs_a_known_number_of_clients_refuses(overrides, words):
    with fails("clients_per_round=poisson:0.2", words):
        prepare(small("algo=fedavg", "reg=none", "clients_per_round=poisson:0.2", *overrides))
