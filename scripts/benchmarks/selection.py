"""Selection of a strength, and stability selection, from the shell."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import FCORUN, run_command
from fcorun import run
from fcorun.experiment.configuration.compose import compose


def select() -> Iterator[str]:
    """Measure 50 strengths x 5 folds of lasso, 300 rounds with 10 of 64 clients, and the runs one by one."""
    base = ["algo=feddualavg", "data=lasso", "rounds=300", "verbose=false"]
    with tempfile.TemporaryDirectory() as top, contextlib.chdir(top):
        found = [
            run_command([*FCORUN, "select", *base, f"out=out{i}"], Path(top), Path(top, f"cache{i}")) for i in range(2)
        ]
        best, memory = min(found)
        config, times = compose(base), []
        for i, strength in enumerate((0.1, 0.01, 0.03, 0.3)):  # the first run fills the caches
            begun = time.perf_counter()
            run(config | {"reg": config["reg"] | {"strength": strength}}, f"alone{i}")
            times.append(time.perf_counter() - begun)
    alone = 250 * min(times[1:])
    what = "50 strengths x 5 folds, LASSO of 64 clients x 128 x 1024, 300 rounds"
    yield f"| {what}: `fcorun select`, with all rows and the refit | {best:.1f} s, peak {memory:.0f} MiB | 1.0 |"
    yield f"| {what}: one by one in one process (the best of 3 runs, times 250) | {alone:.0f} s | {alone / best:.1f} |"


def stability() -> Iterator[str]:
    """Measure stability selection: 100 halves x 20 strengths on a table of 6 hospitals x 200 x 60."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(6), 200)
    x = rng.standard_normal((1200, 60)) + 0.5 * rng.standard_normal((6, 60))[owner]
    y = x[:, :8] @ [1, -1, 0.8, -0.8, 0.6, 0.5, 0.4, 0.3] + 2 * rng.standard_normal(1200)
    with tempfile.TemporaryDirectory() as top:
        np.savez(Path(top, "hospitals.npz"), X=x, y=y, client=owner)
        command = [*FCORUN, "stability", "algo=feddualavg", "data=table", "verbose=false"]
        command += ["data.path=hospitals.npz", "data.standardize=pooled"]
        found = [run_command([*command, f"out=out{i}"], Path(top), Path(top, f"cache{i}")) for i in range(2)]
    seconds, memory = min(found)
    what = "100 halves x 20 strengths, 6 hospitals x 200 x 60, 500 rounds: `fcorun stability`"
    yield f"| {what} | {seconds:.1f} s, peak {memory:.0f} MiB | |"
