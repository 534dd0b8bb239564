"""The table of intervals, a row for each feature, and what the command prints of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import numpy as np

from fcorun.base.errors import abbreviate, word
from fcorun.base.records.formats import csv_text
from fcorun.base.sources.catalogue import parse_source
from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.logistic import Logistic
from fcorun.results.inference.estimates import (
    PooledEstimates,
    adjust_by_holm,
    intervals,
    joint_p_value,
    linearization_errors,
)
from fcorun.results.inference.methods import (
    AFTER_SELECTION,
    METHODS,
    MODEL_ERRORS,
    SOURCES,
    WITH_ADAPTIVE_WEIGHTS,
    find_sources,
)
from fcorun.results.models.client_intercepts import (
    describe_equal_targets,
    name_infinite_intercepts,
    warn_of_small_clients,
)
from fcorun.results.models.coefficients import find_ratio_name
from fcorun.results.models.inference import MIN_COUNT, Inference, least_clusters
from fcorun.results.models.intercept_test import warn_of_client_differences
from fcorun.results.models.multiple_imputation import explain_no_imputation

_NUMBERS = (
    *("estimate", "standard_error", "low", "high", "p_value", "p_holm"),
    *("estimate_standardized", "low_standardized", "high_standardized", "ratio", "ratio_low", "ratio_high"),
    *("penalized", "missing_information", "n", "events"),
)


@dataclass(frozen=True, eq=False)
class InferenceTable:
    """Intervals by feature; NaN where there is none. All arrays are (d + 1,), with the intercept last, or (d,).

    Attributes:
        features: the names, the intercept's last if the model has one.
        estimate, standard_error, low, high: in the features' units.
        p_value, p_holm: of the hypothesis that a coefficient is 0, each alone, and corrected for all features. Terms of
            one curve have the p value of the hypothesis that all of them are 0, and the first of them has p_holm.
        estimate_standardized, low_standardized, high_standardized: per standard deviation of a feature.
        penalized: the coefficients of the certified solution with its penalty, in the features' units.
        missing_information: the fraction of missing information, of estimates from several imputations.
        n, events: the rows of an indicator, and their events; lower bounds where sites hide small counts.
        has_two_values: whether a feature has two values, so that a standard deviation of it is no step.
        method: the method of each row, or why there is no interval.
        ratio_name: the name of exp(coefficient), or "" where it has none.
        outcome: the class whose odds a logistic model is for, else "".
        level: the confidence level.
        title: what the intervals are, in one line.
        labels: the names of the features as a file of labels has them; empty: ``features``.
        curve_of_feature: the column of each feature that is a term of a curve, by the feature's name.
        numbers: the columns of numbers in inference.csv.
    """

    numbers: ClassVar[tuple[str, ...]] = _NUMBERS

    features: tuple[str, ...]
    estimate: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    p_holm: np.ndarray
    estimate_standardized: np.ndarray
    low_standardized: np.ndarray
    high_standardized: np.ndarray
    penalized: np.ndarray
    missing_information: np.ndarray
    n: np.ndarray
    events: np.ndarray
    has_two_values: np.ndarray
    method: tuple[str, ...]
    ratio_name: str
    outcome: str
    level: float
    title: str
    labels: tuple[str, ...] = ()
    curve_of_feature: Mapping[str, str] = field(default_factory=dict)

    @property
    def display_names(self) -> tuple[str, ...]:
        """The names of the rows in pictures."""
        return self.labels or self.features

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of inference.csv."""
        return ("feature", *self.numbers, "level", "method", "label")

    def to_rows(self) -> list[tuple]:
        """Return a row for each feature, with the ``columns``; None for what there is none of."""
        ratios = [np.full(len(self.estimate), np.nan)] * 3
        if self.ratio_name:
            with np.errstate(over="ignore"):
                ratios = [np.exp(values) for values in (self.estimate, self.low, self.high)]
        columns = dict(vars(self), feature=self.features, label=self.display_names)
        columns |= dict(zip(("ratio", "ratio_low", "ratio_high"), ratios, strict=True))
        columns["level"] = [self.level] * len(self.features)
        for name in self.numbers:
            kind = int if name in ("n", "events") else float
            columns[name] = [None if np.isnan(value) else kind(value) for value in columns[name]]
        return list(zip(*(columns[name] for name in self.columns), strict=True))

    def to_csv(self) -> str:
        """Return the content of inference.csv."""
        return csv_text(dict(zip(self.columns, row, strict=True)) for row in self.to_rows())


