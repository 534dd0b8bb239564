"""Weights and Biases, offline: wandb sync FOLDER/wandb/offline-run-* sends a run later, by a login of yours."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path as FilePath
from typing import Any

from fcorun.base.config import PathOption
from fcorun.experiment.tracker import (
    OpenRuns,
    SentRecord,
    Tracker,
    final_scalars,
    flat_parameters,
    metrics_of,
    run_name,
)

_OPEN = OpenRuns()


@dataclass(frozen=True)
class WeightsAndBiases(Tracker):
    """A run of wandb for each record, in files of this machine: configuration, metrics against the round, final values.

    A run that is computed again, or goes on after it was interrupted, is another run of the same name.

    Attributes:
        folder: the folder for the files.
        project: the name of the project in wandb.
    """

    folder: PathOption = "."
    project: str = "fcorun"
    required_modules = ("wandb",)
    pip_extra = "wandb"

    def on_evaluation(self, record, rows):
        open_run = _OPEN.find_or_begin(record, lambda: self._begin(record))
        for row in open_run.take_new(record, rows):
            open_run.run.log(metrics_of(row), step=int(row["round"]))

    def log(self, record):
        self.on_evaluation(record, [])
        self._end(record, {name: value for name, value, *_ in final_scalars(record)}, exit_code=0)

    def on_failure(self, record):
        self._end(record, {}, exit_code=1)

    def _begin(self, record: SentRecord) -> Any:
        wandb = import_module("wandb")
        FilePath(self.folder).mkdir(parents=True, exist_ok=True)
        return wandb.init(
            project=self.project,
            name=run_name(record),
            config=flat_parameters(record),
            dir=self.folder,
            mode="offline",
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
        )

    def _end(self, record: SentRecord, values: dict[str, float], exit_code: int) -> None:
        open_run = _OPEN.close(record)
        if open_run is not None:
            status = {key: str(record.status.get(key, "")) for key in ("status", "reason")}
            open_run.run.summary.update(values | status)
            open_run.run.finish(exit_code=exit_code)
