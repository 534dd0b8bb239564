"""Script with eight devices: runs on one device and on several, as ``test_devices.py`` requests them.

Takes [configuration, numbers of devices, runs, seeds] from each line of JSON, and prints for each number of devices the
largest relative difference of all that these runs leave, and that of the evaluations that they counted.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import partial_channel  # noqa: F401 - classes of the user's own that configurations name
import ring_topology  # noqa: F401
import svrg  # noqa: F401
import timed_fedavg  # noqa: F401
from fast_compilation import speed_up_compilation

from fcorun.base.system.machine import set_up_jax, use_precision
from fcorun.engine.engine import Engine
from fcorun.interface.checks.problems import Config, engine_of, numbers_of


def main() -> None:
    """Print a line for each case."""
    for line in sys.stdin:
        print(json.dumps(compare_devices(*json.loads(line))), flush=True)


def compare_devices(
    config: Config, device_counts: Sequence[int], runs: int = 1, seeds: Sequence[int] = ()
) -> list[tuple[float, float]]:
    """Return, for each number of devices, the largest relative differences from one device.

    The first difference is that of results, the second that of the numbers of evaluated gradients and proximal
    operators, after two rounds of ``runs`` runs, whose numbers are multiplied by 1, 0.9, ...
    """
    with use_precision(config["precision"]):
        values = numbers_of(config)
        points = [jax.tree.map(lambda value, factor=1 - 0.1 * g: value * factor, values) for g in range(runs)]

        def run_on(n_devices: int) -> tuple[Any, Any]:
            federation = engine_of(config).federation
            *_, end = Engine(federation, rounds=2, eval_every=2, devices=n_devices).run(points, list(seeds) or None)
            results = (end.solution, end.metrics, end.state, end.client_models)
            return jax.tree.map(np.asarray, (results, end.work))

        expected_results, expected_counts = run_on(1)
        differences = []
        for n_devices in device_counts:
            results, counts = run_on(n_devices)
            of_results = _relative_difference(results, expected_results)
            differences.append((of_results, _relative_difference(counts, expected_counts)))
        return differences


def _relative_difference(actual: Any, expected: Any) -> float:
    """Return the largest difference of two pytrees, relative to the largest number of each leaf.

    The difference is relative to 1e-3 where that is larger, and NaN where only one of two numbers is NaN.
    """
    differences = [0.0]
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a = a.astype(float)
        e = e.astype(float)
        difference = np.where(np.isnan(a) & np.isnan(e), 0, np.abs(a - e))
        largest = np.nanmax(np.abs(e), initial=1e-3)
        differences.append(np.max(difference, initial=0) / largest)
    return float(np.max(differences))


if __name__ == "__main__":
    jax.config.update("jax_numpy_rank_promotion", "raise")
    set_up_jax()
    speed_up_compilation()
    main()
