"""Choice of a strength by cross-validation: a path on each fold, and a refit on all rows."""

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.algorithms.base import Baseline
from fcorun.datasets.base import FederatedData
from fcorun.datasets.subset import RowSubset, take_subset
from fcorun.errors import UnknownMetric, UserError, suggest_name
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import explain_unmeasured, prepare
from fcorun.metrics import PERSONAL_PREFIX, RANKING_METRICS, TEST_PREFIX
from fcorun.records.folder import RunFolder
from fcorun.records.record import RECORD_FILES, REFIT_FOLDER, Record
from fcorun.runs.job import Watcher
from fcorun.runs.run import run
from fcorun.selection.checks import (
    check_fold_classes,
    check_global_model,
    check_subsets,
    fits_own_scaling,
    has_global_model,
    prepare_study,
    warn_few_evaluations,
)
from fcorun.selection.cross_validation import files
from fcorun.selection.cross_validation.choice import (
    CrossValidationChoice,
    choose,
    warn_about_choice,
    warn_unfinished_refit,
)
from fcorun.selection.cross_validation.options import ALL_ROWS, DEFAULT_FOLDS, Selection, SelectOptions
from fcorun.selection.fitting import PathFit
from fcorun.selection.folds import (
    assign_folds,
    compute_fold_weights,
    list_held_out_clients,
    list_marked_folds,
    warn_filled_gaps,
)
from fcorun.selection.path import RegularizationPath, build_path
from fcorun.selection.study import Log, Study, describe_study, sum_costs
from fcorun.system.files import remove_path
from fcorun.system.random_streams import random_stream

_MAX_NAMED_FOLDS = 20  # in a line


@dataclass(frozen=True)
class SelectionPlan:
    """A selection that is ready to run.

    Attributes:
        config: the configuration of the refit, but for the strength.
        metric: the metric that chooses.
        weights: the weight of each fold in the mean, (K,).
        held_out_clients: the clients that each fold holds out; None by rows.
        messages: lines to print before the selection begins.
    """

    config: Mapping[str, Any]
    options: SelectOptions
    study: Study
    path: RegularizationPath
    metric: str
    weights: np.ndarray
    held_out_clients: dict[str, list[str]] | None
    messages: list[str]

    def run(self, log: Log = lambda line: None, watch: Watcher | None = None) -> Selection:
        """Compute the missing fits, choose a value, and refit on all training rows.

        Raises:
            UserError: every value diverged on a fold, or the folder cannot be used.
        """
        study, path = self.study, self.path
        experiment = study.experiment
        began = time.perf_counter()
        with study.claim():
            fits = study.compute_fits(_reduce_fit, log)
            diverged = np.full(len(path.values), np.nan)  # the scores of a fold whose runs all diverged
            fold_fits = [fit for name, fit in fits.items() if name != ALL_ROWS]
            scores = np.stack([fit.metrics.get(self.metric, diverged) for fit in fold_fits])
            higher_is_better = bool(experiment.metrics[self.metric].higher)
            paired = self.options.by == "clients" or study.data.fold is not None
            choice = choose(scores, self.options.rule, higher_is_better, self.weights, paired)
            warnings = warn_about_choice(choice, path, fits, experiment.settings.rounds)
            warnings += warn_few_evaluations(experiment)
            selection = Selection(
                study=study,
                options=self.options,
                path=path,
                metric=self.metric,
                weights=self.weights,
                fits=fits,
                choice=choice,
                cost=sum_costs(fits),
                warnings=warnings,
                held_out_clients=self.held_out_clients,
            )
            files.write(selection)
            record = refit(apply_choice(self.config, path, choice), study.folder, watch)
            if record.status.get("status") == "done":
                refit_warnings = warn_unfinished_refit(experiment, study.data, record.summary)
                selection = replace(selection, refit_warnings=refit_warnings)
            files.mark_done(selection, time.perf_counter() - began)
        return replace(selection, record=record)


