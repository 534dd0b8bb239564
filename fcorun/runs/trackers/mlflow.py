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
from fcorun.base.system import locks
from fcorun.base.system.files import cache_dir
from fcorun.experiment.tracker import (
    OpenRun,
    OpenRuns,
    Scalar,
    SentRecord,
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

    Long values are cut. A run that goes on after it was interrupted is another run of MLflow.

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
        _log_metrics(client, open_run.run, scalars_of_rows(open_run.take_new(record, rows), time.time()))

    def log(self, record):
        client, open_run = self._open_run(record)
        scalars = [*scalars_of_rows(open_run.take_new(record), end_time(record)), *final_scalars(record)]
        _log_metrics(client, open_run.run, scalars)
        client.log_artifacts(open_run.run, str(record.folder))
        self._end(record, "FINISHED")

    def on_failure(self, record):
        self._end(record, "FAILED")

    def _end(self, record: SentRecord, status: str) -> None:
        open_run = _OPEN.close(record)
        if open_run is None:
            return
        from mlflow.entities import RunTag

        client, _ = _open(self.uri, self.experiment)
        tags = {key: str(record.status.get(key, "")) for key in ("status", "reason", "label")}
        client.log_batch(open_run.run, tags=[RunTag(key, value[:_LONGEST]) for key, value in tags.items()])
        client.set_terminated(open_run.run, status)

    def _open_run(self, record: SentRecord) -> tuple[Any, OpenRun]:
        """Return MLflow's client, and the run of a record by its identifier."""
        client, experiment_id = _open(self.uri, self.experiment)
        return client, _OPEN.find_or_begin(record, lambda: _begin_run(client, experiment_id, record))


def _begin_run(client: Any, experiment_id: str, record: SentRecord) -> str:
    """Begin a run of MLflow with the configuration of a record, and end those of a process that was killed."""
    from mlflow.entities import Param, RunTag

    tags = {"identity": str(record.status["identity"]), "folder": str(record.place.resolve())}
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
