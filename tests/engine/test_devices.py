"""Several devices are one: every algorithm, trees, grids; in one process of its own, whose CPU is eight devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import choice_names, plugin_class, small, small_for, traits_of

from fcorun.methods.algorithms import Algorithm

ALGORITHMS = [name for name in choice_names("algo") if issubclass(plugin_class("algo", name), Algorithm)]
OWN = "clients_per_round=null"  # six clients, which eight devices share
ALL = "FCORUN_ALL_DEVICES" in os.environ  # every algorithm on 2, 4 and 8 in both precisions, which takes minutes
# which a solver's tolerance ends, or a power
SOLVED = ("adap", "dlsa", "gram", "meta_analysis", "mixture", "newton", "pfedmac", "pfedmac_s", "pfedme")


def of(name: str, precision: str = "float64") -> dict:
    """A run of an algorithm with five of six clients, where it can do that: a number that nothing divides."""
    return small_for(name, f"precision={precision}", "clients_per_round=5" if traits_of(name).partial else OWN)


def of_graph(name: str) -> dict:
    """A run of an algorithm on a user's graph without a server, by all clients."""
    return small_for(name, "precision=float64", OWN) | {"topology": {"class": "ring_topology.Ring", "name": "ring"}}


def counts_of_devices(index: int, name: str) -> list[int]:
    """Return two or four devices in turn, and all counts for SCAFFOLD, whose clients have states."""
    return [2, 4, 8] if ALL or name == "scaffold" else [2 + 2 * (index % 2)]


def cases() -> dict:
    """Return the configuration, the numbers of devices, the number of runs and the seeds of each case."""
    return {
        **{name: (of(name), counts_of_devices(i, name), 1, []) for i, name in enumerate(ALGORITHMS)},
        **{f"{name} in float32": (of(name, "float32"), [2, 4, 8], 1, []) for name in ALGORITHMS if ALL},
        "float32": (small("algo=scaffold", "clients_per_round=5"), [4], 1, []),
        "chunks": (small("algo=feddyn", "precision=float64", OWN, "clients_at_once=2"), [2, 4], 1, []),
        "whole data": (small("algo=fedavg", "algo.class=svrg.SVRG", "precision=float64"), [2], 1, []),
        "numbers of clients": (
            small("algo=fedavg", "algo.class=timed_fedavg.TimedFedAvg", "precision=float64", "~algo.server_lr"),
            [4],
            1,
            [],
        ),
        "a tree": (small("precision=float64", "topology=tree", "topology.edges=2", "topology.rounds=2"), [4], 1, []),
        "a channel": (of("fedavg") | {"uplink": {"class": "partial_channel.Partial", "name": "partial"}}, [4], 1, []),
        "a graph": (of_graph("fedavg"), [4], 1, []),
        "runs": (small("precision=float64"), [2, 4], 4, []),
        "runs of own seeds": (small("algo=scaffold", "precision=float64"), [2], 4, [0, 1, 2, 3]),
        "more runs than devices": (small("precision=float64"), [2], 3, []),
        "personal models of runs": (small("algo=ditto", "precision=float64"), [2], 2, []),
    }


@pytest.mark.slow
def test_several_devices_are_one():
    all_cases = cases()
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    paths = [str(Path(__file__).parents[2]), *sys.path]
    found = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("on_devices.py"))],
        input="".join(json.dumps(case) + "\n" for case in all_cases.values()),
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    apart = dict(zip(all_cases, map(json.loads, found.stdout.splitlines()), strict=True))
    numbers = {name: max(d for d, _ in each) for name, each in apart.items()}
    counted = {name: max(d for _, d in each) for name, each in apart.items()}
    assert {name: d for name, d in numbers.items() if not d <= limit(name)} == {}
    assert {name: d for name, d in counted.items() if not d <= (0.02 if name.split()[0] in SOLVED else 0)} == {}
    assert numbers["float32"] > 0  # else nothing was dealt out


def limit(name: str) -> float:
    """Return the largest relative difference that is allowed between the numbers of a case."""
    algorithm, *precision = name.split(" in ")
    if algorithm == "float32" or precision:
        return 1e-4 if algorithm in SOLVED else 1e-5
    return 1e-11 if algorithm in SOLVED else 1e-12
