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

from fcorun.base.public_names import ALIASES, MODULES
from fcorun.moved_modules import register_moved_modules

register_moved_modules()

if TYPE_CHECKING:
    from fcorun.base.config import AUTO as AUTO
    from fcorun.base.config import UNSET as UNSET
    from fcorun.base.config import AutoCount as AutoCount
    from fcorun.base.config import AutoFraction as AutoFraction
    from fcorun.base.config import AutoNonNegative as AutoNonNegative
    from fcorun.base.config import AutoPositive as AutoPositive
    from fcorun.base.config import BelowOne as BelowOne
    from fcorun.base.config import Count as Count
    from fcorun.base.config import Fraction as Fraction
    from fcorun.base.config import Index as Index
    from fcorun.base.config import NonNegative as NonNegative
    from fcorun.base.config import PathOption as PathOption
    from fcorun.base.config import Positive as Positive
    from fcorun.base.config import PositiveFraction as PositiveFraction
    from fcorun.base.errors import UserError as UserError
    from fcorun.base.metrics import Metric as Metric
    from fcorun.base.system.random_streams import random_stream as random_stream
    from fcorun.base.trust import find_plugin_packages as find_plugin_packages
    from fcorun.data.datasets import *  # noqa: F403
    from fcorun.data.datasets.femnist import Femnist as Femnist
    from fcorun.data.datasets.haxby import Haxby as Haxby
    from fcorun.data.datasets.heterogeneous import Heterogeneous as Heterogeneous
    from fcorun.data.datasets.heterogeneous_million import HeterogeneousMillion as HeterogeneousMillion
    from fcorun.data.datasets.lasso import Lasso as Lasso
    from fcorun.data.datasets.lasso_million import LassoMillion as LassoMillion
    from fcorun.data.datasets.logistic_synthetic import LogisticSynthetic as LogisticSynthetic
    from fcorun.data.datasets.lowrank import LowRank as LowRank
    from fcorun.data.datasets.nifti import Nifti as Nifti
    from fcorun.data.datasets.random_least_squares import RandomLeastSquares as RandomLeastSquares
    from fcorun.data.datasets.sites import Sites as Sites
    from fcorun.data.datasets.table import Table as Table
    from fcorun.data.tasks.task import Task as Task
    from fcorun.experiment.configuration.compose import compose as compose
    from fcorun.experiment.tracker import NoTracker as NoTracker
    from fcorun.experiment.tracker import Tracker as Tracker
    from fcorun.interface.api.estimators import FederatedClassifier as FederatedClassifier
    from fcorun.interface.api.estimators import FederatedRegressor as FederatedRegressor
    from fcorun.interface.api.experiment_object import Experiment as Experiment
    from fcorun.interface.api.progress import ExperimentWarning as ExperimentWarning
    from fcorun.interface.api.rows_in_memory import from_arrays as from_arrays
    from fcorun.interface.api.rows_in_memory import from_frame as from_frame
    from fcorun.interface.api.run_functions import grid as grid
    from fcorun.interface.api.run_functions import run as run
    from fcorun.interface.api.run_functions import run_grid as run_grid
    from fcorun.interface.api.run_record import RunRecord as Record  # noqa: F401
    from fcorun.interface.api.run_record import load_records as load_records
    from fcorun.interface.api.sweep_object import Sweep as Sweep
    from fcorun.interface.cli.commands.figure_command import make_figure as figure  # noqa: F401
    from fcorun.methods.algorithms import *  # noqa: F403
    from fcorun.methods.clocks.clock import ClientSpeeds as ClientSpeeds
    from fcorun.methods.clocks.clock import Clock as Clock
    from fcorun.methods.clocks.clock import NoClock as NoClock
    from fcorun.methods.clocks.lognormal import LognormalClock as LognormalClock
    from fcorun.methods.clocks.trace import TraceClock as TraceClock
    from fcorun.methods.communication import *  # noqa: F403
    from fcorun.methods.mirror_maps import *  # noqa: F403
    from fcorun.methods.objectives import *  # noqa: F403
    from fcorun.methods.problem.problem import Problem as Problem
    from fcorun.methods.problem.problem import Vector as Vector
    from fcorun.methods.regularizers import *  # noqa: F403
    from fcorun.results.scores.score import Score as Score
    from fcorun.runs.job import SweepWatcher as SweepWatcher
    from fcorun.runs.job import Watcher as Watcher
    from fcorun.runs.trackers.mlflow import MLflow as MLflow
    from fcorun.runs.trackers.tensorboard import TensorBoard as TensorBoard

__all__ = sorted(MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    """Import a public name on its first use, so that ``fcorun --help`` does not wait for JAX."""
    if name == "__version__":
        from fcorun.base.system.machine import fcorun_version

        return fcorun_version()
    if name in MODULES:
        value = getattr(import_module(f"fcorun.{MODULES[name]}"), ALIASES.get(name, name))
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fcorun' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return ["__version__", *__all__]
