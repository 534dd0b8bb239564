"""A plan that a site answers, in the ledger: checked at the start, and entered before the first answer leaves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from fcorun.sites.plan.policy import Policy
from fcorun.sites.tables.ledger import (
    Ledger,
    check_differences,
    identify_rows,
    keep_fills,
    list_differences,
    list_known_columns,
)
from fcorun.sites.tables.ledger_entry import IN_NO_SET, LedgerEntry
from fcorun.sites.tables.ledger_rows import gap_token, make_tokens
from fcorun.sites.transport.messages import OwnerError


class Settled(NamedTuple):
    """The choices of a plan about the gaps and knots of a site.

    Attributes:
        agreed: what all sites agreed on to fill the gaps of each column that has some.
        knots: the knots of each column with a spline.
        fills: what fills these gaps at the site.
    """

    agreed: Mapping[str, Any]
    knots: Mapping[str, Sequence[float]]
    fills: Mapping[str, Any]


@dataclass
class PlanInLedger:
    """A plan that a site answers, in the owner's ledger.

    Attributes:
        ledger: the ledger.
        entry: the plan, without what all sites agree on. If its folder is not known, the folder of the last plan with
            the same file counts.
        columns: the columns that the plan reads, by their names in the file.
        rename: the names of columns in the plan by those in the file, where they differ.
        policy: the rules of the owner.
        lock_seconds: the longest wait for another process.
    """

    ledger: Ledger
    entry: LedgerEntry
    columns: Mapping[str, Any]
    rename: Mapping[str, str]
    policy: Policy
    lock_seconds: float
    _is_entered: bool = False
    _last: Settled | None = None

    def find_differences(self) -> list[str]:
        """Return a sentence for each cell of fewer rows than the policy allows that the plan would make; write nothing.

        Raises OwnerError for a ledger that cannot be read.
        """
        entries = self.ledger.read()
        if not entries:
            return []
        entry = self.entry
        if not entry.folder:
            folders = [earlier.folder for earlier in entries if earlier.file == entry.file]
            entry = replace(entry, folder=folders[-1] if folders else "")
        entry = self._add_tokens(entry, entries, self.ledger.read_secret())
        return list_differences([*entries, entry], self.rename, self.policy)

    def check(self) -> None:
        """Raise OwnerError for a plan that ``enter`` would refuse, and a ledger without a place; write no entry."""
        with self.ledger.locked(self.lock_seconds):
            if not self.entry.overlap:
                check_differences(self.find_differences())

    def enter(self, settled: Settled | None = None) -> None:
        """Write the plan, and what it has settled, to the ledger, on the disk, before an answer leaves.

        Raises OwnerError for a plan that makes cells of fewer rows than the policy allows, unless the entry has
        ``overlap``, for a ledger that cannot be read or written, and if another plan has settled other fills since
        ``find_fills``.
        """
        if not self._is_entered:
            with self.ledger.locked(self.lock_seconds):
                self._enter_sets()
            self._is_entered = True
        if settled is None or settled == self._last:
            return
        with self.ledger.locked(self.lock_seconds):
            entries = self.ledger.read()
            entry = self._settle(entries, settled.agreed, settled.knots)
            if not any(entry is earlier for earlier in entries):
                self.ledger.write(entry)
        if _rename(entry.fills, self.rename) != settled.fills:
            raise OwnerError("another plan of this site has filled the same gaps meanwhile: start this site again",
                             "another plan changed the ledger of this site: start the site again")  # fmt: skip
        self._last = settled

    def _enter_sets(self) -> None:
        """Write the plan before anything is settled; the same sets are written once. Call under the lock."""
        entries = self.ledger.read()
        known = list_known_columns(entries, self.entry.reading)
        if self.columns.keys() <= known and any(self.entry.has_same_sets(earlier) for earlier in entries):
            return
        entry = self._add_tokens(self.entry, entries, self.ledger.open_secret(entries))
        if not entry.overlap:
            check_differences(list_differences([*entries, entry], self.rename, self.policy))
        self.ledger.write(entry)

    def list_knots(self) -> dict[str, set[float]]:
        """Return all knots of each column in plans with rows of this one; none if the owner gives rows away.

        The plan must be in the ledger.
        """
        if self.entry.overlap:
            return {}
        entries = self.ledger.read()
        labels = identify_rows(entries)[0]
        is_used = np.zeros(len(labels), bool)
        for plan, other in enumerate(entries):
            if other.has_same_sets(self.entry):
                is_used |= labels[:, plan] != IN_NO_SET
        knots: dict[str, set[float]] = {}
        for plan, other in enumerate(entries):
            if (is_used & (labels[:, plan] != IN_NO_SET)).any():
                for name, of_plan in other.knots.items():
                    knots.setdefault(name, set()).update(of_plan)
        return _rename(knots, self.rename)

    def find_fills(self, agreed: Mapping[str, Any], knots: Mapping[str, Sequence[float]]) -> Mapping[str, Any]:
        """Return what fills the gaps of each column at the site, from the agreed fills and knots; write nothing.

        The plan must be in the ledger.
        """
        return _rename(self._settle(self.ledger.read(), agreed, knots).fills, self.rename)

    def _settle(
        self, entries: list[LedgerEntry], agreed: Mapping[str, Any], knots: Mapping[str, Sequence[float]]
    ) -> LedgerEntry:
        """Return the entry with the site's fills, the one among ``entries`` if there is one.

        The entry has the names of columns in the file.
        """
        own_names = {shared: name for name, shared in self.rename.items()}
        entry = replace(self.entry, agreed=_rename(agreed, own_names), knots=_rename(knots, own_names))
        for earlier in reversed(entries):
            is_settled = earlier.agreed == entry.agreed and earlier.knots == entry.knots
            if is_settled and earlier.has_same_sets(entry):
                return earlier
        secret = self.ledger.read_secret()
        entry = self._add_tokens(entry, entries, secret)
        gap_tokens = {name: gap_token(secret, name) for name in entry.agreed}
        return replace(entry, fills=keep_fills([*entries, entry], gap_tokens, self.rename))

    def _add_tokens(self, entry: LedgerEntry, entries: Sequence[LedgerEntry], secret: bytes) -> LedgerEntry:
        """Return an entry with the tokens of the columns that the ledger does not know yet."""
        return replace(entry, tokens=make_tokens(secret, self.columns, list_known_columns(entries, entry.reading)))


def _rename(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return values by column, with new names for the columns that ``names`` has."""
    return {names.get(name, name): value for name, value in values.items()}
