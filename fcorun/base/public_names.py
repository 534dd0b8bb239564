"""The public names of fcorun, by which programs import them and configurations, records and plans name classes."""

import ast
from pathlib import Path

# shelves of plug-ins: the stub of each imports its public names, and needs an edit for a new plug-in of fcorun alone
SHELVES = (
    "methods.algorithms",
    "methods.communication",
    "methods.mirror_maps",
    "methods.objectives",
    "methods.regularizers",
)
# the public names of other packages
_NAMES_BY_PACKAGE = {
    "base.config": """
        AUTO UNSET AutoCount AutoFraction AutoNonNegative AutoPositive BelowOne Count Fraction Index NonNegative
        PathOption Positive PositiveFraction
    """,
    "base.metrics": "Metric",
    "data.datasets": "Dataset Features FederatedData Rows",
}
# and the modules of other public names
MODULES = {
    "ClientSpeeds": "methods.clocks.clock",
    "Clock": "methods.clocks.clock",
    "Experiment": "interface.api.experiment_object",
    "ExperimentWarning": "interface.api.progress",
    "FederatedClassifier": "interface.api.estimators",
    "FederatedRegressor": "interface.api.estimators",
    "Femnist": "data.datasets.femnist",
    "Haxby": "data.datasets.haxby",
    "Heterogeneous": "data.datasets.heterogeneous",
    "HeterogeneousMillion": "data.datasets.heterogeneous_million",
    "Lasso": "data.datasets.lasso",
    "LassoMillion": "data.datasets.lasso_million",
    "LognormalClock": "methods.clocks.lognormal",
    "LogisticSynthetic": "data.datasets.logistic_synthetic",
    "LowRank": "data.datasets.lowrank",
    "MLflow": "runs.trackers.mlflow",
    "Nifti": "data.datasets.nifti",
    "NoClock": "methods.clocks.clock",
    "NoTracker": "experiment.tracker",
    "Problem": "methods.problem.problem",
    "RandomLeastSquares": "data.datasets.random_least_squares",
    "Record": "interface.api.run_record",
    "Sites": "data.datasets.sites",
    "Sweep": "interface.api.sweep_object",
    "SweepWatcher": "runs.job",
    "Table": "data.datasets.table",
    "Score": "results.scores.score",
    "Task": "data.tasks.task",
    "TensorBoard": "runs.trackers.tensorboard",
    "TraceClock": "methods.clocks.trace",
    "Tracker": "experiment.tracker",
    "UserError": "base.errors",
    "Vector": "methods.problem.problem",
    "Watcher": "runs.job",
    "compose": "experiment.configuration.compose",
    "figure": "interface.cli.commands.figure_command",
    "find_plugin_packages": "base.trust",
    "from_arrays": "interface.api.rows_in_memory",
    "from_frame": "interface.api.rows_in_memory",
    "grid": "interface.api.run_functions",
    "load_records": "interface.api.run_record",
    "random_stream": "base.system.random_streams",
    "run": "interface.api.run_functions",
    "run_grid": "interface.api.run_functions",
}
for _package, _names in _NAMES_BY_PACKAGE.items():
    MODULES |= dict.fromkeys(_names.split(), _package)
ALIASES = {"Record": "RunRecord", "figure": "make_figure"}  # names in their modules


def _read_stub(package: str) -> list[str]:
    """Return the names that the stub of a shelf imports, in order. The names are the public ones of its plug-ins."""
    stub = Path(__file__).parents[1].joinpath(*package.split("."), "__init__.pyi")
    names = []
    for statement in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            names += [alias.name for alias in statement.names]
    return names


for _package in SHELVES:
    MODULES |= dict.fromkeys(_read_stub(_package), _package)
