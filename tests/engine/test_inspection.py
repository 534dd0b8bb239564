"""Inspection of the traced algorithm of a user: lost and uncounted work, foreign random numbers."""

import pytest
from helpers import engine_of, small

from fcorun.engine.inspection import inspect_local

OWN = """
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.algorithms import FedAvg, Traits


@dataclass(frozen=True)
class Own(FedAvg):
    traits = Traits(psi_sides=())

    def local(self, problem, server, client, data):
        def step(w, batch):
            g = problem.gradient(w, batch)
            return BODY

        return data.steps(step, server) - server, client
"""
CASES = {
    "w - self.client_lr * g": "",
    "jax.tree.map(lambda v: v + jax.random.normal(data.key, v.shape), w - self.client_lr * g)": "",
    "jax.lax.cond(g.norm() > 1, lambda: w - problem.gradient(2 * w, batch), lambda: w - g)": "",
    "jax.tree.map(lambda a, b: jnp.where(g.norm() > 1, a, b), problem.gradient(2 * w, batch), g)":
        "both sides of a where are all computed, and all count, own.py line 18; take lax.cond",
    "jax.tree.map(lambda v: v + jax.random.normal(jax.random.key(0), v.shape), w - g)":
        "not drawn from data.key are the same for each client and in each round, own.py line 18",
    "w - np.random.default_rng().uniform() * g": "from Python; draw from data.key",
}  # fmt: skip


@pytest.mark.parametrize("body", CASES)
def test_what_is_doubtful_is_named(body, user_module):
    user_module("own", OWN.replace("BODY", body))
    config = small("algo=fedavg")
    config["algo"] |= {"class": "own.Own", "name": "own"}
    found = inspect_local(engine_of(config).federation)
    assert [CASES[body] in sentence for sentence in found] == [True] * bool(CASES[body])
    assert all(sentence.startswith("local() of Own") for sentence in found)


def test_a_gradient_that_nothing_counts_is_named(user_module):
    formula = "w - self.client_lr * jax.grad(lambda v: jnp.sum(problem.predict(v, batch.x) ** 2))(w)"
    text = OWN.replace("g = problem.gradient(w, batch)", "pass").replace("BODY", formula)
    user_module("own", text)
    config = small("algo=fedavg")
    config["algo"] |= {"class": "own.Own", "name": "own"}
    (sentence,) = inspect_local(engine_of(config).federation)
    assert "no gradient of it is counted" in sentence


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["feddualavg", "ditto", "pfedme", "mixture", "local"])
def test_nothing_is_doubtful_of_ours(algo):
    assert inspect_local(engine_of(small(f"algo={algo}", "clients_per_round=null")).federation) == []
