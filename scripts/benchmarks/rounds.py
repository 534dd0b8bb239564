"""Rounds of an engine: compared with hand-written code, in a grid, and many cheap rounds."""

import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import engine_seconds, in_threads, make_engine, minimum_times, with_rates
from fcorun.engine.engine import Engine
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.configuration.compose import compose
from fcorun.experiment.prepare import prepare


def hand_written(engine: Engine, rate: float, strength: float, rounds: int) -> Callable[[], float]:
    """Return a function that times FedDualAvg for LASSO, hand-written in JAX for this problem alone."""
    x, y = jnp.asarray(engine.federation.data.train.x), jnp.asarray(engine.federation.data.train.y)

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
        jax.block_until_ready(advance(state, engine.federation.schedule.draw_rounds(0, rounds).rows, x, y))
        return time.perf_counter() - begun

    run()
    return run


def numpy_loop(engine: Engine, rate: float, strength: float, rounds: int) -> Callable[[], float]:
    """Return a function that times FedDualAvg for LASSO in NumPy, one client after another."""
    x, y = engine.federation.data.train.x, engine.federation.data.train.y

    def run() -> float:
        begun = time.perf_counter()
        z, bias, elapsed = np.zeros(x.shape[1], np.float32), np.zeros((), np.float32), 0.0
        drawn = engine.federation.schedule.draw_rounds(0, rounds).rows
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


def one_round() -> Iterator[str]:
    """Measure a round of lasso with all 64 clients, minibatches of 10, one epoch."""
    rounds = 50
    engine, points = make_engine("clients_per_round=null", f"rounds={rounds}", f"eval_every={rounds}")
    rate, strength = points[0]["algo"]["client_lr"], points[0]["reg"]["strength"]
    found = minimum_times(
        7,
        fcorun=engine_seconds(engine, points),
        jax=hand_written(engine, rate, strength, rounds),
        numpy=numpy_loop(engine, rate, strength, rounds),
    )
    labels = {"fcorun": "fcorun", "jax": "hand-written vmapped JAX", "numpy": "NumPy loop over clients"}
    for name, what in labels.items():
        ratio = found[name] / found["fcorun"]
        yield f"| a round of `lasso`, all 64 clients: {what} | {found[name] / rounds * 1e3:.2f} ms | {ratio:.2f} |"


def grid() -> Iterator[str]:
    """Measure a grid of 49 pairs of rates in one program for each core, and single runs."""
    for clients in ("10", "null"):
        rounds = 50
        engine, points = make_engine(f"clients_per_round={clients}", f"rounds={rounds}", f"eval_every={rounds}")
        many = with_rates(points[0])
        single = make_engine(f"clients_per_round={clients}", f"rounds={rounds}", f"eval_every={rounds}")[0]
        found = minimum_times(5, single=engine_seconds(single, points), grid=in_threads(engine, many))
        each = found["grid"] / len(many)
        who = "10 of 64 clients" if clients == "10" else "all 64 clients"
        yield f"| a round, {who}: single run | {found['single'] / rounds * 1e3:.2f} ms | {found['single'] / each:.1f} |"
        yield f"| a round, {who}: a point of a 49-point grid | {each / rounds * 1e3:.3f} ms | 1 |"


def fedgd() -> Iterator[str]:
    """Measure 34,000 rounds of FedGD with 25 clients in float64, as for figure 3 of the FedSplit paper."""
    for data, rows in (("least_squares", 5000), ("least_squares_conditioned", 200)):
        rounds = 34_000
        fixed = ("algo=fedgd", f"data={data}", "objective.intercept=false", "algo.step=1e-3")
        experiment = prepare(compose([*fixed, f"rounds={rounds}", f"eval_every={rounds}"]))
        loaded = load_data(experiment)
        with jax.enable_x64(True):
            seconds = engine_seconds(build_engine(experiment, loaded), [experiment.numbers()])()
        x = loaded.train.x.reshape(25, rows, -1)
        w, begun = np.zeros(x.shape[2]), time.perf_counter()
        for _ in range(34):
            slopes = [
                own.T @ (own @ w - y) * (2 / rows) for own, y in zip(x, loaded.train.y.reshape(25, -1), strict=True)
            ]
            w -= 1e-3 * np.mean(slopes, axis=0)
        loop = 1000 * (time.perf_counter() - begun)
        what = f"34,000 rounds of FedGD, 25 clients with {rows} x 100"
        yield f"| {what}: fcorun | {seconds:.1f} s | 1.0 |"
        yield f"| {what}: NumPy on the rows (34 rounds, times 1,000) | {loop:.0f} s | {loop / seconds:.0f} |"
