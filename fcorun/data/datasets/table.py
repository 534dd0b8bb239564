"""A user's table, whose rows belong to clients or are assigned to clients by a partition."""

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import numpy as np

from fcorun.base.config import AUTO, Count, Index, PathOption, Positive, SplitSeed
from fcorun.base.errors import UserError, abbreviate, suggest_name, warn_similar_names, word
from fcorun.base.system.files import file_digest
from fcorun.base.system.random_streams import draw_uniform_per_group, random_stream
from fcorun.data.datasets.dataset import Dataset, Features, FederatedData, shard_for_host
from fcorun.data.rows.features import why_not_dense, why_not_in_memory
from fcorun.data.tables.array_files import (
    ARRAY_NAMES,
    HDF5_ENDINGS,
    ON_DISK_WARNING,
    PARQUET_ENDING,
    describe_size,
    estimate_bytes,
    find_arrays,
    is_array_folder,
    least_bytes,
    stays_on_disk,
)
from fcorun.data.tables.column_roles import (
    SPLITS,
    TABLE_ROW,
    ColumnRoles,
    ParsedRows,
    are_counts,
    read_metadata,
    repeat_rows,
)
from fcorun.data.tables.columns import COLUMN_KINDS, Column
from fcorun.data.tables.columns.infer_kind import infer_kind
from fcorun.data.tables.columns.spline import LEAST_KNOTS, MOST_KNOTS, SplineColumn
from fcorun.data.tables.data_warnings import (
    describe_positive_class,
    warn_client_differences,
    warn_of_features,
    warn_of_targets,
    warn_target_units,
)
from fcorun.data.tables.encoding import (
    ENCODING_FILE,
    Encoding,
    MissingPolicy,
    check_complete,
    fit_encoding,
    join_remarks,
    read_encoding,
)
from fcorun.data.tables.imputation.missing_by_outcome import count_gaps
from fcorun.data.tables.imputation.training_cells import TrainingCells
from fcorun.data.tables.label_file import assign_roles, read_label_file
from fcorun.data.tables.parsed_table import Codes, FileOptions, find_character_encoding
from fcorun.data.tables.readers import detect_ending, explain_damage, find_file, read_table, telling_of_long_reading
from fcorun.data.tables.scaling import KEEPS_ZEROS, Scaling, standardize_per_client
from fcorun.data.tables.splits import (
    DEFAULT_VALIDATION,
    ClientRows,
    HoldOut,
    assign_rows,
    check_groups_intact,
    sort_client_names,
    summarize_groups,
    warn_groups_across_clients,
)
from fcorun.data.tables.truth_file import check_truth_classes, check_truth_units, order_truth, read_truth
from fcorun.data.tasks import Survival, Task, find_task

ColumnName = Annotated[str | None, "default outside identity"]
ColumnNames = Annotated[list[str] | None, "default outside identity"]
_OF_NAMED_FEATURES: dict[str, str | None] = {"missing": "refuse", "encoding": None, "splines": None}  # with defaults


