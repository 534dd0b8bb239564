"""The ledger of an owner: which rows were in which sets of all plans that the owner's sites have answered.

Two honest plans whose sets differ by one row hand over this row, as the difference of two sums. So a site answers a
plan only if each *cell*, the rows that lie in the same released sets of all plans, is empty or has ``policy.min_rows``
rows. A plan is refused for the cells that it makes; smaller cells that were there before are no reason. Where any of
the plans names patients by ``data.group``, a cell has as many of them, too, by the cells of each such column, which is
read of each file that has one. Where the plan has weights, rows count by them, too.

Identity of rows. The ledger knows the files that plans have read, each by the digest of its bytes. Columns have the
names of the owner's file, whatever plans call them. Rows of one file are known by their place. A row of another file is
the same row if its cells are equal in all columns that plans have read of both files, ``policy.row_id`` among them;
where several rows are equal, those in equal sets are paired first. Each file is compared with the files that were read
after it, the one of the newest plan first, and its rows without an equal are rows of their own. So a mended cell makes
a new row, and the old row is in no set of the new plan.

Gaps. What fills the gaps of a column follows from the rows of all sites, and so changes with the partners: two plans
that fill the gaps of the same rows by two numbers tell the sums over these rows, and two columns whose gaps differ by
one row tell this row. So gaps keep what filled them first, however many they are. Knots of splines change likewise, and
the ledger lists them: the features of two plans together are those of a spline with the knots of both.

Levels. Rare levels of a column are one code, ``other``. Which levels these are depends on whether sums of single
clients leave, and on the clients. The sums over ``other`` of two plans, and over the levels that one of them names,
tell the rows of each level that one of them alone codes so, and of all that both do. So a plan is refused if it and
earlier ones with the same training rows make a cell of fewer than ``policy.min_cell`` rows with the same codes. With
other training rows, the rows of a level are no sets of the ledger.

Nothing is compared between two folders that have answered one plan from different files, unless most rows of these are
equal: they hold different patients.

Each entry is a file that appears whole, and is on the disk before the first answer of a run leaves. The ledger holds no
cell, but tokens of cells, by HMAC-SHA256 with a secret of the ledger, numbers of levels, and the names of clients,
files and columns.
"""

import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fcorun.base.records.formats import READ_ERRORS
from fcorun.base.system import locks
from fcorun.base.system.files import write_atomically
from fcorun.sites.plan.patients import Patients
from fcorun.sites.plan.policy import Policy
from fcorun.sites.tables.ledger_entry import IN_NO_SET, LedgerEntry
from fcorun.sites.tables.ledger_patients import count_patients, explain_small_cell, list_patients
from fcorun.sites.tables.ledger_rows import PATIENTS, ReleasedSet
from fcorun.sites.transport.messages import OwnerError

_NO_ROW = -1
_SECRET = "secret"
_LOCK = "lock"
_SECRET_BYTES = 32
_NAME = re.compile(r"\d{6}-[0-9a-f]{16}\.npz")  # of entries
_LISTED = 3  # cells in the sentence of a refusal
_BROKEN = "the ledger of this site cannot be read or written: its owner mends it"
_DIFFERENCE = (
    "the rows of this plan differ from those of plans that this site has answered by fewer rows than policy.min_rows "
    "of the site, or the plans sum few rows of a rare level up otherwise, and the difference of two answers would tell "
    "them: keep the clients and the split of the earlier plan (the same data.client, data.split_seed, data.validation "
    "and data.test, or a column data.split), or leave the columns out (data.ignore) whose levels the site's owner "
    "names, or data.weight if the owner names weights, or the owner gives the rows away"
)
_CURES = (
    "the difference of two answers would tell them. Keep the clients and the split of the earlier plan (the same "
    "data.client, data.split_seed, data.validation and data.test, or a column data.split) and give the same file, "
    "leave a column of levels out, or data.weight where weights are the reason, or give these rows away by "
    "overlap=allow with fcorun site accept, as you may where groups that are named here are no patients"
)
_TWO_FILLS = (
    "plans that this site has answered filled gaps of '{0}' by two values: add '{0}' to data.ignore of the plan, or "
    "have the owner of the site give the rows with a gap away"
)


