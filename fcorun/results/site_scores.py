"""scores.csv of a model whose rows stay at sites: the scores, and the threshold of a rule, that follow from sums.

Scores of ranks do not follow from sums: the area under the ROC curve is between the columns ``auc_low`` and
``auc_high``. A threshold is an edge of a bin of scores. Which side of an edge a row of a merged cell is on may be
unknown: the sensitivity and the specificity by which the rule chooses are the least that the counts allow, so that the
rows have at least these.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Int

from fcorun.base.errors import UserError, word
from fcorun.base.records.record import PERSONAL, SHARED
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.rows.row_groups import divide
from fcorun.data.rows.site_rows import AnswersMissing, SiteRows
from fcorun.data.tasks import Task
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD, SENSITIVITY, YOUDEN, ThresholdRule
from fcorun.methods.objectives.objective import Objective, score_names, score_range
from fcorun.results.model_outputs import Arrays, class_probabilities
from fcorun.results.models.predictions import ChosenThresholds, fixed_thresholds
from fcorun.results.scores.calibration import MAX_REQUESTS, N_SUMS, CalibrationSearch
from fcorun.results.scores.ranking import BINS, EDGES, N_BINS, spread_cells
from fcorun.results.scores.score import scores_of_task
from fcorun.results.scores.weighted_rows import Sums, list_terms

_ROUNDING = 1e-3  # of a sum over n rows, relative to n
_OF_PERSONAL = f"{PERSONAL}_"  # begins the names of sums of the clients' personal models


def set_prefix(split: str, model: str) -> str:
    """Return the text that begins the names of the sums of a model over the rows of a split.

    >>> set_prefix("train", SHARED), set_prefix("train", PERSONAL)
    ('train', 'personal_train')
    """
    return split if model == SHARED else _OF_PERSONAL + split


def parse_sum_name(key: str) -> tuple[str, str, str]:
    """Return the split, the model and the name of a sum whose name begins with ``set_prefix``.

    >>> parse_sum_name("personal_train_loss")
    ('train', 'personal', 'loss')
    """
    model = PERSONAL if key.startswith(_OF_PERSONAL) else SHARED
    split, _, name = key.removeprefix(_OF_PERSONAL).partition("_")
    return split, model, name


@dataclass(frozen=True)
class ExpectedSum:
    """The form of a sum over rows.

    Attributes:
        shape: the shape of the sum's array.
        is_count: whether the sum counts rows.
        least, most: the bounds on what a row adds to each entry.
    """

    shape: tuple[int, ...] = ()
    is_count: bool = False
    least: float = -math.inf
    most: float = math.inf

    def fits(self, values: np.ndarray, n_rows: int, error: float) -> bool:
        """Return whether the values can be the sum over so many rows, each up to an ``error``."""
        if values.shape != self.shape or values.dtype.kind != ("i" if self.is_count else "f"):
            return False
        slack = 0.0 if self.is_count else error + _ROUNDING * n_rows
        low = self.least * n_rows - slack
        high = self.most * n_rows + slack
        return bool((np.isfinite(values) & (values >= low) & (values <= high)).all())


def expected_sums(objective: Objective, task: Task, n_classes: int, *, secure: bool) -> dict[str, ExpectedSum]:
    """Return the forms of the sums that an answer has for a split, by name."""
    # In secure sums the site spreads its merged cells itself, to the lowest and the highest bins; else the server does.
    bins = (2, N_BINS) if secure else (N_BINS,)
    sums = {"n": ExpectedSum(is_count=True, least=1.0, most=1.0)}
    for name in score_names(objective, n_classes if n_classes > 2 else 1):
        least, most = score_range(objective, name)
        sums[name] = ExpectedSum(least=least, most=most)
    if task.is_quantity and not hasattr(objective, "response"):
        return sums
    for name, term in list_terms(task).items():
        if term.needs_probability and not hasattr(objective, "probabilities"):
            continue
        shape = (n_classes,) if term.by_class else ()
        sums[name] = ExpectedSum(shape, is_count=term.is_count, least=term.least, most=term.most)
    if task.has_two_classes:
        sums |= dict.fromkeys(BINS, ExpectedSum(bins, is_count=True, least=0.0, most=1.0))
    elif task.has_events:
        sums |= dict.fromkeys(("pairs", "concordant_twice"), ExpectedSum(is_count=True, least=0.0))
    return sums


def check_sums(
    site: str, key: str, sums: dict[str, np.ndarray], expected: dict[str, ExpectedSum], *, n_rows: int, error: float
) -> None:
    """Raise UserError, which names the site, for sums that ``n_rows`` rows of a set cannot have.

    ``key`` is the set, as sites name it in their messages.
    """
    split = key.removeprefix(_OF_PERSONAL)
    if set(sums) != set(expected):
        raise UserError(f"site '{site}' sent other sums of scores of its {split} rows than the plan has: use the same "
                        "version of fcorun at the server and at all sites")  # fmt: skip
    if sums["n"].shape == () and sums["n"].dtype.kind == "i" and int(sums["n"]) != n_rows:
        raise UserError(f"site '{site}' scored {int(sums['n'])} {split} rows, and has described {n_rows}: use "
                        "the same version of fcorun at the server and at all sites")  # fmt: skip
    for name, form in expected.items():
        if not form.fits(sums[name], n_rows, error):
            raise UserError(f"site '{site}' sent as '{key}_{name}' what is no sum of scores of {n_rows} rows: see "
                            "the log of that site")  # fmt: skip
    n = {name: values.astype(np.int64) for name, values in sums.items() if expected[name].is_count}
    doubt = ""
    if "pairs" in n and (n["concordant_twice"] > 2 * n["pairs"] or 2 * n["pairs"] > n_rows * (n_rows - 1)):
        doubt = f"counted more pairs of its {split} rows than it has"
    elif "class_rows" in n and n["class_rows"].sum() != n_rows:
        doubt = f"counted {n['class_rows'].sum()} {split} rows in its classes, and has described {n_rows}"
    elif ("class_rows" in n and (n["class_hits"] > n["class_rows"]).any()) or (
        "positive" in n and (n["true_positive"] > n["positive"] or n["true_negative"] > n_rows - n["positive"])
    ):
        doubt = f"sent more correct predictions of its {split} rows than rows of a class"
    if doubt:
        raise UserError(f"site '{site}' {doubt}: see the log of that site")


def calibration_sums_fit(sums: np.ndarray, n_rows: int, error: float) -> bool:
    """Return whether sums of a calibration can be those of ``n_rows`` rows.

    The sums are those of ``sum_calibration``, (2, 6), where nan stands for withheld sums, or, for a regression, the
    sums of x^2, x y and y^2 of targets x and predictions y, (3,), without nan.
    """
    slack = error + _ROUNDING * n_rows
    if sums.ndim == 1:
        limit = math.sqrt(max(sums[0], 0.0) * max(sums[2], 0.0))
        return bool(np.isfinite(sums).all() and min(sums[0], sums[2]) >= -slack and abs(sums[1]) <= limit + slack)
    for of_model in sums:
        if np.isnan(of_model).all():
            continue
        loss, gradient_a, _, curvature_aa, _, curvature_bb = of_model.tolist()
        fits = np.isfinite(of_model).all() and min(loss, curvature_aa, curvature_bb) >= -slack
        if not (fits and abs(gradient_a) <= n_rows + slack and curvature_aa <= n_rows / 4 + slack):
            return False
    return True


_SPLITS = ("train", "validation", "test")
SumArrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class ScoredSet(Sums):
    """The sums of a model over a set of rows.

    Attributes:
        split: train, validation or test.
        model: SHARED or PERSONAL.
        site: the name of the site whose rows these are; empty for the rows of all sites.
        sites: the senders of the sums: names of sites, or the one name of secure sums.
        sums: the sums by name.
        fitted: what further requests have added: sums of squares around means, or the calibration of two classes.
    """

    split: str
    model: str
    site: str
    sites: tuple[str, ...]
    sums: SumArrays
    fitted: Mapping[str, np.ndarray | float] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        return int(self.sums["n"])

    @property
    def key(self) -> str:
        """The name of the set in a message."""
        return set_prefix(self.split, self.model)

    @property
    def n(self) -> np.ndarray:
        return np.asarray(float(self.n_rows))

    @property
    def has_probabilities(self) -> bool:
        has_classes = "positive" in self.sums or "class_rows" in self.sums
        return "brier" in self.sums or not has_classes

    def __getitem__(self, name: str) -> np.ndarray:
        value = self.fitted[name] if name in self.fitted else self.sums[name]
        return np.asarray(value, float)


def collect_counts(data: FederatedData, rows: SiteRows, solution: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the counts of the scores of the positive and of the negative validation rows of all sites.

    Each has two rows, (2, bins): sites merge bins of few rows, so that a score is counted in the lowest bin that it may
    come from, and in the highest one. Only sites that have evaluated the last model are asked. Raises
    UserError, which names the site, for counts that the rows which the site has described cannot have.
    """
    answers = rows.request_present("score_counts", 0, of=_with_last_model(rows), arrays=dict(solution))
    assert isinstance(data.validation, SiteRows)
    shape = (N_BINS,) if rows.sum_name is None else (2, N_BINS)
    total = np.zeros((2, 2, N_BINS), np.int64)
    for site in sorted(answers):
        n_rows = data.validation.rows_of_answer.get(site, 0)
        counts = answers[site].arrays
        placed = np.zeros((2, 2, N_BINS), np.int64)
        fits = set(counts) == (set(BINS) if n_rows else set())
        for k, name in enumerate(BINS if fits and n_rows else ()):
            values = counts[name]
            fits = fits and values.shape == shape and values.dtype.kind == "i" and bool((values >= 0).all())
            if fits:
                placed[k] = values if values.ndim == 2 else np.stack(spread_cells(values))
        if not fits or (placed.sum(axis=(0, 2)) != n_rows).any():
            raise UserError(f"site '{site}' sent invalid counts of the scores of its {n_rows} validation rows: see the "
                            "log of that site")  # fmt: skip
        total += placed
    return total[0], total[1]


