"""The input of a picture: the runs on one problem, and how they are shown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fcorun.base.records.record import Record
from fcorun.reports.pictures.layout import CurveStyle, curve_style, escape_dollars
from fcorun.reports.run_table import GridEdge, RunTable, find_grid_edges


@dataclass(frozen=True)
class ProblemView:
    """A table of runs on one problem, and how they are shown.

    A picture is a function ``draw(view)`` that returns a matplotlib figure, or None if there is nothing to draw.

    Attributes:
        table: the runs, a row each.
        records: the records of the runs, in the order of the table.
        metric: the metric that runs are judged by.
        curve_styles: the style of each algorithm, the same in all pictures.
        x_axes: the axes that curves are drawn against, a column of panels for each of several.
        panels: the metrics of the panels; empty: the picture chooses.
        problem: the name of the problem among several, or "".
        edges: the edges of a grid at which the points lie, for a table of best points alone.
    """

    table: RunTable
    records: Sequence[Record]
    metric: str
    curve_styles: dict[str, CurveStyle]
    x_axes: Sequence[str] = ("rounds",)
    panels: Sequence[str] = ()
    problem: str = ""
    edges: Sequence[GridEdge] = ()

    @property
    def higher_is_better(self) -> bool:
        """True if larger values of the metric are better."""
        return bool(self.table.metrics[self.metric].higher)

    def algo_title(self, algo: str) -> str:
        """Return the title of an algorithm as a text of matplotlib."""
        return escape_dollars(self.table.algo_title(algo))

    def best_rows(self) -> list[dict[str, Any]]:
        """Return the best points with a run that is done. Raises UserError as ``RunTable.resolve_metric``."""
        return [row for row in self.table.best_points(self.metric).to_dict("records") if row["seeds"]]

    def grid_edges(self) -> list[GridEdge]:
        """Return the edges of the grid at which best points lie."""
        return [*self.edges, *find_grid_edges(self.table, self.metric)]


def curve_styles_of(table: RunTable, first: Iterable[str] = ()) -> dict[str, CurveStyle]:
    """Return the style of each algorithm of a table: by its position in ``first``, then by that in the table.

    If ``first`` has the algorithms of an earlier table, algorithms that join later change no style.
    """
    algos = dict.fromkeys(name for name in table.frame["algo"] if isinstance(name, str))
    return {name: curve_style(i) for i, name in enumerate(dict.fromkeys([*first, *algos])) if name in algos}
