"""Channels: memories at both sides, random keys, bytes and refusals of a user's channel; the key of the server."""

from pathlib import Path

import jax
import numpy as np
import partial_channel
import pytest
from helpers import engine_of, fails, flat, identity, rows_of, small, small_for, verify, write_choice

from fcorun import compose, run
from fcorun.engine.engine import depends_on_seed
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import communication
from fcorun.methods.communication import Identity

CHANNEL = Path(partial_channel.__file__).read_text()
ALL = "clients_per_round=null"
EXACT = ("precision=float64", "rounds=3", "eval_every=1", "batch_size=null", ALL)


@pytest.fixture
def user(user_module, tmp_path):
    """The folder of a user's channel, ``uplink=partial``, and algorithms."""
    user_module("partial", CHANNEL)
    write_choice(tmp_path / "conf", "uplink", "partial", "class: partial.Partial\npart: 0.5\nnoise: 0.1")
    for name, kind in {"noisy": "NoisyServer", "local_key": "ReadsInLocal"}.items():
        write_choice(tmp_path / "conf", "algo", name, f"class: noisy_server.{kind}\nclient_lr: 0.01\nserver_lr: 1.0")
    with use_config_dir(tmp_path / "conf"):
        yield tmp_path


def last_snapshot(config):
    *_, snapshot = engine_of(config).run([prepare(config).numbers()])
    return snapshot


# ---------------------------------------------------------------- the identity channel


def test_identity_has_its_properties():
    """The properties of runs are those of every algorithm, which all run on this channel."""
    communication.check_channel_contract(communication.CommunicationCase("uplink", "identity"))


def test_the_default_is_no_part_of_an_identity():
    config = small("algo=fedavg")
    assert config["uplink"]["name"] == "identity"
    without = {key: values for key, values in config.items() if key != "uplink"}
    assert prepare(without).identity == prepare(config).identity
    assert prepare(without).label == prepare(config).label


def test_identity_traces_the_program_of_no_channel():
    federation = engine_of(small_for("feddualavg", ALL)).federation
    assert isinstance(federation.uplink, Identity)
    assert federation.draw_rounds(0, 0, 1).server_keys is None
    state = federation.shape_of(federation.initial_state, federation.stack_numbers([{}]), federation.initial_duals([0]))
    assert not jax.tree.leaves((state["memory"], state["clients"]))


# ---------------------------------------------------------------- a channel of a user


@pytest.mark.slow
@pytest.mark.parametrize("check", communication.CHANNEL_CHECKS, ids=lambda check: check.__name__)
def test_a_channel_of_a_user_has_the_properties(user, check):
    case = communication.CommunicationCase("uplink", "partial")
    verify(check, case)  # several devices are in tests/engine/test_devices.py


@pytest.mark.slow
@pytest.mark.parametrize("tree", [(), ("topology=tree", "topology.edges=2", "topology.rounds=2")], ids=["star", "tree"])
def test_what_clients_owe_and_what_arrived_is_all_that_was_to_be_sent(user, tree):
    """Error feedback telescopes: what arrived and what the clients still owe is the sum of all uploads."""
    with jax.enable_x64(True):
        end = last_snapshot(small("algo=fedavg", "uplink=partial", "uplink.noise=0", "algo.server_lr=1", *EXACT, *tree))
        whole = last_snapshot(small("algo=fedavg", "uplink=partial", "uplink.noise=0", "uplink.part=1", *EXACT, *tree))
    _, owed = end.state["clients"]
    (received,) = end.state["memory"]
    assert all(np.abs(leaf).sum() > 0 for leaf in jax.tree.leaves(owed))
    assert all(np.abs(leaf).max() == 0 for leaf in jax.tree.leaves(whole.state["clients"][1]))
    if not tree:
        moved = end.state["server"]["weights"][0]
        np.testing.assert_allclose(received["weights"][0], moved, atol=1e-12)
    else:
        assert received["weights"].shape[:2] == (1, 2)
        moved = end.state["server"]["weights"][0]
        np.testing.assert_allclose(np.asarray(received["weights"][0]).mean(axis=0), moved, atol=1e-12)