def collect_sums(
    data: FederatedData,
    objective: Objective,
    rows: SiteRows,
    solution: Arrays,
    models: Sequence[str],
    edge: float | None = None,
) -> list[ScoredSet]:
    """Return the sums of each split at the last models, SHARED, PERSONAL or both.

    Personal models have sums of the rows of clients with training rows. Rows are flagged from the score ``edge`` on, or
    from the plan's fixed threshold on where ``edge`` is None.
    Raises UserError, which names the site, for sums that the rows which the site has described cannot have.
    """
    about = {} if edge is None else {"about": {"edge": edge}}
    answers = rows.request_present("scores", 0, of=_with_last_model(rows), arrays=dict(solution), **about)
    if rows.away is not None:
        rows.absences.note("scores", 0, rows.sites, tuple(answers))
    expected = expected_sums(objective, data.target_task, len(data.classes), secure=rows.sum_name is not None)
    sums_of: dict[tuple[str, str], SumArrays] = {}  # by the site and the key of the set
    for site in sorted(answers):
        for key, values in answers[site].arrays.items():
            split, model, name = parse_sum_name(key)
            if split not in _SPLITS or model not in models:
                raise UserError(f"site '{site}' sent no sum of scores as '{key}': see the log of that site")
            sums_of.setdefault((site, set_prefix(split, model)), {})[name] = values
    sets = []
    for split, model in product(data.splits, models):
        key = set_prefix(split, model)
        parts = {}
        split_rows = data.splits[split]
        assert isinstance(split_rows, SiteRows)
        sizes = split_rows.all_sizes
        if model != SHARED:  # clients without training rows have no personal model
            sizes = np.where(np.arange(len(sizes)) < data.n_clients, sizes, 0)
        for site, n_rows in sorted(split_rows.sum_by_answer(sizes).items()):
            if n_rows and site in answers:
                parts[site] = sums_of.get((site, key), {})
                error = rows.sum_errors.get("scores", 0.0)
                check_sums(site, key, parts[site], expected, n_rows=n_rows, error=error)
        if not parts:
            continue
        if data.target_task.has_two_classes:
            for site, sums in parts.items():
                n_positive = int(sums["positive"])
                for name, n_rows in zip(BINS, (n_positive, int(sums["n"]) - n_positive), strict=True):
                    if sums[name].ndim == 1:  # secure counts are placed by the sites
                        sums[name] = np.stack(spread_cells(sums[name]))
                    for n_counted in sums[name].sum(axis=1).tolist():
                        if n_counted != n_rows:
                            raise UserError(f"site '{site}' counted the scores of {n_counted} rows of a class of "
                                            f"{n_rows}: see the log of that site")  # fmt: skip
        total = {name: np.sum([sums[name] for sums in parts.values()], axis=0) for name in expected}
        sets.append(ScoredSet(split, model, "", tuple(parts), total))
        if rows.by_site:
            sets += [ScoredSet(split, model, site, (site,), sums) for site, sums in parts.items()]
    return sets


