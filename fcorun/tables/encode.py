"""How an encoding is found: each client counts and adds up its training rows, and the server the clients' sums."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fcorun.errors import UserError
from fcorun.tables import federated_statistics
from fcorun.tables.columns import ColumnKind, check_level_count, coerce_numbers, is_missing, to_level_names
from fcorun.tables.data_warnings import abbreviate, warn_similar_names
from fcorun.tables.encoding import Column, Encoding, check_finite

MissingPolicy = Literal["refuse", "mean", "median", "indicator"]


@dataclass(frozen=True)
class ClientRows:
    """Whose rows are whose.

    Attributes:
        names: of the clients.
        owner: the index of each row's client, shape (N,).
        training: whether a row is trained on, shape (N,).
    """

    client_names: Sequence[str]
    client_index: np.ndarray
    is_training: np.ndarray

    def training_rows(self) -> dict[str, np.ndarray]:
        """The training rows of each client that has some."""
        rows = np.flatnonzero(self.is_training)
        rows = rows[np.argsort(self.client_index[rows], kind="stable")]
        parts = np.split(rows, np.flatnonzero(np.diff(self.client_index[rows])) + 1)
        return {self.client_names[int(self.client_index[part[0]])]: part for part in parts}

    def held_out_clients(self) -> list[str]:
        """The names of the clients that have no training row, but others."""
        own = np.bincount(self.client_index, self.is_training, len(self.client_names))
        return [
            name
            for name, rows, n in zip(self.client_names, own, np.bincount(self.client_index), strict=False)
            if not rows and n
        ]

    def client_of_row(self) -> np.ndarray:
        """The name of each row's client, shape (N,)."""
        return np.array(self.client_names)[self.client_index]


def encode(
    frame: Any, kinds: dict[str, ColumnKind] | Encoding, client_rows: ClientRows, missing: MissingPolicy, *, where: str
) -> tuple[Encoding, np.ndarray, list[str]]:
    """The encoding of a pandas.DataFrame, its features, shape (N, d), and what to know of them.

    ``kinds`` are those of the columns, or the encoding that is to be taken. Raises UserError as ``fit`` and
    ``Encoding.apply`` do, and where no feature is left.
    """
    remarks: list[str] = []
    if isinstance(kinds, Encoding):
        encoding = kinds
        more = [repr(name) for name in frame if name not in {column.name for column in encoding.columns}]
        remarks += [f"columns that the record has no features of are left out: {abbreviate(more)}"] if more else []
    else:
        encoding = fit_encoding(frame, kinds, client_rows, missing=missing, warnings=remarks, where=where)
    x = encoding.apply(frame, remarks, where)
    if not x.shape[1]:
        raise UserError(f"{where}: not one feature is left; give columns that differ between rows")
    return encoding, x, remarks


def fit_encoding(
    frame: Any,
    kinds: dict[str, ColumnKind],
    client_rows: ClientRows,
    *,
    missing: MissingPolicy,
    warnings: list[str],
    where: str,
) -> Encoding:
    """The encoding of the columns of a pandas.DataFrame, which are of these kinds.

    Fills and levels are of the training rows: means by clients' sums and counts, medians by counts below thresholds
    (``fcorun.tables.federated_statistics``), levels by the union of the clients' and the sum of their counts. Text
    has no mean, and gets its most frequent level (of equals the first); with "indicator", numbers get their mean,
    and text no level.
    True and False are the numbers 1 and 0. A column of text with one level makes no feature.

    Raises UserError, which begins with ``where``, for columns that can be no features, for one without a value in any
    training row, and for gaps where ``missing`` is "refuse".
    """
    clients, rows = client_rows.client_of_row(), client_rows.training_rows()
    empty = {name: found for name in frame if (found := is_missing(frame[name])).any()}
    for name, found in empty.items():
        _check_gaps(name, found, rows, missing, where)
    fills = _fills(frame, [name for name in frame if kinds[name] == "number"], rows, missing, where)
    columns, alone = [], []
    for name in frame:
        gap = missing == "indicator" and name in empty and bool(empty[name][client_rows.is_training].any())
        if kinds[name] == "number":
            columns.append(Column(name, fill=fills.get(name), indicator=gap))
            continue
        counted = _levels(frame[name], rows, where)
        most = min(counted, key=lambda level: (-counted[level], level))
        fill = None if missing == "refuse" or gap else most
        column = Column(name, "levels", tuple(sorted(counted)), fill, gap)
        columns += [column] if column.features else []
        alone += [] if column.features else [f"'{name}' ('{most}')"]
        warnings += warn_similar_names(f"levels of '{name}'", column.levels)
    warnings += _nowhere(empty, rows, missing) + _as_text(frame, kinds, clients) + _told(columns)
    warnings += (
        [f"text columns with one level in the training rows make no feature: {abbreviate(alone)}"] if alone else []
    )
    encoding = Encoding(tuple(columns))
    twice = [name for name, count in Counter(encoding.feature_names).items() if count > 1]
    if twice:
        raise UserError(f"{where}: two features would be called '{twice[0]}': rename the column or the level")
    return encoding


