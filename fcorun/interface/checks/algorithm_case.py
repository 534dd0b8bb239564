"""Case of an algorithm that ``fcorun check`` examines: its configuration, what it needs, and a run without a pause."""

import shutil
import tempfile
import weakref
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

from fcorun.base.config import build_plugin
from fcorun.base.records.record import Record
from fcorun.engine.federation import Federation
from fcorun.interface.checks.problems import SMALL, Config, compose_cached, engine_of, record_of
from fcorun.methods.algorithms.algorithm import Algorithm, Traits

UNINTERRUPTED = ("rounds=6", "checkpoint_every=1000")


@dataclass(frozen=True)
class AlgorithmCase:
    """An algorithm, chosen by ``algo=NAME`` and overrides of its keys, or a baseline, which has fewer properties."""

    name: str
    overrides: tuple[str, ...] = ()

    @cached_property
    def algorithm(self) -> Algorithm:
        return build_plugin("algo", compose_cached(*SMALL, f"algo={self.name}", *self.overrides)["algo"])

    @property
    def traits(self) -> Traits:
        return self.algorithm.traits

    @property
    def needs_float64(self) -> bool:
        """The flag of an algorithm whose runs are in float64, within which its checks are called."""
        return self.algorithm.needs_float64

    def federation(self, *overrides: str) -> Federation:
        """Return the federation of a run of the algorithm."""
        return engine_of(self.config(*overrides)).federation

    @property
    def required_overrides(self) -> tuple[str, ...]:
        """The overrides without which the algorithm is refused: all clients, a psi, a topology, a ridge."""
        overrides = () if self.traits.partial else ("clients_per_round=null",)
        if self.traits.local_fits:
            overrides = (*overrides, "algo.ridge=1")
        return (*overrides, *self.regularizer_overrides, *self.topology_overrides)

    @property
    def regularizer_overrides(self) -> tuple[str, ...]:
        """The overrides that choose a psi that the algorithm accepts, if it does not accept that of the data.

        They are without an intercept where the domain must be bounded.
        """
        needed = () if "linear_minimizer" not in self.traits.needs else ("reg=l1_ball",)
        return (*needed, "objective.intercept=false") if self.algorithm.needs_bounded_domain else needed

    @property
    def regularizer_number(self) -> str:
        """The key of the strength or the radius of the psi of ``config``."""
        return "reg.radius" if "reg=l1_ball" in self.regularizer_overrides else "reg.strength"

    @property
    def topology_overrides(self) -> tuple[str, ...]:
        """The override that chooses the topology that the algorithm needs, if it needs one."""
        needed = {"only": ("topology=tree",), "graph": ("topology=graph",)}
        return needed.get(self.traits.hierarchy, ())

    @property
    def exact_overrides(self) -> tuple[str, ...]:
        """The overrides that make an inner solver, if any, as exact as rounding allows."""
        return ("algo.tolerance=1e-12",) if self.has_field("tolerance") else ()

    def has_field(self, name: str) -> bool:
        """Return True if the algorithm has a field of this name."""
        return name in {field.name for field in fields(self.algorithm)}

    def config(self, *overrides: str) -> Config:
        """Return a configuration of a run of the algorithm that takes a second."""
        return compose_cached(*SMALL, f"algo={self.name}", *self.required_overrides, *self.overrides, *overrides)

    @cached_property
    def uninterrupted(self) -> Record:
        """The record of a run, in a folder with the lifetime of this case."""
        return record_of(self.config(*UNINTERRUPTED), self._folder / "uninterrupted")

    @cached_property
    def _folder(self) -> Path:
        folder = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    @property
    def tolerance(self) -> float:
        """The largest relative difference of two runs in float64: rounding may change when an inner solver stops."""
        return 1e-8 if self.has_field("iterations") else 1e-10
