"""Choice of a strength by cross-validation: a path on each fold, and a refit on all rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.config import GRID_SECTIONS
from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.metrics import RANKING_METRICS
from fcorun.base.records.record import OUT_OF_FOLD, Record
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.scaling import explain_own_scale
from fcorun.experiment.classifiers import check_threshold
from fcorun.experiment.experiment import PreparedExperiment, describe_remaining_descent
from fcorun.experiment.optimality_gap import OptimalityGap
from fcorun.experiment.prepare import prepare, replace_plugins
from fcorun.experiment.requirements import has_gaps
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD, ThresholdRule
from fcorun.methods.algorithms.algorithm import Baseline
from fcorun.results.models.predictions import choose_thresholds, fixed_thresholds
from fcorun.runs.pooled_fits import prepare_tables
from fcorun.studies.selection.choice import (
    NestedFolds,
    add_fold_scores,
    check_fold_score,
    choose,
    choose_metric,
    draw_nested_folds,
    drop_failed_refits,
    find_fold_score,
    find_metric,
    stack_scores,
    warn_about_choice,
    warn_about_nested,
)
from fcorun.studies.selection.fitting import PathFit, join_folds
from fcorun.studies.selection.folds import (
    SubsetMasks,
    assign_folds,
    check_fold_classes,
    check_global_model,
    check_outer_folds,
    check_subsets,
    compute_fold_weights,
    describe_subset,
    holds_out_clients,
    list_marked_folds,
    name_held_out_clients,
    split_by_fold,
    warn_about_classes,
)
from fcorun.studies.selection.path import build_paths, check_linear_model, weigh_features
from fcorun.studies.selection.selection_result import ALL_ROWS, DEFAULT_FOLDS, Selection, SelectOptions
from fcorun.studies.selection.study import Log, Study, StudyPlan, describe_study, prepare_study, warn_few_evaluations

_MAX_NAMED_FOLDS = 20  # in a line


@dataclass(frozen=True, kw_only=True)
class SelectionPlan(StudyPlan[Selection]):
    """A selection that is ready to run; ``experiment`` is that of the refit, but for the strength.

    A path of strengths runs on the training rows of each fold, and is evaluated on the rows that the fold holds out. A
    further path runs on all training rows. Fits in the folder, by default outputs/DATA/select-ALGO-HASH, are not
    computed again. The validation rows of the data set take no part in the choice: they score the refit, a record in
    FOLDER/refit.

    Attributes:
        metric: the metric that chooses.
        fold_weights: the weight of each fold in the mean, (K,).
        nested_folds: the folds of a nested cross-validation; None without.
        held_out_clients: the clients that each fold holds out; None without by=clients.
        threshold: the rule for the threshold between two classes, applied to the rows out of fold.
        keeps_solutions: whether the fits keep the solutions without each fold, or outer fold.
    """

    options: SelectOptions
    metric: str
    fold_weights: np.ndarray
    held_out_clients: dict[str, list[str]] | None
    threshold: float | str
    nested_folds: NestedFolds | None = None
    keeps_solutions: bool = False

    def select_value(self, log: Log = lambda line: None) -> Selection:
        """Compute the missing fits under ``study.claim()``, and choose a value, without a refit. Raises UserError."""
        return self.conclude(self.study.compute_fits(self.reduce_fit, log))

    def reduce_fit(self, name: str, fit: PathFit) -> PathFit:
        """Return a fit without predictions that are not needed, and without a solution not needed."""
        predicts = self.study.subsets[name].keeps_predictions
        if name != ALL_ROWS and not (predicts and self.keeps_solutions):
            fit = replace(fit, solution={})
        if not predicts:
            fit = replace(fit, held_out={})
        return fit

    def conclude(self, fits: dict[str, PathFit]) -> Selection:
        """Choose a value of the path by the fits of the folds, and warn about the choice."""
        study, experiment, rule = self.study, self.study.experiment, self.options.rule
        folds = [f"fold{k + 1}" for k in range(len(self.fold_weights))]
        fits = add_fold_scores(study, fits, self.metric)
        own_fits = {name: fits[name] for name in (ALL_ROWS, *folds)}
        higher = bool(find_metric(experiment, self.metric).higher)
        # clients and marked folds differ from each other, so that strengths are compared fold by fold
        paired = self.options.by == "clients" or study.data.train.fold is not None
        scores = drop_failed_refits(stack_scores(fits, folds, self.metric), fits, ALL_ROWS)
        by_rule = partial(choose, rule=rule, higher_is_better=higher, paired=paired, n_paths=study.path.n_paths)
        choice = by_rule(scores, fold_weights=self.fold_weights)
        warnings = warn_about_choice(choice, study.path, own_fits, experiment.settings.rounds)
        subsets = {name: study.subsets[name] for name in folds}
        warnings += warn_about_classes(study.data, subsets, self.metric, float(choice.mean[choice.best_index]))
        by_client = study.data.features.standardized_by == "per_client"
        if by_client and (self.held_out_clients is not None or holds_out_clients(study.data, subsets)):
            warnings.append(explain_own_scale("the clients that a fold holds out"))
        unweighted = experiment.data.describe_unweighted()
        if unweighted and find_fold_score(experiment, self.metric) is not None:
            warnings.append(word(f"`metric={self.metric.removeprefix('val_')}`: {unweighted}"))
        nested = None
        chosen_by_fold = dict.fromkeys(folds, choice.chosen_index)
        if self.nested_folds is not None:
            nested = self.nested_folds.judge(fits, self.metric, by_rule)
            warnings += warn_about_nested(nested, study.path)
            chosen_by_fold = dict(zip(nested.folds.inner, nested.chosen, strict=True))
        rows = {}
        outputs = []
        for number, (name, index) in enumerate(chosen_by_fold.items(), start=1):
            rows[number] = np.flatnonzero(study.subsets[name].validation)
            outputs.append({model: values[index] for model, values in fits[name].held_out.items()})
        predictions = join_folds(experiment.objective, study.data, rows, outputs)
        thresholds = None
        if predictions and predictions[0].probability is not None:
            thresholds = choose_thresholds(predictions, self.threshold, OUT_OF_FOLD, unweighted)
            predictions = thresholds.apply(predictions)
            warnings += thresholds.warnings
        elif self.threshold != DEFAULT_THRESHOLD:  # a number: a rule is refused without these predictions
            thresholds = fixed_thresholds(self.threshold)
        return Selection(
            study=study,
            path=study.path,
            fits=own_fits,
            warnings=[*warnings, *warn_few_evaluations(experiment)],
            predictions=predictions,
            thresholds=thresholds,
            options=self.options,
            metric=self.metric,
            fold_weights=self.fold_weights,
            choice=choice,
            nested=nested,
            held_out_clients=self.held_out_clients,
        )

    def apply(self, result: Selection) -> PreparedExperiment:
        """Return the experiment of the refit, with the numbers and the threshold that a selection chose."""
        chosen = result.path.apply(self.experiment, result.choice.chosen_index)
        plugins = {section: getattr(chosen, section) for section in GRID_SECTIONS}
        return replace_plugins(self.experiment, replace(chosen.settings, threshold=result.threshold), **plugins)

    def warn_about_refit(self, record: Record) -> list[str]:
        """Return warnings about a refit that is done, and had not converged."""
        if record.status.get("status") != "done":
            return []
        return warn_unfinished_refit(self.study.experiment, self.study.data, record.summary)


def plan_selection(
    config: Mapping[str, Any] | PreparedExperiment,
    options: SelectOptions,
    out: str | Path | None = None,
    metric: str | None = None,
    varies_strength: bool = True,
    has_refit: bool = True,
) -> SelectionPlan:
    """Check a selection, and prepare its folds and its path, without writing anything. Raises UserError.

    ``metric`` chooses, by default the metric of the configuration, as ``choose_metric`` names it for folds. Without
    ``varies_strength``, as for a candidate of a comparison that ignores psi, the folds score one fit. Without
    ``has_refit`` no model is fitted to all rows in the end, which validation and test rows would score.
    """
    if isinstance(config, PreparedExperiment):
        given, metric = config, metric or config.settings.metric
    else:
        given, metric = prepare({**config, "metric": None}), metric or config.get("metric")
    threshold = given.settings.threshold  # which no fit depends on
    options, refit_experiment = _separate_options(options, given)
    prepared = prepare_study(refit_experiment, "select", varies_strength)
    experiment, data = prepared.experiment, prepared.data
    weighted = experiment
    if options.adaptive:
        weighted = weigh_features(experiment, data)
        refit_experiment = replace_plugins(refit_experiment, refit_experiment.settings, reg=weighted.reg)
    if options.shares:
        check_linear_model("relax", experiment, data)
    numbers = {"points": options.points, "value_range": options.range, "second": options.second}
    path = build_paths(weighted, data, varies_strength=varies_strength, **numbers)
    path = replace(path, is_adaptive=options.adaptive is not None).relax(options.shares)
    options = options.resolve(len(data.train.sizes), list_marked_folds(data), data.train.group is not None)
    n_folds = options.folds or DEFAULT_FOLDS
    fold_seed = experiment.data.fold_seed(experiment.settings.seed)
    fold = assign_folds(data, n_folds, options.by, fold_seed)
    folds = split_by_fold(fold)
    subsets, row_arrays = dict(folds), [fold]
    nested_folds = None
    if options.outer_folds is not None:
        weighing = {"by": options.by, "weigh_rows": options.fold_weights == "rows", "seed": fold_seed}
        nested_folds = draw_nested_folds(data, options.outer_folds, n_folds, **weighing)
        subsets |= nested_folds.subsets
        row_arrays += [nested_folds.fold, nested_folds.inner_fold]
        check_outer_folds(data, nested_folds.outer_subsets, options.by)
    check_subsets(experiment, data, subsets, options.by)
    held_out_clients = None
    if options.by == "clients":
        check_global_model(experiment, "`by=clients` has nothing to judge on clients held out: give `by=rows`")
        held_out_clients = name_held_out_clients(data.client_names, fold[data.train.offsets[:-1]])
    metric = choose_metric(metric, experiment, data, options.by)
    if metric in RANKING_METRICS:
        check_fold_classes(data, subsets, metric)
    all_rows = np.ones(len(fold), bool)
    study = Study.create(
        prepared,
        path,
        {ALL_ROWS: SubsetMasks(train=all_rows, validation=~all_rows), **subsets},
        dependencies=options.dependencies,
        row_arrays=row_arrays,
        out=out,
    )
    _check_learnt(study)
    check_fold_score(study, metric, nested_folds is not None)
    check_threshold(experiment, data, threshold, out_of_fold=True)
    if ThresholdRule.parse(threshold).needs_rows and not study.keeps_held_out:
        raise UserError(f"`threshold={threshold}` is chosen on rows out of fold, which are too many here: give fewer "
                        "points, or a number")  # fmt: skip
    return SelectionPlan(
        experiment=refit_experiment,
        options=options,
        study=study,
        metric=metric,
        fold_weights=compute_fold_weights(data, fold, options.fold_weights == "rows"),
        held_out_clients=held_out_clients,
        threshold=threshold,
        nested_folds=nested_folds,
        messages=_describe_plan(study, options, has_refit),
    )


def _check_learnt(study: Study) -> None:
    """Raise UserError if the rows of a subset do not determine how gaps are imputed."""
    experiment = study.experiment
    if experiment.settings.imputations:
        for name in study.subsets:
            data = study.take_subset(name).data
            try:
                if has_gaps(data):
                    prepare_tables(experiment, data)
            except UserError as error:
                where = "" if name == ALL_ROWS else f" (of the rows without {describe_subset(name)})"
                raise UserError(f"{error}{where}") from error


def _separate_options(
    options: SelectOptions, experiment: PreparedExperiment
) -> tuple[SelectOptions, PreparedExperiment]:
    """Return the options, with the ``relax`` of the experiment if they have none, and the experiment without options.

    Raises UserError if the problem has no relaxed coefficients.
    """
    settings = replace(experiment.settings, metric=None, threshold=DEFAULT_THRESHOLD, relax=None)
    if options.relax is None:
        options = replace(options, relax=experiment.settings.relax)
    if options.shares:
        replace_plugins(experiment, replace(settings, relax=min(options.shares)))  # raises without relaxed coefficients
    return options, replace_plugins(experiment, settings)


def _describe_plan(study: Study, options: SelectOptions, has_refit: bool) -> list[str]:
    """Return lines about the folds, about what is solved in one place, and about personal models."""
    experiment, data, path = study.experiment, study.data, study.path
    algo = f"`algo={experiment.names['algo']}`"
    lines = []
    solved_in_one_place = {
        algo: isinstance(experiment.algo, Baseline),
        "the pilot of adaptive": path.is_adaptive,
        "the fits without a penalty of relax": path.shares is not None,
    }
    if any(solved_in_one_place.values()):
        solved = " and ".join(name for name, applies in solved_in_one_place.items() if applies)
        lines.append(word(f"solved in one place: {solved}; the cost of sending the rows is not counted"))
    if names := list_marked_folds(data):
        folds = abbreviate([f"fold{k + 1} '{name}'" for k, name in enumerate(names)], _MAX_NAMED_FOLDS)
        column = experiment.data.fold  # type: ignore[attr-defined]
        lines.append(word(f"the folds are those of `data.fold={column}`: {folds}"))
    if not experiment.has_shared_model:
        lines.append(word(f"{algo} trains personal models and no shared one: there is no path.csv, and no nonzeros"))
    division = f"{options.folds} folds"
    if options.outer_folds is not None:
        division += f", and for the score {options.outer_folds} outer folds with inner folds,"
    by = options.by if data.train.fold is None else "data.fold"
    use = "score the refit" if has_refit else "take no part"
    is_drawn = hasattr(experiment.data, "validation") and getattr(experiment.data, "split", None) is None
    if not has_refit and is_drawn and data.validation is not None:
        use += word(" (`data.validation=0` makes training rows of validation rows)")
    return describe_study(study, division, by, use, lines)


def warn_unfinished_refit(experiment: PreparedExperiment, data: FederatedData, summary: Mapping[str, Any]) -> list[str]:
    """Return a warning if the refit, whose ``summary`` is given, had not converged.

    The runs of the path had the same rounds and rates, so that the choice is one of unconverged runs, too.
    """
    certificate = summary.get("certificate") or (summary.get("relaxed") or {}).get("certificate_of_lasso") or {}
    descent = summary.get("unfinished")
    if certificate.get("near") is False:
        reason = OptimalityGap(**certificate).describe(experiment, data, falling=bool(descent))
    elif descent:
        reason = describe_remaining_descent(descent)
    else:
        return []
    return [
        "the choice is of unfinished runs: those of the path had the rounds and rates of the refit, and ended like "
        f"it; of the refit, {reason}"
    ]
