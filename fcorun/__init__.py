"""fcorun: experiments in federated composite optimization.

import fcorun
config = fcorun.compose(["algo=feddualavg", "data=lasso", "rounds=100"])
record = fcorun.run(config)                                             # one configuration
points = fcorun.grid(config, {"algo.client_lr": [1e-4, 1e-3], "algo.server_lr": [0.3, 1.0]})
records = fcorun.run_grid(points)                                       # one program for all points
record.metrics, record.summary, record.solution, record.scores          # table, dict, arrays, table
record.estimator().predict(x)                                           # a fitted object of scikit-learn
fcorun.load_records("outputs")                                          # all records below a folder
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fcorun.configuration.compose import compose
    from fcorun.errors import UserError
    from fcorun.models.fitted_record import FittedRecord as Record
    from fcorun.models.fitted_record import load_records
    from fcorun.runs.job import Watcher
    from fcorun.runs.run import grid, run, run_grid

_PATHS = {
    "UserError": "errors.UserError",
    "Record": "models.fitted_record.FittedRecord",
    "load_records": "models.fitted_record.load_records",
    "compose": "configuration.compose.compose",
    "Watcher": "runs.job.Watcher",
    "grid": "runs.run.grid",
    "run": "runs.run.run",
    "run_grid": "runs.run.run_grid",
}

__all__ = ["Record", "UserError", "Watcher", "compose", "grid", "load_records", "run", "run_grid"]


def __getattr__(name: str):
    """Import a public name on its first use, so that ``fcorun --help`` does not wait for JAX."""
    if name == "__version__":
        from importlib.metadata import version

        return version("fcorun")
    if name in _PATHS:
        module, _, attribute = _PATHS[name].rpartition(".")
        return getattr(import_module(f"fcorun.{module}"), attribute)
    raise AttributeError(f"module 'fcorun' has no attribute '{name}'")