def _with_last_model(rows: SiteRows) -> tuple[str, ...] | None:
    """Return the sites that have evaluated the last model; None for all."""
    return None if rows.away is None else rows.absences.evaluated


def request_calibration_sums(
    rows: SiteRows, sets: Sequence[ScoredSet], points: Sequence[np.ndarray], shape: tuple[int, ...]
) -> list[np.ndarray]:
    """Return the sums of a calibration of each set, of this ``shape``.

    ``points`` are the numbers that a request sends for each set: ``CalibrationSearch.point`` of two classes, or the
    unit and the means of a regression.

    A site is asked at the points of all sites' rows and, where results by site are asked for, of its own. Raises
    UserError, which names the site, for answers of other names or shapes, and AnswersMissing if a site is away.
    """
    totals = [np.zeros(shape) for _ in sets]
    for site, answer, of_site in _ask_each(rows, sets, points):
        expected: dict[str, list[int]] = {}
        for k in of_site:
            expected.setdefault(sets[k].key, []).append(k)
        if set(answer.arrays) != set(expected):
            raise _invalid_sums_error(site)
        for key, indices in expected.items():
            values = answer.arrays[key]
            if values.shape != (len(indices), *shape) or values.dtype != np.float64:
                raise _invalid_sums_error(site)
            error = rows.sum_errors.get("calibration", 0.0)
            for k, sums in zip(indices, values, strict=True):
                if not calibration_sums_fit(sums, sets[k].n_rows, error):
                    raise _invalid_sums_error(site)
                totals[k] = totals[k] + sums
    return totals


