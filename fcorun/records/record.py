"""A run is its record: one folder, whose files appear whole or not at all."""

import io
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcorun.errors import UserError
from fcorun.metrics import INTEGER_COUNTERS
from fcorun.records import formats
from fcorun.records.locks import is_abandoned

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

SELECTION_FILE = "selection.json"  # the file of a selection that says what was chosen
STABILITY_FILE = "stability.json"  # that of a stability selection
REFIT_FOLDER = "refit"  # the folder in it that holds the run with its choice
PLUGIN_FOLDER = "plugins"  # the folder in a record with copies of the user's own files, to be read and never imported
PLUGIN_INDEX = f"{PLUGIN_FOLDER}/index.json"  # their digests, by section of the configuration
RECORD_FILES = (
    "config.yaml",
    PLUGIN_FOLDER,
    "metrics.csv",
    "summary.json",
    "solution.npz",
    "personal.npz",
    "encoding.json",
    "scaling.npz",
    "scores.csv",
    "coefficients.csv",
    "coefficients_by_client.csv",
    "mask.nii.gz",
    "weights.nii.gz",
    "weights_by_client.nii.gz",
    *(
        f"{name}.{ending}"
        for name in ("curves", "coefficients", "brain", "brain_by_client")
        for ending in ("png", "pdf", "svg")
    ),
    "report.html",
    "run.log",
    "status.json",
)
FINISHED_STATUSES = ("done", "diverged")


@dataclass(frozen=True)
class Record:
    """A run that is on disk, read when asked for."""

    folder: Path

    @property
    def status(self) -> dict[str, Any]:
        """``status`` (running, done, diverged, failed, interrupted), ``reason``, ``identity``, ...; or empty.

        One that says that it is running although its process was killed is interrupted.
        """
        found = formats.read_json(self.folder / "status.json")
        if found.get("status") != "running" or not is_abandoned(self.folder, found):
            return found
        found = formats.read_json(self.folder / "status.json")  # which may have ended meanwhile
        if found.get("status") == "running":
            found |= {"status": "interrupted", "reason": "killed, or its machine went down, or its disk was full"}
        return found

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to compute."""
        return self.status.get("status") in FINISHED_STATUSES

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved configuration. A tracker and hosts are of one start alone, and never taken from a record."""
        found = formats.read_yaml(self.folder / "config.yaml")
        return {key: value for key, value in found.items() if key not in ("tracker", "hosts")}

    @property
    def flat_config(self) -> dict[str, Any]:
        """The configuration with dotted keys, lists as text; empty if there is none that can be read."""
        try:
            return formats.flatten(formats.read_yaml(self.folder / "config.yaml"))
        except (OSError, formats.yaml.YAMLError, AttributeError):
            return {}

    @cached_property
    def plugins(self) -> dict[str, Any]:
        """What the user's own plug-ins were made of when they ran, by section: ``class``, ``digest``, ``files`` with
        their SHA-256, ``distributions`` with their versions. Empty where all plug-ins are fcorun's."""
        return formats.read_json(self.folder / PLUGIN_INDEX)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Final, best and tail-averaged metrics, times, versions."""
        found = formats.read_summary(self.folder)
        if not found:
            raise FileNotFoundError(f"{self.folder} holds no summary.json that can be read")
        return found

    @property
    def rows(self) -> list[dict[str, float]]:
        """The rows of metrics.csv as plain values; none where there is no file."""
        return formats.read_rows(self.folder)

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """A row an evaluation: round, seconds, bytes_up, bytes_down, grad_evals, prox_evals, then metrics."""
        import pandas as pd

        text = pd.read_csv(io.StringIO(formats.read_text(self.folder / "metrics.csv")), dtype=str)
        # Python's float() is exact in any version of pandas
        return text.astype({name: int if name in INTEGER_COUNTERS else float for name in text})

    @cached_property
    def scores(self) -> "pd.DataFrame":
        """How good the model is on the rows of training, validation and test: a row for each set of rows, ``model`` and
        ``client``, empty for all, as ``fcorun.models.scores`` says; empty where there are none."""
        import pandas as pd

        try:
            text = formats.read_text(self.folder / "scores.csv")
        except FileNotFoundError:
            return pd.DataFrame()
        found = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
        words = ("set", "model", "client", "positive")
        numbers = {name: found[name].replace("", "nan").astype(float) for name in found if name not in words}
        return found.assign(**(numbers | {"n": found["n"].astype(int)}))

    @cached_property
    def scaling(self) -> "dict[str, np.ndarray]":
        """What each client's features were standardized by, where they were ``per_client``: ``client`` (M,), ``rows``
        (M,) that it trains on, ``mean_`` and ``var_`` (M, d); else empty."""
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
        """The clients' own models by parameter, with a leading axis M, and ``client``, their names; empty: none."""
        try:
            return formats.read_npz(self.folder / "personal.npz")
        except FileNotFoundError:
            return {}

    def estimator(self, client: str | None = None, trust: str | Path | None = None) -> Any:
        """A fitted object of scikit-learn with this model, or that of a client: see ``fcorun.models.estimator``.

        An objective that is not fcorun's is imported from the folder ``trust``, or refused.
        """
        made = import_module("fcorun.models.estimator").load_estimator  # a room above this one, so by name
        return made(self, client, trust)

    def encode(self, frame: Any) -> Any:
        """The features of rows of a table, a pandas.DataFrame, as ``estimator`` takes them: columns by name, text coded
        and gaps filled as in this record, not standardized. Raises UserError."""
        return import_module("fcorun.models.predict").select_features(frame, self, "the rows")[0]


def load_records(*roots: str | Path) -> list[Record]:
    """The records in and under these folders, in the order of their paths. Raises UserError for a folder not there."""
    for root in roots:
        if not Path(root).is_dir():
            raise UserError(f"there is no folder {root}; give one that holds records")
    folders = {path.parent for root in roots for path in Path(root).rglob("status.json")}
    return [Record(folder) for folder in sorted(folders)]
