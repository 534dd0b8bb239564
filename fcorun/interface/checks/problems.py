"""Small problems for checks, and runs on these problems: evaluations, a few rounds, several devices."""

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml
from sklearn.datasets import dump_svmlight_file

from fcorun.base.records.record import Record
from fcorun.base.system.machine import use_precision
from fcorun.data.tasks import find_task
from fcorun.engine.engine import Engine, Snapshot
from fcorun.experiment.build import build_engine, load_data, resolve_auto
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.configuration.search_path import user_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks.property_check import require, require_at_most, require_finite
from fcorun.methods.problem.problem import Problem, Vector
from fcorun.runs.job import Watcher
from fcorun.runs.run_experiments import run_experiments

Config = dict[str, Any]

# With five rows a batch, the last batch has two rows.
SMALL = (
    *("data=lasso", "data.features=20", "data.nonzeros=5", "data.clients=6", "data.samples=12"),
    *("data.validation_samples=4", "clients_per_round=3", "batch_size=5", "rounds=4", "eval_every=2"),
)
_MAX_SWEEPS = 10_000  # over coordinates: more than the small problems of checks need
FEDAVG = ("reg=none", "algo=fedavg", "algo.client_lr=0.01", "algo.server_lr=1", "rounds=2")  # for a few rounds


# keys of a run that no other key follows, whose values are set after the composition
_RUN_KEYS = ("rounds", "eval_every", "checkpoint_every", "precision", "clients_per_round", "batch_size", "reference")


def grid(config: Config, axes: Mapping[str, Sequence[Any]]) -> list[Config]:
    """Return copies of a configuration with every combination of the values of dotted keys."""
    points = []
    for values in itertools.product(*axes.values()):
        point = deepcopy(dict(config))
        for key, value in zip(axes, values, strict=True):
            *sections, last = key.split(".")
            section = point
            for name in sections:
                section = section[name]
            section[last] = value
        points.append(point)
    return points


def compose_cached(*overrides: str) -> Config:
    """Return the configuration of ``compose``, composed once for all values of some keys of a run.

    Composing takes longer than most checks.
    """
    run_values = {}
    others = []
    for text in overrides:
        key, _, value = text.partition("=")
        if key in _RUN_KEYS:
            run_values[key] = yaml.safe_load(value)
        else:
            others.append(text)
    return deepcopy(_compose_once(tuple(others), user_config_dir())) | run_values


@lru_cache(maxsize=512)
def _compose_once(overrides: tuple[str, ...], user_dir: Path | None) -> Config:
    return compose(overrides, user_dir)


def small(*overrides: str) -> Config:
    """Return a configuration of a run that takes a second."""
    return compose_cached(*SMALL, *overrides)


def ragged(
    folder: Path, *overrides: str, sizes=(3, 7, 10), features: int = 6, task: str = "regression", x=None, y=None
) -> Config:
    """Return a float64 configuration on a table in ``folder`` with ``sizes`` rows a client and no validation rows."""
    rng = np.random.default_rng(7)
    client = np.repeat(np.arange(len(sizes)), sizes)
    if x is None:
        noise = rng.standard_normal((len(client), features))
        x = noise + 0.5 * rng.standard_normal((len(sizes), features))[client]
    if y is None:
        score = x @ np.linspace(1.5, -1, features) + 0.7 + rng.standard_normal(len(client))
        y = find_task(task).example_targets(score)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "rows.npz", X=x, y=y, client=client)
    table = ("data=table", "data.path=rows.npz", f"data.task={task}", "data.validation=0", "precision=float64")
    config = compose_cached(*table, "rounds=4", "eval_every=1", *overrides)
    config["data"] |= {**find_task(task).example_options, "path": str(folder / "rows.npz")}
    return config


def sparse_rows(folder: Path, *overrides: str) -> Config:
    """Return a float64 configuration on a LIBSVM file in ``folder``, most of whose numbers are 0.

    The clients have 10 or 11 training rows of 12 features.
    """
    rng = np.random.default_rng(7)
    x = np.where(rng.random((50, 12)) < 0.3, rng.standard_normal((50, 12)), 0)
    x[[3, 17]] = 0
    y = x @ np.linspace(1.5, -1, 12) + 0.7 + rng.standard_normal(len(x))
    dump_svmlight_file(x, y, str(folder / "rows.svm"))
    table = ("data=table", "data.path=rows.svm", "data.task=regression", "data.clients=4", "precision=float64")
    rates = ("data.natural.client_lr=0.01", "data.natural.server_lr=1", "data.natural.dual_server_lr=1")
    run = ("rounds=3", "eval_every=3", "clients_per_round=3", "batch_size=5")
    config = compose_cached(*table, *rates, *run, *overrides)
    config["data"]["path"] = str(folder / "rows.svm")
    return config