def select(
    config: Mapping[str, Any],
    options: SelectOptions = SelectOptions(),  # noqa: B008
    out: str | Path | None = None,
    *,
    log: Log = lambda line: None,
    watch: Watcher | None = None,
) -> Selection:
    """Choose a strength for a configuration by K folds, and refit the model on all rows.

    A path of strengths runs on the training rows of each fold, evaluated on the rows that the fold holds out, and on
    all training rows. Fits in the folder, by default outputs/DATA/select-ALGO-HASH, are not computed again. The
    validation rows of the data set take no part in the choice: they score the refit, a record in FOLDER/refit.

    Raises:
        UserError: an error that a user can mend. Errors in options or data are raised before anything is written.
    """
    return plan_selection(config, options, out).run(log, watch)


def plan_selection(config: Mapping[str, Any], options: SelectOptions, out: str | Path | None = None) -> SelectionPlan:
    """Check a selection, and prepare its folds and its path, without writing anything. Raises UserError."""
    try:
        experiment, data, without_strength = prepare_study(config, "select")
    except UnknownMetric as error:  # metric=loss stands for val_loss here
        config = _prefix_metric(config, options, error)
        experiment, data, without_strength = prepare_study(config, "select")
    path = build_path(experiment, data, options.points, options.range)
    options = options.resolve(len(data.sizes), list_marked_folds(data), data.group is not None)
    n_folds = options.folds or DEFAULT_FOLDS
    fold = assign_folds(data, n_folds, options.by, random_stream(experiment.settings.seed, "select", "folds"))
    check_subsets(experiment, data, (fold != k for k in range(n_folds)), options.by, others_held_out=True)
    if options.by == "clients":
        check_global_model(experiment, data, "by=clients has nothing to judge on clients held out: give by=rows")
    metric = _choose_metric(experiment, options, data)
    if metric in RANKING_METRICS.values():
        check_fold_classes(data, [fold == k for k in range(n_folds)], metric)
    restandardize = fits_own_scaling(experiment)
    no_rows = np.zeros(len(fold), bool)
    subset_makers: dict[str, Callable[[], RowSubset]] = {ALL_ROWS: partial(take_subset, data, ~no_rows, no_rows, False)}
    for k in range(n_folds):
        subset_makers[f"fold{k + 1}"] = partial(take_subset, data, fold != k, fold == k, restandardize)
    fit_options = {name: value for name, value in asdict(options).items() if name not in ("rule", "fold_weights")}
    study = Study.create(
        "select",
        experiment,
        data,
        path,
        without_strength=without_strength,
        dependencies=fit_options,
        row_arrays=[fold],
        subset_makers=subset_makers,
        max_client_rows=int(data.sizes.max()),
        study_file=files.STUDY_FILE,
        out=out,
    )
    return SelectionPlan(
        config=config,
        options=options,
        study=study,
        path=path,
        metric=metric,
        weights=compute_fold_weights(data, fold, options.fold_weights == "rows"),
        held_out_clients=list_held_out_clients(data, fold) if options.by == "clients" else None,
        messages=_describe_plan(study, path, options),
    )


def apply_choice(config: Mapping[str, Any], path: RegularizationPath, choice: CrossValidationChoice) -> dict[str, Any]:
    """Return the configuration of the refit, with the chosen value.

    The refit has no ``metric``, since its own rows may not measure the metric of the folds.
    """
    reg = dict(config["reg"]) | {path.param_name: float(path.values[choice.chosen_index])}
    if "relative" in reg and path.param_name == "strength":
        reg["relative"] = None
    return {**deepcopy(dict(config)), "reg": reg, "metric": None}


def _prefix_metric(config: Mapping[str, Any], options: SelectOptions, error: UnknownMetric) -> Mapping[str, Any]:
    """Return the configuration with ``val_`` before its metric.

    Raises UserError if that is not a metric that can choose, and ``error`` again for a test metric or a gap to an
    optimum.
    """
    name = str(config["metric"])
    if name.startswith((TEST_PREFIX, PERSONAL_PREFIX + TEST_PREFIX)) or name == "suboptimality":
        raise error
    experiment, data, _ = prepare_study({**config, "metric": None}, "select")
    metrics = _list_metrics(experiment, options, data)
    if name not in metrics:
        raise UserError(f"metric={name} is not a choice: {suggest_name(name, metrics)}") from error
    return {**config, "metric": f"val_{name}"}


