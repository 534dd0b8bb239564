"""Modules that plug-ins and programs of users name, by the names that they had before fcorun had rooms.

They stand for the modules of today, which are imported when a name of them is first used.
"""

import sys
from importlib import import_module
from types import ModuleType

_MODULES = {
    "fcorun.algorithms": "fcorun.methods.algorithms",
    "fcorun.clocks": "fcorun.methods.clocks.clock",
    "fcorun.communication": "fcorun.methods.communication",
    "fcorun.config": "fcorun.base.config",
    "fcorun.datasets": "fcorun.data.datasets",
    "fcorun.errors": "fcorun.base.errors",
    "fcorun.metrics": "fcorun.base.metrics",
    "fcorun.mirror_maps": "fcorun.methods.mirror_maps",
    "fcorun.objectives": "fcorun.methods.objectives",
    "fcorun.regularizers": "fcorun.methods.regularizers",
    "fcorun.trackers": "fcorun.experiment.tracker",
}


class _MovedModule(ModuleType):
    """A module that has another name today."""

    def __getattr__(self, name: str):
        return getattr(import_module(_MODULES[self.__name__]), name)


def register_moved_modules() -> None:
    """Have Python find the modules under their former names."""
    for name in _MODULES:
        sys.modules.setdefault(name, _MovedModule(name))
