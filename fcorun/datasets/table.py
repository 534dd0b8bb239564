"""One's own data: a table whose rows belong to clients, or are dealt out to them."""

from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import numpy as np

from fcorun.config import AUTO, Count, Index, PathOption, Positive
from fcorun.datasets.base import Dataset, FederatedData
from fcorun.errors import UserError
from fcorun.rows.host_rows import shard_for_host
from fcorun.rows.on_disk import DiskRows
from fcorun.tables.array_files import (
    HDF5_ENDINGS,
    ON_DISK_WARNING,
    file_digest,
    folder_digest,
    is_array_folder,
    stays_on_disk,
)
from fcorun.tables.client_assignment import assign_clients
from fcorun.tables.columns import ColumnKind, infer_kinds
from fcorun.tables.data_warnings import (
    abbreviate,
    warn_constant_features,
    warn_identifiers,
    warn_missing_codes,
    warn_nothing_held_out,
    warn_positive_class,
    warn_scaled_by_held_out_rows,
    warn_similar_names,
    warn_two_valued_target,
)
from fcorun.tables.encode import ClientRows, MissingPolicy, encode
from fcorun.tables.encoding import ENCODING_FILE as ENCODING
from fcorun.tables.encoding import Encoding, read_encoding
from fcorun.tables.groups import (
    SPLITS,
    attach_groups_and_splits,
    check_groups_intact,
    summarize_groups,
    warn_groups_across_clients,
)
from fcorun.tables.parsed_rows import ParsedRows
from fcorun.tables.partition import standardize_per_client
from fcorun.tables.readers import detect_ending, find_file, read_table
from fcorun.tables.scaling import ClientScalings, Scaling
from fcorun.tables.splits import HoldOut
from fcorun.tables.targets import encode_targets, order_classes
from fcorun.tables.weight_offset import check_column_roles, take_weight_and_offset

ColumnName = Annotated[str | None, "default outside identity"]
ColumnNames = Annotated[list[str] | None, "default outside identity"]


