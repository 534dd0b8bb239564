"""Modules that users' plug-ins and programs import by the names that they had before fcorun had rooms.

A former name is the module of today itself, not a copy of it: a class has one identity under both names.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULES = {
    "fcorun.algorithms": "fcorun.methods.algorithms",
    "fcorun.algorithms.base": "fcorun.methods.algorithms.algorithm",
    "fcorun.clocks": "fcorun.methods.clocks.clock",
    "fcorun.communication": "fcorun.methods.communication",
    "fcorun.communication.base": "fcorun.methods.communication.contracts",
    "fcorun.config": "fcorun.base.config",
    "fcorun.datasets": "fcorun.data.datasets",
    "fcorun.datasets.base": "fcorun.data.datasets.dataset",
    "fcorun.errors": "fcorun.base.errors",
    "fcorun.metrics": "fcorun.base.metrics",
    "fcorun.mirror_maps": "fcorun.methods.mirror_maps",
    "fcorun.mirror_maps.base": "fcorun.methods.mirror_maps.mirror_map",
    "fcorun.objectives": "fcorun.methods.objectives",
    "fcorun.objectives.base": "fcorun.methods.objectives.objective",
    "fcorun.regularizers": "fcorun.methods.regularizers",
    "fcorun.regularizers.base": "fcorun.methods.regularizers.regularizer",
    "fcorun.trackers": "fcorun.experiment.tracker",
    "fcorun.trust": "fcorun.base.trust",
}


def _todays_name(name: str) -> str | None:
    """Return the name of today of a module that has moved, also of a module below; None for another module."""
    if name in _MODULES:
        return _MODULES[name]
    package, _, last = name.rpartition(".")
    if package in _MODULES:
        return f"{_MODULES[package]}.{last}"
    return None


class _FormerNames:  # no subclass of importlib.abc, whose import takes 10 ms
    """Finds modules by their former names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what Python needs to load a module that has moved; None for another module."""
        loader: Any = self
        return ModuleSpec(fullname, loader) if _todays_name(fullname) else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make an empty module, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of today in the place of the empty one."""
        sys.modules[module.__name__] = import_module(str(_todays_name(module.__name__)))


def register_moved_modules() -> None:
    """Have Python find the modules under their former names."""
    sys.meta_path.insert(0, _FormerNames())  # before the finder of files, which would load a second copy