def engine_of(config: Config) -> Engine:
    """Return the engine of a configuration and of all configurations that differ in numbers only."""
    experiment = prepare(config)
    data = load_data(experiment)
    with use_precision(experiment.settings.precision):
        return build_engine(resolve_auto(experiment, data)[0], data)


def snapshots(*configs: Config, engine: Engine | None = None) -> list[Snapshot]:
    """Return the evaluations of configurations that differ in numbers only, run as one program.

    By default the engine of the first configuration runs them.
    """
    engine = engine or engine_of(configs[0])
    with use_precision(engine.federation.precision):
        return list(engine.run([numbers_of(config) for config in configs]))


def record_of(config: Config, folder: Path, watch: Watcher | None = None) -> Record:
    """Run a configuration and return its record, without pictures and further solutions that only people look at."""
    return run_experiments([prepare(config)], [folder], watch, pictures=False)[0]


def numbers_of(config: Config) -> dict[str, dict[str, float]]:
    """Return the numbers in which runs of one program differ. Raises UserError for a refused configuration."""
    experiment = prepare(config)
    return resolve_auto(experiment, load_data(experiment))[0].numbers()


def flat(parameters: dict[str, Any]) -> np.ndarray:
    """Return all parameters in one array, in reverse order of their names: the bias after the weights."""
    return np.concatenate([np.ravel(parameters[name]) for name in sorted(parameters, reverse=True)])


@contextmanager
def numpy_seed(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator within the context, from which a plug-in should not draw."""
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)


def minimize_squares(x: np.ndarray, y: np.ndarray, client: np.ndarray | None, strength: float) -> np.ndarray:
    """Return the weights w that minimize the mean of (x w + b - y)^2 plus strength |w|_1, and then the intercept b.

    The minimum over one coordinate after the other needs no program that would be compiled. With the ``client`` of each
    row, clients have intercepts of their own, and the weights are returned alone.
    """
    groups = np.zeros(len(y), int) if client is None else client
    sizes = np.bincount(groups)
    deviations = []
    for column in (*x.T, y):
        deviations.append(column - (np.bincount(groups, column) / sizes)[groups])
    products = np.cov(deviations, bias=True)
    weights = np.zeros(x.shape[1])
    for _ in range(_MAX_SWEEPS):
        before = weights.copy()
        for j, row in enumerate(products[:-1]):
            slope = row[-1] - row[:-1] @ weights + row[j] * weights[j]
            weights[j] = np.sign(slope) * max(abs(slope) - strength / 2, 0.0) / row[j]
        if np.array_equal(weights, before):
            break
    return weights if client is not None else np.append(weights, np.mean(y - x @ weights))


@dataclass(frozen=True, kw_only=True)
class RecordingProblem(Problem):
    """A problem that records the steps of its proxes, and the points of its losses."""

    steps: list[float] = field(default_factory=list)
    points: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def of(cls, problem: Problem) -> "RecordingProblem":
        return cls(**{field.name: getattr(problem, field.name) for field in fields(Problem)})

    def prox(self, w: Vector, t: jax.Array | float) -> Vector:
        jax.debug.callback(lambda step: self.steps.append(float(np.min(step))), t)
        return super().prox(w, t)

    def _loss(self, w: Vector, batch: Any) -> jax.Array:
        jax.debug.callback(lambda point: self.points.append(flat(point)), w)
        return super()._loss(w, batch)


def check_rounds(config: Callable[[Path], Config]) -> None:
    """Require a few rounds that end with finite metrics, and within the constraint, if any.

    ``config`` returns a configuration, whose files it writes into a folder.
    """
    with tempfile.TemporaryDirectory() as folder:
        for snapshot in snapshots(config(Path(folder))):
            require(
                not np.any(snapshot.diverged),
                f"a few rounds should not diverge, and do in round {np.max(snapshot.diverged)}",
            )
            for name, value in snapshot.metrics.items():
                require_finite(name, value)
    require_at_most("the distance from the constraint at the end", snapshot.metrics.get("violation", 0.0), 1e-5)
