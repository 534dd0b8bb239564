"""A client's random key, and uploads that say their bytes: of a user's algorithm that rounds what it sends."""

from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import Stop, engine_of, fails, flat, rows_of, small, snapshots

from fcorun import Record, run
from fcorun.experiment.prepare import prepare

ROUNDED = '''
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.algorithms import FedAvg, Traits
from fcorun.config import Count, Positive


@dataclass(frozen=True)
class Rounded(FedAvg):
    """FedAvg whose clients send each number as ``bits`` bits: rounded up or down to multiples of a step by chance, so
    that the mean is right; the step goes with them."""

    bits: Count = 4
    width: Positive = 1.0

    traits = Traits(psi_sides=(), hierarchy="some")

    def local(self, problem, server, client, data):
        upload, client = super().local(problem, server, client, data)
        leaves, form = jax.tree.flatten(upload)
        keys = jax.random.split(data.key, len(leaves))
        return jax.tree.unflatten(form, [self.rounded(v, k) for v, k in zip(leaves, keys)]), client

    def rounded(self, v, key):
        step = 2 * self.width * jnp.max(jnp.abs(v)) / (2**self.bits - 1)
        return step * jnp.floor(v / jnp.where(step > 0, step, 1) + jax.random.uniform(key, v.shape, v.dtype))

    def upload_bytes(self, upload):
        return sum(4 + -(-leaf.size * self.bits // 8) for leaf in jax.tree.leaves(upload))
'''


@pytest.fixture
def rounded(user_module):
    """A function of overrides and of fields that gives a configuration of it."""
    user_module("rounded", ROUNDED)

    def config(*overrides: str, **fields):
        found = small("algo=fedavg", "clients_per_round=null", "batch_size=null", *overrides)
        found["algo"] |= {"class": "rounded.Rounded", "name": "rounded", **fields}
        return found

    return config


def end(config: dict) -> np.ndarray:
    return flat({name: value[0] for name, value in snapshots(config)[-1].solution.items()})


@pytest.mark.slow
def test_a_rounded_upload_is_right_in_the_mean(rounded):
    whole = end(small("algo=fedavg", "clients_per_round=null", "batch_size=null", "rounds=1"))
    config = rounded("rounds=1")
    *_, last = engine_of(config).run([prepare(config).numbers()] * 60, range(60))
    found = np.array([flat({name: value[g] for name, value in last.solution.items()}) for g in range(60)])
    assert len(np.unique(found, axis=0)) == 60
    spread = found.std(axis=0) / np.sqrt(len(found))
    assert (spread > 0).all()
    assert np.abs((found.mean(axis=0) - whole) / spread).max() < 4.5
    assert np.abs(found - whole).max() > 100 * np.abs(whole).max() * np.finfo(np.float32).eps


@pytest.mark.slow
@pytest.mark.parametrize("more", [("topology=tree", "topology.rounds=2"), ()])
def test_keys_are_the_same_however_clients_are_computed(rounded, more):
    """One by one without jit, alone, or in a grid."""
    slow, fast = end(rounded("rounds=2", "debug=true", *more)), end(rounded("rounds=2", *more))
    np.testing.assert_allclose(slow, fast, rtol=1e-4, atol=1e-6)
    config = rounded("rounds=2", *more)
    both = snapshots(config, rounded("rounds=2", *more, "algo.client_lr=1e-4"), engine=engine_of(config))[-1]
    grid = flat({name: value[0] for name, value in both.solution.items()})
    np.testing.assert_allclose(grid, fast, rtol=1e-4, atol=1e-6)


def test_keys_differ_by_client_round_seed_and_name():
    schedule = engine_of(small("clients_per_round=null")).federation.schedule
    keys = np.concatenate([schedule.with_seed(seed).draw_rounds(0, 3).keys.reshape(-1, 2) for seed in (0, 1)])
    assert len(np.unique(keys, axis=0)) == 2 * 3 * 6


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_keys(rounded):
    with pytest.raises(KeyboardInterrupt):
        run(rounded(), "broken", Stop(2))
    assert rows_of(run(rounded(), "broken")).equals(rows_of(run(rounded(), "whole")))


@pytest.mark.slow
def test_the_bytes_that_an_upload_says_stand_in_bytes_up(rounded, monkeypatch):
    each = 4 + 10 + 4 + 1  # weights and bias at 4 bits, and two steps
    record = run(rounded("rounds=4"))
    assert record.metrics["bytes_up"].tolist() == [0, 2 * 6 * each, 4 * 6 * each]
    assert record.metrics["bytes_down"].iloc[-1] == 4 * 6 * 21 * 4
    monkeypatch.setattr("rounded.Rounded.upload_bytes", lambda self, upload: 2.5)
    with fails("upload_bytes", "Rounded", "2.5"):
        run(rounded("rounds=3"), "wrong")
    assert Record(Path("wrong")).status["status"] == "failed"


@pytest.mark.slow
def test_who_does_not_ask_for_a_key_pays_nothing():
    engine = engine_of(small("algo=fedavg"))
    state, numbers = engine.initial_state([{}]), engine.federation.stack_numbers([{}])
    given = (numbers, state, engine.federation.arrays[0], engine.federation.schedule.draw_rounds(0, 2), np.int32(0))
    assert "threefry" not in jax.jit(engine.federation.advance).lower(*given).as_text()
