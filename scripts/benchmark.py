"""The figures of docs/measurements.md: ratios, measured in one run on one machine, compile time apart.

Times are the least of several repetitions, taken in turns, since what else runs on the machine only ever adds.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.composing.compose import compose
from fcorun.engine.engine import Engine
from fcorun.errors import nearest
from fcorun.experiment.build import engine_for, load
from fcorun.experiment.prepare import prepare

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
    return engine_for(experiment, load(experiment)), [experiment.numbers()]


def engine_seconds(engine: Engine, points: list) -> Callable[[], float]:
    """Seconds of all rounds of an engine, with the evaluation at their end and without compiling."""

    def run() -> float:
        shots = list(engine.run(points))
        return shots[-1].seconds - shots[0].seconds

    run()
    return run


def hand_written(engine: Engine, rate: float, strength: float, rounds: int) -> Callable[[], float]:
    """FedDualAvg for LASSO as one would write it in JAX for this problem alone."""
    x, y = jnp.asarray(engine.federation.data.x), jnp.asarray(engine.federation.data.y)

    def client(state, rows, x, y):
        def step(carry, rows):
            z, bias, elapsed = carry
            mask = (rows >= 0).astype(jnp.float32)
            batch = x[jnp.maximum(rows, 0)]
            w = jnp.sign(z) * jnp.maximum(jnp.abs(z) - elapsed * strength, 0)
            r = 2 * (batch @ w + bias - y[jnp.maximum(rows, 0)]) * mask / mask.sum()
            return (z - rate * (r @ batch), bias - rate * r.sum(), elapsed + rate), None

        return jax.lax.scan(step, state, rows)[0]

    @jax.jit
    def advance(state, rows, x, y):
        def one_round(state, rows):
            ends = jax.vmap(lambda r: client(state, r, x, y))(rows)
            return tuple(e.mean(axis=0) for e in ends), None

        return jax.lax.scan(one_round, state, rows)[0]

    def run() -> float:
        state = (jnp.zeros(x.shape[1]), jnp.zeros(()), jnp.zeros(()))
        begun = time.perf_counter()
        jax.block_until_ready(advance(state, engine.federation.schedule.draw(0, rounds).rows, x, y))
        return time.perf_counter() - begun

    run()
    return run


def numpy_loop(engine: Engine, rate: float, strength: float, rounds: int) -> Callable[[], float]:
    """The same in NumPy, one client after another."""
    x, y = engine.federation.data.x, engine.federation.data.y

    def run() -> float:
        begun = time.perf_counter()
        z, bias, elapsed = np.zeros(x.shape[1], np.float32), np.zeros((), np.float32), 0.0
        drawn = engine.federation.schedule.draw(0, rounds).rows
        for cohort in drawn:
            ends = []
            for batches in cohort:
                zc, bc, ec = z + 0, bias, elapsed
                for rows in batches:
                    rows = rows[rows >= 0]
                    batch = x[rows]
                    w = np.sign(zc) * np.maximum(np.abs(zc) - ec * strength, 0)
                    r = 2 * (batch @ w + bc - y[rows]) / len(rows)
                    zc, bc, ec = zc - np.float32(rate) * (r @ batch), bc - np.float32(rate) * r.sum(), ec + rate
                ends.append((zc, bc, ec))
            z, bias, elapsed = (sum(part) / len(ends) for part in zip(*ends, strict=True))
        return time.perf_counter() - begun

    return run


def bench_round() -> Iterator[str]:
    """One round of lasso with all 64 clients, batches of 10, one epoch."""
    rounds = 50
    engine, points = make_engine("clients_per_round=null", f"rounds={rounds}", f"eval_every={rounds}")
    rate, strength = points[0]["algo"]["client_lr"], points[0]["reg"]["strength"]
    found = in_turns(
        7,
        fcorun=engine_seconds(engine, points),
        jax=hand_written(engine, rate, strength, rounds),
        numpy=numpy_loop(engine, rate, strength, rounds),
    )
    labels = {"fcorun": "fcorun", "jax": "hand-written vmapped JAX", "numpy": "NumPy loop over clients"}
    for name, what in labels.items():
        ratio = found[name] / found["fcorun"]
        yield f"| a round of `lasso`, all 64 clients: {what} | {found[name] / rounds * 1e3:.2f} ms | {ratio:.2f} |"


def bench_grid() -> Iterator[str]:
    """A grid of 49 rates as one program, in as many threads as cores, against single runs."""
    for clients in ("10", "null"):
        rounds = 50
        engine, points = make_engine(f"clients_per_round={clients}", f"rounds={rounds}", f"eval_every={rounds}")
        many = [{**points[0], "algo": {"client_lr": c, "server_lr": s}} for c in RATES[0] for s in RATES[1]]
        parts = os.cpu_count() or 1
        width = -(-len(many) // parts)
        batches = [(many[i : i + width] + many[-1:] * width)[:width] for i in range(0, len(many), width)]
        runs = [engine_seconds(engine, batch) for batch in batches]

        def grid(runs=runs, parts=parts) -> float:
            begun = time.perf_counter()
            with ThreadPoolExecutor(parts) as pool:
                list(pool.map(lambda run: run(), runs))
            return time.perf_counter() - begun

        single = make_engine(f"clients_per_round={clients}", f"rounds={rounds}", f"eval_every={rounds}")[0]
        found = in_turns(5, single=engine_seconds(single, points), grid=grid)
        each = found["grid"] / len(many)
        who = "10 of 64 clients" if clients == "10" else "all 64 clients"
        yield f"| a round, {who}: single run | {found['single'] / rounds * 1e3:.2f} ms | {found['single'] / each:.1f} |"
        yield f"| a round, {who}: each of a 49-point grid | {each / rounds * 1e3:.3f} ms | 1 |"


# Runs a command from a process that is small itself, for the kernel counts what a child inherits before it begins.
MEASURE = """
import os, sys, time
begun = time.perf_counter()
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - begun, usage.ru_maxrss / 1024)
sys.exit(bool(status))
"""


def shell(command: list[str], folder: Path, cache: Path) -> tuple[float, float]:
    """Seconds of a command, and the peak memory in MiB of the largest of its processes."""
    environment = os.environ | {"FCORUN_CACHE": str(cache)}
    measured = [sys.executable, "-S", "-c", MEASURE, *command]
    found = subprocess.run(measured, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    seconds, memory = map(float, found.stdout.split())
    return seconds, memory


def bench_shell() -> Iterator[str]:
    """The first command of the README, from the shell to the finished record."""
    import json

    command = [sys.executable, "-m", "fcorun", "algo=feddualavg", "data=lasso"]
    with tempfile.TemporaryDirectory() as top:
        cold, warm, memory = [], [], 0.0
        for attempt in range(3):
            cache = Path(top, f"cache{attempt}")
            for kind in (cold, warm):
                folder = Path(top, "work")
                folder.mkdir()
                seconds, memory = shell(command, folder, cache)
                kind.append((seconds, json.loads(next(folder.rglob("summary.json")).read_text())["seconds"]))
                shutil.rmtree(folder)
        for name, runs in (("first time", cold), ("second time", warm)):
            seconds, times = min(runs, key=lambda r: r[0])
            parts = {"data": "setup", "compile": "compile", "rounds": "steady", "picture": "picture"}
            shown = [f"{part} {times[key]:.1f}" for part, key in parts.items()]
            rest = seconds - sum(times[key] for key in parts.values())
            what = f"`fcorun algo=feddualavg data=lasso`, {name}"
            yield f"| {what} | {seconds:.1f} s | start-up {rest:.1f}, {', '.join(shown)} |"
        yield f"| its peak memory | {memory:.0f} MiB | |"


def bench_sweep() -> Iterator[str]:
    """A 49-point sweep of lasso, 500 rounds with 10 clients: batched, by Hydra's own launcher, a process a run."""
    fcorun, base = [sys.executable, "-m", "fcorun"], ["data=lasso", "verbose=false"]
    clients, servers = (",".join(map(str, values)) for values in RATES)
    many_runs = [*fcorun, "-m", *base, f"algo.client_lr={clients}", f"algo.server_lr={servers}"]
    engine, points = make_engine("rounds=500", "eval_every=10")
    many = [{**points[0], "algo": {"client_lr": c, "server_lr": s}} for c in RATES[0] for s in RATES[1]]
    parts = os.cpu_count() or 1
    width = -(-len(many) // parts)
    batches = [(many[i : i + width] + many[-1:] * width)[:width] for i in range(0, len(many), width)]
    runs = [engine_seconds(engine, batch) for batch in batches]

    def alone() -> float:
        begun = time.perf_counter()
        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(lambda run: run(), runs))
        return time.perf_counter() - begun

    found: dict[str, list[tuple[float, float]]] = {"batched": [], "basic": [], "processes": []}
    engine_alone = float("inf")
    with tempfile.TemporaryDirectory() as top:
        cache = Path(top, "cache")
        for attempt in range(3):
            folder = Path(top, f"work{attempt}")
            folder.mkdir()
            engine_alone = min(engine_alone, alone())
            batched = shell([*many_runs, "hydra.sweep.dir=batched"], folder, cache)
            basic = shell([*many_runs, "hydra.sweep.dir=basic", "hydra/launcher=basic"], folder, cache)
            if attempt:  # the first fills the cache of compiled programs
                found["batched"].append(batched)
                found["basic"].append(basic)
        begun, memory = time.perf_counter(), 0.0
        for c in RATES[0]:
            for s in RATES[1]:
                run = [
                    *fcorun,
                    *base,
                    f"algo.client_lr={c}",
                    f"algo.server_lr={s}",
                    "hydra.run.dir=processes/${run_id:}",
                ]
                memory = max(memory, shell(run, folder, cache)[1])
        found["processes"].append((time.perf_counter() - begun, memory))
    best = min(found["batched"])[0]
    yield f"| 49-point sweep: the engine alone | {engine_alone:.1f} s | {engine_alone / best:.2f} |"
    names = {"batched": "`fcorun -m`", "basic": "Hydra's basic launcher", "processes": "a process a run"}
    for key, name in names.items():
        seconds, memory = min(found[key])
        yield f"| 49-point sweep: {name} | {seconds:.1f} s, peak {memory:.0f} MiB | {seconds / best:.1f} |"


