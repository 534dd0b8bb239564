"""scores.csv of a model whose rows stay at sites: the scores that follow from sums.

Scores of ranks do not follow from sums: the area under the ROC curve is between the columns ``auc_low`` and
``auc_high``.
"""

import math
from collections.abc import Sequence

import numpy as np

from fcorun.base.records.record import PERSONAL, SHARED
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.away_sites import AnswersMissing
from fcorun.data.rows.site_rows import SiteRows
from fcorun.experiment.classifiers import DEFAULT_THRESHOLD, ThresholdRule
from fcorun.methods.objectives.objective import Objective
from fcorun.results.models.auc_interval import bound_auc
from fcorun.results.models.binned_threshold import choose_edge, probability_at
from fcorun.results.models.chosen_thresholds import ChosenThresholds, fixed_thresholds
from fcorun.results.models.score_functions import Arrays, safe_divide
from fcorun.results.models.site_calibration import MAX_REQUESTS, N_SUMS, CalibrationSearch
from fcorun.results.models.site_sums import BINS, ScoredSet, collect_counts, collect_sums, request_calibration_sums

_NOT_SCORES = {
    *("n", "target", "error", "absolute_error", "squared_error", "positive", "true_positive", "true_negative"),
    *(
        "events",
        "pairs",
        "concordant_twice",
        "probability",
        "score",
        "score_squares",
        "class_rows",
        "class_hits",
        *BINS,
    ),
}  # sums from which scores are computed; all others are sums of a loss or a score
Scores = dict[str, float]


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
    table = []
    for scored, scores in zip(sets, _SCORES_OF[data.task](rows, sets), strict=True):
        row: dict[str, object] = {"set": scored.split, "model": scored.model, "client": scored.site}
        if data.task == "binary":
            counts = {"positive": str(data.classes[1]), "n": scored.n_rows, "events": int(scored.sums["positive"])}
        else:
            counts = {"n": scored.n_rows} | {name: int(scored.sums[name]) for name in scored.sums if name == "events"}
        row |= counts
        means = {name: scored.mean(name) for name in scored.sums if name not in {*_NOT_SCORES, *scores}}
        for name, value in (means | scores).items():
            row[name] = "" if math.isnan(value) else value
        table.append(row)
    return table


def _score_regression(rows: SiteRows, sets: list[ScoredSet]) -> list[Scores]:
    """Return the scores of ``score_regression``; the sites send the squares around the means once."""
    if "target" not in sets[0].sums:
        return [{} for _ in sets]
    points = []
    for scored in sets:
        target, error = scored.mean("target"), scored.mean("error")
        points.append(np.array([_root_mean_squared_error(scored) or 1.0, target, target - error]))
    all_scores = []
    try:
        calibrations = request_calibration_sums(rows, sets, points, (3,))
    except AnswersMissing:
        calibrations = [np.full(3, math.nan) for _ in sets]
    for scored, point, sums in zip(sets, points, calibrations, strict=True):
        unit, *means = point
        rounding = scored.n_rows * (1e-14 * np.array(means) / unit) ** 2 + rows.sum_errors.get("calibration", 0.0)
        squares = np.where(sums[[0, 2]] > rounding, sums[[0, 2]], math.nan)  # constant targets, or predictions
        all_scores.append(
            {
                "r2": float(1 - scored.sums["squared_error"] / unit**2 / squares[0]),
                "rmse": _root_mean_squared_error(scored),
                "mae": scored.mean("absolute_error"),
                "calibration_slope": float(sums[1] / squares[1]),
                "calibration_intercept": scored.mean("error"),
            }
        )
    return all_scores


def _root_mean_squared_error(scored: ScoredSet) -> float:
    """Return the root; rounded sums of sites may be negative where all errors are almost 0."""
    return math.sqrt(max(scored.mean("squared_error"), 0.0))


def _score_binary(rows: SiteRows, sets: list[ScoredSet]) -> list[Scores]:
    """Return the scores of ``score_binary``, with bounds on the AUC in place of the AUC, without average precision."""
    calibrations = _fit_calibrations(rows, sets)
    all_scores = []
    for scored, calibration in zip(sets, calibrations, strict=True):
        sums, n = scored.sums, scored.n_rows
        positive, hits = float(sums["positive"]), float(sums["true_positive"] + sums["true_negative"])
        flagged = n - positive - float(sums["true_negative"]) + float(sums["true_positive"])
        sensitivity = _divide(sums["true_positive"], positive)
        specificity = _divide(sums["true_negative"], n - positive)
        low, high = bound_auc(*(tuple(sums[name]) for name in BINS))
        scores = {
            "prevalence": positive / n,
            "accuracy": hits / n,
            "balanced_accuracy": (sensitivity + specificity) / 2,
            "sensitivity": sensitivity,
            "specificity": specificity,
            "ppv": _divide(sums["true_positive"], flagged),
            "npv": _divide(sums["true_negative"], n - flagged),
            "auc_low": low,
            "auc_high": high,
        }
        if "brier" in sums:
            expected = _divide(sums["probability"], positive)
            scores |= {"brier": scored.mean("brier"), "expected_over_observed": expected}
        all_scores.append(scores | calibration)
    return all_scores


def _fit_calibrations(rows: SiteRows, sets: list[ScoredSet]) -> list[Scores]:
    """Return the slope and the intercept of each set, from a bounded number of requests; none without probabilities."""
    if "score" not in sets[0].sums:
        return [{} for _ in sets]
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
    return [search.scores for search in searches]


def _score_multiclass(rows: SiteRows, sets: list[ScoredSet]) -> list[Scores]:
    """Return the scores of ``score_multiclass`` but for the area under the ROC curve."""
    all_scores = []
    for scored in sets:
        hits, of_class = (scored.sums[name].astype(float) for name in ("class_hits", "class_rows"))
        recall = safe_divide(hits, of_class)
        recall = recall[~np.isnan(recall)]
        scores = {"accuracy": hits.sum() / scored.n_rows}
        scores["balanced_accuracy"] = float(recall.mean()) if len(recall) > 1 else math.nan
        all_scores.append(scores | ({"brier": scored.mean("brier")} if "brier" in scored.sums else {}))
    return all_scores


def _score_survival(rows: SiteRows, sets: list[ScoredSet]) -> list[Scores]:
    """Return Harrell's C index, of pairs of rows of one client."""
    return [{"c_index": _divide(scored.sums["concordant_twice"] / 2, float(scored.sums["pairs"]))} for scored in sets]


def _divide(numerator: np.ndarray, denominator: float) -> float:
    return float(numerator) / denominator if denominator > 0 else math.nan


_SCORES_OF = {
    "regression": _score_regression,
    "binary": _score_binary,
    "multiclass": _score_multiclass,
    "survival": _score_survival,
}
