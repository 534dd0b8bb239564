"""Trackio, a dashboard of this machine: TRACKIO_DIR=FOLDER trackio show --project PROJECT."""

import io
import os
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module

from fcorun.base.config import PathOption
from fcorun.experiment.tracker import OpenRuns, Tracker, flat_parameters, metrics_of, run_name

_OPEN = OpenRuns()


@dataclass(frozen=True)
class Trackio(Tracker):
    """A run of Trackio for each record, in a database of this machine: configuration, and metrics against the round.

    A run that is computed again, or goes on after it was interrupted, is another run of the same name.

    Attributes:
        folder: the folder of the database.
        project: the name of the project in Trackio.
    """

    folder: PathOption = "trackio"
    project: str = "fcorun"
    required_modules = ("trackio",)
    pip_extra = "trackio"

    def on_evaluation(self, record, rows):
        os.environ["TRACKIO_DIR"] = os.path.abspath(self.folder)
        trackio = import_module("trackio")
        open_run = _OPEN.find_or_begin(record, lambda: None)
        begins = not open_run.rounds
        new = open_run.take_new(record, rows)
        with redirect_stdout(io.StringIO()):  # it prints how to show the dashboard
            run = trackio.init(
                project=self.project,
                name=run_name(record),
                config=flat_parameters(record),
                resume="never" if begins else "allow",
                embed=False,
            )
            for row in new:
                run.log(metrics_of(row), step=int(row["round"]))
            run.finish()

    def log(self, record):
        self.on_evaluation(record, [])
        _OPEN.close(record)

    def on_failure(self, record):
        _OPEN.close(record)
