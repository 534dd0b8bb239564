"""Runs on several devices, compared with the same runs on one."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fcorun.base.system.machine import use_precision
from fcorun.engine.engine import Engine
from fcorun.experiment.build import load_data, resolve_auto
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks.problems import engine_of

Config = dict[str, Any]


def compare_devices(
    config: Config, device_counts: Sequence[int], runs: int = 1, seeds: Sequence[int] = ()
) -> list[tuple[float, float]]:
    """Return, for each number of devices, the largest relative differences from one device.

    The first difference is that of results, the second that of the numbers of evaluated gradients and proximal
    operators.
    """
    with use_precision(config["precision"]):
        expected_results, expected_counts = _run_on_devices(config, 1, runs, seeds)
        differences = []
        for n_devices in device_counts:
            results, counts = _run_on_devices(config, n_devices, runs, seeds)
            differences.append((
                _relative_difference(results, expected_results),
                _relative_difference(counts, expected_counts),
            ))  # fmt: skip
        return differences


def _relative_difference(actual: Any, expected: Any) -> float:
    """Return the largest difference of two pytrees, relative to the largest number of each leaf.

    The difference is relative to 1e-3 where that is larger, and NaN where only one of two numbers is NaN.
    """
    differences = [0.0]
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = a.astype(float), e.astype(float)
        difference = np.where(np.isnan(a) & np.isnan(e), 0, np.abs(a - e))
        largest = np.nanmax(np.abs(e), initial=1e-3)
        differences.append(np.max(difference, initial=0) / largest)
    return float(np.max(differences))


def _run_on_devices(config: Config, n_devices: int, runs: int, seeds: Sequence[int]) -> Any:
    """Return the results and the counts of two rounds of ``runs`` runs, whose numbers are multiplied by 1, 0.9, ..."""
    engine = engine_of(config)
    experiment = prepare(config)
    values = resolve_auto(experiment, load_data(experiment))[0].numbers()
    points = []
    for g in range(runs):
        factor = 1 - 0.1 * g
        points.append({
            section: {name: value * factor for name, value in numbers.items()} for section, numbers in values.items()
        })  # fmt: skip
    *_, end = Engine(engine.federation, rounds=2, eval_every=2, devices=n_devices).run(points, list(seeds) or None)
    results = (end.solution, end.metrics, end.state, end.client_models)
    return jax.tree.map(np.asarray, (results, end.work))
