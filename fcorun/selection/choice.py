"""Which strength is chosen by the folds, and what to say of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fcorun.datasets.base import FederatedData
from fcorun.errors import UserError
from fcorun.experiment.convergence import describe_remaining_descent
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.optimality_gap import OptimalityGap
from fcorun.selection.fitting import END_STATES, PathFit
from fcorun.selection.path import RegularizationPath


@dataclass(frozen=True)
class CrossValidationChoice:
    """What the folds say of each value of a path.

    Attributes:
        mean, error: the weighted mean of the metric over the folds and its standard error, (P,); NaN where a fold
            diverged.
        difference, difference_error: the weighted mean of each fold's difference to its metric at ``best``, and the
            standard error of that mean, (P,).
        best: the place of the best mean.
        simplest: the place of the simplest solution whose mean is within one standard error of the best, by Breiman,
            Friedman, Olshen and Stone (Classification and Regression Trees, 1984, section 3.4.3).
        chosen: which of the two.
        higher: whether more of the metric is better.
        paired: whether that standard error is ``difference_error`` of each solution, and not ``error`` of the best.
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
    def rule_labels(self) -> dict[str, str]:
        """What each rule looks for, in words."""
        return {"min": "maximum" if self.higher_is_better else "minimum", "one_se": "one standard error"}


def choose(
    scores: Float[np.ndarray, "K P"],
    rule: str,
    higher_is_better: bool,
    weights: Float[np.ndarray, " K"] | None = None,
    paired: bool = False,
) -> CrossValidationChoice:
    """Choose by the scores of K folds at P values, the simplest first; without ``weights`` all folds count alike.

    Folds share training rows, so that the standard errors of ``weighted_mean`` are a rule of thumb (Hastie, Tibshirani
    and Friedman, The Elements of Statistical Learning, 2009, section 7.10). Raises UserError where each value has a
    fold that is not finite.
    """
    weights = np.ones(len(scores)) if weights is None else weights
    mean, error = compute_weighted_mean(scores, weights)
    if not np.isfinite(mean).any():
        raise UserError("no strength is without a fold that diverged: a smaller algo.client_lr or algo.server_lr may "
                        "help")  # fmt: skip
    loss = np.where(np.isfinite(mean), -mean if higher_is_better else mean, np.inf)
    best = int(loss.argmin())  # the simplest of several
    difference, difference_error = compute_weighted_mean(scores - scores[:, [best]], weights)
    allowed = np.nan_to_num(difference_error) if paired else error[best]
    simplest = int(np.flatnonzero(loss <= loss[best] + allowed)[0])
    return CrossValidationChoice(
        mean=mean,
        standard_error=error,
        difference=difference,
        difference_standard_error=difference_error,
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
    folds = len(values)
    return mean, np.sqrt(folds / (folds - 1) * (share**2 * (values - mean) ** 2).sum(axis=0))


def warn_unfinished_refit(experiment: Experiment, data: FederatedData, summary: Mapping[str, Any]) -> list[str]:
    """That the choice is of unfinished runs, where the refit, whose summary it is, was one: it has their rounds."""
    certificate, still = summary.get("certificate") or {}, summary.get("unfinished")
    if certificate.get("near") is False:
        why = OptimalityGap(**certificate).describe(experiment, data, falling=bool(still))
    elif still:
        why = describe_remaining_descent(still)
    else:
        return []
    return ["the choice is of unfinished runs: those of the path had the rounds and rates of the refit, and ended like "
            f"it; of the refit, {why}"]  # fmt: skip


def warn_about_choice(
    choice: CrossValidationChoice, path: RegularizationPath, fitted: dict[str, PathFit], rounds: int
) -> list[str]:
    """What a user should know of a choice: edges of the path, ties, runs that diverged or had not come to an end."""
    said, last = [], len(path.values) - 1
    low, high = min(path.values), max(path.values)
    if choice.best_index == last:
        wider = (low / 100, high) if path.param_name == "strength" else (low, high * 10)
        said.append(
            f"the {choice.rule_labels['min']} lies at the end of the path, {path.param_name}={path.values[-1]:.4g}: "
            f"the best may lie beyond; range=[{wider[0]:.3g},{wider[1]:.3g}] looks further"
        )
    if choice.best_index == 0:
        what = (
            "where no penalised coefficient is left"
            if path.range_description.startswith("the smallest")
            else "the simplest of the path"
        )
        said.append(
            f"the {choice.rule_labels['min']} lies at the beginning of the path, "
            f"{path.param_name}={path.values[0]:.4g}, "
            f"{what}: these rows do not show that a feature helps, or the path begins too late"
        )
    elif choice.chosen_index == 0:
        said.append(f"{choice.rule_labels['one_se']} reaches to the beginning of the path, the simplest solution: of "
                    "folds that differ so much the rule says little; "
                    f"rule=min takes {path.values[choice.best_index]:.4g}")  # fmt: skip
    if np.nanmax(choice.mean) == np.nanmin(choice.mean):
        said.append("all strengths are tied")
    ends = np.stack([each.end_state for each in fitted.values()])
    for end, cure in (
        ("diverged", f"its {path.param_name} is left out of the choice; smaller rates of algo may help"),
        ("falling", "the objective was still falling at the end, so that the curve depends on "
                    f"rounds={rounds}; more rounds or larger rates may help"),
        ("not certified", "a larger algo.max_iterations may help"),
    ):  # fmt: skip
        there = ends == END_STATES.index(end)
        if there.any():
            at = f", {there[:, choice.chosen_index].sum()} of {len(ends)} at the choice" if end != "diverged" else ""
            said.append(f"{end}: {there.sum()} of {there.size} runs{at}: {cure}")
    return said
