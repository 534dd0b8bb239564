"""A plan that a site answers, in the ledger: checked at the start, and entered before the first answer leaves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fcorun.sites.plan.policy import Policy
from fcorun.sites.tables.ledger import Ledger, check_differences
from fcorun.sites.tables.ledger_entry import LedgerEntry
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
        entry: the plan, without what all sites agree on.
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

    def check(self) -> None:
        """Raise OwnerError for a plan that ``enter`` would refuse, and a ledger without a place; write no entry."""
        with self.ledger.locked(self.lock_seconds):
            if not self.entry.overlap:
                check_differences(self.ledger.find_differences(self.entry, self.columns, self.rename, self.policy))

    def enter(self, settled: Settled | None = None) -> None:
        """Write the plan, and what it has settled, before an answer leaves, as ``Ledger.enter`` does.

        Raises OwnerError like ``Ledger.enter``, and if another plan has settled other fills since ``find_fills``.
        """
        if not self._is_entered:
            self.ledger.enter(self.entry, self.columns, self.rename, self.policy, self.lock_seconds)
            self._is_entered = True
        if settled is None or settled == self._last:
            return
        entry = self._make_entry(settled.agreed, settled.knots)
        fills = self.ledger.settle(entry, self.columns, self.rename, self.lock_seconds)
        if _rename(fills, self.rename) != settled.fills:
            raise OwnerError("another plan of this site has filled the same gaps meanwhile: start this site again",
                             "another plan changed the ledger of this site: start the site again")  # fmt: skip
        self._last = settled

    def list_knots(self) -> dict[str, set[float]]:
        """Return all knots of each column in plans with rows of this one; none if the owner gives rows away."""
        return {} if self.entry.overlap else _rename(self.ledger.list_knots(self.entry), self.rename)

    def find_fills(self, agreed: Mapping[str, Any], knots: Mapping[str, Sequence[float]]) -> Mapping[str, Any]:
        """Return what fills the gaps of each column at the site, from the agreed fills and knots."""
        return _rename(self.ledger.find_fills(self._make_entry(agreed, knots), self.columns, self.rename), self.rename)

    def _make_entry(self, agreed: Mapping[str, Any], knots: Mapping[str, Sequence[float]]) -> LedgerEntry:
        """Return the entry of what a plan settles, by the names of columns in the file."""
        own_names = {shared: name for name, shared in self.rename.items()}
        return replace(self.entry, agreed=_rename(agreed, own_names), knots=_rename(knots, own_names))


def _rename(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return values by column, with new names for the columns that ``names`` has."""
    return {names.get(name, name): value for name, value in values.items()}
