"""The choice of a strength by cross-validation: a path on each fold, and a refit on all rows."""

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
from fcorun.selection import files
from fcorun.selection.checks import (
    check_fold_classes,
    check_global_model,
    check_subsets,
    fits_own_scaling,
    has_global_model,
    prepare_study,
    warn_few_evaluations,
)
from fcorun.selection.choice import CrossValidationChoice, choose, warn_about_choice, warn_unfinished_refit
from fcorun.selection.fitting import PathFit
from fcorun.selection.folds import (
    assign_folds,
    compute_fold_weights,
    list_held_out_clients,
    list_marked_folds,
    warn_filled_gaps,
)
from fcorun.selection.path import RegularizationPath, build_path
from fcorun.selection.result import ALL_ROWS, DEFAULT_FOLDS, Selection, SelectOptions
from fcorun.selection.study import Log, Study, describe_study, sum_costs
from fcorun.system.files import remove_path
from fcorun.system.random_streams import random_stream

_NAMED = 20  # folds that a line names


@dataclass(frozen=True)
class SelectionPlan:
    """A selection that is to be made.

    Attributes:
        config: that of the refit, but for the strength.
        metric: by which is chosen.
        weights: what each fold counts in the mean, (K,).
        held: the clients that each fold holds out; None by rows.
        said: what a user should know before it begins.
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
        """Run what is not there, choose, and run what was chosen on all training rows. Raises UserError."""
        study, path, began = self.study, self.path, time.perf_counter()
        experiment = study.experiment
        with study.claim():
            fitted = study.compute_fits(_slim, log)
            lost = np.full(len(path.values), np.nan)  # of a fold whose runs all diverged
            scores = np.stack(
                [each.metrics.get(self.metric, lost) for name, each in fitted.items() if name != ALL_ROWS]
            )
            higher = bool(experiment.metrics[self.metric].higher)
            paired = self.options.by == "clients" or study.data.fold is not None
            choice = choose(scores, self.options.rule, higher, self.weights, paired)
            said = warn_about_choice(choice, path, fitted, experiment.settings.rounds) + warn_few_evaluations(
                experiment
            )
            found = Selection(
                study=study,
                options=self.options,
                path=path,
                metric=self.metric,
                weights=self.weights,
                fits=fitted,
                choice=choice,
                cost=sum_costs(fitted),
                warnings=said,
                held_out_clients=self.held_out_clients,
            )
            files.write(found)
            record = refit(apply_choice(self.config, path, choice), study.folder, watch)
            if record.status.get("status") == "done":
                found = replace(found, refit=warn_unfinished_refit(experiment, study.data, record.summary))
            files.mark_done(found, time.perf_counter() - began)
        return replace(found, record=record)


def select(
    config: Mapping[str, Any],
    options: SelectOptions = SelectOptions(),  # noqa: B008
    out: str | Path | None = None,
    *,
    log: Log = lambda line: None,
    watch: Watcher | None = None,
) -> Selection:
    """Choose a strength for a configuration by K folds, and run it on all rows.

    A path of strengths runs on the training rows of each fold, evaluated on those held out, and on all training rows.
    Fits that lie in the folder, by default outputs/DATA/select-ALGO-HASH, are not computed again. The data set's own
    validation rows take no part: they judge the refit, a record in FOLDER/refit.

    Raises UserError for whatever a user can mend; what is wrong with options or data, before anything is written.
    """
    return plan_selection(config, options, out).run(log, watch)


def plan_selection(config: Mapping[str, Any], options: SelectOptions, out: str | Path | None = None) -> SelectionPlan:
    """What ``select`` would do. Raises UserError, and writes nothing."""
    try:
        experiment, data, fixed = prepare_study(config, "select")
    except UnknownMetric as error:  # which names metrics of training rows too
        config = _meant(config, options, error)
        experiment, data, fixed = prepare_study(config, "select")
    path = build_path(experiment, data, options.points, options.range)
    options = options.resolve(len(data.sizes), list_marked_folds(data), data.group is not None)
    count = options.folds or DEFAULT_FOLDS
    fold = assign_folds(data, count, options.by, random_stream(experiment.settings.seed, "select", "folds"))
    check_subsets(experiment, data, (fold != k for k in range(count)), options.by, others_held_out=True)
    if options.by == "clients":
        check_global_model(experiment, data, "by=clients has nothing to judge on clients held out: give by=rows")
    metric = _metric(experiment, options, data)
    if metric in RANKING_METRICS.values():
        check_fold_classes(data, [fold == k for k in range(count)], metric)
    anew = fits_own_scaling(experiment)
    none = np.zeros(len(fold), bool)
    parts: dict[str, Callable[[], RowSubset]] = {ALL_ROWS: partial(take_subset, data, ~none, none, False)}
    parts |= {f"fold{k + 1}": partial(take_subset, data, fold != k, fold == k, anew) for k in range(count)}
    asked = {name: value for name, value in asdict(options).items() if name not in ("rule", "fold_weights")}
    study = Study.create(
        "select",
        experiment,
        data,
        without_strength=fixed,
        dependencies=asked,
        row_arrays=[fold],
        out=out,
        number=path.param_name,
        values=path.values,
        parts=parts,
        width=int(data.sizes.max()),
        mark=files.STUDY_FILE,
    )
    weights = compute_fold_weights(data, fold, options.fold_weights == "rows")
    said = _said(study, path, options)
    held = list_held_out_clients(data, fold) if options.by == "clients" else None
    return SelectionPlan(
        config=config,
        options=options,
        study=study,
        path=path,
        metric=metric,
        weights=weights,
        held_out_clients=held,
        messages=said,
    )


def apply_choice(config: Mapping[str, Any], path: RegularizationPath, choice: CrossValidationChoice) -> dict[str, Any]:
    """The configuration with the value that was chosen."""
    reg = dict(config["reg"]) | {path.param_name: float(path.values[choice.chosen_index])}
    if "relative" in reg and path.param_name == "strength":
        reg["relative"] = None
    return {**deepcopy(dict(config)), "reg": reg, "metric": None}  # which the rows of the refit may not measure


def _meant(config: Mapping[str, Any], options: SelectOptions, error: UnknownMetric) -> Mapping[str, Any]:
    """The configuration with ``val_`` before its metric. Raises UserError where that is none by which may be chosen; of
    a test's, or a gap to an optimum, what was said."""
    name = str(config["metric"])
    if name.startswith((TEST_PREFIX, PERSONAL_PREFIX + TEST_PREFIX)) or name == "suboptimality":
        raise error
    experiment, data, _ = prepare_study({**config, "metric": None}, "select")
    choices = _choices(experiment, options, data)
    if name not in choices:
        raise UserError(f"metric={name} is not a choice: {suggest_name(name, choices)}") from error
    return {**config, "metric": f"val_{name}"}