@dataclass(frozen=True)
class Table(Dataset):
    """Rows of a file, by client.

    Attributes:
        path: a .csv, .tsv, .parquet or .xlsx file, whose columns other than the target and the client are the features
            (a .csv may have semicolons and decimal commas: see ``fcorun.tables.csv_text``); a .npz file of X (N, d), y
            (N,) and, if wanted, client (N,) and boolean validation and test (N,); or a LIBSVM file
            (.libsvm, .svm, .svmlight, .txt), read into a dense float32 array. Text files may be packed (.gz, .bz2). An
            HDF5 file (.h5) and a folder of .npy files hold the arrays of an .npz.
        target: the column to predict; needed, and allowed, for files with named columns only.
        client: the column that names the client of a row; without it rows are dealt out by ``partition``.
        partition: see ``fcorun.tables.partition``; only where the file does not name clients.
        clients: how many clients to deal the rows out to.
        alpha: concentration of the Dirichlet partition; the smaller, the more the clients' labels differ.
        task: "regression" keeps the target as a number; for the others any values are labels, sorted.
        validation: the fraction of each client's rows to hold out, or names of clients to hold out wholly. None: the
            rows that an .npz marks, and 0.2 of each client's where nothing is marked.
        test: likewise the rows that nothing but the scores at the end of a run ever sees; None: those that an .npz
            marks, else none. Which they are does not depend on a fraction ``validation``.
        standardize: by the training rows' mean and deviation, of all clients ("pooled") or of each ("per_client").
        scaling: a record on data that were standardized "pooled", whose mean and deviation are taken instead.
        seed: of the partition and of the rows held out.
        missing: what gaps in the features become, by the training rows: see ``fcorun.tables.encode.fit``.
        ignore: columns that are no features.
        only: the columns that are features, all others being none; None: all columns.
        encoding: a record whose columns, found by name, levels and fills are taken instead, for new clients; where a
            run starts from a record, it is that one.
        weight: a column that is no feature but what each row weighs in all means of losses and scores, 0 or more; of
            clients, in "examples" weighting, the sums count. Features are standardized by the rows as they are.
        offset: a column that is no feature but is added to the linear predictor, such as the logarithm of an exposure.
        positive: which of two labels is the positive class, whose index is 1: coefficients, probabilities and
            sensitivity speak for it. None: the last in order. Clients and held-out rows are the same for both.
        group: a column that is no feature but names the group of each row, such as the patient of a visit: rows of one
            group are held out together, by numbers drawn from (seed, group) alone. ``validation`` and ``test`` are then
            the chance of each group to be held out. Without ``client``, groups are dealt out to clients. Of a file of
            arrays, it and ``split`` and ``fold`` name arrays (N,).
        group_across: whether a group with rows of several clients is refused, or kept and held out at all of them.
        split: a column that is no feature but says of each row "train", "validation" or "test".
        fold: a column that is no feature but names the fold in which ``fcorun select`` holds each row out.
        resident: whether the rows of Parquet, HDF5 or a folder are in memory; false: read from disk when they are
            needed; "auto": so are those that take more than a quarter of the free memory.
    """

    source = "yours"
    path: PathOption
    target: str | None = None
    client: str | None = None
    partition: Literal["iid", "dirichlet", "by_label", "sorted"] = "iid"
    clients: Count = 10
    alpha: Positive = 0.5
    task: Literal["regression", "binary", "multiclass"] = "regression"
    validation: float | list[str] | None = None
    standardize: Literal["none", "pooled", "per_client"] = "none"
    scaling: PathOption | None = None
    seed: Index = 0
    missing: Annotated[MissingPolicy, "default outside identity"] = "refuse"
    ignore: ColumnNames = None
    only: ColumnNames = None
    encoding: PathOption | None = None
    test: Annotated[float | list[str] | None, "default outside identity"] = None
    weight: ColumnName = None
    offset: ColumnName = None
    positive: Annotated[str | bool | None, "default outside identity"] = None
    resident: Annotated[bool, "or auto", "outside identity"] = AUTO
    group: ColumnName = None
    group_across: Annotated[Literal["refuse", "keep"], "default outside identity"] = "refuse"
    split: ColumnName = None
    fold: ColumnName = None

    def __post_init__(self):
        if self.scaling is not None and self.standardize != "pooled":
            raise UserError(f"data.scaling={self.scaling} is of data.standardize=pooled: give that too")
        HoldOut(self.validation, self.test).check()
        taken = {"target": self.target, "client": self.client}
        check_column_roles(self.ignore, self.only, taken, **self._aside)
        if self.group_across == "keep" and self.group is None:
            raise UserError("data.group_across=keep is of data.group: name the column of groups, or leave it out")
        if self.split is not None and (self.validation is not None or self.test is not None):
            option = "test" if self.validation is None else "validation"
            raise UserError(f"data.split={self.split} marks the rows to hold out: leave data.{option} out")
        if self.task == "regression" and self.partition in ("by_label", "dirichlet"):
            raise UserError(f"data.partition={self.partition} needs classes and data.task=regression has none: "
                            "give data.partition=sorted")  # fmt: skip
        if self.positive is not None and self.task != "binary":
            raise UserError(f"data.positive={self.positive} is one of two labels, and the task is data.task="
                            f"{self.task}: leave it out, or give data.task=binary")  # fmt: skip

    def with_record_encoding(self, record: str) -> "Table":
        """With the encoding of ``record``, if it has one and none is given."""
        has = self.encoding is None and (FilePath(record) / ENCODING).is_file()
        return replace(self, encoding=record) if has else self

    def load(self) -> FederatedData:
        """The rows sorted by client, in the order of the file within a client; clients are sorted by name.

        ``offsets_val`` is None where validation rows belong to a client without training rows, or to nobody.
        """
        aside = {option: column for option, column in self._aside.items() if column is not None}
        only = None if self.only is None else [*self.only, *aside.values()]
        named = {"ignore": self.ignore, "only": only, "resident": self.resident}
        rows = read_table(self.path, self.target, self.client, **named, metadata_columns=aside, record=self.encoding)
        return self.to_federated_data(attach_groups_and_splits(rows, self.path, self.group, self.split, self.fold))

    def load_shard(self, host: int, n_hosts: int) -> FederatedData:
        """Of a folder and of HDF5 the rows of others are read block by block, to be checked and summed up."""
        where = f"data.path={self.path}"
        plain = is_array_folder(self.path) or detect_ending(find_file(self.path, arrays=True), where) in HDF5_ENDINGS
        if self.standardize != "per_client" and plain:
            return _load_rows_of_host(replace(self, resident=False).load(), host, n_hosts, self.resident) or self.load()
        return super().load_shard(host, n_hosts)

    def to_federated_data(self, rows: ParsedRows) -> FederatedData:
        """These rows as ``load`` gives those of a file: targets, clients, held-out rows and scaling by the options."""
        rows, given = take_weight_and_offset(rows, self.path, self.weight, self.offset)
        kinds, target = self._kinds(rows), f"target '{self.target}'" if self.target else "target y"
        y, classes = encode_targets(rows.y, self.task, f"data.task={self.task}: {target} of {self.path}")
        dealing = {"kind": self.partition, "clients": self.clients, "alpha": self.alpha, "seed": self.seed}
        names, owner = assign_clients(rows, y, self.path, **dealing)
        y, classes = order_classes(y, classes, self.positive, f"{target} of {self.path}")
        marked = (rows.validation, rows.test)
        across = self._across(rows, owner, names)
        validation, test = HoldOut(self.validation, self.test).draw_masks(
            self.path, marked, names, owner, has_client_names=rows.client is not None, seed=self.seed, group=rows.group
        )
        held = validation | test
        self._check_marks(rows, validation, test)
        asked = f"data.validation={self.validation}" + (f", data.test={self.test}" if test.any() else "")
        if held.all():
            raise UserError(f"{asked}: every row is held out; leave some to train on")
        if classes and len(np.unique(y[~held])) < 2:
            raise UserError(f"{asked} leaves training rows of one class only: hold out fewer rows")
        sites, encoding, x, remarks = ClientRows(names, owner, ~held), rows.encoding, rows.x, []
        if kinds is not None:
            encoding, x, remarks = encode(rows.frame, kinds, sites, self.missing, where=self._where)
        features = encoding.feature_names if encoding else ()
        order = np.argsort(owner, kind="stable")  # a client whose rows are all held out takes no part in training
        kept, checked, tested = order[~held[order]], order[validation[order]], order[test[order]]
        remarks += [*across, *self._remarks_on_groups(rows, validation, test, sites)]
        raw, columns = x[kept], encoding.column_of_feature if encoding and not self.encoding else {}
        remarks += [
            *warn_identifiers(x, features),
            *warn_constant_features(raw, features, columns),
            *warn_missing_codes(x, features),
        ]
        x, scaled = self._standardized(x, features, names, owner, held)
        present, counts = np.unique(owner[kept], return_counts=True)
        own = validation.any() and np.isin(owner[checked], present).all()
        called = np.array([*names, ""])  # rows that a file holds out may be nobody's
        return FederatedData(
            x=raw if scaled is None else x[kept],
            y=y[kept],
            offsets=np.concatenate([[0], np.cumsum(counts)]),
            task=self.task,
            classes=classes,
            x_val=x[checked] if validation.any() else None,
            y_val=y[checked] if validation.any() else None,
            offsets_val=np.append(np.searchsorted(owner[checked], present), len(checked)) if own else None,
            x_test=x[tested] if test.any() else None,
            y_test=y[tested] if test.any() else None,
            clients_val=called[owner[checked]] if validation.any() else None,
            clients_test=called[owner[tested]] if test.any() else None,
            clients=tuple(names[m] for m in present),
            group=None if rows.group is None else rows.group[kept],
            fold=None if rows.fold is None else rows.fold[kept],
            features=features,
            standardized=scaled,
            **{name: values[kept] for name, values in given.items()},
            **{f"{name}_val": values[checked] for name, values in given.items() if validation.any()},
            **{f"{name}_test": values[tested] for name, values in given.items() if test.any()},
            warnings=self._remarks(rows, classes, remarks, sites),
            encoding=encoding,
            feature_range=np.stack([raw.min(axis=0), raw.max(axis=0)]) if encoding else None,
        ).validate()

    @property
    def _aside(self) -> dict[str, str | None]:
        """The columns that are no features, by option."""
        options = ("weight", "offset", "group", "split", "fold")
        return {option: getattr(self, option) for option in options}

    def _across(self, rows: ParsedRows, owner: np.ndarray, names: list[str]) -> list[str]:
        """Say which groups have rows of several clients. Raise UserError unless such are to be kept."""
        if rows.group is None or rows.client is None:
            return []
        return warn_groups_across_clients(rows.group, owner, names, str(self.group), self.group_across == "keep")

    def _check_marks(self, rows: ParsedRows, validation: np.ndarray, test: np.ndarray) -> None:
        """Raise UserError for a group that is marked apart, and for a training row without a fold."""
        part = np.array(SPLITS)[validation + 2 * test]
        if rows.group is not None:
            option = "the arrays validation and test" if self.split is None else f"data.split={self.split}"
            check_groups_intact(rows.group, part, option, str(self.group))
        if rows.fold is None:
            return
        training = part == "train"
        if "" in rows.fold[training]:
            row = int(((rows.fold == "") & training).argmax()) + 1
            raise UserError(
                f"data.fold={self.fold}: row {row} of {self.path} is trained on and has no fold: fill it in"
            )
        if rows.group is not None:
            check_groups_intact(rows.group[training], rows.fold[training], f"data.fold={self.fold}", str(self.group))

    def _remarks_on_groups(
        self, rows: ParsedRows, validation: np.ndarray, test: np.ndarray, sites: ClientRows
    ) -> list[str]:
        """Say how many groups there are, which are held out, and which clients are thereby."""
        if rows.group is None:
            return []
        told = summarize_groups(rows.group, str(self.group), validation, test)
        lost = [name for name in sites.held_out_clients() if name and name not in self._held_clients]
        if lost:
            told.append(
                f"data.group={self.group}: all groups of client {abbreviate(lost)} are held out, so that it takes no "
                "part in training: another data.seed draws others"
            )
        return told

    @property
    def _held_clients(self) -> list[str]:
        """The clients that are to be held out wholly."""
        return [name for asked in (self.validation, self.test) if isinstance(asked, list) for name in asked]

    def _standardized(
        self, x: Any, features: tuple[str, ...], names: list[str], owner: np.ndarray, held: np.ndarray
    ) -> tuple[Any, dict | None]:
        """The features as asked for, shape (N, d), and what is noted of it."""
        if self.standardize == "none":
            return x, None
        if self.standardize == "per_client":
            if isinstance(x, DiskRows):
                raise UserError(f"data.standardize=per_client needs rows in memory, and those of {self.path} stay on "
                                "disk: give pooled, or none")  # fmt: skip
            x, by = standardize_per_client(x, owner, held)
            clients = tuple([*names, ""][m] for m in by["client_index"])
            return x, ClientScalings(clients, by["n_rows"], by["mean"], by["deviation"]).to_dict()
        found = Scaling.fit(x[~held]) if self.scaling is None else self._scaling(features, x.shape[1])
        return found.transform(x), found.to_dict()

    def _kinds(self, rows: ParsedRows) -> dict[str, ColumnKind] | Encoding | None:
        """What each column holds, or the encoding that is to be taken; None where columns have no names."""
        if rows.frame is not None:
            found = read_encoding(self.encoding) if self.encoding else None
            return found or infer_kinds(rows.frame, self._where, rows.client)
        if rows.encoding is not None:
            return None
        given = {"missing": self.missing != "refuse", "encoding": self.encoding is not None}
        for option in (option for option, there in given.items() if there):
            raise UserError(f"data.{option}={getattr(self, option)} is for named columns, and {self.path} has none: "
                            f"leave data.{option} out")  # fmt: skip
        return None

    @property
    def _where(self) -> str:
        return f"data.path={self.path}"

    def _remarks(self, rows: ParsedRows, classes: tuple, more: list[str], sites: ClientRows) -> tuple[str, ...]:
        """What in the file looks like a mistake, and what comes of the split."""
        clients = [] if rows.client is None else np.unique(rows.client).tolist()
        regression = self.task == "regression"
        target = (
            [*warn_two_valued_target(rows.y), *warn_missing_codes(rows.y[:, None], ["the target"])]
            if regression
            else []
        )
        target += warn_positive_class(classes, self.positive) if self.task == "binary" else []
        told = [
            *warn_similar_names("labels", classes),
            *warn_similar_names("clients", clients),
            *rows.warnings,
            *more,
            *target,
        ]
        fraction = 0.2 if self.validation is None else self.validation
        drawn = sites.is_training.all() and rows.validation is None and not isinstance(fraction, list)
        split = []
        if drawn and fraction and rows.group is not None:
            count = len(np.unique(rows.group))
            split = [f"data.validation={fraction} holds out none of the {count} groups of data.group={self.group}: "
                     "nothing is measured on held-out rows; give more"]  # fmt: skip
        elif drawn:
            split = warn_nothing_held_out(fraction, np.bincount(sites.client_index))  # type: ignore[arg-type]
        if isinstance(rows.x, DiskRows):
            split.append(f"the rows, {rows.x.nbytes / 2**30:.3g} GiB, {ON_DISK_WARNING}")
        split += warn_scaled_by_held_out_rows(sites.held_out_clients()) if self.standardize == "per_client" else []
        return (*(f"{self._where}: {remark}" for remark in told), *split)

    @property
    def _arrays(self) -> list[str]:
        """The arrays of a folder that options name."""
        return [name for name in (self.group, self.split, self.fold) if name is not None]

    def _scaling(self, features: tuple[str, ...], count: int) -> Scaling:
        """That of the record ``scaling``."""
        assert self.scaling is not None
        found, names = Scaling.from_record(self.scaling)
        if len(found.mean) != count or (names and names != features):
            raise UserError(f"data.scaling={self.scaling} has other features than data.path={self.path}: give the same "
                            "columns in the same order")  # fmt: skip
        return found

    def sources(self) -> Any:
        """A digest of the file's bytes, wherever it lies, and of the scaling and the encoding that are taken."""
        held: Any = (
            folder_digest(self.path, self._arrays)
            if is_array_folder(self.path)
            else file_digest(find_file(self.path, arrays=True))
        )
        try:
            scaling = [Scaling.from_record(self.scaling)[0].to_identity()] if self.scaling else []
            encoding = [{"encoding": read_encoding(self.encoding).to_dict()}] if self.encoding else []
        except UserError:
            return [held, None]  # loading says what is wrong
        return [held, *scaling, *encoding] if scaling or encoding else held


def _load_rows_of_host(data: FederatedData, part: int, of: int, resident: bool | str) -> FederatedData | None:
    """Data on disk as one of ``of`` hosts has them, whose own rows are read unless they stay there; None where all
    hosts are to have all rows."""
    memory = not stays_on_disk(data.x.nbytes // of, resident)
    found = shard_for_host(data, part, of, memory)
    if found.host_bounds is None:
        return None
    return replace(
        found, warnings=tuple(told for told in data.warnings if not (memory and told.endswith(ON_DISK_WARNING)))
    )
