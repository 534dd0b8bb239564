"""The data of all clients, the base class of data sets, and the loading of data sets."""

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np

from fcorun.base.config import PluginBase, code_identifier, identity_fields, is_of_fcorun
from fcorun.base.errors import UserError, first_line
from fcorun.base.records.few_rows import LEAST_ROWS
from fcorun.base.system.files import Keyed
from fcorun.base.system.machine import REDUCE_HINT, check_memory, free_host_memory
from fcorun.data.datasets.images import VoxelGrid
from fcorun.data.rows.features import find_nonfinite, keep_columns, varies_within_clients
from fcorun.data.rows.rows import Rows, balance_clients
from fcorun.data.tables.column_roles import describe_unweighted
from fcorun.data.tables.encoding import Encoding
from fcorun.data.tables.imputation.training_cells import TrainingCells
from fcorun.data.tables.label_file import Labels, label_features
from fcorun.data.tables.scaling import Scaling
from fcorun.data.tasks import Task, find_task

# The data of all clients, and the base class of data sets.


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """A description of the d features of all rows.

    Attributes:
        names: names, or empty.
        shape: the shape of an example that is a matrix and was raveled into a row of x; else empty.
        scale: the factor that turns x as stored into features (1/255 for bytes of pixels).
        voxel_grid: the positions of features that are voxels of images; such features need no names.
        standardized: None, or the dict of ``fcorun.data.tables.scaling``, whose "by" is "pooled", "per_client" or
            "per_run".
        encoding: the encoding of a table's columns as these features, or None.
        value_range: the least and the largest value of each feature in the training rows before standardization,
            (2, d), where there is an encoding; else None.
        gaps: the number of rows without a value, by column that has any, where there is an encoding.
        missing: the rows of missing.csv, where a column has gaps.
        cells: the cells of the training rows from which a part of these rows learns fills and levels; None where no
            feature depends on them, or where the encoding was given.
        labels: the label and the unit of columns, by name, as a file of labels has them.
        first_index: the index of the first feature in a LIBSVM file, 0 or 1; None for other data.
    """

    names: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    scale: float = 1.0
    voxel_grid: VoxelGrid | None = None
    standardized: dict | None = None
    encoding: Encoding | None = None
    value_range: np.ndarray | None = None
    gaps: dict[str, int] = field(default_factory=dict)
    missing: tuple[dict[str, Any], ...] = ()
    cells: TrainingCells | None = None
    labels: Labels = field(default_factory=dict)
    first_index: int | None = None

    @property
    def standardized_by(self) -> str:
        """The "by" of ``standardized``, or "none"."""
        return self.standardized["by"] if self.standardized else "none"

    @property
    def client_scalings(self) -> dict[str, Any]:
        """The arrays of scaling.npz, of each client; empty unless the features were standardized within clients."""
        arrays = dict(self.standardized or {})
        return arrays if arrays.pop("by", None) == "per_client" else {}

    @property
    def scaling(self) -> Scaling | None:
        """The standardization by all training rows, or None."""
        return Scaling.from_pooled(self.standardized)

    @property
    def display_names(self) -> tuple[str, ...]:
        """The names of the features in pictures: their labels where a file of labels has any, else ``names``."""
        if self.encoding is None or not self.labels:
            return self.names
        labels = label_features(self.encoding, self.labels)
        return tuple(labels.get(name, name) for name in self.names)

    def __repr__(self) -> str:
        names = ", ".join(self.names[:3]) + (", ..." if len(self.names) > 3 else "")
        return f"Features({names or 'without names'})"


