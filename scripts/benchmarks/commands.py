"""Commands from the shell to their files: a run, a sweep, a report."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import FCORUN, RATES, in_threads, make_engine, run_command, with_rates


def start_up() -> Iterator[str]:
    """Measure the import of fcorun, and the help of the command."""
    commands = {"import fcorun": [sys.executable, "-c", "import fcorun"], "fcorun --help": [*FCORUN, "--help"]}
    with tempfile.TemporaryDirectory() as top:
        seconds = dict.fromkeys(commands, float("inf"))
        for _ in range(10):
            for name, command in commands.items():
                seconds[name] = min(seconds[name], run_command(command, Path(top), Path(top, "cache"))[0])
        for name in commands:
            yield f"| `{name}` | {seconds[name]:.2f} s | |"


def one_run() -> Iterator[str]:
    """Measure the first command of the README, from the shell to the finished record."""
    command = [*FCORUN, "algo=feddualavg", "data=lasso"]
    with tempfile.TemporaryDirectory() as top:
        cold, warm, memory = [], [], 0.0
        for attempt in range(3):
            cache = Path(top, f"cache{attempt}")
            for measurements in (cold, warm):
                folder = Path(top, "work")
                folder.mkdir()
                seconds, peak = run_command(command, folder, cache)
                memory = max(memory, peak)
                measurements.append(
                    (seconds, json.loads(next(folder.rglob("summary.json")).read_text(encoding="utf-8"))["seconds"])
                )
                shutil.rmtree(folder)
        for name, runs in (("first time", cold), ("second time", warm)):
            seconds, times = min(runs, key=lambda r: r[0])
            parts = {"data": "setup", "compile": "compile", "rounds": "steady", "picture": "picture"}
            shown = [f"{part} {times[key]:.1f}" for part, key in parts.items()]
            rest = seconds - sum(times[key] for key in parts.values())
            label = f"`fcorun algo=feddualavg data=lasso`, {name}"
            yield f"| {label} | {seconds:.1f} s | start-up {rest:.1f}, {', '.join(shown)} |"
        yield f"| `fcorun algo=feddualavg data=lasso`, peak memory | {memory:.0f} MiB | |"


def sweep() -> Iterator[str]:
    """Measure a 49-point sweep of lasso, 500 rounds with 10 clients: batched, by Hydra's launcher, one process each."""
    base = ["data=lasso", "verbose=false"]
    clients, servers = (",".join(map(str, values)) for values in RATES)
    many_runs = [*FCORUN, "-m", *base, f"algo.client_lr={clients}", f"algo.server_lr={servers}"]
    engine, points = make_engine("rounds=500", "eval_every=10")
    alone = in_threads(engine, with_rates(points[0]))
    found: dict[str, list[tuple[float, float]]] = {"batched": [], "basic": [], "processes": []}
    engine_alone = float("inf")
    with tempfile.TemporaryDirectory() as top:
        cache = Path(top, "cache")
        for attempt in range(3):
            folder = Path(top, f"work{attempt}")
            folder.mkdir()
            engine_alone = min(engine_alone, alone())
            batched = run_command([*many_runs, "hydra.sweep.dir=batched"], folder, cache)
            basic = run_command([*many_runs, "hydra.sweep.dir=basic", "hydra/launcher=basic"], folder, cache)
            if attempt:  # the first attempt fills the cache of compiled programs
                found["batched"].append(batched)
                found["basic"].append(basic)
        begun, memory = time.perf_counter(), 0.0
        for c in RATES[0]:
            for s in RATES[1]:
                run = [*FCORUN, *base, f"algo.client_lr={c}", f"algo.server_lr={s}"]
                run += ["hydra.run.dir=processes/${run_id:}"]
                memory = max(memory, run_command(run, folder, cache)[1])
        found["processes"].append((time.perf_counter() - begun, memory))
    best = min(found["batched"])[0]
    yield f"| 49-point sweep: the engine alone | {engine_alone:.1f} s | {engine_alone / best:.2f} |"
    names = {"batched": "`fcorun -m`", "basic": "Hydra's basic launcher", "processes": "one process for each run"}
    for key, name in names.items():
        seconds, memory = min(found[key])
        yield f"| 49-point sweep: {name} | {seconds:.1f} s, peak {memory:.0f} MiB | {seconds / best:.1f} |"


def report() -> Iterator[str]:
    """Measure the time and size of the page for a 49-point sweep of lasso and for 200 runs."""
    sweep = [*FCORUN, "-m", "data=lasso", "verbose=false", "report=false"]
    clients, servers = (",".join(map(str, values)) for values in RATES)
    sizes = {"49-point sweep": (clients, servers, "0")}
    sizes["200 runs"] = (f"5e-5,{clients}", "0.1,0.2,0.3,0.7,1.0", "0,1,2,3,4")
    with tempfile.TemporaryDirectory() as top:
        cache = Path(top, "cache")
        for i, (name, (client, server, seed)) in enumerate(sizes.items()):
            grid = [f"algo.client_lr={client}", f"algo.server_lr={server}", f"seed={seed}"]
            run_command([*sweep, *grid, f"hydra.sweep.dir=sweep{i}"], Path(top), cache)
            seconds, memory = min(run_command([*FCORUN, "report", f"sweep{i}"], Path(top), cache) for _ in range(3))
            size = Path(top, f"sweep{i}", "report.html").stat().st_size
            yield f"| `fcorun report`, {name} | {seconds:.1f} s, peak {memory:.0f} MiB | {size / 1e6:.1f} MB |"
