"""Small problems, and the list of all plug-ins, so that tests cover a new YAML file in conf/ at once."""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from omegaconf import OmegaConf

from fcorun import Experiment, Record, Watcher
from fcorun.base.config import build_plugin
from fcorun.base.errors import UserError
from fcorun.base.trust import locate
from fcorun.experiment.configuration.compose import packaged_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import problems
from fcorun.interface.checks.algorithms import AlgorithmCase
from fcorun.interface.checks.problems import SMALL, engine_of, flat, grid, snapshots
from fcorun.interface.checks.property_check import Check, NotApplicable
from fcorun.methods.algorithms import Algorithm, Traits
from fcorun.methods.algorithms.algorithm import Method
from fcorun.runs.run_experiments import run_experiments

__all__ = ["engine_of", "flat", "grid", "snapshots"]  # reexported

T = TypeVar("T")


def run_grid(configs, folders=None, watch=None) -> list[Record]:
    """Run configurations, those that differ in numbers and seed only as one program; return their records."""
    experiments = [Experiment.from_config(config).prepared for config in configs]
    records = run_experiments(experiments, folders or [None] * len(experiments), watch)
    return [Record(record.folder) for record in records]


def verify(check: Check, subject: object) -> bool:
    """Run a check on a subject; return whether the check applies to the subject. Raises Violation."""
    try:
        check(subject)
    except NotApplicable:
        return False
    return True


# The folder of real data beside the repository, if it exists.
SHARED = Path(__file__).resolve().parents[3] / "shared"

# The files of a finished record.
FILES = [
    *("coefficients.csv", "coefficients.png", "config.yaml", "curves.png", "metrics.csv", "predictions.csv"),
    *("run.log", "scores.csv", "solution.npz", "status.json", "summary.json"),
]
PICTURES = ("coefficients.png", "curves.png")  # the files that points of sweeps lack

# The overrides that a choice needs on data other than images.
NONCONVEX = ("l0_ball", "log_sum", "mcp", "scad")
NEEDED_OVERRIDES = {"reg=graph_net": ("reg.graph=chain",)} | {f"reg={name}": ("algo=fedmid",) for name in NONCONVEX}


def choice_names(group: str) -> list[str]:
    """Return the choices of a config group."""
    return sorted(path.stem for path in (Path(packaged_config_dir()) / group).glob("*.yaml"))


@cache  # many modules ask for all classes when they are collected
def plugin_class(group: str, name: str) -> type:
    """Return the class of a choice of a config group."""
    file = Path(packaged_config_dir()) / group / f"{name}.yaml"
    return locate(yaml.safe_load(file.read_text())["class"], group)


def plugin_of(group: str, name: str, task: str = "regression", **changes: Any) -> Any:
    """Return the plug-in of a choice of a config group, with changed fields. It composes nothing, which is faster."""
    values = OmegaConf.load(Path(packaged_config_dir()) / group / f"{name}.yaml")
    whole = OmegaConf.create({group: values, "data": {"task": task, "natural": {"strength": 0.1}}})
    return build_plugin(group, OmegaConf.to_container(whole[group], resolve=True) | changes)


def identity(*overrides, **changes):
    """Return the identity of a run of ``small`` with some changes."""
    return prepare(small(*overrides) | changes).identity


@cache
def algorithm_of(algo: str) -> Method:
    """Return an algorithm or a baseline whose numbers without a default are 1."""
    cls = plugin_class("algo", algo)
    return cls(**{field.name: 1.0 for field in fields(cls) if field.default is MISSING})


def traits_of(algo: str) -> Traits:
    """Return the traits of an algorithm."""
    return algorithm_of(algo).traits


def matrices_only(reg: str) -> bool:
    """Return whether a regularizer refuses a vector of 20 and accepts a matrix."""
    check = getattr(plugin_of("reg", reg), "check", lambda shape: None)
    try:
        check((20,))
    except ValueError:
        check((20, 3))
        return True
    return False


def composed(*overrides: str) -> dict:
    """Return the configuration of some overrides, and of those that their choices need."""
    return problems.compose_cached(*needed_overrides(overrides), *overrides)


def needed_overrides(overrides: Iterable[str]) -> list[str]:
    """Return the overrides that the choices among some overrides need on data other than images."""
    return [needed for override in overrides for needed in NEEDED_OVERRIDES.get(override, ())]


def ragged(folder: Path, *overrides: str, **table) -> dict:
    """Return the configuration of ``problems.ragged``, with the overrides that its choices need."""
    return problems.ragged(folder, *needed_overrides(overrides), *overrides, **table)


def small(*overrides: str) -> dict:
    """Return a configuration whose run takes a second."""
    return composed(*SMALL, *overrides)


def small_for(algo: str, *overrides: str) -> dict:
    """Return ``small`` with an algorithm, and with all clients, or edges, if the algorithm needs them."""
    return AlgorithmCase(algo).config(*overrides, *needed_overrides(overrides))


def not_none(value: T | None) -> T:
    """Return a value that is not None."""
    assert value is not None
    return value


def replace_sleep(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Have this thread call ``sleep`` in place of ``time.sleep``; others sleep: those that say a claim is alive."""
    caller, others_sleep = threading.current_thread(), time.sleep

    def sleep_by_thread(seconds: float) -> None:
        (sleep if threading.current_thread() is caller else others_sleep)(seconds)

    monkeypatch.setattr("time.sleep", sleep_by_thread)


def rows_of(record):
    """Return the metrics of a record without the column of seconds."""
    return record.metrics.drop(columns="seconds")


@contextmanager
def fails(*words: str):
    """Expect a UserError of one line that contains each of ``words``."""
    with pytest.raises(UserError) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


class Count(Watcher):
    """A watcher that counts the computed rows."""

    def __init__(self):
        self.rows = 0

    def on_evaluation(self, job, row):
        self.rows += 1


class Stop(Watcher):
    """A watcher that raises KeyboardInterrupt, or another error, after a round."""

    def __init__(self, round_, error=KeyboardInterrupt):
        self.round, self.error = round_, error

    def on_evaluation(self, job, row):
        if row["round"] == self.round:
            raise self.error


# The algorithms whose clients have personal models.
PERSONAL = [
    name
    for name in choice_names("algo")
    if issubclass(cls := plugin_class("algo", name), Algorithm) and cls.personal is not Algorithm.personal
]
HETEROGENEOUS = ("data=heterogeneous", "data.clients=6", "data.samples=12", "data.features=8", "data.shared_nonzeros=4",
                 "data.validation_samples=5", "clients_per_round=null", "batch_size=null")  # fmt: skip


def write_choice(folder: Path, section: str, name: str, lines: str) -> None:
    """Write the YAML of a choice into a folder of configuration files."""
    (folder / section).mkdir(parents=True, exist_ok=True)
    (folder / section / f"{name}.yaml").write_text(f"# For tests.\nname: {name}\n{lines}\n")
