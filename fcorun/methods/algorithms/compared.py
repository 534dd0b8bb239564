"""The algorithms that ``fcorun compare`` compares by default."""

SHARED_MODEL_ALGORITHM = "centralized"  # the certified optimum, which the exact methods reach
# personalised algorithms whose default numbers need no tuning to begin with, and further overrides of each: a solver of
# the global model that applies psi
PERSONAL_ALGORITHMS = {"ditto": ("algo.solver=feddualavg",), "pfedme": (), "apfl": ()}
