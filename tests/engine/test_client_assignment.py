"""The assignment of a cohort's clients to the devices of the hosts that store their rows."""

import numpy as np
import pytest

from fcorun.engine.segments.row_fetching import assign_clients_to_devices, host_positions, index_within_host

HOST_OF_CLIENT = np.repeat([0, 1, 2], [5, 2, 4])
ALL = np.arange(11)[None]
SOME = np.random.default_rng(0).permuted(np.tile(ALL, (7, 1)), axis=1)[:, :4]
SEEDS = np.array([[[5, 0], [6, 5]], [[1, 2], [10, 7]]])


@pytest.mark.parametrize("devices_per_host", [1, 2])
@pytest.mark.parametrize("cohort", [ALL, SOME, SEEDS], ids=["all", "some", "of seeds"])
def test_each_position_is_assigned_once_to_a_device_of_its_clients_host(cohort, devices_per_host):
    assignment = assign_clients_to_devices(cohort, HOST_OF_CLIENT, devices_per_host)
    size = cohort.shape[-1]
    assert assignment.shape[:-1] == (*cohort.shape[:-1], 3 * devices_per_host)
    index = index_within_host(assignment, size, devices_per_host)
    for k in np.ndindex(*cohort.shape[:-1]):
        assert sorted(assignment[k][assignment[k] >= 0]) == list(range(size))
        for host in range(3):
            positions = host_positions(assignment[k], host, devices_per_host)
            assigned = positions[positions >= 0]
            assert (HOST_OF_CLIENT[cohort[k][assigned]] == host).all()
            devices = slice(host * devices_per_host, (host + 1) * devices_per_host)
            assert np.ptp((assignment[k][devices] >= 0).sum(axis=1)) <= 1
            np.testing.assert_array_equal(positions[index[k][assigned]], assigned)


def test_full_participation_has_the_least_width_and_later_segments_are_as_wide():
    assert assign_clients_to_devices(np.arange(11)[None], HOST_OF_CLIENT, 1).shape == (1, 3, 5)
    assert assign_clients_to_devices(np.arange(11)[None], HOST_OF_CLIENT, 2).shape == (1, 6, 3)
    assert assign_clients_to_devices(np.array([[5, 6]]), HOST_OF_CLIENT, 1, min_width=7).shape == (1, 3, 7)
