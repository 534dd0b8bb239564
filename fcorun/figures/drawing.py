"""What a figure is drawn from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fcorun.figures.spec import Figure
from fcorun.records.record import Record
from fcorun.reports.pictures.page import Look
from fcorun.reports.pictures.view import View, looks_of
from fcorun.reports.table import Table


@dataclass(frozen=True)
class Drawing:
    """What there is to draw. A picture is a function of it that returns a matplotlib figure, or None for nothing.

    Attributes:
        grid, grid_records: the table of all points, and their records in its order.
        tuned, tuned_records: of the best point of each algorithm, with all seeds.
        diverged, failed: how many runs with further seeds there are not, by algorithm.
    """

    figure: Figure
    metric: str
    grid: Table
    grid_records: Sequence[Record]
    tuned: Table
    tuned_records: Sequence[Record]
    diverged: Counter = field(default_factory=Counter)
    failed: Counter = field(default_factory=Counter)

    @property
    def lost(self) -> Counter:
        """How many seeds of each algorithm are in no band and no median."""
        return self.diverged + self.failed

    def seeds(self, algo: str) -> str:
        """How many of its seeds an algorithm has, in words; nothing if that is all."""
        done, lost = int((self.tuned.frame["algo"] == algo).sum()), self.lost[algo]
        return f"{done} of {done + lost} seeds" if lost else ""

    def title(self, algo: str) -> str:
        """What the picture calls an algorithm: with its seeds where some were lost."""
        return self.grid.title(algo) + (f" ({seeds})" if (seeds := self.seeds(algo)) else "")

    @property
    def looks(self) -> dict[str, Look]:
        """The look of each algorithm, in all figures of this table."""
        return looks_of(self.grid)

    @property
    def algorithms(self) -> list[str]:
        """The algorithms to draw, those that came to an end."""
        there = [name for name in self.looks if (self.tuned.frame["algo"] == name).any()]
        return [name for name in there if name in (self.figure.only or there)]

    @property
    def best(self) -> View:
        """The best points of the algorithms to draw."""
        places = [i for i, algo in enumerate(self.tuned.frame["algo"]) if algo in self.algorithms]
        records = [self.tuned_records[i] for i in places]
        table, xs, shown = self.tuned.take(places), self.figure.x, self.figure.panels
        table = replace(table, titles=table.titles | {algo: self.title(algo) for algo in self.lost})
        return View(table, records, self.metric, self.looks, xs=xs, shown=shown)

    @property
    def points(self) -> View:
        """All points of the grid."""
        return View(self.grid, self.grid_records, self.metric, self.looks)
