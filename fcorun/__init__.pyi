from .base.config import AUTO as AUTO
from .base.config import UNSET as UNSET
from .base.config import AutoCount as AutoCount
from .base.config import AutoFraction as AutoFraction
from .base.config import AutoNonNegative as AutoNonNegative
from .base.config import AutoPositive as AutoPositive
from .base.config import BelowOne as BelowOne
from .base.config import Count as Count
from .base.config import Fraction as Fraction
from .base.config import Index as Index
from .base.config import NonNegative as NonNegative
from .base.config import PathOption as PathOption
from .base.config import Positive as Positive
from .base.config import PositiveFraction as PositiveFraction
from .base.errors import UserError as UserError
from .base.metrics import Metric as Metric
from .base.system.random_streams import random_stream as random_stream
from .base.trust import find_plugin_packages as find_plugin_packages
from .data.datasets import Dataset as Dataset
from .data.datasets import Features as Features
from .data.datasets import FederatedData as FederatedData
from .data.datasets import Rows as Rows
from .data.datasets.femnist import Femnist as Femnist
from .data.datasets.haxby import Haxby as Haxby
from .data.datasets.heterogeneous import Heterogeneous as Heterogeneous
from .data.datasets.heterogeneous_million import HeterogeneousMillion as HeterogeneousMillion
from .data.datasets.lasso import Lasso as Lasso
from .data.datasets.lasso_million import LassoMillion as LassoMillion
from .data.datasets.logistic_synthetic import LogisticSynthetic as LogisticSynthetic
from .data.datasets.lowrank import LowRank as LowRank
from .data.datasets.nifti import Nifti as Nifti
from .data.datasets.random_least_squares import RandomLeastSquares as RandomLeastSquares
from .data.datasets.sites import Sites as Sites
from .data.datasets.synthetic_alpha_beta import SyntheticAlphaBeta as SyntheticAlphaBeta
from .data.datasets.table import Table as Table
from .data.tasks.task import Task as Task
from .experiment.configuration.compose import compose as compose
from .experiment.tracker import NoTracker as NoTracker
from .experiment.tracker import Tracker as Tracker
from .interface.api.estimators import FederatedClassifier as FederatedClassifier
from .interface.api.estimators import FederatedRegressor as FederatedRegressor
from .interface.api.experiment_object import Experiment as Experiment
from .interface.api.experiment_object import run as run
from .interface.api.progress import ExperimentWarning as ExperimentWarning
from .interface.api.rows_in_memory import from_arrays as from_arrays
from .interface.api.rows_in_memory import from_frame as from_frame
from .interface.api.run_record import RunRecord as Record
from .interface.api.run_record import Sweep as Sweep
from .interface.api.run_record import load_records as load_records
from .interface.cli.commands.figure_command import make_figure as figure
from .methods.algorithms import *  # noqa: F403
from .methods.clocks.clock import ClientSpeeds as ClientSpeeds
from .methods.clocks.clock import Clock as Clock
from .methods.clocks.clock import LognormalClock as LognormalClock
from .methods.clocks.clock import NoClock as NoClock
from .methods.clocks.clock import TraceClock as TraceClock
from .methods.communication import *  # noqa: F403
from .methods.mirror_maps import *  # noqa: F403
from .methods.objectives import *  # noqa: F403
from .methods.problem.problem import Problem as Problem
from .methods.problem.problem import Vector as Vector
from .methods.regularizers import *  # noqa: F403
from .results.scores.score import Score as Score
from .runs.job import SweepWatcher as SweepWatcher
from .runs.job import Watcher as Watcher
from .runs.trackers.mlflow import MLflow as MLflow
from .runs.trackers.tensorboard import TensorBoard as TensorBoard
from .runs.trackers.trackio import Trackio as Trackio
from .runs.trackers.wandb import WeightsAndBiases as WeightsAndBiases

__all__ = ["Record", "figure"]  # a stub exports names that differ from those in their modules by this list alone
__version__: str
