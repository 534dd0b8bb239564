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

from filelock import FileLock

from fcorun.base.errors import UserError
from fcorun.base.records.record import RECORD_FILES, Record
from fcorun.base.system.files import cache_dir
from fcorun.experiment.tracker import (
    Scalar,
    Tracker,
    flat_parameters,
    is_new,
    iterate_scalars,
    run_name,
    scalars_of_rows,
)

_SQLITE = "sqlite:///"
_METRICS_PER_CALL = 1000  # the maximum of MLflow
_PARAMS_PER_CALL = 100
_LONGEST = 5000  # letters of a value, of which MLflow takes 6000 of a parameter and 8000 of a tag
_ROUND = "last round"  # the tag of a run that goes on


@dataclass(frozen=True)
class MLflow(Tracker):
    """An MLflow run for each record: parameters, metrics against the round, status as tags, files as artifacts.

    Long values are cut. A run that was killed goes on in the same run of MLflow.

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
        client, run_id, _ = self._find_run(record)
        _log_metrics(client, run_id, scalars_of_rows(rows, time.time()))
        client.set_tag(run_id, _ROUND, str(int(rows[-1]["round"])))

    def log(self, record):
        client, run_id, last_round = self._find_run(record)
        _log_metrics(client, run_id, (scalar for scalar in iterate_scalars(record) if is_new(scalar, last_round)))
        from mlflow.entities import RunTag

        status = {key: str(record.status.get(key, "")) for key in ("status", "reason", "label", "identity")}
        client.log_batch(run_id, tags=[RunTag(key, value[:_LONGEST]) for key, value in status.items()])
        for name in RECORD_FILES:
            path = record.folder / name
            if path.is_dir():
                client.log_artifacts(run_id, str(path), path.name)
            elif path.exists():
                client.log_artifact(run_id, str(path))
        client.set_terminated(run_id)

    def _find_run(self, record: Record) -> tuple[Any, str, int]:
        """Return MLflow's client, the run of a record that goes on, and its last round; -1 for a new run."""
        client, experiment_id = _open(self.uri, self.experiment)
        from mlflow.entities import Param, RunTag

        folder = str(record.folder.resolve())
        going_on = f"attributes.status = 'RUNNING' and tags.folder = '{folder}'"
        if "'" not in folder and (found := client.search_runs([experiment_id], going_on)):
            return client, found[0].info.run_id, int(found[0].data.tags.get(_ROUND, -1))
        run_id = client.create_run(experiment_id, run_name=run_name(record)).info.run_id
        client.log_batch(run_id, tags=[RunTag("folder", folder)])
        params = [Param(key, str(value)[:_LONGEST]) for key, value in flat_parameters(record).items()]
        for i in range(0, len(params), _PARAMS_PER_CALL):
            client.log_batch(run_id, params=params[i : i + _PARAMS_PER_CALL])
        return client, run_id, -1


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
    with FileLock(lock):
        client = MlflowClient(uri)
        existing = client.get_experiment_by_name(experiment)
        if existing:
            return client, existing.experiment_id
        return client, client.create_experiment(experiment, artifact_location)
