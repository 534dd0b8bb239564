"""What a network is to fcorun: who talks to whom, and what happens to an upload on its way."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from fcorun.datasets.base import FederatedData

PyTree = Any  # a pytree of arrays


@dataclass(frozen=True)
class Topology(ABC):
    """A topology plug-in: who talks to whom, whatever the algorithm. Its options are the keys of its YAML.

    Attributes:
        source: where it comes from, as fcorun.sources.catalogue says; not inherited.
    """

    source: ClassVar[str]

    @property
    def edge_rounds(self) -> int | None:
        """Rounds of an edge with its clients in each round of the server; None where there are no edges."""
        return None

    @abstractmethod
    def assign_edges(self, data: FederatedData) -> np.ndarray | None:
        """The edge of each client, (M,), counted from 0; None where there are no edges."""

    def sources(self) -> str | None:
        """Something that changes when a file does that it reads; None without one."""
        return None


class Uplink(ABC):
    """What happens to an upload between a client and the mean: the place of compression, of noise, of rounding.

    Its functions are pure, and traced like an algorithm's. The mean is taken of what ``send`` returns.
    """

    def init(self, upload: Callable[[], PyTree]) -> PyTree:
        """What each client keeps for it from round to round, beside its state; None: nothing. ``upload()`` gives the
        shapes of an upload."""
        return None

    @abstractmethod
    def send(self, upload: PyTree, memory: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
        """On one client: what arrives, and its new memory. ``key`` is a random key of this client in this round."""

    def upload_bytes(self, upload: PyTree, declared_bytes: int) -> int:
        """The bytes that an upload of these shapes takes on its way; ``said`` is what the algorithm says of it."""
        return declared_bytes
