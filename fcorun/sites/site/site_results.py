"""The files that a site keeps for itself: the record of a run, and out-of-fold predictions of its own rows.

The result of a run, which each site receives, has the files of the record that are tables, texts and numbers. When the
runs on a fold have ended, the outputs of all of them for the rows that the fold holds out are written into the site's
folder. The result of the selection tells which run was chosen, whose outputs are then the predictions.
"""

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.formats import READ_ERRORS, arrays_from_bytes, json_text, npz_bytes, read_npz, yaml_text
from fcorun.base.records.record import AWAY_FILE, BASELINE_HAZARD_FILE, PERSONAL, PREDICTIONS_FILE, SHARED
from fcorun.base.system.files import read_regular_file, remove_path, write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.encoding import ENCODING_FILE
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD
from fcorun.results.inference.methods import INTERVALS_FILE, INTERVALS_TEXT
from fcorun.results.models.client_intercepts import add_client_intercepts
from fcorun.results.models.coefficients import (
    coefficients_from,
    format_by_client,
    load_client_coefficients,
    no_coefficients_reason,
)
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.results.models.predictions import note_too_many_rows, predict_splits, predictions_csv
from fcorun.results.survival import baseline_hazards
from fcorun.sites.plan.plan import Plan
from fcorun.sites.site.site_batch import SiteBatch
from fcorun.sites.site.site_folds import SiteFolds
from fcorun.sites.transport.messages import Message
from fcorun.studies.selection.fitting import join_folds, keeps_held_out, predict_validation_rows
from fcorun.studies.selection.path import find_path_parameter

_STATUS = "status.json"
_MODEL = "solution.npz"
_CONFIG = "config.yaml"
_SUMMARY = "summary.json"
_COEFFICIENTS = "coefficients.csv"
RESULT_FILES = (
    *("metrics.csv", "scores.csv", _COEFFICIENTS, INTERVALS_FILE, INTERVALS_TEXT, AWAY_FILE, ENCODING_FILE),
    _SUMMARY,
    *(_MODEL, _STATUS),
)
_PERSONAL, _SCALING, _BY_CLIENT = "personal.npz", "scaling.npz", "coefficients_by_client.csv"  # the site's own
_FOR_PREDICTIONS = {"features", "feature_names", "task", "classes", "class_type", "scale", "standardized", "limits"}
MAX_RESULT_BYTES = 2**28
_PREDICTIONS = "its predictions"
_log = logging.getLogger(__name__)


def pack_result(record: FittedRecord) -> dict[str, np.ndarray]:
    """Return the files of a record that sites receive, as arrays of bytes by their names."""
    files = {}
    for name in RESULT_FILES:
        path = record.folder / name
        if path.exists():
            files[name] = np.frombuffer(read_regular_file(path, MAX_RESULT_BYTES), np.uint8)
    return files


def read_result(files: Mapping[str, np.ndarray]) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """Return the contents of the files of ``pack_result``, and the model.

    Raises one of READ_ERRORS for files that no record has, or that cannot be read.
    """
    contents = {}
    for name, values in files.items():
        if name not in RESULT_FILES or values.dtype != np.uint8 or values.ndim != 1 or len(values) > MAX_RESULT_BYTES:
            raise ValueError("no file of a result")
        contents[name] = content = values.tobytes()
        if name.endswith(".json") and not isinstance(json.loads(content), dict):
            raise ValueError("no mapping")
        if name.endswith((".csv", ".txt")):
            content.decode()
    if json.loads(contents[_STATUS])["status"] != "done":
        raise ValueError("a run that is not done")
    return contents, arrays_from_bytes(contents[_MODEL])


def check_result(contents: Mapping[str, bytes], data: FederatedData, threshold: float) -> None:
    """Raise UserError for a result that makes other predictions of new rows than the agreement on ``data`` says.

    ``threshold`` is the probability from which on a row is predicted to be of the positive class.
    Whatever else the files have is the server's word.
    """
    assert data.features.encoding is not None
    summary = json.loads(contents[_SUMMARY])
    agreed = {name: value for name, value in data.describe_features().items() if name in _FOR_PREDICTIONS}
    sent = {name: value for name, value in summary["data"].items() if name in _FOR_PREDICTIONS}
    same_encoding = json.loads(contents[ENCODING_FILE]) == _plain(data.features.encoding.to_dict())
    thresholds = summary.get("threshold") or {}
    has_threshold = all(
        math.isclose(thresholds.get(model, DEFAULT_THRESHOLD), threshold, rel_tol=1e-9) for model in (SHARED, PERSONAL)
    )
    if sent != _plain(agreed) or not same_encoding or not has_threshold:
        raise UserError("the server came with other columns, classes or means than all sites agreed on: its result is "
                        "not kept")  # fmt: skip


