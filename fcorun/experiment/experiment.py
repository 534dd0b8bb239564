"""From a plain configuration to an experiment: checked plug-ins that fit each other, and an identity."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fcorun.algorithms.base import Algorithm, Baseline
from fcorun.config import Settings, build, build_plugin, class_id, meaning, numbers
from fcorun.datasets.base import Dataset, FederatedData
from fcorun.engine import engine
from fcorun.engine.evaluate import Evaluation, row_weights
from fcorun.engine.schedule import Schedule
from fcorun.errors import UserError, nearest
from fcorun.experiment.fit import across_clients, check_fit, check_optimum, check_start, deterministic
from fcorun.experiment.start import Start, read_start
from fcorun.mirror_maps.base import MirrorMap
from fcorun.networks.topology import Topology, Tree
from fcorun.objectives.base import Objective
from fcorun.problem import solver
from fcorun.problem.problem import Problem
from fcorun.problem.quadratic import curvature
from fcorun.regularizers.base import Regularizer
from fcorun.regularizers.none import NoRegularizer
from fcorun.trackers.base import Tracker
from fcorun.trackers.none import NoTracker

SECTIONS = {
    "algo": (Algorithm, Baseline),
    "data": Dataset,
    "reg": Regularizer,
    "objective": Objective,
    "mirror": MirrorMap,
    "topology": Topology,
}


@dataclass(frozen=True)
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
    settings: Settings
    config: dict[str, Any]
    names: dict[str, str]
    tracker: Tracker

    @cached_property
    def identity(self) -> str:
        """The hash of what gives the run its meaning: no paths, nothing of how it is shown, but what the data hold."""
        content = {s: [class_id(getattr(self, s)), meaning(getattr(self, s))] for s in SECTIONS if s != "data"}
        if getattr(self.reg, "relative", None) is not None:
            content["reg"][1].pop("strength", None)
        settings = meaning(self.settings)
        if isinstance(self.algo, Baseline):
            settings = {key: settings[key] for key in ("client_weighting", "cutoff", "reference")}
        if self.start:
            settings["start"] = self.start.digest
        if (map := self.topology.sources()) is not None:
            content["topology"][1]["map"] = map
        versions = [engine.VERSION, solver.VERSION]
        content |= {"data": self.fingerprint, "settings": settings, "versions": versions}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """That of the data, as it was when it was first asked for."""
        return self.data.fingerprint()

    @cached_property
    def start(self) -> Start | None:
        """Where the run starts from, if that is a record's solution."""
        return read_start(self.settings.start) if self.settings.start else None

    @property
    def default_folder(self) -> Path:
        """outputs/DATA/ALGORITHM-IDENTITY under the current folder."""
        return Path("outputs") / self.names["data"] / f"{self.names['algo']}-{self.identity[:8]}"

    @cached_property
    def batch_key(self) -> str:
        """Equal for experiments that differ in numbers and seed only, which one program can run together."""
        parts: list = []
        for section in SECTIONS:
            plugin = getattr(self, section)
            traced = set(numbers(plugin)) if section in ("algo", "reg", "mirror") else set()
            traced |= {"relative"} if traced and getattr(plugin, "relative", None) is not None else set()
            parts.append(
                [class_id(plugin), {k: v for k, v in meaning(plugin).items() if k not in traced}, sorted(traced)]
            )
        settings = asdict(self.settings) | ({"seed": None} if isinstance(self.algo, Algorithm) else {})
        start = self.start and self.start.digest
        return json.dumps(
            [parts, settings, self.fingerprint, start, self.topology.sources()], sort_keys=True, default=str
        )

    @property
    def label(self) -> str:
        """A line that says which run this is."""
        shown = self.numbers()
        if "relative" in shown["reg"]:
            shown["reg"].pop("strength")
        rates = " ".join(f"{k}={v:g}" for section in shown.values() for k, v in section.items())
        more = [f"topology={self.names['topology']}"] if isinstance(self.topology, Tree) else []
        more += [f"start={Path(self.settings.start).name}"] if self.settings.start else []
        more += ["frozen"] if self.settings.frozen else []
        named = f"algo={self.names['algo']} data={self.names['data']} reg={self.names['reg']}"
        return " ".join([named, *more, rates]).strip()

    def numbers(self) -> engine.Numbers:
        """The numbers that a grid may vary."""
        return {section: numbers(getattr(self, section)) for section in ("algo", "reg", "mirror")}

    def load(self) -> FederatedData:
        """The data, checked; kept for the next experiment on the same."""
        data = _load(self.fingerprint, self.data)
        tasks = self.objective.tasks
        if data.task not in tasks:
            raise UserError(
                f"objective={self.names['objective']} is for {' and '.join(tasks)} targets, and "
                f"data={self.names['data']} has {data.task} ones; choose another objective"
                + (" or data.task" if hasattr(self.data, "task") else "")
            )
        asked = self.settings.clients_per_round
        if asked is not None and isinstance(self.algo, Algorithm):
            if asked > len(data.sizes):
                raise UserError(
                    f"clients_per_round={asked} is more than the {len(data.sizes)} clients of "
                    f"data={self.names['data']}; lower it, or set it to null for all of them"
                )
            if asked < len(data.sizes) and not self.algo.partial:
                raise UserError(
                    f"algo={self.names['algo']} needs all clients in every round; give clients_per_round=null, or an "
                    "algo that takes a part of them"
                )
        return data

    def problem(self, data: FederatedData) -> Problem:
        """The problem on these data."""
        shapes = self.objective.shapes(data.shape or data.x.shape[1:], len(data.classes))
        regularizer = across_clients(self.reg, row_weights(data, self.settings.client_weighting), data.offsets)
        problem = Problem(self.objective, regularizer, self.mirror, shapes, data.scale)
        for name in problem.regularized:
            if name not in shapes:
                raise UserError(f"reg.apply_to: objective={self.names['objective']} has no parameter '{name}'; "
                                f"{nearest(name, shapes)}")  # fmt: skip
            try:
                if shapes[name] == () and hasattr(regularizer, "check"):
                    raise ValueError("psi acts on vectors and matrices; leave it out of reg.apply_to")
                getattr(regularizer, "check", lambda shape: None)(shapes[name])
                getattr(self.mirror, "check", lambda shape: None)(shapes[name])
            except ValueError as error:
                size = " x ".join(map(str, shapes[name]))
                raise UserError(f"reg={self.names['reg']} cannot act on '{name}', {size}: {error}") from error
        return problem

    @property
    def remark(self) -> str:
        """What a user should know of this combination before it runs, or nothing."""
        if isinstance(self.algo, Algorithm) and not self.algo.sides and not isinstance(self.reg, NoRegularizer):
            return f"algo={self.names['algo']} leaves psi out: reg={self.names['reg']} is measured, not minimised"
        return ""

    def resolved(self, data: FederatedData) -> tuple["Experiment", dict | None]:
        """This experiment with numbers for what is "auto" in the algorithm, and the bounds that they come from."""
        if not isinstance(self.algo, Algorithm):
            return self, None
        told, least, most = {}, math.nan, math.nan
        if self.algo.needs_curvature or (self.algo.bending and hasattr(self.objective, "curvature")):
            least, most = self.curvature(data)
            if most == 0:
                raise UserError(f"algo={self.names['algo']}: the losses are flat, for all features are 0: give its "
                                "steps, instead of auto")  # fmt: skip
            told = {"least": least, "most": most, "condition": most / least if least > 0 else None}
        elif not self.algo.automatic:
            return self, None
        algo = self.algo.resolved(least, most)
        changed = {f"algo.{k}": v for k, v in numbers(algo).items() if getattr(self.algo, k) == "auto"}
        return replace(self, algo=algo), {**told, **changed}

    def curvature(self, data: FederatedData) -> tuple[float, float]:
        """Bounds on the curvature of each client's loss, or of minibatches where they are smaller; worked out once."""
        whole = self.settings.batch_size is None or self.settings.batch_size >= data.sizes.max()
        key = self.fingerprint, repr(self.objective), whole
        if key not in _BOUNDS:
            _BOUNDS[key] = curvature(self.objective, data, whole)
        return _BOUNDS[key]

    def engine(self, data: FederatedData) -> engine.Engine:
        """The engine for runs like this one."""
        assert isinstance(self.algo, Algorithm)
        s = self.settings
        schedule = Schedule(
            data.offsets,
            s.seed,
            s.clients_per_round,
            s.batch_size,
            s.local_epochs,
            s.local_steps,
            s.client_weighting,
            self.topology.rounds if isinstance(self.topology, Tree) else None,
        )
        evaluation = Evaluation(data, s.client_weighting, s.cutoff)
        problem = self.problem(data)
        if self.algo.needs_curvature:
            problem = replace(problem, curvature=self.curvature(data))
        return engine.Engine(
            problem,
            self.algo,
            data,
            schedule,
            evaluation,
            s.rounds,
            s.eval_every,
            s.precision,
            self.topology.edge_of(data),
            self.start.solution_for(problem, data) if self.start else None,
            s.frozen,
        )


