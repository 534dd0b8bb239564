"""Small problems for checks, and the engines of runs on them."""

from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcorun.configuration.compose import compose
from fcorun.configuration.search_path import user_config_dir
from fcorun.engine.engine import Engine, Snapshot
from fcorun.experiment.build import build_engine, load_data, resolve_auto
from fcorun.experiment.prepare import prepare

# Five rows a batch leave a short last batch of two.
SMALL = (
    *("data=lasso", "data.features=20", "data.nonzeros=5", "data.clients=6", "data.samples=12"),
    *("data.validation_samples=4", "clients_per_round=3", "batch_size=5", "rounds=4", "eval_every=2"),
)


def compose_cached(*overrides: str) -> dict[str, Any]:
    """Return what ``compose`` gives; composing takes longer than most checks, so each is composed once."""
    return deepcopy(_composed_once(overrides, user_config_dir()))


@lru_cache(maxsize=512)
def _composed_once(overrides: tuple[str, ...], own: Path | None) -> dict[str, Any]:
    return compose(overrides, own)


def small(*overrides: str) -> dict[str, Any]:
    """Return a configuration that takes a second."""
    return compose_cached(*SMALL, *overrides)


def ragged(
    folder: Path, *overrides: str, sizes=(3, 7, 10), features: int = 6, task: str = "regression", x=None, y=None
) -> dict[str, Any]:
    """Return a configuration on a table in float64 whose clients have ``sizes`` rows each, none of them for validation.

    The table is written into ``folder``.
    """
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
    config = compose_cached(*own, "rounds=4", "eval_every=1", *overrides)
    config["data"]["path"] = str(folder / "rows.npz")
    return config


def engine_of(config: dict[str, Any]) -> Engine:
    """Return the engine of a configuration, for those that differ from it in numbers only."""
    experiment = prepare(config)
    data = load_data(experiment)
    with jax.enable_x64(experiment.settings.precision == "float64"):
        return build_engine(resolve_auto(experiment, data)[0], data)


def snapshots(*configs: dict[str, Any], engine: Engine | None = None) -> list[Snapshot]:
    """Return the evaluations of configurations that differ in numbers only, run as one program, by default by the
    engine of the first one."""
    experiments = [resolve_auto(e := prepare(config), load_data(e))[0] for config in configs]
    engine = engine or engine_of(configs[0])
    with jax.enable_x64(engine.federation.precision == "float64"):
        return list(engine.run([experiment.numbers() for experiment in experiments]))


def flat(parameters: dict[str, Any]) -> np.ndarray:
    """Return all parameters in one array, in the order of their names from the last on: the bias after the weights."""
    return np.concatenate([np.ravel(parameters[name]) for name in sorted(parameters, reverse=True)])
