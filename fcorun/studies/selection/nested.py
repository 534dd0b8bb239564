"""Nested cross-validation: the score of a whole selection, whose choice has not seen the rows that it is judged on.

Each outer fold is held out in turn. Inner folds of the other rows choose a value of the path, by the metric and the
rule of the selection, and the fit of all these rows at this value is judged on the outer fold (Stone, J. R. Stat. Soc.
B 1974; Varma and Simon, BMC Bioinformatics 2006).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from fcorun.base.errors import UserError, word
from fcorun.base.metrics import MORE_ROUNDS_ADVICE
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.subset import take_subset
from fcorun.studies.selection.choice import (
    CrossValidationChoice,
    choose,
    compute_weighted_mean,
    drop_failed_refits,
    stack_scores,
)
from fcorun.studies.selection.folds import SubsetMasks, assign_folds, compute_fold_weights
from fcorun.studies.selection.path import RegularizationPath
from fcorun.studies.selection.path_fit import PathFit
from fcorun.studies.selection.study import warn_unconverged


@dataclass(frozen=True, eq=False)
class OuterFold:
    """An outer fold, and the inner folds of the other rows.

    Attributes:
        name: the name of the subset that holds out the outer fold.
        inner: the names of the subsets that hold out an inner fold, and leave the outer fold out.
        inner_weights: the weight of each inner fold in a mean over them, (K,).
    """

    name: str
    inner: Sequence[str]
    inner_weights: Float[np.ndarray, " K"]


@dataclass(frozen=True, eq=False)
class NestedFolds:
    """All folds of a nested cross-validation.

    Attributes:
        outer: the outer folds.
        weights: the weight of each outer fold in a mean over them, (J,).
        subsets: the rows of the subsets that hold out an outer fold, or an inner one, by name.
        fold: the outer fold, from 0, in which each training row is held out, (N,).
        inner_fold: the inner fold of each training row without an outer fold, (J, N); -1 in the outer fold.
    """

    outer: Sequence[OuterFold]
    weights: Float[np.ndarray, " J"]
    subsets: Mapping[str, SubsetMasks]
    fold: Int[np.ndarray, " N"]
    inner_fold: Int[np.ndarray, "J N"]

    @property
    def outer_subsets(self) -> dict[str, SubsetMasks]:
        """The rows of the subsets that hold out an outer fold: outer1, outer2, ..."""
        return {f"outer{j + 1}": self.subsets[fold.name] for j, fold in enumerate(self.outer)}


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
    names = [f"fold{j + 1}" if n_outer == n_inner else f"outer{j + 1}" for j in range(n_outer)]
    inner_fold = np.full((n_outer, len(fold)), -1)
    subsets = {}
    outer = []
    for j, name in enumerate(names):
        remaining = fold != j
        subsets[name] = SubsetMasks(train=remaining, validation=~remaining)
        rows = _take_without_features(data, remaining)
        inner_fold[j, remaining] = _assign_inner_folds(rows, n_inner, by, seed, j)
        inner_weights = compute_fold_weights(rows, inner_fold[j, remaining], weigh_rows)
        inner = [f"outer{j + 1}-fold{k + 1}" for k in range(len(inner_weights))]
        for k, inner_name in enumerate(inner):
            held_out = inner_fold[j] == k
            subsets[inner_name] = SubsetMasks(remaining & ~held_out, held_out, keeps_predictions=False)
        outer.append(OuterFold(name, inner, inner_weights))
    return NestedFolds(outer, compute_fold_weights(data, fold, weigh_rows), subsets, fold, inner_fold)


def _take_without_features(data: FederatedData, rows: np.ndarray) -> FederatedData:
    """Return the rows of a mask, (N,), without features, which folds do not need and which would take memory."""
    rows_alone = replace(data.train, x=data.train.x[:, :0])
    without_features = replace(data, train=rows_alone, features=replace(data.features, cells=None))
    return take_subset(without_features, rows, ~rows, restandardize=False).data


def _assign_inner_folds(data: FederatedData, n_inner: int, by: str, seed: int, j: int) -> np.ndarray:
    """Return the inner fold of each row that outer fold ``j`` leaves. Raises UserError."""
    if by == "clients":
        n_inner = min(n_inner, len(data.train.sizes))
        if n_inner < 2:
            raise UserError(
                f"outer fold {j + 1} leaves client {data.client_names[0]} alone, of which inner folds would be "
                "clients: give more outer_folds, or `by=rows`"
            )
    try:
        return assign_folds(data, n_inner, by, seed, within=("outer", str(j + 1)))
    except UserError as error:
        raise UserError(f"in the rows that outer fold {j + 1} leaves, {error}") from error


@dataclass(frozen=True, eq=False, repr=False)
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

    def __repr__(self) -> str:
        n_folds = len(self.scores)
        return f"NestedScore({self.mean:.4g} ± {self.standard_error:.2g} over {n_folds} outer folds)"

    @property
    def chosen(self) -> Int[np.ndarray, " J"]:
        """The position on the path of the value that is chosen without each outer fold, (J,)."""
        return np.array([choice.chosen_index for choice in self.choices])

    @property
    def chosen_by_subset(self) -> dict[str, int]:
        """The position of the chosen value, by the name of the subset that holds out the outer fold."""
        return {fold.name: choice.chosen_index for fold, choice in zip(self.folds.outer, self.choices, strict=True)}


def judge_choices(
    folds: NestedFolds,
    fits: Mapping[str, PathFit],
    metric: str,
    rule: str,
    *,
    higher_is_better: bool,
    paired: bool,
    n_paths: int = 1,
) -> NestedScore:
    """Choose a value without each outer fold by its inner folds, as ``choose`` does, and judge it on the outer fold.

    Raises:
        UserError: without some outer fold, every value of the path lacks a finite score on an inner fold.
    """
    choices = [
        choose(
            drop_failed_refits(stack_scores(fits, outer.inner, metric), fits, outer.name),
            rule,
            higher_is_better,
            outer.inner_weights,
            paired=paired,
            n_paths=n_paths,
        )
        for outer in folds.outer
    ]
    by_value = stack_scores(fits, [outer.name for outer in folds.outer], metric)
    chosen = [choice.chosen_index for choice in choices]
    scores = by_value[np.arange(len(chosen)), chosen]
    mean, standard_error = compute_weighted_mean(scores[:, None], folds.weights)
    own_fits = {name: fits[name] for name in folds.subsets}
    return NestedScore(
        folds=folds,
        fits=own_fits,
        choices=choices,
        scores=scores,
        mean=float(mean[0]),
        standard_error=float(standard_error[0]),
    )


def warn_about_nested(nested: NestedScore, path: RegularizationPath) -> list[str]:
    """Return warnings about the choices without each outer fold: at the end of the path, or of runs that diverged."""
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
        warnings.append(
            word(
                f"nested: for {n_at_end} of {len(best)} outer folds, the best value is at the end of the path: the "
                "best may be beyond; give `range=[LOW,HIGH]`"
            )
        )
    advice = "the objective was still falling at the end; " + MORE_ROUNDS_ADVICE
    return warnings + [f"nested: {text}" for text in warn_unconverged(nested.fits, advice)]
