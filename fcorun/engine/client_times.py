"""Simulated times of clients: how long each computes and sends, and in which order their uploads arrive.

Times follow from the clients' speeds, the rows of their minibatches and the bytes of their messages, not from any
number that a run computes. So the host knows them before a round, and a resumed run has the same times.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fcorun.base.system import random_streams
from fcorun.methods.clocks.clock import ClientSpeeds

_TIMES = 7  # the stream of random numbers, beside those of ``fcorun.engine.schedule``


@dataclass(frozen=True)
class ClientTimes:
    """The times of M clients, from their speeds.

    Attributes:
        deadline: the seconds after which a client ends its local steps; None: no deadline.
    """

    speeds: ClientSpeeds
    deadline: float | None = None

    def gradient_seconds(self, seed: int, numbers: np.ndarray, clients: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return the seconds of the gradient of one example, (N,), of clients in the rounds ``numbers``.

        All arguments but the seed have the shape (N,). ``keys`` identify the clients in their random streams.
        """
        seconds = 1 / self.speeds.gradients_per_second[clients]
        if not self.speeds.variation:
            return seconds
        from scipy.special import ndtri  # takes long to import, and few runs have a clock

        uniform = random_streams.draw_uniforms(random_streams.stream_states(_TIMES, seed, numbers, keys), 1)[:, 0]
        return seconds * np.exp(self.speeds.variation * ndtri(uniform + 2.0**-54))

    def message_seconds(self, clients: np.ndarray, n_bytes: int) -> np.ndarray:
        """Return the seconds that a message of so many bytes to or from each client takes, (N,)."""
        return self.speeds.latency[clients] + n_bytes / self.speeds.bytes_per_second[clients]


class Arrivals(NamedTuple):
    """The arrivals of uploads at an asynchronous server, in their order.

    Attributes:
        clients: the client of each arrival, (R,).
        seconds: the time of each arrival, (R,).
        starts: the number of arrivals before the client began, (R,).
        works: the number of the client's own arrivals before, (R,).
    """

    clients: np.ndarray
    seconds: np.ndarray
    starts: np.ndarray
    works: np.ndarray


def order_arrivals(work_seconds: Callable[[int], np.ndarray], n_arrivals: int) -> Arrivals:
    """Return the first arrivals of clients that all begin at time 0, and begin anew whenever their upload has arrived.

    Of two uploads that arrive at once, that of the client of the smaller number is first.

    Args:
        work_seconds: returns for a number J the seconds of the first J works of each client, (M, J).
    """
    count = 1
    while True:
        times = np.cumsum(work_seconds(count), axis=1)
        known = times <= times[:, -1].min()  # later arrivals may be preceded by ones that are not yet drawn
        if known.sum() >= n_arrivals:
            break
        count *= 2
    clients, works = np.nonzero(known)
    order = np.lexsort((clients, times[known]))[:n_arrivals]
    clients, seconds, works = clients[order], times[known][order], works[order]
    starts = np.zeros(n_arrivals, np.int64)
    by_client = np.argsort(clients, kind="stable")  # the arrivals of each client one after the other
    same_client = clients[by_client][1:] == clients[by_client][:-1]
    starts[by_client[1:][same_client]] = by_client[:-1][same_client] + 1
    return Arrivals(clients, seconds, starts, works)
