"""Options and result of ``fcorun compare``: a row for each candidate, client and score, and the verdict in words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fcorun.base.config import Count
from fcorun.base.errors import UserError
from fcorun.data.tasks import find_task
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.methods.algorithms.compared import PERSONAL_ALGORITHMS
from fcorun.results.score_intervals.score_table import IntervalRow, ScoreOptions
from fcorun.results.scores.score import all_scores, list_scores
from fcorun.studies.selection.study_picture import shorten

SHARED, STANDARDIZED, LOCAL, MEAN, NEW_CLIENT = "shared", "standardized", "local", "mean", "new_client"
DESCRIPTIONS = {
    SHARED: "one model for all clients",
    STANDARDIZED: "one model for all clients, of features standardized by each client",
    LOCAL: "a model of each client's rows alone, of one strength for all clients",
    MEAN: "each client's mean or share of events alone, without features",
    NEW_CLIENT: "one model of the other clients, none of whose rows are the client's",
}


@dataclass(frozen=True)
class CompareOptions:
    """Options of ``fcorun compare``, in addition to a configuration.

    Attributes:
        folds: the number of inner folds, which choose the strength of each candidate; with ``data.fold`` one for each
            marked fold.
        outer_folds: the number of outer folds, which judge the candidates. None: that of the folds that ``data.fold``
            marks, else 5 (``DEFAULT_OUTER_FOLDS``).
        points: the number of values of each path.
        rule: the rule of the choice, as in ``fcorun select``.
        range: the least and the largest strength of all candidates; None: computed for each.
        methods: algorithms with own models for clients; None: ``PERSONAL_ALGORITHMS``.
        samples: the number of bootstrap samples of an interval.
        level: the confidence level of an interval.
    """

    folds: Count = 5
    outer_folds: Count | None = None
    points: Count = 30
    rule: Literal["min", "one_se"] = "min"
    range: list[float] | None = None
    methods: list[str] | None = None
    samples: Count = 1000
    level: float = 0.95

    def __post_init__(self):
        _ = self.score_options  # refused before anything is computed
        for name in self.method_names:
            if name in DESCRIPTIONS:
                raise UserError(f"methods={name} is the name of a candidate of fcorun: leave it out")
            if not name.isidentifier():
                raise UserError(
                    f"methods={name} is no method with own models: give some of {', '.join(PERSONAL_ALGORITHMS)}, ..."
                )

    @property
    def score_options(self) -> ScoreOptions:
        """The options of the intervals. Raises UserError for numbers that give none."""
        return ScoreOptions(samples=self.samples, level=self.level)

    @property
    def method_names(self) -> tuple[str, ...]:
        """The algorithms with own models, each once."""
        return tuple(dict.fromkeys(PERSONAL_ALGORITHMS if self.methods is None else self.methods))


def describe_candidate(name: str) -> str:
    """Return what a candidate is, in words."""
    return DESCRIPTIONS.get(name, f"each client's own model by algo={name}")


ALL = ""  # the client of the rows of all clients
BETTER, WORSE, UNCLEAR = "better", "worse", "cannot be told apart"
FEW_EVENTS = 10  # of a client: below, the client is named as too small for a verdict


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
        )
        if difference is None:
            return score
        return replace(
            score,
            difference=difference.estimate,
            difference_low=difference.low,
            difference_high=difference.high,
        )

    @property
    def verdict(self) -> str:
        """Better or worse than the shared model, if the interval of the difference excludes 0.

        The shared model itself has the verdict "".
        """
        if self.difference is None or self.difference_low is None or self.difference_high is None:
            return ""
        if not (self.difference_low > 0 or self.difference_high < 0):  # nan, too
            return UNCLEAR
        return BETTER if (self.difference_low > 0) == all_scores()[self.score].higher else WORSE

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
    def is_complete(self) -> bool:
        """Return whether the comparison is done: always, since it has no refit."""
        return True

    @property
    def score(self) -> str:
        """The score of the verdict."""
        return self.scores[0]

    @property
    def score_label(self) -> str:
        """The score of the verdict in words."""
        return all_scores()[self.score].label

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
            if find_task(self.task).has_two_classes:
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
    """Return the scores that a comparison lists, the one that ``metric`` chose by first, for the verdict."""
    present = {row.score for row in rows}
    scores = [score for score in list_scores(lambda places: places.verdict) if score.name in present]
    name = metric.removeprefix("personal_")
    return [score.name for score in sorted(scores, key=lambda score: score.metric != name)]


_MAX_CLIENTS = 20
_MARKS = {BETTER: "+", WORSE: "-", UNCLEAR: " ", "": " "}
_MAX_LETTERS = 30


def describe_comparison(comparison: ModelComparison) -> Iterator[str]:
    """Yield a table with a row for each client and a column for each candidate, the verdict, warnings, and files."""
    yield (
        f"{comparison.score_label} out of fold; + better and - worse than the shared model, unmarked: cannot be told "
        "apart"
    )
    has_events = comparison.find(SHARED, ALL).events is not None
    clients = list(comparison.clients) if len(comparison.clients) > 1 else []
    names = {client: shorten(client or "all", _MAX_LETTERS) for client in (ALL, *clients[:_MAX_CLIENTS])}
    first_width = max(*map(len, names.values()), len("client"))
    count_width = max(8, len(f"{comparison.find(SHARED, ALL).n:,}") + 2)
    header = f"{'client':<{first_width}}{'rows':>{count_width}}" + (f"{'events':>{count_width}}" if has_events else "")
    digits = ".4f" if 0.01 <= abs(comparison.find(SHARED, ALL).value) < 1000 else ".4g"
    widths = {name: max(10, len(name) + 2) for name in comparison.candidates}
    yield header + "".join(f"{name:>{width}} " for name, width in widths.items()).rstrip()
    for client, shown in names.items():
        row = comparison.find(SHARED, client)
        line = f"{shown:<{first_width}}{row.n:{count_width},}"
        line += f"{row.events:{count_width},}" if row.events is not None else ""
        for name, width in widths.items():
            cell = comparison.find(name, client)
            line += f"{cell.value:{width}{digits}}{_MARKS[cell.verdict]}"
        yield line.rstrip()
    if len(clients) > _MAX_CLIENTS:
        yield f"and {len(clients) - _MAX_CLIENTS} more clients, in comparison.csv"
    yield from comparison.warnings
    yield comparison.describe_verdict()
    yield f"{comparison.folder}/ holds comparison.csv, .json, .png and .pdf, and a folder for each candidate"