def build_table(inference: Inference) -> InferenceTable:
    """Return the table of an inference."""
    problem = inference.problem
    options = inference.options
    parameters = inference.parameters
    n_features = problem.n_features
    row_names = (*problem.feature_names, *problem.intercept_names, *problem.infinite_intercept_names)
    n_rows = len(row_names)
    described = problem.data.features
    is_feature = parameters.numbers < n_features
    trained = inference.estimates
    to_units, deviation = _unit_map(inference)
    in_units = trained.transform(to_units)

    def spread(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        column = np.full(n_rows, np.nan)
        column[parameters.numbers] = np.where(mask, values, np.nan)
        return column

    withheld = np.full(n_rows, "", object)
    for feature in parameters.numbers[is_feature]:
        withheld[feature] = inference.explain_withheld(feature)
    has_interval = withheld[parameters.numbers] == ""
    low, high, p_values = intervals(in_units, options.level)
    trained_low, trained_high, trained_p_values = intervals(trained, options.level)
    p_holm = np.full(len(is_feature), np.nan)
    is_tested = is_feature & has_interval
    curve_of_feature = {} if described.encoding is None else described.encoding.curve_of_feature
    joint_tests = np.full(n_rows, "", object)
    for curve in dict.fromkeys(curve_of_feature.values()):
        names = [name for name, column in curve_of_feature.items() if column == curve]
        terms = np.flatnonzero(np.isin(parameters.numbers, [problem.feature_names.index(name) for name in names]))
        if len(terms) and has_interval[terms[0]]:  # a penalty may have selected none
            p_values[terms] = joint_p_value(in_units, terms, inference.n_clusters is not None)
            trained_p_values[terms] = p_values[terms]  # whatever the units
            is_tested[terms[1:]] = False
            is_tested[terms[0]] &= np.isfinite(p_values[terms[0]])
            joint_tests[parameters.numbers[terms]] = _describe_joint_test(inference, curve, names, terms, p_values)
    p_holm[is_tested] = adjust_by_holm(p_values[is_tested])
    trained_intercept_is_centred = problem.data.features.scaling is not None
    has_standardized = (is_feature | trained_intercept_is_centred) & (deviation > 0)
    leads_back = not described.standardized or trained_intercept_is_centred  # by one change of units, to the source's
    has_units = np.full(len(is_feature), problem.experiment.data.units and leads_back)
    penalized = np.full(n_rows, np.nan)
    if options.method == "debiased":
        if trained_intercept_is_centred:
            # the intercept in the features' units combines all coefficients, which the theory does not cover
            has_units[~is_feature] = False
        penalized = spread(to_units @ (parameters.map @ inference.solution.theta), has_units)
    missing_information = np.full(n_rows, np.nan)
    if isinstance(in_units, PooledEstimates):
        missing_information = spread(in_units.missing_information, has_interval)
    counts = np.full((2, n_rows), np.nan)
    counts[:, :n_features] = inference.indicators.rows, inference.indicators.events
    return InferenceTable(
        features=row_names,
        estimate=spread(in_units.theta, has_units),
        standard_error=spread(in_units.standard_errors, has_units & has_interval),
        low=spread(low, has_units & has_interval),
        high=spread(high, has_units & has_interval),
        # the p value of an intercept without units belongs to the intercept as trained
        p_value=spread(np.where(has_units, p_values, trained_p_values), has_interval),
        p_holm=spread(p_holm, has_interval),
        estimate_standardized=spread(trained.theta * deviation, has_standardized),
        low_standardized=spread(trained_low * deviation, has_standardized & has_interval),
        high_standardized=spread(trained_high * deviation, has_standardized & has_interval),
        penalized=penalized,
        missing_information=missing_information,
        n=counts[0],
        events=counts[1],
        has_two_values=np.pad(inference.indicators.is_indicator, (0, n_rows - n_features)),
        method=tuple((_method_column(inference, withheld) + joint_tests).tolist()),
        ratio_name=find_ratio_name(type(problem.objective)),
        outcome=str(problem.data.classes[1]) if problem.data.classes else "",
        level=options.level,
        title=describe_method(inference),
        labels=(*described.display_names, *row_names[n_features:]) if described.labels else (),
        curve_of_feature=curve_of_feature,
    )


def _describe_joint_test(
    inference: Inference, curve: str, names: list[str], terms: np.ndarray, p_values: np.ndarray
) -> str:
    """Return what stands after the method of a curve's terms: of what their p values are, or why they are nan.

    ``names`` are those of all terms, and ``terms`` the positions of the tested ones among the parameters.
    """
    tested = f"all {len(names)} terms of {curve}"
    if len(terms) < len(names):
        numbers = inference.parameters.numbers[terms]
        tested = f"terms of {curve}: {', '.join(inference.problem.feature_names[k] for k in numbers)}"
    if np.isfinite(p_values[terms]).all():
        return f"; p value of {tested}"
    clusters = "rows" if inference.n_clusters is None else f"{inference.n_clusters} clusters"
    return f"; no p value: {clusters} do not determine the covariance of {tested}"


def _unit_map(inference: Inference) -> tuple[np.ndarray, np.ndarray]:
    """Return the map from parameters as trained to the features' units (q, q), and their standard deviations (q,)."""
    problem = inference.problem
    parameter_numbers = inference.parameters.numbers
    features = parameter_numbers[parameter_numbers < problem.n_features]
    scaling = problem.data.features.scaling
    scale = problem.data.features.scale
    to_units = np.eye(len(parameter_numbers))
    positions = np.arange(len(features))
    if scaling is not None:
        to_units[positions, positions] = scaling.factor[features]
        if problem.has_intercept:
            to_units[len(features) :, : len(features)] = -scaling.mean[features] * scaling.factor[features]
    to_units[: len(features)] *= scale
    deviation = np.ones(len(parameter_numbers))
    deviation[: len(features)] = inference.deviation[features]
    return to_units, deviation


def _method_column(inference: Inference, withheld: np.ndarray) -> np.ndarray:
    """Return the method of each row, or why it has no interval; ``withheld`` are reasons of estimates, (rows,)."""
    options = inference.options
    without = "constant"
    if inference.problem.has_baseline_hazards:
        without = "constant within risk sets"
    elif inference.problem.has_client_intercepts:
        without = "constant within clients"
    column = np.full(len(withheld), "not selected" if options.method == "split" else without, object)
    column[np.flatnonzero(inference.deviation == 0)] = "constant"
    column[[*inference.parameters.references.values()]] = "reference"
    column[len(inference.problem.theta) :] = f"not finite: {describe_equal_targets(inference.problem.data)}"
    method = METHODS[options.method] + ("" if options.errors == "robust" else MODEL_ERRORS)
    numbers = inference.parameters.numbers
    column[numbers] = np.where(withheld[numbers] == "", method, withheld[numbers])
    return column


def describe_method(inference: Inference) -> str:
    """Return the method, the rows and what is taken as independent, in one line."""
    options = inference.options
    errors = {
        "none": "robust standard errors" if options.errors == "robust" else "standard errors of the model",
        "client": "standard errors by client",
        "group": "standard errors by group",
    }
    clusters = "" if inference.n_clusters is None else f" ({inference.n_clusters} of them)"
    n_rows = inference.n_rows
    total = sum(rows.n_rows for rows in inference.problem.data.splits.values())
    rows = f"{n_rows:,} rows" if n_rows == total else f"{n_rows:,} of {total:,} rows"
    imputed = f", {options.imputations} imputations" if inference.gap_counts else ""
    if inference.problem.has_baseline_hazards:
        rows = f"{rows}, {inference.n_events:,} events"
    return (f"{METHODS[options.method]}, {100 * options.level:g} % intervals, {rows}, "
            f"{errors[options.cluster]}{clusters}{imputed}")  # fmt: skip


def describe(inference: Inference, table: InferenceTable) -> list[str]:
    """Return the sentences that the command prints above its table."""
    lines = [table.title]
    splits = inference.problem.data.splits
    given = inference.problem.experiment.config["data"]
    held_out = {name: rows.n_rows for name, rows in splits.items() if name != "train"}
    if held_out:
        options = [f"data.{name}" if given.get(name) is None else f"data.{name}={given[name]}" for name in held_out]
        lines.append(f"{sum(held_out.values()):,} rows are held out ({', '.join(options)}) and not used")
    weight = splits["train"].weight
    if weight is not None and not splits["train"].stays_at_sites and (n_weightless := int((weight == 0).sum())):
        lines.append(f"{n_weightless:,} rows of weight 0 take no part")
    if inference.gap_counts:
        largest = int(np.nanargmax(table.missing_information))
        share = float(table.missing_information[largest])
        name = table.features[largest]
        gaps = abbreviate([f"'{column}' ({count:,})" for column, count in inference.gap_counts.items()])
        lines.append(f"{inference.options.imputations} data sets: gaps in {gaps} are imputed by chained equations, and "
                     "estimates pooled by Rubin's rules; the fraction of missing information is at most "
                     f"{share:.2f} ({name}); valid if gaps depend on recorded values only")  # fmt: skip
    certificate = f"predicted decrease {inference.solution.predicted_decrease:.2g}"
    if inference.gap is not None:
        certificate = f"duality gap {inference.gap:.2g}"
    names = inference.problem.feature_names
    distance = inference.distance
    if distance is not None:
        largest = f" ({names[distance.feature]})" if distance.coefficient > 0 else ""
        filled = " with gaps filled as in the record" if inference.gap_counts else ""
        lines.append(f"at the certified solution{filled} ({certificate}); the record's objective is "
                     f"{distance.excess:.2g} above, and its coefficients differ by at most "
                     f"{distance.coefficient:.2g} per standard deviation{largest}")  # fmt: skip
    else:
        chosen = int((inference.solution.theta[: len(names)] != 0).sum())
        lines.append(f"{chosen} of {len(names)} features were selected on the first half")
    if inference.problem.n_eliminated:
        lines.append("each client has an intercept of its own, which is at its site alone; the coefficients and their "
                     "errors are those with these intercepts")  # fmt: skip
    references = dict.fromkeys(inference.parameters.references.values())
    if references:
        rows = {feature: table.n[feature] for feature in references}
        named = [f"{names[k]} ({int(n):,} rows)" if n > 0 else names[k] for k, n in rows.items()]
        lines.append(f"reference: {', '.join(named)}")
    is_robust = inference.options.errors == "robust"
    has_hazards = inference.problem.has_baseline_hazards
    sources = find_sources(inference.options.method, is_robust=is_robust, has_baseline_hazards=has_hazards)
    if inference.n_clusters is not None:
        sources.append(SOURCES["clusters"])
    if inference.gap_counts:
        sources.append(SOURCES["imputations"])
    if sources:
        lines.append(f"source: {'; '.join(parse_source(text).text for text in sources)}")
    p_value_of_curve = dict.fromkeys(table.curve_of_feature.values(), "no term was selected")
    for name, method in zip(names, table.method, strict=False):
        if name in table.curve_of_feature and "; " in method:
            p_value_of_curve[table.curve_of_feature[name]] = method.partition("; ")[2]
    lines += [f"{curve} is a curve: {text}" for curve, text in p_value_of_curve.items()]
    lines.append(count_tests(table.p_value, table.p_holm, 1 - table.level))
    return lines


def count_tests(p_values: np.ndarray, p_holm: np.ndarray, limit: float) -> str:
    """Return how many p values are below a limit, each alone and corrected; a nan of ``p_holm`` is no test."""
    is_tested = ~np.isnan(p_holm)
    tests = "1 test" if is_tested.sum() == 1 else f"{is_tested.sum()} tests"
    alone = int((p_values[is_tested] < limit).sum())
    corrected = int((p_holm[is_tested] < limit).sum())
    return (f"{tests} of no association: {alone} with p below {limit:.3g}, and {corrected} when corrected for {tests} "
            f"by {parse_source(SOURCES['holm']).text}")  # fmt: skip


def order_by_p_value(table: InferenceTable) -> Sequence[int]:
    """Return the rows of features with an interval, the smallest p value first."""
    tested = np.flatnonzero(~np.isnan(table.p_holm))
    sizes = -np.abs(table.estimate_standardized[tested])
    return [int(row) for row in tested[np.lexsort((sizes, table.p_value[tested]))]]


def format_p(p: float) -> str:
    """Return a p value with three decimals, as journals print it."""
    if np.isnan(p):
        return ""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


FEW_CLUSTERS = 10
EVENTS_PER_PARAMETER = 10  # of two classes, rows of the smaller one
EVENTS_PER_HAZARD_RATIO = 30
LARGE_GAP_SHARE = 0.05  # of the rows
RARE_SHARE = 0.1  # of the rows: a value that fewer have is rare
LARGE_LINEARIZATION_ERROR = 0.4  # standard errors: an interval of 95 % that is off by so much covers 93 %


def find_warnings(inference: Inference) -> list[str]:
    """Return the sentences that a reader of intervals must know.

    The limits follow from the simulations of ``scripts/coverage.py``: beyond them, intervals of a level of 95 %
    covered less than 93 % of the coefficients, or of those that are not 0.
    """
    problem = inference.problem
    options = inference.options
    n_clusters = inference.n_clusters
    n_parameters = inference.n_parameters
    sentences = [problem.experiment.data.ask_for_weight_kind(problem.data.train.weight)]
    if problem.has_chosen_features:
        sentences.append(word(AFTER_SELECTION))
    if problem.has_adaptive_weights:
        sentences.append(WITH_ADAPTIVE_WEIGHTS)
    if n_clusters is not None and n_clusters < FEW_CLUSTERS:
        sentences.append(
            f"{n_clusters} clusters are few: standard errors by cluster tend to be too small below {FEW_CLUSTERS}, in "
            f"spite of Student's t with {n_clusters - 1} degrees of freedom"
        )
    elif options.cluster == "none" and problem.data.train.group is not None:
        sentences.append(
            word("rows of a group are taken as independent: errors=robust `cluster=group` does not assume that")
        )
    weights = problem.theta[: problem.n_features]
    sentences.append(warn_of_client_differences(problem.experiment, problem.data, {"weights": weights}))
    if clause := name_infinite_intercepts(problem.data, problem.has_intercept_of_client):
        sentences.append(f"{clause}: these rows tell nothing about the coefficients, and are not counted here")
    sentences.append(warn_of_small_clients(problem.experiment.objective, problem.data))
    sentences += [
        _warn_of_constants(inference),
        _warn_of_several_references(inference),
        _warn_of_events(inference),
        _warn_of_sparse_indicators(inference),
    ]
    if options.method == "debiased":
        if 2 * n_parameters > inference.n_rows:
            sentences.append(
                f"{n_parameters} parameters are many for {inference.n_rows} rows: simulated intervals of a level of "
                "95 % covered 75 to 93 % of the coefficients that are not 0"
            )
        sentences.append(_warn_of_curvature(inference))
    if isinstance(inference.estimates, PooledEstimates):
        share = float(inference.estimates.missing_information.max())
        advised = math.ceil(100 * share)  # White, Royston and Wood (Stat. Med. 2011)
        if options.imputations < advised:
            sentences.append(
                word(
                    f"{options.imputations} imputations are few for a fraction of missing information of {share:.2f}: "
                    f"another seed gives noticeably other intervals; give `imputations={advised}` or more"
                )
            )
    sentences += [inference.imputed_groups, _warn_of_filled_gaps(inference)]
    return list(filter(None, sentences))


def _warn_of_constants(inference: Inference) -> str:
    """Return a warning that names the features without a coefficient, which the data do not determine."""
    problem = inference.problem
    estimated = {*inference.parameters.numbers.tolist(), *inference.parameters.references.values()}
    names = [name for number, name in enumerate(problem.feature_names) if number not in estimated]
    if not names or inference.options.method == "split":
        return ""
    where = "in all rows"
    if problem.has_baseline_hazards:
        where = "among the rows of a client that are at risk"
    elif problem.has_client_intercepts:
        where = "in all rows of a client"
    return f"no coefficient of {abbreviate(names)}: one value {where} determines none"


def _warn_of_several_references(inference: Inference) -> str:
    """Return a warning that names the levels of a column which have no reference in common; "" for none."""
    names = inference.problem.feature_names
    encoding = inference.problem.data.features.encoding
    compared: dict[str, list[str]] = {}
    for level, reference in inference.parameters.references.items():
        compared.setdefault(names[reference], []).append(names[level])
    sentences = []
    for column in () if encoding is None else encoding.columns:
        sets = [f"{abbreviate(compared[name])} with {name}" for name in column.features if name in compared]
        if len(sets) > 1:
            sentences.append(f"no client has rows that compare all levels of '{column.name}': the coefficients compare "
                             f"{'; '.join(sets)}; two levels of different references are not compared")  # fmt: skip
    return "; ".join(sentences)


def _warn_of_events(inference: Inference) -> str:
    objective = inference.problem.objective
    n_parameters = inference.n_parameters
    events = inference.n_events
    n_rows = inference.n_rows
    if isinstance(objective, Cox):
        name = "events"
        needed = EVENTS_PER_HAZARD_RATIO
        covered = "89 to 92 %"
    elif isinstance(objective, Logistic):
        events = min(events, n_rows - events)
        name = "rows of the smaller class"
        needed = EVENTS_PER_PARAMETER
        covered = "85 to 93 %"
    else:
        return ""
    if events >= needed * n_parameters:
        return ""
    return (f"{events} {name} are few for {n_parameters} parameters: below {needed} for each, simulated "
            f"intervals of a level of 95 % covered {covered} of the coefficients that are not 0")  # fmt: skip


def _warn_of_sparse_indicators(inference: Inference) -> str:
    """Return a warning that names the features whose intervals are withheld."""
    names = inference.problem.feature_names
    counts = inference.indicators.counts
    withheld = []
    advice = set()
    for feature in inference.parameters.numbers[inference.parameters.numbers < len(names)]:
        if reason := inference.explain_withheld(feature):
            withheld.append(f"{names[feature]} ({reason})")
            if not inference.indicators.is_indicator[feature]:
                advice.add(word("leave out columns whose other values few have (`data.ignore`)"))
                continue
            is_rare = min(counts.at_low[feature], counts.at_high[feature]) < RARE_SHARE * inference.n_rows
            for clusters in inference.indicators.clusters.values():
                is_rare |= clusters.rows[feature] < least_clusters(inference.n_clusters)
            advice.add(
                "join rare levels" if is_rare else word("leave out what was recorded after the outcome (`data.ignore`)")
            )
    if not withheld:
        return ""
    if inference.indicators.has_two_classes:
        counted = "rows, events or rows without an event"
    elif inference.indicators.has_events:
        counted = "rows or events"
    else:
        counted = "rows"
    if inference.indicators.clusters:
        counted += f", or {inference.indicators.cluster_name}s with such rows"
    return (f"no interval of {abbreviate(withheld)}: below {MIN_COUNT} {counted}, standard errors are far too small; "
            f"{', and '.join(sorted(advice))}")  # fmt: skip


def _warn_of_curvature(inference: Inference) -> str:
    """Return a warning if the losses are too curved for the one step from the solution to the estimates."""
    parameters = inference.parameters
    theta = parameters.map @ inference.solution.theta
    sums = parameters.derivatives(inference.solution.sums)

    def gradient(point: np.ndarray) -> np.ndarray:
        return inference.sums.derivatives(point).gradient

    with jax.enable_x64(True):
        errors = linearization_errors(theta, sums, inference.estimates, gradient)
    n_features = inference.problem.n_features
    has_interval = [k < n_features and not inference.explain_withheld(k) for k in parameters.numbers]
    errors = np.where(has_interval, errors, 0.0)
    largest_known = np.nanmax(errors, initial=0.0)  # 0 if each error is NaN
    if np.isnan(errors[has_interval]).any() and largest_known <= LARGE_LINEARIZATION_ERROR:
        return ("how far the penalty shrinks coefficients could not be checked, since sums at the estimates are "
                "withheld or not finite: the intervals may cover less than their level")  # fmt: skip
    worst = int(np.nanargmax(errors))
    if errors[worst] <= LARGE_LINEARIZATION_ERROR:
        return ""
    count = int((errors > LARGE_LINEARIZATION_ERROR).sum())
    shrunk = "1 coefficient" if count == 1 else f"{count} coefficients"
    name = inference.problem.feature_names[parameters.numbers[worst]]
    return word(f"the penalty shrinks {shrunk} so much that one step does not correct it, that of {name} by "
            f"{errors[worst]:.1f} standard errors: the intervals cover less than their level; a smaller "
            "`reg.strength`, `method=split` or a record with `reg=none` does better")  # fmt: skip


def _warn_of_filled_gaps(inference: Inference) -> str:
    """Return a warning if many missing values of a column were filled with a single value."""
    shares = inference.filled_gaps
    described = [f"'{name}' ({share:.0%} of the rows)" for name, share in shares.items() if share >= LARGE_GAP_SHARE]
    if not described:
        return ""
    of_record = word(" of a record with `reg=none`") if inference.problem.has_penalty else ""
    advice = word(f"fcorun infer with `imputations=30`{of_record} imputes the gaps instead")
    if inference.problem.data.train.stays_at_sites:
        advice = "sites do not impute gaps"
    elif reason := explain_no_imputation(inference.problem):
        advice = word(f"`imputations=30` does not apply: {reason}") + (
            word(" and `reg=none`") if inference.problem.has_penalty else ""
        )
    return (f"gaps in {abbreviate(described)} were filled in: if they depend on the outcome, the column's coefficient "
            f"may be biased and its interval too narrow; {advice}")  # fmt: skip
