# pyright: reportMissingImports=false
"""FedJAX: an algorithm of its own kind, by ``for_each_client`` and its tree functions.

Modifications:
- ``fedjax.algorithms.fed_avg`` knows no prox and no subgradient of psi, so both methods are written as its
  guide to own algorithms says, with ``client_init``, ``client_step`` and ``client_final``.
- Cohorts and minibatches are those of the task, in place of ``UniformGetClientSampler`` and ``shuffle_repeat_batch``.
- The backend is its default, ``jit``, a program for each step; ``pmap`` has a client a device, and a CPU is one.
- JAX and Haiku are those of July 2023, when the last release of FedJAX was made.
"""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from task import given

task, out = given()
rate, strength = task.client_lr, task.strength


def client_init(shared, client_input):
    return shared


def client_step(state, batch):
    weights, bias, elapsed = state["weights"], state["bias"], state["elapsed"]
    point = jnp.sign(weights) * jnp.maximum(jnp.abs(weights) - elapsed * strength, 0) if task.dual else weights
    slope = 2 * (batch["x"] @ point + bias - batch["y"]) / len(batch["y"])
    weights = weights - rate * (slope @ batch["x"])
    if not task.dual:
        weights = weights - rate * strength * jnp.sign(weights)
    return {"weights": weights, "bias": bias - rate * slope.sum(), "elapsed": elapsed + rate}


def client_final(shared, state):
    return state


for_each_client = fedjax.for_each_client(client_init, client_step, client_final)
sizes = np.diff(task.offsets)
state = dict(zip(("weights", "bias", "elapsed"), map(jnp.asarray, task.start()), strict=True))
for number, cohort in enumerate(task.cohort):
    clients = [
        (client, [{"x": task.x[rows], "y": task.y[rows]} for rows in task.batches(number, client)], ())
        for client in cohort
    ]
    ends = for_each_client(state, clients)
    state = fedjax.tree_util.tree_mean((end, float(sizes[client])) for client, end in ends)
    jax.block_until_ready(state)
    task.mark()
task.leave(*task.solution([np.asarray(state[name]) for name in ("weights", "bias", "elapsed")]), out)
