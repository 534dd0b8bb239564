"""Options of ``fcorun compare``, and the names of what it compares."""

from dataclasses import dataclass
from typing import Literal

from fcorun.base.config import Count
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.compared import PERSONAL_ALGORITHMS
from fcorun.results.models.score_intervals.score_options import ScoreOptions

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