@dataclass(frozen=True)
class Ledger:
    """The ledger of an owner in a folder.

    Attributes:
        folder: the folder, which is made for the first entry.
    """

    folder: Path

    def read(self) -> list[LedgerEntry]:
        """Return the entries, the oldest first. Raises OwnerError if one cannot be read."""
        path = self.folder
        try:
            names = sorted(name for name in os.listdir(self.folder) if _NAME.fullmatch(name))
            entries = []
            for name in names:
                path = self.folder / name
                entries.append(LedgerEntry.read(path))
            return entries
        except FileNotFoundError:
            return []
        except (*READ_ERRORS, TypeError) as error:
            raise OwnerError(f"the ledger {path} cannot be read ({error}): restore it from a copy, or move "
                             f"{self.folder} away, which forgets all plans that your sites have answered",
                             _BROKEN) from error  # fmt: skip

    def list_groups(self) -> set[str]:
        """Return the columns of files that name patients in any plan."""
        return {entry.group for entry in self.read()} - {""}

    def write(self, entry: LedgerEntry) -> None:
        """Write an entry after all others. Call under the lock."""
        number = max([int(name[:6]) for name in os.listdir(self.folder) if _NAME.fullmatch(name)], default=0) + 1
        path = self.folder / f"{number:06}-{entry.plan[:16]}.npz"
        write_atomically(path, entry.to_bytes(), durable=True, private=True)

    def describe(self) -> list[str]:
        """Return the ledger as lines to read."""
        entries = self.read()
        if not entries:
            return [f"the ledger {self.folder} is empty"]
        lines = [f"ledger {self.folder}"]
        for entry in entries:
            lines += entry.describe()
        labels, numbers = identify_rows(entries)
        cells = _number_cells(labels)
        sizes = np.bincount(cells)
        n_patients = count_patients(cells, list_patients(entries, numbers)).min()
        few = f", or {n_patients:.4g} patients" if n_patients < sizes.min() else ""
        lines.append(
            f"cells of rows in the same sets of all plans: {len(sizes)}, the smallest of {sizes.min()} rows{few}"
        )
        return lines

    @contextmanager
    def locked(self, lock_seconds: float) -> Iterator[None]:
        """Hold the lock of the ledger. Raises OwnerError if another process holds it, and for an error of the disk."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locks.acquire(self.folder / _LOCK, lock_seconds):
                yield
        except locks.LockedError:
            raise OwnerError(f"another process writes to the ledger {self.folder}: wait for the end of that process, "
                             "and start this site again", "another process writes to the ledger of this site: start "
                             "the site again") from None  # fmt: skip
        except OSError as error:
            raise OwnerError(f"the ledger {self.folder} cannot be written ({error}): make room or allow the account of "
                             "this site to write there, or give another folder by policy.ledger and accept the plan "
                             "again", _BROKEN) from error  # fmt: skip

    def open_secret(self, entries: Collection[LedgerEntry]) -> bytes:
        """Return the secret, which is drawn for the first entry. Call under the lock."""
        if not entries and not (self.folder / _SECRET).exists():  # which only the account that writes here may read
            secret = secrets.token_bytes(_SECRET_BYTES)
            write_atomically(self.folder / _SECRET, secret.hex(), durable=True, private=True)
        return self.read_secret()

    def read_secret(self) -> bytes:
        """Return the secret. Raises OwnerError if it cannot be read."""
        path = self.folder / _SECRET
        try:
            secret = bytes.fromhex(path.read_text(encoding="ascii"))
            if len(secret) != _SECRET_BYTES:
                raise ValueError("it has another length")
            return secret
        except (OSError, ValueError) as error:
            raise OwnerError(f"{path}, the secret of the ledger, cannot be read ({error}): restore it from a copy, or "
                             f"move {self.folder} away, which forgets all plans that your sites have answered",
                             _BROKEN) from error  # fmt: skip


def list_differences(entries: Sequence[LedgerEntry], rename: Mapping[str, str], policy: Policy) -> list[str]:
    """Return a sentence for each few rows that the last plan and earlier ones tell apart."""
    return [*describe_differences(entries, policy.min_rows), *describe_told_levels(entries, rename, policy.min_cell)]


def check_differences(sentences: Sequence[str]) -> None:
    """Raise OwnerError if a plan makes small cells, from their sentences."""
    if sentences:
        more = f"; and {len(sentences) - _LISTED} further ones" if len(sentences) > _LISTED else ""
        raise OwnerError(f"{'; '.join(sentences[:_LISTED])}{more}: {_CURES}", _DIFFERENCE)


def list_known_columns(entries: Sequence[LedgerEntry], reading: str) -> set[str]:
    """Return the columns of a reading whose tokens the ledger has."""
    return {name for entry in entries if entry.reading == reading for name in entry.tokens}


@dataclass
class _KnownFile:
    """A file as far as the plans of the ledger have read its rows.

    Attributes:
        entries: the plans that read the file, the newest first, by their numbers in the ledger.
        tokens: the tokens of the rows' cells by column, each (N,).
    """

    entries: dict[int, LedgerEntry] = field(default_factory=dict)
    tokens: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def newest(self) -> LedgerEntry:
        """The newest plan that read the file."""
        return next(iter(self.entries.values()))

    @property
    def folders(self) -> set[str]:
        """The folders of the sites that read the file."""
        return {entry.folder for entry in self.entries.values()}


def identify_rows(entries: Sequence[LedgerEntry]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the rows of all files that entries, the oldest first, have read.

    A row of a file is that of the first file with an equal row, the file of the newest plan first, or another row.

    Returns:
        The label of each row in each plan, (rows, plans), and the number of each row of a file, by its reading.
    """
    files: dict[str, _KnownFile] = {}
    for plan in range(len(entries) - 1, -1, -1):
        file = files.setdefault(entries[plan].reading, _KnownFile())
        file.entries[plan] = entries[plan]
        file.tokens.update(entries[plan].tokens)
    apart = _find_folders_apart(entries, files)
    numbers: dict[str, np.ndarray] = {}
    is_new: dict[str, np.ndarray] = {}
    n_rows = 0
    for name, file in files.items():
        number = np.full(len(file.newest.labels), _NO_ROW)
        for newer in numbers:
            if not {(one, other) for one in file.folders for other in files[newer].folders} <= apart:
                open_rows = np.flatnonzero(number == _NO_ROW)
                candidates = np.flatnonzero(is_new[newer])
                pairs = _pair_rows(file, open_rows, files[newer], candidates)
                number[pairs[:, 0]] = numbers[newer][pairs[:, 1]]
        is_new[name] = number == _NO_ROW
        n_new = int(is_new[name].sum())
        number[is_new[name]] = n_rows + np.arange(n_new)
        n_rows += n_new
        numbers[name] = number
    labels = np.full((n_rows, len(entries)), IN_NO_SET)
    for plan, entry in enumerate(entries):
        labels[numbers[entry.reading], plan] = entry.labels
    return labels, numbers


