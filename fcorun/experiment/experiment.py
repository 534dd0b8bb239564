"""An experiment: checked plug-ins that fit each other, and an identity."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.clocks.base import Clock
from fcorun.clocks.none import NoClock
from fcorun.communication.base import Channel, Topology
from fcorun.communication.compressor import Compressor
from fcorun.communication.star import Star
from fcorun.config import (
    AUTO,
    GRID_SECTIONS,
    IDENTITY_SECTIONS,
    SECTIONS,
    Settings,
    identity_fields,
    numeric_fields,
)
from fcorun.datasets.base import Dataset
from fcorun.engine.engine import RESULTS_VERSION
from fcorun.engine.federation import Numbers
from fcorun.experiment.convergence import IGNORES_PSI
from fcorun.experiment.warm_start import WarmStart, load_warm_start
from fcorun.metrics import CATALOGUE, Metric, MetricCatalogue, custom_metrics
from fcorun.mirror_maps.base import MirrorMap
from fcorun.objectives.base import Objective
from fcorun.plugin_code import PluginCode, code_identifier, find_code
from fcorun.problem import solver
from fcorun.regularizers.base import Regularizer
from fcorun.regularizers.none import NoRegularizer
from fcorun.trackers.base import Tracker


@dataclass(frozen=True, kw_only=True)
class PreparedExperiment:
    """A configuration made into objects. Two experiments with the same ``identity`` are the same experiment.

    Attributes:
        config: the configuration as plain values, fit for YAML, from which the same experiment can be built again.
        names: the name of the plug-in of each section, as in ``algo=NAME``.
        tracker: receives the complete record. The tracker is no part of the identity, nor of ``config``.
        settings_warning: a warning about settings that have no effect; empty for none.
    """

    algo: Algorithm | Baseline
    data: Dataset
    reg: Regularizer
    objective: Objective
    mirror: MirrorMap
    topology: Topology
    uplink: Channel
    downlink: Channel
    clock: Clock
    tracker: Tracker
    settings: Settings
    config: dict[str, Any]
    names: dict[str, str]
    settings_warning: str = ""

    @cached_property
    def identity(self) -> str:
        """The hash of everything that determines the numbers of the run.

        The contents of the data are part of the hash; paths and the presentation of results are not.
        """
        content: dict[str, Any] = {}
        for section in IDENTITY_SECTIONS:
            plugin = getattr(self, section)
            if section != "data" and not _is_outside_identity(section, plugin):
                content[section] = [code_identifier(plugin), identity_fields(plugin)]
        if self.reg.relative_or_none is not None:
            content["reg"][1].pop("strength", None)
        settings = identity_fields(self.settings)
        if self.settings.stop is None:  # stop=null has the identity of a configuration without the key
            settings.pop("stop")
        if isinstance(self.algo, Baseline):
            kept = ("client_weighting", "cutoff", "reference", "gap", "relax", "imputations")
            if self.settings.imputations:  # the seed draws the missing values
                kept += ("seed",)
            settings = {key: settings[key] for key in kept if key in settings}
        if self.warm_start:
            settings["start"] = self.warm_start.digest
        file_digest = self.topology.sources()
        if file_digest is not None:
            content["topology"][1][self.topology.file_field] = file_digest
        speeds = self.clock.sources()
        if speeds is not None:
            content["clock"].append(speeds)
        content["data"] = self.fingerprint
        content["settings"] = settings
        content["versions"] = [RESULTS_VERSION, solver.VERSION]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    @cached_property
    def plugin_code(self) -> dict[str, PluginCode]:
        """The code of the plug-ins outside of fcorun, by section."""
        codes = {}
        for section in IDENTITY_SECTIONS:
            code = find_code(type(getattr(self, section)))
            if code is not None:
                codes[section] = code
        return codes

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the data, computed once. Downloads missing files unless ``dry_run`` is set."""
        if not self.settings.dry_run:
            self.data.fetch()
        return self.data.fingerprint()

    @cached_property
    def warm_start(self) -> WarmStart | None:
        """The record whose solution the run starts from; None unless ``start`` is set."""
        return load_warm_start(self.settings.start) if self.settings.start else None

    def with_resolved(self, **plugins: Any) -> "PreparedExperiment":
        """Return the experiment with plug-ins whose numbers are resolved. Its data and its start are not read again."""
        resolved = replace(self, **plugins)
        vars(resolved).update({name: vars(self)[name] for name in ("fingerprint", "warm_start") if name in vars(self)})
        return resolved

    @property
    def default_folder(self) -> Path:
        """The folder outputs/DATA/ALGORITHM-IDENTITY under the current folder."""
        return Path("outputs") / self.names["data"] / f"{self.names['algo']}-{self.identity[:8]}"

    @cached_property
    def batch_key(self) -> str:
        """A key shared by the experiments that one program can run together: they differ in numbers and seed only."""
        plugins: list = []
        for section in IDENTITY_SECTIONS:
            plugin = getattr(self, section)
            traced = set(numeric_fields(plugin)) if section in GRID_SECTIONS else set()
            if section == "uplink" and not self.topology.waits_for_cohort:
                traced = set()  # the bytes of messages decide when they arrive, and so who takes part
            if section == "reg" and self.reg.relative_or_none is not None:
                traced.add("relative")
            static = {name: value for name, value in identity_fields(plugin).items() if name not in traced}
            plugins.append([code_identifier(plugin), static, sorted(traced)])
        settings = asdict(self.settings)
        if isinstance(self.algo, Algorithm):
            settings["seed"] = None
        start = self.warm_start and self.warm_start.digest
        content = [plugins, settings, self.fingerprint, start, self.topology.sources(), self.clock.sources()]
        return json.dumps(content, sort_keys=True, default=str)

    @property
    def label(self) -> str:
        """The plug-ins and numbers of the run in one line, as logs and tables show them."""
        words = [f"{section}={self.names[section]}" for section in ("algo", "data", "reg")]
        if not isinstance(self.topology, Star):
            words.append(f"topology={self.names['topology']}")
        for section in ("uplink", "downlink"):
            if not _is_outside_identity(section, getattr(self, section)):
                words.append(f"{section}={self.names[section]}")
        if not isinstance(self.clock, NoClock):
            words.append(f"clock={self.names['clock']}")
        if self.settings.start:
            words.append(f"start={Path(self.settings.start).name}")
        if self.settings.frozen:
            words.append("frozen")
        if self.settings.relax is not None:
            words.append(f"relax={self.settings.relax:g}")
        if self.settings.imputations:
            words.append(f"imputations={self.settings.imputations}")
        numbers = self.numbers()
        if self.reg.relative_or_none is not None:
            numbers["reg"].pop("strength")
        for fields in numbers.values():
            words += [f"{name}={value:g}" for name, value in fields.items()]
        words += [f"{name}={AUTO}" for name in getattr(self.algo, "auto_fields", ())]
        return " ".join(words)

    def numbers(self) -> Numbers:
        """Return the numbers that a grid may vary, by section and field."""
        return {section: numeric_fields(getattr(self, section)) for section in GRID_SECTIONS}

    @cached_property
    def metrics(self) -> MetricCatalogue:
        """The catalogue of metrics, extended by the metrics that the objective and the algorithm declare."""
        return CATALOGUE.with_metrics(self.declared_metrics)

    @property
    def declared_metrics(self) -> list[Metric]:
        """The metrics that the objective, the algorithm and the topology declare."""
        of_nodes = [] if isinstance(self.algo, Baseline) else self.topology.declared_metrics
        return [*custom_metrics(self.objective.metrics), *self.algorithm_metrics.values(), *of_nodes]

    @property
    def algorithm_metrics(self) -> dict[str, Metric]:
        """The metrics that the algorithm declares, by name."""
        declared = self.algo.declared_metrics if isinstance(self.algo, Algorithm) else ()
        return {metric.name: metric for metric in declared}

    @property
    def warning(self) -> str:
        """A warning about this combination of plug-ins and settings before the run begins; empty for none."""
        return "; ".join(filter(None, (self._plugins_warning, self.settings_warning)))

    @property
    def _plugins_warning(self) -> str:
        """A warning about this combination of plug-ins; empty for none."""
        if isinstance(self.algo, Baseline) and self.settings.stop:
            return f"algo={self.names['algo']} ends by its certificate, whatever stop is"
        if self.ignores_regularizer:
            return (
                f"algo={self.names['algo']} {IGNORES_PSI}: its solution does not minimise F + psi "
                f"with reg={self.names['reg']}"
            )
        if isinstance(self.downlink, Compressor) and self.algo.traits.growing_broadcasts:
            return (
                f"algo={self.names['algo']} sends sums that grow with the rounds, of which downlink="
                f"{self.names['downlink']} always lacks a part: the solution may stay off the optimum"
            )
        return ""

    @property
    def ignores_regularizer(self) -> bool:
        """True if the problem has a regularizer that the algorithm does not apply."""
        return not self.applies_regularizer and not isinstance(self.reg, NoRegularizer)

    @property
    def has_shared_model(self) -> bool:
        """True if the run has one model for all clients: the algorithm trains one, or the run starts from one."""
        return isinstance(self.algo, Baseline) or self.algo.traits.shared_model or self.settings.start is not None

    @property
    def applies_regularizer(self) -> bool:
        """True if the algorithm applies the regularizer psi."""
        return isinstance(self.algo, Baseline) or bool(self.algo.traits.psi_sides)


def _is_outside_identity(section: str, plugin: Any) -> bool:
    """Return whether a plug-in is no part of a run's identity, since the run is as it is without the section."""
    defaults = SECTIONS[section].default
    if defaults is None or SECTIONS[section].default_in_identity:
        return False
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}" == defaults["class"]
