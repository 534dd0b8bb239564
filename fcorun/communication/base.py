"""Base classes of topologies, and of the uplink between a client and the mean of the uploads."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np

PyTree = Any  # an array, or nested tuples and dicts of arrays


@dataclass(frozen=True)
class Topology(ABC):
    """A topology plug-in: the pairs that communicate, for any algorithm. The options are the keys of its YAML.

    Attributes:
        source: the publication, in the notation of fcorun.sources.catalogue; not inherited.
    """

    source: ClassVar[str]

    @property
    def edge_rounds(self) -> int | None:
        """The rounds of an edge with its clients in each round of the server; None without edges."""
        return None

    @abstractmethod
    def assign_edges(self, clients: Sequence[str]) -> np.ndarray | None:
        """Return the edge of each of M ``clients``, given by name, (M,), counted from 0; None without edges."""

    def sources(self) -> str | None:
        """Return a digest of the files that the topology reads; None without files."""
        return None


class Uplink(ABC):
    """The path of an upload from a client to the mean: the place of compression, noise and rounding.

    The methods are pure functions, traced like those of an algorithm. The mean is taken of the results of ``send``.
    """

    def init(self, upload: Callable[[], PyTree]) -> PyTree:
        """Return the initial memory of the uplink on each client; None means no memory.

        ``upload()`` returns the shapes of an upload.
        """
        return None

    @abstractmethod
    def send(self, upload: PyTree, memory: PyTree, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Return the delivered upload of one client and the new memory.

        ``key`` is a random key of the client in this round.
        """

    def upload_bytes(self, upload: PyTree, declared_bytes: int) -> int:
        """Return the bytes of an upload of these shapes in transit.

        ``declared_bytes`` are the bytes that the algorithm declares.
        """
        return declared_bytes


class Identity(Uplink):
    """An uplink that delivers uploads unchanged."""

    def send(self, upload, memory, key):
        return upload, memory
