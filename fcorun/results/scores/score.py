"""The contract of scores: numbers that judge predictions of rows whose targets are known; and the shelf of all scores.

A file of this folder has a score, or a family of scores that is one idea. An installed package adds a score by an entry
point of the group ``fcorun.scores``, which names a subclass of ``Score``. A score appears in scores.csv, with intervals
in ``fcorun scores``, in comparisons, in the terminal and on the page, in the places that it names.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from fcorun.base.errors import UserError
from fcorun.data.tasks import Task
from fcorun.results.scores.weighted_rows import Sums, WeightedRows

ENTRY_POINT_GROUP = "fcorun.scores"
_LAST = 100  # the place of a score that names none


@dataclass(frozen=True)
class Places:
    """The places of a score in lists, smallest first. None: the list leaves the score out.

    Attributes:
        table: among the columns of scores.csv, and in the table of ``fcorun scores``.
        page: in the table of scores of a page.
        terminal: among the scores of which ``fcorun scores`` prints the first four by client.
        verdict: among the scores by which a comparison judges models, the first of which gives the verdict.
        headline: among the scores of which a page names the first in its summary.
        by_client: whether the page lists the score for each client.
        brief: whether the page of one sheet does so, too.
    """

    table: int = _LAST
    page: int = _LAST
    terminal: int | None = _LAST
    verdict: int | None = _LAST
    headline: int | None = None
    by_client: bool = False
    brief: bool = False


class Score(ABC):
    """A number that judges the predictions of a model. A subclass with a name is a score.

    Attributes:
        name: the column of scores.csv.
        label: the name in a sentence.
        long_label: the name with what a reader compares the value with; empty: the label.
        higher: True if larger values are better, False if smaller ones are, None if neither.
        needs_probability: whether predictions of classes need probabilities.
        needs_threshold: whether the score depends on the threshold between two classes.
        ranks_rows: whether the score depends on the order of the predictions alone.
        has_delong_intervals: whether the score is an area of which DeLong's covariance gives intervals, too.
        depends_on_model: False for a property of the rows alone, whose differences between models say nothing.
        metric: the metric of a run that measures the score on validation rows, or "".
        is_permuted: whether ``fcorun permute`` compares the score with those of permuted targets.
        in_scores_csv: False for a score that scores.csv has by another name, as the loss of an objective.
        places: where the score stands in lists.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    long_label: ClassVar[str] = ""
    higher: ClassVar[bool | None] = None
    needs_probability: ClassVar[bool] = False
    needs_threshold: ClassVar[bool] = False
    ranks_rows: ClassVar[bool] = False
    has_delong_intervals: ClassVar[bool] = False
    depends_on_model: ClassVar[bool] = True
    metric: ClassVar[str] = ""
    is_permuted: ClassVar[bool] = False
    in_scores_csv: ClassVar[bool] = True
    places: ClassVar[Places] = Places()

    @abstractmethod
    def judges(self, task: Task) -> bool:
        """Return whether the score judges predictions of targets of a task."""

    def of_rows(self, rows: WeightedRows) -> Float[np.ndarray, "B G"]:
        """Return the score of each group of rows under each weighting, nan where undefined.

        A weight that is a whole number stands for so many copies of a row.
        """
        return self.of_sums(rows)

    def of_sums(self, sums: Sums) -> np.ndarray:
        """Return the score from sums over rows, which may lie elsewhere. A score without this method needs the rows."""
        raise NotImplementedError(f"{self.name} does not follow from sums")

    def bounds_of_sums(self, sums: Sums) -> tuple[float, float] | None:
        """Return certain bounds on the score from sums over rows that lie elsewhere; None: there are no bounds."""
        return None

    def applies_to(self, rows: WeightedRows) -> bool:
        """Return whether rows of one of the score's tasks have what the score needs, as several groups may lack."""
        return True

    def follows_from_sums(self, task: Task) -> bool:
        """Return whether ``of_sums`` gives the score of predictions of a task."""
        return type(self).of_sums is not Score.of_sums


class NumberScore(Score):
    """A score of predicted numbers."""

    def judges(self, task: Task) -> bool:
        return task.is_quantity


class TimeScore(Score):
    """A score of linear predictors of times to events."""

    def judges(self, task: Task) -> bool:
        return task.has_events


class ClassScore(Score):
    """A score of predicted classes, two or more."""

    def judges(self, task: Task) -> bool:
        return task.has_classes


class TwoClassScore(Score):
    """A score of two predicted classes, one of which is the positive one."""

    def judges(self, task: Task) -> bool:
        return task.has_two_classes


def compute_scores(rows: WeightedRows) -> dict[str, Float[np.ndarray, "B G"]]:
    """Return all scores of weighted rows by name, in the order of scores.csv."""
    scores: dict[str, np.ndarray] = {}
    if not rows.rows.is_judged:
        return scores
    for score in scores_of_task(rows.rows.task, rows.has_probabilities):
        if score.applies_to(rows):
            scores[score.name] = score.of_rows(rows)
    return scores


@cache
def all_scores() -> dict[str, Score]:
    """Return all scores by name, in the order of scores.csv: those of fcorun and those of installed packages.

    Raises UserError for a package whose entry point is no score, or has the name of another score.
    """
    package = importlib.import_module(__package__ or "")
    scores: dict[str, Score] = {}
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            is_score = isinstance(value, type) and issubclass(value, Score) and "name" in vars(value)
            if is_score and value.__module__ == module.__name__:
                scores[value.name] = value()
    for point in entry_points(group=ENTRY_POINT_GROUP):
        cls = point.load()
        where = f"the entry point {point.name} = {point.value} of the group {ENTRY_POINT_GROUP}"
        if not (isinstance(cls, type) and issubclass(cls, Score)):
            raise UserError(f"{where} is no score: name a class that inherits fcorun.Score")
        if cls.name in scores:
            raise UserError(f"{where}: there is another score '{cls.name}'; give the class another name")
        scores[cls.name] = cls()
    return dict(sorted(scores.items(), key=lambda item: (item[1].places.table, item[0])))


def scores_of_task(task: Task, has_probabilities: bool = True) -> list[Score]:
    """Return the scores of a task, in the order of scores.csv; without probabilities those that need none."""
    scores = []
    for score in all_scores().values():
        is_possible = has_probabilities or not score.needs_probability
        if is_possible and score.judges(task):
            scores.append(score)
    return scores


def find_score(name: str) -> Score | None:
    """Return the score of a column; None for another column, such as a loss or a count."""
    return all_scores().get(name)


def list_scores(find_place: Callable[[Places], int | None]) -> list[Score]:
    """Return the scores of a list in its order, as ``list_scores(lambda places: places.page)``."""
    placed = []
    for score in all_scores().values():
        place = find_place(score.places)
        if place is not None:
            placed.append((place, score))
    return [score for _, score in sorted(placed, key=lambda item: item[0])]