def _find_folders_apart(entries: Sequence[LedgerEntry], files: Mapping[str, _KnownFile]) -> set[tuple[str, str]]:
    """Return pairs of folders that hold rows of different patients, which are never compared.

    They have answered one plan, never from the same file, and never from files with more than half of the rows of the
    smaller one in common.
    """
    apart = set()
    together = set()
    for one in entries:
        for other in entries:
            pair = one.folder, other.folder
            if one.folder == other.folder or one.reading == other.reading or one.file == other.file:
                together.add(pair)
            elif one.plan == other.plan:
                sizes = len(one.labels), len(other.labels)
                rows = [np.arange(size) for size in sizes]
                n_pairs = len(_pair_rows(files[one.reading], rows[0], files[other.reading], rows[1]))
                (together if 2 * n_pairs > min(sizes) else apart).add(pair)
    return apart - together


def _pair_rows(file: _KnownFile, rows: np.ndarray, newer: _KnownFile, newer_rows: np.ndarray) -> np.ndarray:
    """Return pairs of equal rows of two files, of ``rows`` and of ``newer_rows``, (pairs, 2).

    Rows are equal if they are so in all columns that plans have read of both files. Among several equal rows, those in
    equal sets are paired first, so that a permutation of equal rows moves none: in the sets of equal clients, splits
    and folds, and then of equal splits and folds alone, because a client may be called after its file.
    """
    import pandas as pd

    columns = sorted(name for name in file.tokens.keys() & newer.tokens.keys() if not name.startswith(PATIENTS))
    paired = [np.zeros((0, 2), np.int64)]
    if not columns:
        return paired[0]
    sides = []
    for known, selected in ((file, rows), (newer, newer_rows)):
        key = np.sum([known.tokens[name][selected] for name in columns], axis=0, dtype=np.uint64)
        sides.append(pd.DataFrame({"row": selected, "key": key}))
    in_any_set = np.zeros(len(file.newest.labels), int), np.zeros(len(newer.newest.labels), int)
    for set_numbers in (*_number_sets(file, newer), in_any_set):
        if any(side.empty for side in sides):
            break
        for side, numbers in zip(sides, set_numbers, strict=True):
            side["set"] = numbers[side["row"]]
            side["repeat"] = side.groupby(["key", "set"]).cumcount()
        pairs = sides[0].merge(sides[1], on=["key", "set", "repeat"])[["row_x", "row_y"]].to_numpy()
        paired.append(pairs)
        sides = [side[~side["row"].isin(pairs[:, k])].copy() for k, side in enumerate(sides)]
    return np.concatenate(paired)


