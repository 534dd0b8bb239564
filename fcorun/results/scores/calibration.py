"""Scores of calibration: whether predictions are as large as what they predict, and not too extreme.

For numbers these are the slope of the line of the targets on the predictions, and the mean error. For two classes
they are those of Cox's model logit P(y = 1) = a + b log odds (Biometrika 1958): b = 1 and a = 0 are ideal, and b < 1
means that predictions are too extreme. The intercept is fitted with b held at 1, as usual (Van Calster et al., BMC
Medicine 2019). For times to events the slope is the coefficient b of the linear predictor in Cox's model of the rows,
stratified by client with Breslow's ties (van Houwelingen, Stat. Med. 2000): baseline hazards leave no intercept.
"""

import math
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int

from fcorun.data.rows.row_groups import RowGroups, divide
from fcorun.data.tasks import Task
from fcorun.results.scores.number_errors import sum_about_means
from fcorun.results.scores.score import Places, Score, TwoClassScore
from fcorun.results.scores.weighted_rows import ScoredRows, Sums, WeightedRows

Numbers = np.ndarray | float


class CalibrationSlope(Score):
    """The slope b.

    It is nan for rows of one class or without events, and if the predictions separate the classes (Silvapulle 1981) or
    order all events. Over sites, times to events have no slope: a risk set is no sum over rows.
    """

    name = "calibration_slope"
    label = "calibration slope"
    long_label = "calibration slope (1: ideal)"
    needs_probability = True
    places = Places(table=17, page=14, terminal=None, verdict=None, by_client=True)

    def judges(self, task: Task) -> bool:
        return task.is_quantity or task.has_two_classes or task.has_events

    def of_rows(self, rows: WeightedRows) -> np.ndarray:
        if rows.rows.task.has_events:
            return rows.rows.once(HazardCalibration).fit(rows.weights)
        return rows.shared(fit_calibration)[0]

    def of_sums(self, sums: Sums) -> np.ndarray:
        if "products" in sums:
            return divide(sums["products"], sums["prediction_squares"])
        return sums["calibration_slope"]

    def follows_from_sums(self, task: Task) -> bool:
        return not task.has_events


class CalibrationIntercept(Score):
    """The intercept a, or the mean error of numbers.

    It is nan for rows of one class, and if all calibrated probabilities would be 0 or 1 up to rounding.
    """

    name = "calibration_intercept"
    label = "calibration intercept"
    long_label = "calibration intercept (0: ideal)"
    needs_probability = True
    places = Places(table=18, page=15, terminal=None, verdict=None)

    def judges(self, task: Task) -> bool:
        return task.is_quantity or task.has_two_classes

    def of_rows(self, rows: WeightedRows) -> np.ndarray:
        return rows.shared(fit_calibration)[1]

    def of_sums(self, sums: Sums) -> np.ndarray:
        if "error" in sums:
            return divide(sums["error"], sums.n)
        return sums["calibration_intercept"]


class ExpectedOverObserved(TwoClassScore):
    """The sum of the probabilities over the number of positive rows."""

    name = "expected_over_observed"
    label = "expected / observed events"
    long_label = "expected / observed events (1: ideal)"
    needs_probability = True
    places = Places(table=16, page=13, terminal=None, verdict=None, by_client=True, brief=True)

    def of_sums(self, sums: Sums) -> np.ndarray:
        return divide(sums["probability"], sums["positive"])


def fit_calibration(rows: WeightedRows) -> tuple[Float[np.ndarray, "B G"], Float[np.ndarray, "B G"]]:
    """Return the slope and the intercept of each group under each weighting."""
    if rows.rows.task.has_classes:
        return rows.rows.once(_prepare_logistic).fit(rows.weights)
    sums = rows.shared(sum_about_means)
    return divide(sums["products"], sums["prediction_squares"]), divide(rows["error"], rows.n)


def _prepare_logistic(rows: ScoredRows) -> "LogisticCalibration":
    return LogisticCalibration(rows.target, rows.column("log_odds"), rows.groups)


# Newton's method for logit P(y = 1) = offset + a + b z, from sums over rows of the loss and of its derivatives. The
# rows lie here, weighted and in groups, or at sites.