def _choices(experiment: Experiment, options: SelectOptions, data: FederatedData) -> list[str]:
    """The metrics by which may be chosen, as metric= is given."""
    own, held = _own(experiment, options), _held(data)
    names = [name for name in experiment.metrics.comparable if not explain_unmeasured(name, experiment, held)]
    personal = [name for name in names if name.startswith(f"{PERSONAL_PREFIX}val_")] if own else []
    return [name.removeprefix("val_") for name in names if name.startswith("val_")] + personal


def _own(experiment: Experiment, options: SelectOptions) -> bool:
    return experiment.algo.has_personal_models and options.by == "rows"


def _held(data: FederatedData) -> FederatedData:
    """The data with rows that are held out."""
    return replace(data, x_val=data.x, y_val=data.y, offsets_val=None)


def _metric(experiment: Experiment, options: SelectOptions, data: FederatedData) -> str:
    """The metric by which is chosen: that of the configuration, or the loss of the rows that are held out."""
    own = _own(experiment, options)
    name = experiment.settings.metric or (f"{PERSONAL_PREFIX}val_loss" if own else "val_loss")
    if not name.removeprefix(PERSONAL_PREFIX).startswith("val_"):
        raise UserError(f"metric={name} is not measured on rows that are held out: "
                        f"{suggest_name(name, _choices(experiment, options, data))}")  # fmt: skip
    if name.startswith(PERSONAL_PREFIX) and not own:
        why = "by=clients leaves those held out no models of their own" if experiment.algo.has_personal_models else (
            f"clients of algo={experiment.names['algo']} have no models of their own")  # fmt: skip
        raise UserError(f"metric={name}: {why}; give metric={name.removeprefix(PERSONAL_PREFIX).removeprefix('val_')}")
    if why := explain_unmeasured(name, experiment, _held(data)):
        raise UserError(f"metric={name} would not be measured: {why}; give metric=loss")
    return name


def _said(study: Study, path: RegularizationPath, options: SelectOptions) -> list[str]:
    experiment, data = study.experiment, study.data
    by = options.by if data.fold is None else "data.fold"
    lines = describe_study(study, path, f"{options.folds} folds", by, "score the refit")
    if names := list_marked_folds(data):
        each = ", ".join(f"fold{k + 1} '{name}'" for k, name in enumerate(names[:_NAMED]))
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        lines.append(f"the folds are those of data.fold={experiment.data.fold}: {each}{more}")  # type: ignore[attr-defined]
    if experiment.algo.has_personal_models:
        lines.append("coefficients are those of the global model" if has_global_model(experiment, data) else
                     f"clients of algo={experiment.names['algo']} have models of their own and none together: there is "
                     "no path.csv, and no nonzeros in curve.csv")  # fmt: skip
    if isinstance(experiment.algo, Baseline):
        lines.append(f"algo={experiment.names['algo']} is solved in one place: what it costs to send the rows is not "
                     "counted")  # fmt: skip
    return [*lines, *warn_filled_gaps(data), *data.warnings]


def _slim(name: str, fitted: PathFit) -> PathFit:
    """What is kept of a fit: of a fold no solution."""
    return fitted if name == ALL_ROWS else replace(fitted, solution={})


def refit(config: Mapping[str, Any], folder: Path, watch: Watcher | None = None) -> Record:
    """The record of a configuration in FOLDER/refit. Where that holds another choice's, it is replaced when the new
    one, made beside it, is whole. Raises UserError as ``run`` does."""
    mine = prepare(config).identity
    place, staged = folder / REFIT_FOLDER, folder / f"{REFIT_FOLDER}.next"
    if _identity_in(place) in ("", mine) and (_identity_in(place) or not _identity_in(staged)):
        record = run(config, place, watch)
        _removed(staged)
        return record
    if _identity_in(staged) not in ("", mine):
        _removed(staged)
    run(config, staged, watch)
    _removed(place)
    place.mkdir(exist_ok=True)
    for path in sorted(staged.iterdir(), key=lambda path: path.name == "status.json"):  # which makes it a record
        path.replace(place / path.name)
    staged.rmdir()
    return Record(place)


def _identity_in(folder: Path) -> str:
    """The identity of the record in a folder; empty where there is none."""
    return Record(folder).status.get("identity", "")


def _removed(folder: Path) -> None:
    """Remove the record in a folder, or what is left of one whose move was broken off."""
    if held := _identity_in(folder):
        RunFolder(folder, held).remove()
    for name in RECORD_FILES:
        remove_path(folder / name)
