"""The public names of fcorun, by which programs import them and configurations, records and plans name classes."""

# the public names of each package, which are imported when they are first used
_NAMES_BY_PACKAGE = {
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
MODULES = {
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
MODULES |= {name: package for package, names in _NAMES_BY_PACKAGE.items() for name in names.split()}
ALIASES = {"Record": "RunRecord", "figure": "make_figure"}  # names in their modules
