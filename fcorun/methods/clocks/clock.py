"""Clocks, which say for the simulated time of a run how fast clients compute and send: their contract, and clocks."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from fcorun.base.config import Index, NonNegative, PathOption, PluginBase, Positive
from fcorun.base.errors import UserError
from fcorun.data.tables.readers import digest_option_file, read_option_file


@dataclass(frozen=True)
class ClientSpeeds:
    """The speeds of M clients.

    Attributes:
        gradients_per_second: the gradients of single examples that a client computes in a second.
        bytes_per_second: the bytes that its link carries in a second, in either direction.
        latency: the seconds that a message takes besides its bytes.
        variation: the standard deviation of the logarithm of a factor of a client's computing time, drawn anew for
            each round; 0: no such factor.
    """

    gradients_per_second: Float[ndarray, " M"]
    bytes_per_second: Float[ndarray, " M"]
    latency: Float[ndarray, " M"]
    variation: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Clock(PluginBase, ABC):
    """A clock plug-in: the speeds of clients. The options are the keys of its YAML.

    A client of a round receives the broadcast, computes its local steps, and sends its upload. A round lasts until the
    last client's upload has arrived. The time of the server is not counted.

    Attributes:
        deadline: the seconds after which a client ends its local steps, finished or not, but not before the first
            step; None: no deadline.
        source: the publication, in the notation of fcorun.base.sources.catalogue; not inherited.
    """

    source: ClassVar[str]

    deadline: Positive | None = None

    @abstractmethod
    def speeds(self, clients: Sequence[str]) -> ClientSpeeds:
        """Return the speeds of these clients, given by name. Raises UserError for a file that lacks a client."""


@dataclass(frozen=True, kw_only=True)
class NoClock(Clock):
    """A clock that measures nothing: runs have no simulated time, and clients no speeds."""

    source = "textbook"

    def speeds(self, clients):
        raise NotImplementedError("no simulated time, no speeds")


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


_COLUMNS = ("gradients_per_second", "bytes_per_second", "latency")


@dataclass(frozen=True, kw_only=True)
class TraceClock(Clock):
    """A clock that reads the speed of each client from a file.

    Attributes:
        path: a CSV file with the columns client, gradients_per_second, bytes_per_second and latency, in seconds, and a
            row for each client.
        variation: the standard deviation of the logarithm of a factor of the computing time, drawn for each round.
    """

    source = "ours"

    path: PathOption
    variation: NonNegative = 0.0

    def speeds(self, clients):
        rows = self._read_rows()
        missing = next((name for name in clients if name not in rows), None)
        if missing is not None:
            raise UserError(f"`clock.path={self.path}` has no row for client {missing}: give a row for each client")
        gradients, sent, latency = np.array([rows[name] for name in clients]).T
        return ClientSpeeds(gradients, sent, latency, self.variation)

    def sources(self):
        return digest_option_file(self.path, "clock.path")

    def _read_rows(self) -> dict[str, tuple[float, ...]]:
        """Return the numbers of each client, by name. Raises UserError."""
        content = f"the columns client, {', '.join(_COLUMNS)}"
        table = read_option_file(self.path, "clock.path", ("client", *_COLUMNS), content)
        rows: dict[str, tuple[float, ...]] = {}
        for row in table:
            if row["client"] in rows:
                raise UserError(
                    f"`clock.path={self.path}` has client {row['client']} more than once: give one row each"
                )
            values = []
            for column in _COLUMNS:
                try:
                    value = float(row[column])
                except ValueError:
                    value = math.nan
                if not (math.isfinite(value) and (value > 0 or (value == 0 and column == "latency"))):
                    raise UserError(
                        f"`clock.path={self.path}`: {column} of client {row['client']} is '{row[column]}': give a "
                        f"finite number {'of at least 0' if column == 'latency' else 'above 0'}"
                    )
                values.append(value)
            rows[row["client"]] = tuple(values)
        return rows