def _plain(values: Any) -> Any:
    """Return values as they are read from JSON."""
    return json.loads(json.dumps(values))


def sort_personal(personal: Mapping[str, np.ndarray], clients: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the personal models of these clients by parameter, (m, ...), from those of a record."""
    order = [personal["client"].tolist().index(name) for name in clients]
    return {name: values[order] for name, values in personal.items() if name != "client"}


def predict_held_out(
    experiment: PreparedExperiment,
    data: FederatedData,
    model: Mapping[str, np.ndarray],
    personal: Mapping[str, np.ndarray] | None,
    threshold: float,
) -> str:
    """Return the content of predictions.csv of a site's own held-out rows; "" without such rows, or for too many.

    Args:
        data: the site's rows by themselves.
        model: the model of the result.
        personal: the personal models of the site's clients as a record has them; None: there are none.
        threshold: the probability from which on a row is predicted to be of the positive class.
    """
    shared = dict(model) if experiment.has_shared_model else None
    models = None
    if personal is not None and len(personal["client"]):
        models = sort_personal(personal, data.clients)
    predictions = predict_splits(experiment.objective, data, shared, models)
    if note := note_too_many_rows(predictions):
        _log.warning("%s", note)
        return ""
    return predictions_csv([replace(of_split, threshold=threshold) for of_split in predictions])


def add_selection(
    contents: Mapping[str, bytes], plan: Plan, numbers: Mapping[str, Mapping[str, float]]
) -> Mapping[str, bytes]:
    """Return the files of a result whose summary tells which selection chose the ``numbers`` of the run, if any did."""
    if plan.select is None:
        return contents
    parameter = find_path_parameter(plan.experiment)
    selection = {name: getattr(plan.selection, name) for name in ("rule", "metric", "folds", "by")}
    selection |= {"param_name": parameter, "chosen": numbers["reg"][parameter]}
    if plan.shared_options.fold is not None:
        selection["by"] = "data.fold"
    summary = json.loads(contents[_SUMMARY]) | {"selection": selection}
    return {**contents, _SUMMARY: json_text(summary).encode()}


def write_result(
    folder: Path,
    contents: Mapping[str, bytes],
    config: dict[str, Any],
    experiment: PreparedExperiment,
    data: FederatedData,
    *,
    model: Mapping[str, np.ndarray],
    personal: Mapping[str, np.ndarray] | None,
    threshold: float,
) -> None:
    """Write a result into a folder as a record, with the configuration of the site's own plan.

    Baseline hazards and intercepts of the site's clients, and predictions of its held-out rows, are added, which the
    server has not.

    Args:
        data: the site's rows by themselves. Of features that are standardized by client the record has the scalings.
        model: the model of the result.
        personal: the personal models of the site's clients as a record has them; None: there are none.
        threshold: the probability from which on a row is predicted to be of the positive class.

    Raises UserError for a folder that cannot be written.
    """
    hazards = None
    if experiment.objective.client_intercepts:
        model = add_client_intercepts(experiment, data, dict(model))
        summary = json.loads(contents[_SUMMARY])
        summary["data"]["client_names"] = list(data.client_names)
        contents = {**contents, _MODEL: npz_bytes(model), _SUMMARY: json_text(summary).encode()}
        contents[_COEFFICIENTS] = coefficients_from(model, data, experiment).to_csv().encode()
    if data.target_task.has_events and experiment.has_shared_model:
        hazards = baseline_hazards(experiment.objective, data, dict(model))
    predictions = predict_held_out(experiment, data, model, personal, threshold)
    with _writing("the result"):
        folder.mkdir(parents=True, exist_ok=True)
        site_files = (_PERSONAL, _SCALING, _BY_CLIENT, BASELINE_HAZARD_FILE, PREDICTIONS_FILE)
        for name in (_STATUS, *RESULT_FILES, _CONFIG, *site_files):
            remove_path(folder / name)
        write_atomically(folder / _CONFIG, yaml_text(config))
        if hazards is not None:
            write_atomically(folder / BASELINE_HAZARD_FILE, hazards)
        if predictions:
            write_atomically(folder / PREDICTIONS_FILE, predictions)
        if personal is not None and len(personal["client"]):
            write_atomically(folder / _PERSONAL, npz_bytes(dict(personal)))
        if data.features.client_scalings:
            write_atomically(folder / _SCALING, npz_bytes(data.features.client_scalings))
        for name in RESULT_FILES:  # the status is the last one: until then there is no record
            if name in contents:
                write_atomically(folder / name, contents[name])
        record = FittedRecord(folder)
        if record.personal and not no_coefficients_reason(record):
            write_atomically(folder / _BY_CLIENT, format_by_client(*load_client_coefficients(record)))


@dataclass(frozen=True)
class FoldPredictions:
    """The out-of-fold predictions of a selection, in a folder of the site.

    Attributes:
        folder: the folder.
        plan: the plan, which has a selection.
    """

    folder: Path
    plan: Plan

    @property
    def _folds(self) -> dict[str, int]:
        return self.plan.selection.folds_by_name

    def _file(self, fold: str) -> Path:
        return self.folder / f"{fold}.npz"

    def begin_subset(self, name: str) -> None:
        """Remove the predictions of an earlier selection if the subset is the first one."""
        if name == next(iter(self._folds)):
            with _writing(_PREDICTIONS):
                remove_path(self.folder)

    def keep(self, name: str, site_data: FederatedData, batch: SiteBatch, evaluated: Message) -> None:
        """Write the outputs of the runs on a fold, which have ended, for the rows that it holds out.

        Nothing is written for other subsets, for too many rows, and with ``stop``: the site does not know at which
        evaluation the server took a run as ended.

        Args:
            name: the name of the subset, a fold or another one.
            site_data: the site's rows by themselves; those that the fold holds out are the validation rows.
            batch: the site's state of the runs.
            evaluated: the last request to evaluate.
        """
        experiment = self.plan.experiment
        rows = site_data.validation
        if name not in self._folds or experiment.settings.stop or rows is None or not len(rows):
            return
        if not keeps_held_out(site_data, len(batch.points), len(site_data.train) + len(rows)):
            return
        models = batch.personal_models(evaluated.arrays)
        outputs = []  # for V rows, (V,) or (V, classes), of each run by kind of model
        for g in range(len(batch.points)):
            solution = add_client_intercepts(experiment, site_data, batch.solution(evaluated.arrays, g))
            of_run = sort_personal(models[g], site_data.clients) if models else None
            outputs.append(predict_validation_rows(experiment, site_data, solution, of_run))
        with _writing(_PREDICTIONS):
            self.folder.mkdir(parents=True, exist_ok=True)
            stacked = {model: np.stack([of_run[model] for of_run in outputs]) for model in outputs[0]}
            write_atomically(self._file(name), npz_bytes(stacked))

    def write(self, folds: SiteFolds, refit: Mapping[str, Mapping[str, float]], first_start: Message) -> None:
        """Write predictions.csv, and remove the outputs of single folds.

        Nothing is written where outputs are missing, or of models that diverged in some fold.

        Args:
            folds: the folds of the site's rows.
            refit: the numbers of the refit, which have the chosen value of the path.
            first_start: the request that began the first runs, which has the numbers of the path.
        """
        parameter = find_path_parameter(self.plan.experiment)
        chosen = [run["reg"][parameter] for run in first_start.about["numbers"]].index(refit["reg"][parameter])
        rows = {}
        outputs = []
        for name, k in self._folds.items():
            held_out = np.flatnonzero(folds.fold == k)
            if not len(held_out):
                continue
            try:
                of_fold = read_npz(self._file(name))
            except READ_ERRORS:
                return
            rows[k + 1] = held_out
            outputs.append({model: values[chosen] for model, values in of_fold.items()})
        if not rows:
            return
        predictions = join_folds(self.plan.experiment.objective, folds.site_data, rows, outputs)
        with _writing(_PREDICTIONS):
            if predictions:
                write_atomically(self.folder / PREDICTIONS_FILE, predictions_csv(predictions))
            for name in self._folds:
                remove_path(self._file(name))


@contextmanager
def _writing(what: str) -> Iterator[None]:
    """Turn an error of the file system into a UserError, which says what is not kept."""
    try:
        yield
    except OSError as error:
        raise UserError(f"the site cannot keep {what} ({error.strerror}): see that its folder can be written"
                        ) from error  # fmt: skip
