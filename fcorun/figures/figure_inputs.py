"""What a figure is drawn from."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fcorun.figures.spec import Figure
from fcorun.records.record import Record
from fcorun.reports.pictures.layout import CurveStyle
from fcorun.reports.pictures.problem_view import ProblemView, curve_styles_of
from fcorun.reports.run_table import RunTable


@dataclass(frozen=True)
class FigureInputs:
    """What there is to draw. A picture is a function of it that returns a matplotlib figure, or None for nothing.

    Attributes:
        grid, grid_records: the table of all points, and their records in its order.
        tuned, tuned_records: of the best point of each algorithm, with all seeds.
        diverged, failed: how many runs with further seeds there are not, by algorithm.
    """

    figure: Figure
    metric: str
    grid: RunTable
    grid_records: Sequence[Record]
    tuned: RunTable
    tuned_records: Sequence[Record]
    diverged: Counter = field(default_factory=Counter)
    failed: Counter = field(default_factory=Counter)

    @property
    def lost_seeds(self) -> Counter:
        """How many seeds of each algorithm are in no band and no median."""
        return self.diverged + self.failed

    def describe_seeds(self, algo: str) -> str:
        """How many of its seeds an algorithm has, in words; nothing if that is all."""
        done, lost = int((self.tuned.frame["algo"] == algo).sum()), self.lost_seeds[algo]
        return f"{done} of {done + lost} seeds" if lost else ""

    def title(self, algo: str) -> str:
        """What the picture calls an algorithm: with its seeds where some were lost."""
        return self.grid.algo_title(algo) + (f" ({seeds})" if (seeds := self.describe_seeds(algo)) else "")

    @property
    def line_styles(self) -> dict[str, CurveStyle]:
        """The look of each algorithm, in all figures of this table."""
        return curve_styles_of(self.grid)

    @property
    def algorithms(self) -> list[str]:
        """The algorithms to draw, those that came to an end."""
        there = [name for name in self.line_styles if (self.tuned.frame["algo"] == name).any()]
        return [name for name in there if name in (self.figure.only or there)]

    @property
    def best_view(self) -> ProblemView:
        """The best points of the algorithms to draw."""
        places = [i for i, algo in enumerate(self.tuned.frame["algo"]) if algo in self.algorithms]
        records = [self.tuned_records[i] for i in places]
        table, xs, shown = self.tuned.take(places), self.figure.x, self.figure.panels
        table = replace(table, titles=table.titles | {algo: self.title(algo) for algo in self.lost_seeds})
        return ProblemView(table, records, self.metric, self.line_styles, x_axes=xs, panels=shown)

    @property
    def grid_view(self) -> ProblemView:
        """All points of the grid."""
        return ProblemView(self.grid, self.grid_records, self.metric, self.line_styles)
