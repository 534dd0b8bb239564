"""The data of all clients, in one flat array with offsets, and the base class of data sets."""

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
        x: examples, shape (N, d), any real dtype; kept as stored and cast batch by batch. Rows that stay on disk are an
            ``fcorun.rows.on_disk.DiskRows``, in every split.
        y: targets, shape (N,): real numbers for a regression, class indices 0..k-1 (int32) otherwise.
        offsets: bounds of the clients' training rows, shape (M + 1,), increasing, from 0 to N.
        task: the kind of targets.
        classes: the labels as the source wrote them, in the order of the class indices; empty for a regression.
        x_val, y_val: the validation split, of the same form, or None.
        offsets_val: bounds of the clients' validation rows, like ``offsets``; None where rows are not sorted by client.
        x_test, y_test: the test split, of the same form, or None. Runs never see it: a solution is scored on it once,
            when its run ends.
        clients_val, clients_test: the client's name of each row of these splits, text, "" without a client; None where
            ``offsets_val`` gives the clients, or the clients are unknown.
        group: the group's name of each training row, shape (N,), text; rows of one group are held out together. None:
            rows have no groups.
        fold: the name of the fold that holds each training row out, shape (N,), text; None: folds are drawn.
        weight, weight_val, weight_test: the weight of each row in means of losses, shape (N,), not negative; None: 1.
        offset, offset_val, offset_test: the term added to each row's prediction, shape (N,); None: 0.
        truth: parameters that generated the data, e.g. {"weights": (d,), "bias": ()}, or None.
        client_truths: parameters of each client where they differ, e.g. {"weights": (M, d), "bias": (M,)}, or None.
        clients, features: names, or empty.
        shape: the shape of an example that is a matrix and was raveled into a row of x; else empty.
        scale: the factor that turns x as stored into features (1/255 for bytes of pixels).
        voxel_grid: the positions of features that are voxels of images; such features need no names.
        standardized: None, or the dict of ``fcorun.tables.scaling``, whose "by" is "pooled", "per_client" or "per_run".
        warnings: sentences that a user should read before using these data.
        encoding: the encoding of a table's columns as these features, or None.
        feature_range: the least and the largest value of each feature in the training rows before standardization,
            shape (2, d), where there is an encoding; else None.
        generated: the clients whose rows are generated in each round; x, y and offsets are then the rows of a few of
            them, for evaluation. Else None.
        host_bounds: the clients of each of H hosts, (H + 1,), where rows are sharded: host h stores the clients
            ``host_bounds[h]:host_bounds[h + 1]``, and x and x_val are ``fcorun.rows.host_rows.HostRows``. Else None.
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
        """Return the number of clients, M."""
        return len(self.sizes) if self.generated is None else self.generated.n_clients

    @property
    def n_rows(self) -> int:
        """Return the number of training rows of all clients."""
        return len(self.y) if self.generated is None else self.generated.n_clients * self.generated.rows_per_client

    @property
    def on_disk(self) -> bool:
        """Return whether rows stay on disk and are read when they are needed."""
        return isinstance(local_rows(self.x), DiskRows)

    @property
    def sizes(self) -> np.ndarray:
        """Return the number of training rows of each client, shape (M,)."""
        return np.diff(self.offsets)

    @property
    def splits(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return x and y of the splits that have rows: "train", "validation", "test"."""
        pairs = {"train": (self.x, self.y), "validation": (self.x_val, self.y_val), "test": (self.x_test, self.y_test)}
        return {name: (x, y) for name, (x, y) in pairs.items() if x is not None and y is not None and len(y)}

    @property
    def client_names(self) -> list[str]:
        """Return the names of the training clients, or their numbers as text."""
        return list(self.clients) or [str(m) for m in range(len(self.sizes))]

    def client_of_row(self, split: str) -> np.ndarray | None:
        """Return the client's name of each row of a split, or None where the clients are unknown."""
        names = np.array(self.client_names)
        if split == "train":
            return names.repeat(self.sizes)
        if split == "test":
            return self.clients_test
        if self.clients_val is None and self.offsets_val is not None:
            return names.repeat(np.diff(self.offsets_val))
        return self.clients_val

    @cached_property
    def client_weights(self) -> np.ndarray:
        """Return the weight of each client, shape (M,): its number of rows, or the sum of their ``weight``."""
        return self.sizes if self.weight is None else np.add.reduceat(self.weight, self.offsets[:-1])

    @cached_property
    def row_weights(self) -> np.ndarray | None:
        """Return the weight of each row, scaled to a mean of one in each client, shape (N,); None: all weights are 1.

        With these factors the mean loss of a uniform minibatch is an unbiased estimate of the client's loss.
        """
        return None if self.weight is None else self.weight * np.repeat(self.sizes / self.client_weights, self.sizes)

    @cached_property
    def host_of_client(self) -> np.ndarray:
        """Return the host that stores each client's rows, shape (M,), where rows are sharded."""
        assert self.host_bounds is not None
        return np.repeat(np.arange(len(self.host_bounds) - 1), np.diff(self.host_bounds))

    def offset_of(self, split: str) -> np.ndarray | None:
        """Return the offset of each row of a split, shape (n,), or None."""
        return {"train": self.offset, "validation": self.offset_val, "test": self.offset_test}[split]

    def validate(self) -> "FederatedData":
        """Return these data. Raises UserError for data that no algorithm could use."""
        for split, (x, y) in self.splits.items():
            for kind, array in (("features", x), ("targets", y)):
                index = find_nonfinite(array) if array.dtype.kind == "f" else None
                if index is None:
                    continue
                place = f"row {index[0]} of the clients' rows in order"
                if len(index) > 1:
                    place += f", column '{self.features[index[1]] if self.features else index[1]}'"
                split_name = "training" if split == "train" else split
                raise UserError(
                    f"data: NaN or infinite value in the {split_name} {kind} ({place}); clean or impute the file"
                )
        if len(self.y) == 0:
            raise UserError("data: there is not one training example; check data.path and the validation options")
        if (self.sizes <= 0).any():
            empty = int(np.flatnonzero(self.sizes <= 0)[0])
            name = self.clients[empty] if self.clients else empty
            raise UserError(f"data: client {name} has no training rows; use fewer clients or a smaller data.validation")
        if (self.client_weights <= 0).any():
            weightless = int(np.flatnonzero(self.client_weights <= 0)[0])
            name = self.clients[weightless] if self.clients else weightless
            raise UserError(
                f"data: all training rows of client {name} have weight 0; leave that client out, or give its rows "
                "weights"
            )
        if self.weight_val is not None and len(self.weight_val) and not self.weight_val.any():
            raise UserError("data: all validation rows have weight 0; hold out others, or give data.validation=0")
        if self.task != "regression" and len(np.unique(self.y)) < 2:
            raise UserError("data: the training labels hold one class only; two or more are needed to classify")
        if self.offsets_val is not None:
            n_rows, bounds = 0 if self.y_val is None else len(self.y_val), self.offsets_val
            same_clients = bounds.shape == self.offsets.shape
            if not same_clients or bounds[0] != 0 or bounds[-1] != n_rows or (np.diff(bounds) < 0).any():
                raise UserError(
                    f"data: offsets_val does not deal {n_rows} validation rows out to {len(self.sizes)} clients; give "
                    f"{len(self.offsets)} numbers from 0 up to {n_rows}, or None"
                )
        for name, clients, y in (("val", self.clients_val, self.y_val), ("test", self.clients_test, self.y_test)):
            n_rows = 0 if y is None else len(y)
            if clients is not None and len(clients) != n_rows:
                raise UserError(
                    f"data: clients_{name} names the clients of {len(clients)} rows, and there are {n_rows}: give one "
                    "each, or None"
                )
        return self


class Dataset(ABC):
    """A data set plug-in: a frozen dataclass of its options, with a method that loads the data.

    The options are the keys of its YAML. Besides ``name`` and ``class`` a YAML may have a ``title`` for pictures, and
    ``natural``, settings that suit these data: {strength: ..., client_lr: ..., server_lr: ...}. The YAMLs of
    regularizers and algorithms look the latter up. Mark a field ``fcorun.config.PathOption`` when it is only the
    location of files: such a field is not part of the identity of a run. Override ``sources`` then, to identify the
    files' content.

    Attributes:
        units: whether features have the units of the source, where ``standardized`` is None.
        dependence_warning: a warning for splits that hold out some of a client's rows and train on others, or "".
        source: the origin of the data, in the form that fcorun.sources.catalogue defines; not inherited.
    """

    source: ClassVar[str]
    units: ClassVar[bool] = True
    dependence_warning: ClassVar[str] = ""

    def with_record_encoding(self, record: str) -> "Dataset":
        """Return the same data set, encoded as in the record of the run that this run starts from."""
        return self

    @abstractmethod
    def load(self) -> FederatedData:
        """Generate or read the data. Raises UserError for every error that a user can correct."""

    def load_shard(self, host: int, n_hosts: int) -> FederatedData:
        """Load the shard of one of several hosts, as ``shard_for_host`` defines it.

        Override this method where a shard can be loaded without the others. Raises UserError as ``load`` does.
        """
        return shard_for_host(self.load(), host, n_hosts)

    def memory_needed(self) -> tuple[float, str]:
        """Return a lower bound on the bytes of memory of the data, and the keys that determine it.

        The bound is known before loading; it is 0 where only reading the files tells.
        """
        return 0, ""

    def fetch(self) -> None:
        """Download what is missing. Called before a run, never for dry_run=true."""
        return

    def sources(self) -> Any:
        """Return a value that changes when the files do, such as a digest of their bytes; None without files.

        Must be quick, and download nothing: raises UserError for missing files.
        """
        return None

    def fingerprint(self) -> str:
        """Return sixteen hex digits that identify the data: equal fingerprints mean equal arrays. Downloads nothing."""
        content = [code_identifier(self), identity_fields(self), self.sources()]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]