def bench_fedgd() -> Iterator[str]:
    """34,000 rounds of FedGD with 25 clients, float64, as figure 3 of the FedSplit paper needs; without evaluations."""
    for data, rows in (("least_squares", 5000), ("least_squares_conditioned", 200)):
        rounds = 34_000
        fixed = ("algo=fedgd", f"data={data}", "objective.intercept=false", "algo.step=1e-3")
        experiment = prepare(compose([*fixed, f"rounds={rounds}", f"eval_every={rounds}"]))
        loaded = load(experiment)
        with jax.enable_x64(True):
            seconds = engine_seconds(engine_for(experiment, loaded), [experiment.numbers()])()
        x = loaded.x.reshape(25, rows, -1)
        w, begun = np.zeros(x.shape[2]), time.perf_counter()
        for _ in range(34):
            slopes = [own.T @ (own @ w - y) * (2 / rows) for own, y in zip(x, loaded.y.reshape(25, -1), strict=True)]
            w -= 1e-3 * np.mean(slopes, axis=0)
        loop = 1000 * (time.perf_counter() - begun)
        what = f"34,000 rounds of FedGD, 25 clients with {rows} x 100"
        yield f"| {what}: fcorun | {seconds:.1f} s | 1.0 |"
        yield f"| {what}: NumPy on the rows (34 rounds, times 1,000) | {loop:.0f} s | {loop / seconds:.0f} |"


