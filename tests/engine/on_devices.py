"""In a process with eight devices: runs on one device and on several, as ``test_devices.py`` asks for them.

Takes [configuration, numbers of devices, runs, seeds] from each line of JSON, and prints for each number of devices the
largest relative difference of all that these runs leave, and that of the evaluations that they counted.
"""

import json
import sys

import jax
import numpy as np
import svrg  # noqa: F401 - a class of the user's own that configurations name

from fcorun.engine.engine import Engine
from fcorun.experiment.build import engine_for, load, resolved
from fcorun.experiment.prepare import prepare
from fcorun.system.machine import set_up_jax


def apart(found, expected) -> float:
    """The largest difference of two trees, relative to the largest number of each leaf."""
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(f - e.astype(float)).max() / max(np.abs(e).max(), 1e-3)) for f, e in leaves if e.size)


def ends(config, devices: int, runs: int, seeds: list[int]):
    """What ``runs`` runs leave, whose rates or strengths differ."""
    experiment = prepare(config)
    data = load(experiment)
    experiment = resolved(experiment, data)[0]
    engine, numbers = engine_for(experiment, data), experiment.numbers()
    points = [{s: {n: v * (1 - 0.1 * g) for n, v in of.items()} for s, of in numbers.items()} for g in range(runs)]
    *_, end = Engine(engine.federation, 2, 2, devices).run(points, seeds or None)
    return jax.tree.map(np.asarray, ((end.solution, end.metrics, end.state, end.models), end.work))


def main() -> None:
    """Print a line for each case."""
    for line in sys.stdin:
        config, devices, runs, seeds = json.loads(line)
        with jax.enable_x64(config["precision"] == "float64"):
            expected = ends(config, 1, runs, seeds)
            found = [ends(config, count, runs, seeds) for count in devices]
            print(json.dumps([[*map(apart, each, expected)] for each in found]), flush=True)


if __name__ == "__main__":
    jax.config.update("jax_numpy_rank_promotion", "raise")
    set_up_jax()
    main()
