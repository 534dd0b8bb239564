"""Time and memory of a round against the number of clients."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import jax
import numpy as np

from benchmarks.measure import FCORUN, in_turns, make_engine, shell
from fcorun.engine.devices import Devices
from fcorun.system.machine import available_cores, use_cores_as_devices

use_cores_as_devices()  # before anything is computed

CLIENTS = (64, 256, 1024, 4096)
FEW = available_cores()  # one on each device: their rows take no memory to speak of
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "scale.png"
ONCE, CHUNKS, CORES = "all clients at once", "in chunks, one device", "in chunks, each core a device"


def scale() -> Iterator[str]:
    """Rounds of `lasso` with 64 to 4,096 clients, all of them in each; draws docs/scale.png."""
    ways = [(way, clients) for clients in CLIENTS for way in (ONCE, CHUNKS, CORES)]  # whose rows are the same
    found = in_turns(8, **{f"{way}/{clients}": _rounds(way, clients) for way, clients in ways})
    seconds = {(way, clients): found[f"{way}/{clients}"] / clients * 64 for way, clients in ways}
    for way, clients in ways:
        told = f"{seconds[way, clients] * 1e3:.2f} ms | {seconds[way, clients] / seconds[way, CLIENTS[0]]:.2f}"
        yield f"| a round of {clients} clients, {way}, per 64 clients | {told} |"
    memory = {clients: _memory(clients) for clients in (FEW, *CLIENTS)}
    yield f"| peak memory of a run of {FEW} clients | {memory[FEW]:.0f} MiB | |"
    for clients in CLIENTS:
        more = (memory[clients] - memory[FEW]) / (_rows(clients) - _rows(FEW))
        told = f"{memory[clients]:.0f} MiB | {more:.2f} times the rows, both beyond those of {FEW}"
        yield f"| peak memory of a run of {clients} clients | {told} |"
    _draw(seconds, memory)


def _memory(clients: int) -> float:
    """MiB that a run on all cores takes at the most, the median of three with empty caches."""
    found = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as top:
            given = ["data=lasso", f"data.clients={clients}", "clients_per_round=null", "verbose=false", "rounds=2"]
            command = [*FCORUN, "algo=feddualavg", *given, "devices=all", "hydra.run.dir=run"]
            found.append(shell(command, Path(top), Path(top, "cache"))[1])
    return median(found)


def _rows(clients: int) -> float:
    """MiB of the rows for training and validation."""
    return clients * (128 + 32) * 1024 * 4 / 2**20


def _rounds(way: str, clients: int) -> Callable[[], float]:
    """Seconds of a round within a stretch of eight or more, without evaluation and compiling."""
    count = max(8, 1024 // clients)
    at_once = str(clients) if way == ONCE else "auto"
    given = (f"data.clients={clients}", f"rounds={count}", f"eval_every={count}", f"clients_at_once={at_once}")
    engine, points = make_engine("clients_per_round=null", *given)
    devices = Devices.for_runs(jax.local_device_count() if way == CORES else 1, 1)
    engine, federation = replace(engine, devices=devices.count), engine.federation
    numbers, state = devices.shard_by_run((federation.stack_numbers(points), engine.initial_state(points)))
    drawn = devices.replicate((federation.arrays[0], federation.schedule.draw_rounds(0, count), np.int32(0)))
    program = jax.jit(devices.map_advance(federation.advance, shared=True)).lower(numbers, state, *drawn).compile()

    def run() -> float:
        begun = time.perf_counter()
        jax.block_until_ready(program(numbers, state, *drawn))
        return (time.perf_counter() - begun) / count

    return run


def _draw(seconds: dict, memory: dict) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    times, sizes = figure.subplots(1, 2)
    styles = {ONCE: ("#d55e00", "s", ":"), CHUNKS: ("#0072b2", "o", "-"), CORES: ("#009e73", "^", "--")}
    for way, (color, marker, line) in styles.items():
        each = [seconds[way, clients] * 1e3 for clients in CLIENTS]
        times.plot(CLIENTS, each, color=color, marker=marker, linestyle=line, label=way)
    sizes.plot(CLIENTS, [memory[n] / 1024 for n in CLIENTS], color="#0072b2", marker="o", label="the process")
    sizes.plot(CLIENTS, [_rows(n) / 1024 for n in CLIENTS], color="#555555", linestyle="--", label="the rows")
    times.set(ylabel="time of a round per 64 clients (ms)", ylim=(0, None))
    sizes.set(ylabel="peak memory (GiB)", ylim=(0, None))
    for axes in (times, sizes):
        axes.set(xlabel="clients $M$, all in each round", xscale="log", xticks=CLIENTS, xticklabels=map(str, CLIENTS))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.suptitle(f"FedDualAvg on LASSO, 128 rows of 1,024 features a client, {os.cpu_count()} cores", fontsize=10)
    figure.savefig(PICTURE, dpi=150)