@dataclass(frozen=True, eq=False, repr=False)
class FederatedData:
    """Data of M clients, which may differ in size.

    Attributes:
        train: the training rows, sorted by client: clients 0, ..., M - 1, each with at least one row.
        validation: the validation rows, or None.
        test: the test rows, or None. Runs never see them: a solution is scored on them once, when its run ends. Of
            several hosts only the first one has them.
        features: the description of the columns of x.
        task: the name of the task, as records have it; ``target_task`` is the task itself.
        classes: the labels as the source wrote them, in the order of the class indices; empty without classes.
        clients: the names of the M clients; empty: clients are called by their numbers.
        held_out_clients: the names of clients without training rows, whose numbers continue from M.
        truth: parameters that generated the data, e.g. {"weights": (d,), "bias": ()}, or None.
        client_truths: parameters of each client where they differ, e.g. {"weights": (M, d), "bias": (M,)}, or None.
        description: a sentence on where the rows come from and how many there are, shown before a run; or empty.
        warnings: sentences that a user should read before using these data.
        keep: the names of the columns ``Rows.repeated_columns``, which predictions.csv repeats.
    """

    train: Rows
    validation: Rows | None = None
    test: Rows | None = None
    features: Features = Features()
    task: str = "regression"
    classes: tuple = ()
    clients: tuple[str, ...] = ()
    held_out_clients: tuple[str, ...] = ()
    truth: dict[str, np.ndarray] | None = None
    client_truths: dict[str, np.ndarray] | None = None
    description: str = ""
    warnings: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()

    def __post_init__(self):
        for name in ("validation", "test"):
            rows = getattr(self, name)
            if rows is not None and not rows.n_rows:
                object.__setattr__(self, name, None)

    @cached_property
    def is_informative(self) -> np.ndarray:
        """Return which features the training loss depends on, (d,): all, but for times to events.

        The partial likelihood compares rows of one client, so that a feature which is constant within every client
        cancels. Features that are not in this process are taken to be informative.
        """
        rows = None if self.train.stays_at_sites else self.train.resident
        if rows is None or not self.target_task.has_events:
            return np.ones(self.train.x.shape[1:], bool)
        return varies_within_clients(rows.x, rows.known_client)

    def informative_features(self, x: Any) -> Any:
        """Return features of training rows (n, d) with 0 for those that the loss does not depend on.

        The differences of equal values are rounding, by which a Newton step would divide.
        """
        return x if self.is_informative.all() else keep_columns(x, self.is_informative)

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}={rows!r}" for name, rows in self.splits.items())
        return f"FederatedData(task={self.task!r}, {self.n_clients} clients, {splits})"

    @property
    def target_task(self) -> Task:
        """Return the task: what a target is. Raises UserError for an unknown name."""
        return find_task(self.task)

    @property
    def n_clients(self) -> int:
        """Return the number of clients, M."""
        return self.train.n_clients

    @property
    def splits(self) -> dict[str, Rows]:
        """Return the rows of the splits that have any: "train", "validation", "test"."""
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: rows for name, rows in splits.items() if rows is not None}

    @cached_property
    def validation_offsets(self) -> np.ndarray | None:
        """Return the bounds of the clients' validation rows, (M + 1,), which may be empty.

        Returns None where there are none, or where some belong to no client, or to one without training rows.
        """
        rows = self.validation
        if rows is None or rows.client is None:
            return None
        if rows.stays_at_sites:
            if rows.n_clients != self.n_clients:
                return None
            return rows.offsets
        if rows.client.min() < 0 or rows.client.max() >= self.n_clients or (np.diff(rows.client) < 0).any():
            return None
        return np.searchsorted(rows.client, np.arange(self.n_clients + 1))

    @cached_property
    def feature_deviations(self) -> np.ndarray | None:
        """Return the standard deviations of a table's features over the training rows, (d,), 1 if standardized.

        Returns None for other data, and where other hosts or sites have training rows.
        """
        train = self.train
        has_all_rows = not train.stays_at_sites and len(train) == train.n_rows
        if self.features.encoding is None or not has_all_rows or train.client is None:
            return None
        if self.features.standardized:
            return np.ones(train.x.shape[1])
        return Scaling.fit(train.x, train.client).deviation

    @property
    def client_names(self) -> list[str]:
        """Return the names of the clients with stored training rows, or their numbers as text."""
        return list(self.clients) or [str(m) for m in range(len(self.train.sizes))]

    def client_of_row(self, split: str) -> np.ndarray | None:
        """Return the client's name of each row of a split, "" for none; None where the clients are unknown."""
        client = self.splits[split].client
        if client is None:
            return None
        if not self.clients:
            return np.where(client < 0, "", client.astype(str))
        return np.array([*self.clients, *self.held_out_clients, ""])[client]

    @cached_property
    def few_rows(self) -> dict[str, list[str]]:
        """Return the clients that have fewer than 5 rows, or groups, of a set, by set; "" where all together have."""
        few: dict[str, list[str]] = {}
        names = dict(enumerate([*self.client_names, *self.held_out_clients]))
        for split, rows in self.splits.items():
            n, by_client = rows.count_independent()
            small = [names.get(m, str(m)) for m, n_m in by_client.items() if n_m < LEAST_ROWS]
            if n < LEAST_ROWS:
                small.insert(0, "")
            if small:
                few[split] = small
        return few

    def describe_features(self) -> dict[str, Any]:
        """Return what a prediction for new rows takes from the section on the data in summary.json."""
        summary: dict[str, Any] = {
            "features": int(self.train.x.shape[1]),
            "feature_names": list(self.features.names),
            "task": self.task,
            "classes": [str(label) for label in self.classes],
        }
        if self.classes:
            summary["class_type"] = type(self.classes[0]).__name__
        if self.features.scale != 1:
            summary["scale"] = self.features.scale
        if self.features.first_index is not None:
            summary["first_index"] = self.features.first_index
        if self.features.client_scalings:
            summary["standardized"] = {"by": "per_client"}  # the rest is in scaling.npz
        elif standardized := self.features.standardized:
            summary["standardized"] = {key: np.asarray(value).tolist() for key, value in standardized.items()}
        if self.features.value_range is not None:
            summary["limits"] = self.features.value_range.astype(float).tolist()
        if self.clients and self.features.encoding is not None:
            summary["client_names"] = list(self.clients)
        return summary

    def validate(self) -> "FederatedData":
        """Return these data. Raises UserError for data that no algorithm could use.

        Rows that stay at sites are checked there.
        """
        if self.train.stays_at_sites:
            return self
        for split, rows in self.splits.items():
            _check_rows(split, rows, self.features.names)
        train = self.train
        if not len(train):
            raise UserError("data: there is not one training example; check `data.path` and the validation options")
        if train.client is None or train.client[0] < 0 or (np.diff(train.client) < 0).any():
            raise UserError("data: the training rows must be sorted by client, whose numbers begin with 0; sort them")
        sizes = train.sizes
        if (sizes <= 0).any() or len(sizes) < len(self.clients):
            empty = int(np.append(sizes, 0).argmin())
            raise UserError(f"data: client {self.client_names[empty]} has no training rows; use fewer clients or a "
                            "smaller `data.validation`")  # fmt: skip
        if (train.client_weights <= 0).any():
            weightless = int(np.flatnonzero(train.client_weights <= 0)[0])
            raise UserError(f"data: all training rows of client {self.client_names[weightless]} have weight 0; leave "
                            "that client out, or give its rows weights")  # fmt: skip
        if self.validation is not None and self.validation.weight is not None and not self.validation.weight.any():
            raise UserError("data: all validation rows have weight 0; hold out others, or give `data.validation=0`")
        if self.target_task.has_classes and len(np.unique(train.y)) < 2:
            raise UserError("data: the training labels hold one class only; two or more are needed to classify")
        return self


