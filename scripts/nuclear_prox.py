"""Time the prox of the nuclear norm by several methods: python scripts/nuclear_prox.py

3,136 float32 matrices of 32 x 32, half of their singular values above the threshold: by one program in one batch, and
as fcorun runs them, by a program a core, each scanning over batches of 28. Every method takes its turn and the best of
several turns counts; the processor's time is of all cores together. LAPACK in batches is timed in one program only, for
jaxlib 0.10 may hang when two run it side by side.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap

from fcorun.regularizers.nuclear import threshold_singular_values
from fcorun.system.machine import available_cores

N, COUNT, WIDTH, T = 32, 3136, 28, 3.0


def from_eigenvectors(z, values, vectors):
    s = jnp.sqrt(jnp.maximum(values, 0))
    return (z @ vectors * jnp.where(s > T, 1 - T / s, 0)) @ vectors.T


def from_svd(u, s, vt):
    return u * jnp.maximum(s - T, 0) @ vt


def refined(z, steps):
    """As if z itself held the eigenvectors of the step before: what Ogita and Aishima's refinement costs."""
    gram, x = z.T @ z, z
    for _ in range(steps):
        r, s = jnp.eye(N) - x.T @ x, x.T @ (gram @ x)
        values = jnp.diag(s) / (1 - jnp.diag(r))
        apart = values[None, :] - values[:, None]
        near = jnp.abs(apart) < 1e-3 * jnp.abs(values).max()
        x = x + x @ jnp.where(near, r / 2, (s + values * r) / jnp.where(near, 1, apart))
    return from_eigenvectors(z, values, x)


svd_alone = sequential_vmap(lambda z: tuple(jnp.linalg.svd(z)))
eigh_alone = sequential_vmap(lambda g: tuple(jnp.linalg.eigh(g)))
METHODS = {
    "LAPACK SVD, batch": lambda z: from_svd(*jnp.linalg.svd(z)),
    "LAPACK SVD, one at a time": lambda z: from_svd(*svd_alone(z)),
    "eigh of Gram, batch": lambda z: from_eigenvectors(z, *jnp.linalg.eigh(z.T @ z)),
    "eigh of Gram, one at a time": lambda z: from_eigenvectors(z, *eigh_alone(z.T @ z)),
    "polar and sign iterations (fcorun)": lambda z: threshold_singular_values(z, T),
    "refined eigenvectors, 1 step": lambda z: refined(z, 1),
    "refined eigenvectors, 2 steps": lambda z: refined(z, 2),
    "one matrix product": lambda z: z @ z,
}


def matrices():
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((COUNT, N, N)))[0] for _ in range(2))
    above, below = T + rng.uniform(0.2, 1.2, (COUNT, N // 2)), T * rng.uniform(0.05, 1, (COUNT, N // 2))
    return (left * np.concatenate([above, below], 1)[:, None] @ right).astype(np.float32)


def main(turns=7):
    z, count, calls = matrices(), available_cores(), {}
    pool = ThreadPoolExecutor(count)
    parts = z[: len(z) // (count * WIDTH) * count * WIDTH].reshape(count, -1, WIDTH, N, N)
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
    print(f"ms for {COUNT} matrices     one program: wall, cpu     {count} programs in batches of {WIDTH}: wall, cpu")
    for name in METHODS:
        print(f"{name:36}", *(f"{1e3 * v:10.1f}" for how in ("one", "each") for v in best.get((name, how), ())))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
