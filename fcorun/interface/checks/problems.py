"""Small problems for checks, and engines for runs on these problems."""

from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.system.machine import use_precision
from fcorun.data.tasks import find_task
from fcorun.engine.engine import Engine, Snapshot
from fcorun.experiment.build import build_engine, load_data, resolve_auto
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.configuration.search_path import user_config_dir
from fcorun.experiment.prepare import prepare

# With five rows a batch, the last batch has two rows.
SMALL = (
    *("data=lasso", "data.features=20", "data.nonzeros=5", "data.clients=6", "data.samples=12"),
    *("data.validation_samples=4", "clients_per_round=3", "batch_size=5", "rounds=4", "eval_every=2"),
)


def compose_cached(*overrides: str) -> dict[str, Any]:
    """Return the configuration of ``compose``, composed once, since composing takes longer than most checks."""
    return deepcopy(_compose_once(overrides, user_config_dir()))


@lru_cache(maxsize=512)
def _compose_once(overrides: tuple[str, ...], user_dir: Path | None) -> dict[str, Any]:
    return compose(overrides, user_dir)


def small(*overrides: str) -> dict[str, Any]:
    """Return a configuration of a run that takes a second."""
    return compose_cached(*SMALL, *overrides)


def ragged(
    folder: Path, *overrides: str, sizes=(3, 7, 10), features: int = 6, task: str = "regression", x=None, y=None
) -> dict[str, Any]:
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


def engine_of(config: dict[str, Any]) -> Engine:
    """Return the engine of a configuration and of all configurations that differ in numbers only."""
    experiment = prepare(config)
    data = load_data(experiment)
    with use_precision(experiment.settings.precision):
        return build_engine(resolve_auto(experiment, data)[0], data)


def snapshots(*configs: dict[str, Any], engine: Engine | None = None) -> list[Snapshot]:
    """Return the evaluations of configurations that differ in numbers only, run as one program.

    By default the engine of the first configuration runs them.
    """
    experiments = [resolve_auto(e := prepare(config), load_data(e))[0] for config in configs]
    engine = engine or engine_of(configs[0])
    with use_precision(engine.federation.precision):
        return list(engine.run([experiment.numbers() for experiment in experiments]))


def flat(parameters: dict[str, Any]) -> np.ndarray:
    """Return all parameters in one array, in reverse order of their names: the bias after the weights."""
    return np.concatenate([np.ravel(parameters[name]) for name in sorted(parameters, reverse=True)])
