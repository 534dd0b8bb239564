"""How an encoding is found: each client counts and adds up its training rows, and the server the clients' sums."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fcorun.datasets import sums
from fcorun.datasets.columns import Kind, as_numbers, check_levels, gaps, texts
from fcorun.datasets.encoding import Column, Encoding, check_finite
from fcorun.datasets.remarks import look_alikes, some
from fcorun.errors import UserError

Missing = Literal["refuse", "mean", "median", "indicator"]


@dataclass(frozen=True)
class Sites:
    """Whose rows are whose.

    Attributes:
        names: of the clients.
        owner: the index of each row's client, shape (N,).
        training: whether a row is trained on, shape (N,).
    """

    names: Sequence[str]
    owner: np.ndarray
    training: np.ndarray

    def rows(self) -> dict[str, np.ndarray]:
        """The training rows of each client that has some."""
        rows = np.flatnonzero(self.training)
        rows = rows[np.argsort(self.owner[rows], kind="stable")]
        parts = np.split(rows, np.flatnonzero(np.diff(self.owner[rows])) + 1)
        return {self.names[int(self.owner[part[0]])]: part for part in parts}

    def without_training(self) -> list[str]:
        """The names of the clients that have no training row, but others."""
        own = np.bincount(self.owner, self.training, len(self.names))
        return [name for name, rows, n in zip(self.names, own, np.bincount(self.owner), strict=False) if not rows and n]

    def of_each(self) -> np.ndarray:
        """The name of each row's client, shape (N,)."""
        return np.array(self.names)[self.owner]


def encode(
    frame: Any, kinds: dict[str, Kind] | Encoding, sites: Sites, missing: Missing, *, where: str
) -> tuple[Encoding, np.ndarray, list[str]]:
    """The encoding of a pandas.DataFrame, its features, shape (N, d), and what to know of them.

    ``kinds`` are those of the columns, or the encoding that is to be taken. Raises UserError as ``fit`` and
    ``Encoding.apply`` do, and where no feature is left.
    """
    remarks: list[str] = []
    if isinstance(kinds, Encoding):
        encoding = kinds
        more = [repr(name) for name in frame if name not in {column.name for column in encoding.columns}]
        remarks += [f"columns that the record has no features of are left out: {some(more)}"] if more else []
    else:
        encoding = fit(frame, kinds, sites, missing=missing, remarks=remarks, where=where)
    x = encoding.apply(frame, remarks, where)
    if not x.shape[1]:
        raise UserError(f"{where}: not one feature is left; give columns that differ between rows")
    return encoding, x, remarks


def fit(
    frame: Any, kinds: dict[str, Kind], sites: Sites, *, missing: Missing, remarks: list[str], where: str
) -> Encoding:
    """The encoding of the columns of a pandas.DataFrame, which are of these kinds.

    Fills and levels are of the training rows: means by clients' sums and counts, medians by counts below thresholds
    (``fcorun.datasets.sums``), levels by the union of the clients' and the sum of their counts. Text has no mean, and
    gets its most frequent level (of equals the first); with "indicator", numbers get their mean, and text no level.
    True and False are the numbers 1 and 0. A column of text with one level makes no feature.

    Raises UserError, which begins with ``where``, for columns that can be no features, for one without a value in any
    training row, and for gaps where ``missing`` is "refuse".
    """
    clients, rows = sites.of_each(), sites.rows()
    empty = {name: found for name in frame if (found := gaps(frame[name])).any()}
    for name, found in empty.items():
        _check_gaps(name, found, rows, missing, where)
    fills = _fills(frame, [name for name in frame if kinds[name] == "number"], rows, missing, where)
    columns, alone = [], []
    for name in frame:
        gap = missing == "indicator" and name in empty and bool(empty[name][sites.training].any())
        if kinds[name] == "number":
            columns.append(Column(name, fill=fills.get(name), indicator=gap))
            continue
        counted = _levels(frame[name], rows, where)
        most = min(counted, key=lambda level: (-counted[level], level))
        fill = None if missing == "refuse" or gap else most
        column = Column(name, "levels", tuple(sorted(counted)), fill, gap)
        columns += [column] if column.features else []
        alone += [] if column.features else [f"'{name}' ('{most}')"]
        remarks += look_alikes(f"levels of '{name}'", column.levels)
    remarks += _nowhere(empty, rows, missing) + _as_text(frame, kinds, clients) + _told(columns)
    remarks += [f"text columns with one level in the training rows make no feature: {some(alone)}"] if alone else []
    encoding = Encoding(tuple(columns))
    twice = [name for name, count in Counter(encoding.names).items() if count > 1]
    if twice:
        raise UserError(f"{where}: two features would be called '{twice[0]}': rename the column or the level")
    return encoding