class _ByFingerprint:
    """A data set under a key, so that lru_cache compares fingerprints and not options."""

    def __init__(self, fingerprint: str, data: Dataset):
        self.fingerprint, self.data = fingerprint, data

    def __hash__(self):
        return hash(self.fingerprint)

    def __eq__(self, other):
        return self.fingerprint == other.fingerprint


@lru_cache(maxsize=2)
def _load_once(key: _ByFingerprint) -> FederatedData:
    return key.data.load().validate()


def _load(fingerprint: str, data: Dataset) -> FederatedData:
    return _load_once(_ByFingerprint(fingerprint, data))


_BOUNDS: dict[tuple[str, str, bool], tuple[float, float]] = {}


def prepare(config: Mapping[str, Any]) -> Experiment:
    """The experiment of a configuration: the sections algo, data, reg, objective, mirror, and root keys.

    Raises UserError for an unknown or missing key, a value of the wrong type or out of range, a plug-in that cannot be
    found, and plug-ins that do not fit each other. Nothing is read or written.
    """
    settings = build(Settings, {k: v for k, v in config.items() if k not in (*SECTIONS, "tracker", "figure")})
    if settings.local_steps is not None:
        if settings.local_epochs not in (None, 1):
            raise UserError("local_epochs and local_steps exclude each other: set one of them to null")
        settings = replace(settings, local_epochs=None)
    elif settings.local_epochs is None:
        raise UserError("local_epochs and local_steps are both null: set one of them")
    plugins: dict[str, Any] = {}
    names: dict[str, str] = {}
    for section, kind in SECTIONS.items():
        values = config.get(section)
        if section == "topology" and values is None:
            values = {"name": "star", "class": "fcorun.networks.topology.Star"}
        if not isinstance(values, Mapping):
            raise UserError(f"the section '{section}' is missing: give {section}=NAME")
        plugins[section] = build_plugin(section, values)
        names[section] = str(values.get("name", type(plugins[section]).__name__.lower()))
        if not isinstance(plugins[section], kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise UserError(f"{section}.class={values['class']} is no {' or '.join(k.__name__ for k in kinds)}; "
                            f"derive the class from {kinds[0].__module__}.{kinds[0].__name__}")  # fmt: skip
    if getattr(plugins["algo"], "deterministic", False):
        settings = deterministic(settings, names["algo"])
    check_fit(plugins, names)
    check_start(plugins, names, settings)
    check_optimum(plugins, names, settings)
    plain = asdict(settings)
    for section, plugin in plugins.items():
        labels = {"name": names[section], "class": f"{type(plugin).__module__}.{type(plugin).__qualname__}"}
        label = (config.get(section) or {}).get("title")
        title = {"title": str(label)} if label else {}
        plain[section] = labels | title | asdict(plugin)
    tracker = build_plugin("tracker", config["tracker"]) if config.get("tracker") else NoTracker()
    if not isinstance(tracker, Tracker):
        raise UserError(f"tracker.class={config['tracker']['class']} is no Tracker; "
                        "derive the class from fcorun.trackers.base.Tracker")  # fmt: skip
    return Experiment(**plugins, settings=settings, config=plain, names=names, tracker=tracker)
