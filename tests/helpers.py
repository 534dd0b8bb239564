"""Small problems, and the plug-ins that there are: a new YAML file in conf/ is thereby tested."""

from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TypeVar

import pytest
import yaml

from fcorun import Watcher
from fcorun.algorithms import Algorithm, Traits
from fcorun.checks import problems
from fcorun.checks.algorithms import AlgorithmCase
from fcorun.checks.problems import SMALL, engine_of, flat, snapshots
from fcorun.config import locate
from fcorun.configuration.compose import packaged_config_dir
from fcorun.errors import UserError
from fcorun.experiment.prepare import prepare

__all__ = ["engine_of", "flat", "snapshots"]  # beside what is defined here

T = TypeVar("T")

# Real data, where a folder beside the repository has them.
SHARED = Path(__file__).resolve().parents[2] / "shared"

# The files of a finished record.
FILES = [
    *("coefficients.csv", "coefficients.png", "config.yaml", "curves.png", "metrics.csv", "run.log", "scores.csv"),
    *("solution.npz", "status.json", "summary.json"),
]
PICTURES = ("coefficients.png", "curves.png")  # of them, which points of sweeps have not

# What a choice needs on data that are no images.
NEEDED_OVERRIDES = {"reg=graph_net": ("reg.graph=chain",)}


def choice_names(group: str) -> list[str]:
    """The choices of a config group."""
    return sorted(path.stem for path in (Path(packaged_config_dir()) / group).glob("*.yaml"))


def plugin_class(group: str, name: str) -> type:
    """The class that a choice of a config group names."""
    return locate(yaml.safe_load((Path(packaged_config_dir()) / group / f"{name}.yaml").read_text())["class"], group)


def identity(*overrides, **changes):
    """The identity of ``small`` with these changes."""
    return prepare(small(*overrides) | changes).identity


def traits_of(algo: str) -> Traits:
    """What an algorithm can do, with 1 for each of its numbers that has no default."""
    kind = plugin_class("algo", algo)
    return kind(**{f.name: 1.0 for f in fields(kind) if f.default is MISSING}).traits


def matrices_only(reg: str) -> bool:
    """Whether a regularizer refuses a vector of 20 and takes a matrix."""
    check = getattr(prepare(small(f"reg={reg}")).reg, "check", lambda shape: None)
    try:
        check((20,))
    except ValueError:
        check((20, 3))
        return True
    return False


def composed(*overrides: str) -> dict:
    """What ``compose`` gives, with what choices need."""
    return problems.compose_cached(*overrides, *needed_overrides(overrides))


def needed_overrides(overrides: Iterable[str]) -> list[str]:
    """What the choices among these overrides need on data that are no images."""
    return [more for given in overrides for more in NEEDED_OVERRIDES.get(given, ())]


def ragged(folder: Path, *overrides: str, **table) -> dict:
    """What ``fcorun.checks.problems.ragged`` gives, with what choices need."""
    return problems.ragged(folder, *overrides, *needed_overrides(overrides), **table)


def small(*overrides: str) -> dict:
    """A configuration that takes a second."""
    return composed(*SMALL, *overrides)


def small_for(algo: str, *overrides: str) -> dict:
    """``small`` with an algorithm, and all clients, or edges, for one that needs them."""
    return AlgorithmCase(algo).config(*overrides, *needed_overrides(overrides))


def not_none(value: T | None) -> T:
    """A value that is there."""
    assert value is not None
    return value


def rows_of(record):
    """The metrics of a record without the time that they took."""
    return record.metrics.drop(columns="seconds")


@contextmanager
def fails(*words: str):
    """A context in which a UserError of one line must be raised that holds each of ``words``."""
    with pytest.raises(UserError) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


class Count(Watcher):
    """How many rows were computed."""

    def __init__(self):
        self.rows = 0

    def on_evaluation(self, job, row):
        self.rows += 1


class Stop(Watcher):
    """Control-C, or another mishap, after a round."""

    def __init__(self, round_, error=KeyboardInterrupt):
        self.round, self.error = round_, error

    def on_evaluation(self, job, row):
        if row["round"] == self.round:
            raise self.error


# The algorithms whose clients have models of their own.
PERSONAL = [
    name
    for name in choice_names("algo")
    if issubclass(kind := plugin_class("algo", name), Algorithm) and kind.personal is not Algorithm.personal
]
HETEROGENEOUS = ("data=heterogeneous", "data.clients=6", "data.samples=12", "data.features=8", "data.shared_nonzeros=4",
                 "data.validation_samples=5", "clients_per_round=null", "batch_size=null")  # fmt: skip
