"""MLflow. To show its database file: pip install mlflow, then mlflow ui --backend-store-uri URI."""

import hashlib
import logging
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError
from fcorun.base.records import contents
from fcorun.base.records.few_rows import FewRows, summarizes_clients
from fcorun.base.records.formats import json_text, read_json, read_text
from fcorun.base.records.record import RECORD_FILES, Record
from fcorun.base.records.single_patients import PATIENT_FILES, hide_patients, hide_row_numbers
from fcorun.base.system import locks
from fcorun.base.system.files import cache_dir
from fcorun.experiment.tracker import (
    OpenRun,
    OpenRuns,
    Scalar,
    Tracker,
    end_time,
    final_scalars,
    flat_parameters,
    run_name,
    scalars_of_rows,
)

_SQLITE = "sqlite:///"
_METRICS_PER_CALL = 1000  # the maximum of MLflow
_PARAMS_PER_CALL = 100
_LONGEST = 5000  # letters of a value, of which MLflow takes 6000 of a parameter and 8000 of a tag
_OPEN = OpenRuns()


@dataclass(frozen=True)
class MLflow(Tracker):
    """An MLflow run for each record: parameters, metrics against the round, status as tags, files as artifacts.

    What tells of single patients is left out (``fcorun.base.records.single_patients``), and so are numbers of few rows
    (``fcorun.base.records.few_rows``): metrics over clients come at the end. Long values are cut. A run that goes on
    after it was interrupted is another run of MLflow.

    Attributes:
        uri: a database file, sqlite:///FILE, with the artifacts in mlartifacts/ in the same folder; or a server,
            http://HOST.
        experiment: the name of the experiment in MLflow.
    """

    uri: str = _SQLITE + "mlflow.db"
    experiment: str = "fcorun"
    required_modules = ("mlflow", "sqlalchemy", "alembic")
    pip_extra = "mlflow"

    def __post_init__(self):
        if not re.match(r"[a-z][a-z+]+:|databricks", self.uri):  # MLflow gives up its stores of folders
            raise UserError(f"`tracker.uri={self.uri}` is a folder: give a database file, "
                            f"`tracker.uri={_SQLITE}{Path(self.uri).name}.db`, or http://HOST")  # fmt: skip

    def on_evaluation(self, record, rows):
        client, open_run = self._open_run(record)
        scalars = scalars_of_rows(open_run.take_new(record, rows), time.time())
        _log_metrics(client, open_run.run, (scalar for scalar in scalars if not summarizes_clients(scalar[0])))

    def log(self, record):
        client, open_run = self._open_run(record)
        few = FewRows.find([record.folder])
        new_rounds = {int(row["round"]) for row in open_run.take_new(record)}
        scalars = [
            scalar
            for scalar in scalars_of_rows(record.rows, end_time(record))
            if scalar[2] in new_rounds or summarizes_clients(scalar[0])
        ]
        scalars += final_scalars(record)
        _log_metrics(client, open_run.run, (scalar for scalar in scalars if not few.hides(scalar[0])))
        left_out = {*PATIENT_FILES, *few.list_files(record.folder)}
        for name in RECORD_FILES:
            path = record.folder / name
            if name in left_out or not path.exists():
                continue
            if path.is_dir():
                client.log_artifacts(open_run.run, str(path), path.name)
            elif name in (contents.SUMMARY.name, contents.STATUS.name):
                content = few.hide_numbers(hide_patients(read_json(path)), record.folder)
                client.log_text(open_run.run, json_text(content), name)
            elif path.suffix in (".log", ".txt"):
                client.log_text(open_run.run, hide_row_numbers(few.read_rest(path) or read_text(path)), name)
            elif (rest := few.read_rest(path)) is not None:
                client.log_text(open_run.run, rest, name)
            else:
                client.log_artifact(open_run.run, str(path))
        self._end(record, "FINISHED", few)

    def on_failure(self, record):
        self._end(record, "FAILED", FewRows.find([record.folder]))

    def _end(self, record: Record, status: str, few: FewRows) -> None:
        open_run = _OPEN.close(record)
        if open_run is None:
            return
        from mlflow.entities import RunTag

        client, _ = _open(self.uri, self.experiment)
        status_file = few.hide_numbers(hide_patients(record.status), record.folder)
        tags = {key: str(status_file.get(key, "")) for key in ("status", "reason", "label")}
        client.log_batch(open_run.run, tags=[RunTag(key, value[:_LONGEST]) for key, value in tags.items()])
        client.set_terminated(open_run.run, status)

    def _open_run(self, record: Record) -> tuple[Any, OpenRun]:
        """Return MLflow's client, and the run of a record by its identifier."""
        client, experiment_id = _open(self.uri, self.experiment)
        return client, _OPEN.find_or_begin(record, lambda: _begin_run(client, experiment_id, record))


def _begin_run(client: Any, experiment_id: str, record: Record) -> str:
    """Begin a run of MLflow with the configuration of a record, and end those of a process that was killed."""
    from mlflow.entities import Param, RunTag

    tags = {"identity": str(record.status["identity"]), "folder": str(record.folder.resolve())}
    for run in client.search_runs(
        [experiment_id], f"attributes.status = 'RUNNING' and tags.identity = '{tags['identity']}'"
    ):
        if run.data.tags.get("folder") == tags["folder"]:
            client.set_terminated(run.info.run_id, "KILLED")
    run_id = client.create_run(experiment_id, run_name=run_name(record)).info.run_id
    client.log_batch(run_id, tags=[RunTag(key, value[:_LONGEST]) for key, value in tags.items()])
    params = [Param(key, str(value)[:_LONGEST]) for key, value in flat_parameters(record).items()]
    for i in range(0, len(params), _PARAMS_PER_CALL):
        client.log_batch(run_id, params=params[i : i + _PARAMS_PER_CALL])
    return run_id


def _log_metrics(client: Any, run_id: str, scalars: Iterable[Scalar]) -> None:
    from mlflow.entities import Metric

    metrics = [Metric(name, value, int(1000 * now), step) for name, value, step, now in scalars]
    for i in range(0, len(metrics), _METRICS_PER_CALL):
        client.log_batch(run_id, metrics=metrics[i : i + _METRICS_PER_CALL])


@cache
def _open(uri: str, experiment: str) -> tuple[Any, str]:
    """Return MLflow's client and the identifier of the experiment. Creates a missing experiment."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    for name in ("mlflow", "mlflow.store.db.utils", "alembic"):  # they log each table that they create
        logging.getLogger(name).setLevel(logging.WARNING)
    database, artifact_location = uri, None
    if uri.startswith(_SQLITE):
        path = Path(uri.removeprefix(_SQLITE)).resolve()
        database, artifact_location = str(path), (path.parent / "mlartifacts").as_uri()
    # Two processes must not create the tables of one database at the same time.
    lock = cache_dir("locks") / f"{hashlib.sha256(database.encode()).hexdigest()[:16]}.lock"
    with locks.acquire(lock, seconds=-1):
        client = MlflowClient(uri)
        existing = client.get_experiment_by_name(experiment)
        if existing:
            return client, existing.experiment_id
        return client, client.create_experiment(experiment, artifact_location)
