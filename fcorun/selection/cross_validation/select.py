"""Choice of a strength by cross-validation: a path on each fold, and a refit on all rows."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.algorithms.base import Baseline
from fcorun.errors import UserError
from fcorun.experiment.decision_threshold import DEFAULT_THRESHOLD, check_threshold
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import prepare, replace_plugins
from fcorun.metrics import RANKING_METRICS
from fcorun.models.choose_threshold import choose_thresholds
from fcorun.models.prediction_file import OUT_OF_FOLD
from fcorun.records.record import SELECTION_FILE
from fcorun.runs.job import Watcher
from fcorun.selection.checks import check_fold_classes, check_global_model, check_subsets, has_global_model
from fcorun.selection.cross_validation import files
from fcorun.selection.cross_validation.choice import choose, warn_about_choice
from fcorun.selection.cross_validation.metric import choose_metric
from fcorun.selection.cross_validation.options import ALL_ROWS, DEFAULT_FOLDS, Selection, SelectOptions
from fcorun.selection.cross_validation.out_of_fold import predict_out_of_fold
from fcorun.selection.cross_validation.refit import apply_choice, refit, warn_unfinished_refit
from fcorun.selection.fitting import PathFit
from fcorun.selection.folds import (
    SubsetMasks,
    assign_folds,
    compute_fold_weights,
    list_held_out_clients,
    list_marked_folds,
)
from fcorun.selection.path import build_path
from fcorun.selection.result import warn_few_evaluations
from fcorun.selection.study import Log, Study, describe_study, prepare_study

_MAX_NAMED_FOLDS = 20  # in a line


@dataclass(frozen=True)
class SelectionPlan:
    """A selection that is ready to run.

    Attributes:
        experiment: the experiment of the refit, but for the strength.
        metric: the metric that chooses.
        fold_weights: the weight of each fold in the mean, (K,).
        held_out_clients: the clients that each fold holds out; None by rows.
        threshold: the rule for the threshold between two classes, applied to the rows out of fold.
        messages: lines to print before the selection begins.
    """

    experiment: PreparedExperiment
    options: SelectOptions
    study: Study
    metric: str
    fold_weights: np.ndarray
    held_out_clients: dict[str, list[str]] | None
    threshold: float | str
    messages: list[str]

    def run(self, log: Log = lambda line: None, watch: Watcher | None = None) -> Selection:
        """Compute the missing fits, choose a value, and refit on all training rows.

        Raises:
            UserError: every value diverged on a fold, or the folder cannot be used.
        """
        study = self.study
        began = time.perf_counter()
        with study.claim():
            selection = self.select_value(log)
            files.write(selection)
            study.begin_refit()
            record = refit(self.apply(selection), study.folder, watch)
            if record.status.get("status") == "done":
                refit_warnings = warn_unfinished_refit(study.experiment, study.data, record.summary)
                selection = replace(selection, refit_warnings=refit_warnings)
            files.write_summary(selection, seconds=time.perf_counter() - began)
        return replace(selection, record=record)

    def select_value(self, log: Log = lambda line: None) -> Selection:
        """Compute the missing fits under ``study.claim()``, and choose a value, without a refit. Raises UserError."""
        return self.choose_value(self.study.compute_fits(_drop_fold_solution, log))

    def apply(self, selection: Selection) -> PreparedExperiment:
        """Return the experiment of the refit, with the value that a selection of this plan chose."""
        return apply_choice(self.experiment, selection)

    def choose_value(self, fits: dict[str, PathFit]) -> Selection:
        """Choose a value of the path by the fits of the folds, and warn about the choice."""
        study, experiment = self.study, self.study.experiment
        diverged = np.full(len(study.path.values), np.nan)  # the scores of a fold whose runs all diverged
        fold_fits = [fit for name, fit in fits.items() if name != ALL_ROWS]
        choice = choose(
            np.stack([fit.metrics.get(self.metric, diverged) for fit in fold_fits]),
            self.options.rule,
            higher_is_better=bool(experiment.metrics[self.metric].higher),
            fold_weights=self.fold_weights,
            paired=self.options.by == "clients" or study.data.train.fold is not None,
        )
        warnings = warn_about_choice(choice, study.path, fits, experiment.settings.rounds)
        predictions = predict_out_of_fold(study, fits, choice.chosen_index)
        thresholds = choose_thresholds(predictions, self.threshold, OUT_OF_FOLD)
        if thresholds is not None:
            predictions = thresholds.apply(predictions)
            warnings += thresholds.warnings
        return Selection(
            study=study,
            path=study.path,
            fits=fits,
            warnings=[*warnings, *warn_few_evaluations(experiment)],
            predictions=predictions,
            thresholds=thresholds,
            options=self.options,
            metric=self.metric,
            fold_weights=self.fold_weights,
            choice=choice,
            held_out_clients=self.held_out_clients,
        )


def select(
    config: Mapping[str, Any] | PreparedExperiment,
    options: SelectOptions = SelectOptions(),  # noqa: B008
    out: str | Path | None = None,
    *,
    log: Log = lambda line: None,
    watch: Watcher | None = None,
) -> Selection:
    """Choose a strength for a configuration, or an experiment, by K folds, and refit the model on all rows.

    A path of strengths runs on the training rows of each fold, evaluated on the rows that the fold holds out, and on
    all training rows. Fits in the folder, by default outputs/DATA/select-ALGO-HASH, are not computed again. The
    validation rows of the data set take no part in the choice: they score the refit, a record in FOLDER/refit.

    Raises:
        UserError: an error that a user can mend. Errors in options or data are raised before anything is written.
    """
    return plan_selection(config, options, out).run(log, watch)


def plan_selection(
    config: Mapping[str, Any] | PreparedExperiment,
    options: SelectOptions,
    out: str | Path | None = None,
    metric: str | None = None,
) -> SelectionPlan:
    """Check a selection, and prepare its folds and its path, without writing anything. Raises UserError.

    ``metric`` chooses, by default the metric of the configuration, which has another name where folds measure it.
    """
    if isinstance(config, PreparedExperiment):
        given, metric = config, metric or config.settings.metric
    else:
        given, metric = prepare({**config, "metric": None}), metric or config.get("metric")
    threshold = given.settings.threshold  # which no fit depends on
    refit_experiment = replace_plugins(given, replace(given.settings, metric=None, threshold=DEFAULT_THRESHOLD))
    experiment, data, experiment_identity = prepare_study(refit_experiment, "select")
    path = build_path(experiment, data, options.points, options.range)
    options = options.resolve(len(data.train.sizes), list_marked_folds(data), data.train.group is not None)
    n_folds = options.folds or DEFAULT_FOLDS
    fold = assign_folds(data, n_folds, options.by, experiment.settings.seed)
    folds = {f"fold{k + 1}": SubsetMasks(train=fold != k, validation=fold == k) for k in range(n_folds)}
    check_subsets(experiment, data, folds, options.by)
    if options.by == "clients":
        check_global_model(experiment, data, "by=clients has nothing to judge on clients held out: give by=rows")
    metric = choose_metric(metric, experiment, data, options.by)
    if metric in RANKING_METRICS.values():
        check_fold_classes(data, folds, metric)
    all_rows = np.ones(len(fold), bool)
    study = Study.create(
        "select",
        experiment,
        data,
        path,
        {ALL_ROWS: SubsetMasks(train=all_rows, validation=~all_rows), **folds},
        experiment_identity=experiment_identity,
        dependencies={name: getattr(options, name) for name in ("folds", "points", "by", "range")},
        row_arrays=[fold],
        study_file=SELECTION_FILE,
        out=out,
    )
    check_threshold(experiment, data, threshold, out_of_fold=True)
    if threshold != DEFAULT_THRESHOLD and not study.keeps_held_out:
        raise UserError(f"threshold={threshold} is chosen on rows out of fold, which are too many here: give fewer "
                        "points, or leave it out")  # fmt: skip
    by = options.by if data.train.fold is None else "data.fold"
    return SelectionPlan(
        experiment=refit_experiment,
        options=options,
        study=study,
        metric=metric,
        fold_weights=compute_fold_weights(data, fold, options.fold_weights == "rows"),
        held_out_clients=list_held_out_clients(data, fold) if options.by == "clients" else None,
        threshold=threshold,
        messages=describe_study(study, f"{n_folds} folds", by, "score the refit", _describe_models(study)),
    )


def _describe_models(study: Study) -> list[str]:
    """Return lines about folds that the data mark, about models of single clients, and about a baseline."""
    experiment, data = study.experiment, study.data
    algo = experiment.names["algo"]
    lines = []
    if names := list_marked_folds(data):
        folds = ", ".join(f"fold{k + 1} '{name}'" for k, name in enumerate(names[:_MAX_NAMED_FOLDS]))
        more = f" and {len(names) - _MAX_NAMED_FOLDS} more" if len(names) > _MAX_NAMED_FOLDS else ""
        column = experiment.data.fold  # type: ignore[attr-defined]
        lines.append(f"the folds are those of data.fold={column}: {folds}{more}")
    if experiment.algo.has_personal_models:
        if has_global_model(experiment, data):
            lines.append("coefficients are those of the global model")
        else:
            lines.append(
                f"algo={algo} trains personal models and no shared one: no path.csv is written, and no nonzeros in "
                "curve.csv"
            )
    if isinstance(experiment.algo, Baseline):
        lines.append(f"algo={algo} is solved in one place: the cost of sending the rows is not counted")
    return lines


def _drop_fold_solution(name: str, fit: PathFit) -> PathFit:
    """Return the fit without its solution, which only the fit of all rows needs."""
    return fit if name == ALL_ROWS else replace(fit, solution={})
