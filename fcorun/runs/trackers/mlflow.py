"""MLflow. To show its database file: pip install mlflow, then mlflow ui --backend-store-uri URI."""

import hashlib
import logging
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from fcorun.base.errors import UserError
from fcorun.base.records.record import RECORD_FILES
from fcorun.base.system.files import cache_dir
from fcorun.experiment.tracker import Tracker, flat_parameters, iterate_scalars, run_name

_SQLITE = "sqlite:///"
_METRICS_PER_CALL = 1000  # the maximum of MLflow
_PARAMS_PER_CALL = 100


@dataclass(frozen=True)
class MLflow(Tracker):
    """An MLflow run for each record: parameters, metrics against the round, status as tags, files as artifacts.

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

    def log(self, record):
        client, experiment_id = _open(self.uri, self.experiment)
        from mlflow.entities import Metric, Param, RunTag

        status = record.status
        metrics = [Metric(name, value, int(1000 * time), step) for name, value, step, time in iterate_scalars(record)]
        params = [Param(key, str(value)) for key, value in flat_parameters(record).items()]
        tags = [RunTag(key, str(status.get(key, ""))) for key in ("status", "reason", "label", "identity")]
        start = min((metric.timestamp for metric in metrics), default=None)
        run_id = client.create_run(experiment_id, start_time=start, run_name=run_name(record)).info.run_id
        client.log_batch(run_id, tags=[*tags, RunTag("folder", str(record.folder.resolve()))])
        for i in range(0, len(metrics), _METRICS_PER_CALL):
            client.log_batch(run_id, metrics=metrics[i : i + _METRICS_PER_CALL])
        for i in range(0, len(params), _PARAMS_PER_CALL):
            client.log_batch(run_id, params=params[i : i + _PARAMS_PER_CALL])
        for name in RECORD_FILES:
            path = record.folder / name
            if path.is_dir():
                client.log_artifacts(run_id, str(path), path.name)
            elif path.exists():
                client.log_artifact(run_id, str(path))
        client.set_terminated(run_id)


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
    with FileLock(lock):
        client = MlflowClient(uri)
        existing = client.get_experiment_by_name(experiment)
        if existing:
            return client, existing.experiment_id
        return client, client.create_experiment(experiment, artifact_location)
