# pyright: reportMissingImports=false
"""FedJAX: an algorithm built by ``for_each_client`` and FedJAX's tree functions.

Modifications:
- ``fedjax.algorithms.fed_avg`` supports neither the prox nor the subgradient of psi. Therefore both methods are written
  as FedJAX's guide to custom algorithms describes, with ``client_init``, ``client_step`` and ``client_final``.
- The task's cohorts and minibatches replace ``UniformGetClientSampler`` and ``shuffle_repeat_batch``.
- The backend is the default, ``jit``, with a program for each step. ``pmap`` would need a device for each client.
- JAX and Haiku are the versions of July 2023, the date of FedJAX's last release.
"""

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from task import load_task

task, out = load_task()
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
    task.record_time()
task.save_result(*task.solution([np.asarray(state[name]) for name in ("weights", "bias", "elapsed")]), out)
