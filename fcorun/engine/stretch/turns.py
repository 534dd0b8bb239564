"""Whose turn it is: which clients of a cohort each device computes, where each host has the rows of its own."""

import numpy as np


def turns(cohort: np.ndarray, owner: np.ndarray, each: int, least: int = 0) -> np.ndarray:
    """The places in cohorts (..., S) that each device computes, (..., D, W), -1 for none: those of its host's clients.

    ``owner`` (M,) is the host of each client; hosts have ``each`` so many devices. W is as few as will do, and somewhat
    more, for every W is a program of its own, and ``least`` at least.
    """
    size, hosts = cohort.shape[-1], int(owner.max()) + 1
    who = owner[cohort].reshape(-1, size)
    order = np.argsort(who, axis=1, kind="stable")
    who = np.take_along_axis(who, order, axis=1)
    counts = np.stack([(who == host).sum(axis=1) for host in range(hosts)], axis=1)
    rank = np.arange(size) - np.take_along_axis(np.cumsum(counts, axis=1) - counts, who, axis=1)
    step = 1 if size == len(owner) else max(1, round((size / hosts) ** 0.5 / each))  # by how much parts of them vary
    width = max(least, -(-int(counts.max()) // (each * step)) * step)
    found = np.full((len(who), hosts, width, each), -1, np.int32)
    found[np.arange(len(who))[:, None], who, rank // each, rank % each] = order
    return found.swapaxes(2, 3).reshape(*cohort.shape[:-1], hosts * each, width)


def of_host(turn: np.ndarray, host: int, each: int) -> np.ndarray:
    """The places that the devices of a host compute, one after the other, (..., each * W)."""
    return turn[..., host * each : (host + 1) * each, :].reshape(*turn.shape[:-2], -1)


def numbered(turn: np.ndarray, size: int, each: int) -> np.ndarray:
    """Where each place of cohorts of this ``size`` stands among those of its host, which ``of_host`` has, (..., S)."""
    flat = turn.reshape(-1, turn.shape[-2] * turn.shape[-1])
    found = np.zeros((len(flat), size + 1), np.int64)
    number = np.arange(flat.shape[1]) % (each * turn.shape[-1])
    np.put_along_axis(found, np.where(flat < 0, size, flat), np.broadcast_to(number, flat.shape), axis=1)
    return found[:, :size].reshape(*turn.shape[:-2], size)