@pytest.mark.slow
def test_keys_differ_by_round_edge_and_seed(user):
    def received(*overrides):
        config = small("algo=fedavg", "algo.client_lr=1e-30", "uplink=partial", *EXACT, *overrides)
        with jax.enable_x64(True):
            shots = engine_of(config).run([prepare(config).numbers()])
            sums = np.array([np.asarray(shot.state["memory"][0]["weights"][0]) for shot in shots])
        return np.diff(sums, axis=0)

    noise = received()
    assert len(np.unique(noise.round(12))) == noise.size
    assert np.abs(noise.std() - 0.1) < 0.03
    assert not np.intersect1d(noise.round(12), received("seed=1").round(12)).size
    edges = received("topology=tree", "topology.edges=2", "topology.rounds=2")
    assert len(np.unique(edges.round(12))) == edges.size


@pytest.mark.slow
def test_edges_without_clients_keep_their_memory(user):
    tree = ("topology=tree", "topology.map=[0,0,0,1,1,1]", "clients_per_round=1", "rounds=1", "eval_every=1")
    with jax.enable_x64(True):
        end = last_snapshot(small("algo=fedavg", "uplink=partial", "precision=float64", *tree))
    by_edge = np.abs(end.state["memory"][0]["weights"][0]).sum(axis=1)
    assert (by_edge == 0).sum() == 1


@pytest.mark.slow
def test_a_run_with_a_channel_is_a_record(user):
    config = compose(["algo=fedavg", "data=lasso_16", "uplink=partial", "rounds=2"], user / "conf")
    record = run(config, "one")
    assert record.config["uplink"] == {"name": "partial", "class": "partial.Partial", "part": 0.5, "noise": 0.1}
    plain = run(compose(["algo=fedavg", "data=lasso_16", "rounds=2"]), "plain")
    assert record.metrics["bytes_up"].tolist() == [value // 2 for value in plain.metrics["bytes_up"]]
    assert "uplink=partial" in record.summary["label"]
    assert record.summary["sources"]["uplink"]


@pytest.mark.slow
def test_an_identity_has_the_channel_and_its_code(user, user_module):
    first = identity("algo=fedavg", "uplink=partial")
    assert first != identity("algo=fedavg")
    assert first != identity("algo=fedavg", "uplink=partial", "uplink.part=0.25")
    user_module("partial", CHANNEL + "\n# edited\n")
    assert first != identity("algo=fedavg", "uplink=partial")


@pytest.mark.slow
def test_refusals(user):
    with fails("uplink=partial delays algo=pfedme"):
        prepare(small_for("pfedme", "uplink=partial"))
    with fails("algo=centralized", "leave uplink out"):
        prepare(small("algo=centralized", "uplink=partial"))
    with fails("uplink.part=2", "between 0 and 1"):
        prepare(small("algo=fedavg", "uplink=partial", "uplink.part=2"))
    with fails("frozen=true sends nothing: leave uplink=partial out"):
        prepare(small_for("ditto", "uplink=partial") | {"frozen": True, "start": "somewhere"})


# ---------------------------------------------------------------- the random key of the server


@pytest.mark.slow
@pytest.mark.parametrize("tree", [(), ("topology=tree", "topology.edges=2", "topology.rounds=2")], ids=["star", "tree"])
def test_a_server_draws_from_its_key(user, tree):
    config = small("algo=noisy", "rounds=2", "eval_every=1", *tree)
    one, again, other = run(config, "one"), run(config, "again"), run(config | {"seed": 1}, "other")
    np.testing.assert_array_equal(rows_of(one), rows_of(again))
    assert not np.isclose(one.metrics["objective"], other.metrics["objective"]).any()
    engine = engine_of(config)
    assert depends_on_seed(engine.federation)
    assert depends_on_seed(engine_of(small("algo=noisy", "batch_size=null", ALL)).federation)
    points, seeds = [prepare(config).numbers()] * 2, [0, 1]
    *_, batch = engine.run(points, seeds)
    for g, record in enumerate((one, other)):
        solution = flat({name: value[g] for name, value in batch.solution.items()})
        np.testing.assert_allclose(solution, flat(dict(record.solution)), rtol=1e-4, atol=1e-5)


def test_the_key_of_the_server_in_local_is_refused(user):
    with fails("problem.key", "data.key"):
        _ = engine_of(small("algo=local_key")).federation.shapes
