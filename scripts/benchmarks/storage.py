"""Rows on disk compared with rows in memory, and client states in a file compared with stateless clients."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import FCORUN, measure_command

ROWS, FEATURES, CLIENTS = 200_000, 500, 200


def disk() -> Iterator[str]:
    """Measure a table of 200,000 rows of 500 features (400 MB) on disk and in memory."""
    asked = ["algo=feddualavg", "data=table", "data.path=rows", "reg=l1", "reg.strength=0.01", "algo.client_lr=0.001"]
    asked += ["clients_per_round=50", "batch_size=32", "local_steps=10", "rounds=200", "eval_every=20"]
    ways = {f"data.resident={way}": [*asked, f"data.resident={way}"] for way in ("true", "false")}
    with tempfile.TemporaryDirectory() as top:
        _write_rows(Path(top, "rows"))
        found = _minimum_costs(Path(top), ways)
    base = found["data.resident=true"]["steady"]
    for way, each in found.items():
        yield f"| 200 rounds on {ROWS:,} x {FEATURES}, `{way}` | {_describe(each)} | {each['steady'] / base:.1f} |"


def states() -> Iterator[str]:
    """Measure 200 rounds of `lasso_million` with 10^4 and 10^6 clients, with states in a file and without states."""
    asked = ["data=lasso_million", "rounds=200"]
    ways = {
        f"{algo}, 10^{power} clients": [f"algo={algo}", *asked, f"data.clients={10**power}"]
        for algo in ("feddualavg", "scaffold")
        for power in (4, 6)
    }
    with tempfile.TemporaryDirectory() as top:
        found = _minimum_costs(Path(top), ways)
    for way, each in found.items():
        yield f"| 200 rounds, {way} | {_describe(each)} | {200 / each['steady']:.0f} rounds a second |"


def _describe(each: dict[str, float]) -> str:
    return (f"{each['steady']:.1f} s; the command {each['processor']:.1f} s of the processor, "
            f"peak {each['memory']:.0f} MiB")  # fmt: skip


def _minimum_costs(top: Path, ways: dict[str, list[str]], repetitions: int = 3) -> dict[str, dict[str, float]]:
    """Run the commands alternately; return the minima of each.

    "steady" are the seconds of the rounds with their evaluations, "processor" the processor seconds, "memory" the peak
    in MiB. The first turn, which compiles, does not count.
    """
    found: dict[str, dict[str, float]] = {}
    for turn in range(repetitions + 1):
        for number, (way, asked) in enumerate(ways.items()):
            folder = f"run{turn}-{number}"
            _, memory, processor = measure_command(
                [*FCORUN, *asked, "verbose=false", f"hydra.run.dir={folder}"], top, top / "cache"
            )
            steady = json.loads((top / folder / "summary.json").read_text(encoding="utf-8"))["seconds"]["steady"]
            new = {"processor": processor, "steady": steady, "memory": memory}
            if turn:
                found[way] = {key: min(value, found.get(way, new)[key]) for key, value in new.items()}
    return found


def _write_rows(folder: Path) -> None:
    """Write a folder of .npy files with a linear model in which every tenth feature is relevant."""
    rng, true = np.random.default_rng(0), np.arange(FEATURES) % 10 == 0
    folder.mkdir()
    x = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float32, (ROWS, FEATURES))
    y = np.empty(ROWS, np.float32)
    for some in np.array_split(np.arange(ROWS), 20):
        x[some] = rng.standard_normal((len(some), FEATURES), dtype=np.float32)
        y[some] = x[some] @ true + rng.standard_normal(len(some), dtype=np.float32)
    np.save(folder / "y.npy", y)
    np.save(folder / "client.npy", np.arange(ROWS) % CLIENTS)