def _ask_each(
    rows: SiteRows, sets: Sequence[ScoredSet], points: Sequence[np.ndarray]
) -> list[tuple[str, Any, list[int]]]:
    """Return the name and the answer of each site, and the numbers of the sets that the answer has sums of."""
    names = sorted({site for scored in sets for site in scored.sites})
    sets_of = {name: [k for k, scored in enumerate(sets) if name in scored.sites] for name in names}
    if not rows.by_site:
        arrays = {scored.key: point[None] for scored, point in zip(sets, points, strict=True)}
        answers = rows.request_all_or_none("calibration", 0, of=None if rows.away is None else names, arrays=arrays)
        return [(name, answers[name], sets_of[name]) for name in names]
    asked = []
    for name in names:
        by_set: dict[str, list[np.ndarray]] = {}
        for k in sets_of[name]:
            by_set.setdefault(sets[k].key, []).append(points[k])
        arrays = {key: np.stack(of_set) for key, of_set in by_set.items()}
        answers = rows.request_all_or_none("calibration", 0, of=[name], arrays=arrays)
        asked.append((name, answers[name], sets_of[name]))
    return asked


def _invalid_sums_error(site: str) -> UserError:
    return UserError(f"site '{site}' sent invalid sums of a calibration: see the log of that site")


