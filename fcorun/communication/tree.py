"""A tree of clients, edges and the cloud."""

import csv
import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fcorun.communication.base import Topology
from fcorun.config import Count, Index
from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError


@dataclass(frozen=True)
class Tree(Topology):
    """Clients talk to their edge, and the edges to the server, the cloud.

    In a round, each edge that has clients in the cohort starts from the cloud's state and makes ``rounds`` rounds with
    them, with minibatches of their own; then the cloud takes the mean of the edges. Clients and edges are weighted as
    in F.

    Attributes:
        edges: their number; None: as many as ``map`` names, or without it about the square root of the clients.
        rounds: rounds of an edge with its clients in each round of the cloud.
        map: the edge of each client, counted from 0; or a CSV file with the columns client and edge, which names them;
            None: the clients in their order, in parts of one size, or nearly.
    """

    source = "with FedAvg, HierFAVG of @liu2020"

    edges: Count | None = None
    rounds: Count = 1
    map: list[Index] | str | None = None

    @property
    def edge_rounds(self):
        return self.rounds

    def assign_edges(self, data):
        """Raises UserError for a map that is not one of these clients, or has other edges than ``edges``."""
        clients = len(data.sizes)
        if self.map is None:
            edges = self.edges or max(round(clients**0.5), 1)
            if edges > clients:
                raise UserError(f"topology.edges={edges} is more than the {clients} clients: give at most {clients}")
            return np.arange(clients) * edges // clients
        found = self._read(data) if isinstance(self.map, str) else np.asarray(self.map, int)
        if len(found) != clients:
            raise UserError(
                f"topology.map has {len(found)} clients, and the data have {clients}: give an edge for each"
            )
        edges = int(found.max()) + 1
        missing = sorted(set(range(edges)) - set(found.tolist()))
        if missing:
            raise UserError(f"topology.map leaves edge {missing[0]} without clients: count the edges from 0 on")
        if self.edges not in (None, edges):
            raise UserError(f"topology.edges={self.edges}, and topology.map has {edges}: leave topology.edges out")
        return found

    def sources(self):
        if not isinstance(self.map, str):
            return None
        try:
            return hashlib.sha256(Path(self.map).read_bytes()).hexdigest()[:16]
        except OSError as error:
            raise UserError(
                f"topology.map={self.map} cannot be read ({error.strerror}): give a CSV file, or a list"
            ) from error

    def _read(self, data: FederatedData) -> np.ndarray:
        """The map of a file; edges are numbered in the order of their names."""
        names = data.clients or tuple(map(str, range(len(data.sizes))))
        try:
            with open(str(self.map), newline="", encoding="utf-8-sig") as file:
                listed = [(row["client"], row["edge"]) for row in csv.DictReader(file)]
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"topology.map={self.map} cannot be read ({error}): give a CSV file, or a list") from error
        except KeyError as error:
            raise UserError(
                f"topology.map={self.map} has no column {error}: give the columns client and edge"
            ) from error
        rows = dict(listed)
        twice = next((name for name, count in Counter(name for name, _ in listed).items() if count > 1), None)
        if twice is not None:
            raise UserError(f"topology.map={self.map} has client {twice} more than once: give one row for each client")
        lost = next((name for name in names if not rows.get(name)), None)
        if lost is not None:
            raise UserError(f"topology.map={self.map} has no edge for client {lost}: give a row for each client")
        edges = sorted({rows[name] for name in names})
        return np.array([edges.index(rows[name]) for name in names])