def _number_sets(file: _KnownFile, newer: _KnownFile) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield numbers of the set of each row in a plan of ``file``, and in the newest plan of the other file."""
    for with_client in (True, False):
        for entry in file.entries.values():
            order: list[ReleasedSet] = []
            numbers = []
            for side in (entry, newer.newest):
                sets = [released if with_client else replace(released, client="") for released in side.sets]
                order += [released for released in sets if released not in order]
                number_of_label = np.array([IN_NO_SET, *(1 + order.index(released) for released in sets)])
                numbers.append(number_of_label[side.labels])
            yield numbers[0], numbers[1]


def _number_cells(labels: np.ndarray) -> np.ndarray:
    """Return the cell of each row, from 0: rows in the same sets of all plans."""
    import pandas as pd

    return pd.DataFrame(labels).groupby(list(range(labels.shape[1]))).ngroup().to_numpy()


def describe_differences(entries: Sequence[LedgerEntry], min_rows: int) -> list[str]:
    """Return a sentence for each cell of fewer than ``min_rows`` rows or patients that the last plan makes.

    A plan that divides a file as an earlier one did, and reads no new column of the file, makes none. A cell that was
    there before is not made by the plan. Where the plan has weights, these are only earlier plans with the same
    weights, and cells that were there by the last of them: what sums without weights told is not all that it tells.
    """
    *earlier, newest = entries
    if not earlier:
        return []
    has_same_weights = [newest.weight_column in ("", entry.weight_column) for entry in earlier]
    comparable = [entry for entry, is_same in zip(earlier, has_same_weights, strict=True) if is_same]
    alike = [entry for entry in comparable if entry.reading == newest.reading and entry.sets == newest.sets]
    if not newest.tokens and any(np.array_equal(entry.labels, newest.labels) for entry in alike):
        return []
    labels, numbers = identify_rows(entries)
    cells = _number_cells(labels)
    sizes = np.bincount(cells)
    patients = list_patients(entries, numbers)
    counts = count_patients(cells, patients)
    n_told = 1 + max(np.flatnonzero(has_same_weights), default=-1)  # the plans up to the last one with these weights
    unchanged = _find_unchanged(earlier[:n_told], numbers, cells)
    sentences = []
    for cell in np.flatnonzero(counts < min_rows).tolist():
        if cell in unchanged:
            continue
        row = int((cells == cell).argmax())
        label = int(labels[row, -1])
        sets = []
        for plan in _explain_cell(labels == labels[row], int(sizes[cell])):
            entry = entries[plan]
            set_text = f"{entry.describe_set(int(labels[row, plan]))} of plan {entry.plan[:8]}.."
            sets.append(f"{set_text} (accepted {entry.accepted}, {entry.title})")
        few_patients = explain_small_cell(cells == cell, patients, newest.weight_column, min_rows)
        begin = f"{sizes[cell]} rows{few_patients} are {newest.describe_set(label)} of this plan and were"
        if sizes[cell] == 1:
            begin = f"1 row is {newest.describe_set(label)} of this plan and was"
        sentences.append(f"{begin} {' and '.join(sets)}")
    return sentences


def describe_told_levels(entries: Sequence[LedgerEntry], rename: Mapping[str, str], min_cell: int) -> list[str]:
    """Return a sentence for each column in which the last plan and earlier ones tell few: below ``min_cell``.

    They are rows, and patients where plans name them: training rows with the same codes in all plans, and of the same
    client where a plan tells sums by client. Rows that the last plan alone, or the earlier ones without it, tell apart
    are no reason.
    """
    *earlier, newest = entries
    if not any(entry.codes.keys() & newest.codes.keys() for entry in earlier):
        return []
    if all(entry.reading == newest.reading for entry in entries):
        numbers = {newest.reading: np.arange(len(newest.labels))}
    else:
        numbers = identify_rows(entries)[1]

    def sort_training_rows(entry: LedgerEntry, values: np.ndarray) -> np.ndarray:
        return values[entry.is_training][numbers[entry.reading][entry.is_training].argsort()]

    rows = sort_training_rows(newest, numbers[newest.reading])
    patients = {name: of_column.take(rows) for name, of_column in list_patients(entries, numbers).items()}
    alike = [entry for entry in earlier if np.array_equal(sort_training_rows(entry, numbers[entry.reading]), rows)]
    sentences = []
    for name in newest.codes:
        plans = [entry for entry in alike if name in entry.codes]
        codings = []
        for entry in (*plans, newest):
            codings.append(sort_training_rows(entry, np.column_stack([entry.codes[name], entry.client])))
        if not plans or not len(rows):
            continue
        counts = _count_alike(codings, patients)
        is_told = counts < min_cell
        is_told &= counts < _count_alike(codings[:-1], patients)
        is_told &= counts < _count_alike(codings[-1:], patients)
        if is_told.any():
            cells = _number_cells(np.column_stack(codings))
            n_told = np.bincount(cells)[cells[is_told]].min()
            told = "1 training row has" if n_told == 1 else f"{n_told} training rows have"
            plan = plans[-1]
            shared = rename.get(name, name)
            in_file = f" ('{name}' in the file)" if shared != name else ""
            sentences.append(f"{told} a level of '{shared}'{in_file} that this plan sums up otherwise than earlier "
                             f"ones, the last of them plan {plan.plan[:8]}.. (accepted {plan.accepted}, {plan.title}), "
                             f"and that data.ignore=[{shared}] in the plan leaves out")  # fmt: skip
    return sentences


def _count_alike(codings: Sequence[np.ndarray], patients: Mapping[str, Patients]) -> np.ndarray:
    """Return for how many patients the rows stand that are like each row, (n,), in all columns of arrays of n lines."""
    cells = _number_cells(np.column_stack(codings))
    return count_patients(cells, patients)[cells]


def keep_fills(
    entries: Sequence[LedgerEntry], gap_tokens: Mapping[str, np.uint64], rename: Mapping[str, str]
) -> dict[str, float | str]:
    """Return what fills the gaps of each column in the last plan: what filled some of them before, or what is agreed.

    Args:
        entries: the plans, the oldest first. The last one has agreed fills.
        gap_tokens: the token of a gap in each column.
        rename: the names of columns in the last plan by those in the file, where they differ.

    Raises OwnerError if gaps of a column had two values, unless the last plan has ``overlap``.
    """
    *earlier, newest = entries
    labels, numbers = identify_rows(entries)
    fills = dict(newest.agreed)
    for name, token in gap_tokens.items():
        has_gap = np.zeros(len(labels), bool)
        for entry in entries:
            if name in entry.tokens:
                has_gap[numbers[entry.reading][entry.tokens[name] == token]] = True
        has_gap &= labels[:, -1] != IN_NO_SET
        known = np.full(len(labels), None, object)  # what filled the gap of each row last
        for plan, entry in enumerate(earlier):
            if name in entry.fills:
                known[has_gap & (labels[:, plan] != IN_NO_SET)] = entry.fills[name]
        kept = set(known) - {None}
        if len(kept) == 1:
            fills[name] = kept.pop()
        elif kept and not newest.overlap:
            public = _TWO_FILLS.format(rename.get(name, name))
            raise OwnerError(f"{public}, by overlap=allow with fcorun site accept", public)
    return fills


def _find_unchanged(earlier: Sequence[LedgerEntry], numbers: Mapping[str, np.ndarray], cells: np.ndarray) -> set[int]:
    """Return the cells that have the same rows of all earlier files as a cell of the earlier entries.

    Args:
        earlier: the entries before the newest one.
        numbers: the number of each row of a file among all rows.
        cells: the cell of each of these rows.
    """
    import pandas as pd

    if not earlier:
        return set()
    labels, numbers_before = identify_rows(earlier)
    cells_before = _number_cells(labels)
    now = np.concatenate([cells[numbers[name]] for name in numbers_before])
    then = np.concatenate([cells_before[number] for number in numbers_before.values()])
    pairs = pd.DataFrame({"now": now, "then": then}).drop_duplicates()
    is_one_to_one = ~pairs["now"].duplicated(keep=False) & ~pairs["then"].duplicated(keep=False)
    is_as_large = np.bincount(cells)[pairs["now"]] == np.bincount(cells_before)[pairs["then"]]
    return set(pairs["now"][is_one_to_one & is_as_large].tolist())


def _explain_cell(is_in_set: np.ndarray, n_rows: int) -> list[int]:
    """Return earlier plans which, with the newest one, tell the rows of a cell from all others.

    This is a single plan, the newest of those that do, or else several ones.

    Args:
        is_in_set: whether each row is in the same set of each plan as the cell, (rows, plans).
        n_rows: the number of rows of the cell.
    """
    plans = range(is_in_set.shape[1] - 2, -1, -1)
    for plan in plans:
        if (is_in_set[:, plan] & is_in_set[:, -1]).sum() == n_rows:
            return [plan]
    telling = []
    cell = is_in_set[:, -1]
    for plan in plans:
        smaller = cell & is_in_set[:, plan]
        if smaller.sum() < cell.sum():
            telling.append(plan)
            cell = smaller
    return telling
