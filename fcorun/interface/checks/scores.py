"""The properties of every score on the shelf, for each task that the score judges."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fcorun.base.errors import UserError, suggest_name
from fcorun.data.rows.row_groups import RowGroups
from fcorun.data.tasks import Task, find_tasks
from fcorun.interface.checks.property_check import (
    Checked,
    find_checks,
    require,
    require_at_least,
    require_close,
    skip_unless,
)
from fcorun.results.scores.calibration import CalibrationSearch, sum_calibration
from fcorun.results.scores.concordance import pair_rows_of_clients
from fcorun.results.scores.number_errors import sum_about_means
from fcorun.results.scores.ranking import BINS, count_scores
from fcorun.results.scores.score import Score, all_scores
from fcorun.results.scores.weighted_rows import ScoredRows, WeightedRows, find_terms
from fcorun.results.site_scores import ScoredSet

_ROWS = 90
_CLIENTS = 3


@dataclass(frozen=True)
class ScoreCase:
    """A score and a task that the score judges."""

    score: Score
    task: Task

    @cached_property
    def rows(self) -> ScoredRows:
        """Rows of three clients, some of whose predictions are tied."""
        rng = np.random.default_rng(0)
        client = rng.integers(0, _CLIENTS, _ROWS)
        one_group = RowGroups(np.zeros(_ROWS, int))
        prediction = np.round(rng.standard_normal(_ROWS), 1)
        rows = ScoredRows(task=self.task, target=prediction, prediction=prediction, client=client, groups=one_group)
        if self.task.has_two_classes:
            target = (rng.random(_ROWS) < 1 / (1 + np.exp(-prediction))).astype(int)
            return predict_two_classes(replace(rows, target=target, n_classes=2), prediction)
        if self.task.has_classes:
            probability = np.round(rng.dirichlet(np.ones(self.task.typical_classes), _ROWS), 1)
            target = rng.permutation(np.arange(_ROWS) % self.task.typical_classes)
            rows = replace(rows, target=target, n_classes=self.task.typical_classes)
            return replace(rows, probability=probability, prediction=probability.argmax(axis=1))
        if self.task.has_events:
            times = np.round(rng.exponential(np.exp(-prediction)), 1) + 0.1
            return replace(rows, target=np.where(rng.random(_ROWS) < 0.6, times, -times))
        return replace(rows, target=prediction + rng.standard_normal(_ROWS))

    @cached_property
    def perfect_rows(self) -> ScoredRows:
        """The same rows, predicted as they turned out."""
        rows = self.rows
        if self.task.has_two_classes:
            return predict_two_classes(rows, np.where(rows.target == 1, 20.0, -20.0))
        if self.task.has_classes:
            return replace(rows, prediction=rows.target, probability=np.eye(rows.n_classes)[rows.target], _results={})
        if self.task.has_events:
            return replace(rows, prediction=-np.abs(rows.target), _results={})
        return replace(rows, prediction=rows.target, _results={})

    def compute(self, rows: ScoredRows, weights: np.ndarray | None = None) -> np.ndarray:
        """Return the score of rows, (B, G)."""
        if weights is None:
            weights = np.ones((1, len(rows)))
        with np.errstate(invalid="ignore", over="ignore"):
            return self.score.of_rows(WeightedRows(rows, weights))


def predict_two_classes(rows: ScoredRows, log_odds: np.ndarray) -> ScoredRows:
    """Return the rows with predictions of these log odds."""
    probability = 1 / (1 + np.exp(-log_odds))
    prediction = (log_odds > 0).astype(int)
    return replace(rows, prediction=prediction, log_odds=log_odds, probability=probability, _results={})


def score_cases() -> list[ScoreCase]:
    """Return each score with each task that the score judges."""
    cases = []
    for score in all_scores().values():
        cases += [ScoreCase(score, task) for task in find_tasks().values() if score.judges(task)]
    return cases


def check_declaration(case: ScoreCase) -> None:
    """Require a name, which is a column of CSV, and a label in words."""
    require(case.score.name.isidentifier(), f"name should be an identifier and is '{case.score.name}'")
    require(bool(case.score.label), "label should be a text in words and is empty")


def check_repeated_rows(case: ScoreCase) -> None:
    """Require that whole weights stand for copies of rows."""
    weights = np.random.default_rng(1).integers(0, 4, (3, _ROWS))
    scores = case.compute(case.rows, weights.astype(float))
    for b, counts in enumerate(weights):
        copies = np.repeat(np.arange(_ROWS), counts)
        expected = case.compute(_take(case.rows, copies))
        require_close("the score of weighted rows", scores[b], expected[0], rtol=1e-7, atol=1e-9)


def check_equal_weights(case: ScoreCase) -> None:
    """Require that two copies of all rows have the score of the rows."""
    doubled = case.compute(case.rows, np.full((1, _ROWS), 2.0))
    require_close("the score of rows of weight 2", doubled, case.compute(case.rows), rtol=1e-7, atol=1e-9)


def check_groups(case: ScoreCase) -> None:
    """Require that the score of each group is that of its rows alone."""
    group = case.rows.client
    rows = case.rows.in_groups(group)
    skip_unless(case.score.applies_to(WeightedRows.each_once(rows)), "it is of all rows alone")
    scores = case.compute(rows)
    for g in range(_CLIENTS):
        alone = case.compute(_take(case.rows, np.flatnonzero(group == g)))
        require_close("the score of a group", scores[:, g], alone[:, 0], rtol=1e-7, atol=1e-9)


def check_no_rows(case: ScoreCase) -> None:
    """Require that the score of no rows is nan."""
    score = case.compute(case.rows, np.zeros((1, _ROWS)))
    require(bool(np.isnan(score).all()), f"the score of rows of weight 0 should be nan and is {score}")


def check_sums(case: ScoreCase) -> None:
    """Require that sums over rows, as sites send them, give the score of the rows, or bounds on the score."""
    has_bounds = type(case.score).bounds_of_sums is not Score.bounds_of_sums
    skip_unless(case.score.follows_from_sums(case.task) or has_bounds, "it needs the rows")
    sums = sum_rows(case.rows)
    expected = float(case.compute(case.rows)[0, 0])
    bounds = case.score.bounds_of_sums(sums)
    if bounds is not None:
        require_at_least("the score", expected, bounds[0], 1e-9)
        require_at_least("the upper bound on the score", bounds[1], expected, 1e-9)
    else:
        require_close("the score of sums", float(case.score.of_sums(sums)), expected, rtol=1e-7, atol=1e-9)


def sum_rows(rows: ScoredRows) -> ScoredSet:
    """Return the sums over rows that sites send, and what further requests find."""
    sums = {"n": np.asarray(len(rows))}
    for name, values in find_terms(rows).items():
        sums[name] = np.asarray(values.sum(axis=-1))
    fitted = {}
    if rows.task.has_two_classes:
        log_odds = rows.column("log_odds")
        for name, of_class in zip(BINS, (1, 0), strict=True):
            counts = count_scores(log_odds[rows.target == of_class])
            sums[name] = np.stack([counts, counts])
        n_positive = int(sums["positive"])
        search = CalibrationSearch(len(rows), n_positive, float(sums["score"]), float(sums["score_squares"]))
        while not search.done:
            search.advance(sum_calibration(rows.target, log_odds, search.point, 0), 0.0)
        fitted = search.scores
    elif rows.task.has_events:
        concordant, pairs = pair_rows_of_clients(rows).count_pairs()
        sums["concordant_twice"] = np.asarray(2 * concordant.sum())
        sums["pairs"] = np.asarray(pairs.sum())
    elif rows.task.is_quantity:
        squares = sum_about_means(WeightedRows.each_once(rows))
        fitted = {name: float(values[0, 0]) for name, values in squares.items()}
    return ScoredSet("test", "shared", "", (), sums=sums, fitted=fitted)


def check_direction(case: ScoreCase) -> None:
    """Require that no prediction is better than a perfect one."""
    skip_unless(case.score.higher is not None, "it has no better direction")
    sign = 1.0
    if not case.score.higher:
        sign = -1.0
    best = float(case.compute(case.perfect_rows)[0, 0])
    drawn = float(case.compute(case.rows)[0, 0])
    require(bool(np.isfinite(best)), f"the score of perfect predictions should be finite and is {best}")
    require_at_least("the score of perfect predictions, larger for the better,", sign * best, sign * drawn, 1e-9)


def _take(rows: ScoredRows, index: np.ndarray) -> ScoredRows:
    """Return some rows, or copies of rows, as one group."""
    columns = {}
    for name in ("target", "prediction", "client", "log_odds", "probability"):
        values = getattr(rows, name)
        if values is not None:
            columns[name] = values[index]
    return replace(rows, groups=RowGroups(np.zeros(len(index), int)), _results={}, **columns)


CHECKS = find_checks(__name__)


def list_checks(name: str, overrides: Sequence[str]) -> Checked:
    """Yield the checks of ``score=NAME`` for each task that it judges. Raises UserError for an unknown score."""
    if name not in all_scores():
        raise UserError(f"there is no score={name}: {suggest_name(name, all_scores())}")
    for case in score_cases():
        if case.score.name == name:
            yield f"score={name} of a task that is {case.task.name}", CHECKS, case
