"""Tools of the benchmarks: time an engine, alone or in threads, and a command from the shell."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np

from fcorun.base.system.machine import available_cores
from fcorun.engine.engine import Engine
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.prepare import prepare

FCORUN = [sys.executable, "-m", "fcorun"]
RATES = [1e-4, 2e-4, 3e-4, 5e-4, 7e-4, 1e-3, 2e-3], [0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0]  # 49 points


def minimum_times(repetitions: int, **tasks: Callable[[], float]) -> dict[str, float]:
    """Run the tasks alternately; return the minimum of the seconds that each task returns."""
    minima = dict.fromkeys(tasks, float("inf"))
    for _ in range(repetitions):
        for name, task in tasks.items():
            minima[name] = min(minima[name], task())
    return minima


def make_engine(*overrides: str) -> tuple[Engine, list]:
    """Return an engine, and the numbers of its configuration."""
    experiment = prepare(compose(["algo=feddualavg", "data=lasso", "verbose=false", *overrides]))
    return build_engine(experiment, load_data(experiment)), [experiment.numbers()]


def engine_seconds(engine: Engine, points: list) -> Callable[[], float]:
    """Return a function that times all rounds of a compiled engine, with the evaluation at their end."""

    def run() -> float:
        snapshots = list(engine.run(points))
        return snapshots[-1].seconds - snapshots[0].seconds

    run()
    return run


def processor_seconds(engine: Engine, points: list) -> Callable[[], float]:
    """Return a function that measures the processor seconds of all rounds of a compiled engine, without evaluations."""
    loop, state = engine._start_loop(points, [engine.federation.schedule.seed], engine.initial_state(points), None)
    segment = loop.next_segment(0)
    assert segment is not None
    assert segment.n_rounds == engine.rounds
    arguments = (loop.numbers, state, loop.rows, segment.rounds, np.int32(0))
    advance = engine.programs.get(engine.federation.advance, *arguments)

    def run() -> float:
        begun = time.process_time()
        jax.block_until_ready(advance(*arguments))
        return time.process_time() - begun

    run()
    return run


def in_threads(engine: Engine, points: list) -> Callable[[], float]:
    """Return a function that times a grid, divided into one batch for each core, each in a thread."""
    parts = available_cores()
    width = -(-len(points) // parts)
    batches = [(points[i : i + width] + points[-1:] * width)[:width] for i in range(0, len(points), width)]
    runs = [engine_seconds(engine, batch) for batch in batches]

    def run() -> float:
        begun = time.perf_counter()
        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(lambda run: run(), runs))
        return time.perf_counter() - begun

    return run


def with_rates(numbers: dict) -> list[dict]:
    """Return the numbers of a configuration at each of the 49 pairs of rates."""
    return [{**numbers, "algo": {"client_lr": c, "server_lr": s}} for c in RATES[0] for s in RATES[1]]


# Runs a command from a small process, since the kernel counts memory that a child inherits before its program starts.
MEASURE = """
import os, sys, time
begun = time.perf_counter()
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(pid, 0)
unit = 2**20 if sys.platform == "darwin" else 2**10  # macOS counts bytes, Linux KiB
print(time.perf_counter() - begun, usage.ru_maxrss / unit, usage.ru_utime + usage.ru_stime)
sys.exit(bool(status))
"""


def run_command(command: list[str], folder: Path, cache: Path) -> tuple[float, float]:
    """Run a command; return its seconds, and the peak memory in MiB of its largest process."""
    return measure_command(command, folder, cache)[:2]


def measure_command(command: list[str], folder: Path, cache: Path) -> tuple[float, float, float]:
    """Run a command; return its seconds, the peak memory in MiB of its largest process, and processor seconds."""
    environment = os.environ | {"FCORUN_CACHE": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # users' Python compiles modules once
    measured = [sys.executable, "-S", "-c", MEASURE, *command]
    completed = subprocess.run(
        measured, cwd=folder, env=environment, stdout=subprocess.PIPE, encoding="utf-8", check=True
    )
    seconds, memory, processor = map(float, completed.stdout.split())
    return seconds, memory, processor
