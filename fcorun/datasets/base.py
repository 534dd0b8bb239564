"""What a data set is to fcorun: the rows of all clients in one flat array, with offsets."""

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from fcorun.config import identity_fields
from fcorun.datasets.voxel_grid import VoxelGrid
from fcorun.errors import UserError
from fcorun.plugin_code import code_identifier
from fcorun.rows.generated import GeneratedClients
from fcorun.rows.host_rows import find_nonfinite, local_rows, shard_for_host
from fcorun.rows.on_disk import DiskRows
from fcorun.tables.encoding import Encoding


@dataclasses.dataclass(frozen=True)
class FederatedData:
    """Data of M clients. Client m owns the rows ``offsets[m]:offsets[m + 1]``; clients may differ in size.

    Attributes:
        x: examples, shape (N, d), any real dtype; kept as stored and cast batch by batch. Where they stay on disk, an
            ``fcorun.rows.on_disk.OnDisk``, and those of the other splits too.
        y: targets, shape (N,): real numbers for a regression, class indices 0..k-1 (int32) otherwise.
        offsets: shape (M + 1,), increasing, from 0 to N.
        task: what y holds.
        classes: the labels as the source wrote them, in the order of the class indices; empty for a regression.
        x_val, y_val: the validation split, of the same form, or None.
        offsets_val: whose validation rows are whose, like ``offsets``; None where they are no clients' own.
        x_test, y_test: the test split, of the same form, or None. Runs never see it: a solution is scored on it once,
            when its run ends.
        clients_val, clients_test: the name of the client of each row of these splits, text, "" for nobody's; or None
            where the clients of ``offsets_val`` say it, or nobody knows.
        group: the name of the group of each training row, shape (N,), text; rows of one group are held out together.
            None: rows have no groups.
        fold: the name of the fold that holds each training row out, shape (N,), text; None: folds are drawn.
        weight, weight_val, weight_test: what each row weighs in the means of losses, shape (N,), not negative; None: 1.
        offset, offset_val, offset_test: what is added to each row's prediction, shape (N,); None: nothing.
        truth: parameters that generated the data, e.g. {"weights": (d,), "bias": ()}, or None.
        truths: those of each client where they differ, e.g. {"weights": (M, d), "bias": (M,)}, or None.
        clients, features: names, or empty.
        shape: that of an example where it is a matrix, whose rows x holds one after the other; else empty.
        grid: where the features lie, if they are voxels of images; then no names are needed.
        standardized: None, or what ``fcorun.tables.scaling`` notes: "by" says whether "pooled", "per_client" or
            "per_run".
        remarks: what a user should know of these data before they are used, a sentence each.
        encoding: how columns of a table became these features, or None.
        limits: the least and the largest value of each of these features in the training rows before they were
            standardized, shape (2, d), where there is an encoding; else None.
        population: who the clients are, where their rows are made in each round and x, y and offsets are those of a few
            of them, to measure on; else None.
        cut: where each of several hosts has the rows of its own clients: host h of ``cut[h]:cut[h + 1]``, (H + 1,), and
            x and x_val are ``fcorun.rows.host_rows.Own``; else None.
        scale: what x is to be multiplied by to be the features, where x is kept as stored (1/255 for bytes of pixels).
    """

    x: np.ndarray
    y: np.ndarray
    offsets: np.ndarray
    task: Literal["regression", "binary", "multiclass"] = "regression"
    classes: tuple = ()
    x_val: np.ndarray | None = None
    y_val: np.ndarray | None = None
    offsets_val: np.ndarray | None = None
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    clients_val: np.ndarray | None = None
    clients_test: np.ndarray | None = None
    weight: np.ndarray | None = None
    weight_val: np.ndarray | None = None
    weight_test: np.ndarray | None = None
    offset: np.ndarray | None = None
    offset_val: np.ndarray | None = None
    offset_test: np.ndarray | None = None
    group: np.ndarray | None = None
    fold: np.ndarray | None = None
    truth: dict[str, np.ndarray] | None = None
    client_truths: dict[str, np.ndarray] | None = None
    clients: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    scale: float = 1.0
    voxel_grid: VoxelGrid | None = None
    standardized: dict | None = None
    warnings: tuple[str, ...] = ()
    encoding: Encoding | None = None
    feature_range: np.ndarray | None = None
    generated: GeneratedClients | None = None
    host_bounds: np.ndarray | None = None

    @property
    def n_clients(self) -> int:
        """How many clients there are, M."""
        return len(self.sizes) if self.generated is None else self.generated.n_clients

    @property
    def n_rows(self) -> int:
        """How many training rows they have together."""
        return len(self.y) if self.generated is None else self.generated.n_clients * self.generated.rows_per_client

    @property
    def on_disk(self) -> bool:
        """Whether rows stay on disk, and are read where they are needed."""
        return isinstance(local_rows(self.x), DiskRows)

    @property
    def sizes(self) -> np.ndarray:
        """Examples of each client, shape (M,)."""
        return np.diff(self.offsets)

    @property
    def splits(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """x and y of the splits that have rows: "train", "validation", "test"."""
        pairs = {"train": (self.x, self.y), "validation": (self.x_val, self.y_val), "test": (self.x_test, self.y_test)}
        return {name: (x, y) for name, (x, y) in pairs.items() if x is not None and y is not None and len(y)}

    @property
    def client_names(self) -> list[str]:
        """Those of the clients that train, or their numbers."""
        return list(self.clients) or [str(m) for m in range(len(self.sizes))]

    def client_of_row(self, split: str) -> np.ndarray | None:
        """The name of the client of each row of a split; None: not known."""
        names = np.array(self.client_names)
        if split == "train":
            return names.repeat(self.sizes)
        given = self.clients_val if split == "validation" else self.clients_test
        if given is None and split == "validation" and self.offsets_val is not None:
            return names.repeat(np.diff(self.offsets_val))
        return given

    @cached_property
    def client_weights(self) -> np.ndarray:
        """What each client's rows weigh together, shape (M,): their number, or the sum of ``weight``."""
        return self.sizes if self.weight is None else np.add.reduceat(self.weight, self.offsets[:-1])

    @cached_property
    def row_weights(self) -> np.ndarray | None:
        """What each row weighs among its client's, a mean of one in each client, shape (N,); None: all the same.

        The mean of a minibatch drawn uniformly, with these factors, is then without bias that of the client's loss.
        """
        return None if self.weight is None else self.weight * np.repeat(self.sizes / self.client_weights, self.sizes)

    @cached_property
    def host_of_client(self) -> np.ndarray:
        """The host of each client, shape (M,), where these have rows of their own."""
        assert self.host_bounds is not None
        return np.repeat(np.arange(len(self.host_bounds) - 1), np.diff(self.host_bounds))

    def offset_of(self, split: str) -> np.ndarray | None:
        """What is added to the prediction of each row of a split, shape (n,); None: nothing."""
        return {"train": self.offset, "validation": self.offset_val, "test": self.offset_test}[split]

    def validate(self) -> "FederatedData":
        """This data, or a UserError that names what no algorithm could use."""
        for part, (x, y) in self.splits.items():
            part = "training" if part == "train" else part
            for kind, array in (("features", x), ("targets", y)):
                if array.dtype.kind == "f" and (where := find_nonfinite(array)) is not None:
                    column = where[1] if len(where) > 1 else None
                    name = "" if column is None else f", column '{self.features[column] if self.features else column}'"
                    raise UserError(f"data: NaN or infinite value in the {part} {kind} (row {where[0]} of the clients' "
                                    f"rows in order{name}); clean or impute the file")  # fmt: skip
        if len(self.y) == 0:
            raise UserError("data: there is not one training example; check data.path and the validation options")
        if (self.sizes <= 0).any():
            empty = int(np.flatnonzero(self.sizes <= 0)[0])
            name = self.clients[empty] if self.clients else empty
            raise UserError(f"data: client {name} has no training rows; use fewer clients or a smaller data.validation")
        if (self.client_weights <= 0).any():
            empty = int(np.flatnonzero(self.client_weights <= 0)[0])
            raise UserError(f"data: all training rows of client {self.clients[empty] if self.clients else empty} have "
                            "weight 0; leave that client out, or give its rows weights")  # fmt: skip
        if self.weight_val is not None and len(self.weight_val) and not self.weight_val.any():
            raise UserError("data: all validation rows have weight 0; hold out others, or give data.validation=0")
        if self.task != "regression" and len(np.unique(self.y)) < 2:
            raise UserError("data: the training labels hold one class only; two or more are needed to classify")
        if self.offsets_val is not None:
            rows, ends = 0 if self.y_val is None else len(self.y_val), self.offsets_val
            if ends.shape != self.offsets.shape or ends[0] != 0 or ends[-1] != rows or (np.diff(ends) < 0).any():
                raise UserError(f"data: offsets_val does not deal {rows} validation rows out to {len(self.sizes)} "
                                f"clients; give {len(self.offsets)} numbers from 0 up to {rows}, or None")  # fmt: skip
        for name, given, y in (("val", self.clients_val, self.y_val), ("test", self.clients_test, self.y_test)):
            rows = 0 if y is None else len(y)
            if given is not None and len(given) != rows:
                raise UserError(f"data: clients_{name} names the clients of {len(given)} rows, and there are {rows}: "
                                "give one each, or None")  # fmt: skip
        return self


class Dataset(ABC):
    """A data set plug-in: a frozen dataclass of its options, and how to load it.

    The options are the keys of its YAML, which may have, beside ``name`` and ``class``, a ``title`` that pictures show
    and ``natural``: what suits these data, {strength: ..., client_lr: ..., server_lr: ...}, which the YAMLs of
    regularizers and algorithms look up. Mark a field ``fcorun.config.Path`` when it only says where files lie: such
    a field does not take part in the identity of a run, so override ``sources`` to say what the files hold.

    Attributes:
        units: whether features have the units of the source, unless ``standardized`` says otherwise.
        dependence: what a user should know where some of a client's rows are held out from the others, or nothing.
        source: where it comes from, as fcorun.sources.catalogue says; not inherited.
    """

    source: ClassVar[str]
    units: ClassVar[bool] = True
    dependence_warning: ClassVar[str] = ""

    def with_record_encoding(self, record: str) -> "Dataset":
        """The same data, read as those of the record that a run starts from."""
        return self

    @abstractmethod
    def load(self) -> FederatedData:
        """Make or read the data. Raises UserError for whatever a user can mend."""

    def load_shard(self, host: int, n_hosts: int) -> FederatedData:
        """The data as ``part_of`` has them on one of several hosts; where the rest need not be made or read, without
        that. Raises UserError as ``load`` does."""
        return shard_for_host(self.load(), host, n_hosts)

    def memory_needed(self) -> tuple[float, str]:
        """How many bytes of memory the data take at least, known before they are made, and the keys that say so; 0
        where only reading them tells."""
        return 0, ""

    def fetch(self) -> None:
        """Download what is missing. Called before a run, never for dry_run=true."""
        return

    def sources(self) -> Any:
        """Something that changes when the files do (a digest of their bytes), quick to compute; None without files.

        Downloads nothing: raises UserError for files that are missing.
        """
        return None

    def fingerprint(self) -> str:
        """Sixteen hex digits that stand for the data: equal fingerprints mean equal arrays. Downloads nothing."""
        content = [code_identifier(self), identity_fields(self), self.sources()]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]
