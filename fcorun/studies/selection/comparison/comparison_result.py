"""Result of a comparison: a row for each candidate, client and score, and the verdict in a sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fcorun.experiment.experiment import PreparedExperiment
from fcorun.results.models.score_intervals.score_table import IntervalRow
from fcorun.studies.selection.comparison.comparison_options import NEW_CLIENT, SHARED, CompareOptions

ALL = ""  # the client of the rows of all clients
BETTER, WORSE, UNCLEAR = "better", "worse", "cannot be told apart"
FEW_EVENTS = 10  # of a client: below, the client is named as too small for a verdict
# the scores of comparison.csv in order, unless ``order_scores`` puts that of the metric first, for the verdict
_SCORES = ("log_loss", "auc", "auc_macro", "average_precision", "brier", "rmse", "r2", "c_index", "accuracy")
HIGHER_IS_BETTER = ("auc", "auc_macro", "average_precision", "r2", "c_index", "accuracy")
RANKINGS = ("auc", "auc_macro", "average_precision")  # of rows, by their predictions
_SCORE_OF_METRIC = {"val_auc": "auc", "val_ap": "average_precision", "val_accuracy": "accuracy"}
LABELS = {"log_loss": "log loss", "auc": "AUC", "rmse": "root mean squared error", "r2": "R\N{SUPERSCRIPT TWO}"}


@dataclass(frozen=True)
class ComparisonRow:
    """A score of a candidate on the rows of a client, or of all clients.

    Attributes:
        client: the client's name, "" for all rows.
        n, events: the number of rows, and of events, or rows of the positive class; None for
            numbers and for several classes.
        value, low, high: the score and its interval; NaN where there is none.
        difference, difference_low, difference_high: the score minus that of the shared model; None for the shared
            model.
    """

    candidate: str
    client: str
    n: int
    events: int | None
    score: str
    value: float
    low: float
    high: float
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None

    @classmethod
    def of(cls, candidate: str, row: IntervalRow, difference: IntervalRow | None) -> "ComparisonRow":
        """Return the row of a score, and of its difference to the shared model."""
        score = cls(
            candidate=candidate,
            client=row.client,
            n=row.n,
            events=row.events,
            score=row.score,
            value=row.estimate,
            low=row.low,
            high=row.high,
            difference=None if difference is None else difference.estimate,
            difference_low=None if difference is None else difference.low,
            difference_high=None if difference is None else difference.high,
        )
        return score

    @property
    def verdict(self) -> str:
        """Better or worse than the shared model, if the interval of the difference excludes 0.

        The shared model itself has the verdict "".
        """
        if self.difference is None or self.difference_low is None or self.difference_high is None:
            return ""
        if not (self.difference_low > 0 or self.difference_high < 0):  # nan, too
            return UNCLEAR
        return BETTER if (self.difference_low > 0) == (self.score in HIGHER_IS_BETTER) else WORSE

    def to_dict(self) -> dict:
        """Return the row of comparison.csv; "" where there is no value."""
        cells = {**vars(self), "client": self.client or "all", "verdict": self.verdict}
        return {name: "" if cell is None or cell != cell else cell for name, cell in cells.items()}


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelComparison:
    """Result of ``fcorun compare``.

    Attributes:
        rows: the scores, candidate by candidate: of all rows first, then of each client.
        candidates, clients: their names in order.
        scores: the names of the scores; the first is that of the verdict.
        chosen: the numbers that each candidate chose without each outer fold.
        experiment: the experiment of the shared model.
    """

    rows: Sequence[ComparisonRow]
    candidates: Sequence[str]
    clients: Sequence[str]
    scores: Sequence[str]
    task: str
    options: CompareOptions
    folder: Path
    chosen: Mapping[str, list[dict[str, float]]]
    warnings: Sequence[str]
    experiment: PreparedExperiment
    seconds: float

    def __repr__(self) -> str:
        return f"ModelComparison('{self.folder}')"

    @property
    def score(self) -> str:
        """The score of the verdict."""
        return self.scores[0]

    @property
    def score_label(self) -> str:
        """The score of the verdict in words."""
        return LABELS.get(self.score, self.score.replace("_", " "))

    def find(self, candidate: str, client: str) -> ComparisonRow:
        """Return the score of the verdict of a candidate and a client."""
        return next(
            row for row in self.rows if (row.candidate, row.client, row.score) == (candidate, client, self.score)
        )

    @property
    def small_clients(self) -> list[str]:
        """The clients with fewer than 10 rows or events, or of two classes with fewer than 10 rows of one of them."""
        small = []
        for client in self.clients if len(self.clients) > 1 else ():
            row = self.find(SHARED, client)
            least = row.n if row.events is None else row.events
            if self.task == "binary":
                least = min(least, row.n - least)
            if least < FEW_EVENTS:
                size = f"{row.n} rows" if row.events is None else f"{row.n} rows, {row.events} events"
                small.append(f"{client} ({size})")
        return small

    def describe_verdict(self) -> str:
        """Say in a sentence which clients profit or lose by which model, compared with the shared one."""
        others = [name for name in self.candidates if name not in (SHARED, NEW_CLIENT)]
        clients = self.clients if len(self.clients) > 1 else [ALL]
        parts, clear = [], set()
        for verdict, verb, preposition in ((BETTER, "profit", "from"), (WORSE, "lose", "with")):
            for name in others:
                named = [client for client in clients if self.find(name, client).verdict == verdict]
                clear |= {*named}
                if named:
                    who = ", ".join(client or "all rows" for client in named)
                    parts.append(f"{who} {verb}{'s' if len(named) == 1 else ''} {preposition} {name}")
        if not any(self.find(name, client).verdict == BETTER for name in others for client in clients):
            parts.insert(0, "nobody profits from another model")
        unclear = [client or "all rows" for client in clients if client not in clear]
        if unclear:
            parts.append(f"for {', '.join(unclear)} no model can be told apart from the shared one")
        if small := self.small_clients:
            parts.append(f"too small to rely on a verdict: {', '.join(small)}")
        level = f"{100 * self.options.level:g} %"
        n_comparisons = len(others) * len(clients)
        noun = "comparison" if n_comparisons == 1 else "comparisons"
        return (
            f"compared with the shared model by the {self.score_label} ({level} intervals of the differences, not "
            f"corrected for {n_comparisons} {noun}): {'; '.join(parts)}"
        )


def order_scores(rows: Sequence[ComparisonRow], metric: str) -> list[str]:
    """Return the scores that a comparison lists, the one that ``metric`` chose by first."""
    present = {row.score for row in rows}
    names = [name for name in _SCORES if name in present]
    first = _SCORE_OF_METRIC.get(metric.removeprefix("personal_"))
    return sorted(names, key=lambda name: name != first)
