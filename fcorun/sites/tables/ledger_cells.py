"""The cells of a ledger: rows of all files that lie in the same sets of all plans, and the small cells a plan makes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

import numpy as np

from fcorun.sites.tables.ledger_rows import IN_NO_SET, ReleasedSet

_NO_ROW = -1
_REPEAT = np.uint64(0x9E3779B97F4A7C15)  # an odd number, which spreads small numbers over 64 bits
Labels = tuple[tuple[ReleasedSet, ...], np.ndarray]


@dataclass
class KnownFile:
    """A file as far as the plans of the ledger have read its rows.

    Attributes:
        tokens: the tokens of the rows' cells by column, each (N,).
        labels: the sets, and the label of each row, of each plan that read the file, the newest first.
        plans: the number of each of these plans in the ledger.
        folders: the folders of the sites that read the file.
    """

    tokens: dict[str, np.ndarray] = field(default_factory=dict)
    labels: list[Labels] = field(default_factory=list)
    plans: list[int] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.labels[0][1])


@dataclass(frozen=True)
class SmallCell:
    """A cell of few rows that a plan makes.

    Attributes:
        n_rows: the number of rows.
        label: the label of the rows in the plan.
        earlier: the numbers of earlier plans which, with this one, tell the rows from all others, and their labels.
    """

    n_rows: int
    label: int
    earlier: list[tuple[int, int]]


@dataclass(frozen=True)
class KnownRows:
    """The rows of all files of a ledger.

    Attributes:
        labels: the label of each row in each plan, the newest last, (rows, plans).
        numbers: the number of each row of a file among the rows, by the name of the file.
    """

    labels: np.ndarray
    numbers: dict[str, np.ndarray]


def identify_rows(files: Mapping[str, KnownFile], n_plans: int, are_apart: Callable[[str, str], bool]) -> KnownRows:
    """Return the rows of all files: a row of a file is that of the first file with an equal row, or is another row.

    Args:
        files: the files by name.
        are_apart: whether two folders hold rows of different patients, which are never compared.
    """
    numbers: dict[str, np.ndarray] = {}
    is_new: dict[str, np.ndarray] = {}
    n_rows = 0
    for name, file in files.items():
        number = np.full(file.n_rows, _NO_ROW)
        for newer in numbers:
            if all(are_apart(one, other) for one in file.folders for other in files[newer].folders):
                continue
            open_rows = np.flatnonzero(number == _NO_ROW)
            candidates = np.flatnonzero(is_new[newer])
            pairs = _pair_rows(file, open_rows, files[newer], candidates)
            number[open_rows[pairs[0]]] = numbers[newer][candidates[pairs[1]]]
        is_new[name] = number == _NO_ROW
        n_new = int(is_new[name].sum())
        number[is_new[name]] = n_rows + np.arange(n_new)
        n_rows += n_new
        numbers[name] = number
    labels = np.full((n_rows, n_plans), IN_NO_SET)
    for name, file in files.items():
        for plan, (_, row_labels) in zip(file.plans, file.labels, strict=True):
            labels[numbers[name], plan] = row_labels
    return KnownRows(labels, numbers)


def have_most_rows_in_common(one: KnownFile, other: KnownFile) -> bool:
    """Return whether more than half of the rows of the smaller file are equal to rows of the other file."""
    n_smaller = min(one.n_rows, other.n_rows)
    pairs, _ = _pair_rows(one, np.arange(one.n_rows), other, np.arange(other.n_rows))
    return 2 * len(pairs) > n_smaller


def _pair_rows(
    file: KnownFile, rows: np.ndarray, newer: KnownFile, newer_rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of equal rows of two files, as positions in ``rows`` and in ``newer_rows``.

    Rows are equal if they are so in all columns that are known of both files. Among several equal rows, those in equal
    sets are paired first, so that a permutation of equal rows moves none.
    """
    columns = sorted(file.tokens.keys() & newer.tokens.keys())
    if not columns:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    keys = np.sum([file.tokens[name][rows] for name in columns], axis=0, dtype=np.uint64)
    newer_keys = np.sum([newer.tokens[name][newer_rows] for name in columns], axis=0, dtype=np.uint64)
    left = np.zeros(0, np.int64)
    right = np.zeros(0, np.int64)
    any_set = np.zeros_like(keys), np.zeros_like(newer_keys)
    for set_keys, newer_set_keys in (*_key_sets(file, rows, newer, newer_rows), any_set):
        unpaired = np.setdiff1d(np.arange(len(rows)), left)
        newer_unpaired = np.setdiff1d(np.arange(len(newer_rows)), right)
        open_keys = _number_repeats((keys + set_keys)[unpaired])
        newer_open_keys = _number_repeats((newer_keys + newer_set_keys)[newer_unpaired])
        _, position, newer_position = np.intersect1d(open_keys, newer_open_keys, return_indices=True)
        left = np.append(left, unpaired[position])
        right = np.append(right, newer_unpaired[newer_position])
    return left, right


