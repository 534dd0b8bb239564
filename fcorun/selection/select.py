"""The choice of a strength by cross-validation: a path on each fold, and a refit on all rows."""

import hashlib
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from fcorun.algorithms.base import Baseline
from fcorun.datasets.base import FederatedData, stream
from fcorun.datasets.part import Part, check_classes, part
from fcorun.errors import UserError
from fcorun.experiment.experiment import Experiment
from fcorun.experiment.prepare import unmeasured
from fcorun.metrics import PERSONAL
from fcorun.runs.job import Watcher
from fcorun.runs.run import run
from fcorun.selection import files
from fcorun.selection.choice import Choice, choose, remarks
from fcorun.selection.fitting import Fitted, Fitter
from fcorun.selection.folds import folds_of
from fcorun.selection.path import Path, path_of
from fcorun.selection.selected import ALL, Options, Selection
from fcorun.selection.study import Tell, begun, claimed, cost, fits, identity_parts, standardized_by_itself

REFIT = "refit"


def select(
    config: Mapping[str, Any],
    options: Options = Options(),  # noqa: B008
    out: str | FilePath | None = None,
    *,
    tell: Tell = lambda line: None,
    watch: Watcher | None = None,
) -> Selection:
    """Choose a strength for a configuration by K folds, and run it on all rows.

    A path of strengths runs on the training rows of each fold, evaluated on those held out, and on all training rows.
    Fits that lie in the folder, by default outputs/DATA/select-ALGO-HASH, are not computed again. The data set's own
    validation rows take no part: they judge the refit, a record in FOLDER/refit.

    Raises UserError for whatever a user can mend, before anything is written.
    """
    experiment, data, fixed = begun(config, "select")
    path = path_of(experiment, data, options.points, options.range)
    fold = folds_of(data, options.folds, options.by, stream(experiment.settings.seed, "select", "folds"))
    for k in range(options.folds):
        check_classes(data, fold != k)
    anew = standardized_by_itself(experiment)
    none = np.zeros(len(fold), bool)
    parts: dict[str, Callable[[], Part]] = {ALL: partial(part, data, ~none, none, False)}
    parts |= {f"fold{k + 1}": partial(part, data, fold != k, fold == k, anew) for k in range(options.folds)}
    metric = _metric(experiment, options, data)
    asked = {name: value for name, value in asdict(options).items() if name != "rule"}
    identity = hashlib.sha256(repr([*identity_parts(fixed), asked]).encode()).hexdigest()
    names = experiment.names
    folder = FilePath(out or FilePath("outputs") / names["data"] / f"select-{names['algo']}-{identity[:8]}")
    label = f"select algo={names['algo']} data={names['data']} reg={names['reg']}"
    for line in (*_plan(label, path, options, experiment, data), *data.remarks):
        tell(line)
    began = time.perf_counter()
    with claimed(folder, files.MARK, identity, label, experiment.settings.force):
        fitter = Fitter(experiment, data, path.number, path.values, int(data.sizes.max()))
        fitted = fits(fitter, folder, parts, _slim, tell)
        lost = np.full(len(path.values), np.nan)  # of a fold whose runs all diverged
        scores = np.stack([each.metrics.get(metric, lost) for name, each in fitted.items() if name != ALL])
        choice = choose(scores, options.rule, bool(experiment.metrics[metric].higher))
        said = remarks(choice, path, fitted, experiment.settings.rounds)
        found = Selection(folder, experiment, data, options, path, metric, fitted, choice, cost(fitted), said)
        files.write(found, identity, label, time.perf_counter() - began)
        record = run(chosen(config, path, choice), folder / REFIT, watch)
        files.finish(found, identity, label)
    return replace(found, record=record)


def chosen(config: Mapping[str, Any], path: Path, choice: Choice) -> dict[str, Any]:
    """The configuration with the value that was chosen."""
    found = deepcopy(dict(config)) | {"metric": None}  # which the rows of the refit may not measure
    found["reg"] |= {path.number: float(path.values[choice.chosen])}
    if "relative" in found["reg"] and path.number == "strength":
        found["reg"]["relative"] = None
    return found


def _metric(experiment: Experiment, options: Options, data: FederatedData) -> str:
    """The metric by which is chosen: that of the configuration, or the loss of the rows that are held out."""
    own = experiment.algo.personalises and options.by == "rows"
    name = experiment.settings.metric or (f"{PERSONAL}val_loss" if own else "val_loss")
    if not name.removeprefix(PERSONAL).startswith("val_"):
        raise UserError(f"metric={name} is not measured on rows that are held out: give loss, or accuracy where there "
                        "are classes")  # fmt: skip
    if name.startswith(PERSONAL) and not own:
        why = "by=clients leaves those held out no models of their own" if experiment.algo.personalises else (
            f"clients of algo={experiment.names['algo']} have no models of their own")  # fmt: skip
        raise UserError(f"metric={name}: {why}; give metric={name.removeprefix(PERSONAL).removeprefix('val_')}")
    held = replace(data, x_val=data.x[:1], y_val=data.y[:1], offsets_val=None)
    if why := unmeasured(name, experiment, held):
        raise UserError(f"metric={name} would not be measured: {why}; give metric=loss")
    return name


def _plan(label: str, path: Path, options: Options, experiment: Experiment, data: FederatedData) -> list[str]:
    ends = "{:.4g} to {:.4g}".format(*path.values[[0, -1]])
    lines = [f"{label}: {options.points} values of {path.number} from {ends} ({path.said}), {options.folds} folds by "
             f"{options.by}"]  # fmt: skip
    if options.by == "rows" and experiment.data.within:
        lines.append(f"data={experiment.names['data']}: {experiment.data.within}")
    if experiment.algo.personalises:
        lines.append("coefficients are those of the global model")
    if isinstance(experiment.algo, Baseline):
        lines.append(f"algo={experiment.names['algo']} is solved in one place: what it costs to send the rows is not "
                     "counted")  # fmt: skip
    return lines


def _slim(name: str, fitted: Fitted) -> Fitted:
    """What is kept of a fit: of a fold no solution."""
    return fitted if name == ALL else replace(fitted, solution={})
