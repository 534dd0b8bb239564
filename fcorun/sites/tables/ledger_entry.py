"""An entry of a ledger: a plan that a site answers, as a file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.records.formats import npz_bytes, read_npz
from fcorun.data.tables.column_roles import SPLITS
from fcorun.sites.tables.ledger_rows import ReleasedSet

IN_NO_SET = 0  # the label of a row that no answer of a plan sums over
_HEADER = "header"
_LABELS = "labels"
_TOKENS = "tokens/"
_CODES = "codes/"
# the fields that the header of a file lacks: arrays, which have places of their own, and weights, which none keeps
_NOT_IN_HEADER = ("labels", "codes", "tokens", "weights")


@dataclass(frozen=True)
class LedgerEntry:
    """A plan that a site answers.

    Attributes:
        plan: the digest of the plan.
        title: the target and the file in words.
        accepted: the day on which the owner accepted the plan.
        folder: the folder of the site; "" if it is not known.
        file: the file of the rows.
        reading: the digest of the file.
        sets: the released sets that are not empty.
        labels: the set of each row of the file, from 1, or ``IN_NO_SET``, (N,).
        overlap: whether the owner gave away rows that earlier plans and this one tell apart.
        agreed: what all sites agreed on to fill the gaps of each column that has some; none before they did.
        fills: what fills these gaps at the site.
        knots: the knots of each column with a spline.
        codes: the code of each row by column of levels, after rare levels became one, numbered, (N,).
        by_client: whether sums of single clients leave.
        group: the column of the file whose values the plan takes for patients; "": none.
        tokens: the tokens of columns that no earlier entry on the same reading has, (N,) by column.
        weight_column: the column of the file with the weights of the rows; "": they have none.
        weights: these weights, (N,); None: there are none, or the entry was read, because the ledger keeps none.
    """

    plan: str
    title: str
    accepted: str
    folder: str
    file: str
    reading: str
    sets: tuple[ReleasedSet, ...]
    labels: np.ndarray
    overlap: bool = False
    agreed: Mapping[str, Any] = field(default_factory=dict)
    fills: Mapping[str, Any] = field(default_factory=dict)
    knots: Mapping[str, Sequence[float]] = field(default_factory=dict)
    codes: Mapping[str, np.ndarray] = field(default_factory=dict)
    by_client: bool = False
    group: str = ""
    tokens: Mapping[str, np.ndarray] = field(default_factory=dict)
    weight_column: str = ""
    weights: np.ndarray | None = None

    def has_same_sets(self, other: "LedgerEntry") -> bool:
        """Return whether the other entry has the same rows in the same sets, of the same plan at the same site."""
        identities = [(entry.plan, entry.folder, entry.reading, entry.sets) for entry in (self, other)]
        return identities[0] == identities[1] and np.array_equal(self.labels, other.labels)

    @property
    def is_training(self) -> np.ndarray:
        """The mask of the training rows, (N,)."""
        return np.array([False, *(released.split == SPLITS[0] for released in self.sets)])[self.labels]

    @property
    def client(self) -> np.ndarray:
        """The number of each row's client where sums of single clients leave, else 0, (N,)."""
        names = [released.client for released in self.sets] if self.by_client else []
        return np.array([0, *map(names.index, names)] if names else [0] * (len(self.sets) + 1))[self.labels]

    def describe_set(self, label: int) -> str:
        """Return the set of rows with this label in words, such as "training rows in fold 1"."""
        if label == IN_NO_SET:
            return "in no set"
        return self.sets[label - 1].describe(len({released.client for released in self.sets}) > 1)

    def describe(self) -> list[str]:
        """Return the entry as lines to read."""
        if self.fills or self.knots:
            fills = []
            for name, fill in self.fills.items():
                kept = "" if fill == self.agreed[name] else f", kept in place of {self.agreed[name]}"
                fills.append(f"'{name}' by {fill}{kept}")
            lines = [f"fills gaps of {', '.join(fills)}"] if fills else []
            lines += [f"has knots of '{name}' at {', '.join(map(str, knots))}" for name, knots in self.knots.items()]
            return [f"{self.accepted} plan {self.plan[:16]} {line}" for line in lines]
        sizes = np.bincount(self.labels, minlength=len(self.sets) + 1).tolist()
        overlap = ", with overlap=allow" if self.overlap else ""
        return [
            f"{self.accepted} plan {self.plan[:16]}: {self.title}{overlap}",
            f"  site {self.folder}, file {self.file}",
            f"  clients: {', '.join(dict.fromkeys(released.client for released in self.sets))}",
            f"  {', '.join(f'{sizes[k + 1]} {self.describe_set(k + 1)}' for k in range(len(self.sets)))}",
        ]

    def to_bytes(self) -> bytes:
        """Return the content of the file of the entry."""
        names = [attribute.name for attribute in fields(self) if attribute.name not in _NOT_IN_HEADER]
        header: dict[str, Any] = {name: getattr(self, name) for name in names}
        header |= {"sets": [asdict(released) for released in self.sets], "columns": list(self.tokens)}
        header["level_columns"] = list(self.codes)
        tokens = {f"{_TOKENS}{k}": column for k, column in enumerate(self.tokens.values())}
        tokens |= {f"{_CODES}{k}": column for k, column in enumerate(self.codes.values())}
        content = np.frombuffer(json.dumps(header).encode(), np.uint8)
        return npz_bytes({_HEADER: content, _LABELS: self.labels.astype(np.uint32), **tokens})

    @classmethod
    def read(cls, path: Path) -> "LedgerEntry":
        """Read the file of an entry. Raises one of READ_ERRORS, or TypeError."""
        arrays = read_npz(path)
        header = json.loads(arrays[_HEADER].tobytes())
        columns = header.pop("columns")
        labels = arrays[_LABELS].astype(np.int64)
        sets = tuple(ReleasedSet(**released) for released in header.pop("sets"))
        tokens = {name: arrays[f"{_TOKENS}{k}"] for k, name in enumerate(columns)}
        codes = {name: arrays[f"{_CODES}{k}"] for k, name in enumerate(header.pop("level_columns", ()))}
        if any(column.shape != labels.shape for column in (*tokens.values(), *codes.values())) or labels.max(
            initial=0
        ) > len(sets):
            raise ValueError("its columns do not fit each other")
        return cls(**header, sets=sets, labels=labels, codes=codes, tokens=tokens)
