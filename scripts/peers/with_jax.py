"""No framework: a round written by hand in JAX for this problem alone, with a ``vmap`` over the clients of a round.

Modifications:
- Ten rounds are a compiled ``scan``. After it the objective is computed on all training rows, as fcorun does, and read.
- XLA computes the products of a step on one core. The clients are not divided between cores.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from task import EVAL_EVERY, Task, load_task


def write_program(task: Task) -> tuple[Callable, Callable]:
    """Return the compiled functions (state, rows) -> state, of as many rounds as rows, and state -> F + psi."""
    x, y, rate = jnp.asarray(task.x), jnp.asarray(task.y), task.client_lr

    def model(weights, elapsed):
        limit = elapsed * task.strength
        return jnp.sign(weights) * jnp.maximum(jnp.abs(weights) - limit, 0) if task.dual else weights

    def step(state, rows):
        weights, bias, elapsed = state
        mask = (rows >= 0).astype(jnp.float32)
        batch = x[jnp.maximum(rows, 0)]
        slope = 2 * (batch @ model(weights, elapsed) + bias - y[jnp.maximum(rows, 0)]) * mask / mask.sum()
        weights, bias, elapsed = weights - rate * (slope @ batch), bias - rate * slope.sum(), elapsed + rate
        if not task.dual:
            weights = weights - rate * task.strength * jnp.sign(weights)
        return (weights, bias, elapsed), None

    def one_round(state, rows):
        ends = jax.vmap(lambda own: jax.lax.scan(step, state, own)[0])(rows)
        return tuple(end.mean(axis=0) for end in ends), None

    def evaluate(state):
        weights, bias, elapsed = state
        w = model(weights, elapsed)
        return jnp.mean((x @ w + bias - y) ** 2) + task.strength * jnp.abs(w).sum()

    return jax.jit(lambda state, rows: jax.lax.scan(one_round, state, rows)[0]), jax.jit(evaluate)


if __name__ == "__main__":
    task, out = load_task()
    advance, evaluate = write_program(task)
    state = tuple(jnp.asarray(part) for part in task.start())
    for first in range(0, task.rounds, EVAL_EVERY):
        state = advance(state, task.rows[first : first + EVAL_EVERY])
        float(evaluate(state))
        task.record_time(first + EVAL_EVERY)
    task.save_result(*task.solution([jax.device_get(part) for part in state]), out)