def _check_gaps(name: str, empty: np.ndarray, rows: dict[str, np.ndarray], missing: MissingPolicy, where: str) -> None:
    column, first = f"{where}: column '{name}'", int(empty.argmax()) + 1
    if all(empty[part].all() for part in rows.values()):
        raise UserError(f"{column} has no value in any training row (its first gap is in row {first}): "
                        f"data.ignore=[{name}] leaves it out")  # fmt: skip
    if missing == "refuse":
        lost = _lost(empty, rows)
        nowhere = f", and no value at all at {abbreviate(lost)}" if lost else ""
        raise UserError(f"{column} is missing in row {first}, in {empty.sum()} of {len(empty)} rows{nowhere}: give "
                        f"data.missing=mean, median or indicator, or data.ignore=[{name}]")  # fmt: skip


def _lost(empty: np.ndarray, rows: dict[str, np.ndarray]) -> list[str]:
    """The clients that have no value in any training row."""
    return [f"'{client}'" for client, part in rows.items() if empty[part].all()]


def _fills(
    frame: Any, names: list[str], rows: dict[str, np.ndarray], missing: MissingPolicy, where: str
) -> dict[str, float]:
    """What fills the gaps of each of these columns of numbers. Raises UserError for infinite values."""
    if missing == "refuse" or not names:
        return {}
    values = np.stack([coerce_numbers(frame[name])[0].astype(np.float64) for name in names], axis=1)
    for name, column in zip(names, values.T, strict=True):
        check_finite(column, name, where)
    found = (federated_statistics.column_medians if missing == "median" else federated_statistics.column_means)(
        [values[part] for part in rows.values()]
    )
    return dict(zip(names, found.tolist(), strict=True))


def _levels(series: Any, rows: dict[str, np.ndarray], where: str) -> Counter[str]:
    """How often each level of a column stands in the training rows."""
    values = to_level_names(series)
    there = [[value for value in values[part] if value is not None] for part in rows.values()]
    found = federated_statistics.count_levels(there)
    check_level_count(str(series.name), len(found), sum(map(len, there)), where)
    return found


def _nowhere(empty: dict[str, np.ndarray], rows: dict[str, np.ndarray], missing: MissingPolicy) -> list[str]:
    """A remark on the columns that a client has nothing in."""
    told = [f"'{name}' at {abbreviate(lost)}" for name, found in empty.items() if (lost := _lost(found, rows))]
    kind = "mean" if missing == "indicator" else missing
    return (
        [f"some clients have no value of a column, and get the {kind} of the others: {abbreviate(told)}"]
        if told
        else []
    )


def _as_text(frame: Any, kinds: dict[str, ColumnKind], clients: np.ndarray) -> list[str]:
    """A remark on the columns of numbers some of which, not all, are stored as text."""
    told = []
    for name in frame:
        if kinds[name] == "number" and frame[name].dtype == object:
            text = np.array([isinstance(value, str) for value in frame[name]]) & ~is_missing(frame[name])
            if text.any() and not text[~is_missing(frame[name])].all():
                told.append(f"'{name}' of client {abbreviate(sorted(set(clients[text].tolist())))}")
    return [f"numbers that are stored as text are read as numbers: {abbreviate(told)}"] if told else []


def _told(columns: list[Column]) -> list[str]:
    """A remark on what text has become."""
    told = [
        f"'{c.name}' as {c.features[0]} ('{c.levels[0]}' is 0)"
        if len(c.encoded_levels) == 1
        else f"'{c.name}' as {len(c.encoded_levels)} levels"
        for c in columns
        if c.kind == "levels" and c.encoded_levels
    ]
    return [f"text columns are coded as features of 0 and 1: {abbreviate(told, 10)}"] if told else []
