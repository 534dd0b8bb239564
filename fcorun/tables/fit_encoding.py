"""The fit of an encoding: each client counts and sums its training rows, and the server combines counts and sums."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from fcorun.errors import UserError
from fcorun.tables.client_sums import add_clients
from fcorun.tables.columns import ColumnKind, check_level_count, coerce_numbers, is_missing, to_level_names
from fcorun.tables.data_warnings import abbreviate, warn_similar_names
from fcorun.tables.encoding import Column, Encoding, check_finite

MissingPolicy = Literal["refuse", "mean", "median", "indicator"]
_SHOWN_COLUMNS = 10  # columns of levels that a warning lists
_SIGN_FLIP = np.int64(0x7FFF_FFFF_FFFF_FFFF)


@dataclass(frozen=True)
class ClientRows:
    """The rows of each client in a table.

    Attributes:
        client_names: the names of the clients.
        client_index: the index of each row's client, shape (N,).
        is_training: the mask of training rows, shape (N,).
    """

    client_names: Sequence[str]
    client_index: np.ndarray
    is_training: np.ndarray

    def training_rows(self) -> dict[str, np.ndarray]:
        """Return the indices of each client's training rows, for the clients that have some."""
        rows = np.flatnonzero(self.is_training)
        rows = rows[np.argsort(self.client_index[rows], kind="stable")]
        rows_by_client = np.split(rows, np.flatnonzero(np.diff(self.client_index[rows])) + 1)
        return {self.client_names[int(self.client_index[rows[0]])]: rows for rows in rows_by_client if len(rows)}

    def held_out_clients(self) -> list[str]:
        """Return the names of the clients that have held-out rows and no training rows."""
        n_rows = np.bincount(self.client_index, minlength=len(self.client_names))
        n_training = np.bincount(self.client_index, self.is_training, len(self.client_names))
        return [name for m, name in enumerate(self.client_names) if n_rows[m] and not n_training[m]]

    def client_of_row(self) -> np.ndarray:
        """Return the name of each row's client, "" for a row of no client, shape (N,)."""
        return np.array([*self.client_names, ""])[self.client_index]


def encode(
    frame: Any, kinds: dict[str, ColumnKind] | Encoding, client_rows: ClientRows, missing: MissingPolicy, *, where: str
) -> tuple[Encoding, np.ndarray, list[str]]:
    """Return the encoding of a pandas.DataFrame, its features, shape (N, d), and warnings.

    ``kinds`` are the kinds of the columns, or a given encoding, which is applied as it is. Raises UserError as
    ``fit_encoding`` and ``Encoding.apply`` do.
    """
    warnings: list[str] = []
    if isinstance(kinds, Encoding):
        encoding = kinds
        encoded = {column.name for column in encoding.columns}
        unused = [repr(name) for name in frame if name not in encoded]
        if unused:
            warnings.append(f"columns that the record does not use are left out: {abbreviate(unused)}")
    else:
        encoding = fit_encoding(frame, kinds, client_rows, missing=missing, warnings=warnings, where=where)
    return encoding, encoding.apply(frame, warnings, where), warnings


def fit_encoding(
    frame: Any,
    kinds: dict[str, ColumnKind],
    client_rows: ClientRows,
    *,
    missing: MissingPolicy,
    warnings: list[str],
    where: str,
) -> Encoding:
    """Fit an encoding to the training rows of a pandas.DataFrame whose columns have these kinds.

    Means come from the clients' sums and counts, medians from counts below thresholds
    (``column_medians``), and levels from the union of the clients' levels and the sum of their
    counts. A gap in a column of levels becomes the most frequent level, of equally frequent ones the first by name.
    With "indicator", a gap in a column of numbers becomes the mean, and a gap among levels becomes no level.
    True and False are the numbers 1 and 0. A column of text with one level makes no feature.

    Warnings are appended to ``warnings``. Raises UserError, which begins with ``where``, for columns that cannot be
    features, for a column without a value in any training row, for gaps if ``missing`` is "refuse", and where no
    feature is left.
    """
    rows_by_client = client_rows.training_rows()
    gaps: dict[str, np.ndarray] = {}
    for name in frame:
        mask = is_missing(frame[name])
        if mask.any():
            gaps[name] = mask
            _check_gaps(name, mask, rows_by_client, missing, where)
    fills = _fit_fills(frame, [name for name in frame if kinds[name] == "number"], rows_by_client, missing, where)

    columns: list[Column] = []
    single_level = []
    for name in frame:
        indicator = missing == "indicator" and name in gaps and bool(gaps[name][client_rows.is_training].any())
        if kinds[name] == "number":
            columns.append(Column(name, fill=fills.get(name), indicator=indicator))
            continue
        column = make_level_column(name, _count_levels(frame[name], rows_by_client, where), indicator, missing)
        if column.features:
            columns.append(column)
        else:
            single_level.append(f"'{name}' ('{column.levels[0]}')")
        warnings += warn_similar_names(f"levels of '{name}'", column.levels)

    warnings += _warn_clients_without_values(gaps, rows_by_client, missing)
    warnings += _warn_numbers_as_text(frame, kinds, client_rows.client_of_row())
    warnings += _warn_encoded_text(columns)
    if single_level:
        warnings.append(f"text columns with one level in the training rows make no feature: {abbreviate(single_level)}")
    encoding = Encoding(tuple(columns))
    check_feature_names(encoding, where)
    return encoding


