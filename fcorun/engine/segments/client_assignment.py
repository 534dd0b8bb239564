"""Whose turn it is: which clients of a cohort each device computes, where each host has the rows of its own."""

import numpy as np


def assign_clients(
    cohort: np.ndarray, host_of_client: np.ndarray, devices_per_host: int, min_width: int = 0
) -> np.ndarray:
    """The places in cohorts (..., S) that each device computes, (..., D, W), -1 for none: those of its host's clients.

    ``owner`` (M,) is the host of each client; hosts have ``each`` so many devices. W is as few as will do, and somewhat
    more, for every W is a program of its own, and ``least`` at least.
    """
    size, hosts = cohort.shape[-1], int(host_of_client.max()) + 1
    who = host_of_client[cohort].reshape(-1, size)
    order = np.argsort(who, axis=1, kind="stable")
    who = np.take_along_axis(who, order, axis=1)
    counts = np.stack([(who == host).sum(axis=1) for host in range(hosts)], axis=1)
    rank = np.arange(size) - np.take_along_axis(np.cumsum(counts, axis=1) - counts, who, axis=1)
    step = (
        1 if size == len(host_of_client) else max(1, round((size / hosts) ** 0.5 / devices_per_host))
    )  # by how much parts of them vary
    width = max(min_width, -(-int(counts.max()) // (devices_per_host * step)) * step)
    found = np.full((len(who), hosts, width, devices_per_host), -1, np.int32)
    found[np.arange(len(who))[:, None], who, rank // devices_per_host, rank % devices_per_host] = order
    return found.swapaxes(2, 3).reshape(*cohort.shape[:-1], hosts * devices_per_host, width)


def host_positions(assignment: np.ndarray, host: int, devices_per_host: int) -> np.ndarray:
    """The places that the devices of a host compute, one after the other, (..., each * W)."""
    return assignment[..., host * devices_per_host : (host + 1) * devices_per_host, :].reshape(
        *assignment.shape[:-2], -1
    )


def index_within_host(assignment: np.ndarray, cohort_size: int, devices_per_host: int) -> np.ndarray:
    """Where each place of cohorts of this ``size`` stands among those of its host, which ``of_host`` has, (..., S)."""
    flat = assignment.reshape(-1, assignment.shape[-2] * assignment.shape[-1])
    found = np.zeros((len(flat), cohort_size + 1), np.int64)
    number = np.arange(flat.shape[1]) % (devices_per_host * assignment.shape[-1])
    np.put_along_axis(found, np.where(flat < 0, cohort_size, flat), np.broadcast_to(number, flat.shape), axis=1)
    return found[:, :cohort_size].reshape(*assignment.shape[:-2], cohort_size)
