"""The rows of a Python program as data sets: ``from_arrays`` and ``from_frame``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any, Unpack, get_type_hints

import numpy as np
from numpy.typing import ArrayLike

from fcorun.base.config import check_folder_name, check_plugin, to_plain_value
from fcorun.base.errors import UserError, describe_type, suggest_name
from fcorun.data.datasets.in_memory import ArrayOptions, FrameOptions, InMemoryTable, MemoryRows
from fcorun.data.rows.sparse_matrix import SparseMatrix
from fcorun.data.tables.cells import names_as_text
from fcorun.data.tasks import Binary, Multiclass, Regression, Survival
from fcorun.interface.api.python_words import COLUMN_ARGUMENTS, PythonNames, python_words

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import sparray, spmatrix


@python_words(lambda _: PythonNames("arrays"))
def from_arrays(
    X: "ArrayLike | sparray | spmatrix",
    y: ArrayLike,
    clients: ArrayLike | None = None,
    *,
    task: str | None = None,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    events: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    folds: ArrayLike | None = None,
    feature_names: Sequence[str] | None = None,
    validation: float | Sequence[str] | np.ndarray | None = None,
    test: float | Sequence[str] | np.ndarray | None = None,
    n_clients: int | None = None,
    name: str = "arrays",
    **options: Unpack[ArrayOptions],
) -> InMemoryTable:
    """Return the data set of some arrays, for ``fcorun.Experiment``. The arrays are not copied.

    Args:
        X: features, (N, d), real numbers without gaps; an array, or a matrix of scipy.sparse, which stays sparse.
        y: targets, (N,): numbers, or labels.
        clients: the name of each row's client, (N,). None: one client has all rows, unless ``n_clients`` is given.
        task: "regression", "binary", "multiclass", or "survival" (given by ``events``). None: the task of the
            experiment's objective; without an objective, labels that are text or have two values are classes, and other
            targets are numbers.
        sample_weight: the weight of each row, (N,), 0 or more.
        offset: the term that is added to each row's linear predictor, (N,).
        events: whether the row has an event at the time that ``y`` gives, or is censored then, (N,).
        groups: the group of each row, (N,), such as the patient: rows of one group are held out together.
        folds: the fold in which ``select`` holds each row out, (N,).
        feature_names: the name of each feature, (d,), in coefficients and predictions.
        validation, test: the rows that are held out: a fraction of each client's rows, names of clients, or a mask
            (N,). By default a fifth of each client's rows are validation rows.
        n_clients: the number of clients that the rows are divided into, by ``partition``; only without ``clients``.
        name: the name of the data, in messages and folders.
        options: further options of a table: partition, alpha, standardize, positive, seed, split_seed.

    Raises UserError for arrays whose shapes do not fit each other, names that are missing or given twice, and unknown
    options.
    """
    given = _known_options(options, ArrayOptions)
    arrays = {"x": _features(X), "y": _column(y, "y")}
    columns = {
        "client": clients,
        "weight": sample_weight,
        "offset": offset,
        "event": events,
        "group": groups,
        "fold": folds,
    }
    for role, values in columns.items():
        if values is not None:
            arrays[role] = _column(values, COLUMN_ARGUMENTS[role])
            if role != "client":
                given[role] = role
    if clients is not None:
        if n_clients is not None:
            raise UserError(f"n_clients={n_clients} divides rows that have no clients: leave out n_clients or clients")
        arrays["client"] = _client_names(arrays["client"])
    else:
        given["clients"] = 1 if n_clients is None else n_clients
    for split, held_out in (("validation", validation), ("test", test)):
        if _is_mask(held_out):
            arrays[split] = _column(held_out, split).astype(bool, copy=False)
        else:
            given[split] = to_plain_value(held_out)
    for role, values in arrays.items():
        if len(values) != len(arrays["y"]):
            argument = "X" if role == "x" else COLUMN_ARGUMENTS.get(role, role)
            raise UserError(f"{argument} has {len(values)} rows and y has {len(arrays['y'])}: give one for each")
    if feature_names is not None:
        arrays["feature_names"] = _feature_names(feature_names, arrays["x"].shape[1])
    return _make_table(arrays, arrays["y"], name, task, given)


@python_words(lambda _: PythonNames("frame"))
def from_frame(
    frame: "pd.DataFrame",
    target: str,
    client: str | None = None,
    *,
    task: str | None = None,
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
        options: further options of a table: weight, offset, event, group, split, fold (names of columns), validation,
            test, standardize, missing, na, only, ignore, keep, labels, positive, seed, split_seed, ...

    Raises UserError for a frame without these columns, missing names of clients, and unknown options.
    """
    if not hasattr(frame, "columns"):
        raise UserError(f"from_frame takes a pandas.DataFrame, not {type(frame).__name__}: give arrays to from_arrays")
    given = _known_options(options, FrameOptions)
    frame = frame.rename(columns=str)
    if frame.columns.nlevels > 1 or not frame.columns.is_unique:
        raise UserError("the columns of the frame have several levels, or one name twice: give each column one name")
    if not len(frame):
        raise UserError("the frame has no rows: give at least one")
    for option, column in (("target", target), ("client", client)):
        if option == "client" and column is None:
            continue
        if not isinstance(column, str):
            raise UserError(f"{option} is {describe_type(column)}: give the name of a column of the frame")
        if column not in frame:
            raise UserError(
                f"`data.{option}={column}`: the frame has no such column; {suggest_name(column, list(frame.columns))}"
            )
    if client is None:
        given.setdefault("clients", 1)
    else:
        _client_names(frame[client].to_numpy())
    given |= {"target": target, "client": client}
    return _make_table(frame, frame[target].to_numpy(), name, task, given)