def _check_rows(split: str, rows: Rows, feature_names: Sequence[str]) -> None:
    """Raise UserError for rows of a split whose columns do not fit each other, and for values of no use."""
    n_rows, n_features = rows.x.shape
    if n_rows != len(rows):
        raise UserError(f"data: x has {n_rows} {split} rows and y has {len(rows)}: give one target for each row")
    if len(feature_names) not in (0, n_features):
        raise UserError(f"data: there are {len(feature_names)} names of features, and x has {n_features} columns: give "
                        "one each, or none")  # fmt: skip
    for name in ("client", "weight", "offset"):
        values = getattr(rows, name)
        if values is not None and len(values) != n_rows:
            raise UserError(f"data: {name} has {len(values)} {split} values, and there are {n_rows} rows: give one "
                            "each, or None")  # fmt: skip
        if values is not None and not np.isfinite(values).all():
            raise UserError(f"data: NaN or infinite value in the {name} of the {split} rows: give finite numbers")
    if rows.weight is not None and (rows.weight < 0).any():
        raise UserError(f"data: negative value in the weight of the {split} rows: give numbers of 0 or more")
    for kind, values in (("features", rows.x), ("targets", rows.y)):
        index = find_nonfinite(values)
        if index is None:
            continue
        position = f"row {index[0]} of the clients' rows in order"
        if rows.row is not None:
            position = f"row {rows.row[index[0]] + 1} of the file"
        if len(index) > 1:
            position += f", column '{feature_names[index[1]] if feature_names else index[1]}'"
        split_name = "training" if split == "train" else split
        raise UserError(
            f"data: NaN or infinite value in the {split_name} {kind} ({position}); clean or impute the file"
        )