def bench_select() -> Iterator[str]:
    """50 strengths x 5 folds of lasso, 300 rounds with 10 of 64 clients, and the same runs one by one."""
    import contextlib

    from fcorun.runs.run import run

    base = ["algo=feddualavg", "data=lasso", "rounds=300", "verbose=false"]
    with tempfile.TemporaryDirectory() as top, contextlib.chdir(top):
        found = [
            shell([sys.executable, "-m", "fcorun", "select", *base, f"out=out{i}"], Path(top), Path(top, f"cache{i}"))
            for i in range(2)
        ]
        best, memory = min(found)
        config, times = compose(base), []
        for i, strength in enumerate((0.1, 0.01, 0.03, 0.3)):  # the first one warms up
            begun = time.perf_counter()
            run(config | {"reg": config["reg"] | {"strength": strength}}, f"alone{i}")
            times.append(time.perf_counter() - begun)
    alone = 250 * min(times[1:])
    what = "50 strengths x 5 folds, LASSO of 64 clients x 128 x 1024, 300 rounds"
    yield f"| {what}: `fcorun select`, with all rows and the refit | {best:.1f} s, peak {memory:.0f} MiB | 1.0 |"
    yield f"| {what}: one by one in one process (the best of 3 runs, times 250) | {alone:.0f} s | {alone / best:.1f} |"


