"""Rows that a Python program has in memory: arrays of NumPy, or a DataFrame of pandas."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack, get_type_hints

import numpy as np
from numpy.typing import ArrayLike

from fcorun.datasets.base import Dataset, FederatedData
from fcorun.datasets.table import Table
from fcorun.errors import UserError, suggest_name
from fcorun.folder_names import check_folder_name
from fcorun.object_checks import check_plugin, to_plain_value
from fcorun.tables.column_files import ParsedTable
from fcorun.tables.column_roles import ParsedRows
from fcorun.tables.columns import names_as_text
from fcorun.tables.fit_encoding import MissingPolicy
from fcorun.tables.readers import parse_columns
from fcorun.tables.splits import attach_groups_and_splits

if TYPE_CHECKING:
    import pandas as pd

Task = Literal["regression", "binary", "multiclass"]
# the argument of from_arrays that gives the column of each role
_ARGUMENTS = {
    "x": "X",
    "client": "clients",
    "weight": "sample_weight",
    "offset": "offset",
    "group": "groups",
    "fold": "folds",
}


class MemoryRows:
    """The rows of a Python program: a DataFrame, or arrays by name. The digest tells whether they have changed.

    Attributes:
        values: a pandas.DataFrame, or the arrays "x" (N, d) and "y" (N,), and optionally "client", "validation",
            "test", "weight", "offset", "group" and "fold", each (N,).
        task_is_guessed: whether the program named no task, so that the objective decides.
        digest: sixteen hex digits of the content when the rows were given.
    """

    def __init__(self, values: Any, task_is_guessed: bool = False):
        self.values = values
        self.task_is_guessed = task_is_guessed
        self.digest = self._compute_digest()

    def __repr__(self) -> str:
        return f"MemoryRows({self.digest})"

    def __deepcopy__(self, memo: Any) -> "MemoryRows":
        return self

    def check_unchanged(self, name: str) -> None:
        """Raise UserError if the rows have changed since they were given."""
        if self._compute_digest() != self.digest:
            raise UserError(f"data={name}: the rows have changed since they were given to fcorun: call from_arrays or "
                            "from_frame again, or give a copy")  # fmt: skip

    def _compute_digest(self) -> str:
        digest = hashlib.sha256()
        if isinstance(self.values, dict):
            for name, array in self.values.items():
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(_array_bytes(array))
        else:
            from pandas.core.util.hashing import hash_pandas_object

            for name in self.values.columns:
                column = self.values[name]
                digest.update(f"{name} {column.dtype} {len(column)}".encode())
                digest.update(hash_pandas_object(column, index=False).to_numpy().tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class InMemoryTable(Table):
    """Rows in memory, made by ``from_arrays`` and ``from_frame``. All options but the path are those of a table.

    Attributes:
        path: the name of the data, in messages and folders.
        rows: the rows; None in a configuration that was read from a record, which has no rows.
    """

    source = "yours"

    rows: Annotated[Any, "outside identity", "in memory"] = None

    def load(self) -> FederatedData:
        """Return the rows sorted by client, as ``Table.load`` does."""
        rows = self._get_rows()
        if isinstance(rows.values, dict):
            parsed = self._parse_arrays(rows.values)
        else:
            parsed = parse_columns(ParsedTable(rows.values), self.path, self.roles)
        return self.to_federated_data(attach_groups_and_splits(parsed, self.roles, self.path))

    def load_shard(self, host: int, n_hosts: int) -> FederatedData:
        return Dataset.load_shard(self, host, n_hosts)

    def for_tasks(self, tasks: Sequence[str]) -> "InMemoryTable":
        """Return the data set with one of the ``tasks`` of an objective, unless the program has named the task."""
        if not self.rows.task_is_guessed or self.task in tasks:
            return self
        targets = self.rows.values[self.target] if self.target else self.rows.values["y"]
        n_labels = len(set(np.asarray(targets).tolist()))
        task = "binary" if n_labels == 2 and "binary" in tasks else tasks[-1]
        return replace(self, task=task)

    def _digest_rows(self) -> str:
        rows = self._get_rows()
        rows.check_unchanged(self.path)
        return rows.digest

    def _get_rows(self) -> MemoryRows:
        if self.rows is None:
            raise UserError(f"data={self.path}: the rows were given to a Python program and are in no file: give them "
                            "again, by from_arrays or from_frame")  # fmt: skip
        return self.rows

    def _parse_arrays(self, arrays: dict[str, np.ndarray]) -> ParsedRows:
        import pandas as pd

        options = ("weight", "offset", "group", "fold")
        metadata = {option: arrays[option] for option in options if option in arrays}
        return ParsedRows(
            x=arrays["x"],
            y=arrays["y"],
            client=arrays.get("client"),
            validation=arrays.get("validation"),
            test=arrays.get("test"),
            metadata=pd.DataFrame(metadata) if metadata else None,
        )


class ArrayOptions(TypedDict, total=False):
    """Options of ``fcorun.Table`` for arrays, whose columns have no names."""

    partition: Literal["iid", "dirichlet", "by_label", "sorted"]
    alpha: float
    standardize: Literal["none", "pooled", "per_client"]
    scaling: str
    positive: str | bool | None
    seed: int


class FrameOptions(ArrayOptions, total=False):
    """Options of ``fcorun.Table`` for the named columns of a frame."""

    clients: int
    validation: float | list[str] | None
    test: float | list[str] | None
    missing: MissingPolicy
    ignore: list[str] | None
    only: list[str] | None
    encoding: str
    weight: str | None
    offset: str | None
    group: str | None
    group_across: Literal["refuse", "keep"]
    split: str | None
    fold: str | None


def from_arrays(
    X: ArrayLike,
    y: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    task: Task | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    folds: ArrayLike | None = None,
    validation: float | Sequence[str] | np.ndarray | None = None,
    test: float | Sequence[str] | np.ndarray | None = None,
    n_clients: int | None = None,
    name: str = "arrays",
    **options: Unpack[ArrayOptions],
) -> InMemoryTable:
    """Return the data set of some arrays, for ``fcorun.Experiment``. The arrays are not copied.

    Args:
        X: features, (N, d), real numbers without gaps.
        y: targets, (N,): numbers, or labels.
        clients: the name of each row's client, (N,). None: one client has all rows, unless ``n_clients`` is given.
        task: "regression", "binary" or "multiclass". None: the task of the experiment's objective; without an
            objective, labels that are text or have two values are classes, and other targets are numbers.
        sample_weight: the weight of each row, (N,), 0 or more.
        offset: the term that is added to each row's linear predictor, (N,).
        groups: the group of each row, (N,), such as the patient: rows of one group are held out together.
        folds: the fold in which ``select`` holds each row out, (N,).
        validation, test: the rows that are held out: a fraction of each client's rows, names of clients, or a mask
            (N,). By default a fifth of each client's rows are validation rows.
        n_clients: the number of clients that the rows are divided into, by ``partition``; only without ``clients``.
        name: the name of the data, in messages and folders.
        options: further options of a table: partition, alpha, standardize, positive, seed.

    Raises UserError for arrays whose shapes do not fit each other, missing names of clients, and unknown options.
    """
    given = _known_options(options, ArrayOptions)
    arrays = {"x": _features(X), "y": _column(y, "y")}
    columns = {
        "client": clients,
        "weight": sample_weight,
        "offset": offset,
        "group": groups,
        "fold": folds,
    }
    for role, values in columns.items():
        if values is not None:
            arrays[role] = _column(values, _ARGUMENTS[role])
            if role in ("weight", "offset", "group", "fold"):
                given[role] = role
    if clients is not None:
        if n_clients is not None:
            raise UserError(f"n_clients={n_clients} divides rows that have no clients: leave out n_clients or clients")
        arrays["client"] = _client_names(arrays["client"])
    else:
        given["clients"] = 1 if n_clients is None else n_clients
    for split, held_out in (("validation", validation), ("test", test)):
        if isinstance(held_out, (list, tuple, np.ndarray)) and np.asarray(held_out).dtype == bool:
            arrays[split] = _column(held_out, split)
        else:
            given[split] = to_plain_value(held_out)
    for role, values in arrays.items():
        if len(values) != len(arrays["y"]):
            raise UserError(
                f"{_ARGUMENTS.get(role, role)} has {len(values)} rows and y has {len(arrays['y'])}: give one for each"
            )
    return _make_table(MemoryRows(arrays, task is None), name, task or guess_task(arrays["y"]), given)


def from_frame(
    frame: "pd.DataFrame",
    target: str,
    client: str | None = None,
    *,
    task: Task | None = None,
    name: str = "frame",
    **options: Unpack[FrameOptions],
) -> InMemoryTable:
    """Return the data set of a pandas.DataFrame, read as ``data=table`` reads a file.

    Args:
        frame: a row for each example. Columns without another role are features; columns of text are encoded.
        target: the column to predict.
        client: the column that names each row's client. None: one client has all rows, unless ``clients``, their
            number, is given.
        task: as for ``from_arrays``.
        name: the name of the data, in messages and folders.
        options: further options of a table: weight, offset, group, split, fold (names of columns), validation, test,
            standardize, missing, only, ignore, positive, seed, ...

    Raises UserError for a frame without these columns, missing names of clients, and unknown options.
    """
    if not hasattr(frame, "columns"):
        raise UserError(f"from_frame takes a pandas.DataFrame, not {type(frame).__name__}: give arrays to from_arrays")
    given = _known_options(options, FrameOptions)
    if frame.columns.nlevels > 1 or not frame.columns.is_unique:
        raise UserError("the columns of the frame have several levels, or one name twice: give each column one name")
    if not len(frame):
        raise UserError("the frame has no rows: give at least one")
    frame = frame.rename(columns=str)
    for option, column in (("target", target), ("client", client)):
        if column is not None and not isinstance(column, str):
            raise UserError(f"{option} is of type {type(column).__name__}: give the name of a column of the frame")
        if column is not None and column not in frame:
            raise UserError(
                f"{option}={column}: the frame has no such column; {suggest_name(str(column), list(frame.columns))}"
            )
    if client is None:
        given.setdefault("clients", 1)
    else:
        _client_names(frame[client].to_numpy())
    given |= {"target": target, "client": client}
    return _make_table(MemoryRows(frame, task is None), name, task or guess_task(frame[target].to_numpy()), given)


def guess_task(y: np.ndarray) -> Task:
    """Return the task of targets (N,): two values, and text, are classes; other numbers are those of a regression."""
    labels = set(y.tolist())
    if len(labels) == 2:
        return "binary"
    if all(isinstance(label, (int, float)) for label in labels):
        return "regression"
    with suppress(ValueError, TypeError):
        _ = [float(str(label)) for label in labels]
        raise UserError("the targets are text that looks like numbers: convert them to numbers, or give "
                        "task='multiclass' if they are labels")  # fmt: skip
    return "multiclass"


def _known_options(options: Mapping[str, Any], known: type) -> dict[str, Any]:
    """Return the options. Raises UserError for one that is no key of the TypedDict ``known``."""
    names = [*get_type_hints(known)]
    for option in options:
        if option not in names:
            raise UserError(f"unknown option '{option}' of the rows: {suggest_name(option, names)}")
    return dict(options)


def _make_table(rows: MemoryRows, name: str, task: Task, options: dict[str, Any]) -> InMemoryTable:
    """Return the data set of some rows. Raises UserError for a name that cannot be that of a folder."""
    check_folder_name(name, "name")
    return check_plugin(InMemoryTable(path=name, rows=rows, task=task, **options), {}, "data")


def _features(X: Any) -> np.ndarray:
    """Return the features as an array (N, d) of real numbers. Raises UserError."""
    if hasattr(X, "columns"):
        raise UserError("X is a DataFrame, whose columns have names: give it with its target to from_frame")
    if hasattr(X, "toarray"):
        raise UserError("X is a sparse matrix, which fcorun does not store: give X.toarray()")
    try:
        x = np.asarray(X)
    except ValueError as error:
        raise UserError(f"X is no matrix: {error}") from error
    if x.ndim != 2 or x.shape[1] == 0 or x.dtype.kind not in "fiub":
        raise UserError(f"X has shape {x.shape} and type {x.dtype}: give a matrix (N, d) of real numbers")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise UserError(f"X[{row}, {column}] is {x[row, column]}: fill it in, or give a DataFrame to from_frame with "
                        "missing=mean")  # fmt: skip
    return x


def _column(values: Any, argument: str) -> np.ndarray:
    """Return the values of an argument as an array (N,). Raises UserError."""
    column = np.asarray(values)
    if column.ndim != 1:
        raise UserError(f"{argument} has shape {column.shape}: give one value for each row, (N,)")
    if not len(column):
        raise UserError(f"{argument} has no rows: give at least one")
    if argument == "y" and column.dtype == object and all(isinstance(value, (int, float)) for value in column):
        column = column.astype(float)
    if argument == "y" and column.dtype.kind == "f" and not np.isfinite(column).all():
        row = int(np.argmin(np.isfinite(column)))
        raise UserError(f"y[{row}] is {column[row]}: leave the row out, or give its target")
    return column


def _client_names(clients: np.ndarray) -> np.ndarray:
    """Return the names of clients (N,) as text. Raises UserError for a missing name."""
    import pandas as pd

    missing = np.asarray(pd.isna(clients)) | (clients.astype(str) == "")
    if missing.any():
        raise UserError(
            f"the client of row {int(missing.argmax()) + 1} is missing: give each row the name of its client"
        )
    return names_as_text(clients)


def _array_bytes(array: np.ndarray) -> bytes:
    """Return bytes that identify the content of an array."""
    if array.dtype.kind == "O":
        return "\x00".join(map(str, array.tolist())).encode()
    return np.ascontiguousarray(array).tobytes()
