"""Some of the training rows of a data set, as a data set of its own: a fold, or a subsample."""

import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Shaped

from fcorun.datasets.base import Dataset, FederatedData
from fcorun.datasets.partition import standardized
from fcorun.datasets.scaling import Scaling
from fcorun.errors import UserError


@dataclass(frozen=True)
class Part:
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
    places: np.ndarray = field(repr=False)
    held: np.ndarray = field(repr=False)


def part(data: FederatedData, kept: Bool[np.ndarray, " N"], held: Bool[np.ndarray, " N"], anew: bool = True) -> Part:
    """The part of the rows ``kept``, with the rows ``held`` to validate on.

    Where the data set standardized its features, ``anew`` has them standardized by the rows that are kept: of the
    others their scale is not known, but what fills gaps and which levels there are is of all training rows.
    """
    owner = np.repeat(np.arange(len(data.sizes)), data.sizes)
    x = _standardized_anew(data, kept, owner) if anew else data.x
    places, tested = np.flatnonzero(kept), np.flatnonzero(held)
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
        truths=None if data.truths is None else {name: each[present] for name, each in data.truths.items()},
        clients=tuple(data.clients[m] for m in present) if data.clients else (),
    )
    return Part(left, x, places, tested)


def check_classes(data: FederatedData, kept: Bool[np.ndarray, " N"]) -> None:
    """Raises UserError where a class of the training rows has none among those that are kept."""
    lost = np.setdiff1d(data.y, data.y[kept])
    if data.classes and len(lost):
        raise UserError(f"class '{data.classes[int(lost[0])]}' is missing among the rows that are left in a fold or a "
                        "half: give by=rows, or leave out classes with so few rows")  # fmt: skip


def _standardized_anew(
    data: FederatedData, kept: Bool[np.ndarray, " N"], owner: Shaped[np.ndarray, " N"]
) -> Shaped[np.ndarray, "N d"]:
    """All rows, standardized by those that are kept in the way in which the data set was, which undoes what it did."""
    way = (data.standardized or {}).get("by")
    if way == "pooled":
        found = Scaling.of(data.x[kept])
        return ((data.x - found.mean) * found.factor).astype(data.x.dtype)
    return standardized(data.x, owner, ~kept)[0] if way == "per_client" else data.x


@dataclass(frozen=True)
class PartOf(Dataset):
    """The data set that a part is, for what is worked out once for each data set.

    Attributes:
        whole: the fingerprint of what it is a part of.
        part: its rows.
        digest: of which they are.
    """

    source = "ours"

    whole: str
    part: Part
    digest: str

    @classmethod
    def of(cls, whole: str, part: Part) -> "PartOf":
        content = part.places.tobytes() + b"/" + part.held.tobytes()
        return cls(whole, part, hashlib.sha256(content).hexdigest()[:16])

    def load(self) -> FederatedData:
        return self.part.data

    def fingerprint(self) -> str:
        return f"{self.whole}/{self.digest}"
