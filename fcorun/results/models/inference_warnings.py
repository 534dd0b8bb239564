"""Warnings where intervals may cover less than their level."""

import math

import jax
import numpy as np

from fcorun.base.errors import abbreviate, word
from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.log_link import LogLink
from fcorun.methods.objectives.logistic import Logistic
from fcorun.results.inference.estimates import linearization_errors
from fcorun.results.inference.methods import AFTER_SELECTION, WITH_ADAPTIVE_WEIGHTS
from fcorun.results.inference.rubin import PooledEstimates
from fcorun.results.models.inference import Inference
from fcorun.results.models.inference_counts import MIN_COUNT
from fcorun.results.models.multiple_imputation import explain_no_imputation

GAPS = "gaps in "  # the beginning of the warning of filled gaps
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
    problem, options, rows = inference.problem, inference.options, inference.rows
    n_clusters, n_parameters = inference.n_clusters, len(inference.estimates.theta)
    sentences = []
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
    if rows is not None and isinstance(problem.objective, LogLink) and problem.objective.ceiling is not None:
        # beyond the ceiling, exp is continued by a parabola
        exponents = problem.objective.exponent(rows.x @ inference.estimates.theta + rows.offset, rows.y)  # type: ignore[arg-type]
        share = float(np.mean(np.asarray(exponents) > np.log(problem.objective.ceiling)))
        if share:
            sentences.append(
                word(
                    f"{100 * share:.3g} % of the rows are beyond `objective.ceiling={problem.objective.ceiling:g}`, "
                    "where the loss is no longer half the deviance: raise it"
                )
            )
    sentences += [_warn_of_events(inference), _warn_of_sparse_indicators(inference)]
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
    sentences.append(_warn_of_filled_gaps(inference))
    return list(filter(None, sentences))


def _warn_of_events(inference: Inference) -> str:
    objective, n_parameters = inference.problem.objective, len(inference.estimates.theta)
    events, n_rows = inference.n_events, inference.n_rows
    if isinstance(objective, Cox):
        name, needed, covered = "events", EVENTS_PER_HAZARD_RATIO, "89 to 92 %"
    elif isinstance(objective, Logistic):
        events, name = min(events, n_rows - events), "rows of the smaller class"
        needed, covered = EVENTS_PER_PARAMETER, "85 to 93 %"
    else:
        return ""
    if events >= needed * n_parameters:
        return ""
    return (f"{events} {name} are few for {n_parameters} parameters: below {needed} for each, simulated "
            f"intervals of a level of 95 % covered {covered} of the coefficients that are not 0")  # fmt: skip


def _warn_of_sparse_indicators(inference: Inference) -> str:
    """Return a warning that names the features whose intervals are withheld."""
    names, counts = inference.problem.feature_names, inference.indicators.counts
    withheld, advice = [], set()
    for feature in inference.parameters.numbers[inference.parameters.numbers < len(names)]:
        if reason := inference.explain_withheld(feature):
            withheld.append(f"{names[feature]} ({reason})")
            is_rare = min(counts.at_low[feature], counts.at_high[feature]) < RARE_SHARE * inference.n_rows
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
    if inference.rows is None:
        advice = "sites do not impute gaps"
    elif reason := explain_no_imputation(inference.problem):
        advice = word(f"`imputations=30` does not apply: {reason}") + (
            word(" and `reg=none`") if inference.problem.has_penalty else ""
        )
    return (f"{GAPS}{abbreviate(described)} were filled in: if they depend on the outcome, the column's coefficient "
            f"may be biased and its interval too narrow; {advice}")  # fmt: skip
