"""A run is its record: one folder, whose files appear whole or not at all."""

import io
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcorun.errors import UserError
from fcorun.metrics import INTEGER_COUNTERS
from fcorun.records import formats
from fcorun.records.locks import is_abandoned

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

SELECTION_FILE = "selection.json"  # the result of a selection
STABILITY_FILE = "stability.json"  # the result of a stability selection
BASELINE_HAZARD_FILE = "baseline_hazard.csv"  # the cumulative baseline hazard of each client, of times to events
AT_SITES = "at their sites"  # where personal models of a study over sites are
AWAY_FILE = "away_sites.csv"  # what sites missed that the run went on without
REFIT_FOLDER = "refit"  # the folder in a selection that holds the run with the selected strength
PLUGIN_FOLDER = "plugins"  # the folder in a record with copies of the user's own files, to be read and never imported
PLUGIN_INDEX = f"{PLUGIN_FOLDER}/index.json"  # the digests of these files, by section of the configuration
RECORD_FILES = (
    "config.yaml",
    PLUGIN_FOLDER,
    "metrics.csv",
    "summary.json",
    "solution.npz",
    "personal.npz",
    "encoding.json",
    "scaling.npz",
    "missing.csv",
    "scores.csv",
    "predictions.csv",
    BASELINE_HAZARD_FILE,
    AWAY_FILE,
    "roc.csv",
    "calibration.csv",
    "thresholds.csv",
    "coefficients.csv",
    "relaxed.csv",
    "imputations.csv",
    "lasso_metrics.csv",
    "coefficients_by_client.csv",
    "inference.csv",
    "inference.txt",
    "mask.nii.gz",
    "weights.nii.gz",
    "weights_by_client.nii.gz",
    *(
        f"{name}.{ending}"
        for name in (
            *("curves", "coefficients", "brain", "brain_by_client", "inference"),
            *("roc", "calibration", "decision"),
        )
        for ending in ("png", "pdf", "svg")
    ),
    "report.html",
    "report_short.html",
    "run.log",
    "status.json",
)
FINISHED_STATUSES = ("done", "diverged")


