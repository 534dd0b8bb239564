"""fcorun: experiments in federated composite optimization.

import fcorun
data = fcorun.from_arrays(X, y, clients)                                # or from_frame(frame, target=..., client=...)
experiment = fcorun.Experiment(algorithm=fcorun.FedDualAvg(), data=data, regularizer=fcorun.L1(0.1), rounds=500)
record = experiment.run("outputs/mine")                                 # the folder of the record
record.metrics, record.coefficients, record.solution, record.scores     # tables and arrays
record.predict(new_rows)
fcorun.compose(["algo=feddualavg", "data=lasso"])                       # a configuration, as the command composes it
fcorun.load_records("outputs")                                          # all records below a folder
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fcorun.public_names import ALIASES, MODULES

if TYPE_CHECKING:
    from fcorun.algorithms import *  # noqa: F403
    from fcorun.api.estimators import FederatedClassifier as FederatedClassifier
    from fcorun.api.estimators import FederatedRegressor as FederatedRegressor
    from fcorun.api.experiment import Experiment as Experiment
    from fcorun.api.progress import ExperimentWarning as ExperimentWarning
    from fcorun.api.record import RunRecord as Record  # noqa: F401
    from fcorun.api.record import load_records as load_records
    from fcorun.api.rows import from_arrays as from_arrays
    from fcorun.api.rows import from_frame as from_frame
    from fcorun.api.run import grid as grid
    from fcorun.api.run import run as run
    from fcorun.api.run import run_grid as run_grid
    from fcorun.api.sweep import Sweep as Sweep
    from fcorun.cli.commands.figure import make_figure as figure  # noqa: F401
    from fcorun.clocks.base import ClientSpeeds as ClientSpeeds
    from fcorun.clocks.base import Clock as Clock
    from fcorun.clocks.base import NoClock as NoClock
    from fcorun.clocks.lognormal import LognormalClock as LognormalClock
    from fcorun.clocks.trace import TraceClock as TraceClock
    from fcorun.communication import *  # noqa: F403
    from fcorun.configuration.compose import compose as compose
    from fcorun.datasets import *  # noqa: F403
    from fcorun.datasets.femnist import Femnist as Femnist
    from fcorun.datasets.haxby import Haxby as Haxby
    from fcorun.datasets.heterogeneous import Heterogeneous as Heterogeneous
    from fcorun.datasets.heterogeneous_million import HeterogeneousMillion as HeterogeneousMillion
    from fcorun.datasets.lasso import Lasso as Lasso
    from fcorun.datasets.lasso_million import LassoMillion as LassoMillion
    from fcorun.datasets.least_squares import RandomLeastSquares as RandomLeastSquares
    from fcorun.datasets.logistic_synthetic import LogisticSynthetic as LogisticSynthetic
    from fcorun.datasets.lowrank import LowRank as LowRank
    from fcorun.datasets.nifti import Nifti as Nifti
    from fcorun.datasets.sites import Sites as Sites
    from fcorun.datasets.table import Table as Table
    from fcorun.errors import UserError as UserError
    from fcorun.mirror_maps import *  # noqa: F403
    from fcorun.objectives import *  # noqa: F403
    from fcorun.problem.problem import Problem as Problem
    from fcorun.problem.problem import Vector as Vector
    from fcorun.regularizers import *  # noqa: F403
    from fcorun.runs.job import SweepWatcher as SweepWatcher
    from fcorun.runs.job import Watcher as Watcher
    from fcorun.trackers.base import NoTracker as NoTracker
    from fcorun.trackers.base import Tracker as Tracker
    from fcorun.trackers.mlflow import MLflow as MLflow
    from fcorun.trackers.tensorboard import TensorBoard as TensorBoard

__all__ = sorted(MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    """Import a public name on its first use, so that ``fcorun --help`` does not wait for JAX."""
    if name == "__version__":
        from fcorun.system.machine import fcorun_version

        return fcorun_version()
    if name in MODULES:
        value = getattr(import_module(f"fcorun.{MODULES[name]}"), ALIASES.get(name, name))
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fcorun' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return ["__version__", *__all__]
