"""Which clients of a cohort each device computes, where each host has rows of its own."""

import numpy as np
import pytest

from fcorun.engine.segments.client_assignment import assign_clients, host_positions, index_within_host

OWNER = np.repeat([0, 1, 2], [5, 2, 4])
ALL = np.arange(11)[None]
SOME = np.random.default_rng(0).permuted(np.tile(ALL, (7, 1)), axis=1)[:, :4]
SEEDS = np.array([[[5, 0], [6, 5]], [[1, 2], [10, 7]]])


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("cohort", [ALL, SOME, SEEDS], ids=["all", "some", "of seeds"])
def test_each_place_is_once_with_a_device_of_its_clients_host(cohort, each):
    turn = assign_clients(cohort, OWNER, each)
    size = cohort.shape[-1]
    assert turn.shape[:-1] == (*cohort.shape[:-1], 3 * each)
    number = index_within_host(turn, size, each)
    for where in np.ndindex(*cohort.shape[:-1]):
        assert sorted(turn[where][turn[where] >= 0]) == list(range(size))
        for host in range(3):
            here = host_positions(turn[where], host, each)
            own = here[here >= 0]
            assert (OWNER[cohort[where][own]] == host).all()
            assert np.ptp((turn[where][host * each : (host + 1) * each] >= 0).sum(axis=1)) <= 1
            np.testing.assert_array_equal(here[number[where][own]], own)


def test_of_all_clients_a_device_has_no_more_than_it_needs_and_later_stretches_are_as_wide():
    assert assign_clients(np.arange(11)[None], OWNER, 1).shape == (1, 3, 5)
    assert assign_clients(np.arange(11)[None], OWNER, 2).shape == (1, 6, 3)
    assert assign_clients(np.array([[5, 6]]), OWNER, 1, min_width=7).shape == (1, 3, 7)
