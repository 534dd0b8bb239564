"""The numbers of the rows of each client in each fold, which the server and all sites know."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.rows import Rows
from fcorun.data.rows.site_rows import SiteRows


@dataclass(frozen=True)
class FoldCounts:
    """The rows of M clients in K folds.

    Attributes:
        held_out: the number of rows of each client that each fold holds out, (M, K).
        held_out_weights: the sums of their weights, (M, K).
        train: the number of the other training rows of each client, (M, K).
        train_weights: the sums of their weights, (M, K).
    """

    held_out: Int[np.ndarray, "M K"]
    held_out_weights: Float[np.ndarray, "M K"]
    train: Int[np.ndarray, "M K"]
    train_weights: Float[np.ndarray, "M K"]

    @classmethod
    def count(cls, rows: Rows, fold: Int[np.ndarray, " N"], n_folds: int, n_clients: int) -> "FoldCounts":
        """Count the rows of a site's clients, of which ``fold`` is the fold that holds out each row."""
        columns: dict[str, list] = {"held_out": [], "held_out_weights": [], "train": [], "train_weights": []}
        for k in range(n_folds):
            for name, selected in (("held_out", fold == k), ("train", fold != k)):
                counts = np.bincount(rows.known_client[selected], minlength=n_clients)
                columns[name].append(counts)
                columns[f"{name}_weights"].append(_sum_weights(rows.take(selected), counts))
        return cls(**{name: np.stack(values, axis=1) for name, values in columns.items()})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], sizes: Int[np.ndarray, " M"], n_folds: int) -> "FoldCounts":
        """Return the counts of ``to_arrays`` for clients of these sizes. Raises ValueError for anything else."""
        values = {name: arrays[name] for name in ("held_out", "held_out_weights", "train", "train_weights")}
        for name, array in values.items():
            if array.shape != (len(sizes), n_folds) or array.dtype != (np.float64 if "weights" in name else np.int64):
                raise ValueError(f"'{name}' has another shape")
            if not np.isfinite(array).all() or (array < 0).any():
                raise ValueError(f"'{name}' holds no counts")
        counts = cls(**values)
        complete = counts.held_out.sum(axis=1) == sizes
        if not complete.all() or (counts.held_out + counts.train != sizes[:, None]).any():
            raise ValueError("the rows of a client in all folds are not those of the client")
        return counts

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the counts as arrays of a message."""
        return dict(vars(self))

    def take(self, clients: Any) -> "FoldCounts":
        """Return the counts of some clients, by a mask or by indices."""
        return FoldCounts(*(array[clients] for array in vars(self).values()))

    def equals(self, other: "FoldCounts") -> bool:
        """Return whether the counts are the same, and the weights but for rounding."""
        same_rows = np.array_equal(self.held_out, other.held_out) and np.array_equal(self.train, other.train)
        pairs = ((self.held_out_weights, other.held_out_weights), (self.train_weights, other.train_weights))
        return same_rows and all(np.allclose(one, two, rtol=1e-12, atol=0) for one, two in pairs)

    def split(self, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for the fold ``k`` the clients in the order of a fit, those with training rows first, (M,), and the
        numbers of their training, validation and test rows and the sums of their weights, (M, 3) each.
        """
        trains = self.train[:, k] > 0
        order = np.concatenate([np.flatnonzero(trains), np.flatnonzero(~trains)])
        none = np.zeros(len(order), np.int64)
        rows = np.stack([self.train[order, k], self.held_out[order, k], none], axis=1)
        weights = np.stack([self.train_weights[order, k], self.held_out_weights[order, k], none], axis=1)
        return order, rows, weights


def _sum_weights(rows: Rows, counts: np.ndarray) -> np.ndarray:
    """Return the sum of the weights of each client's rows, of which there are ``counts``, added as in a run."""
    if rows.weight is None:
        return counts.astype(np.float64)
    sums = np.zeros(len(counts))
    present = counts > 0
    if present.any():
        sums[present] = np.add.reduceat(rows.weight, (np.cumsum(counts) - counts)[present])
    return sums


def place_rows(site_data: FederatedData, names: list[str], rows: np.ndarray, weights: np.ndarray) -> FederatedData:
    """Return a site's own data among the clients of all sites.

    Args:
        names: the names of all clients, those with training rows first.
        rows, weights: the numbers of their training, validation and test rows, and the sums of their weights, (M, 3).
    """
    number = np.array([names.index(name) for name in (*site_data.clients, *site_data.held_out_clients)], int)
    n_clients = int((rows[:, 0] > 0).sum())

    def at_site(split_rows: Rows, split: int, n_known: int) -> SiteRows:
        columns: Any = {name: getattr(split_rows, name) for name in Rows.__dataclass_fields__}
        return SiteRows(
            **columns | {"client": number[split_rows.known_client]},
            all_sizes=rows[:n_known, split],
            all_weights=None if split_rows.weight is None else weights[:n_known, split],
        )

    validation = site_data.validation
    return replace(
        site_data,
        train=at_site(site_data.train, 0, n_clients),
        validation=None if validation is None else at_site(validation, 1, len(names)),
        test=None,
        clients=tuple(names[:n_clients]),
        held_out_clients=tuple(names[n_clients:]),
    )
