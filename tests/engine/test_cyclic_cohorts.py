"""Clients that take turns."""

import numpy as np
import pytest
from helpers import fails, small, verify

from fcorun.base.cohorts import count_participations, fixed_cohort_size, read_separation
from fcorun.engine.schedule import Schedule
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import algorithms


@pytest.mark.parametrize(("share", "n_clients"), [("0.1", 100), ("0.3", 100), ("0.07", 101), ("0.6", 11), ("1", 7)])
def test_each_client_takes_part_as_rarely_as_is_counted(share, n_clients):
    """A brute-force count over the rounds; all clients have their turn before one of them has the next."""
    cohort, rounds = f"cyclic:{share}", 90
    size, separation = fixed_cohort_size(cohort, n_clients), read_separation(cohort)
    schedule = Schedule(np.arange(n_clients + 1), 3, clients_per_round=size, in_turn=True)
    numbers = {client: [] for client in range(n_clients)}
    for number in range(rounds):
        drawn = schedule.draw_cohort(number)
        assert len(set(drawn)) == size == int(float(share) * n_clients + 1e-9)
        for client in drawn:
            numbers[client].append(number)
    gaps = np.concatenate([np.diff(of_client) for of_client in numbers.values()])
    assert gaps.min() >= separation == int(1 / float(share) + 1e-9)
    assert max(map(len, numbers.values())) <= count_participations(cohort, rounds) == -(-rounds // separation)
    counts = [len(of_client) for of_client in numbers.values()]
    assert max(counts) - min(counts) <= 1


def test_the_order_is_a_random_one_of_the_seed():
    first, other = (Schedule(np.arange(1001), seed, clients_per_round=100, in_turn=True) for seed in (0, 1))
    turns = np.empty((2, 1000))  # the round in which each client takes part
    for of_seed, schedule in zip(turns, (first, other), strict=True):
        for number in range(10):
            of_seed[schedule.draw_cohort(number)] = number
    correlations = np.corrcoef([*turns, np.arange(1000)])[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(1000)
    np.testing.assert_array_equal(first.with_seed(1).draw_cohort(3), other.draw_cohort(3))


RUN_CHECKS = (algorithms.check_resuming, algorithms.check_grid_equals_single_runs, algorithms.check_two_devices)


@pytest.mark.parametrize("check", RUN_CHECKS, ids=lambda check: check.__name__)
def test_runs_of_clients_that_take_turns_and_drop_out(check):
    verify(
        check,
        algorithms.AlgorithmCase("scaffold", ("clients_per_round=cyclic:0.5", "faults=dropout", "faults.dropout=0.3")),
    )


def test_an_asynchronous_server_has_no_turns():
    with fails("clients_per_round=cyclic:0.5", "clients_per_round=null"):
        prepare(small("algo=fedavg", "reg=none", "clients_per_round=cyclic:0.5", "topology=asynchronous",
                      "clock=lognormal"))  # fmt: skip
