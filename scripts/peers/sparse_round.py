"""Time a round of FedDualAvg on sparse rows beside a program written by hand in JAX on the same arrays in CSR.

``python scripts/peers/sparse_round.py`` draws rows by the law of ``make_sparse_rows.py``, and
divides them among ten clients, which take an epoch of minibatches in each round. Both programs take the same steps on
the same minibatches in float32, and their models are compared. Processor times without evaluations and compilation are
the least of repetitions that alternate.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.measure import minimum_times, processor_seconds
from make_sparse_rows import make_rows
from sklearn.datasets import dump_svmlight_file

from fcorun.base.system.machine import available_cores, set_up_jax
from fcorun.experiment.build import build_engine, build_schedule, load_data
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.prepare import prepare

ROUNDS = 2
REPETITIONS = 5
BATCH_SIZES = (10, 100)
STRENGTH = 5e-5
CLIENT_LR = 1.0
SETTINGS = [
    *("algo=feddualavg", f"algo.client_lr={CLIENT_LR}", "algo.server_lr=1", "reg=l1", f"reg.strength={STRENGTH}"),
    *("objective=logistic", "data=table", "data.task=binary", "clients_per_round=10", "verbose=false"),
    *(f"rounds={ROUNDS}", f"eval_every={ROUNDS}"),
]


def write_program(csr: Any, y: np.ndarray) -> Callable:
    """Return the compiled function from the row numbers of rounds (T, M, K, B), -1 for none, to weights and bias."""
    values, columns, bounds, target = (jnp.asarray(part) for part in (csr.data, csr.indices, csr.indptr, y))
    width = int(np.diff(csr.indptr).max())

    def retrieve(dual, elapsed):
        return jnp.sign(dual) * jnp.maximum(jnp.abs(dual) - elapsed * STRENGTH, 0)

    def step(state, rows):
        dual, bias, elapsed = state
        mask = (rows >= 0).astype(jnp.float32)
        rows = jnp.maximum(rows, 0)
        position = bounds[rows][:, None] + jnp.arange(width)
        is_of_row = position < bounds[rows + 1][:, None]
        x = jnp.where(is_of_row, values[position], 0)
        column = jnp.where(is_of_row, columns[position], 0)
        prediction = (x * retrieve(dual, elapsed)[column]).sum(axis=1) + bias
        slope = (jax.nn.sigmoid(prediction) - target[rows]) * mask / mask.sum()
        dual = dual.at[column].add(-CLIENT_LR * slope[:, None] * x)
        return (dual, bias - CLIENT_LR * slope.sum(), elapsed + CLIENT_LR), None

    def one_round(state, rows):
        ends = jax.vmap(lambda own: jax.lax.scan(step, state, own)[0])(rows)
        return tuple(end.mean(axis=0) for end in ends), None

    @jax.jit
    def run(rows):
        start = (jnp.zeros(csr.shape[1], jnp.float32), jnp.zeros(()), jnp.zeros(()))
        (dual, bias, elapsed), _ = jax.lax.scan(one_round, start, rows)
        return retrieve(dual, elapsed), bias

    return run


def compare_rounds(overrides: list[str], size: int) -> str:
    """Return a row of the table for minibatches of this size."""
    experiment = prepare(compose([*SETTINGS, *overrides, f"batch_size={size}"]))
    data = load_data(experiment)
    engine, points = build_engine(experiment, data), [experiment.numbers()]
    rows = jnp.asarray(build_schedule(experiment, data).draw_rounds(0, ROUNDS).rows)
    run = write_program(data.train.x.csr, data.train.y.astype(np.float32))
    weights = np.asarray(run(rows)[0])
    *_, snapshot = engine.run(points)
    difference = np.abs(weights - snapshot.solution["weights"][0]).max() / np.abs(weights).max()

    def time_by_hand() -> float:
        begun = time.process_time()
        jax.block_until_ready(run(rows))
        return time.process_time() - begun

    found = minimum_times(REPETITIONS, fcorun=processor_seconds(engine, points), by_hand=time_by_hand)
    fcorun, by_hand = (1e3 * seconds / ROUNDS for seconds in found.values())
    return f"| {size} | {fcorun:.0f} ms | {by_hand:.0f} ms | {fcorun / by_hand:.2f} | {difference:.0e} |"


def main() -> None:
    """Print a row of a Markdown table for each size of minibatches."""
    set_up_jax()
    print(f"load {os.getloadavg()[0]:.1f} on {available_cores()} cores in the minute before\n")
    print("| minibatches of | fcorun | JAX, by hand | ratio | weights differ, relative to the largest |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as top:
        file = Path(top) / "rows.svm"
        dump_svmlight_file(*make_rows(), str(file), zero_based=False)
        for size in BATCH_SIZES:
            print(compare_rounds([f"data.path={file}"], size), flush=True)


if __name__ == "__main__":
    main()
