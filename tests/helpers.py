"""Small problems, and the plug-ins that there are: a new YAML file in conf/ is thereby tested."""

from contextlib import contextmanager
from copy import deepcopy
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np
import pytest
import yaml

from fcorun import Watcher
from fcorun.algorithms import Algorithm, Traits
from fcorun.composing.compose import compose, conf_dir
from fcorun.config import locate
from fcorun.engine.engine import Engine, Snapshot
from fcorun.errors import UserError
from fcorun.experiment.build import engine_for, load, resolved
from fcorun.experiment.prepare import prepare

T = TypeVar("T")

# Real data, where a folder beside the repository has them.
SHARED = Path(__file__).resolve().parents[2] / "shared"

# The files of a finished record.
FILES = [
    *("coefficients.csv", "coefficients.png", "config.yaml", "curves.png", "metrics.csv", "run.log", "scores.csv"),
    *("solution.npz", "status.json", "summary.json"),
]
PICTURES = ("coefficients.png", "curves.png")  # of them, which points of sweeps have not

# Five examples a batch leave a short last one of two.
SMALL = (
    *("data=lasso", "data.features=20", "data.nonzeros=5", "data.clients=6", "data.samples=12"),
    *("data.validation_samples=4", "clients_per_round=3", "batch_size=5", "rounds=4", "eval_every=2"),
)


# What a choice needs on data that are no images.
NEEDS = {"reg=graph_net": ("reg.graph=chain",)}


def names(group: str) -> list[str]:
    """The choices of a config group."""
    return sorted(path.stem for path in (Path(conf_dir()) / group).glob("*.yaml"))


def plugin_class(group: str, name: str) -> type:
    """The class that a choice of a config group names."""
    return locate(yaml.safe_load((Path(conf_dir()) / group / f"{name}.yaml").read_text())["class"], group)


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


@cache
def composed(*overrides: str) -> dict:
    """What ``compose`` gives, with what choices need, the same one each time: not to be changed."""
    return compose((*overrides, *(more for given in overrides for more in NEEDS.get(given, ()))))


def small(*overrides: str) -> dict:
    """A configuration that takes a second."""
    return deepcopy(composed(*SMALL, *overrides))


def small_for(algo: str, *overrides: str) -> dict:
    """``small`` with an algorithm, and all clients, or edges, for one that needs them."""
    traits = traits_of(algo)
    needed = [] if traits.partial else ["clients_per_round=null"]
    needed += ["topology=tree"] if traits.trees == "only" else []
    return small(f"algo={algo}", *needed, *overrides)


def ragged(
    folder: Path, *overrides: str, sizes=(3, 7, 10), features: int = 6, task: str = "regression", x=None, y=None
):
    """A configuration on a table in float64 whose clients have ``sizes`` rows each, none of them for validation."""
    rng = np.random.default_rng(7)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    if x is None:
        x = rng.standard_normal((len(owner), features)) + 0.5 * rng.standard_normal((len(sizes), features))[owner]
    if y is None:
        score = x @ np.linspace(1.5, -1, features) + 0.7 + rng.standard_normal(len(owner))
        y = {"regression": score, "binary": score > 0.5, "multiclass": np.digitize(score, [-0.5, 1.5])}[task]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "rows.npz", X=x, y=y, client=owner)
    own = ("data=table", "data.path=rows.npz", f"data.task={task}", "data.validation=0", "precision=float64")
    config = deepcopy(composed(*own, "rounds=4", "eval_every=1", *overrides))
    config["data"]["path"] = str(folder / "rows.npz")
    return config


def engine_of(config: dict) -> Engine:
    """The engine of a configuration, for those that differ from it in numbers only."""
    experiment = prepare(config)
    data = load(experiment)
    with jax.enable_x64(experiment.settings.precision == "float64"):
        return engine_for(resolved(experiment, data)[0], data)


def snapshots(*configs: dict, engine: Engine | None = None) -> list[Snapshot]:
    """The evaluations of configurations that differ in numbers only, run as one program; by the first one's engine."""
    experiments = [resolved(e := prepare(config), load(e))[0] for config in configs]
    engine = engine or engine_of(configs[0])
    with jax.enable_x64(engine.federation.precision == "float64"):
        return list(engine.run([experiment.numbers() for experiment in experiments]))


def given(value: T | None) -> T:
    """A value that is there."""
    assert value is not None
    return value


def flat(solution: dict) -> np.ndarray:
    """All parameters of a solution in one array, the bias last."""
    return np.concatenate([np.ravel(solution["weights"]), np.ravel(solution["bias"])])


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

    def row(self, job, row):
        self.rows += 1


class Stop(Watcher):
    """Control-C, or another mishap, after a round."""

    def __init__(self, round_, error=KeyboardInterrupt):
        self.round, self.error = round_, error

    def row(self, job, row):
        if row["round"] == self.round:
            raise self.error


# The algorithms whose clients have models of their own.
PERSONAL = [
    name
    for name in names("algo")
    if issubclass(kind := plugin_class("algo", name), Algorithm) and kind.personal is not Algorithm.personal
]
HETEROGENEOUS = ("data=heterogeneous", "data.clients=6", "data.samples=12", "data.features=8", "data.shared_nonzeros=4",
                 "data.validation_samples=5", "clients_per_round=null", "batch_size=null")  # fmt: skip
