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

# the public names of each package, which are imported when they are first used
_NAMES = {
    "algorithms": """
        ADAP APFL Algorithm Baseline Centralized DANE DIANA DLSA Ditto EDSL EF21 FastFedDA FedADMM FedAc
        FedAvg FedAvgSubgradient FedCEF FedCanon FedComposite FedDR FedDualAvg FedDualAvgOSP FedDualOpt
        FedDyn FedFrankWolfe FedGD FedHT FedIterHT FedMiD FedMiDOSP FedNMap FedNova FedOpt FedPD FedProx FedSplit
        FedSplitAccelerated FSVRG GossipAlgorithm Gram Local LocalData LocalFitAlgorithm MeanGradientAlgorithm
        MetaAnalysis Mixture NIDS Newton OneClient PFedMac PFedMacS PFedMacSH PFedMe PGExtra PersonalAlgorithm
        ProblemConstants ProxDASA ProxSkip ProximalAlgorithm RunConditions SDANE Scaffold ShiftedAlgorithm Traits
    """,
    "regularizers": """
        Affine Box Budget Constraint ElasticNet FusedLasso GraphNet GroupLasso Halfspace L0Ball L1 L1Ball L1Box
        L1Nonneg L2 L2Ball LInf LInfBall LogSum MCP Monotone MonotoneBox NoRegularizer Nonneg Nuclear
        NuclearBall Regularizer SCAD Simplex TV soft_threshold
    """,
    "mirror_maps": """
        Diagonal Entropy Euclidean HypEntropy MirrorMap PNorm SpectralHypEntropy
    """,
    "objectives": """
        Cox Gamma Huber LeastSquares LinearModel Logistic MLP Objective OneVsRest Poisson Quantile
    """,
    "communication": """
        Asynchronous Channel Compressor Graph HalfPrecision Identity NaturalCompression QSGD RandomK ScaledSign
        SparseBroadcast Sparsifier Star TopK Topology Tree
    """,
    "datasets": """
        Dataset Features FederatedData Rows
    """,
}
# and the modules of other public names
_MODULES = {
    "ClientSpeeds": "clocks.base",
    "Clock": "clocks.base",
    "Experiment": "api.experiment",
    "ExperimentWarning": "api.progress",
    "FederatedClassifier": "api.estimators",
    "FederatedRegressor": "api.estimators",
    "Femnist": "datasets.femnist",
    "Haxby": "datasets.haxby",
    "Heterogeneous": "datasets.heterogeneous",
    "HeterogeneousMillion": "datasets.heterogeneous_million",
    "Lasso": "datasets.lasso",
    "LassoMillion": "datasets.lasso_million",
    "LognormalClock": "clocks.lognormal",
    "LogisticSynthetic": "datasets.logistic_synthetic",
    "LowRank": "datasets.lowrank",
    "MLflow": "trackers.mlflow",
    "Nifti": "datasets.nifti",
    "NoClock": "clocks.base",
    "NoTracker": "trackers.base",
    "Problem": "problem.problem",
    "RandomLeastSquares": "datasets.least_squares",
    "Record": "api.record",
    "Sites": "datasets.sites",
    "Sweep": "api.sweep",
    "SweepWatcher": "runs.job",
    "Table": "datasets.table",
    "TensorBoard": "trackers.tensorboard",
    "TraceClock": "clocks.trace",
    "Tracker": "trackers.base",
    "UserError": "errors",
    "Vector": "problem.problem",
    "Watcher": "runs.job",
    "compose": "configuration.compose",
    "figure": "cli.commands.figure",
    "from_arrays": "api.rows",
    "from_frame": "api.rows",
    "grid": "api.run",
    "load_records": "api.record",
    "run": "api.run",
    "run_grid": "api.run",
}
_MODULES |= {name: package for package, names in _NAMES.items() for name in names.split()}
_ALIASES = {"Record": "RunRecord", "figure": "make_figure"}  # names in their modules

__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    """Import a public name on its first use, so that ``fcorun --help`` does not wait for JAX."""
    if name == "__version__":
        from fcorun.system.machine import fcorun_version

        return fcorun_version()
    if name in _MODULES:
        value = getattr(import_module(f"fcorun.{_MODULES[name]}"), _ALIASES.get(name, name))
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fcorun' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return ["__version__", *__all__]
