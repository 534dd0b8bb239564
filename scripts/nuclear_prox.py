"""Measure the prox of the nuclear norm by several methods: python scripts/nuclear_prox.py

The input is 3,136 float32 matrices of 32 x 32, or fewer that the cores share equally, with half of their singular
values above the threshold. One measurement is one program with one batch; the other, as fcorun runs, is one program for
each core, which scans over batches of 28. The methods alternate, and the minimum counts. Processor time is the sum over
all cores. Batched LAPACK is measured in one program only, since jaxlib 0.10 may hang in two programs at once.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap

from fcorun.base.system.machine import available_cores
from fcorun.methods.regularizers.nuclear import threshold_singular_values

N, COUNT, WIDTH, T = 32, 3136, 28, 3.0


def prox_from_eigenvectors(z, values, vectors):
    s = jnp.sqrt(jnp.maximum(values, 0))
    return (z @ vectors * jnp.where(s > T, 1 - T / s, 0)) @ vectors.T


def prox_from_svd(u, s, vt):
    return u * jnp.maximum(s - T, 0) @ vt


def refine_eigenvectors(z, steps):
    """Refine z as if it held approximate eigenvectors, which measures the cost of Ogita and Aishima's method."""
    gram = z.T @ z
    x = z
    for _ in range(steps):
        r = jnp.eye(N) - x.T @ x
        s = x.T @ (gram @ x)
        values = jnp.diag(s) / (1 - jnp.diag(r))
        difference = values[None, :] - values[:, None]
        close = jnp.abs(difference) < 1e-3 * jnp.abs(values).max()
        x = x + x @ jnp.where(close, r / 2, (s + values * r) / jnp.where(close, 1, difference))
    return prox_from_eigenvectors(z, values, x)


sequential_svd = sequential_vmap(lambda z: tuple(jnp.linalg.svd(z)))
sequential_eigh = sequential_vmap(lambda g: tuple(jnp.linalg.eigh(g)))
METHODS = {
    "LAPACK SVD, batch": lambda z: prox_from_svd(*jnp.linalg.svd(z)),
    "LAPACK SVD, one at a time": lambda z: prox_from_svd(*sequential_svd(z)),
    "eigh of Gram, batch": lambda z: prox_from_eigenvectors(z, *jnp.linalg.eigh(z.T @ z)),
    "eigh of Gram, one at a time": lambda z: prox_from_eigenvectors(z, *sequential_eigh(z.T @ z)),
    "polar and sign iterations (fcorun)": lambda z: threshold_singular_values(z, T),
    "refined eigenvectors, 1 step": lambda z: refine_eigenvectors(z, 1),
    "refined eigenvectors, 2 steps": lambda z: refine_eigenvectors(z, 2),
    "one matrix product": lambda z: z @ z,
}


def make_matrices(count):
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((count, N, N)))[0] for _ in range(2))
    above = T + rng.uniform(0.2, 1.2, (count, N // 2))
    below = T * rng.uniform(0.05, 1, (count, N // 2))
    return (left * np.concatenate([above, below], 1)[:, None] @ right).astype(np.float32)


def main(turns=7):
    count = available_cores()
    z = make_matrices(max(COUNT // (count * WIDTH), 1) * count * WIDTH)
    calls = {}
    pool = ThreadPoolExecutor(count)
    parts = z.reshape(count, -1, WIDTH, N, N)
    for name, method in METHODS.items():
        one = jax.jit(jax.vmap(method)).lower(z).compile()
        calls[name, "one"] = lambda one=one: one(z).block_until_ready()
        if not name.endswith("batch"):
            each = jax.jit(lambda part, f=method: jax.lax.map(jax.vmap(f), part)).lower(parts[0]).compile()
            calls[name, "each"] = lambda each=each: list(pool.map(lambda p: each(p).block_until_ready(), parts))
    best = dict.fromkeys(calls, (np.inf, np.inf))
    for _ in range(turns):
        for key, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            best[key] = tuple(np.minimum(best[key], (time.perf_counter() - wall, time.process_time() - cpu)))
    print(f"ms for {len(z)} matrices     one program: wall, cpu     {count} programs in batches of {WIDTH}: wall, cpu")
    for name in METHODS:
        print(f"{name:36}", *(f"{1e3 * v:10.1f}" for how in ("one", "each") for v in best.get((name, how), ())))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
