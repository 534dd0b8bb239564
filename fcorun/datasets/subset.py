"""Some of the training rows of a data set, as a data set of its own: a fold, or a subsample."""

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Shaped

from fcorun.datasets.base import Dataset, FederatedData
from fcorun.errors import UserError
from fcorun.tables.partition import standardize_per_client
from fcorun.tables.scaling import Scaling


@dataclass(frozen=True)
class RowSubset:
    """Some of the training rows, the others being held out or left aside.

    Attributes:
        data: these rows alone, as if there were no others, and what is held out as validation rows. Clients without
            rows are none; validation rows of the whole data set are left aside.
        x: all rows, (N, d): those of the whole data set, or standardized anew by the rows of the part.
        places: which of them the training rows of ``data`` are, (N',).
        held: which of them its validation rows are, (H,).
    """

    data: FederatedData
    x: np.ndarray = field(repr=False)
    train_rows: np.ndarray = field(repr=False)
    validation_rows: np.ndarray = field(repr=False)


def take_subset(
    data: FederatedData, train: Bool[np.ndarray, " N"], validation: Bool[np.ndarray, " N"], restandardize: bool = True
) -> RowSubset:
    """The part of the rows ``kept``, with the rows ``held`` to validate on.

    Where the data set standardized its features, ``anew`` has them standardized by the rows that are kept: of the
    others their scale is not known, but what fills gaps and which levels there are is of all training rows.
    """
    owner = np.repeat(np.arange(len(data.sizes)), data.sizes)
    x = _standardized_anew(data, train, owner) if restandardize else data.x
    places, tested = np.flatnonzero(train), np.flatnonzero(validation)
    present, counts = np.unique(owner[places], return_counts=True)
    own = len(tested) > 0 and np.isin(owner[tested], present).all()
    given = {"weight": data.weight, "offset": data.offset}
    left = replace(
        data,
        x=x[places],
        y=data.y[places],
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        x_val=x[tested] if len(tested) else None,
        y_val=data.y[tested] if len(tested) else None,
        offsets_val=np.append(np.searchsorted(owner[tested], present), len(tested)) if own else None,
        clients_val=None,
        **{name: None if values is None else values[places] for name, values in given.items()},
        **{f"{name}_val": None if values is None else values[tested] for name, values in given.items()},
        group=None if data.group is None else data.group[places],
        fold=None if data.fold is None else data.fold[places],
        **{f"{name}_test": None for name in ("x", "y", "clients", *given)},
        client_truths=None
        if data.client_truths is None
        else {name: each[present] for name, each in data.client_truths.items()},
        clients=tuple(data.clients[m] for m in present) if data.clients else (),
    )
    return RowSubset(left, x, places, tested)


def check_classes(data: FederatedData, train: Bool[np.ndarray, " N"]) -> None:
    """Raises UserError where a class of the training rows has none among those that are kept."""
    lost = np.setdiff1d(data.y, data.y[train])
    if data.classes and len(lost):
        raise UserError(f"class '{data.classes[int(lost[0])]}' is missing among the rows that are left in a fold or a "
                        "half: give by=rows, or leave out classes with so few rows")  # fmt: skip


def _standardized_anew(
    data: FederatedData, kept: Bool[np.ndarray, " N"], owner: Shaped[np.ndarray, " N"]
) -> Shaped[np.ndarray, "N d"]:
    """All rows, standardized by those that are kept in the way in which the data set was, which undoes what it did."""
    way = (data.standardized or {}).get("by")
    if way == "pooled":
        found = Scaling.fit(data.x[kept])
        return ((data.x - found.mean) * found.factor).astype(data.x.dtype)
    return standardize_per_client(data.x, owner, ~kept)[0] if way == "per_client" else data.x


@dataclass(frozen=True)
class SubsetDataset(Dataset):
    """The data set that a part is, for what is worked out once for each data set.

    Attributes:
        whole: the fingerprint of what it is a part of.
        part: its rows.
        digest: of which they are.
    """

    source = "ours"

    parent: str
    subset: RowSubset
    digest: str

    @classmethod
    def from_subset(cls, whole: str, part: RowSubset) -> "SubsetDataset":
        content = part.train_rows.tobytes() + b"/" + part.validation_rows.tobytes()
        return cls(whole, part, hashlib.sha256(content).hexdigest()[:16])

    def load(self) -> FederatedData:
        return self.subset.data

    def fingerprint(self) -> str:
        return f"{self.parent}/{self.digest}"
