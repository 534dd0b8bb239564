"""scores.csv of a model whose rows stay at sites: the scores, and the threshold of a rule, that follow from sums.

Scores of ranks do not follow from sums: the area under the ROC curve is between the columns ``auc_low`` and
``auc_high``. A threshold is an edge of a bin of scores. Which side of an edge a row of a merged cell is on may be
unknown: the sensitivity and the specificity by which the rule chooses are the least that the counts allow, so that the
rows have at least these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from fcorun.base.errors import word
from fcorun.base.records.record import PERSONAL, SHARED
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.away_sites import AnswersMissing
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment.classifiers import DEFAULT_THRESHOLD, SENSITIVITY, YOUDEN, ThresholdRule
from fcorun.methods.objectives.objective import Objective
from fcorun.results.model_outputs import Arrays, class_probabilities
from fcorun.results.models.chosen_thresholds import ChosenThresholds, fixed_thresholds
from fcorun.results.scores.auc_interval import BINS, EDGES
from fcorun.results.scores.calibration import MAX_REQUESTS, N_SUMS, CalibrationSearch
from fcorun.results.scores.score import scores_of_task
from fcorun.results.scores.weighted_rows import divide, list_terms
from fcorun.results.site_scores.site_sums import ScoredSet, collect_counts, collect_sums, request_calibration_sums


def probability_at(objective: Objective, edge: float) -> float:
    """Return the probability of the positive class of a row with this score."""
    probabilities = class_probabilities(objective, np.array([edge]))
    assert probabilities is not None
    return float(probabilities[0, 1])


# Counts of rows in bins: first with each row in the lowest bin that it may be in, then in the highest.
Placements = Int[np.ndarray, "2 b"]


@dataclass(frozen=True)
class BinnedChoice:
    """The choice of a rule.

    Attributes:
        edge: the score from which on a row is flagged.
        warning: a sentence where no edge satisfies the rule, so that 0 is taken, and "" otherwise.
    """

    edge: float
    warning: str = ""


def choose_edge(rule: ThresholdRule, positive: Placements, negative: Placements, rows: str) -> BinnedChoice:
    """Return the edge that a rule chooses by counts of the scores of positive and of negative rows.

    Of equal sums of sensitivity and specificity, ``youden`` takes the largest edge. ``rows`` names the rows in the
    warning.
    """
    begin = word(f"`threshold={rule.text}`")
    n_positive, n_negative = int(positive[0].sum()), int(negative[0].sum())
    if not n_positive or not n_negative:
        return BinnedChoice(0.0, f"{begin} needs both classes among the {rows}: 0.5 is taken instead")
    true_positives, false_positives = _count_above(positive[0]), _count_above(negative[1])
    sensitivity, specificity = true_positives / n_positive, (n_negative - false_positives) / n_negative
    if rule.kind == YOUDEN:
        sums = true_positives * n_negative - false_positives * n_positive  # of integers, for the sake of ties
        return BinnedChoice(float(EDGES[len(EDGES) - 1 - np.argmax(sums[::-1])]))
    if rule.kind == SENSITIVITY:
        reaching, best = np.flatnonzero(sensitivity >= rule.value), sensitivity.max()
        if len(reaching):
            return BinnedChoice(float(EDGES[reaching[-1]]))
    else:
        flags_some = _count_above(positive[0]) + _count_above(negative[0]) > 0
        reaching = np.flatnonzero((specificity >= rule.value) & flags_some)
        best = specificity[flags_some].max(initial=0)
        if len(reaching):
            return BinnedChoice(float(EDGES[reaching[0]]))
    return BinnedChoice(0.0, f"{begin} is reached with certainty at no edge of a bin of scores that flags one of the "
                             f"{rows}, at most {best:.3g}: 0.5 is taken instead")  # fmt: skip


def _count_above(counts: Int[np.ndarray, " b"]) -> Int[np.ndarray, " e"]:
    """Return the number of rows whose score is at least each edge."""
    return (counts.sum() - np.cumsum(counts)[:-1]).astype(np.int64)


_COUNTS = ("n", "pairs", "concordant_twice", *BINS)  # sums that are neither of terms of rows nor of losses


def choose_site_threshold(
    data: FederatedData, objective: Objective, solution: Arrays, threshold: float | str
) -> tuple[ChosenThresholds | None, float | None]:
    """Return the chosen thresholds for the option ``threshold``, and the score at which a rule has put them.

    A rule is applied to counts of scores of the validation rows of all sites. Returns (None, None) for 0.5 and for a
    model that is not finite, and (thresholds, None) for another number.
    """
    rule = ThresholdRule.parse(threshold)
    if not rule.needs_rows:
        return None if rule.text == DEFAULT_THRESHOLD else fixed_thresholds(threshold), None
    rows = data.train
    assert isinstance(rows, SiteRows)
    if not all(np.isfinite(value).all() for value in solution.values()):
        return None, None
    choice = choose_edge(rule, *collect_counts(data, rows, solution), "validation rows")
    probability = probability_at(objective, choice.edge)
    values = {SHARED: probability, PERSONAL: probability}
    warnings = (choice.warning,) if choice.warning else ()
    return ChosenThresholds(rule.text, "validation", values, warnings), choice.edge


def compute_site_scores(
    data: FederatedData,
    objective: Objective,
    solution: Arrays,
    edge: float | None = None,
    models: Sequence[str] = (SHARED,),
) -> list[dict[str, object]]:
    """Return a row of scores.csv for each split and model, of all sites together; each row of data counts once.

    A row for each site follows if the plan asks for results by site; the column ``client`` then names the site. Returns
    no rows if nothing is held out, or if the shared model is not finite.

    Args:
        solution: the parameters of the shared model. A site refuses to score another model than it evaluated last.
        edge: the score from which on a row is assigned to the positive class; None: the plan's threshold is a number.
        models: SHARED, PERSONAL (the models of the clients, which are at their sites), or both.
    """
    rows = data.train
    assert isinstance(rows, SiteRows)
    if len(data.splits) < 2 or not all(np.isfinite(value).all() for value in solution.values()):
        return []
    sets = collect_sums(data, objective, rows, solution, models, edge=edge)
    if data.target_task.is_quantity:
        sets = _add_squares(rows, sets)
    elif data.target_task.has_two_classes:
        sets = _add_calibrations(rows, sets)
    return [_tabulate_set(scored, data) for scored in sets]


def _tabulate_set(scored: ScoredSet, data: FederatedData) -> dict[str, object]:
    """Return the row of scores.csv of a set: counts, losses, and the scores that follow from sums."""
    row: dict[str, object] = {"set": scored.split, "model": scored.model, "client": scored.site}
    if data.target_task.has_two_classes:
        row["positive"] = str(data.classes[1])
    row["n"] = scored.n_rows
    for name in ("positive", "events"):
        if name in scored:
            row["events"] = int(scored.sums[name])
    scores = {}
    terms = list_terms(data.target_task)
    for score in (
        scores_of_task(data.target_task, scored.has_probabilities) if terms.keys() & scored.sums.keys() else ()
    ):
        bounds = score.bounds_of_sums(scored)
        if bounds is not None:
            scores[f"{score.name}_low"], scores[f"{score.name}_high"] = bounds
        elif score.follows_from_sums:
            scores[score.name] = float(score.of_sums(scored))
    losses = {}
    for name in scored.sums:
        if name not in {*_COUNTS, *terms, *scored.fitted, *scores}:
            losses[name] = float(divide(scored[name], scored.n))
    for name, value in (losses | scores).items():
        row[name] = "" if math.isnan(value) else value
    return row


def _add_squares(rows: SiteRows, sets: list[ScoredSet]) -> list[ScoredSet]:
    """Return the sets with sums of squares and products around the means, which the sites send once."""
    if "target" not in sets[0]:
        return sets
    points = []
    for scored in sets:
        target = float(divide(scored["target"], scored.n))
        error = float(divide(scored["error"], scored.n))
        unit = math.sqrt(max(float(divide(scored["squared_error"], scored.n)), 0.0))
        points.append(np.array([unit or 1.0, target, target - error]))
    try:
        answers = request_calibration_sums(rows, sets, points, (3,))
    except AnswersMissing:
        answers = [np.full(3, math.nan) for _ in sets]
    completed = []
    for scored, point, sums in zip(sets, points, answers, strict=True):
        unit = point[0]
        rounding = scored.n_rows * (1e-14 * point[1:] / unit) ** 2 + rows.sum_errors.get("calibration", 0.0)
        squares = np.where(sums[[0, 2]] > rounding, sums[[0, 2]], math.nan)  # constant targets, or predictions
        target_squares, prediction_squares = squares * unit**2
        fitted = {"target_squares": target_squares, "prediction_squares": prediction_squares}
        completed.append(replace(scored, fitted=fitted | {"products": sums[1] * unit**2}))
    return completed


def _add_calibrations(rows: SiteRows, sets: list[ScoredSet]) -> list[ScoredSet]:
    """Return the sets with their calibration, from a bounded number of requests; none without probabilities."""
    if "score" not in sets[0]:
        return sets
    searches = []
    for scored in sets:
        score_sum, score_squares = float(scored.sums["score"]), float(scored.sums["score_squares"])
        searches.append(CalibrationSearch(scored.n_rows, int(scored.sums["positive"]), score_sum, score_squares))
    error = rows.sum_errors.get("calibration", 0.0)
    for _ in range(MAX_REQUESTS):
        left = [k for k, search in enumerate(searches) if not search.done]
        if not left:
            break
        points = [searches[k].point for k in left]
        try:
            answers = request_calibration_sums(rows, [sets[k] for k in left], points, (2, N_SUMS))
        except AnswersMissing:
            break
        for k, sums in zip(left, answers, strict=True):
            searches[k].advance(sums, error)
    for search in searches:
        search.give_up()
    return [replace(scored, fitted=search.scores) for scored, search in zip(sets, searches, strict=True)]
