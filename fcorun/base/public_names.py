"""The public names of fcorun, by which programs import them and configurations, records and plans name classes."""

# the public names of each package, which are imported when they are first used
_NAMES_BY_PACKAGE = {
    "methods.algorithms": """
        ADAP APFL Algorithm Baseline Centralized DANE DIANA DLSA Ditto EDSL EF21 FastFedDA FedADMM FedAc
        FedAvg FedAvgSubgradient FedCEF FedCanon FedComposite FedDR FedDualAvg FedDualAvgOSP FedDualOpt
        FedDyn FedFrankWolfe FedGD FedHT FedIterHT FedMiD FedMiDOSP FedNMap FedNova FedOpt FedPD FedProx FedSplit
        FedSplitAccelerated FSVRG GossipAlgorithm Gram Local LocalData LocalFitAlgorithm MeanGradientAlgorithm
        MetaAnalysis Mixture NIDS Newton OneClient PFedMac PFedMacS PFedMacSH PFedMe PGExtra PersonalAlgorithm
        ProblemConstants ProxDASA ProxSkip ProximalAlgorithm RunConditions SDANE Scaffold ShiftedAlgorithm Traits
    """,
    "methods.regularizers": """
        Affine Box Budget Constraint ElasticNet FusedLasso GraphNet GroupLasso Halfspace L0Ball L1 L1Ball L1Box
        L1Nonneg L2 L2Ball LInf LInfBall LogSum MCP Monotone MonotoneBox NoRegularizer Nonneg Nuclear
        NuclearBall Regularizer SCAD Simplex TV soft_threshold
    """,
    "methods.mirror_maps": """
        Diagonal Entropy Euclidean HypEntropy MirrorMap PNorm SpectralHypEntropy
    """,
    "methods.objectives": """
        Cox Gamma Huber LeastSquares LinearModel Logistic MLP Objective OneVsRest Poisson Quantile
    """,
    "methods.communication": """
        Asynchronous Channel Compressor Graph HalfPrecision Identity NaturalCompression QSGD RandomK ScaledSign
        SparseBroadcast Sparsifier Star TopK Topology Tree
    """,
    "base.config": """
        AUTO UNSET AutoCount AutoFraction AutoNonNegative AutoPositive BelowOne Count Fraction Index NonNegative
        PathOption Positive PositiveFraction
    """,
    "base.metrics": "Metric",
    "data.datasets": """
        Dataset Features FederatedData Rows
    """,
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
MODULES |= {name: package for package, names in _NAMES_BY_PACKAGE.items() for name in names.split()}
ALIASES = {"Record": "RunRecord", "figure": "make_figure"}  # names in their modules
