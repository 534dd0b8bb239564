"""Several devices are one: every algorithm, trees, grids; in one process of its own, whose CPU is eight devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import conftest
from helpers import names, plugin_class, small, small_for

from fcorun.algorithms import Algorithm

ALGORITHMS = [name for name in names("algo") if issubclass(plugin_class("algo", name), Algorithm)]
OWN = "clients_per_round=null"  # six clients, which eight devices share
CASES = {
    **{name: (small_for(name, "precision=float64"), [2], 1, []) for name in ALGORITHMS},
    "states": (small("algo=scaffold", "precision=float64", "clients_per_round=5"), [2, 4, 8], 1, []),
    "float32": (small("algo=scaffold", "clients_per_round=5"), [2, 4, 8], 1, []),
    "chunks": (small("algo=feddyn", "precision=float64", OWN, "clients_at_once=2"), [2, 4], 1, []),
    "a tree": (small("precision=float64", "topology=tree", "topology.edges=2", "topology.rounds=2"), [4], 1, []),
    "runs": (small("precision=float64"), [2, 4], 4, []),
    "runs of own seeds": (small("algo=scaffold", "precision=float64"), [2], 4, [0, 1, 2, 3]),
    "more runs than devices": (small("precision=float64"), [2], 3, []),
    "own models of runs": (small("algo=ditto", "precision=float64"), [2], 2, []),
}


def test_several_devices_are_one():
    flags = f"{conftest.FLAGS} --xla_force_host_platform_device_count=8"
    paths = [str(Path(__file__).parents[2]), *sys.path]
    found = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("on_devices.py"))],
        input="".join(json.dumps(case) + "\n" for case in CASES.values()),
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    apart = dict(zip(CASES, map(json.loads, found.stdout.splitlines()), strict=True))
    worst = {name: max(differences) for name, differences in apart.items()}
    assert {name: d for name, d in worst.items() if d > (1e-5 if name == "float32" else 1e-12)} == {}
    assert worst["float32"] > 0  # else nothing was dealt out