@dataclass(frozen=True)
class Record:
    """A run on disk. Each file is read when its property is first used."""

    folder: Path

    def __post_init__(self):
        if not isinstance(self.folder, (str, os.PathLike)):
            raise UserError(f"the folder of a record is of type {type(self.folder).__name__}: give a path")
        object.__setattr__(self, "folder", Path(self.folder))

    @property
    def status(self) -> dict[str, Any]:
        """The content of status.json: ``status`` (running, done, diverged, failed, interrupted), ``reason``, ...

        Empty without the file. A record whose process was killed while running is reported as interrupted.
        """
        status = formats.read_json(self.folder / "status.json")
        if status.get("status") != "running" or not is_abandoned(self.folder, status):
            return status
        status = formats.read_json(self.folder / "status.json")  # the run may have ended since the first reading
        if status.get("status") == "running":
            status |= {"status": "interrupted", "reason": "killed, or its machine went down, or its disk was full"}
        return status

    @property
    def finished(self) -> bool:
        """True if nothing is left to compute: the run is done or has diverged."""
        return self.status.get("status") in FINISHED_STATUSES

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration, without the tracker and the hosts, which belong to one invocation."""
        return {key: value for key, value in self._written_config.items() if key not in ("tracker", "hosts")}

    @cached_property
    def _written_config(self) -> dict[str, Any]:
        return formats.read_yaml(self.folder / "config.yaml")

    @property
    def flat_config(self) -> dict[str, Any]:
        """The configuration with dotted keys, lists as text; empty if the file is missing or cannot be read."""
        try:
            return formats.flatten(self._written_config)
        except (OSError, formats.yaml.YAMLError, AttributeError):
            return {}

    @property
    def picture_title(self) -> str:
        """The title of the run's pictures: the key ``title``, else the plug-ins and numbers of the run in one line."""
        return str(self.flat_config.get("title") or self.status.get("label", self.folder.name))

    @cached_property
    def plugins(self) -> dict[str, Any]:
        """The code of the user's own plug-ins when they ran, by section; empty if all plug-ins are fcorun's.

        A section has ``class``, ``digest``, ``files`` with their SHA-256 and ``distributions`` with their versions.
        """
        return formats.read_json(self.folder / PLUGIN_INDEX)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Final, best and tail-averaged metrics, times, versions."""
        summary = formats.read_summary(self.folder)
        if not summary:
            raise FileNotFoundError(f"{self.folder} holds no summary.json that can be read")
        return summary

    @property
    def rows(self) -> list[dict[str, float]]:
        """The rows of metrics.csv as plain values; none without the file."""
        return formats.read_rows(self.folder)

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """The evaluations, one a row: round, seconds, bytes_up, bytes_down, grad_evals, prox_evals, then metrics."""
        import pandas as pd

        content = formats.read_text(self.folder / "metrics.csv")
        if not content.strip():  # a run that was not finite at its start
            return pd.DataFrame()
        text = pd.read_csv(io.StringIO(content), dtype=str)
        # Python's float() is exact in any version of pandas
        return text.astype({name: int if name in INTEGER_COUNTERS else float for name in text})

    @cached_property
    def scores(self) -> "pd.DataFrame":
        """The scores of the models on the rows of training, validation and test; empty without scores.csv.

        Each row has a set of rows, a ``model`` and a ``client`` (empty for all), as in ``fcorun.models.scores``.
        """
        import pandas as pd

        try:
            text = formats.read_text(self.folder / "scores.csv")
        except FileNotFoundError:
            return pd.DataFrame()
        scores = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        for name in scores:
            if name in ("n", "events"):
                scores[name] = scores[name].astype(int)
            elif name not in ("set", "model", "client", "positive"):
                scores[name] = scores[name].replace("", "nan").astype(float)
        return scores

    @cached_property
    def predictions(self) -> "pd.DataFrame":
        """The predictions for the held-out rows, as ``fcorun.models.predictions`` writes them; empty without the file.

        Names of clients, labels of classes and the columns that ``data.keep`` names are text.
        """
        import pandas as pd

        try:
            text = formats.read_text(self.folder / "predictions.csv")
        except FileNotFoundError:
            return pd.DataFrame()
        predictions = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        is_regression = "classes" in self.summary["data"] and not self.summary["data"]["classes"]
        for name in predictions:
            if name == "row":
                predictions[name] = predictions[name].astype(int)
            elif (
                name == "probability"
                or name.startswith("probability_")
                or (is_regression and name in ("target", "prediction"))
            ):
                predictions[name] = predictions[name].astype(float)  # Python's float() is exact in any version
        return predictions

    @cached_property
    def scaling(self) -> "dict[str, np.ndarray]":
        """The standardization of each client's features if it was ``per_client``; else empty.

        The arrays are ``client`` (M,), ``rows`` (M,) of training, ``mean_`` and ``var_`` (M, d).
        """
        try:
            return formats.read_npz(self.folder / "scaling.npz")
        except FileNotFoundError:
            return {}

    @cached_property
    def solution(self) -> "dict[str, np.ndarray]":
        """The parameters of the output, by name."""
        return formats.read_npz(self.folder / "solution.npz")

    @cached_property
    def personal(self) -> "dict[str, np.ndarray]":
        """The clients' personal models by parameter, with a leading axis M, and ``client``, their names; or empty."""
        try:
            return formats.read_npz(self.folder / "personal.npz")
        except FileNotFoundError:
            return {}

    @property
    def has_personal_models_at_sites(self) -> bool:
        """Return whether personal models have stayed at their sites, each in the record that its site keeps."""
        return self.summary.get("personal_models") == AT_SITES


def is_refit_of_stability(record: Record) -> bool:
    """Return whether a record is in the refit folder of a stability selection, which chose its features."""
    return record.folder.name == REFIT_FOLDER and (record.folder.resolve().parent / STABILITY_FILE).exists()


def is_refit_of_adaptive_lasso(record: Record) -> bool:
    """Return whether a record is in the refit folder of a selection whose rows gave the weights of the penalty."""
    selection = formats.read_json(record.folder.resolve().parent / SELECTION_FILE)
    return record.folder.name == REFIT_FOLDER and bool(selection.get("adaptive"))


def load_records(*roots: str | Path) -> list[Record]:
    """Load the records in and under these folders, in the order of their paths. Raises UserError without a folder."""
    for root in roots:
        if not isinstance(root, (str, os.PathLike)):
            raise UserError(f"a folder is of type {type(root).__name__}: give each folder as a path of its own")
        if not Path(root).is_dir():
            raise UserError(f"there is no folder {root}; give one that holds records")
    folders = {path.parent for root in roots for path in Path(root).rglob("status.json")}
    return [Record(folder) for folder in sorted(folders)]
