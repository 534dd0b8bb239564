"""The metric that chooses a strength, the choice by cross-validation, and warnings about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from fcorun.base.errors import UserError, suggest_name, word
from fcorun.base.metrics import MORE_ROUNDS_ADVICE, PERSONAL_PREFIX, TEST_METRIC_REFUSAL, TEST_PREFIX
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.build import explain_unmeasured
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.results.models.relaxed import REFIT_FAILURES
from fcorun.studies.selection.fold_scores import list_fold_scores
from fcorun.studies.selection.path import RegularizationPath, SecondNumber
from fcorun.studies.selection.path_fit import END_STATES, PathFit, find_runs
from fcorun.studies.selection.study import warn_unconverged


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        positions = f"chosen_index={self.chosen_index}, best_index={self.best_index}, one_se_index={self.one_se_index}"
        return f"CrossValidationChoice({len(self.mean)} values, {positions})"

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
    """Return warnings about a choice: at an end of the path, tied, or of runs that diverged or did not converge."""
    warnings = []
    best_path_slice = path.slice_of(choice.best_index)
    low, high = min(path.values[best_path_slice]), max(path.values[best_path_slice])
    best_label = choice.rule_labels["min"]
    if path.length == 1:
        return _warn_of_convergence(choice, fits, rounds)
    if choice.best_index == best_path_slice.stop - 1:
        wider_low, wider_high = (low / 100, high) if path.param_name == "strength" else (low, high * 10)
        warnings.append(
            word(
                f"the {best_label} is at the end of the path, {path.describe(choice.best_index)}: "
                f"the best may be beyond; `range=[{wider_low:.3g},{wider_high:.3g}]` looks further"
            )
        )
    if choice.best_index == best_path_slice.start:
        beginning = "where no penalized coefficient is left" if path.begins_at_zero else "the simplest of the path"
        warnings.append(
            f"the {best_label} is at the beginning of the path, {path.describe(choice.best_index)}, "
            f"{beginning}: these rows do not show that a feature helps, or the path begins too late"
        )
    elif choice.chosen_index % path.length == 0:
        warnings.append(
            word(
                f"{choice.rule_labels['one_se']} takes the beginning of the path, the simplest solution, because "
                "the folds differ much; "
                f"`rule=min` takes {path.describe(choice.best_index)}"
            )
        )
    if path.second is not None:
        warnings += _warn_second_number_at_edge(best_label, path.second, choice.best_index)
    if np.isfinite(choice.mean).sum() > 1 and np.nanmax(choice.mean) == np.nanmin(choice.mean):
        warnings.append("all values of the path are tied")
    diverged = find_runs(fits, "diverged")
    if diverged.any():
        at = np.flatnonzero(diverged.any(axis=0)).tolist()
        values = f"{path.param_name}=" + ", ".join(f"{value:.4g}" for value in path.values[at])
        if path.second is not None:
            values = "; ".join(path.describe(index) for index in at)
        warnings.append(
            word(
                f"diverged: {diverged.sum()} of {diverged.size} fits, at {values}: values "
                "at which a fold diverged cannot be chosen; smaller rates of `algo`, if it has any, may help"
            )
        )
    for state, reason in REFIT_FAILURES.items():
        missing = find_runs(fits, state)
        if missing.any():
            strengths = path.values[missing.any(axis=0)]
            where = f"{missing.sum()} of {missing.size} fits, at {path.param_name}={strengths.max():.4g} or less"
            warnings.append(
                f"relax: in {where}, the selected features have no fit without a penalty ({reason}): these values "
                "cannot be chosen"
            )
    beyond = choice.mean[choice.best_index + 1 : best_path_slice.stop]
    if len(beyond) and np.isnan(beyond).all():
        warnings.append(
            f"the {best_label} is at the last {path.param_name} of the path that is left: the best may be beyond"
        )
    return warnings + _warn_of_convergence(choice, fits, rounds)


def _warn_of_convergence(choice: CrossValidationChoice, fits: dict[str, PathFit], rounds: int) -> list[str]:
    """Return warnings about runs that did not converge."""
    falling_advice = word(
        f"the objective was still falling at the end, so that the curve depends on `rounds={rounds}`; "
    )
    falling_advice += MORE_ROUNDS_ADVICE
    return warn_unconverged(fits, falling_advice, choice.chosen_index)


def _warn_second_number_at_edge(best_label: str, second: SecondNumber, index: int) -> list[str]:
    """Return a warning if the best second number is the least or the largest that was tried, and may be beyond."""
    value, least, largest = second.values[index], second.values.min(), second.values.max()
    if least < value < largest or least == largest or value in second.limits:
        return []
    edge, more = ("least", "smaller") if value == least else ("largest", "larger")
    return [
        f"the {best_label} is at the {edge} {second.name} that was tried, {value:g}: the best may be beyond; give "
        f"{more} values of {second.key}, too"
    ]


def choose_metric(name: str | None, experiment: PreparedExperiment, data: FederatedData, by: str) -> str:
    """Return the metric ``name``, or else the loss, as the folds measure it: metric=loss is val_loss.

    Personal models are scored, unless folds consist of clients, which have no personal models when they are held
    out.

    Raises:
        UserError: the metric is unknown, belongs to the test rows, or is not measured on held-out rows.
    """
    has_personal_models = experiment.algo.has_personal_models
    scores_personal = has_personal_models and by == "rows"
    fold_data = replace(data, validation=replace(data.train, client=None))  # with validation rows, as in a fold

    def list_choices() -> list[str]:
        """Return the metrics that can choose, without the prefix val_."""
        names = [name for name in experiment.metrics.comparable if not explain_unmeasured(name, experiment, fold_data)]
        choices = [name.removeprefix("val_") for name in names if name.startswith("val_")]
        if scores_personal:
            choices += [name for name in names if name.startswith(f"{PERSONAL_PREFIX}val_")]
        return [*choices, *list_fold_scores(experiment, data)]

    if name is None:
        name = f"{PERSONAL_PREFIX}val_loss" if scores_personal else "val_loss"
    if name.removeprefix(PERSONAL_PREFIX).startswith(TEST_PREFIX):
        raise UserError(f"`metric={name}` is refused: {TEST_METRIC_REFUSAL}")
    if name not in experiment.metrics.comparable:
        choices = list_choices()
        if name not in choices:
            raise UserError(f"`metric={name}` is not a choice: {suggest_name(name, choices)}")
        return f"val_{name}"
    if not name.removeprefix(PERSONAL_PREFIX).startswith("val_"):
        raise UserError(
            f"`metric={name}` is not measured on rows that are held out: {suggest_name(name, list_choices())}"
        )
    if name.startswith(PERSONAL_PREFIX) and not scores_personal:
        reason = f"`algo={experiment.names['algo']}` has no personal models"
        if has_personal_models:
            reason = "`by=clients` leaves held-out clients without personal models"
        raise UserError(
            f"`metric={name}`: {reason}; give `metric={name.removeprefix(PERSONAL_PREFIX).removeprefix('val_')}`"
        )
    if reason := explain_unmeasured(name, experiment, fold_data):
        raise UserError(f"`metric={name}` would not be measured: {reason}; {suggest_name(name, list_choices())}")
    return name
