"""Case of an algorithm that ``fcorun check`` examines: its configuration, what it needs, and a run without a pause."""

import shutil
import tempfile
import weakref
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path

from fcorun.base.config import build_plugin
from fcorun.base.records.record import Record
from fcorun.engine.engine import Engine
from fcorun.engine.federation import Federation
from fcorun.interface.checks.problems import SMALL, Config, compose_cached, engine_of, grid, numbers_of, record_of
from fcorun.methods.algorithms.algorithm import Algorithm, Traits

UNINTERRUPTED = ("rounds=6", "checkpoint_every=1000")


@dataclass(frozen=True, eq=False)
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

    @property
    def reaches_optimum_with_intercepts(self) -> bool:
        """Return whether the algorithm reaches the optimum with intercepts of clients, too."""
        has_one_model = not (self.algorithm.has_personal_models or self.algorithm.picks_client)
        return bool(self.traits.exact) and has_one_model

    def has_field(self, name: str) -> bool:
        """Return True if the algorithm has a field of this name."""
        return name in {field.name for field in fields(self.algorithm)}

    def config(self, *overrides: str) -> Config:
        """Return a configuration of a run of the algorithm that takes a second."""
        return compose_cached(*SMALL, f"algo={self.name}", *self.required_overrides, *self.overrides, *overrides)

    @property
    @lru_cache(maxsize=1)  # noqa: B019  (of the last case alone, since programs take memory)
    def engine(self) -> Engine:
        """The engine of ``config()``, whose programs and shapes several checks use."""
        return engine_of(self.config())

    @property
    @lru_cache(maxsize=1)  # noqa: B019
    def float64_engine(self) -> Engine:
        """The engine of runs in float64, compiled with numbers of no run, whose programs several checks use."""
        return engine_of(self.scale_numbers(0.7, {self.regularizer_number: [0.2]}))

    @property
    def float64_config(self) -> Config:
        """The configuration of a run in float64, as exact as rounding allows."""
        return self.config("precision=float64", *self.exact_overrides)

    @cached_property
    def float64_numbers(self) -> dict[str, float]:
        """The real numbers of the algorithm in that run, by their keys."""
        return numbers_of(self.float64_config)["algo"]

    def scale_numbers(self, factor: float, others: dict[str, list[float]] | None = None) -> Config:
        """Return the configuration of a run in float64 with its numbers times a factor, but for the ``others``."""
        numbers = {f"algo.{key}": [factor * value] for key, value in self.float64_numbers.items()}
        (config,) = grid(self.float64_config, numbers | (others or {}))
        return config

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
