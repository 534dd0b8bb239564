"""MLflow. To look at a file of its own: pip install mlflow, then mlflow ui --backend-store-uri URI."""

import hashlib
import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from fcorun.records.record import RECORD_FILES
from fcorun.system.cache import cache_dir
from fcorun.trackers.base import Tracker, flat_parameters, iterate_scalars, run_name

_SQLITE = "sqlite:///"
_BATCH = 1000  # metrics that MLflow takes at a time; of parameters, a tenth


@dataclass(frozen=True)
class MLflow(Tracker):
    """A run of MLflow for each record: parameters, metrics against the round, status as tags, files as artifacts.

    Fields:
        uri: a database file, sqlite:///FILE, whose artifacts go to mlartifacts/ beside it; or a server, http://HOST.
        experiment: MLflow's name for what holds the runs.
    """

    uri: str = _SQLITE + "mlflow.db"
    experiment: str = "fcorun"
    required_modules = ("mlflow", "sqlalchemy", "alembic")
    pip_extra = "mlflow"

    def log(self, record):
        client, experiment = _open(self.uri, self.experiment)
        from mlflow.entities import Metric, Param, RunTag

        status = record.status
        metrics = [Metric(name, value, int(1000 * at), step) for name, value, step, at in iterate_scalars(record)]
        params = [Param(key, str(value)) for key, value in flat_parameters(record).items()]
        tags = [RunTag(key, str(status.get(key, ""))) for key in ("status", "reason", "label", "identity")]
        start = min((metric.timestamp for metric in metrics), default=None)
        run = client.create_run(experiment, start_time=start, run_name=run_name(record)).info.run_id
        client.log_batch(run, tags=[*tags, RunTag("folder", str(record.folder.resolve()))])
        for i in range(0, max(len(metrics), 10 * len(params)), _BATCH):
            client.log_batch(run, metrics[i : i + _BATCH], params[i // 10 : (i + _BATCH) // 10])
        for path in (record.folder / name for name in RECORD_FILES):
            if path.is_dir():
                client.log_artifacts(run, str(path), path.name)
            elif path.exists():
                client.log_artifact(run, str(path))
        client.set_terminated(run)


@cache
def _open(uri: str, experiment: str) -> tuple[Any, str]:
    """MLflow's client and the identifier of the experiment, which is made if it is not there."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    for name in ("mlflow", "mlflow.store.db.utils", "alembic"):  # they tell of each table that they make
        logging.getLogger(name).setLevel(logging.WARNING)
    place = None
    if uri.startswith(_SQLITE):
        place = (Path(uri.removeprefix(_SQLITE)).resolve().parent / "mlartifacts").as_uri()
    # Two processes must not make the tables of one database at the same time.
    lock = cache_dir("locks") / f"{hashlib.sha256(f'{Path.cwd()} {uri}'.encode()).hexdigest()[:16]}.lock"
    with FileLock(lock):
        client = MlflowClient(uri)
        found = client.get_experiment_by_name(experiment)
        return client, found.experiment_id if found else client.create_experiment(experiment, place)
