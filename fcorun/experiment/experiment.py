"""An experiment: checked plug-ins that fit each other, and an identity."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.communication.base import Topology
from fcorun.config import AUTO, Settings, identity_fields, numeric_fields
from fcorun.datasets.base import Dataset
from fcorun.engine.engine import RESULTS_VERSION
from fcorun.engine.federation import Numbers
from fcorun.experiment.warm_start import WarmStart, load_warm_start
from fcorun.metrics import CATALOGUE, MetricCatalogue, custom_metrics
from fcorun.mirror_maps.base import MirrorMap
from fcorun.objectives.base import Objective
from fcorun.plugin_code import PluginCode, code_identifier, find_code
from fcorun.problem import solver
from fcorun.regularizers.base import Regularizer
from fcorun.regularizers.none import NoRegularizer
from fcorun.sections import GRID_SECTIONS, IDENTITY_SECTIONS
from fcorun.trackers.base import Tracker


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A configuration made into objects. Two experiments are the same when their ``identity`` is.

    Attributes:
        config: the configuration as plain values, fit for YAML, from which the same experiment can be built again.
        names: what each section is called.
        tracker: is told of the record when it is complete; no part of the identity, nor of ``config``.
    """

    algo: Algorithm | Baseline
    data: Dataset
    reg: Regularizer
    objective: Objective
    mirror: MirrorMap
    topology: Topology
    tracker: Tracker
    settings: Settings
    config: dict[str, Any]
    names: dict[str, str]

    @cached_property
    def identity(self) -> str:
        """The hash of what gives the run its meaning: no paths, nothing of how it is shown, but what the data hold."""
        content = {
            s: [code_identifier(getattr(self, s)), identity_fields(getattr(self, s))]
            for s in IDENTITY_SECTIONS
            if s != "data"
        }
        if self.reg.relative_or_none is not None:
            content["reg"][1].pop("strength", None)
        settings = identity_fields(self.settings)
        if self.settings.stop is None:  # as before there was such a key
            settings.pop("stop")
        if isinstance(self.algo, Baseline):
            settings = {key: settings[key] for key in ("client_weighting", "cutoff", "reference")}
        if self.warm_start:
            settings["start"] = self.warm_start.digest
        if (map := self.topology.sources()) is not None:
            content["topology"][1]["map"] = map
        content |= {"data": self.fingerprint, "settings": settings, "versions": [RESULTS_VERSION, solver.VERSION]}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    @cached_property
    def plugin_code(self) -> dict[str, PluginCode]:
        """The code of the plug-ins outside of fcorun, by section."""
        codes = {section: find_code(type(getattr(self, section))) for section in IDENTITY_SECTIONS}
        return {section: code for section, code in codes.items() if code is not None}

    @cached_property
    def fingerprint(self) -> str:
        """That of the data, as it was when it was first asked for; what is missing is downloaded, if it is to run."""
        if not self.settings.dry_run:
            self.data.fetch()
        return self.data.fingerprint()

    @cached_property
    def warm_start(self) -> WarmStart | None:
        """Where the run starts from, if that is a record's solution."""
        return load_warm_start(self.settings.start) if self.settings.start else None

    @property
    def default_folder(self) -> Path:
        """outputs/DATA/ALGORITHM-IDENTITY under the current folder."""
        return Path("outputs") / self.names["data"] / f"{self.names['algo']}-{self.identity[:8]}"

    @cached_property
    def batch_key(self) -> str:
        """Equal for experiments that differ in numbers and seed only, which one program can run together."""
        parts: list = []
        for section in IDENTITY_SECTIONS:
            plugin = getattr(self, section)
            traced = set(numeric_fields(plugin)) if section in GRID_SECTIONS else set()
            traced |= {"relative"} if section == "reg" and self.reg.relative_or_none is not None else set()
            parts.append(
                [
                    code_identifier(plugin),
                    {k: v for k, v in identity_fields(plugin).items() if k not in traced},
                    sorted(traced),
                ]
            )
        settings = asdict(self.settings) | ({"seed": None} if isinstance(self.algo, Algorithm) else {})
        start = self.warm_start and self.warm_start.digest
        return json.dumps(
            [parts, settings, self.fingerprint, start, self.topology.sources()], sort_keys=True, default=str
        )

    @property
    def label(self) -> str:
        """A line that says which run this is."""
        shown = self.numbers()
        if self.reg.relative_or_none is not None:
            shown["reg"].pop("strength")
        rates = " ".join(f"{k}={v:g}" for section in shown.values() for k, v in section.items())
        rates = " ".join([rates, *(f"{k}={AUTO}" for k in getattr(self.algo, "auto_fields", ()))]).strip()
        more = [f"topology={self.names['topology']}"] if self.topology.edge_rounds else []
        more += [f"start={Path(self.settings.start).name}"] if self.settings.start else []
        more += ["frozen"] if self.settings.frozen else []
        named = f"algo={self.names['algo']} data={self.names['data']} reg={self.names['reg']}"
        return " ".join([named, *more, rates]).strip()

    def numbers(self) -> Numbers:
        """The numbers that a grid may vary."""
        return {section: numeric_fields(getattr(self, section)) for section in GRID_SECTIONS}

    @cached_property
    def metrics(self) -> MetricCatalogue:
        """The catalogue of metrics with those that the objective declares."""
        return CATALOGUE.with_metrics(custom_metrics(self.objective.metrics))

    @property
    def warning(self) -> str:
        """What a user should know of this combination before it runs, or nothing."""
        if isinstance(self.algo, Baseline) and self.settings.stop:
            return f"algo={self.names['algo']} ends by its certificate, whatever stop is"
        if self.ignores_regularizer:
            return f"algo={self.names['algo']} leaves psi out: reg={self.names['reg']} is measured, not minimised"
        return ""

    @property
    def ignores_regularizer(self) -> bool:
        """Whether there is a psi that the algorithm does not apply."""
        return not self.applies_regularizer and not isinstance(self.reg, NoRegularizer)

    @property
    def has_shared_model(self) -> bool:
        """Whether the run has a model for all clients: its algorithm trains one, or it starts from one."""
        return isinstance(self.algo, Baseline) or self.algo.traits.shared_model or self.settings.start is not None

    @property
    def applies_regularizer(self) -> bool:
        """Whether the algorithm applies psi."""
        return isinstance(self.algo, Baseline) or bool(self.algo.traits.psi_sides)
