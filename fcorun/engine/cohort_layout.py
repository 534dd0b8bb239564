"""The way in which a cohort's clients are computed: how many at once, and which are padded to one number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from fcorun.algorithms.local_data import PyTree, tree_bytes
from fcorun.engine.arrays import DeviceRows, gather_whole_data
from fcorun.engine.clients import CohortFunction, chunk_width, chunked, in_size_classes
from fcorun.engine.schedule import Schedule
from fcorun.engine.size_classes import SizeClass, split_by_size
from fcorun.rows.rows import Rows
from fcorun.system.machine import compute_policy


@dataclass(frozen=True, kw_only=True)
class CohortLayout:
    """The sizes of clients, of their rows and of their parameters, on which the computation of a cohort depends.

    Attributes:
        max_client_rows: the largest number of rows of each client, (M,), in any subset that shares a program.
        n_parameters: the number of the model's parameters.
        needs_whole_data: whether clients use their whole data, in steps or besides their minibatches.
        clients_at_once: the number of clients of a cohort in a chunk; None: as many as stay in the cache.
    """

    schedule: Schedule
    train: Rows
    max_client_rows: np.ndarray
    n_parameters: int
    precision: str
    needs_whole_data: bool
    clients_at_once: int | None

    @property
    def _features(self) -> int:
        return int(np.prod(self.train.x.shape[1:]))

    def plan(self, rows: DeviceRows, runs: int, shared: bool, in_order: bool) -> tuple[PyTree, CohortFunction]:
        """Return the whole data of the clients, or of each class of sizes, and the function that computes a cohort.

        The whole data are None where they are not gathered once for all rounds. There are classes only where each
        cohort is all clients ``in_order``, computed on one device.
        """
        classes = self.size_classes(runs) if in_order and rows.decomposed is None else []
        if not classes:
            whole = self._gather(rows)
            return whole, chunked(self.chunk_width(runs, shared, whole))
        wholes = [self._gather(rows.of_class(size_class)) for size_class in classes]
        widths = [self.chunk_width(runs, shared, *of_class) for of_class in zip(wholes, classes, strict=True)]
        return None if wholes[0] is None else wholes, in_size_classes(classes, widths)

    def _gather(self, rows: DeviceRows) -> PyTree:
        """Return the whole data of each client of ``rows``, stacked, where they are gathered once for all rounds."""
        return rows.decomposed if self.train.streamed else gather_whole_data(self.schedule, rows, self.precision)

    def size_classes(self, runs: int) -> Sequence[SizeClass]:
        """Return the classes of a cohort of all clients in a program of ``runs`` runs; empty where no split pays."""
        if not self.needs_whole_data or self.schedule.generated_clients:
            return []
        entries_per_row = runs * (self.schedule.full_batch_steps or 1) * self._features
        return split_by_size(self.max_client_rows, compute_policy().min_padding_saved / entries_per_row)

    @property
    def gathered_rows(self) -> int:
        """Return the rows of the whole data of all clients with their padding, for one run; at most that for more."""
        classes = self.size_classes(1)
        if not classes:
            return len(self.max_client_rows) * int(self.max_client_rows.max())
        return sum(len(clients) * length for clients, length in classes)

    def chunk_width(self, runs: int, shared: bool, whole: PyTree = None, size_class: SizeClass | None = None) -> int:
        """Return the number of clients of a cohort, or of a class, computed at once in a program of ``runs`` runs.

        The runs may have ``shared`` minibatches; ``whole`` is the whole data of all clients where steps take them.
        """
        count = self.schedule.cohort_size if size_class is None else len(size_class.clients)
        if self.clients_at_once is not None:
            return min(self.clients_at_once, count)
        policy = compute_policy()
        if shared and runs > 1 and policy.sequential_grid_clients:
            return 1
        bytes_per_client = self.client_bytes(whole, size_class) + self.n_parameters * np.dtype(self.precision).itemsize
        return chunk_width(count, policy.chunk_bytes // (runs * bytes_per_client))

    def client_bytes(self, whole: PyTree = None, size_class: SizeClass | None = None) -> int:
        """Return the bytes of a client's data for a step: a minibatch, its generated rows, or its part of ``whole``."""
        if whole is not None:
            return tree_bytes(whole) // len(jax.tree.leaves(whole)[0])
        longest = self.schedule.max_rows if size_class is None else size_class.length
        needed_rows = longest if self.needs_whole_data else self.schedule.max_batch
        return self.train.rows_in_memory(needed_rows) * self._features * np.dtype(self.precision).itemsize
