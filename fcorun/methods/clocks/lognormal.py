"""Clients whose speeds follow a lognormal law."""

from dataclasses import dataclass

import numpy as np

from fcorun.base.config import Index, NonNegative, Positive
from fcorun.methods.clocks.clock import ClientSpeeds, Clock


@dataclass(frozen=True, kw_only=True)
class LognormalClock(Clock):
    """A clock whose clients differ in speed by lognormal factors, as do a client's rounds.

    The law, and the default of each number, are our choice: measured speeds of phones have long right tails.

    Attributes:
        gradients_per_second: the median over clients of the example gradients computed in a second.
        speed_spread: the standard deviation of the logarithm of this speed over clients; 0: all are equal.
        bytes_per_second: the median over clients of the bytes that a link carries in a second.
        link_spread: the standard deviation of the logarithm of this speed over clients.
        latency: the seconds that a message takes besides its bytes.
        variation: the standard deviation of the logarithm of a factor of the computing time, drawn for each round.
        seed: the seed of the clients' speeds, which runs with equally many clients share. The factors of rounds follow
            the run's seed.
    """

    source = "ours"

    gradients_per_second: Positive = 1e4
    speed_spread: NonNegative = 0.5
    bytes_per_second: Positive = 1e6
    link_spread: NonNegative = 0.5
    latency: NonNegative = 0.05
    variation: NonNegative = 0.2
    seed: Index = 0

    def speeds(self, clients):
        computing, link = np.random.default_rng(self.seed).standard_normal((2, len(clients)))
        return ClientSpeeds(
            self.gradients_per_second * np.exp(self.speed_spread * computing),
            self.bytes_per_second * np.exp(self.link_spread * link),
            np.full(len(clients), self.latency),
            self.variation,
        )
