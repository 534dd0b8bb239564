"""Choice of a strength by the scores of the folds, and nested cross-validation, the score of the whole procedure.

In nested cross-validation each outer fold is held out in turn. Inner folds of the other rows choose a value of the
path, by the metric and the rule of the selection, and the fit of all these rows at this value is judged on the outer
fold (Stone, J. R. Stat. Soc. B 1974; Varma and Simon, BMC Bioinformatics 2006).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from fcorun.base.errors import UserError, suggest_name, word
from fcorun.base.metrics import (
    MORE_ROUNDS_ADVICE,
    PERSONAL_PREFIX,
    TEST_METRIC_REFUSAL,
    TEST_PREFIX,
    Metric,
    without_client_metrics,
)
from fcorun.base.records.record import OUT_OF_FOLD, SHARED
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.subset import suggest_folds, take_subset
from fcorun.experiment.build import explain_unmeasured
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.results.models.predictions import describe_output
from fcorun.results.models.relaxed import REFIT_FAILURES
from fcorun.results.scores.score import Score, all_scores, find_score
from fcorun.results.scores.weighted_rows import WeightedRows
from fcorun.studies.selection.fitting import END_STATES, PathFit, find_runs
from fcorun.studies.selection.folds import SubsetMasks, assign_folds, compute_fold_weights
from fcorun.studies.selection.path import RegularizationPath
from fcorun.studies.selection.study import Study, warn_unconverged

_PREFIX = "val_"


@dataclass(frozen=True)
class CrossValidationChoice:
    """Scores of P values of a path, or of several paths, averaged over the folds, and the value that a rule chooses.

    Attributes:
        mean, standard_error: the weighted mean of the metric over the folds and its standard error, (P,); NaN where a
            fold diverged.
        difference, difference_standard_error: the weighted mean over the folds of the difference to the metric at
            ``best_index``, and the standard error of that mean, (P,).
        best_index: the position of the best mean.
        one_se_index: the position of the simplest solution whose mean is within one standard error of the best, by
            Breiman, Friedman, Olshen and Stone (Classification and Regression Trees, 1984, section 3.4.3). Of several
            paths, the simplest is the earliest on its own path, and of equally early ones the one with the best mean.
        chosen_index: ``best_index`` or ``one_se_index``, by the rule.
        higher_is_better: whether a larger value of the metric is better.
        paired: whether the one-standard-error rule takes ``difference_standard_error`` of each solution, rather than
            ``standard_error`` of the best.
    """

    mean: Float[np.ndarray, " P"]
    standard_error: Float[np.ndarray, " P"]
    difference: Float[np.ndarray, " P"]
    difference_standard_error: Float[np.ndarray, " P"]
    best_index: int
    one_se_index: int
    chosen_index: int
    higher_is_better: bool
    paired: bool = False

    @property
    def rule_indices(self) -> dict[str, int]:
        """The position that each rule chooses."""
        return {"min": self.best_index, "one_se": self.one_se_index}

    @property
    def rule_labels(self) -> dict[str, str]:
        """The name of each rule in messages."""
        return {"min": "maximum" if self.higher_is_better else "minimum", "one_se": "one standard error"}


def choose(
    scores: Float[np.ndarray, "K P"],
    rule: str,
    higher_is_better: bool,
    fold_weights: Float[np.ndarray, " K"] | None = None,
    paired: bool = False,
    n_paths: int = 1,
) -> CrossValidationChoice:
    """Choose a value of a path by the scores of K folds at P values, ordered from the simplest solution.

    The P values are those of ``n_paths`` paths of one length, one after the other.

    Without ``fold_weights`` all folds count alike. Folds share training rows, so that the standard errors of
    ``compute_weighted_mean`` are a rule of thumb (Hastie, Tibshirani and Friedman, The Elements of Statistical
    Learning, 2009, section 7.10).

    Raises:
        UserError: each value has a fold whose score is not finite.
    """
    weights = np.ones(len(scores)) if fold_weights is None else fold_weights
    mean, standard_error = compute_weighted_mean(scores, weights)
    if not np.isfinite(mean).any():
        raise UserError(
            "at each value of the path a fold diverged: a smaller `algo.client_lr` or `algo.server_lr` may help"
        )
    loss = np.where(np.isfinite(mean), -mean if higher_is_better else mean, np.inf)
    position = np.arange(len(loss)) % (len(loss) // n_paths)  # on its path
    best = int(np.lexsort((position, loss))[0])  # of equal means the simplest solution
    difference, difference_standard_error = compute_weighted_mean(scores - scores[:, [best]], weights)
    tolerance = np.nan_to_num(difference_standard_error) if paired else standard_error[best]
    is_close = loss <= loss[best] + tolerance
    simplest = int(np.lexsort((loss, np.where(is_close, position, len(loss))))[0])
    return CrossValidationChoice(
        mean=mean,
        standard_error=standard_error,
        difference=difference,
        difference_standard_error=difference_standard_error,
        best_index=best,
        one_se_index=simplest,
        chosen_index=simplest if rule == "one_se" else best,
        higher_is_better=higher_is_better,
        paired=paired,
    )


def stack_scores(fits: Mapping[str, PathFit], names: Sequence[str], metric: str) -> Float[np.ndarray, "K P"]:
    """Return the metric of the fits of K folds at P values, NaN for a fold whose runs all diverged."""
    diverged = np.full(len(next(iter(fits.values())).end_state), np.nan)
    return np.stack([fits[name].metrics.get(metric, diverged) for name in names])


def drop_failed_refits(
    scores: Float[np.ndarray, "K P"], fits: Mapping[str, PathFit], subset: str
) -> Float[np.ndarray, "K P"]:
    """Return scores, NaN where the fit to all rows that the chosen model is trained on diverged or does not exist.

    ``subset`` names the fit to these rows. Relaxed coefficients may not exist. If the fits at all values diverged, the
    scores of the folds are returned as they are.

    Raises:
        UserError: each value lacks relaxed coefficients on some of the rows.
    """
    state = fits[subset].end_state
    missing = np.isin(state, [END_STATES.index(reason) for reason in REFIT_FAILURES])
    scores = np.where(missing, np.nan, scores)
    if missing.any() and not np.isfinite(scores).all(axis=0).any():
        raise UserError("relax: no strength has a fit without a penalty on the rows of each fold: give 1, the lasso, "
                        "among the values of relax, or larger strengths by `range=[LOW,HIGH]`")  # fmt: skip
    scores_without_diverged = np.where(state == END_STATES.index("diverged"), np.nan, scores)
    return scores_without_diverged if np.isfinite(scores_without_diverged).all(axis=0).any() else scores


def compute_weighted_mean(
    values: Float[np.ndarray, "K P"], weights: Float[np.ndarray, " K"]
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
    """Compute the weighted mean over K folds and its standard error, (P,) each.

    The standard error is that of a ratio estimator, whose folds are independent and may differ in size and in mean
    (Cochran, Sampling Techniques, 1977, chapter 6); with equal weights it is sd / sqrt(K).
    """
    share = (weights / weights.sum())[:, None]
    mean = (share * values).sum(axis=0)
    n_folds = len(values)
    return mean, np.sqrt(n_folds / (n_folds - 1) * (share**2 * (values - mean) ** 2).sum(axis=0))


def warn_about_choice(
    choice: CrossValidationChoice, path: RegularizationPath, fits: dict[str, PathFit], rounds: int
) -> list[str]:
    """Return warnings about a choice: at an end of the path, or of runs that diverged or did not converge."""
    falling_advice = word(
        f"the objective was still falling at the end, so that the curve depends on `rounds={rounds}`; "
    )
    unconverged = warn_unconverged(fits, falling_advice + MORE_ROUNDS_ADVICE, choice.chosen_index)
    if path.length == 1:
        return unconverged
    warnings = []
    best = choice.best_index
    best_path_slice = path.slice_of(best)
    values = path.values[best_path_slice]
    best_label = choice.rule_labels["min"]
    beyond = choice.mean[best + 1 : best_path_slice.stop]
    if not len(beyond):
        low, high = values.min(), values.max()
        wider = f"{low / 100:.3g},{high:.3g}" if path.param_name == "strength" else f"{low:.3g},{high * 10:.3g}"
        warnings.append(
            word(
                f"the {best_label} is at the end of the path, {path.describe(best)}: the best may be beyond; "
                f"`range=[{wider}]` looks further"
            )
        )
    elif np.isnan(beyond).all():
        warnings.append(
            f"the {best_label} is at the last {path.param_name} of the path that is left: the best may be beyond"
        )
    if best == best_path_slice.start:
        warnings.append(
            f"the {best_label} is at the beginning of the path, {path.describe(best)}, the simplest solution: these "
            "rows do not show that a feature helps, or the path begins too late"
        )
    if path.second is not None:
        value, least, largest = path.second.values[best], path.second.values.min(), path.second.values.max()
        if value in (least, largest) and least < largest and value not in path.second.limits:
            edge, more = ("least", "smaller") if value == least else ("largest", "larger")
            warnings.append(
                f"the {best_label} is at the {edge} {path.second.name} that was tried, {value:g}: the best may be "
                f"beyond; give {more} values of {path.second.key}, too"
            )
    if np.isfinite(choice.mean).sum() > 1 and np.nanmax(choice.mean) == np.nanmin(choice.mean):
        warnings.append("all values of the path are tied")
    diverged = find_runs(fits, "diverged")
    if diverged.any():
        at = np.flatnonzero(diverged.any(axis=0)).tolist()
        where = f"{path.param_name}=" + ", ".join(f"{value:.4g}" for value in path.values[at])
        if path.second is not None:
            where = "; ".join(path.describe(index) for index in at)
        warnings.append(
            word(
                f"diverged: {diverged.sum()} of {diverged.size} fits, at {where}: values at which a fold diverged "
                "cannot be chosen; smaller rates of `algo`, if it has any, may help"
            )
        )
    for state, reason in REFIT_FAILURES.items():
        missing = find_runs(fits, state)
        if missing.any():
            largest = path.values[missing.any(axis=0)].max()
            warnings.append(
                f"relax: in {missing.sum()} of {missing.size} fits, at {path.param_name}={largest:.4g} or less, the "
                f"selected features have no fit without a penalty ({reason}): these values cannot be chosen"
            )
    return warnings + unconverged


def choose_metric(name: str | None, experiment: PreparedExperiment, data: FederatedData, by: str) -> str:
    """Return the metric ``name``, or else the loss, as the folds measure it: metric=loss is val_loss.

    Personal models are scored, unless folds consist of clients, which have no personal models when they are held
    out. Scores by which models are compared can choose, too, without the metrics that runs measure.

    Raises:
        UserError: the metric is unknown, belongs to the test rows, or is not measured on held-out rows.
    """
    has_personal_models = experiment.algo.has_personal_models
    scores_personal = has_personal_models and by == "rows"
    fold_data = replace(data, validation=replace(data.train, client=None))  # with validation rows, as in a fold
    comparable = without_client_metrics(experiment.metrics.comparable)  # of which folds measure none
    measured = [metric for metric in comparable if not explain_unmeasured(metric, experiment, fold_data)]
    choices = [metric.removeprefix(_PREFIX) for metric in measured if metric.startswith(_PREFIX)]
    if scores_personal:
        choices += [metric for metric in measured if metric.startswith(f"{PERSONAL_PREFIX}{_PREFIX}")]
    if experiment.has_shared_model and not data.train.stays_at_sites:
        for score in all_scores().values():
            is_measured = _PREFIX + score.name in experiment.metrics or score.metric in experiment.metrics
            if score.judges(data.target_task) and score.places.verdict is not None and not is_measured:
                choices.append(score.name)

    name = name or (f"{PERSONAL_PREFIX}val_loss" if scores_personal else "val_loss")
    shared_name = name.removeprefix(PERSONAL_PREFIX)
    if shared_name.startswith(TEST_PREFIX):
        raise UserError(f"`metric={name}` is refused: {TEST_METRIC_REFUSAL}")
    if name not in comparable:
        if name not in choices:
            raise UserError(f"`metric={name}` is not a choice: {suggest_name(name, choices)}")
        return f"{_PREFIX}{name}"
    if not shared_name.startswith(_PREFIX):
        raise UserError(f"`metric={name}` is not measured on rows that are held out: {suggest_name(name, choices)}")
    if name.startswith(PERSONAL_PREFIX) and not scores_personal:
        reason = f"`algo={experiment.names['algo']}` has no personal models"
        if has_personal_models:
            reason = "`by=clients` leaves held-out clients without personal models"
        raise UserError(f"`metric={name}`: {reason}; give `metric={shared_name.removeprefix(_PREFIX)}`")
    if reason := explain_unmeasured(name, experiment, fold_data):
        raise UserError(f"`metric={name}` would not be measured: {reason}; {suggest_name(name, choices)}")
    return name


def find_fold_score(experiment: PreparedExperiment, metric: str) -> Score | None:
    """Return the score that the metric of a selection names; None for a metric that runs measure."""
    return None if metric in experiment.metrics else find_score(metric.removeprefix(_PREFIX))


def find_metric(experiment: PreparedExperiment, name: str) -> Metric:
    """Return the declaration of the metric of a selection."""
    if score := find_fold_score(experiment, name):
        return Metric(name, f"validation {score.label}", higher=score.higher)
    return experiment.metrics[name]


def check_fold_score(study: Study, metric: str, is_nested: bool) -> None:
    """Raise UserError if the folds of a study do not keep the predictions that a score needs."""
    score = find_fold_score(study.experiment, metric)
    if score is not None and is_nested:
        raise UserError(f"`metric={score.name}` needs predictions, which the inner folds of outer_folds do not keep: "
                        "give `metric=loss`, or leave outer_folds out")  # fmt: skip
    if score is not None and not study.keeps_held_out:
        raise UserError(f"`metric={score.name}` needs the predictions of all rows at all points, too many here: give "
                        " fewer points, or `metric=loss`")  # fmt: skip


def add_fold_scores(study: Study, fits: Mapping[str, PathFit], metric: str) -> dict[str, PathFit]:
    """Return the fits, those of the folds with the score that ``metric`` names; as they are for another metric.

    The score of a run that diverged is NaN. Raises UserError if the rows of a fold do not define the score.
    """
    score = find_fold_score(study.experiment, metric)
    scored = dict(fits)
    if score is None:
        return scored
    data = study.data
    clients = data.client_of_row("train")
    for name, fit in fits.items():
        if SHARED not in fit.held_out:
            continue
        outputs = fit.held_out[SHARED]
        is_finite = np.array([np.isfinite(output).all() for output in outputs])
        values = np.full(len(outputs), np.nan)
        held_out = np.flatnonzero(study.subsets[name].validation)
        of_shared = partial(describe_output, clients=clients, split=OUT_OF_FOLD, model=SHARED, index=held_out)
        for p in np.flatnonzero(is_finite):
            predictions = of_shared(study.experiment.objective, data, data.train, outputs[p])
            values[p] = score.of_rows(WeightedRows.each_once(predictions.to_scored_rows()))[0, 0]
        if is_finite.any() and np.isnan(values[is_finite]).all():
            cure = suggest_folds(data.train.fold is not None)
            raise UserError(
                f"`metric={score.name}` is undefined on the rows that {name} holds out: give `metric=loss`, or {cure}"
            )
        scored[name] = replace(fit, metrics=fit.metrics | {metric: values})
    return scored


@dataclass(frozen=True, eq=False)
class NestedFolds:
    """All folds of a nested cross-validation.

    Attributes:
        inner: by the subset that holds out each outer fold, the weights in a mean of the subsets that hold out an
            inner fold, and leave the outer fold out.
        weights: the weight of each outer fold in a mean over them, (J,).
        subsets: the rows of the subsets that hold out an outer fold, or an inner one, by name.
        fold: the outer fold, from 0, in which each training row is held out, (N,).
        inner_fold: the inner fold of each training row without an outer fold, (J, N); -1 in the outer fold.
    """

    inner: Mapping[str, Mapping[str, float]]
    weights: Float[np.ndarray, " J"]
    subsets: Mapping[str, SubsetMasks]
    fold: Int[np.ndarray, " N"]
    inner_fold: Int[np.ndarray, "J N"]

    @property
    def outer_subsets(self) -> dict[str, SubsetMasks]:
        """The rows of the subsets that hold out an outer fold: outer1, outer2, ..."""
        return {f"outer{j}": self.subsets[name] for j, name in enumerate(self.inner, start=1)}

    def judge(
        self, fits: Mapping[str, PathFit], metric: str, choose_value: Callable[..., CrossValidationChoice]
    ) -> "NestedScore":
        """Choose a value without each outer fold by its inner folds, and judge it on the outer fold.

        ``choose_value`` is ``choose`` with the options of the selection. Raises UserError if, without some outer fold,
        every value of the path lacks a finite score on an inner fold.
        """
        choices = []
        for outer, inner_weights in self.inner.items():
            scores = drop_failed_refits(stack_scores(fits, list(inner_weights), metric), fits, outer)
            choices.append(choose_value(scores, fold_weights=np.array(list(inner_weights.values()))))
        by_value = stack_scores(fits, list(self.inner), metric)
        scores = by_value[np.arange(len(choices)), [choice.chosen_index for choice in choices]]
        mean, standard_error = compute_weighted_mean(scores[:, None], self.weights)
        own_fits = {name: fits[name] for name in self.subsets}
        return NestedScore(
            self, own_fits, choices, scores, mean=float(mean[0]), standard_error=float(standard_error[0])
        )


def draw_nested_folds(
    data: FederatedData, n_outer: int, n_inner: int, *, by: str, weigh_rows: bool, seed: int
) -> NestedFolds:
    """Draw outer folds, and inner folds of the rows that each leaves, as ``assign_folds`` does.

    Folds of equal numbers are equal: with ``n_outer`` equal to ``n_inner``, the outer folds are those of a selection
    that is not nested, so that the fits of fold1, fold2, ... serve both. Of folds that the data mark, each is an outer
    fold, and the others are its inner folds. Clients that an outer fold leaves may be fewer than ``n_inner``: each
    inner fold then holds out one of them.

    Raises:
        UserError: the rows cannot be divided.
    """
    fold = assign_folds(data, n_outer, by, seed, option="outer_folds")
    inner_fold = np.full((n_outer, len(fold)), -1)
    # folds need no features, which would take memory
    features = replace(data.features, cells=None)
    without_features = replace(data, train=replace(data.train, x=data.train.x[:, :0]), features=features)
    subsets = {}
    inner: dict[str, dict[str, float]] = {}
    for j in range(n_outer):
        name = f"fold{j + 1}" if n_outer == n_inner else f"outer{j + 1}"
        remaining = fold != j
        subsets[name] = SubsetMasks(train=remaining, validation=~remaining)
        rows = take_subset(without_features, remaining, ~remaining, restandardize=False).data
        n_clients = len(rows.train.sizes)
        if by == "clients" and n_clients < 2:
            raise UserError(
                f"outer fold {j + 1} leaves client {rows.client_names[0]} alone, of which inner folds would be "
                "clients: give more outer_folds, or `by=rows`"
            )
        n_folds = min(n_inner, n_clients) if by == "clients" else n_inner
        try:
            inner_fold[j, remaining] = assign_folds(rows, n_folds, by, seed, within=("outer", str(j + 1)))
        except UserError as error:
            raise UserError(f"in the rows that outer fold {j + 1} leaves, {error}") from error
        inner[name] = {}
        for k, weight in enumerate(compute_fold_weights(rows, inner_fold[j, remaining], weigh_rows)):
            inner_name = f"outer{j + 1}-fold{k + 1}"
            inner[name][inner_name] = float(weight)
            held_out = inner_fold[j] == k
            subsets[inner_name] = SubsetMasks(remaining & ~held_out, held_out, keeps_predictions=False)
    return NestedFolds(inner, compute_fold_weights(data, fold, weigh_rows), subsets, fold, inner_fold)


@dataclass(frozen=True, eq=False)
class NestedScore:
    """The score of a whole selection: each outer fold is judged by the value that the other rows choose.

    Attributes:
        folds: the outer and inner folds.
        fits: the fits of all subsets of ``folds``, by name.
        choices: the choice of the inner folds of each outer fold.
        scores: the metric on each outer fold, (J,); NaN where the chosen run diverged.
        mean, standard_error: the weighted mean of ``scores``, and its standard error.
    """

    folds: NestedFolds
    fits: Mapping[str, PathFit]
    choices: Sequence[CrossValidationChoice]
    scores: Float[np.ndarray, " J"]
    mean: float
    standard_error: float

    @property
    def chosen(self) -> Int[np.ndarray, " J"]:
        """The position on the path of the value that is chosen without each outer fold, (J,)."""
        return np.array([choice.chosen_index for choice in self.choices])


def warn_about_nested(nested: NestedScore, path: RegularizationPath) -> list[str]:
    """Return warnings about choices without an outer fold: at the end of the path, of runs that did not converge."""
    warnings = []
    diverged = np.flatnonzero(np.isnan(nested.scores)) + 1
    if len(diverged):
        numbers = ", ".join(map(str, diverged))
        warnings.append(
            f"nested: the run that was chosen without outer fold {numbers} diverged, so that there is no mean"
        )
    best = [choice.best_index for choice in nested.choices]
    n_at_end = sum(index == path.slice_of(index).stop - 1 for index in best)
    if n_at_end:
        warnings.append(word(f"nested: for {n_at_end} of {len(best)} outer folds, the best value is at the end of the "
                             "path: the best may be beyond; give `range=[LOW,HIGH]`"))  # fmt: skip
    advice = "the objective was still falling at the end; " + MORE_ROUNDS_ADVICE
    return warnings + [f"nested: {text}" for text in warn_unconverged(nested.fits, advice)]
