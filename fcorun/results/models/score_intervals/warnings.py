"""Warnings where a score has no interval, and where an interval may cover less than its level."""

from collections.abc import Sequence

import numpy as np

from fcorun.base.errors import abbreviate, word
from fcorun.results.models.score_intervals.bootstrap import MIN_UNITS, Bootstrap
from fcorun.results.models.score_intervals.scored_rows import HeldOutRows

FEW = 30  # rows of the smaller class, events, or units: below, intervals of 95 % cover 92 % or less
_ALL = ""
_REASONS = {
    "undefined": "more than 5 % of the samples do not define it, as a sample of one class does not",
    "constant": "it is the same in all samples, as a score at its bound is",
}


class Findings:
    """Warnings about the intervals of a record, collected while they are computed.

    Attributes:
        resample: what samples draw: rows, groups or clients.
    """

    def __init__(self, resample: str):
        self.resample = resample
        self._sentences: list[str] = []
        self._clients: dict[str, list[str]] = {}  # the clients of each kind of finding

    def sentences(self) -> list[str]:
        """Return the warnings, a sentence each."""
        endings = {
            "units": f"no intervals for clients with fewer than {MIN_UNITS} {self.resample}: ",
            "class": f"intervals may cover less than their level for clients with fewer than {FEW} rows of a class, "
            "events or rows: ",
            "undefined": "some scores have no interval, because samples do not define them, for clients: ",
            "constant": "some scores have no interval, because they are the same in all samples, for clients: ",
        }
        by_client = [text + abbreviate(self._clients[kind]) for kind, text in endings.items() if kind in self._clients]
        return [*self._sentences, *by_client]

    def add(self, sentence: str) -> None:
        """Add a warning unless it is empty or known."""
        if sentence and sentence not in self._sentences:
            self._sentences.append(sentence)

    def add_groups(self, rows: HeldOutRows, group: str) -> None:
        """Warn if rows of a group are taken as independent. ``group`` is the column of groups of the data, or ""."""
        if self.resample != "rows":
            return
        if rows.group is not None:
            self.add(word("rows of a group are taken as independent: `resample=groups` does not assume that"))
        elif group:
            self.add(word(f"rows of a group (`data.group={group}`) are taken as independent, since predictions.csv "
                     "has no groups: run it again with `force=true`"))  # fmt: skip

    def add_rows(self, rows: HeldOutRows) -> None:
        """Warn of predictions that few rows support, or that numbers cannot tell apart."""
        self.add_small_classes(rows, _ALL)
        if rows.classes and rows.probability is None:
            self.add("predictions.csv has labels and no probabilities: there is no AUC, Brier score or calibration")
        elif rows.target_task.has_two_classes and rows.has_rounded_probabilities:
            self.add("some probabilities are 0 or 1 by rounding: log loss and calibration take them as the nearest "
                     "numbers between")  # fmt: skip

    def add_small_classes(self, rows: HeldOutRows, client: str) -> None:
        """Warn of few rows of a class, or of few events."""
        least, kind = len(rows), "rows"
        if rows.target_task.has_events:
            least, kind = rows.n_events or 0, "events"
        elif rows.classes:
            least = int(np.bincount(rows.target, minlength=len(rows.classes)).min())
            kind = "rows of the smallest class"
        if least >= FEW:
            return
        if client == _ALL:
            self._add_few(least, kind)
        elif len(rows) >= MIN_UNITS:
            self._add_client("class", client)

    def _add_few(self, count: int, kind: str) -> None:
        self.add(f"{count} {kind} are few: below {FEW}, intervals may cover less than their level")

    def add_bootstrap(self, result: Bootstrap, clients: Sequence[str]) -> None:
        """Warn of scores without an interval, of all rows or of clients."""
        for c, client in enumerate(clients):
            if client == _ALL and self.resample != "rows" and MIN_UNITS <= result.n_units[c] < FEW:
                self._add_few(int(result.n_units[c]), self.resample)
            missing: dict[str, list[str]] = {}
            for name, reasons in result.reasons.items():
                if reasons[c]:
                    missing.setdefault(reasons[c], []).append(name)
            for reason, names in missing.items():
                if client != _ALL:
                    self._add_client(reason, client)
                elif reason == "units":
                    self.add(f"{result.n_units[c]} {self.resample} are too few for intervals, which need {MIN_UNITS}")
                else:
                    self.add(f"no interval of {', '.join(names)}: {_REASONS[reason]}")

    def _add_client(self, kind: str, client: str) -> None:
        names = self._clients.setdefault(kind, [])
        if client not in names:
            names.append(client)