def _list_metrics(experiment: Experiment, options: SelectOptions, data: FederatedData) -> list[str]:
    """Return the metrics that can choose, as a user gives them with ``metric=``."""
    fold_data = _with_held_out_rows(data)
    names = [name for name in experiment.metrics.comparable if not explain_unmeasured(name, experiment, fold_data)]
    metrics = [name.removeprefix("val_") for name in names if name.startswith("val_")]
    if _scores_personal_models(experiment, options):
        metrics += [name for name in names if name.startswith(f"{PERSONAL_PREFIX}val_")]
    return metrics


def _scores_personal_models(experiment: Experiment, options: SelectOptions) -> bool:
    return experiment.algo.has_personal_models and options.by == "rows"


def _with_held_out_rows(data: FederatedData) -> FederatedData:
    """Return the data with some validation rows, as in a fold."""
    return replace(data, x_val=data.x, y_val=data.y, offsets_val=None)


def _choose_metric(experiment: Experiment, options: SelectOptions, data: FederatedData) -> str:
    """Return the metric that chooses: of the configuration, or else the loss of held-out rows. Raises UserError."""
    personal = _scores_personal_models(experiment, options)
    name = experiment.settings.metric or (f"{PERSONAL_PREFIX}val_loss" if personal else "val_loss")
    if not name.removeprefix(PERSONAL_PREFIX).startswith("val_"):
        raise UserError(
            f"metric={name} is not measured on rows that are held out: "
            f"{suggest_name(name, _list_metrics(experiment, options, data))}"
        )
    if name.startswith(PERSONAL_PREFIX) and not personal:
        reason = f"algo={experiment.names['algo']} has no personal models"
        if experiment.algo.has_personal_models:
            reason = "by=clients leaves held-out clients without personal models"
        raise UserError(
            f"metric={name}: {reason}; give metric={name.removeprefix(PERSONAL_PREFIX).removeprefix('val_')}"
        )
    if reason := explain_unmeasured(name, experiment, _with_held_out_rows(data)):
        raise UserError(f"metric={name} would not be measured: {reason}; give metric=loss")
    return name


def _describe_plan(study: Study, path: RegularizationPath, options: SelectOptions) -> list[str]:
    """Return the lines to print before a selection begins."""
    experiment, data = study.experiment, study.data
    algo = experiment.names["algo"]
    by = options.by if data.fold is None else "data.fold"
    lines = describe_study(study, path, f"{options.folds} folds", by, "score the refit")
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
    return [*lines, *warn_filled_gaps(data), *data.warnings]


def _reduce_fit(name: str, fit: PathFit) -> PathFit:
    """Return the fit without its solution, which only the fit of all rows needs."""
    return fit if name == ALL_ROWS else replace(fit, solution={})


def refit(config: Mapping[str, Any], folder: Path, watch: Watcher | None = None) -> Record:
    """Return the record of a configuration in FOLDER/refit.

    If FOLDER/refit has the record of another choice, the new record is made beside it, in FOLDER/refit.next, and
    replaces it once it is complete. Raises UserError as ``run`` does.
    """
    identity = prepare(config).identity
    final, staged = folder / REFIT_FOLDER, folder / f"{REFIT_FOLDER}.next"
    final_identity, staged_identity = _read_identity(final), _read_identity(staged)
    interrupted_move = not final_identity and staged_identity
    if final_identity in ("", identity) and not interrupted_move:
        record = run(config, final, watch)
        _remove_record(staged)
        return record
    if staged_identity not in ("", identity):
        _remove_record(staged)
    run(config, staged, watch)
    _remove_record(final)
    final.mkdir(exist_ok=True)
    for path in sorted(staged.iterdir(), key=lambda path: path.name == "status.json"):  # last, as it makes a record
        path.replace(final / path.name)
    staged.rmdir()
    return Record(final)


def _read_identity(folder: Path) -> str:
    """Return the identity of the record in a folder; empty if the folder has no record."""
    return Record(folder).status.get("identity", "")


def _remove_record(folder: Path) -> None:
    """Remove the record in a folder, or the files that an interrupted move left."""
    if identity := _read_identity(folder):
        RunFolder(folder, identity).remove()
    for name in RECORD_FILES:
        remove_path(folder / name)
