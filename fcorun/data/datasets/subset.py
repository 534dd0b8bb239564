"""Subsets of the training rows of a data set, which are data sets themselves: folds and subsamples."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Bool

from fcorun.base.errors import UserError
from fcorun.data.datasets.dataset import Dataset, FederatedData
from fcorun.data.rows.rows import renumber_clients
from fcorun.data.tables.scaling import Scaling, standardize_per_client


@dataclass(frozen=True)
class RowSubset:
    """A subset of the training rows; the other rows are held out or left out.

    Attributes:
        data: the subset's training rows, with the held-out rows as validation rows. Clients without training rows are
            dropped, and so are the validation rows of the whole data set.
        x: all rows, (N, d), dense or sparse: those of the whole data set, or with fills, levels and scale learnt by the
            rows of the subset.
        train_rows: the indices in ``x`` of the training rows of ``data``, (N',).
        validation_rows: the indices in ``x`` of its validation rows, (V,).
    """

    data: FederatedData
    x: Any = field(repr=False)
    train_rows: np.ndarray = field(repr=False)
    validation_rows: np.ndarray = field(repr=False)


def take_subset(
    data: FederatedData, train: Bool[np.ndarray, " N"], validation: Bool[np.ndarray, " N"], restandardize: bool = True
) -> RowSubset:
    """Return the subset of the rows ``train``, validated on the rows ``validation``.

    Missing values are filled, and levels known, by the rows ``train`` alone (``fcorun.data.tables.scaling``).
    Where the data set standardized its features, ``restandardize`` standardizes them anew by the rows ``train``: the
    scale of held-out rows must not be known. Raises UserError for a column without a value in these rows.
    """
    cells = data.features.cells
    if cells is not None:
        fits = cells.fit(train)
        encoded_x = cells.encode_rows(data.train.x, fits, data.features.standardized)
        data = replace(data, train=replace(data.train, x=encoded_x))
        cells = cells.take(train, fits)
    x = restandardize_rows(data, train, train | validation) if restandardize else data.train.x
    train_rows, validation_rows = np.flatnonzero(train), np.flatnonzero(validation)
    numbers, clients, others = renumber_clients(data.train.known_client, train)
    client_truths = None
    if data.client_truths is not None:
        client_truths = {name: values[clients] for name, values in data.client_truths.items()}
    rows = replace(data.train, x=x, client=numbers)
    subset = replace(
        data,
        features=replace(data.features, cells=cells),
        train=rows.take(train_rows),
        validation=rows.take(validation_rows),
        test=None,
        clients=tuple(data.clients[m] for m in clients) if data.clients else (),
        held_out_clients=tuple(data.clients[m] for m in others) if data.clients else (),
        client_truths=client_truths,
    )
    return RowSubset(subset, x, train_rows, validation_rows)


def suggest_folds(are_marked: bool, by: str = "rows", verb: str = "give") -> str:
    """Return what makes other folds, in words: other marks in a column, or options of folds that are drawn ``by``."""
    if are_marked:
        return "mark other folds in the column of `data.fold`"
    return f"{verb} fewer folds, or `by=rows`" if by == "clients" else f"{verb} fewer folds"


def check_classes(data: FederatedData, train: Bool[np.ndarray, " N"], cure: str) -> None:
    """Raise UserError where a class of the training rows has no row in ``train``; ``cure`` makes other subsets."""
    missing = np.setdiff1d(data.train.y, data.train.y[train])
    if data.classes and len(missing):
        n_rows = int((data.train.y == missing[0]).sum())
        raise UserError(f"class '{data.classes[int(missing[0])]}' has {n_rows} of {len(data.train.y):,} training rows, "
                        f"and none is among the rows that are left in a fold or a half: {cure}, or leave out classes "
                        "with so few rows")  # fmt: skip


def restandardize_rows(data: FederatedData, train: Bool[np.ndarray, " N"], known: Bool[np.ndarray, " N"]) -> Any:
    """Standardize all rows by the rows ``train``, in the way in which the data set was standardized before.

    By client, the rows ``known`` of a client without rows in ``train`` standardize its rows: an outer fold stays
    unknown. Standardizing twice equals standardizing once, so the first one needs no inverse.
    """
    x = data.train.x
    if data.features.scaling is not None:
        scaling = Scaling.fit(x[train], np.unique(data.train.known_client[train], return_inverse=True)[1])
        return (scaling if data.features.scaling.is_centred else scaling.without_centring).transform(x)
    if data.features.standardized_by == "per_client":
        client = data.train.known_client
        has_training = np.isin(client, client[train])
        held_out = ~np.where(has_training, train, known)
        return standardize_per_client(x, client, held_out, data.client_names)[0]
    return x


@dataclass(frozen=True)
class SubsetDataset(Dataset):
    """The data set of a RowSubset, for results that are computed once for each data set.

    Attributes:
        parent: the fingerprint of the whole data set.
        subset: the rows.
    """

    source = "ours"

    parent: str
    subset: RowSubset

    def load(self) -> FederatedData:
        return self.subset.data

    def fingerprint(self) -> str:
        content = self.subset.train_rows.tobytes() + b"/" + self.subset.validation_rows.tobytes()
        return f"{self.parent}/{hashlib.sha256(content).hexdigest()[:16]}"