def probability_at(objective: Objective, edge: float) -> float:
    """Return the probability of the positive class of a row with this score."""
    probabilities = class_probabilities(objective, np.array([edge]))
    assert probabilities is not None
    return float(probabilities[0, 1])


# Counts of rows in bins: first with each row in the lowest bin that it may be in, then in the highest.
Placements = Int[np.ndarray, "2 b"]


def choose_edge(rule: ThresholdRule, positive: Placements, negative: Placements, rows: str) -> tuple[float, str]:
    """Return the edge that a rule chooses by counts of the scores of positive and of negative rows.

    A row is flagged from the edge on. Of equal sums of sensitivity and specificity, ``youden`` takes the largest edge.
    Where no edge satisfies the rule, returns 0 and a warning, which names the ``rows``; else the warning is empty.
    """
    begin = word(f"`threshold={rule.text}`")
    n_positive = int(positive[0].sum())
    n_negative = int(negative[0].sum())
    if not n_positive or not n_negative:
        return 0.0, f"{begin} needs both classes among the {rows}: 0.5 is taken instead"
    true_positives = _count_above(positive[0])
    false_positives = _count_above(negative[1])
    sensitivity = true_positives / n_positive
    specificity = (n_negative - false_positives) / n_negative
    if rule.kind == YOUDEN:
        sums = true_positives * n_negative - false_positives * n_positive  # of integers, for the sake of ties
        return float(EDGES[len(EDGES) - 1 - np.argmax(sums[::-1])]), ""
    if rule.kind == SENSITIVITY:
        reaching = np.flatnonzero(sensitivity >= rule.value)[::-1]
        best = sensitivity.max()
    else:
        flags_some = _count_above(positive[0]) + _count_above(negative[0]) > 0
        reaching = np.flatnonzero((specificity >= rule.value) & flags_some)
        best = specificity[flags_some].max(initial=0)
    if len(reaching):
        return float(EDGES[reaching[0]]), ""
    return 0.0, (f"{begin} is reached with certainty at no edge of a bin of scores that flags one of the {rows}, at "
                 f"most {best:.3g}: 0.5 is taken instead")  # fmt: skip


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
    edge, warning = choose_edge(rule, *collect_counts(data, rows, solution), "validation rows")
    values: dict[str, float] = dict.fromkeys((SHARED, PERSONAL), probability_at(objective, edge))
    return ChosenThresholds(rule.text, "validation", values, tuple(filter(None, [warning]))), edge


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
    terms = list_terms(data.target_task)
    needed = {name for name, term in terms.items() if not term.needs_probability}
    table = []
    for scored in sets:
        row: dict[str, object] = {"set": scored.split, "model": scored.model, "client": scored.site}
        if data.target_task.has_two_classes:
            row["positive"] = str(data.classes[1])
        row["n"] = scored.n_rows
        for name in ("positive", "events"):
            if name in scored:
                row["events"] = int(scored.sums[name])
        scores = {}
        is_judged = bool(needed) and needed <= scored.sums.keys()  # a loss may have the name of a term
        if is_judged:
            for score in scores_of_task(data.target_task, scored.has_probabilities):
                bounds = score.bounds_of_sums(scored)
                if bounds is not None:
                    scores[f"{score.name}_low"], scores[f"{score.name}_high"] = bounds
                elif score.follows_from_sums(data.target_task):
                    scores[score.name] = float(score.of_sums(scored))
        losses = {}
        others = {*_COUNTS, *scored.fitted, *scores}
        if is_judged:
            others |= terms.keys()
        for name in scored.sums:
            if name not in others:
                losses[name] = float(divide(scored[name], scored.n))
        for name, value in (losses | scores).items():
            row[name] = "" if math.isnan(value) else value
        table.append(row)
    return table


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
        score_sum = float(scored.sums["score"])
        score_squares = float(scored.sums["score_squares"])
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
    return [replace(scored, fitted=search.scores) for scored, search in zip(sets, searches, strict=True)]
