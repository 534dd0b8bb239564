"""One's own data: a table whose rows belong to clients, or are dealt out to them."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Literal

import numpy as np

from fcorun.config import Count, Index, Path, Positive
from fcorun.datasets.base import Dataset, FederatedData, stream
from fcorun.datasets.partition import hold_out, partition, standardize
from fcorun.datasets.readers import Rows, find, read
from fcorun.datasets.remarks import decimal_commas, identifiers, look_alikes, two_values
from fcorun.datasets.scaling import Scaling
from fcorun.errors import UserError, nearest


@dataclass(frozen=True)
class Table(Dataset):
    """Rows of a file, by client.

    Attributes:
        path: a .csv, .tsv or .parquet file, whose columns other than the target and the client are the features (a
            .csv may have semicolons and decimal commas: see ``fcorun.datasets.text``); a .npz file of X (N, d), y (N,)
            and, if wanted, client (N,) and a boolean validation (N,); or a LIBSVM file
            (.libsvm, .svm, .svmlight, .txt), read into a dense float32 array. Text files may be packed (.gz, .bz2).
        target: the column to predict; needed, and allowed, for CSV, TSV and Parquet only.
        client: the column that names the client of a row; without it rows are dealt out by ``partition``.
        partition: see ``fcorun.datasets.partition``; only where the file does not name clients.
        clients: how many clients to deal the rows out to.
        alpha: concentration of the Dirichlet partition; the smaller, the more the clients' labels differ.
        task: "regression" keeps the target as a number; for the others any values are labels, sorted.
        validation: the fraction of each client's rows to hold out, or names of clients to hold out wholly. None: the
            rows that an .npz marks, and 0.2 of each client's where nothing is marked.
        standardize: by the training rows' mean and deviation, of all clients ("pooled") or of each ("per_client").
        scaling: a record on data that were standardized "pooled", whose mean and deviation are taken instead.
        seed: of the partition and of the rows held out.
    """

    source = "yours"

    path: Path
    target: str | None = None
    client: str | None = None
    partition: Literal["iid", "dirichlet", "by_label", "sorted"] = "iid"
    clients: Count = 10
    alpha: Positive = 0.5
    task: Literal["regression", "binary", "multiclass"] = "regression"
    validation: float | list[str] | None = None
    standardize: Literal["none", "pooled", "per_client"] = "none"
    scaling: Path | None = None
    seed: Index = 0

    def __post_init__(self):
        if self.scaling is not None and self.standardize != "pooled":
            raise UserError(f"data.scaling={self.scaling} is of data.standardize=pooled: give that too")
        if isinstance(self.validation, (int, float)) and not 0 <= self.validation < 1:
            raise UserError(
                f"data.validation={self.validation} must be at least 0 and less than 1, or a list of clients"
            )
        if self.task == "regression" and self.partition in ("by_label", "dirichlet"):
            raise UserError(
                f"data.partition={self.partition} needs classes and data.task=regression has none: "
                "give data.partition=sorted"
            )

    def load(self) -> FederatedData:
        """The rows sorted by client, in the order of the file within a client; clients are sorted by name.

        ``offsets_val`` is None where validation rows belong to a client without training rows, or to nobody.
        """
        rows = read(self.path, self.target, self.client)
        y, classes = self._targets(rows.y)
        names, owner = self._owners(rows, y)
        held = self._held_out(rows, names, owner)
        if held.all():
            raise UserError(f"data.validation={self.validation}: every row is held out; leave some to train on")
        if classes and len(np.unique(y[~held])) < 2:
            raise UserError(
                f"data.validation={self.validation} leaves training rows of one class only: hold out fewer rows"
            )
        x, standardized = rows.x, None
        if self.standardize == "per_client":
            x, standardized = standardize(x, owner, held), {"by": "per_client"}
        elif self.standardize == "pooled":
            found = Scaling.of(x[~held]) if self.scaling is None else self._scaling(rows.features, x.shape[1])
            out = x.dtype if x.dtype.kind == "f" else np.float64
            x, standardized = ((x - found.mean) * found.factor).astype(out), found.noted()
        # a client all of whose rows are held out takes no part in training
        order = np.argsort(owner, kind="stable")
        kept, tested = order[~held[order]], order[held[order]]
        present, counts = np.unique(owner[kept], return_counts=True)
        own = held.any() and np.isin(owner[tested], present).all()
        return FederatedData(
            x=x[kept],
            y=y[kept],
            offsets=np.concatenate([[0], np.cumsum(counts)]),
            task=self.task,
            classes=classes,
            x_val=x[tested] if held.any() else None,
            y_val=y[tested] if held.any() else None,
            offsets_val=np.append(np.searchsorted(owner[tested], present), len(tested)) if own else None,
            clients=tuple(names[m] for m in present),
            features=rows.features,
            standardized=standardized,
            remarks=self._remarks(rows, classes),
        ).validate()

    def _remarks(self, rows: Rows, classes: tuple) -> tuple[str, ...]:
        """What in the file looks like a mistake."""
        clients = [] if rows.client is None else np.unique(rows.client).tolist()
        labels = look_alikes(f"data.path={self.path}: labels", classes)
        target = two_values(rows.y) if self.task == "regression" else []
        more = (*decimal_commas(rows.commas), *identifiers(rows.x, rows.features), *target)
        told = (f"data.path={self.path}: {remark}" for remark in more)
        return (*labels, *look_alikes(f"data.path={self.path}: clients", clients), *told)

    def _scaling(self, features: tuple[str, ...], count: int) -> Scaling:
        """That of the record ``scaling``."""
        try:
            told = json.loads((FilePath(str(self.scaling)) / "summary.json").read_text())["data"]
            found = Scaling.read(told["standardized"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"data.scaling={self.scaling} is no record of data that were standardized pooled: give the "
                            "folder of one that is done") from error  # fmt: skip
        if len(found.mean) != count or (told["feature_names"] and tuple(told["feature_names"]) != features):
            raise UserError(f"data.scaling={self.scaling} has other features than data.path={self.path}: give the same "
                            "columns in the same order")  # fmt: skip
        return found

    def sources(self) -> Any:
        """A digest of the file's bytes, wherever it lies, and of the scaling that is taken."""
        with find(self.path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if self.scaling is None:
            return digest
        try:
            told = json.loads((FilePath(self.scaling) / "summary.json").read_text())["data"]["standardized"]
            return [digest, Scaling.read(told).digested()]
        except (OSError, ValueError, KeyError, TypeError):
            return [digest, None]  # loading says what is wrong

    @property
    def _target(self) -> str:
        return f"target '{self.target}'" if self.target else "target y"

    def _targets(self, y: np.ndarray) -> tuple[np.ndarray, tuple]:
        """Numbers and no classes for a regression, otherwise class indices and the sorted classes."""
        where = f"data.task={self.task}: {self._target} of {self.path}"
        if self.task == "regression":
            if y.dtype.kind not in "fiub":
                raise UserError(f"{where} is text ('{y[0]}'); give data.task=binary or multiclass, or another target")
            return (y if y.dtype.kind == "f" else y.astype(np.float64)), ()
        if y.dtype.kind == "f" and (y == np.floor(y)).all():
            y = y.astype(np.int64)  # LIBSVM writes its labels as real numbers
        classes, indices = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise UserError(f"{where} holds one class only ('{classes[0]}'); two or more are needed to classify")
        if self.task == "binary" and len(classes) > 2:
            first = ", ".join(map(str, classes[:3].tolist()))
            alike = "".join(f"; {remark}" for remark in look_alikes("its labels", classes.tolist()))
            raise UserError(f"{where} holds {len(classes)} classes ({first}, ..); give data.task=multiclass"
                            + (" or regression" if y.dtype.kind in "fiu" else alike))  # fmt: skip
        if self.task == "multiclass" and y.dtype.kind == "f":
            raise UserError(
                f"{where} holds fractions ({y[y != np.floor(y)][0]}), not labels; give data.task=regression"
            )
        return indices.astype(np.int32), tuple(classes.tolist())

    def _owners(self, rows: Rows, y: np.ndarray) -> tuple[list[str], np.ndarray]:
        """Names of the clients, and the index of each row's client, shape (N,)."""
        if rows.client is not None:
            if self.partition != "iid":
                raise UserError(
                    f"data.partition={self.partition}: the rows of {self.path} have clients already; "
                    "leave data.partition out, or take the clients out of the data"
                )
            found, inverse = np.unique(rows.client, return_inverse=True)
            order = sorted(range(len(found)), key=_natural(found.tolist()))
            return [str(found[k]) for k in order], np.argsort(order)[inverse]
        marked = np.zeros(len(y), bool) if rows.validation is None else rows.validation
        training = y[~marked]
        if self.clients > len(training):
            raise UserError(f"data.clients={self.clients} is more than the {len(training)} rows of {self.path}: "
                            f"give at most {len(training)}")  # fmt: skip
        # rows that the file holds out belong to nobody, that is to one client more
        owner = np.full(len(y), self.clients)
        rng = stream(self.seed, "table", "partition")
        owner[~marked] = partition(self.partition, training, self.clients, self.alpha, rng)
        return [f"client{m}" for m in range(self.clients)], owner

    def _held_out(self, rows: Rows, names: list[str], owner: np.ndarray) -> np.ndarray:
        """True for the rows of the validation split, shape (N,)."""
        if rows.validation is not None:
            if self.validation is not None:
                raise UserError(
                    f"data.validation={self.validation}: {self.path} marks its validation rows itself; "
                    "leave data.validation out, or the array out of the file"
                )
            return rows.validation
        if not isinstance(self.validation, list):
            fraction = 0.2 if self.validation is None else self.validation
            return hold_out(owner, fraction, stream(self.seed, "table", "validation"))
        if rows.client is None and self.validation:
            raise UserError(
                f"data.validation={self.validation}: the rows have no named clients; "
                "give data.client=... or a fraction of the rows, data.validation=0.2"
            )
        for name in self.validation:
            if name not in names:
                raise UserError(f"data.validation: there is no client '{name}'; {nearest(name, names)}")
        return np.isin(np.array(names)[owner], self.validation)


def _natural(names: list[str]):
    """A sorting key for indices into ``names``: as numbers if all are numbers, otherwise as text."""
    try:
        numbers = [float(n) for n in names]
    except ValueError:
        return lambda k: names[k]
    return lambda k: (numbers[k], names[k])
