"""The ledger of an owner: which rows were in which sets of all plans that the owner's sites have answered.

Two honest plans whose sets differ by one row hand over this row, as the difference of two sums. So a site answers a
plan only if each *cell*, the rows that lie in the same released sets of all plans, is empty or has ``policy.min_rows``
rows. A plan is refused for the cells that it makes; smaller cells that were there before are no reason.

Identity of rows. The ledger knows the files that plans have read, each by the digest of its bytes and of the names that
``data.rename`` gives its columns. Rows of one file are known by their place. A row of another file is the same row if
its cells are equal in all columns that plans have read of both files, ``policy.row_id`` among them; where several rows
are equal, those in equal sets are paired first. Each file is compared with the files that were read after it, the one
of the newest plan first, and its rows without an equal are rows of their own. So a mended cell makes a new row, and the
old row is in no set of the new plan.

Nothing is compared between two folders that have answered one plan from different files, unless most rows of these are
equal: they hold different patients.

Each entry is a file that appears whole, and is on the disk before the first answer of a run leaves. The ledger holds no
cell, but tokens of cells, by HMAC-SHA256 with a secret of the ledger, and the names of clients, files and columns.
"""

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from fcorun.base.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.base.system.files import write_atomically
from fcorun.sites.tables.ledger_cells import (
    KnownFile,
    KnownRows,
    find_small_cells,
    have_most_rows_in_common,
    identify_rows,
    number_cells,
)
from fcorun.sites.tables.ledger_rows import IN_NO_SET, ReleasedSet, make_tokens
from fcorun.sites.transport.messages import OwnerError

_SECRET = "secret"
_LOCK = "lock"
_SECRET_BYTES = 32
_NAME = re.compile(r"\d{6}-[0-9a-f]{16}\.npz")  # of entries
_HEADER = "header"
_LABELS = "labels"
_TOKENS = "tokens/"
_LISTED = 3  # cells in the sentence of a refusal
_BROKEN = "the ledger of this site cannot be read or written: its owner mends it"
_DIFFERENCE = (
    "the rows of this plan differ from those of plans that this site has answered by fewer rows than policy.min_rows "
    "of the site, and the difference of two answers would tell them: keep the split of the earlier plan (the same "
    "data.split_seed, data.validation and data.test, or a column data.split), or the site's owner gives these rows away"
)
_CURES = (
    "the difference of two answers would tell them. Keep the split of the earlier plan (the same data.split_seed, "
    "data.validation and data.test, or a column data.split) and give the same file, or give these rows away by "
    "overlap=allow with fcorun site accept"
)


