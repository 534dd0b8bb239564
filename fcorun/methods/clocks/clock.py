"""The contract of a clock: how fast clients compute and send, for the simulated time of a run; and no clock."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from numpy import ndarray

from fcorun.base.config import PluginBase, Positive


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
