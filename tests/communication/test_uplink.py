"""Uplinks between a client and the mean: memory, keys and bytes."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from helpers import engine_of, flat, small_for

from fcorun.communication import Identity, Uplink
from fcorun.engine.estimates import estimate_traffic, upload_bytes


class Halving(Uplink):
    """An uplink that sends half of the upload and memory, and keeps the other half for the next round."""

    def init(self, upload):
        return jax.tree.map(lambda shape: jax.numpy.zeros(shape.shape, shape.dtype), upload())

    def send(self, upload, memory, key):
        whole = jax.tree.map(lambda u, m: u + m, upload, memory)
        half = jax.tree.map(lambda v: v / 2, whole)
        return half, half

    def upload_bytes(self, upload, declared_bytes):
        return 7 if declared_bytes == 21 * 4 else declared_bytes


class Noisy(Uplink):
    """An uplink that adds noise, and remembers the key."""

    def init(self, upload):
        return jax.numpy.zeros(2, jax.numpy.uint32)

    def send(self, upload, memory, key):
        noise = jax.random.normal(jax.random.wrap_key_data(key))
        return jax.tree.map(lambda u: u + noise, upload), key


def engine_with(uplink, *overrides, algo="fedavg"):
    engine = engine_of(small_for(algo, "clients_per_round=null", *overrides))
    return replace(engine, federation=replace(engine.federation, uplink=uplink))


def last_snapshot(engine):
    *_, snapshot = engine.run([{}])
    return snapshot


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["fedavg", "feddualavg", "scaffold"])
def test_each_client_keeps_its_memory(algo):
    engine = engine_with(Halving(), "rounds=1", "algo.server_lr=1", algo=algo)
    plain = engine_with(Identity(), "rounds=1", "algo.server_lr=1", algo=algo)
    first = jax.tree.leaves(plain.initial_state([{}])["server"])
    whole, half = (jax.tree.leaves(last_snapshot(e).state["server"]) for e in (plain, engine))
    for start, one, other in zip(first, whole, half, strict=True):
        np.testing.assert_allclose(other - start, (one - start) / 2, rtol=1e-4, atol=1e-6)
    _, memory = last_snapshot(engine).state["clients"]
    assert all(leaf.shape[:2] == (1, 6) for leaf in jax.tree.leaves(memory))
    assert all(np.abs(leaf).sum() > 0 for leaf in jax.tree.leaves(memory))


@pytest.mark.slow
def test_keys_differ_by_client_and_round():
    engine = engine_with(Noisy(), "rounds=2", "eval_every=1")
    keys = np.array([shot.state["clients"][1][0] for shot in engine.run([{}])][1:])
    assert len(np.unique(keys.reshape(-1, 2), axis=0)) == 2 * 6
    np.testing.assert_array_equal(keys, engine.federation.schedule.draw_rounds(0, 2).keys)


@pytest.mark.slow
def test_noise_is_reproducible():
    one, other = (flat({k: v[0] for k, v in last_snapshot(engine_with(Noisy())).solution.items()}) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    plain = flat({k: v[0] for k, v in last_snapshot(engine_with(Identity())).solution.items()})
    assert not np.allclose(one, plain)


@pytest.mark.slow
def test_a_batch_on_a_tree_gives_the_numbers_of_a_single_run():
    engine = engine_with(Halving(), "topology=tree", "rounds=2")
    points = [{"algo": {"client_lr": rate}} for rate in (1e-3, 2e-3)]
    *_, first = engine.run(points[:1])
    alone = first.solution["weights"][0]
    *_, both = engine.run(points)
    np.testing.assert_allclose(both.solution["weights"][0], alone, rtol=1e-4, atol=1e-6)


def test_an_uplink_declares_its_bytes():
    engine = engine_with(Halving(), "rounds=2")
    up = upload_bytes(engine.federation, engine.federation.algorithm)
    assert estimate_traffic(engine.federation, 2, 0).bytes_after(2, up, 0)["bytes_up"] == 2 * 6 * 7
