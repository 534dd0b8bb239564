"""The result of a run, which each site receives: files of the record that are tables, texts and numbers."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.formats import arrays_from_bytes, npz_bytes, yaml_text
from fcorun.base.records.record import AWAY_FILE, BASELINE_HAZARD_FILE, PERSONAL, PREDICTIONS_FILE, SHARED
from fcorun.base.system.files import read_regular_file, remove_path, write_atomically
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.encoding import ENCODING_FILE
from fcorun.experiment.classifiers import DEFAULT_THRESHOLD
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.results.inference.methods import INTERVALS_FILE, INTERVALS_TEXT
from fcorun.results.models.coefficients import format_by_client, load_client_coefficients, no_coefficients_reason
from fcorun.results.models.fitted_record import FittedRecord
from fcorun.results.models.predictions import note_too_many_rows, predict_splits, predictions_csv
from fcorun.results.survival import baseline_hazards

_STATUS, _MODEL, _CONFIG, _SUMMARY = "status.json", "solution.npz", "config.yaml", "summary.json"
RESULT_FILES = (
    *("metrics.csv", "scores.csv", "coefficients.csv", INTERVALS_FILE, INTERVALS_TEXT, AWAY_FILE, ENCODING_FILE),
    _SUMMARY,
    *(_MODEL, _STATUS),
)
_PERSONAL, _SCALING, _BY_CLIENT = "personal.npz", "scaling.npz", "coefficients_by_client.csv"  # the site's own
_FOR_PREDICTIONS = {"features", "feature_names", "task", "classes", "class_type", "scale", "standardized", "limits"}
MAX_RESULT_BYTES = 2**28
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
    agreed = data.describe_features()
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

    Baseline hazards of the site's clients, and predictions of its held-out rows, are added: the server has neither.

    Args:
        data: the site's rows by themselves. Of features that are standardized by client the record has the scalings.
        model: the model of the result.
        personal: the personal models of the site's clients as a record has them; None: there are none.
        threshold: the probability from which on a row is predicted to be of the positive class.

    Raises UserError for a folder that cannot be written.
    """
    hazards = None
    if data.target_task.has_events and experiment.has_shared_model:
        hazards = baseline_hazards(experiment.objective, data, dict(model))
    predictions = predict_held_out(experiment, data, model, personal, threshold)
    try:
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
        standardized = dict(data.features.standardized or {})
        if standardized.pop("by", None) == "per_client":
            write_atomically(folder / _SCALING, npz_bytes(standardized))
        for name in RESULT_FILES:  # the status is the last one: until then there is no record
            if name in contents:
                write_atomically(folder / name, contents[name])
        record = FittedRecord(folder)
        if record.personal and not no_coefficients_reason(record):
            write_atomically(folder / _BY_CLIENT, format_by_client(*load_client_coefficients(record)))
    except OSError as error:
        raise UserError(f"the site cannot keep the result ({error.strerror}): see that its folder can be written"
                        ) from error  # fmt: skip