@dataclass(frozen=True)
class Table(Dataset):
    """The rows of a file, by client. ``conf/data/table.yaml`` explains the options."""

    source = "yours"
    path: PathOption
    target: str | None = None
    client: str | None = None
    partition: Literal["iid", "dirichlet", "by_label", "sorted"] = "iid"
    clients: Count = 10
    alpha: Positive = 0.5
    task: str = "regression"
    validation: float | list[str] | None = None
    standardize: Literal["none", "scale", "pooled", "per_client"] = "none"
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
    keep: ColumnNames = None
    event: ColumnName = None
    labels: PathOption | None = None
    split_seed: SplitSeed = None
    order: Annotated[list[str] | None, "default outside identity"] = None
    splines: Annotated[dict[str, int] | None, "default outside identity"] = None
    na: Annotated[Codes, "default outside identity"] = None
    file_encoding: ColumnName = None
    sheet: ColumnName = None
    weight_kind: Annotated[Literal["sampling", "frequency"] | None, "default outside identity"] = None
    truth: PathOption | None = None
    triples: PathOption | None = None
    sparse: Annotated[bool, "or auto", "default outside identity"] = AUTO

    def __post_init__(self):
        if characters := find_character_encoding(self.encoding):
            object.__setattr__(self, "file_encoding", characters)
            object.__setattr__(self, "encoding", None)
        if self.labels is not None:
            for option, columns in assign_roles(read_label_file(self.labels), self.roles, self.labels).items():
                object.__setattr__(self, option, columns)
        if self.scaling is not None and self.standardize not in ("pooled", "scale"):
            raise UserError(f"`data.scaling={self.scaling}` needs `data.standardize=pooled`, or scale: give that too")
        HoldOut(self.validation, self.test).check()
        self.roles.check()
        self._check_triples()
        _ = self.file_options  # raises the error of an unknown encoding
        if self.group_across == "keep" and self.group is None:
            raise UserError("`data.group_across=keep` needs `data.group`: name the column of groups, or leave it out")
        if self.split is not None and (self.validation is not None or self.test is not None):
            option = "test" if self.validation is None else "validation"
            raise UserError(f"`data.split={self.split}` marks the rows to hold out: leave `data.{option}` out")
        if self.weight_kind is not None and self.weight is None:
            raise UserError(f"`data.weight_kind={self.weight_kind}` needs `data.weight`: name the column of weights, "
                            "or leave `data.weight_kind` out")  # fmt: skip
        check_truth_units(self.truth, self.standardize)
        find_task(self.task).check_options(self)
        for name, n_knots in (self.splines or {}).items():
            if not LEAST_KNOTS <= n_knots <= MOST_KNOTS:
                raise UserError(f"`data.splines={{{name}: {n_knots}}}`: give a number of knots from {LEAST_KNOTS} to "
                                f"{MOST_KNOTS}")  # fmt: skip
        if not self.target_task.has_classes and self.partition in ("by_label", "dirichlet"):
            raise UserError(f"`data.partition={self.partition}` needs classes and `data.task={self.task}` has none: "
                            "give `data.partition=sorted`")  # fmt: skip

    def _check_triples(self) -> None:
        """Raise UserError for options on columns of features, where all features are in the file of triples."""
        for option, default in {"only": None, **_OF_NAMED_FEATURES}.items():
            value = getattr(self, option)
            if self.triples is not None and value not in (None, default):
                raise UserError(f"`data.{option}={value}` is for columns of features, and all features are those of "
                                f"`data.triples={self.triples}`: leave `data.{option}` out; a feature of the table "
                                "needs a column in the triples")  # fmt: skip

    @property
    def has_explicit_task(self) -> bool:
        return False

    @property
    def target_task(self) -> Task:
        """The task of the targets: times to events for a table with a column of events, else that of ``task``."""
        if self.event is not None:
            return Survival()
        return find_task(self.task)

    @property
    def roles(self) -> ColumnRoles:
        """The roles of the columns that options name."""
        return ColumnRoles(**{role.name: getattr(self, role.name) for role in fields(ColumnRoles)})

    @property
    def file_options(self) -> FileOptions:
        """The options of the file."""
        return FileOptions(self.na, self.file_encoding, self.sheet, self.sparse, na_is_missing=self.missing != "refuse")

    @property
    def _where(self) -> str:
        """The beginning of an error or a warning about the file."""
        return word(f"`data.path={self.path}`")

    def with_record_encoding(self, record: str) -> "Table":
        """Return the table with the encoding of ``record``, if the record has one and the table names none."""
        if self.encoding is None and (FilePath(record) / ENCODING_FILE).is_file():
            return replace(self, encoding=record)
        return self

    def load(self) -> FederatedData:
        """Load the rows sorted by client, in the order of the file within a client; clients are sorted by name.

        Clients are numbered in this order, those without training rows after the others; a held-out row may have none.
        """
        options = self.file_options
        with telling_of_long_reading(self._where):
            rows = read_table(
                self.path,
                self.roles,
                record=self.encoding,
                resident=self.resident,
                options=options,
                triples=self.triples,
            )
            return self.to_federated_data(rows)

    def memory_needed(self) -> tuple[float, str]:
        """Return the bytes of the columns of a Parquet file that are read into memory."""
        file = FilePath(self.path).expanduser()
        if file.suffix.lower() != PARQUET_ENDING or not file.is_file():
            return 0, ""
        with explain_damage(self._where, PARQUET_ENDING):
            columns = None
            if self.triples is None and stays_on_disk(estimate_bytes(file), self.resident):
                columns = {self.target, self.client, *self.roles.metadata.values(), *(self.keep or ())} - {None}
            n_bytes = least_bytes(file, columns)
            size = describe_size(file, PARQUET_ENDING)
        return n_bytes, f"{self._where}{' with ' if size else ''}{size}"

    def load_shard(self, host: int, n_hosts: int) -> FederatedData:
        """Load the rows of one host's clients.

        The other rows of a folder or an HDF5 file are read block by block, to be checked and summed.
        """
        has_array_file = is_array_folder(self.path)
        if not has_array_file:
            has_array_file = detect_ending(find_file(self.path, arrays=True), self._where) in HDF5_ENDINGS
        if self.standardize == "per_client" or not has_array_file:
            return super().load_shard(host, n_hosts)
        data = replace(self, resident=False).load()
        in_memory = not stays_on_disk(data.train.x.nbytes // n_hosts, self.resident)
        shard = shard_for_host(data, host, n_hosts, in_memory)
        if shard is data:  # all hosts have all rows
            return self.load()
        warnings = data.warnings
        if in_memory:
            warnings = tuple(warning for warning in warnings if not warning.endswith(ON_DISK_WARNING))
        return replace(shard, warnings=warnings)

    def to_federated_data(self, rows: ParsedRows, warn_of_columns: bool = True) -> FederatedData:
        """Return rows as ``load`` does, by the options; with ``warn_of_columns``, warn about single columns, too."""
        rows = read_metadata(rows, self.roles, self.path)
        if self.splines and rows.encoding is not None and isinstance(rows.x, np.ndarray):  # arrays with names
            import pandas as pd

            frame = pd.DataFrame(rows.x, columns=list(rows.encoding.feature_names))
            rows = replace(rows, frame=frame, encoding=None)
        columns = self._choose_columns(rows)
        keep = [] if rows.repeated_columns is None else list(self.keep or ())
        if self.weight_kind == "frequency":
            if rows.frame is not None and self.missing == "refuse" and self.encoding is None:
                check_complete(rows.frame, self._where)  # which names the row of the file
            rows = repeat_rows(rows, self.weight, self.path)
            keep.append(TABLE_ROW)
        y, classes, client_rows, group_warnings = self._divide_rows(rows)
        x, features, warnings, remark = self._encode_rows(
            rows, y, classes, client_rows, columns=columns, warn_of_columns=warn_of_columns
        )
        return FederatedData(
            **client_rows.split(rows, x, y, remark),
            features=features,
            task=self.target_task.name,
            classes=classes,
            truth=self._read_truth(features, x.shape[1], len(classes)),
            warnings=self._warnings(rows, classes, client_rows, [*warnings, *group_warnings]),
            keep=tuple(keep),
        ).validate()

    def _read_truth(self, features: Features, n_features: int, n_classes: int) -> dict[str, np.ndarray] | None:
        """Return the known coefficients as "weights" (d,), in the scale of the features. Raises UserError."""
        if self.truth is None:
            return None
        if not self.target_task.has_order:
            check_truth_classes(self.truth, n_classes)
        names = features.names or [f"x{i}" for i in range(n_features)]  # as in coefficients.csv
        weights = order_truth(read_truth(self.truth), names, self.truth, self.path)
        if features.standardized is not None:
            weights = weights * features.standardized["scale_"]
        return {"weights": weights}

    def ask_for_weight_kind(self, weight: np.ndarray | None) -> str:
        if weight is None or self.weight_kind is not None or not are_counts(weight):
            return ""
        return word(f"the weights ('{self.weight}') are whole numbers: if a weight counts equal rows, "
                    "`data.weight_kind=frequency` gives the run standard errors, intervals and scores of the "
                    f"{weight.sum():,.0f} rows; else give `data.weight_kind=sampling`")  # fmt: skip

    def _choose_columns(self, rows: ParsedRows) -> dict[str, Column] | Encoding | None:
        """Return the columns before a fit, or the encoding to apply; None where columns have no names."""
        if rows.frame is not None:
            if self.encoding:
                encoding = read_encoding(self.encoding)
                n_knots = {c.name: len(c.value_features) + 1 for c in encoding.columns if c.makes_curve}
                if self.splines and self.splines != n_knots:
                    raise UserError(f"`data.splines`: the columns are coded as in {self.encoding}, which has other "
                                    "splines or none: leave `data.splines` out")  # fmt: skip
                return encoding
            return {name: self.infer_column(series, rows.client) for name, series in rows.frame.items()}
        if rows.encoding is not None:
            if self.splines:
                reason = why_not_dense(rows.x) or why_not_in_memory(rows.x)
                raise UserError("`data.splines` makes curves of dense columns in memory, and the rows of "
                                f"{self.path} {reason}; or leave `data.splines` out")  # fmt: skip
            return None
        for option, default in _OF_NAMED_FEATURES.items():
            if (getattr(self, option) or default) != default:
                raise UserError(f"`data.{option}={getattr(self, option)}` is for named columns, and {self.path} has "
                                f"none: leave `data.{option}` out")  # fmt: skip
        return None

    def _divide_rows(self, rows: ParsedRows) -> tuple[np.ndarray, tuple, ClientRows, list[str]]:
        """Return the targets (N,), the labels by class index, the clients and splits, and warnings about groups.

        Raises UserError for targets that do not fit the task, if no training rows are left, or only one class of them,
        and for options that the rows do not allow.
        """
        target = f"target '{self.target}'" if self.target else "target y"
        where = word(f"`data.task={self.task}`: {target} of {self.path}")
        y, classes = self.target_task.encode_targets(rows.y, where)
        names, client_index = self.assign_clients(rows, y)
        y, classes = self.target_task.order_classes(y, classes, self, f"{target} of {self.path}")
        hold_out = HoldOut(self.validation, self.test)
        if rows.client is not None:
            hold_out.check_clients(names)
        client_rows, warnings = self.divide(rows, names, client_index, hold_out)
        is_test = client_rows.masks[2]
        hold_out.check_test_rows(int(is_test.sum()), rows.group is not None)
        options = f"`data.validation={self.validation}`"
        if is_test.any():
            options += word(f", `data.test={self.test}`")
        if not client_rows.is_training.any():
            raise UserError(f"{options}: every row is held out; leave some to train on")
        if classes and len(np.unique(y[client_rows.is_training])) < 2:
            raise UserError(f"{options} leaves training rows of one class only: hold out fewer rows")
        if rows.group is not None:
            warnings += summarize_groups(rows.group, str(self.group), *client_rows.masks[1:])
        return y, classes, client_rows, warnings

    def assign_clients(self, rows: ParsedRows, y: np.ndarray) -> tuple[list[str], np.ndarray]:
        """Return the names of the clients, and the index of each row's client, (N,), for rows with targets ``y``.

        Rows whose file names no clients are partitioned as ``partition`` says; rows with groups, by group. Rows that
        the file itself holds out then get the index ``clients``, which is no client's.

        Raises UserError for a partition that the rows do not allow, and for more clients than rows or groups can fill.
        """
        if rows.client is not None:
            if self.partition != "iid":
                raise UserError(
                    f"`data.partition={self.partition}`: the rows of {self.path} have clients already; "
                    "leave `data.partition` out, or take the clients out of the data"
                )
            names = sort_client_names(set(rows.client.tolist()))
            position = {name: m for m, name in enumerate(names)}
            return names, np.array([position[name] for name in rows.client.tolist()])
        held_out = np.zeros(len(y), bool)
        for mask in (rows.validation, rows.test):
            if mask is not None:
                held_out |= mask
        training_targets = y[~held_out]
        if self.clients > len(training_targets):
            raise UserError(f"`data.clients={self.clients}` is more than the {len(training_targets)} training rows of "
                            f"{self.path}: give at most {len(training_targets)}")  # fmt: skip
        names = [f"client{m}" for m in range(self.clients)]
        rng = random_stream(self.seed, "table", "partition")
        if rows.group is None:
            client_index = np.full(len(y), self.clients)
            client_index[~held_out] = assign_rows(self.partition, training_targets, self.clients, self.alpha, rng)
            return names, client_index

        if self.partition != "iid":
            raise UserError(f"`data.partition={self.partition}` assigns single rows, and `data.group` keeps rows "
                            "together: give `data.partition=iid`, which assigns groups, or `data.client`")  # fmt: skip
        client_index = np.floor(draw_uniform_per_group(rows.group, rng) * self.clients).astype(np.int64)
        client_index[held_out] = self.clients
        empty = np.setdiff1d(np.arange(self.clients), client_index)
        if len(empty):
            n_groups = len(np.unique(rows.group))
            raise UserError(f"`data.clients={self.clients}`: client{empty[0]} gets none of the {n_groups} groups of "
                            "`data.group`, which are assigned at random: give fewer clients")  # fmt: skip
        return names, client_index

    def divide(
        self, rows: ParsedRows, client_names: list[str], client_index: np.ndarray, hold_out: HoldOut
    ) -> tuple[ClientRows, list[str]]:
        """Return the rows of clients in their splits, and warnings about groups with rows of several clients.

        Raises UserError for such groups if they are not to be kept, and for splits that divide a group.
        """
        if rows.frame is not None and self.encoding is None:
            for name in self.splines or {}:
                if name not in rows.frame:
                    raise UserError(f"`data.splines` names '{name}', which is no column of features: "
                                    f"{suggest_name(name, list(map(str, rows.frame)))}")  # fmt: skip
        warnings = []
        if rows.group is not None and rows.client is not None:
            keep = self.group_across == "keep"
            warnings = warn_groups_across_clients(rows.group, client_index, client_names, str(self.group), keep)
        validation, test = hold_out.draw_masks(
            rows, client_names, client_index, path=self.path, seed=self.fold_seed(self.seed)
        )
        split = np.array(SPLITS)[validation + 2 * test]
        training = split == "train"
        option = "the arrays validation and test" if self.split is None else f"`data.split={self.split}`"
        if rows.group is not None:
            check_groups_intact(rows.group, split, option, str(self.group))
        if rows.fold is not None:
            option = f"`data.fold={self.fold}`"
            if "" in rows.fold[training]:
                row = int(((rows.fold == "") & training).argmax()) + 1
                raise UserError(f"{option}: row {row} of {self.path} is trained on and has no fold: fill it in")
            if rows.group is not None:
                check_groups_intact(rows.group[training], rows.fold[training], option, str(self.group))
        return ClientRows(client_names, client_index, (training, validation, test)), warnings

    def _encode_rows(
        self,
        rows: ParsedRows,
        y: np.ndarray,
        classes: tuple,
        client_rows: ClientRows,
        columns: dict[str, Column] | Encoding | None,
        warn_of_columns: bool,
    ) -> tuple[Any, Features, list[str], np.ndarray | None]:
        """Return the features of the rows, (N, d), what training rows have taught of them, warnings, and remarks on
        rows, (N,).
        """
        encoding: Encoding | None = rows.encoding
        x = rows.x
        warnings: list[str] = []
        gaps: dict[str, np.ndarray] = {}
        unknown_levels: defaultdict[int, list[str]] = defaultdict(list)
        if isinstance(columns, Encoding):
            encoding = columns
            used = {column.name for column in columns.columns}
            unused = [repr(name) for name in rows.frame if name not in used]
            if unused:
                warnings.append(f"columns that the record does not use are left out: {abbreviate(unused)}")
        elif columns is not None:
            encoding = fit_encoding(
                rows.frame, columns, client_rows.training, missing=self.missing, warnings=warnings, where=self._where
            )
        if encoding is not None and columns is not None:
            x = encoding.apply(rows.frame, warnings, self._where, unknown_levels=unknown_levels)
            gaps = encoding.find_gaps(rows.frame)
        names = encoding.feature_names if encoding else ()
        training, client_index = client_rows.training
        trained, client = np.unique(client_index, return_inverse=True)
        trained_names = np.array(client_rows.client_names)[trained].tolist()
        x_train = x[training]
        y_train = y[training]
        training_gaps = {name: mask[training] for name, mask in gaps.items()}
        if warn_of_columns:
            warnings += warn_of_features(x, names, x_train, y_train, classes)
        if warn_of_columns and rows.client is not None and not isinstance(columns, Encoding):
            frame = None if rows.frame is None else rows.frame.iloc[training]
            warnings += warn_client_differences(x_train, encoding, frame, client, client_names=trained_names)
            quantity = self.target_task.find_quantity(y_train)
            if quantity is not None and rows.offset is None:  # else amounts of different exposures
                warnings += warn_target_units(quantity, client, trained_names)
        offsets = np.searchsorted(client, np.arange(len(trained) + 1))
        missing = count_gaps(
            training_gaps,
            y_train,
            offsets,
            task=self.target_task,
            classes=classes,
            client_names=trained_names,
            group=None if rows.group is None else rows.group[training],
        )
        cells = None
        if isinstance(columns, dict) and encoding is not None:  # nothing is learnt where an encoding was given
            cells = TrainingCells.from_features(x_train, encoding, training_gaps, client.astype(np.int32), self.missing)
        value_range = np.stack([x_train.min(axis=0), x_train.max(axis=0)]) if encoding else None
        standardized = None
        if self.standardize != "none":
            x, standardized = self._standardize(x, names, client_rows)
        features = Features(
            names,
            standardized=standardized,
            encoding=encoding,
            value_range=value_range,
            gaps={name: int(mask.sum()) for name, mask in gaps.items()},
            missing=missing,
            cells=cells,
            labels={} if self.labels is None else read_label_file(self.labels),
            first_index=rows.first_index,
        )
        return x, features, warnings, join_remarks(unknown_levels, len(y))

    def _standardize(self, x: Any, names: tuple[str, ...], client_rows: ClientRows) -> tuple[Any, dict[str, Any]]:
        """Return the features, (N, d), standardized by their training rows or a record, and the scaling as a dict.

        Raises UserError for rows on disk that are to be standardized by client, and for a record with other features or
        without means.
        """
        if self.standardize == "per_client":
            clients = [*client_rows.client_names, ""]
            x, scalings = standardize_per_client(x, client_rows.client_index, ~client_rows.is_training, clients)
            return x, scalings.to_dict()
        if self.scaling is None:
            training, client_index = client_rows.training
            scaling = Scaling.fit(x[training], np.unique(client_index, return_inverse=True)[1])
        else:
            scaling, scaled_names = Scaling.from_record(self.scaling)
            if len(scaling.mean) != x.shape[1] or (scaled_names and scaled_names != names):
                raise UserError(f"`data.scaling={self.scaling}` has other features than `data.path={self.path}`: give "
                                "the same columns in the same order")  # fmt: skip
            if self.standardize == "pooled" and not scaling.is_centred:
                raise UserError(f"`data.scaling={self.scaling}` has no means, for its features were not centred: give "
                                "`data.standardize=scale`")  # fmt: skip
        if self.standardize == "scale":
            scaling = scaling.without_centring
        return scaling.transform(x), scaling.to_dict()

    def infer_column(self, series: Any, clients: np.ndarray | None) -> Column:
        """Return the column, before a fit, of the cells of a pandas.Series; ``clients`` names the client of each row.

        Raises UserError for cells of no kind.
        """
        kind = infer_kind(series, self._where, clients)
        if series.name in (self.splines or {}) and not kind.has_numbers:
            raise UserError(f"{self._where}: column '{series.name}' holds {kind.content}, of which `data.splines` has "
                            f"no curve: leave '{series.name}' out of `data.splines`")  # fmt: skip
        return self.make_column(kind.kind, series.name)

    def make_column(self, kind: str, name: str) -> Column:
        """Return the column, before a fit, of the kind that a site has inferred."""
        if name in (self.splines or {}) and COLUMN_KINDS[kind].has_numbers:
            return SplineColumn(name, n_knots=(self.splines or {})[name])
        return COLUMN_KINDS[kind](name)

    def _warnings(self, rows: ParsedRows, classes: tuple, client_rows: ClientRows, more: list[str]) -> tuple[str, ...]:
        """Return all warnings: about the file, its target, its splits, and ``more`` about its columns and groups."""
        clients = [] if rows.client is None else np.unique(rows.client).tolist()
        warnings = [*warn_similar_names("labels", classes), *warn_similar_names("clients", clients)]
        warnings += [*rows.warnings, *more]
        warnings += warn_of_targets(self.target_task, rows.y, rows.offset)
        if self.target_task.has_two_classes:
            warnings += describe_positive_class(classes, self.positive)
        if rows.weight is not None:
            warnings += filter(None, [self.ask_for_weight_kind(rows.weight)])
            warnings.append(word(f"`data.weight={self.weight}` weighs the rows in training and its metrics; scores, "
                                 "thresholds and curves of held-out rows count each row once, and features are "
                                 "standardized by the rows as they are"))  # fmt: skip
        if rows.client is None and self.clients > 1:
            clients = (
                "no clients are given" if self.target is None else word("no column of clients is given (`data.client`)")
            )
            warnings.append(
                word(f"{clients}: `data.partition={self.partition}` divides the rows among {self.clients} clients")
            )
        warnings = [f"{self._where}: {warning}" for warning in warnings]

        fraction = DEFAULT_VALIDATION if self.validation is None else self.validation
        is_drawn = rows.validation is None and not isinstance(fraction, list)
        if fraction and is_drawn and client_rows.is_training.all():
            drawn = "rows" if rows.group is None else "groups"
            warnings.append(word(f"`data.validation={fraction}` holds out no row, for no client has enough {drawn}: "
                                 "nothing is measured on held-out rows; give more, or a list of clients"))  # fmt: skip
        if self.standardize == "scale":
            warnings.append(word(KEEPS_ZEROS))
        if why_not_in_memory(rows.x):
            warnings.append(f"the rows, {rows.x.nbytes / 2**30:.3g} GiB, {ON_DISK_WARNING}")
        return tuple(warnings)

    def sources(self) -> Any:
        """Return the digest of the rows, whatever their path, and what else changes them or their split.

        That is the applied scaling and encoding, the truth, and that names are read as no version before read them.
        """
        digest = self._digest_rows()
        applied: list[dict[str, Any]] = []
        if self.client or self.group or self.fold:
            applied.append({"names": "17.0 is 17"})  # rows are held out by these names
        try:
            if self.scaling:
                scaling = Scaling.from_record(self.scaling)[0]
                applied.append({"by": "pooled", "mean": scaling.mean.tolist(), "scale": scaling.factor.tolist()})
            if self.encoding:
                applied.append({"encoding": read_encoding(self.encoding).to_dict()})
            if self.truth:
                applied.append({"truth": sorted(read_truth(self.truth).items())})
        except UserError:
            return [digest, None]  # ``load`` raises the error
        if applied:
            return [digest, *applied]
        return digest

    def _digest_rows(self) -> Any:
        """Return the digest of the file, or of the arrays of a folder; with triples, also of their file."""
        if self.triples is not None:
            return [file_digest(find_file(self.path)), file_digest(find_file(self.triples, "data.triples="))]
        if is_array_folder(self.path):
            arrays = [name for name in (self.group, self.split, self.fold) if name is not None]
            files = find_arrays(self.path, (*ARRAY_NAMES, *arrays))
            return {name: file_digest(file) for name, file in files.items()}
        return file_digest(find_file(self.path, arrays=True))