def make_level_column(name: str, counts: Mapping[str, int], indicator: bool, missing: MissingPolicy) -> Column:
    """Return the column of levels with these ``counts`` of training rows."""
    most_frequent = min(counts, key=lambda level: (-counts[level], level))
    fill = None if missing == "refuse" or indicator else most_frequent
    return Column(name, "levels", tuple(sorted(counts)), fill, indicator)


def check_feature_names(encoding: Encoding, where: str) -> None:
    """Raise UserError, which begins with ``where``, for two features with one name, and if there is no feature."""
    for name, count in Counter(encoding.feature_names).items():
        if count > 1:
            raise UserError(f"{where}: two features would be called '{name}': rename the column or the level")
    if not encoding.feature_names:
        raise UserError(f"{where}: not one feature is left; give columns that differ between rows")


def _check_gaps(
    name: str, gaps: np.ndarray, rows_by_client: dict[str, np.ndarray], missing: MissingPolicy, where: str
) -> None:
    """Raise UserError for a column without a value in any training row, and for gaps if they are refused."""
    column, first = f"{where}: column '{name}'", int(gaps.argmax()) + 1
    clients = _clients_without_values(gaps, rows_by_client)
    if len(clients) == len(rows_by_client):
        raise UserError(f"{column} has no value in any training row (its first gap is in row {first}): "
                        f"data.ignore=[{name}] leaves it out")  # fmt: skip
    if missing == "refuse":
        absent = f", and no value at all at {abbreviate(clients)}" if clients else ""
        raise UserError(f"{column} is missing in row {first}, in {gaps.sum()} of {len(gaps)} rows{absent}: give "
                        f"data.missing=mean, median or indicator, or data.ignore=[{name}]")  # fmt: skip


def _clients_without_values(gaps: np.ndarray, rows_by_client: dict[str, np.ndarray]) -> list[str]:
    """Return the quoted names of the clients whose training rows are all gaps."""
    return [f"'{client}'" for client, rows in rows_by_client.items() if gaps[rows].all()]


def _fit_fills(
    frame: Any, names: list[str], rows_by_client: dict[str, np.ndarray], missing: MissingPolicy, where: str
) -> dict[str, float]:
    """Return the fill of each of these columns of numbers. Raises UserError for infinite values."""
    if missing == "refuse" or not names:
        return {}
    values = np.stack([coerce_numbers(frame[name])[0].astype(np.float64) for name in names], axis=1)
    for name, column in zip(names, values.T, strict=True):
        check_finite(column, name, where)
    matrices = [values[rows] for rows in rows_by_client.values()]
    fills = column_medians(matrices) if missing == "median" else column_means(matrices)
    return dict(zip(names, fills.tolist(), strict=True))


def _count_levels(series: Any, rows_by_client: dict[str, np.ndarray], where: str) -> Counter[str]:
    """Count the training rows of each level of a column. Raises UserError for too many levels."""
    names = to_level_names(series)
    names_by_client = [[name for name in names[rows] if name is not None] for rows in rows_by_client.values()]
    counts = count_levels(names_by_client)
    check_level_count(str(series.name), len(counts), sum(map(len, names_by_client)), where)
    return counts