def _check_gaps(name: str, empty: np.ndarray, rows: dict[str, np.ndarray], missing: Missing, where: str) -> None:
    column, first = f"{where}: column '{name}'", int(empty.argmax()) + 1
    if all(empty[part].all() for part in rows.values()):
        raise UserError(f"{column} has no value in any training row (its first gap is in row {first}): "
                        f"data.ignore=[{name}] leaves it out")  # fmt: skip
    if missing == "refuse":
        lost = _lost(empty, rows)
        nowhere = f", and no value at all at {some(lost)}" if lost else ""
        raise UserError(f"{column} is missing in row {first}, in {empty.sum()} of {len(empty)} rows{nowhere}: give "
                        f"data.missing=mean, median or indicator, or data.ignore=[{name}]")  # fmt: skip


def _lost(empty: np.ndarray, rows: dict[str, np.ndarray]) -> list[str]:
    """The clients that have no value in any training row."""
    return [f"'{client}'" for client, part in rows.items() if empty[part].all()]


def _fills(frame: Any, names: list[str], rows: dict[str, np.ndarray], missing: Missing, where: str) -> dict[str, float]:
    """What fills the gaps of each of these columns of numbers. Raises UserError for infinite values."""
    if missing == "refuse" or not names:
        return {}
    values = np.stack([as_numbers(frame[name])[0].astype(np.float64) for name in names], axis=1)
    for name, column in zip(names, values.T, strict=True):
        check_finite(column, name, where)
    found = (sums.medians if missing == "median" else sums.means)([values[part] for part in rows.values()])
    return dict(zip(names, found.tolist(), strict=True))


def _levels(series: Any, rows: dict[str, np.ndarray], where: str) -> Counter[str]:
    """How often each level of a column stands in the training rows."""
    values = texts(series)
    there = [[value for value in values[part] if value is not None] for part in rows.values()]
    found = sums.levels(there)
    check_levels(str(series.name), len(found), sum(map(len, there)), where)
    return found


def _nowhere(empty: dict[str, np.ndarray], rows: dict[str, np.ndarray], missing: Missing) -> list[str]:
    """A remark on the columns that a client has nothing in."""
    told = [f"'{name}' at {some(lost)}" for name, found in empty.items() if (lost := _lost(found, rows))]
    kind = "mean" if missing == "indicator" else missing
    return [f"some clients have no value of a column, and get the {kind} of the others: {some(told)}"] if told else []


def _as_text(frame: Any, kinds: dict[str, Kind], clients: np.ndarray) -> list[str]:
    """A remark on the columns of numbers some of which, not all, are stored as text."""
    told = []
    for name in frame:
        if kinds[name] == "number" and frame[name].dtype == object:
            text = np.array([isinstance(value, str) for value in frame[name]]) & ~gaps(frame[name])
            if text.any() and not text[~gaps(frame[name])].all():
                told.append(f"'{name}' of client {some(sorted(set(clients[text].tolist())))}")
    return [f"numbers that are stored as text are read as numbers: {some(told)}"] if told else []


def _told(columns: list[Column]) -> list[str]:
    """A remark on what text has become."""
    told = [
        f"'{c.name}' as {c.features[0]} ('{c.levels[0]}' is 0)"
        if len(c.coded) == 1
        else f"'{c.name}' as {len(c.coded)} levels"
        for c in columns
        if c.kind == "levels" and c.coded
    ]
    return [f"text columns are coded as features of 0 and 1: {some(told, 10)}"] if told else []
