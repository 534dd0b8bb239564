"""Time and memory of a round against the number of clients."""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import jax
import numpy as np

from benchmarks.measure import FCORUN, make_engine, minimum_times, run_command
from fcorun.base.system.machine import available_cores, use_cores_as_devices
from fcorun.engine.clients import Devices

use_cores_as_devices()  # before anything is computed

CLIENTS = (64, 256, 1024, 4096)
FEW = available_cores()  # one on each device, with negligible rows
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "scale.png"
ONCE, CHUNKS, CORES = "all clients at once", "in chunks, one device", "in chunks, one device for each core"


def scale() -> Iterator[str]:
    """Measure rounds of `lasso` with all of 64 to 4,096 clients; draw docs/scale.png."""
    ways = [
        (way, clients) for clients in CLIENTS for way in (ONCE, CHUNKS, CORES)
    ]  # consecutive measurements share the rows
    found = minimum_times(8, **{f"{way}/{clients}": _rounds(way, clients) for way, clients in ways})
    seconds = {(way, clients): found[f"{way}/{clients}"] / clients * 64 for way, clients in ways}
    for way, clients in ways:
        ratio = seconds[way, clients] / seconds[way, CLIENTS[0]]
        time_ms = seconds[way, clients] * 1e3
        yield f"| a round of {clients} clients, {way}, per 64 clients | {time_ms:.2f} ms | {ratio:.2f} |"
    memory = {clients: _memory(clients) for clients in (FEW, *CLIENTS)}
    yield f"| peak memory of a run of {FEW} clients | {memory[FEW]:.0f} MiB | |"
    for clients in CLIENTS:
        more = ""  # on so many cores, FEW is no negligible number
        if clients > FEW:
            more = f"{(memory[clients] - memory[FEW]) / (_rows(clients) - _rows(FEW)):.2f}"
        yield f"| peak memory of a run of {clients} clients | {memory[clients]:.0f} MiB | {more} |"
    _draw(seconds, memory)


def _memory(clients: int) -> float:
    """Return the peak MiB of a run on all cores, the median of three with empty caches."""
    peaks = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as top:
            given = ["data=lasso", f"data.clients={clients}", "clients_per_round=null", "verbose=false", "rounds=2"]
            command = [*FCORUN, "algo=feddualavg", *given, "devices=all", "hydra.run.dir=run"]
            peaks.append(run_command(command, Path(top), Path(top, "cache"))[1])
    return median(peaks)


def _rows(clients: int) -> float:
    """Return the MiB of the rows for training and validation."""
    return clients * (128 + 32) * 1024 * 4 / 2**20


def _rounds(way: str, clients: int) -> Callable[[], float]:
    """Return a function that times a round in a segment of eight or more, without evaluation and compilation."""
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
    figure.suptitle(
        f"FedDualAvg on LASSO, 128 rows of 1,024 features for each client, {available_cores()} cores", fontsize=10
    )
    figure.savefig(PICTURE, dpi=150)