class Dataset(PluginBase, ABC):
    """A data set plug-in: a frozen dataclass of its options, with a method that loads the data.

    The options are the keys of its YAML. Besides ``name`` and ``class`` a YAML may have a ``title`` for pictures, and
    ``natural``, settings that suit these data: {rounds: ..., strength: ..., client_lr: ...}. Root keys that are "auto"
    have these values, and the YAMLs of regularizers and algorithms look the others up. Mark a field
    ``fcorun.PathOption`` when it is only the location of files: such a field is not part of the identity of a
    run. Override ``sources`` then, to identify the files' content.

    Attributes:
        units: whether features have the units of the source, where ``standardized`` is None.
        dependence_warning: a warning for splits that hold out some of a client's rows and train on others, or "".
        source: the origin of the data, in the form that fcorun.base.sources.catalogue defines; not inherited.
        split_seed: the seed of random splits of the rows; a data set may make it an option, a field of the type
            ``fcorun.base.config.SplitSeed``. None: ``seed`` of the run draws the folds of a selection.
    """

    source: ClassVar[str]
    units: ClassVar[bool] = True
    dependence_warning: ClassVar[str] = ""
    split_seed: int | None = None

    @property
    def target_task(self) -> Task | None:
        """The task of the targets; None where only the loaded data tell it."""
        return None

    @property
    def has_explicit_task(self) -> bool:
        """Return whether the task is certain. That of a table may be a guess from the values of its target."""
        return True

    def for_tasks(self, tasks: Sequence[str]) -> "Dataset":
        """Return the data set with one of the ``tasks`` of an objective, if its own task is a guess."""
        return self

    def with_record_encoding(self, record: str) -> "Dataset":
        """Return the same data set, encoded as in the record of the run that this run starts from."""
        return self

    def fold_seed(self, seed: int) -> int:
        """Return the seed of the folds of a selection, in a run with ``seed``."""
        return seed if self.split_seed is None else self.split_seed

    def ask_for_weight_kind(self, weight: np.ndarray | None) -> str:
        """Return a remark on the weights of rows, (N,), whose kind is not said and which look like counts, or ""."""
        return ""

    def describe_unweighted(self) -> str:
        """Return a sentence on results that count each row once, whatever its weight; "" where rows have none."""
        return describe_unweighted(getattr(self, "weight", None), getattr(self, "weight_kind", "sampling"))

    def law(self) -> "Dataset | None":
        """Return the same data set for all seeds between which only the numbers of the rows and the truth differ.

        Runs on data of one law share compiled programs. None: the data are of no law.
        """
        return None

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

    def fingerprint(self) -> str:
        """Return sixteen hex digits that differ where options or ``sources()`` differ. Downloads nothing."""
        return self.fingerprint_with({})

    def fingerprint_with(self, gone: dict[str, Any]) -> str:
        """Return the fingerprint by versions that had further options, with these values."""
        content = [code_identifier(self), identity_fields(self) | gone, self.sources()]
        if self.target_task is not None and not is_of_fcorun(self.target_task):
            content.append(code_identifier(self.target_task))
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def shard_for_host(data: FederatedData, host: int, n_hosts: int, in_memory: bool = False) -> FederatedData:
    """Return the shard of the data that one of ``n_hosts`` hosts stores.

    A host stores the features of its own clients, in training and validation; the first host alone has the test rows.
    Rows on disk are read if ``in_memory``. Data of fewer clients than hosts, or of generated clients, are returned
    unchanged.
    """
    train, validation, test = data.train, data.validation, data.test
    if not train.can_be_sharded(n_hosts):
        return data
    host_offsets = balance_clients(train.offsets, n_hosts)
    if validation is not None:
        bounds = np.arange(n_hosts + 1) * len(validation) // n_hosts
        if data.validation_offsets is not None:
            bounds = data.validation_offsets[host_offsets]
        validation = validation.shard(bounds, host, in_memory)
    if host:
        test = None
    elif test is not None and in_memory:
        test = replace(test, x=np.asarray(test.x))
    train = train.shard(train.offsets[host_offsets], host, in_memory)
    return replace(data, train=train, validation=validation, test=test)


# The loading of data sets, each once in a process.

_LOADING = threading.Lock()  # held while data are loaded: who needs the same data waits for them


def load_dataset(dataset: Dataset, fingerprint: str, memory: float | None, host: int, n_hosts: int) -> FederatedData:
    """Load one shard of a data set. The next call for the same data returns the same object.

    Raises UserError if the data cannot be loaded, or do not fit into memory.
    """
    request = Keyed(f"{fingerprint} {dataset}", (dataset, memory))
    with _LOADING:
        return _load_once(request, host, n_hosts)


@lru_cache(maxsize=2)
def _load_once(request: Keyed[tuple[Dataset, float | None]], shard: int, n_shards: int) -> FederatedData:
    dataset, memory = request.value
    needed, description = dataset.memory_needed()
    check_memory(needed / n_shards, free_host_memory(), memory, description)
    try:
        data = dataset.load() if n_shards == 1 else dataset.load_shard(shard, n_shards)
        return data.validate()
    except MemoryError as error:
        raise UserError(f"the data do not fit into memory ({first_line(error)}); {REDUCE_HINT}") from error
