"""Tables of scores with intervals, and of differences of scores of two records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fcorun.base.records.formats import columns_csv
from fcorun.base.sources.catalogue import parse_source

if TYPE_CHECKING:
    import pandas as pd

SCORE_COLUMNS = ("set", "model", "client", "n", "events", "score", "method", "value", "low", "high", "samples")
DIFFERENCE_COLUMNS = (
    *("set", "model_a", "model_b", "client", "n", "events", "score", "method", "value_a", "value_b", "difference"),
    *("low", "high", "p_value", "samples"),
)
BOOTSTRAP, DELONG, OBUCHOWSKI = "bootstrap", "delong", "obuchowski"
SOURCES = {
    BOOTSTRAP: "bootstrap of @efron1979",
    DELONG: "AUC also by @delong1988, as @sun2014 compute it",
    OBUCHOWSKI: "AUC also by @obuchowski1997, for rows that belong together",
}


@dataclass(frozen=True)
class IntervalRow:
    """A score of one model, or the difference of a score of two models, with an interval.

    Attributes:
        split: the set of the rows.
        models: the names of one or two models: shared, personal.
        client: the client of the rows, "" for all rows.
        n: the number of rows.
        events: the number of events, or of rows of the positive class; None for numbers and for several classes.
        score: the name of the score.
        method: bootstrap, or of the AUC also delong, and obuchowski for rows in groups or clients.
        values: the score of each model, nan if the rows do not define the score.
        low, high: the ends of the interval of the score or of the difference, nan if there is none.
        p_value: of the hypothesis that both areas are equal; None for the bootstrap, and for one model.
        samples: the number of samples that define the score; None without samples.
    """

    split: str
    models: tuple[str, ...]
    client: str
    n: int
    events: int | None
    score: str
    method: str
    values: tuple[float, ...]
    low: float
    high: float
    p_value: float | None = None
    samples: int | None = None

    @property
    def estimate(self) -> float:
        """The score, or the difference of the first and the second model."""
        first, *others = self.values
        return first - others[0] if others else first

    def cells(self) -> tuple:
        """Return the row of the CSV; "" for what there is none of."""
        differs = len(self.values) > 1
        numbers = [*self.values, *([self.estimate] if differs else []), self.low, self.high]
        tests = [self.p_value] if differs else []
        cells: list[Any] = [self.split, *self.models, self.client, self.n, self.events, self.score, self.method]
        return tuple("" if cell is None or cell != cell else cell for cell in [*cells, *numbers, *tests, self.samples])


@dataclass(frozen=True, repr=False)
class ScoreIntervals:
    """Scores with intervals, or differences of scores.

    Attributes:
        rows: the intervals: all rows of the set first, then each client.
        level: the confidence level.
        title: what was computed, in one line.
        warnings: what a reader must know, a sentence each.
        names: of a comparison, the two records.
    """

    rows: Sequence[IntervalRow]
    level: float
    title: str
    warnings: Sequence[str] = ()
    names: tuple[str, ...] = field(default=())

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the CSV."""
        return DIFFERENCE_COLUMNS if self.names else SCORE_COLUMNS

    def to_csv(self) -> str:
        """Return a row for each score and method."""
        return columns_csv(self.to_columns())

    @property
    def frame(self) -> "pd.DataFrame":
        """The intervals as a pandas.DataFrame, with the columns of the CSV."""
        import pandas as pd

        frame = pd.DataFrame(self.to_columns(), columns=list(self.columns))
        text = ("set", "model", "model_a", "model_b", "client", "score", "method")
        numbers = [name for name in self.columns if name not in (*text, "n", "events")]
        frame[numbers] = frame[numbers].replace("", "nan").astype(float)
        return frame

    def __repr__(self) -> str:
        return self.title

    def _repr_html_(self) -> str:
        return self.frame._repr_html_()  # type: ignore[operator]

    def describe_sources(self) -> str:
        """Return the papers of the methods in one line."""
        methods = dict.fromkeys(row.method for row in self.rows)
        return "; ".join(parse_source(SOURCES[method]).text for method in methods)

    def to_columns(self) -> dict[str, list]:
        """Return the columns of the CSV; "" where there is no value."""
        cells = zip(*(row.cells() for row in self.rows), strict=True)
        return {name: list(column) for name, column in zip(self.columns, cells, strict=True)}
