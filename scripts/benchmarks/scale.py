"""Time and memory of a round against the number of clients."""

import csv
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import FCORUN, shell

CLIENTS = (64, 256, 1024, 4096)
ROUNDS = 20
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "scale.png"
WAYS = {
    "all clients at once": ("devices=1", "clients_at_once={clients}"),
    "in chunks, one device": ("devices=1",),
    "in chunks, each core a device": ("devices=all",),
}


def scale() -> Iterator[str]:
    """Rounds of `lasso` with 64 to 4,096 clients, all of them in each; draws docs/scale.png."""
    seconds = {(way, clients): float("inf") for way in WAYS for clients in CLIENTS}
    memory = dict.fromkeys(seconds, float("inf"))
    with tempfile.TemporaryDirectory() as top:
        for _ in range(2):
            for way, clients in seconds:
                found = _measured(way, clients, Path(top))
                seconds[way, clients] = min(seconds[way, clients], found[0])
                memory[way, clients] = min(memory[way, clients], found[1])
    for way, clients in seconds:
        each, first = (seconds[way, n] / n * 64 for n in (clients, CLIENTS[0]))
        told = f"{each * 1e3:.2f} ms | {each / first:.2f} times that of 64"
        yield f"| a round of {clients} clients, {way}, a 64 clients | {told} |"
    for way, clients in memory:
        rows = _rows(clients)
        told = f"{memory[way, clients]:.0f} MiB | {memory[way, clients] / rows:.2f} times its rows"
        yield f"| peak memory of a run of {clients} clients, {way} | {told} |"
    _draw(seconds, memory)


def _rows(clients: int) -> float:
    """MiB of the rows for training and validation."""
    return clients * (128 + 32) * 1024 * 4 / 2**20


def _measured(way: str, clients: int, top: Path) -> tuple[float, float]:
    """Seconds of a round, with a twentieth of an evaluation; MiB of the process."""
    given = ["data=lasso", f"data.clients={clients}", "clients_per_round=null", "force=true", "verbose=false"]
    given += [f"rounds={ROUNDS}", f"eval_every={ROUNDS}", *(each.format(clients=clients) for each in WAYS[way])]
    memory = shell([*FCORUN, "algo=feddualavg", *given, "hydra.run.dir=run"], top, top / "cache")[1]
    with Path(top, "run", "metrics.csv").open(newline="") as file:
        first, *_, last = csv.DictReader(file)
    return (float(last["seconds"]) - float(first["seconds"])) / ROUNDS, memory


def _draw(seconds: dict, memory: dict) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    times, sizes = figure.subplots(1, 2)
    styles = zip(WAYS, (("#d55e00", "s", ":"), ("#0072b2", "o", "-"), ("#009e73", "^", "--")), strict=True)
    for way, (color, marker, line) in styles:
        style = {"color": color, "marker": marker, "linestyle": line, "label": way}
        times.plot(CLIENTS, [seconds[way, n] / n * 64e3 for n in CLIENTS], **style)
        sizes.plot(CLIENTS, [memory[way, n] / 1024 for n in CLIENTS], **style)
    sizes.plot(CLIENTS, [_rows(n) / 1024 for n in CLIENTS], color="#555555", linewidth=1, label="the rows alone")
    times.set(ylabel="time of a round per 64 clients (ms)", ylim=(0, None))
    sizes.set(ylabel="peak memory (GiB)", yscale="log")
    for axes in (times, sizes):
        axes.set(xlabel="clients $M$, all in each round", xscale="log", xticks=CLIENTS, xticklabels=map(str, CLIENTS))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    times.legend(frameon=False, fontsize=8)
    sizes.legend(frameon=False, fontsize=8)
    figure.suptitle(f"FedDualAvg on LASSO, 128 rows of 1,024 features a client, {os.cpu_count()} cores", fontsize=10)
    figure.savefig(PICTURE, dpi=150)