def guess_task(y: np.ndarray) -> str:
    """Return the name of the task of targets (N,): two values, and text, are classes; others are a regression's."""
    for label in y if y.dtype.kind not in "fiubU" else ():
        if not isinstance(label, (Real, str, type(None))):
            raise UserError(f"a target is {describe_type(label)}, {label}: give numbers or text")
    labels = set(y.tolist())
    if len(labels) == 2:
        return Binary.name
    if all(isinstance(label, Real) for label in labels):
        return Regression.name
    with suppress(ValueError, TypeError):
        _ = [float(str(label)) for label in labels]
        raise UserError("the targets are text that looks like numbers: convert them to numbers, or give "
                        "task='multiclass' if they are labels")  # fmt: skip
    return Multiclass.name


def _known_options(options: Mapping[str, Any], known: type) -> dict[str, Any]:
    """Return the options. Raises UserError for one that is no key of the TypedDict ``known``."""
    names = [*get_type_hints(known)]
    for option in options:
        if option not in names:
            raise UserError(f"unknown option '{option}' of the rows: {suggest_name(option, names)}")
    return dict(options)


def _make_table(
    values: Any, targets: np.ndarray, name: str, task: str | None, options: dict[str, Any]
) -> InMemoryTable:
    """Return the data set of some rows. Raises UserError for a name that cannot be that of a folder."""
    check_folder_name(name, "name")
    if options.get("event") is not None and task is None:
        task = Survival.name
    table = InMemoryTable(
        path=name, rows=MemoryRows(values), task=task or guess_task(targets), task_is_guessed=task is None, **options
    )
    return check_plugin(table, {}, "data")


def _sparse_features(X: Any) -> SparseMatrix:
    """Return the features of a matrix of scipy.sparse. Raises UserError."""
    if X.ndim != 2 or X.shape[1] == 0:
        raise UserError(f"X has shape {X.shape}: give a matrix (N, d)")
    return SparseMatrix.from_scipy(X, "X")


