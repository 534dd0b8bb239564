"""What a picture of a sweep is drawn from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fcorun.records.record import Record
from fcorun.reports.grid_edges import GridEdge, find_grid_edges
from fcorun.reports.pictures.layout import CurveStyle, curve_style
from fcorun.reports.run_table import RunTable


@dataclass(frozen=True)
class ProblemView:
    """A table of runs on one problem and how they are looked at. A picture is a function of it, ``draw(view)``, that
    returns a matplotlib figure, or None where there is nothing to draw.

    Attributes:
        table: a row a run.
        records: the runs, in its order.
        metric: what they are judged by.
        looks: of each algorithm, in all pictures the same.
        xs: what curves are drawn against; several make a column of panels each.
        shown: the metrics of the panels; none: as the picture chooses.
        problem: which of several problems this is, or nothing.
    """

    table: RunTable
    records: Sequence[Record]
    metric: str
    curve_styles: dict[str, CurveStyle]
    x_axes: Sequence[str] = ("rounds",)
    panels: Sequence[str] = ()
    problem: str = ""

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the metric is better."""
        return bool(self.table.metrics[self.metric].higher)

    def best_rows(self) -> list[dict[str, Any]]:
        """The best points that have a run that is done. Raises UserError as ``Table.best``."""
        return [row for row in self.table.best_points(self.metric).to_dict("records") if row["seeds"]]

    def grid_edges(self) -> list[GridEdge]:
        """The edges of the grid at which best points lie."""
        return find_grid_edges(self.table, self.metric)


def curve_styles_of(table: RunTable, first: Iterable[str] = ()) -> dict[str, CurveStyle]:
    """The look of each algorithm of a table: by its place in ``first``, those that are not there by that in the table.

    Algorithms that join a folder later change no look if ``first`` are those that were there before.
    """
    there = dict.fromkeys(name for name in table.frame["algo"] if isinstance(name, str))
    return {name: curve_style(i) for i, name in enumerate(dict.fromkeys([*first, *there])) if name in there}