@dataclass(frozen=True)
class LedgerEntry:
    """A plan that a site answers.

    Attributes:
        plan: the digest of the plan.
        title: the target and the file in words.
        accepted: the day on which the owner accepted the plan.
        folder: the folder of the site; "" if it is not known.
        file: the file of the rows.
        reading: the digest of the file and of the names of its columns.
        sets: the released sets that are not empty.
        labels: the set of each row of the file, from 1, or ``IN_NO_SET``, (N,).
        overlap: whether the owner gave away rows that earlier plans and this one tell apart.
        tokens: the tokens of columns that no earlier entry on the same reading has, (N,) by column.
    """

    plan: str
    title: str
    accepted: str
    folder: str
    file: str
    reading: str
    sets: tuple[ReleasedSet, ...]
    labels: np.ndarray
    overlap: bool = False
    tokens: Mapping[str, np.ndarray] = field(default_factory=dict)

    def has_same_sets(self, other: "LedgerEntry") -> bool:
        """Return whether the other entry has the same rows in the same sets, of the same plan at the same site."""
        identities = [(entry.plan, entry.folder, entry.reading, entry.sets) for entry in (self, other)]
        return identities[0] == identities[1] and np.array_equal(self.labels, other.labels)

    def describe_set(self, label: int) -> str:
        """Return a set in words."""
        if label == IN_NO_SET:
            return "in no set"
        return self.sets[label - 1].describe(len({released.client for released in self.sets}) > 1)

    def describe(self) -> list[str]:
        """Return the entry as lines to read."""
        sizes = np.bincount(self.labels, minlength=len(self.sets) + 1).tolist()
        overlap = ", with overlap=allow" if self.overlap else ""
        return [
            f"{self.accepted} plan {self.plan[:16]}: {self.title}{overlap}",
            f"  site {self.folder}, file {self.file}",
            f"  clients: {', '.join(dict.fromkeys(released.client for released in self.sets))}",
            f"  {', '.join(f'{sizes[k + 1]} {self.describe_set(k + 1)}' for k in range(len(self.sets)))}",
        ]

    def to_bytes(self) -> bytes:
        """Return the content of the file of the entry."""
        names = ("plan", "title", "accepted", "folder", "file", "reading", "overlap")
        header: dict[str, Any] = {name: getattr(self, name) for name in names}
        header |= {"sets": [asdict(released) for released in self.sets], "columns": list(self.tokens)}
        tokens = {f"{_TOKENS}{k}": column for k, column in enumerate(self.tokens.values())}
        content = np.frombuffer(json.dumps(header).encode(), np.uint8)
        return npz_bytes({_HEADER: content, _LABELS: self.labels.astype(np.uint32), **tokens})

    @classmethod
    def read(cls, path: Path) -> "LedgerEntry":
        """Read the file of an entry. Raises one of READ_ERRORS, or TypeError."""
        arrays = read_npz(path)
        header = json.loads(arrays[_HEADER].tobytes())
        columns = header.pop("columns")
        labels = arrays[_LABELS].astype(np.int64)
        sets = tuple(ReleasedSet(**released) for released in header.pop("sets"))
        tokens = {name: arrays[f"{_TOKENS}{k}"] for k, name in enumerate(columns)}
        if any(column.shape != labels.shape for column in tokens.values()) or labels.max(initial=0) > len(sets):
            raise ValueError("its columns do not fit each other")
        return cls(**header, sets=sets, labels=labels, tokens=tokens)


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

    def find_differences(self, entry: LedgerEntry, columns: Mapping[str, Any], min_rows: int) -> list[str]:
        """Return a sentence for each cell of fewer than ``min_rows`` rows that a plan would make; write nothing.

        Args:
            entry: the plan. If its folder is not known, the folder of the last plan with the same file counts.
            columns: the columns that the plan reads, by name.
        """
        entries = self.read()
        if not entries:
            return []
        if not entry.folder:
            folders = [earlier.folder for earlier in entries if earlier.file == entry.file]
            entry = replace(entry, folder=folders[-1] if folders else "")
        known = _list_known_columns(entries, entry.reading)
        tokens = make_tokens(self._read_secret(), columns, known)
        return _describe_differences([*entries, replace(entry, tokens=tokens)], min_rows)

    def enter(self, entry: LedgerEntry, columns: Mapping[str, Any], min_rows: int, lock_seconds: float) -> None:
        """Write a plan to the ledger, on the disk, before its first answer leaves. The same sets are written once.

        Raises OwnerError for a plan that makes cells of fewer than ``min_rows`` rows, unless the entry has ``overlap``,
        and for a ledger that cannot be read or written.
        """
        with self._locked(lock_seconds):
            entries = self.read()
            known = _list_known_columns(entries, entry.reading)
            if columns.keys() <= known and any(entry.has_same_sets(earlier) for earlier in entries):
                return
            if not entries and not (self.folder / _SECRET).exists():  # which only the account that writes here may read
                secret = secrets.token_bytes(_SECRET_BYTES)
                write_atomically(self.folder / _SECRET, secret.hex(), durable=True, private=True)
            secret = self._read_secret()
            entry = replace(entry, tokens=make_tokens(secret, columns, known))
            if not entry.overlap:
                check_differences(_describe_differences([*entries, entry], min_rows))
            number = max([int(name[:6]) for name in os.listdir(self.folder) if _NAME.fullmatch(name)], default=0) + 1
            path = self.folder / f"{number:06}-{entry.plan[:16]}.npz"
            write_atomically(path, entry.to_bytes(), durable=True, private=True)

    def describe(self) -> list[str]:
        """Return the ledger as lines to read."""
        entries = self.read()
        if not entries:
            return [f"the ledger {self.folder} is empty"]
        lines = [f"ledger {self.folder}", *(line for entry in entries for line in entry.describe())]
        sizes = number_cells(_identify_rows(entries).labels)[1][1:]
        return [
            *lines,
            f"cells of rows in the same sets of all plans: {len(sizes)}, the smallest of {sizes.min()} rows",
        ]

    @contextmanager
    def _locked(self, lock_seconds: float) -> Iterator[None]:
        """Hold the lock of the ledger. Raises OwnerError if another process holds it, and for an error of the disk."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with filelock.FileLock(self.folder / _LOCK).acquire(timeout=lock_seconds):
                yield
        except filelock.Timeout:
            raise OwnerError(f"another process writes to the ledger {self.folder}: wait for the end of that process, "
                             "and start this site again", "another process writes to the ledger of this site: start "
                             "the site again") from None  # fmt: skip
        except OSError as error:
            raise OwnerError(f"the ledger {self.folder} cannot be written ({error}): make room or allow the account of "
                             "this site to write there, or give another folder by policy.ledger and accept the plan "
                             "again", _BROKEN) from error  # fmt: skip

    def _read_secret(self) -> bytes:
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


def check_differences(sentences: Sequence[str]) -> None:
    """Raise OwnerError if a plan makes small cells, from their sentences."""
    if sentences:
        more = f"; and {len(sentences) - _LISTED} further ones" if len(sentences) > _LISTED else ""
        raise OwnerError(f"{'; '.join(sentences[:_LISTED])}{more}: {_CURES}", _DIFFERENCE)


def _list_known_columns(entries: Sequence[LedgerEntry], reading: str) -> set[str]:
    """Return the columns of a reading whose tokens the ledger has."""
    return {name for entry in entries if entry.reading == reading for name in entry.tokens}


def _identify_rows(entries: Sequence[LedgerEntry]) -> KnownRows:
    """Return the rows of all files that entries, the oldest first, have read."""
    files: dict[str, KnownFile] = {}
    for plan in range(len(entries) - 1, -1, -1):
        entry = entries[plan]
        file = files.setdefault(entry.reading, KnownFile())
        file.tokens.update(entry.tokens)
        file.labels.append((entry.sets, entry.labels))
        file.plans.append(plan)
        file.folders.add(entry.folder)
    # Folders of different patients have answered one plan, never from the same file, and never from files most of whose
    # rows are equal.
    apart = set()
    together = set()
    for one in entries:
        for other in entries:
            pair = one.folder, other.folder
            if one.folder == other.folder or one.reading == other.reading or one.file == other.file:
                together.add(pair)
            elif one.plan == other.plan:
                is_same = have_most_rows_in_common(files[one.reading], files[other.reading])
                (together if is_same else apart).add(pair)
    apart -= together
    return identify_rows(files, len(entries), lambda one, other: (one, other) in apart)


def _describe_differences(entries: Sequence[LedgerEntry], min_rows: int) -> list[str]:
    """Return a sentence for each cell of fewer than ``min_rows`` rows that the last plan makes.

    A plan that divides a file as an earlier one did, and reads no new column of the file, makes none.
    """
    *earlier, newest = entries
    alike = [entry for entry in earlier if entry.reading == newest.reading and entry.sets == newest.sets]
    if not newest.tokens and any(np.array_equal(entry.labels, newest.labels) for entry in alike):
        return []
    sentences = []
    for cell in find_small_cells(_identify_rows(earlier), _identify_rows(entries), min_rows):
        sets = []
        for plan, label in cell.earlier:
            entry = entries[plan]
            set_text = f"{entry.describe_set(label)} of plan {entry.plan[:8]}.."
            sets.append(f"{set_text} (accepted {entry.accepted}, {entry.title})")
        begin = f"{cell.n_rows} rows are {newest.describe_set(cell.label)} of this plan and were"
        if cell.n_rows == 1:
            begin = f"1 row is {newest.describe_set(cell.label)} of this plan and was"
        sentences.append(f"{begin} {' and '.join(sets)}")
    return sentences
