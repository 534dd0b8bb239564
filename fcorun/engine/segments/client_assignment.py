"""The assignment of a cohort's clients to devices, where rows are sharded over hosts."""

import numpy as np


def assign_clients_to_devices(
    cohort: np.ndarray, host_of_client: np.ndarray, devices_per_host: int, min_width: int = 0
) -> np.ndarray:
    """Return the positions in a cohort that each of D devices computes, (..., D, W), padded with -1.

    ``cohort`` (..., S) has the numbers of clients. A device computes clients whose rows its host stores;
    ``host_of_client`` (M,) has the host of each client. W is at least ``min_width``, the largest width so far. For
    cohorts of fewer than all clients W is rounded up, because each new width compiles another program.
    """
    size, n_hosts = cohort.shape[-1], int(host_of_client.max()) + 1
    host = host_of_client[cohort].reshape(-1, size)
    order = np.argsort(host, axis=1, kind="stable")
    host = np.take_along_axis(host, order, axis=1)
    counts = np.stack([(host == number).sum(axis=1) for number in range(n_hosts)], axis=1)
    position_in_host = np.arange(size) - np.take_along_axis(np.cumsum(counts, axis=1) - counts, host, axis=1)
    width_multiple = 1
    if size < len(host_of_client):  # the clients of a host in a random cohort vary by about sqrt(size / n_hosts)
        width_multiple = max(1, round((size / n_hosts) ** 0.5 / devices_per_host))
    width = max(min_width, -(-int(counts.max()) // (devices_per_host * width_multiple)) * width_multiple)
    positions = np.full((len(host), n_hosts, width, devices_per_host), -1, np.int32)
    positions[
        np.arange(len(host))[:, None], host, position_in_host // devices_per_host, position_in_host % devices_per_host
    ] = order
    return positions.swapaxes(2, 3).reshape(*cohort.shape[:-1], n_hosts * devices_per_host, width)


def host_positions(assignment: np.ndarray, host: int, devices_per_host: int) -> np.ndarray:
    """Return the positions that the devices of a host compute, one device after the other, (..., P)."""
    of_host = assignment[..., host * devices_per_host : (host + 1) * devices_per_host, :]
    return of_host.reshape(*assignment.shape[:-2], -1)


def index_within_host(assignment: np.ndarray, cohort_size: int, devices_per_host: int) -> np.ndarray:
    """Return the index of each position of the cohort in ``host_positions`` of its host, (..., S)."""
    flat = assignment.reshape(-1, assignment.shape[-2] * assignment.shape[-1])
    index = np.zeros((len(flat), cohort_size + 1), np.int64)
    number = np.arange(flat.shape[1]) % (devices_per_host * assignment.shape[-1])
    np.put_along_axis(index, np.where(flat < 0, cohort_size, flat), np.broadcast_to(number, flat.shape), axis=1)
    return index[:, :cohort_size].reshape(*assignment.shape[:-2], cohort_size)
