"""The parts that the pictures of held-out rows share: whose curves are drawn, their styles and their names."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fcorun.base.records.record import PERSONAL
from fcorun.reports.pictures.layout import COLOURS, DASHES, legend_name, pt, shorten_name
from fcorun.results.models.score_curves import Curves

# with up to so many clients each has a colour and a name; with more, all are grey and share a legend entry
MAX_NAMED = 6
_MAX_LETTERS = 18  # of a client's name
SETS = {"test": "test rows", "validation": "validation rows", "out_of_fold": "rows out of fold"}


@dataclass(frozen=True)
class CurveView:
    """The curves of one model, the personal models if there are some, which predict for known clients."""

    curves: Curves
    title: str

    @property
    def model(self) -> str:
        """The model: shared or personal."""
        return PERSONAL if PERSONAL in self.curves.thresholds else next(iter(self.curves.thresholds))

    @property
    def threshold(self) -> float:
        """The threshold of the model."""
        return self.curves.thresholds[self.model]

    @property
    def clients(self) -> list[str]:
        """The names of the clients with curves, in order."""
        return [row["client"] for row in self.curves.scores if row["model"] == self.model and row["client"]]

    @property
    def heading(self) -> list[str]:
        """The lines above the picture: the run, the rows and the class."""
        scores = self.scores("")
        n, events = int(scores["n"]), round(scores["n"] * scores["prevalence"])
        model = ", personal models" if self.model == PERSONAL else ""
        positive = self.curves.positive
        return [self.title, f"{n:,} {SETS[self.curves.split]}, {events:,} of class '{positive}'{model}"]

    def scores(self, client: str) -> dict[str, Any]:
        """Return the scores of a client, or of all rows for ""."""
        rows = self.select(self.curves.scores, client)
        return rows[0]

    def select(self, rows: Sequence[dict[str, Any]], client: str) -> list[dict[str, Any]]:
        """Return the rows of a table that are about this model and a client, or about all rows for ""."""
        return [row for row in rows if row["model"] == self.model and row["client"] == client]

    def line_style(self, client: str) -> dict[str, Any]:
        """Return the arguments of a line for matplotlib: thick for all rows, thin for a client, grey for many."""
        if not client:
            return {"color": "black", "linewidth": pt(1.6), "zorder": 3}
        if len(self.clients) > MAX_NAMED:
            return {"color": "0.7", "linewidth": pt(0.5), "zorder": 2}
        i = self.clients.index(client)
        return {"color": COLOURS[i], "linestyle": DASHES[i], "linewidth": pt(1.0), "zorder": 2}

    def client_label(self, client: str, text: str) -> str:
        """Return the entry of a client's line in a legend; of many clients the first stands for all."""
        if len(self.clients) <= MAX_NAMED:
            name = shorten_name(client, _MAX_LETTERS)
            return legend_name(f"{name}: {text}" if text else name)
        return f"each of {len(self.clients)} clients" if client == self.clients[0] else ""


def describe_sizes(numbers: Iterable[int]) -> str:
    """Return the numbers of rows of groups as text.

    >>> describe_sizes([24, 25, 25]), describe_sizes([20, 31, 24])
    ('24 or 25', '20 to 31')
    """
    sizes = sorted(set(numbers))
    if len(sizes) > 2:
        return f"{sizes[0]:,} to {sizes[-1]:,}"
    return " or ".join(f"{size:,}" for size in sizes)


def shape_square(ax: Any, limit: float = 1.0) -> None:
    """Give both axes of a panel the same range, from 0 to a limit, and few ticks."""
    from matplotlib.ticker import MaxNLocator

    limit = limit or 1.0  # where all numbers are 0
    margin = 0.02 * limit
    ax.set_xlim(-margin, limit + margin)
    ax.set_ylim(-margin, limit + margin)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_locator(MaxNLocator(5))