def _key_sets(
    file: KnownFile, rows: np.ndarray, newer: KnownFile, newer_rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield numbers of the set of each row in a plan of ``file``, and in the newest plan of the other file.

    First equal numbers stand for equal clients, splits and folds, then for equal splits and folds alone, because a
    client may be called after its file.
    """
    newest_sets, newest_labels = newer.labels[0]
    for with_client in (True, False):
        newest_names = _name_sets(newest_sets, with_client)
        for sets, labels in file.labels:
            names = _name_sets(sets, with_client)
            order = list(dict.fromkeys([*newest_names, *names]))
            numbers = np.array([order.index(name) for name in names], np.uint64)
            newest_numbers = np.array([order.index(name) for name in newest_names], np.uint64)
            yield numbers[labels[rows]], newest_numbers[newest_labels[newer_rows]]


def _name_sets(sets: Sequence[ReleasedSet], with_client: bool) -> list[tuple[str, str, int, bool] | None]:
    """Return a name for each label: None for ``IN_NO_SET``, and then those of the sets."""
    return [None, *(astuple(released if with_client else replace(released, client="")) for released in sets)]


def _number_repeats(keys: np.ndarray) -> np.ndarray:
    """Return keys that are different for the first, second, ... occurrence of a key."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(keys) else np.zeros(0, np.int64)
    occurrence = np.arange(len(keys)) - np.repeat(begins, np.diff(np.append(begins, len(keys))))
    numbered = np.empty_like(keys)
    numbered[order] = ordered ^ (occurrence.astype(np.uint64) * _REPEAT)
    return numbered


def number_cells(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cell of each row, from 0, and the number of rows of each cell.

    Rows in no set of any plan are the cell 0, which may be empty.
    """
    cells = np.zeros(len(labels), np.int64)
    for column in labels.T:
        cells = np.unique(cells * (int(column.max(initial=0)) + 1) + column, return_inverse=True)[1]
    in_a_set = (labels != IN_NO_SET).any(axis=1)
    cells = np.where(in_a_set, cells + 1, 0)
    present, numbers = np.unique(np.append(cells, 0), return_inverse=True)
    return numbers[:-1], np.bincount(numbers[:-1], minlength=len(present))


def find_small_cells(before: KnownRows, after: KnownRows, min_rows: int) -> list[SmallCell]:
    """Return the cells of fewer than ``min_rows`` rows that the newest plan makes.

    A cell that was there before is not made by the plan, and neither is a whole set of the plan, whose size other
    rules bound.

    Args:
        before: the rows as known without the plan.
        after: the rows as known with the plan, which is the last one.
    """
    newest = after.labels[:, -1]
    cells, sizes = number_cells(after.labels)
    n_in_set = np.bincount(newest)
    unchanged = _find_unchanged(before, after, cells, sizes)
    first = np.zeros(len(sizes), np.int64)
    first[cells[::-1]] = np.arange(len(cells))[::-1]  # a row of each cell
    small_cells = []
    for cell in range(1, len(sizes)):
        row = int(first[cell])
        n_rows = int(sizes[cell])
        is_whole_set = newest[row] != IN_NO_SET and n_rows == n_in_set[newest[row]]
        if n_rows < min_rows and cell not in unchanged and not is_whole_set:
            small_cells.append(SmallCell(n_rows, int(newest[row]), _explain_cell(after.labels, row, n_rows)))
    return small_cells


def _find_unchanged(before: KnownRows, after: KnownRows, cells: np.ndarray, sizes: np.ndarray) -> set[int]:
    """Return the cells of ``after`` that have the same rows of all earlier files as a cell of ``before``."""
    if not before.numbers:
        return set()
    cells_before, sizes_before = number_cells(before.labels)
    now = np.concatenate([cells[after.numbers[name]] for name in before.numbers])
    then = np.concatenate([cells_before[before.numbers[name]] for name in before.numbers])
    pairs = np.unique(np.stack([now, then]), axis=1)
    n_then = np.bincount(pairs[0], minlength=len(sizes))  # the earlier cells that a cell has rows of
    n_now = np.bincount(pairs[1], minlength=len(sizes_before))
    return {
        cell
        for cell, earlier in pairs.T.tolist()
        if earlier and n_then[cell] == n_now[earlier] == 1 and sizes[cell] == sizes_before[earlier]
    }


def _explain_cell(labels: np.ndarray, row: int, n_rows: int) -> list[tuple[int, int]]:
    """Return earlier plans, with the labels of the row, which with the newest plan tell the cell from all other rows.

    A single plan, the newest of those that do, or else several ones.
    """
    equal = labels == labels[row]
    numbers = range(labels.shape[1] - 2, -1, -1)
    for plan in numbers:
        if (equal[:, plan] & equal[:, -1]).sum() == n_rows:
            return [(plan, int(labels[row, plan]))]
    earlier = []
    cell = equal[:, -1]
    for plan in numbers:
        smaller = cell & equal[:, plan]
        if smaller.sum() < cell.sum():
            earlier.append((plan, int(labels[row, plan])))
            cell = smaller
    return earlier