def _features(X: object) -> np.ndarray | SparseMatrix:
    """Return the features as an array (N, d) of real numbers, or as sparse rows. Raises UserError."""
    if hasattr(X, "columns"):
        raise UserError("X is a DataFrame, whose columns have names: give it with its target to from_frame")
    if hasattr(X, "tocsr"):
        return _sparse_features(X)
    _refuse_masked(X, "X")
    try:
        x = np.asarray(X)
    except ValueError as error:
        raise UserError(f"X is no matrix: {error}") from error
    if x.ndim != 2 or x.shape[1] == 0 or x.dtype.kind not in "fiub":
        raise UserError(f"X has shape {x.shape} and type {x.dtype}: give a matrix (N, d) of real numbers")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise UserError(f"X[{row}, {column}] is {x[row, column]}: fill it in, or give a DataFrame to from_frame with "
                        'missing="mean"')  # fmt: skip
    return x


def _refuse_masked(values: object, argument: str) -> None:
    """Raise UserError for an array with masked entries, of which NumPy would take the values below the mask."""
    if np.ma.is_masked(values):
        raise UserError(f"{argument} has masked entries: leave these rows out, or give {argument}.filled(nan) in a "
                        'DataFrame to from_frame with missing="mean"')  # fmt: skip


def _feature_names(names: Any, n_features: int) -> np.ndarray:
    """Return the names of features as text, (d,). Raises UserError for names that are no text, missing, or repeated."""
    if isinstance(names, str) or not hasattr(names, "__iter__"):
        raise UserError("feature_names is no list: give the name of each feature, such as list(frame.columns)")
    listed = list(names)
    if len(listed) != n_features:
        raise UserError(f"feature_names has {len(listed)} names and X has {n_features} features: give one for each")
    for position, name in enumerate(listed):
        if not isinstance(name, str) or not name:
            raise UserError(f"feature_names[{position}] is {name!r}: give a text that names the feature")
    if len(set(listed)) < len(listed):
        (name, _), *_ = Counter(listed).most_common(1)
        raise UserError(f"feature_names has '{name}' twice: give each feature a name of its own")
    return np.array(listed)


def _column(values: object, argument: str) -> np.ndarray:
    """Return the values of an argument as an array (N,), numbers among the objects of ``y`` as float64.

    Raises UserError, also for a target that is missing or infinite.
    """
    _refuse_masked(values, argument)
    try:
        column = np.asarray(values)
    except ValueError as error:
        raise UserError(f"{argument} has rows of several lengths: give one value for each row, (N,)") from error
    if column.ndim != 1:
        raise UserError(f"{argument} has shape {column.shape}: give one value for each row, (N,)")
    if not len(column):
        raise UserError(f"{argument} has no rows: give at least one")
    if argument != "y":
        return column
    if column.dtype == object and all(isinstance(value, Real) for value in column):
        column = column.astype(float)
    complete = np.ones(len(column), bool)
    if column.dtype.kind == "f":
        complete = np.isfinite(column)
    elif column.dtype == object:
        import pandas as pd

        complete = ~pd.isna(column)
    if not complete.all():
        row = int(np.argmin(complete))
        raise UserError(f"y[{row}] is {column[row]}: leave the row out, or give its target")
    return column


def _is_mask(held_out: object) -> bool:
    """Return whether held-out rows are given as truth values, in a list, an array or a column of a frame."""
    if not isinstance(held_out, (list, tuple)) and not hasattr(held_out, "__array__"):
        return False
    values = np.asarray(held_out)
    are_objects = values.dtype == object
    return values.dtype == bool or (are_objects and all(isinstance(value, (bool, np.bool_)) for value in values.flat))


def _client_names(clients: np.ndarray) -> np.ndarray:
    """Return the names of clients (N,) as text. Raises UserError for a missing name."""
    import pandas as pd

    missing = np.asarray(pd.isna(clients)) | (clients.astype(str) == "")
    if missing.any():
        raise UserError(
            f"the client of row {int(missing.argmax()) + 1} is missing: give each row the name of its client"
        )
    return names_as_text(clients)
