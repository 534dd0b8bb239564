"""How the benchmarks measure: an engine, alone or in threads, and a command from the shell.

Times are the least of several repetitions, taken in turns, since what else runs on the machine only ever adds.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fcorun.configuration.compose import compose
from fcorun.engine.engine import Engine
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare

FCORUN = [sys.executable, "-m", "fcorun"]
RATES = [1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3, 2e-3], [0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0]  # 49 points


def in_turns(repetitions: int, **tasks: Callable[[], float]) -> dict[str, float]:
    """The least seconds of each task, which times itself, over rounds of all of them."""
    found = dict.fromkeys(tasks, float("inf"))
    for _ in range(repetitions):
        for name, task in tasks.items():
            found[name] = min(found[name], task())
    return found


def make_engine(*overrides: str) -> tuple[Engine, list]:
    """An engine, and the numbers of its configuration."""
    experiment = prepare(compose(["algo=feddualavg", "data=lasso", "verbose=false", *overrides]))
    return build_engine(experiment, load_data(experiment)), [experiment.numbers()]


def engine_seconds(engine: Engine, points: list) -> Callable[[], float]:
    """Seconds of all rounds of an engine, with the evaluation at their end and without compiling."""

    def run() -> float:
        shots = list(engine.run(points))
        return shots[-1].seconds - shots[0].seconds

    run()
    return run


def in_threads(engine: Engine, points: list) -> Callable[[], float]:
    """Seconds of a grid, cut into as many batches of one width as there are cores, each in a thread."""
    parts = os.cpu_count() or 1
    width = -(-len(points) // parts)
    batches = [(points[i : i + width] + points[-1:] * width)[:width] for i in range(0, len(points), width)]
    runs = [engine_seconds(engine, batch) for batch in batches]

    def run() -> float:
        begun = time.perf_counter()
        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(lambda run: run(), runs))
        return time.perf_counter() - begun

    return run


def rates(numbers: dict) -> list[dict]:
    """The numbers of a configuration at each of the 49 pairs of rates."""
    return [{**numbers, "algo": {"client_lr": c, "server_lr": s}} for c in RATES[0] for s in RATES[1]]


# Runs a command from a process that is small itself, for the kernel counts what a child inherits before it begins.
MEASURE = """
import os, sys, time
begun = time.perf_counter()
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - begun, usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime)
sys.exit(bool(status))
"""


def shell(command: list[str], folder: Path, cache: Path) -> tuple[float, float]:
    """Seconds of a command, and the peak memory in MiB of the largest of its processes."""
    return costs(command, folder, cache)[:2]


def costs(command: list[str], folder: Path, cache: Path) -> tuple[float, float, float]:
    """The same, and seconds of the processor."""
    environment = os.environ | {"FCORUN_CACHE": str(cache)}
    measured = [sys.executable, "-S", "-c", MEASURE, *command]
    found = subprocess.run(measured, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=True)
    seconds, memory, processor = map(float, found.stdout.split())
    return seconds, memory, processor