def bench_stability() -> Iterator[str]:
    """Stability selection with 100 halves x 20 strengths on a table of 6 hospitals x 200 x 60."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(6), 200)
    x = rng.standard_normal((1200, 60)) + 0.5 * rng.standard_normal((6, 60))[owner]
    y = x[:, :8] @ [1, -1, 0.8, -0.8, 0.6, 0.5, 0.4, 0.3] + 2 * rng.standard_normal(1200)
    with tempfile.TemporaryDirectory() as top:
        np.savez(Path(top, "hospitals.npz"), X=x, y=y, client=owner)
        command = [sys.executable, "-m", "fcorun", "stability", "algo=feddualavg", "data=table", "verbose=false"]
        command += ["data.path=hospitals.npz", "data.standardize=pooled"]
        found = [shell([*command, f"out=out{i}"], Path(top), Path(top, f"cache{i}")) for i in range(2)]
    seconds, memory = min(found)
    what = "100 halves x 20 strengths, 6 hospitals x 200 x 60, 500 rounds: `fcorun stability`"
    yield f"| {what} | {seconds:.1f} s, peak {memory:.0f} MiB | |"


def bench_report() -> Iterator[str]:
    """The page of a 49-point sweep of lasso and of 200 runs, from the shell; how large it is."""
    fcorun = [sys.executable, "-m", "fcorun"]
    sweep = [*fcorun, "-m", "data=lasso", "verbose=false", "report=false"]
    clients, servers = (",".join(map(str, values)) for values in RATES)
    sizes = {"49-point sweep": (clients, servers, "0")}
    sizes["200 runs"] = (f"5e-5,{clients}", "0.1,0.2,0.3,0.7,1.0", "0,1,2,3,4")
    with tempfile.TemporaryDirectory() as top:
        cache = Path(top, "cache")
        for i, (name, (client, server, seed)) in enumerate(sizes.items()):
            rates = [f"algo.client_lr={client}", f"algo.server_lr={server}", f"seed={seed}"]
            shell([*sweep, *rates, f"hydra.sweep.dir=sweep{i}"], Path(top), cache)
            seconds, memory = min(shell([*fcorun, "report", f"sweep{i}"], Path(top), cache) for _ in range(3))
            size = Path(top, f"sweep{i}", "report.html").stat().st_size
            told = f"{seconds:.1f} s, peak {memory:.0f} MiB | {size / 1e6:.1f} MB"
            yield f"| `fcorun report`, {name} | {told} |"


BENCHMARKS = {
    **{"round": bench_round, "grid": bench_grid, "shell": bench_shell, "sweep": bench_sweep, "fedgd": bench_fedgd},
    **{"select": bench_select, "stability": bench_stability, "report": bench_report},
}


def main() -> None:
    """Print the rows of a Markdown table as they are measured."""
    told = "\n".join(f"  {name:6} {(bench.__doc__ or '').strip()}" for name, bench in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=f"benchmarks:\n{told}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; default: all of them")
    asked = parser.parse_args().names or list(BENCHMARKS)
    unknown = [name for name in asked if name not in BENCHMARKS]
    if unknown:
        parser.exit(2, f"there is no benchmark '{unknown[0]}': {nearest(unknown[0], BENCHMARKS)}\n")
    print("| what | time | ratio or parts |\n| --- | --- | --- |")
    for name in asked:
        for line in BENCHMARKS[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
