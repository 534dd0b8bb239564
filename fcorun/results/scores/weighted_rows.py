"""Rows with predictions, in groups, under many weightings at once: the one source of scores where rows lie here.

All weights 1 give scores.csv, and the weights of bootstrap samples give intervals. Rows are sorted once, whatever the
number of weightings. ``Sums`` is what scores from sums ask for, whether the sums are of such rows or come from sites.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Int

from fcorun.data.rows.row_groups import RowGroups
from fcorun.data.tasks import Task

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoredRows:
    """The predictions of one model for rows whose targets are known, sorted by group.

    Attributes:
        task: the task of the target.
        target: numbers, signed times (negative if censored), or class indices, (n,).
        prediction: expected numbers, linear predictors, or class indices, (n,).
        client: a number for each row's client, (n,).
        groups: the groups of rows that are scored.
        log_odds: of two classes, what ranks the rows: larger for rows that are more likely of class 1, (n,).
        probability: the probability of class 1, (n,), or of each class, (n, k); None without probabilities.
        n_classes: the number of classes; 0 for numbers and times.
        losses: the losses of the rows, and other scores that the objective declares, by name, (n,) each.
        is_judged: False for outputs that are no expected numbers, which losses alone judge.
    """

    task: Task
    target: np.ndarray
    prediction: np.ndarray
    client: np.ndarray
    groups: RowGroups
    log_odds: np.ndarray | None = None
    probability: np.ndarray | None = None
    n_classes: int = 0
    losses: Mapping[str, np.ndarray] = field(default_factory=dict)
    is_judged: bool = True
    _results: dict[Callable, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.target)

    def column(self, name: str) -> np.ndarray:
        """Return a column, such as ``log_odds``. Raises ValueError if the rows do not have the column."""
        values = getattr(self, name)
        if values is None:
            raise ValueError(f"these rows have no {name}")
        return values

    def in_groups(self, row_group: Int[np.ndarray, " n"]) -> "ScoredRows":
        """Return the rows, which were one group, sorted by the given group of each row."""
        order = np.argsort(row_group, kind="stable")
        changes: dict[str, Any] = {"groups": RowGroups(row_group[order]), "_results": {}}
        for column in fields(self):
            values = getattr(self, column.name)
            if isinstance(values, np.ndarray):
                changes[column.name] = values[order]
        changes["losses"] = {name: values[order] for name, values in self.losses.items()}
        return replace(self, **changes)

    def once(self, prepare: Callable[["ScoredRows"], Result]) -> Result:
        """Return what a function makes of these rows, such as their order by a score. The function is called once."""
        if prepare not in self._results:
            self._results[prepare] = prepare(self)
        return self._results[prepare]


# The numbers of each row whose sums give scores: a closed list, since sites send these sums and no others.


@dataclass(frozen=True)
class RowTerm:
    """A number of each row, or a number for each class of each row.

    Attributes:
        compute: returns the numbers, (n,), or (k, n) for k classes.
        needs_probability: only rows with probabilities of classes have the number.
        is_count: the sum counts rows.
        by_class: there is a number for each class.
        least, most: the bounds of a number.
    """

    compute: Callable[[ScoredRows], np.ndarray]
    needs_probability: bool = False
    is_count: bool = False
    by_class: bool = False
    least: float = -math.inf
    most: float = math.inf


def _count(compute: Callable[[ScoredRows], np.ndarray], by_class: bool = False) -> RowTerm:
    return RowTerm(compute, is_count=True, by_class=by_class, least=0.0, most=1.0)


def compute_squared_errors(rows: ScoredRows) -> np.ndarray:
    """Return (p - y)^2 of two classes, or the sum of these squares over several classes (Brier 1950), (n,)."""
    probability = rows.column("probability")
    if probability.ndim == 1:
        return (probability - rows.target) ** 2
    return ((probability - _find_of_class(rows).T) ** 2).sum(axis=1)


def _find_of_class(rows: ScoredRows) -> np.ndarray:
    return np.arange(rows.n_classes)[:, None] == rows.target


_TERMS_OF_TWO_CLASSES = {
    "positive": _count(lambda rows: rows.target == 1),
    "true_positive": _count(lambda rows: (rows.prediction == 1) & (rows.target == 1)),
    "true_negative": _count(lambda rows: (rows.prediction != 1) & (rows.target == 0)),
    "brier": RowTerm(compute_squared_errors, needs_probability=True, least=0.0, most=1.0),
    "probability": RowTerm(lambda rows: rows.column("probability"), needs_probability=True, least=0.0, most=1.0),
    "score": RowTerm(lambda rows: rows.column("log_odds"), needs_probability=True),
    "score_squares": RowTerm(lambda rows: rows.column("log_odds") ** 2, needs_probability=True, least=0.0),
}
_TERMS_OF_CLASSES = {
    "class_rows": _count(_find_of_class, by_class=True),
    "class_hits": _count(lambda rows: _find_of_class(rows) & (rows.prediction == rows.target), by_class=True),
    "brier": RowTerm(compute_squared_errors, needs_probability=True, least=0.0, most=2.0),
}
_TERMS_OF_TIMES = {"events": _count(lambda rows: rows.target > 0)}
_TERMS_OF_NUMBERS = {
    "target": RowTerm(lambda rows: rows.target),
    "error": RowTerm(lambda rows: rows.target - rows.prediction),
    "absolute_error": RowTerm(lambda rows: np.abs(rows.target - rows.prediction), least=0.0),
    "squared_error": RowTerm(lambda rows: (rows.target - rows.prediction) ** 2, least=0.0),
}


def list_terms(task: Task) -> dict[str, RowTerm]:
    """Return the terms of rows of a task by name; none of a task whose predictions losses alone judge."""
    if task.has_two_classes:
        return _TERMS_OF_TWO_CLASSES
    if task.has_classes:
        return _TERMS_OF_CLASSES
    if task.has_events:
        return _TERMS_OF_TIMES
    if task.is_quantity:
        return _TERMS_OF_NUMBERS
    return {}


def find_terms(rows: ScoredRows) -> dict[str, np.ndarray]:
    """Return the numbers of each row by name, those that the rows have."""
    terms: dict[str, np.ndarray] = {}
    if not rows.is_judged:
        return terms
    for name, term in list_terms(rows.task).items():
        if rows.probability is not None or not term.needs_probability:
            terms[name] = term.compute(rows)
    return terms


class Sums(ABC):
    """Sums over rows by group, wherever the rows lie. The names are those of ``list_terms``."""

    @property
    @abstractmethod
    def n(self) -> np.ndarray:
        """The number of rows, or their weight."""

    @property
    @abstractmethod
    def has_probabilities(self) -> bool:
        """Return whether predictions of classes have probabilities; True for numbers and times."""

    @abstractmethod
    def __getitem__(self, name: str) -> np.ndarray:
        """Return a sum. Raises KeyError for a sum that the rows do not have."""

    @property
    def class_rows(self) -> np.ndarray:
        """The number of rows of each class, with a leading axis of classes."""
        if "positive" not in self:
            return self["class_rows"]
        return np.stack([self.n - self["positive"], self["positive"]])

    @property
    def class_hits(self) -> np.ndarray:
        """The number of rows of each class whose class is predicted, with a leading axis of classes."""
        if "positive" not in self:
            return self["class_hits"]
        return np.stack([self["true_negative"], self["true_positive"]])

    def __contains__(self, name: str) -> bool:
        try:
            _ = self[name]
        except KeyError:
            return False
        return True


class WeightedRows(Sums):
    """Rows under B weightings; sums and scores are (B, G).

    A weight of 2 means a row that is there twice. With ``whole_clients`` all rows of a client have one weight, and a
    weight of 2 means two clients with these rows.
    """

    def __init__(self, rows: ScoredRows, weights: Float[np.ndarray, "B n"], whole_clients: bool = False):
        self.rows = rows
        self.weights = weights
        self.whole_clients = whole_clients
        self._sums: dict[str, np.ndarray] = {}
        self._results: dict[Callable, Any] = {}

    @classmethod
    def each_once(cls, rows: ScoredRows) -> "WeightedRows":
        """Return the rows with one weighting, all weights 1."""
        return cls(rows, np.ones((1, len(rows))))

    @cached_property
    def n(self) -> Float[np.ndarray, "B G"]:
        return self.rows.groups.total(self.weights)

    @property
    def has_probabilities(self) -> bool:
        return self.rows.probability is not None or not self.rows.task.has_classes

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._sums:
            values = self.rows.once(find_terms)[name].astype(float)
            if values.ndim == 1:
                self._sums[name] = self.total(values)
            else:
                self._sums[name] = np.stack([self.total(row) for row in values])
        return self._sums[name]

    def total(self, values: np.ndarray) -> Float[np.ndarray, "B G"]:
        """Return the weighted sum over each group of values (n,) or (B, n)."""
        return self.rows.groups.total(self.weights, values)

    def shared(self, compute: Callable[["WeightedRows"], Result]) -> Result:
        """Return what a function computes from these rows. The function is called once, whoever asks."""
        if compute not in self._results:
            self._results[compute] = compute(self)
        return self._results[compute]
