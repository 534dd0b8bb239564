"""Weights and Biases, offline: wandb sync FOLDER/wandb/offline-run-* sends a run later, by a login of yours."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path as FilePath
from typing import Any

from fcorun.base.config import PathOption
from fcorun.base.records.record import Record
from fcorun.experiment.tracker import Tracker, flat_parameters, metrics_of, run_name, sent_rounds

_OPEN_RUNS: dict[FilePath, Any] = {}  # that go on in this process, by the folder of their records


@dataclass(frozen=True)
class WeightsAndBiases(Tracker):
    """A run of wandb for each record, in files of this machine: configuration, metrics against the round, final values.

    A run that is computed again, or goes on after it was killed, is another run of the same name.

    Attributes:
        folder: the folder for the files.
        project: the name of the project in wandb.
    """

    folder: PathOption = "."
    project: str = "fcorun"
    required_modules = ("wandb",)
    pip_extra = "wandb"

    def on_evaluation(self, record, rows):
        run = self._open(record)
        for row in rows:
            run.log(metrics_of(row), step=int(row["round"]))
            sent_rounds(self, record.folder).add(int(row["round"]))

    def log(self, record):
        sent = sent_rounds(self, record.folder)
        self.on_evaluation(record, [row for row in record.rows if int(row["round"]) not in sent])
        sent.clear()
        run = _OPEN_RUNS.pop(record.folder)
        averages = {
            f"{kind}_{name}": value for kind in ("final", "tail") for name, value in record.summary[kind].items()
        }
        run.summary.update({**averages, **{key: str(record.status.get(key, "")) for key in ("status", "reason")}})
        run.finish()

    def _open(self, record: Record) -> Any:
        """Return the run of a record in wandb."""
        if record.folder not in _OPEN_RUNS:
            wandb = import_module("wandb")

            FilePath(self.folder).mkdir(parents=True, exist_ok=True)
            _OPEN_RUNS[record.folder] = wandb.init(
                project=self.project,
                name=run_name(record),
                config=flat_parameters(record),
                dir=self.folder,
                mode="offline",
                reinit="create_new",
                settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
            )
        return _OPEN_RUNS[record.folder]
