"""The choice of a strength by cross-validation, and warnings about it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from fcorun.errors import UserError
from fcorun.experiment.convergence import MORE_ROUNDS_ADVICE
from fcorun.selection.fitting import PathFit, find_runs
from fcorun.selection.path import RegularizationPath
from fcorun.selection.result import warn_unconverged


@dataclass(frozen=True, repr=False)
class CrossValidationChoice:
    """Scores of P values of a path, averaged over the folds, and the value that a rule chooses.

    Attributes:
        mean, standard_error: the weighted mean of the metric over the folds and its standard error, (P,); NaN where a
            fold diverged.
        difference, difference_standard_error: the weighted mean over the folds of the difference to the metric at
            ``best_index``, and the standard error of that mean, (P,).
        best_index: the position of the best mean.
        one_se_index: the position of the simplest solution whose mean is within one standard error of the best, by
            Breiman, Friedman, Olshen and Stone (Classification and Regression Trees, 1984, section 3.4.3).
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
) -> CrossValidationChoice:
    """Choose a value of a path by the scores of K folds at P values, ordered from the simplest solution.

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
            "no strength is without a fold that diverged: a smaller algo.client_lr or algo.server_lr may help"
        )
    loss = np.where(np.isfinite(mean), -mean if higher_is_better else mean, np.inf)
    best = int(loss.argmin())  # of equal means the first, which is the simplest solution
    difference, difference_standard_error = compute_weighted_mean(scores - scores[:, [best]], weights)
    tolerance = np.nan_to_num(difference_standard_error) if paired else standard_error[best]
    simplest = int(np.flatnonzero(loss <= loss[best] + tolerance)[0])
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
    low, high = min(path.values), max(path.values)
    best_label = choice.rule_labels["min"]
    if choice.best_index == len(path.values) - 1:
        wider_low, wider_high = (low / 100, high) if path.param_name == "strength" else (low, high * 10)
        warnings.append(
            f"the {best_label} is at the end of the path, {path.param_name}={path.values[-1]:.4g}: "
            f"the best may be beyond; range=[{wider_low:.3g},{wider_high:.3g}] looks further"
        )
    if choice.best_index == 0:
        beginning = "where no penalised coefficient is left" if path.begins_at_zero else "the simplest of the path"
        warnings.append(
            f"the {best_label} is at the beginning of the path, {path.param_name}={path.values[0]:.4g}, "
            f"{beginning}: these rows do not show that a feature helps, or the path begins too late"
        )
    elif choice.chosen_index == 0:
        warnings.append(
            f"{choice.rule_labels['one_se']} takes the beginning of the path, the simplest solution, because "
            "the folds differ much; "
            f"rule=min takes {path.values[choice.best_index]:.4g}"
        )
    if np.nanmax(choice.mean) == np.nanmin(choice.mean):
        warnings.append("all strengths are tied")
    diverged = find_runs(fits, "diverged")
    if diverged.any():
        values = ", ".join(f"{value:.4g}" for value in path.values[diverged.any(axis=0)])
        warnings.append(
            f"diverged: {diverged.sum()} of {diverged.size} fits, at {path.param_name}={values}: values "
            "at which a fold diverged cannot be chosen; smaller rates of algo, if it has any, may help"
        )
        beyond = choice.mean[choice.best_index + 1 :]
        if len(beyond) and np.isnan(beyond).all():
            warnings.append(
                f"the {best_label} is at the last {path.param_name} of the path that is left: the best may be beyond"
            )
    falling_advice = f"the objective was still falling at the end, so that the curve depends on rounds={rounds}; "
    falling_advice += MORE_ROUNDS_ADVICE
    return warnings + warn_unconverged(fits, falling_advice, choice.chosen_index)
