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

from fcorun.base.public_names import MODULES, ORIGINAL_NAMES
from fcorun.moved_modules import register_moved_modules

register_moved_modules()

__all__ = sorted(MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    """Import a public name on its first use, so that ``fcorun --help`` does not wait for JAX."""
    if name == "__version__":
        from fcorun.base.system.machine import fcorun_version

        return fcorun_version()
    if name in MODULES:
        value = getattr(import_module(f"fcorun.{MODULES[name]}"), ORIGINAL_NAMES[name])
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fcorun' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return ["__version__", *__all__]