def _warn_clients_without_values(
    gaps: dict[str, np.ndarray], rows_by_client: dict[str, np.ndarray], missing: MissingPolicy
) -> list[str]:
    """Return a warning about columns that some client has no value of."""
    descriptions = []
    for name, mask in gaps.items():
        clients = _clients_without_values(mask, rows_by_client)
        if clients:
            descriptions.append(f"'{name}' at {abbreviate(clients)}")
    if not descriptions:
        return []
    fill = "mean" if missing == "indicator" else missing
    return [f"some clients have no value of a column, and get the {fill} of the others: {abbreviate(descriptions)}"]


def _warn_numbers_as_text(frame: Any, kinds: dict[str, ColumnKind], client_of_row: np.ndarray) -> list[str]:
    """Return a warning about columns of numbers some of which, but not all, are stored as text."""
    descriptions = []
    for name in frame:
        if kinds[name] == "number" and frame[name].dtype == object:
            present = ~is_missing(frame[name])
            is_text = np.array([isinstance(value, str) for value in frame[name]]) & present
            if is_text.any() and not is_text[present].all():
                clients = sorted(set(client_of_row[is_text].tolist()))
                descriptions.append(f"'{name}' of client {abbreviate(clients)}")
    if not descriptions:
        return []
    return [f"numbers that are stored as text are read as numbers: {abbreviate(descriptions)}"]


def _warn_encoded_text(columns: list[Column]) -> list[str]:
    """Return a sentence about the features that columns of text have become."""
    descriptions = []
    for column in columns:
        if column.kind != "levels" or not column.encoded_levels:
            continue
        if len(column.encoded_levels) == 1:
            descriptions.append(f"'{column.name}' as {column.features[0]} ('{column.levels[0]}' is 0)")
        else:
            descriptions.append(f"'{column.name}' as {len(column.encoded_levels)} levels")
    if not descriptions:
        return []
    return [f"text columns are coded as features of 0 and 1: {abbreviate(descriptions, _SHOWN_COLUMNS)}"]


def count_values(matrices: Sequence[Float[np.ndarray, "_ d"]]) -> Int[np.ndarray, " d"]:
    """Count the finite values of each column over the clients' matrices."""
    return np.sum([np.isfinite(x).sum(axis=0) for x in matrices], axis=0)


def column_means(matrices: Sequence[Float[np.ndarray, "_ d"]]) -> Float[np.ndarray, " d"]:
    """Compute the mean of each column over the clients' matrices, NaN left out, from sums and counts."""
    return add_clients(np.stack([sum_values(x) for x in matrices])) / count_values(matrices)


def sum_values(x: Float[np.ndarray, "_ d"]) -> Float[np.ndarray, " d"]:
    """Return the sum of each column over the rows of one client, NaN left out."""
    return add_clients(np.where(np.isnan(x), 0.0, x))


def column_medians(matrices: Sequence[Float[np.ndarray, "_ d"]]) -> Float[np.ndarray, " d"]:
    """Compute the exact median of each column over the clients' matrices by bisection of counts.

    In each of 64 rounds the server sends a threshold for each column, and clients return the number of their values at
    or below the threshold. The thresholds bisect the integers that order float64 as numbers do, so the bisection ends
    at a value of the data. The median of an even number of values is the mean of the middle two.
    """
    n_values = count_values(matrices)
    keys = [_order_keys(x) for x in matrices]
    ranks = np.stack([(n_values - 1) // 2, n_values // 2])
    low, high = (np.broadcast_to(_order_keys(np.array(end)), ranks.shape) for end in (-np.inf, np.inf))
    while (low < high).any():
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        below = np.zeros(ranks.shape, np.int64)
        for x in keys:
            below = below + np.stack([(x <= threshold).sum(axis=0) for threshold in middle])
        enough = below > ranks
        low = np.where(enough, low, np.minimum(middle + 1, high))
        high = np.where(enough, middle, high)
    return (low ^ np.where(low < 0, _SIGN_FLIP, 0)).view(np.float64).mean(axis=0)


def count_levels(values_by_client: Iterable[Sequence[str]]) -> Counter[str]:
    """Count the rows of each level over all clients, from each client's counts."""
    totals: Counter[str] = Counter()
    for values in values_by_client:
        totals.update(Counter(values))
    return totals


def _order_keys(x: np.ndarray) -> Int[np.ndarray, "..."]:
    """Return integers in the order of the numbers x as float64; NaN come last."""
    bits = (x.astype(np.float64) + 0.0).view(np.int64)  # -0.0 becomes 0.0
    return np.where(np.isnan(x), _SIGN_FLIP, bits ^ np.where(bits < 0, _SIGN_FLIP, 0))
