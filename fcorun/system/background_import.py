"""Imports in a background thread, while the processor would otherwise wait."""

import threading
from contextlib import suppress
from importlib import import_module

PLOTTING_MODULES = (
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.legend",
    "matplotlib.ticker",
)
TABLE_MODULES = ("pandas",)
# of the process that draws the pictures of a run, and of a sweep
RUN_DRAWING_MODULES = (
    *PLOTTING_MODULES,
    "fcorun.reports.pictures.run_curves",
    "fcorun.reports.pictures.coefficients",
    "fcorun.reports.pictures.layout:draw_nothing",
)
SWEEP_DRAWING_MODULES = (*PLOTTING_MODULES, *TABLE_MODULES, "fcorun.reports.pictures.sweep_pictures")
# which complete the record of a run
RECORD_MODULES = (
    "fcorun.runs.finish",
    "fcorun.runs.environment:describe_environment",
    "fcorun.sources.catalogue:load_catalogue",
)


def import_targets(*targets: str) -> None:
    """Import modules; MODULE:FUNCTION also calls a function, whose result the function keeps in a cache.

    Ends at the first module that is not installed: the code that needs the module reports it.
    """
    with suppress(ImportError):
        for target in targets:
            name, _, function = target.partition(":")
            module = import_module(name)
            if function:
                getattr(module, function)()


def import_in_background(*targets: str) -> None:
    """Call ``import_targets`` in a thread, so that a later import of the modules returns at once."""
    threading.Thread(target=import_targets, args=targets, daemon=True).start()