MAX_REQUESTS = 30  # for the sums of a run's calibration
N_SUMS = 6  # at a point: the loss, 2 derivatives and 3 second derivatives
_MAX_STEPS = 60  # where rows lie here
_TOLERANCE = 1e-16  # of the squared Newton decrement per row: one more step is exact
_FLOOR = 1e-8  # the least curvature per row: below, all probabilities are 0 or 1 up to rounding
_SEPARATED = 2 * math.log(2)  # the total loss is larger if the scores do not separate the classes
_MAX_LOG_ODDS = 709.0  # whose exponential float64 still has
_ORDERED = math.log(2)  # the total partial loss is larger if the predictors order the events neither way


def _differentiate(eta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the loss of each row, and its first and second derivative in ``eta``, the log odds of the wrong class."""
    residual = np.exp(np.minimum(eta, _MAX_LOG_ODDS))
    right = 1 / (1 + residual)
    residual *= right
    return -np.log(right), residual, residual * right


def _compute_terms(sign: np.ndarray, log_odds: np.ndarray, z: np.ndarray) -> Float[np.ndarray, "6 n"]:
    """Return the loss of each row and its derivatives in a and b, given its ``log_odds`` of class 1."""
    loss, residual, curvature = _differentiate(sign * log_odds)
    residual = sign * residual
    return np.stack([loss, residual, residual * z, curvature, curvature * z, curvature * z**2])


class LogisticSearch:
    """A search for a and b that minimize sums of losses, or for a alone; a step that increases the loss is halved.

    The searches of several sums over rows, of any shape S, go on together. Classes that the scores separate have no b,
    and classes whose probabilities are all 0 or 1 up to rounding have neither.

    Attributes:
        trial: a and b at which the sums are needed next, (2, S).
        is_open: which searches go on, S.
        result: a and b where they are found, else nan, (2, S).
    """

    def __init__(
        self,
        n_rows: Numbers,
        n_positive: Numbers,
        has_slope: bool,
        start: Numbers = 0.0,
        least_loss: float = _SEPARATED,
    ):
        self._n_rows = np.asarray(n_rows, float)
        self._has_slope = has_slope
        self._least_loss = least_loss  # a smaller loss of a model with a slope tells that there is no minimum
        self.trial = self._point = np.zeros((2, *self._n_rows.shape)) + start
        self.is_open = np.asarray((n_positive > 0) & (n_positive < self._n_rows))
        self.result = np.full_like(self.trial, np.nan)
        self._loss = np.full(self._n_rows.shape, np.inf)
        self._step = np.zeros_like(self.trial)

    def advance(self, sums: Float[np.ndarray, "6 ..."], error: float = 0.0) -> None:
        """Take a step, given the sums over all rows at ``trial``, each up to an ``error``. NaN ends a search."""
        is_known = np.isfinite(sums).all(axis=0)
        if self._has_slope:
            is_known &= sums[0] > self._least_loss * (1 + 1e-9)
        sums = np.where(is_known, sums, 0.0)
        if not self._has_slope:
            sums[[2, 4, 5]] = 0.0  # without rounding of secure sums
        loss, gradient_a, gradient_b, curvature_aa, curvature_ab, curvature_bb = sums
        least = np.maximum(_FLOOR * self._n_rows, np.finfo(float).tiny)
        divisor = np.maximum(curvature_aa, least)
        schur = curvature_bb - curvature_ab**2 / divisor
        step_b = (gradient_b - curvature_ab / divisor * gradient_a) / np.maximum(schur, least)
        step_a = (gradient_a - curvature_ab * step_b) / divisor
        decrement = gradient_a * step_a + gradient_b * step_b
        has_fallen = self.is_open & is_known & (loss <= self._loss + 1e-12 * np.abs(self._loss) + 2 * error)
        self._point = np.where(has_fallen, self.trial, self._point)
        self._loss = np.where(has_fallen, loss, self._loss)
        self._step = np.where(has_fallen, [step_a, step_b], self._step / 2)
        self.trial = np.where(self.is_open, self._point - self._step, self.trial)
        is_rounding = np.maximum(np.abs(gradient_a), np.abs(gradient_b)) <= 2 * error
        is_last = has_fallen & ((decrement <= _TOLERANCE * self._n_rows) | is_rounding)  # one more step is exact
        least = np.maximum(least, 1e3 * error)
        is_bounded = (curvature_aa > least) & ((schur > least) | (not self._has_slope))
        self.result = np.where(is_last & is_bounded, self.trial, self.result)
        self.is_open = self.is_open & is_known & ~is_last

    def take_open(self) -> "LogisticSearch":
        """Return the searches that go on, of shape (1, N), at their points."""
        taken = copy(self)
        for name in ("trial", "is_open", "result", "_n_rows", "_point", "_loss", "_step"):
            setattr(taken, name, getattr(self, name)[..., self.is_open][..., None, :])
        return taken


class LogisticCalibration:
    """The logistic model logit P(y = 1) = a + b score of weighted rows.

    The slope is b. The intercept is a with b held at 1. The searches of all weightings begin where that of the rows
    themselves ends.
    """

    def __init__(self, y: Int[np.ndarray, " n"], score: Float[np.ndarray, " n"], groups: RowGroups):
        sign = np.where(y == 1, -1.0, 1.0)
        centered = groups.center(score)
        deviation = np.sqrt(np.add.reduceat(centered**2, groups.starts) / groups.sizes)
        self._scale = np.where(deviation > 0, deviation, 1.0)
        models = []
        for z, has_slope in ((centered / groups.spread(self._scale), True), (score, False)):
            start = np.stack([np.zeros(len(groups)), np.full(len(groups), 1.0 - has_slope)])
            model = _LogisticModel(groups, sign, z, has_slope, start)
            fit = model.fit(np.ones((1, len(y))))[:, 0]
            models.append(replace(model, start=np.where(np.isnan(fit), model.start, fit)))
        self._slope_model, self._intercept_model = models

    def fit(self, weights: Float[np.ndarray, "B n"]) -> tuple[Float[np.ndarray, "B G"], Float[np.ndarray, "B G"]]:
        """Return slopes and intercepts, each (B, G), for B weightings and G groups.

        They are nan for groups of one class, and slopes also if the scores separate the classes.
        """
        return self._slope_model.fit(weights)[1] / self._scale, self._intercept_model.fit(weights)[0]


@dataclass(frozen=True, eq=False)
class _LogisticModel:
    """The model logit P(y = 1) = a + b z of rows in groups.

    Attributes:
        groups: the groups of the rows.
        sign: 1 for rows of class 0, -1 for those of class 1, (n,): times log odds, those of the wrong class.
        z: the number that b multiplies, (n,).
        has_slope: whether b is fitted; else it stays as it is in ``start``.
        start: a and b at which searches begin, (2, G).
    """

    groups: RowGroups
    sign: np.ndarray
    z: np.ndarray
    has_slope: bool
    start: np.ndarray

    @cached_property
    def _start_terms(self) -> Float[np.ndarray, "6 n"]:
        """The terms of the rows where searches begin, which are the same under all weightings."""
        a, b = self.groups.spread(self.start)
        return _compute_terms(self.sign, a + b * self.z, self.z)

    def fit(self, weights: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "2 B G"]:
        """Return a and b of each weighting and group, nan where there are none."""
        n_positive = self.groups.total(weights, (self.sign < 0).astype(float))
        search = LogisticSearch(self.groups.total(weights), n_positive, self.has_slope, self.start[:, None])
        search.advance(np.stack([self.groups.total(weights, term) for term in self._start_terms]))
        self._minimize(search, weights, _MAX_STEPS)
        return search.result

    def _minimize(self, search: LogisticSearch, weights: Float[np.ndarray, "B n"], n_steps: int) -> None:
        """Run the searches to their ends, or for ``n_steps`` steps. Where most have ended, the others go on alone."""
        for step in range(n_steps):
            n_open = np.count_nonzero(search.is_open)
            if not n_open:
                return
            if 2 * n_open < search.is_open.size:
                others = search.take_open()
                open_rows, index = self._repeat_rows(search.is_open)
                open_rows._minimize(others, weights.take(index)[None], n_steps - step)
                search.result[:, search.is_open] = others.result[:, 0]
                return
            search.advance(self._sum_terms(weights, search.trial))

    def _sum_terms(
        self, weights: Float[np.ndarray, "B n"], at: Float[np.ndarray, "2 B G"]
    ) -> Float[np.ndarray, "6 B G"]:
        """Return the weighted sums over groups of the loss and its derivatives at a and b of each weighting."""
        a, b = self.groups.spread(at)
        signed_z = self.sign * self.z
        loss, residual, curvature = _differentiate(a * self.sign + b * signed_z)
        residual *= weights
        curvature *= weights
        total = self.groups.total
        sums = np.zeros((N_SUMS, len(weights), len(self.groups)))
        sums[0] = total(weights, loss)
        sums[1] = total(residual, self.sign)
        sums[3] = total(curvature)
        if self.has_slope:  # else the derivatives in b take no part
            sums[2] = total(residual, signed_z)
            sums[4] = total(curvature, self.z)
            sums[5] = total(curvature, self.z**2)
        return sums

    def _repeat_rows(self, is_open: Bool[np.ndarray, "B G"]) -> tuple["_LogisticModel", Int[np.ndarray, " N"]]:
        """Return the rows of each open pair of a weighting and a group as a group, and their indices in weights."""
        sample, group = np.nonzero(is_open)
        sizes = self.groups.sizes[group]
        pair = np.repeat(np.arange(len(group)), sizes)
        row = np.arange(len(pair)) + np.repeat(self.groups.starts[group] - (np.cumsum(sizes) - sizes), sizes)
        rows = replace(self, groups=RowGroups(pair), sign=self.sign[row], z=self.z[row])
        return rows, row + len(self.z) * sample[pair]


class HazardCalibration:
    """Cox's model of weighted rows whose one feature is the linear predictor, stratified by client within each group.

    A risk set are the rows of a client and a group whose time is at least that of the event. Rows are sorted by
    stratum, and from the latest time on, so that sums over risk sets are cumulative sums.
    """

    def __init__(self, rows: ScoredRows):
        time = np.abs(rows.target)
        stratum = rows.groups.row_group * (int(rows.client.max(initial=0)) + 1) + rows.client
        self._order = np.lexsort((-time, stratum))
        self._groups = RowGroups(rows.groups.row_group[self._order])
        self._is_event = (rows.target > 0)[self._order]
        centered = rows.groups.center(rows.prediction)[self._order]
        deviation = np.sqrt(np.add.reduceat(centered**2, self._groups.starts) / self._groups.sizes)
        self._scale = np.where(deviation > 0, deviation, 1.0)
        self._z = centered / self._groups.spread(self._scale)
        changes_stratum = np.diff(stratum[self._order], prepend=-1) != 0
        changes_time = np.diff(time[self._order], prepend=-1) != 0
        self._stratum = np.cumsum(changes_stratum) - 1
        time_starts = np.append(np.flatnonzero(changes_stratum | changes_time), len(time))
        self._last_of_time = time_starts[np.cumsum(changes_stratum | changes_time)] - 1
        self._start = 0.0
        self._start = np.nan_to_num(self._search(np.ones((1, len(time)))))

    def fit(self, weights: Float[np.ndarray, "B n"]) -> Float[np.ndarray, "B G"]:
        """Return the slopes, nan for groups without events, and for those whose predictors order all events."""
        return self._search(weights[:, self._order]) / self._scale

    def _search(self, weights: np.ndarray) -> np.ndarray:
        """Return the slope of the standardized predictors of sorted rows, (B, G)."""
        groups = self._groups
        n_rows = groups.total(weights)
        n_events = groups.total(weights, self._is_event.astype(float))
        start = np.stack([np.zeros_like(n_rows), np.zeros_like(n_rows) + self._start])
        search = LogisticSearch(n_rows, np.minimum(n_events, n_rows / 2), True, start, _ORDERED)
        none = np.zeros_like(n_rows)
        for _ in range(_MAX_STEPS):
            if not search.is_open.any():
                break
            loss, slope, curvature = self._sum_losses(weights, search.trial[1])
            search.advance(np.stack([loss, none, slope, n_rows, none, curvature]))  # a takes no part
        return search.result[1]

    def _sum_losses(self, weights: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        """Return the partial loss and its two derivatives at the slopes b (B, G), (B, G) each."""
        eta = self._groups.spread(b) * self._z
        z = self._z - self._z.min(initial=0)  # not negative, for logarithms
        with np.errstate(divide="ignore", invalid="ignore"):  # of rows and risk sets without weight
            log_risks = [np.log(weights * z**power) + eta for power in range(3)]
            log_sum, first, second = (self._sum_risk_sets(log_risk, eta) for log_risk in log_risks)
            mean = np.exp(first - log_sum)
            terms = (log_sum - eta, mean - z, np.exp(second - log_sum) - mean**2)
        is_event = self._is_event & (weights > 0)
        return [self._groups.total(weights, np.where(is_event, term, 0)) for term in terms]

    def _sum_risk_sets(self, log_values: np.ndarray, eta: np.ndarray) -> np.ndarray:
        """Return the logarithm of the sum of values (B, n) over the risk set of each row.

        The values of each stratum are scaled so far above those of the strata before that these vanish.
        """
        height = (np.ptp(eta) + 1000) * self._stratum
        log_sums = np.logaddexp.accumulate(log_values + height, axis=1)
        return log_sums[:, self._last_of_time] - height


def sum_logistic(
    y: Int[np.ndarray, " n"],
    offset: Float[np.ndarray, " n"],
    z: Float[np.ndarray, " n"],
    at: tuple[float, float],
    min_cell: int,
    patient: Int[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, " 6"]:
    """Return the sums over rows of the loss of logit P(y = 1) = offset + a + b z and of its derivatives, ``at`` a, b.

    Returns nan if fewer rows than ``min_cell`` make up one of the sums: the sum would tell of these rows. Rows count by
    their effective number, (sum |t|)^2 / sum t^2 of their terms t (Kish, Survey Sampling 1965), and those of one
    ``patient``, numbers from 0, as one.
    """
    a, b = at
    sign = np.where(y == 1, -1.0, 1.0)
    terms = _compute_terms(sign, offset + a + b * z, z)
    sizes = np.abs(terms)
    if patient is not None:
        sizes = np.stack([np.bincount(patient, of_term) for of_term in sizes])
    sizes = sizes / np.maximum(sizes.max(axis=1, keepdims=True, initial=0), np.finfo(float).tiny)
    if min_cell and not (terms[3].any() and (sizes.sum(axis=1) ** 2 >= min_cell * (sizes**2).sum(axis=1)).all()):
        return np.full(N_SUMS, np.nan)
    return terms.sum(axis=1)


class CalibrationSearch:
    """A search for the slope and the intercept of ``fit_calibration`` on the rows of a set, which lie at sites.

    Attributes:
        center, scale: the mean and the standard deviation of the scores, about: z = (score - center) / scale.
    """

    def __init__(self, n_rows: int, n_positive: int, score_sum: float, score_squares: float):
        mean = score_sum / n_rows
        variance = score_squares / n_rows - mean**2
        varies = variance > 1e-12 * max(mean**2, 1e-300)
        self.center, self.scale = mean, math.sqrt(variance) if varies else 1.0
        self._slope_search = LogisticSearch(n_rows, n_positive if varies else 0, has_slope=True)
        self._intercept_search = LogisticSearch(n_rows, n_positive, has_slope=False)

    @property
    def done(self) -> bool:
        """Return whether the slope and the intercept are found, or given up."""
        return not (self._slope_search.is_open or self._intercept_search.is_open)

    @property
    def point(self) -> Float[np.ndarray, " 5"]:
        """The numbers that a request sends: center, scale, a and b of the slope's model, a of the intercept's."""
        return np.array([self.center, self.scale, *self._slope_search.trial, self._intercept_search.trial[0]])

    def advance(self, sums: Float[np.ndarray, "2 6"], error: float) -> None:
        """Take a step, given the sums of ``sum_calibration`` over all rows at ``point``."""
        self._slope_search.advance(sums[0], error)
        self._intercept_search.advance(sums[1], error)

    @property
    def scores(self) -> dict[str, float]:
        """The slope and the intercept, nan where none exists or none was found."""
        slope = float(self._slope_search.result[1] / self.scale)
        return {"calibration_slope": slope, "calibration_intercept": float(self._intercept_search.result[0])}


def sum_calibration(
    y: Int[np.ndarray, " n"],
    score: Float[np.ndarray, " n"],
    point: Float[np.ndarray, " 5"],
    min_cell: int,
    patient: Int[np.ndarray, " n"] | None = None,
) -> Float[np.ndarray, "2 6"]:
    """Return the sums of ``sum_logistic`` for the slope's model, and for the intercept's, at the point of a request."""
    center, scale, a, b, intercept = point.tolist()
    zeros = np.zeros(len(y))
    slope_sums = sum_logistic(y, zeros, (score - center) / scale, (a, b), min_cell=min_cell, patient=patient)
    intercept_sums = sum_logistic(y, score, zeros, (intercept, 0.0), min_cell=min_cell, patient=patient)
    return np.stack([slope_sums, intercept_sums])
