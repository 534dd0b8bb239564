"""Intervals for the coefficients of a record's problem, at its certified solution."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import jax
import numpy as np

from fcorun.base.errors import UserError, abbreviate
from fcorun.base.records.record import Record
from fcorun.base.system.random_streams import draw_uniform_per_group, random_stream
from fcorun.data.datasets.dataset import Dataset
from fcorun.data.rows.features import varies_within_clients
from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.log_link import Poisson
from fcorun.methods.objectives.logistic import Logistic
from fcorun.methods.objectives.objective import LinearModel
from fcorun.methods.problem.penalty import Penalty
from fcorun.methods.problem.separation import find_separation
from fcorun.results.inference.estimates import Estimates, debiased_estimates, pool_estimates, wald_estimates
from fcorun.results.inference.solution import PenalizedSolution, SingularHessian, solve
from fcorun.results.inference.sums import (
    ClusterCounts,
    ModelRows,
    PooledSums,
    RowSums,
    SquaredScores,
    ValueCounts,
    model_based_scores,
    standard_deviations,
)
from fcorun.results.models.inference_problem import (
    FeatureCurvature,
    InferenceOptions,
    InferenceProblem,
    KeptParameters,
    choose_parameters,
    feature_curvature,
    load_inference_problem,
    resolve_options,
)
from fcorun.results.models.multiple_imputation import prepare_imputations

# Rows, events and rows without an event, of an indicator with an interval, or far from the most frequent value of
# another feature, and clusters with such rows.
MIN_COUNT = 5
_NO_CURVATURE = 1e-14  # of a feature that does not vary in any risk set, relative to its mean square: rounding


@dataclass(frozen=True, eq=False)
class IndicatorCounts:
    """The rows and events of each feature that has two values, such as a level of a column of text.

    Of a feature with more values, those far from its usual value are counted: others tell nothing of its coefficient.

    Attributes:
        is_indicator: whether a feature has two values (d,).
        counts: the counts at the lower value, without the level, and at the higher one, with the level; of a feature
            with more values, at the usual value and far from it, at sites at all others.
        usual_place: the place of the rows that are counted of a feature with more values, in words.
        has_events: whether the target is events: of two classes, numbers of events, or times to events.
        has_two_classes: whether a target of two classes needs rows without an event, too.
        hides_few: whether a site's counts below its min_cell are 0 in these sums.
        clusters: the counts of clusters at the two values, ``low`` and ``high``; none if the rows are independent.
        cluster_name: what a cluster is, "group" or "client".
        n_clusters: the number of all clusters; None: the rows are independent, or the scores have not told yet.
    """

    is_indicator: np.ndarray
    counts: ValueCounts
    has_events: bool
    has_two_classes: bool
    hides_few: bool
    clusters: dict[str, ClusterCounts] = field(default_factory=dict)
    cluster_name: str = "group"
    n_clusters: int | None = None
    usual_place: str = "far from the most frequent value"

    @property
    def rows(self) -> np.ndarray:
        """The number of rows at the higher value, (d,), a lower bound where small counts are hidden.

        NaN of other features, and where a hidden sum is 0.
        """
        return self._known(self.counts.at_high)

    @property
    def events(self) -> np.ndarray:
        """The number of events of these rows, (d,); NaN like ``rows``, and for a target without events."""
        return np.where(self.has_events, self._known(self.counts.target_at_high), np.nan)

    def _known(self, counts: np.ndarray) -> np.ndarray:
        """Return counts of indicators, NaN where they are 0 in place of a few at each site."""
        return np.where(self.is_indicator & ((counts > 0) | (not self.hides_few)), counts, np.nan)

    def explain_few(self, feature: int, reference: int | None, names: tuple[str, ...]) -> str:
        """Return why a feature has too few rows, events or clusters for an interval, "" if it has enough.

        The residuals of so few rows, or of rows with almost no events, are all small, and so is a sandwich of them,
        whatever the coefficient. So is one of few clusters: the scores of a cluster that alone has a level sum to 0.
        ``reference`` is the level that the feature is compared with, None: all other rows. A feature with one value in
        all rows, such as the ones of a model without an intercept, follows from all of them.
        """
        counts = self.counts
        if counts.rows in (counts.at_low[feature], counts.at_high[feature]):
            return ""
        at_high = (counts.at_high, counts.target_at_high, self.clusters.get("high"))
        at_low = (counts.at_low, counts.target_at_low, self.clusters.get("low"))
        compared = [(feature, at_high, "")]
        has_events = self.has_events
        if not self.is_indicator[feature]:
            compared = [(feature, at_high, f" {self.usual_place}")]
            # other remarks are on the events of most rows
            has_events = has_events and bool(counts.at_high[feature] <= counts.at_low[feature])
        elif reference is None:
            compared.append((feature, at_low, " at its other value"))
        else:
            compared.append((reference, at_high, f" of {names[reference]}"))
        has_two_classes = has_events and self.has_two_classes
        for number, (n_rows, events, clusters), place in compared:
            few = describe_few(n_rows[number], int(events[number]) if has_events else None, has_two_classes)
            if not few and clusters is not None:
                few = describe_few_clusters(
                    ClusterCounts(*(values[number] for values in clusters)),
                    self.cluster_name,
                    has_events=has_events,
                    has_two_classes=has_two_classes,
                    least=least_clusters(self.n_clusters),
                )
            if few and self.hides_few:
                return f"{few}{place}, where sites report counts below min_cell as 0"
            if few:
                return few + place
        return ""


def count_indicators(
    sums: RowSums, objective: LinearModel, n_features: int, cluster_name: str = "group"
) -> IndicatorCounts:
    """Return the counts of the features with two values. Takes two passes over rows, and two over those in clusters."""
    is_indicator, counts = sums.two_values()
    has_two_classes = isinstance(objective, Logistic)
    return IndicatorCounts(
        is_indicator[:n_features],
        ValueCounts(*counts[:2], *(values[:n_features] for values in counts[2:])),  # without those of an intercept
        has_events=has_two_classes or isinstance(objective, (Poisson, Cox)),
        has_two_classes=has_two_classes,
        hides_few=sums.hides_few,
        clusters=sums.count_clusters(),
        cluster_name=cluster_name,
        usual_place=sums.usual_place,
    )


def least_clusters(n_clusters: int | None) -> int:
    """Return the least number of clusters at a value, with events, and without, of so many clusters in all.

    Of fewer than 5 clusters all must have a value and its events: that clusters are few is another remark. None stands
    for a number that is unknown.
    """
    return MIN_COUNT if n_clusters is None else min(MIN_COUNT, n_clusters)


def describe_few(n_rows: int, n_events: int | None, has_two_classes: bool) -> str:
    """Return the rows, or the events or the rows without one, if these are fewer than 5, else "".

    ``n_events`` is None for a target without events. ``has_two_classes`` is whether a row has one event at most, and
    rows without an event are needed too.
    """
    if n_rows < MIN_COUNT:
        return _count(n_rows, "row")
    if n_events is not None and n_events < MIN_COUNT:
        return f"{_count(n_events, 'event')} in {_count(n_rows, 'row')}"
    if n_events is not None and has_two_classes and n_rows - n_events < MIN_COUNT:
        return f"{_count(n_rows - n_events, 'row')} without an event in {_count(n_rows, 'row')}"
    return ""


def describe_few_clusters(
    counts: ClusterCounts, name: str, *, has_events: bool, has_two_classes: bool, least: int
) -> str:
    """Return the clusters with rows at a value, or with events or rows without one, if below ``least``, else ""."""
    needed = [(counts.rows, "rows of")]
    if has_events:
        needed.append((counts.events, "events in"))
    if has_two_classes:
        needed.append((counts.rest, "rows without an event in"))
    for n_clusters, what in needed:
        if n_clusters < least:
            return f"{what} {_count(int(n_clusters), name)}"
    return ""


def _count(number: int, name: str) -> str:
    """Return a number of things in words."""
    amount = f"{number:,}" if number else "no"
    return f"{amount} {name}" if number == 1 else f"{amount} {name}s"


class RecordDistance(NamedTuple):
    """The distance between a record's own parameters and the certified solution.

    Attributes:
        excess: the objective of the record's parameters minus that of the solution.
        coefficient: the largest difference of a coefficient, per standard deviation of its feature.
        feature: the number of that feature.
    """

    excess: float
    coefficient: float
    feature: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Inference:
    """Estimates with their covariance, and the solution that they belong to.

    Attributes:
        options: the options, without "auto".
        problem: the problem.
        solution: the certified solution; of "split", the selection on the first half.
        parameters: the parameters that have estimates.
        sums: the sums over the rows that the estimates are computed from, in these parameters.
        estimates: their estimates.
        deviation: the standard deviation of each feature (d,).
        indicators: the rows and events of the features with two values.
        gap: the duality gap at the solution; None for a problem without one.
        distance: the distance from the record's own parameters to the solution; None for "split".
        n_clusters: the number of clusters; None for independent rows.
        gap_counts: the imputed gaps of each column, for estimates that are pooled over imputations.
        imputed_groups: how gaps of rows in groups are imputed, a sentence, or "".
        filled_gaps: the share of the training rows whose gap has one value, by column.
    """

    options: InferenceOptions
    problem: InferenceProblem
    solution: PenalizedSolution
    parameters: KeptParameters
    sums: RowSums
    estimates: Estimates
    deviation: np.ndarray
    indicators: IndicatorCounts
    gap: float | None
    distance: RecordDistance | None
    n_clusters: int | None
    gap_counts: dict[str, int] = field(default_factory=dict)
    imputed_groups: str = ""
    filled_gaps: dict[str, float] = field(default_factory=dict)

    @property
    def n_rows(self) -> int:
        """The number of rows with a weight that the estimates are computed from."""
        return self.indicators.counts.rows

    @property
    def n_parameters(self) -> int:
        """The number of estimated parameters, with the intercepts that sites eliminate."""
        return len(self.estimates.theta) + self.problem.n_eliminated

    @property
    def n_events(self) -> int:
        """The number of events of these rows."""
        return int(self.indicators.counts.target)

    def explain_withheld(self, feature: int) -> str:
        """Return why a feature has no interval although it has an estimate, "" if it has one.

        The terms of a spline, which are tested together, have intervals all or none.
        """
        names = self.problem.feature_names
        encoding = self.problem.data.features.encoding
        curve_of_feature = {} if encoding is None else encoding.curve_of_feature
        terms = [feature]
        if names[feature] in curve_of_feature:
            curve = curve_of_feature[names[feature]]
            terms = [k for k in self.parameters.numbers if k < len(names) and curve_of_feature.get(names[k]) == curve]
        for term in terms:
            if reason := self.indicators.explain_few(term, self.parameters.references.get(term), names):
                return reason
        return ""


def infer(record: Record, options: InferenceOptions, data: Dataset | None = None) -> Inference:
    """Compute intervals for the coefficients of a record's problem, solved anew to a small gap.

    ``data`` are the rows that a Python program has in memory; None: those of the record. Raises UserError for a problem
    without a certified solution or valid intervals.
    """
    with jax.enable_x64(True):
        problem = load_inference_problem(record, data)
        gaps = prepare_imputations(problem, options.imputations) if options.imputations else None
        options = resolve_options(options, problem)
        first = _draw_first_half(problem, options.seed) if options.method == "split" else None
        cluster = None
        if options.cluster != "none":
            train = problem.data.train
            names = train.client if options.cluster == "client" else train.group
            assert names is not None
            cluster = np.unique(names, return_inverse=True)[1]
            if cluster.max() < 1:
                raise UserError(f"`cluster={options.cluster}`: all rows are of one {options.cluster}, so that nothing "
                                "measures how they differ: give `cluster=none`")  # fmt: skip
        sums = PooledSums(problem.objective, problem.rows, cluster)
        selection = None
        if first is not None:
            selection = _solve_with_penalty(problem, sums.take(first), problem.theta)
            sums = sums.take(~first)
        inference = infer_from_sums(problem, options, sums, selection)
        if gaps is not None:
            fits = []
            parameters = inference.parameters
            for rows in gaps.draw(options.imputations, options.seed):
                filled = replace(sums, rows=rows).restrict(parameters.numbers)
                start = inference.estimates.theta
                fits.append(_fit_without_penalty(problem, options, parameters, filled, inference.n_rows, start=start))
            pooled = pool_estimates([estimates for _, estimates, _ in fits])
            counts = gaps.gap_counts
            return replace(inference, estimates=pooled, gap_counts=counts, imputed_groups=gaps.describe_groups())
        cells = problem.data.features.cells
        if cells is None:
            return inference
        gap_shares = {column.name: float(cells.find_gaps(column).mean()) for column in cells.columns}
        return replace(inference, filled_gaps=gap_shares)


def _find_determined_features(
    problem: InferenceProblem, sums: RowSums, deviation: np.ndarray, curvature: FeatureCurvature
) -> np.ndarray:
    """Return which features the rows determine, each by itself beside the intercepts, (d,).

    Raises UserError if there is none. ``deviation`` are the features' standard deviations (d,).
    """
    candidates = deviation > 0
    if problem.has_baseline_hazards:  # a feature must vary in the risk set of an event
        moments = sums.moments(np.zeros(len(problem.theta)))
        rounding = _NO_CURVATURE * (moments.second / moments.weight)[: problem.n_features]
        candidates = (np.diagonal(curvature.matrix) > rounding) & (deviation > 0) & problem.data.is_informative
        if not candidates.any():
            raise UserError("no feature varies among the rows of a client that are at risk at an event, so that no "
                            "coefficient can be estimated: check `data.event` and `data.client`")  # fmt: skip
    elif problem.has_client_intercepts:
        varies = np.diagonal(curvature.matrix) > curvature.error  # sites center the features of each client
        if isinstance(sums, PooledSums) and sums.rows.client is not None:
            has_weight = sums.rows.weight > 0
            x = sums.rows.x[has_weight, : problem.n_features]
            varies = varies_within_clients(x, sums.rows.client[has_weight])
        candidates &= varies
        if not candidates.any():
            raise UserError("no feature varies within a client with a finite intercept, so that no coefficient can "
                            "be estimated: run it with `objective.client_intercepts=false`")  # fmt: skip
    elif not problem.has_intercept:  # whose place a constant feature takes
        candidates |= np.diagonal(curvature.matrix) > curvature.error
    return candidates


def infer_from_sums(
    problem: InferenceProblem, options: InferenceOptions, sums: RowSums, selection: PenalizedSolution | None = None
) -> Inference:
    """Compute intervals without a penalty, or by the debiased lasso, from sums over the training rows alone.

    ``selection`` is a solution with a penalty on other rows, whose features alone are estimated. Call under enable_x64.
    Raises UserError for rows that do not determine the coefficients.
    """
    deviation = standard_deviations(sums, len(problem.theta))[: problem.n_features]
    if not deviation.any():
        raise UserError("all features are constant, so that no coefficient can be estimated: check the data")
    curvature = feature_curvature(problem, sums)
    candidates = _find_determined_features(problem, sums, deviation, curvature)
    own = problem.theta
    if selection is not None:
        own = selection.theta
        candidates &= own[: problem.n_features] != 0
        if not candidates.any():
            raise UserError("`method=split`: the first half selects no feature that varies in the second: give a "
                            "record with a smaller `reg.strength`")  # fmt: skip
    indicators = count_indicators(sums, problem.objective, problem.n_features, options.cluster)
    parameters = choose_parameters(problem, candidates, indicators.counts.at_high, curvature)
    restricted = sums.restrict(parameters.numbers)
    n_rows = indicators.counts.rows
    gap = None
    if options.method == "debiased":
        start = own.copy()
        start[: problem.n_features][~candidates] = 0.0
        fit = _fit_with_penalty(problem, options, parameters, sums, n_rows, start=start)
        solved = sums
        penalty = problem.penalty
        numbers = np.arange(len(own))
        if problem.gap is not None:
            gap = problem.gap(fit[0].theta, fit[0].objective)
    else:
        own = parameters.map @ own
        fit = _fit_without_penalty(problem, options, parameters, restricted, n_rows, start=own)
        solved = restricted
        penalty = Penalty.none(len(own))
        numbers = parameters.numbers
    solution, estimates, n_scores = fit
    n_clusters = n_scores if options.cluster != "none" else None
    distance = None
    if selection is None:
        excess = solved.derivatives(own).loss + penalty.value(own) - solution.objective
        features = numbers[numbers < len(deviation)]
        # intercepts are the last parameters
        sizes = np.abs(own - solution.theta)[: len(features)] * deviation[features]
        largest = int(sizes.argmax())
        distance = RecordDistance(max(excess, 0.0), float(sizes[largest]), int(features[largest]))
    return Inference(
        options=options,
        problem=problem,
        solution=selection or solution,
        parameters=parameters,
        sums=restricted,
        estimates=estimates,
        deviation=deviation,
        indicators=replace(indicators, n_clusters=n_clusters),
        gap=gap,
        distance=distance,
        n_clusters=n_clusters,
    )


def _draw_first_half(problem: InferenceProblem, seed: int) -> np.ndarray:
    """Return the mask of a half of the rows of each client, or of a half of the groups. Raises UserError."""
    train = problem.data.train
    rng = random_stream(seed, "infer", "halves")
    if train.group is not None:
        first = draw_uniform_per_group(train.group, rng) < 0.5
    else:
        uniforms = rng.random(len(train))
        first = np.zeros(len(train), bool)
        for begin, end in pairwise(train.offsets.tolist()):
            order = np.argsort(uniforms[begin:end], kind="stable")
            first[begin + order[: (end - begin + 1) // 2]] = True
    if first.all() or not first.any():
        raise UserError("`method=split`: the rows have no two halves; give `method=debiased`")
    return first


def _fit_with_penalty(
    problem: InferenceProblem,
    options: InferenceOptions,
    parameters: KeptParameters,
    sums: RowSums,
    n_rows: int,
    *,
    start: np.ndarray,
) -> tuple[PenalizedSolution, Estimates, int]:
    """Return the optimum of a record's problem, its debiased estimates, and the number of scores.

    ``sums`` are those over so many rows, in all parameters of the problem.
    """
    solution = _solve_with_penalty(problem, sums, start)
    scores, n_corrected = _square_scores(problem, options, sums, solution, n_rows)
    kept = np.ix_(parameters.numbers, parameters.numbers)
    estimates = debiased_estimates(
        parameters.map @ solution.theta,
        parameters.derivatives(solution.sums),
        SquaredScores(scores.meat[kept], scores.count),
        rows=n_corrected,
        effective_rows=1 / sums.moments(np.zeros(len(problem.theta))).squared_weight,
        clusters=options.cluster != "none",
        n_intercepts=len(problem.intercept_names),
        nonzero=int((solution.theta != 0).sum()) + problem.n_eliminated,
    )
    return solution, estimates, scores.count


def _fit_without_penalty(
    problem: InferenceProblem,
    options: InferenceOptions,
    parameters: KeptParameters,
    sums: RowSums,
    n_rows: int,
    *,
    start: np.ndarray,
) -> tuple[PenalizedSolution, Estimates, int]:
    """Return the optimum without a penalty, its Wald estimates, and the number of scores.

    ``sums`` are those over so many rows, in the ``parameters``. Raises UserError for too few rows, and for a singular
    Hessian.
    """
    n_parameters = len(start) + problem.n_eliminated
    if n_rows <= n_parameters:
        raise UserError(f"{n_rows} rows do not determine {n_parameters} parameters without a penalty: give a record "
                        "with `reg=l1`, or fewer features")  # fmt: skip
    if isinstance(sums, PooledSums):
        _check_finite_coefficients(problem, parameters.numbers, sums.rows, "give `reg=l1`")
    try:
        solution = solve(sums, Penalty.none(len(start)), start)
        scores, n_corrected = _square_scores(problem, options, sums, solution, n_rows)
        estimates = wald_estimates(
            solution.theta,
            solution.sums,
            scores,
            n_corrected,
            options.cluster != "none",
            n_eliminated=problem.n_eliminated,
        )
    except SingularHessian as error:
        raise _explain_singular(problem, parameters.numbers[error.parameters], "give `reg=l1`") from error
    return solution, estimates, scores.count


def _check_finite_coefficients(problem: InferenceProblem, parameters: np.ndarray, rows: ModelRows, advice: str) -> None:
    """Refuse features of which the rows determine no finite coefficient without a penalty. Raises UserError.

    The first columns of the rows are those of the features among the ``parameters``.
    """
    features = parameters[parameters < problem.n_features]
    rows = rows.take(rows.weight > 0)
    client = np.zeros(len(rows.y), int) if rows.client is None else rows.client
    objective = replace(problem.objective, client_intercepts=problem.experiment.objective.client_intercepts)
    separation = find_separation(objective, rows.x[:, : len(features)], rows.y, client)
    if separation is not None:
        names = [problem.feature_names[number] for number in features[separation.features]]
        raise UserError(f"the data determine no finite coefficient of {abbreviate(names)}{separation.limits}: "
                        f"{problem.objective.unbounded_reason}; leave out the columns (`data.ignore`), join levels, or "
                        f"{advice}")  # fmt: skip


def _solve_with_penalty(problem: InferenceProblem, sums: RowSums, start: np.ndarray) -> PenalizedSolution:
    """Return the optimum of a record's problem on some rows. Raises UserError like ``solve``, with names."""
    advice = "give the features a penalty (`reg.factors`)"
    unpenalized = np.flatnonzero((problem.penalty.l1 == 0) & (problem.penalty.ridge == 0))
    if isinstance(sums, PooledSums) and (unpenalized < problem.n_features).any():
        rows = sums.rows._replace(x=sums.rows.x[:, unpenalized])
        _check_finite_coefficients(problem, unpenalized, rows, advice)
    try:
        return solve(sums, problem.penalty, start)
    except SingularHessian as error:
        raise _explain_singular(problem, error.parameters, advice) from error


def _explain_singular(problem: InferenceProblem, parameters: Iterable[int], advice: str) -> UserError:
    """Return an error that names the parameters of a singular Hessian, given their numbers."""
    names = [*problem.feature_names, *problem.intercept_names]
    involved = [names[number] for number in parameters]
    separate = "order all events" if problem.has_baseline_hazards else "separate the classes"
    return UserError(f"the data do not determine the coefficients of {abbreviate(involved)}: these features are "
                     f"combinations of each other, or they {separate}; leave some out (`data.ignore`), or "
                     f"{advice}")  # fmt: skip


def _square_scores(
    problem: InferenceProblem, options: InferenceOptions, sums: RowSums, solution: PenalizedSolution, n_rows: int
) -> tuple[SquaredScores, float]:
    """Return the variance of the gradient at a solution, and the number of rows that corrects standard errors.

    The variance is that of the scores of rows or clusters, or of the model. The number is inf for none, as is usual for
    errors of the model and for Cox's.
    """
    if options.errors == "model":
        return model_based_scores(solution.sums, n_rows), np.inf
    return sums.scores(solution.theta), np.inf if problem.has_baseline_hazards else n_rows
