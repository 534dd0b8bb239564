"""Downlinks: the bytes of broadcasts, the difference to what clients know, and runs with each of them."""

import itertools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    choice_names,
    engine_of,
    fails,
    flat,
    grid,
    ragged,
    run_grid,
    small,
    small_for,
    snapshots,
    traits_of,
    verify,
)
from quadratics import SIZES, Quadratics, outputs_by_round

from fcorun import run
from fcorun.engine.engine import counted_broadcast_bytes, message_bytes
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import communication
from fcorun.interface.checks.algorithms import AlgorithmCase, check_reaches_optimum, check_resuming
from fcorun.methods.communication import Identity, SparseBroadcast, TopK

DOWNLINKS = sorted(set(choice_names("downlink")) - {"identity"})
ALL = "clients_per_round=null"
KEY = jax.random.key(0)


def engine_with(*overrides):
    config = small_for("fedmid", ALL, *overrides)
    return engine_of(config), prepare(config).numbers()


def sizes_with(*overrides):
    federation = engine_with(*overrides)[0].federation
    return message_bytes(federation, federation.algorithm, federation.uplink)


@pytest.mark.slow
@pytest.mark.parametrize("check", communication.CHANNEL_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", DOWNLINKS)
def test_every_downlink_has_the_properties(name, check):
    case = communication.CommunicationCase("downlink", name)
    verify(check, case)


@pytest.mark.parametrize("name", ["topk", "sparse"])
def test_a_downlink_keeps_shapes(name):
    communication.check_channel_contract(communication.CommunicationCase("downlink", name))


# ---------------------------------------------------------------- bytes


@pytest.mark.slow
def test_the_bytes_of_a_broadcast_by_hand():
    """FedMiD sends the weights and a bias, a number of 4 bytes, which is not compressed."""
    (plain,) = sizes_with().broadcasts
    weights = plain - 4
    assert weights % 4 == 0
    k = weights // 4
    assert sizes_with("downlink=float16").broadcasts == (2 * k + 4,)
    assert sizes_with("downlink=topk", "downlink.fraction=0.5").broadcasts == (8 * round(0.5 * k) + 4,)
    assert sizes_with("downlink=randk", "downlink.fraction=0.5").broadcasts == (4 * round(0.5 * k) + 4,)
    assert sizes_with("downlink=topk").uploads == sizes_with().uploads


@pytest.mark.slow
def test_nonzeros_are_counted_by_hand():
    channel = SparseBroadcast()
    mostly_zero, full = jnp.zeros(100).at[jnp.array([3, 50])].set(1.0), jnp.ones(100)
    message = {"weights": mostly_zero, "dual": full, "elapsed": jnp.ones(())}
    assert channel.upload_bytes(message, 4 * 201) == 4
    memory = channel.client_memory(message)
    for _ in range(3):
        received, memory = jax.jit(channel.send)(message, memory, KEY)
    assert channel.counted_bytes(memory) == 3 * (2 * 8 + 100 * 4)
    np.testing.assert_array_equal(received["weights"], mostly_zero)
    assert channel.counted_bytes(jnp.array([(1 << 30) - 1, 5])) == 6 * (1 << 30) - 1
    _, after = channel.send(message, jnp.array([(1 << 30) - 1, 5], jnp.int32), KEY)
    assert channel.counted_bytes(after) == 6 * (1 << 30) - 1 + 416


@pytest.mark.slow
def test_nonzeros_give_the_numbers_of_the_identity_and_the_bytes_of_each_round(tmp_path):
    options = ("algo=fedmid_osp", "reg=l1", "reg.strength=1.5", "rounds=6", "eval_every=1", "local_epochs=1")
    sizes = (9, 14, 11)
    plain, sparse = (
        run(ragged(tmp_path, *options, f"downlink={name}", sizes=sizes), tmp_path / name)
        for name in ("identity", "sparse")
    )
    for name, value in plain.solution.items():
        np.testing.assert_array_equal(sparse.solution[name], value)
    n_nonzero = [
        int((np.abs(np.asarray(s.solution["weights"][0])) > 0).sum())
        for s in snapshots(ragged(tmp_path, *options, sizes=sizes))
    ]
    k, itemsize, clients = len(flat(plain.solution)) - 1, np.asarray(plain.solution["weights"]).dtype.itemsize, 3
    sent = [clients * (min((4 + itemsize) * n, itemsize * k) + itemsize) for n in n_nonzero[:-1]]
    assert sparse.metrics["bytes_down"].tolist() == np.cumsum([0, *sent]).tolist()
    assert sparse.metrics["bytes_down"].iloc[-1] < plain.metrics["bytes_down"].iloc[-1]
    assert sparse.metrics["bytes_up"].tolist() == plain.metrics["bytes_up"].tolist()


@pytest.mark.slow
def test_nonzeros_are_counted_for_each_run_of_a_grid(tmp_path):
    base = ragged(tmp_path, "algo=fedmid_osp", "reg=l1", "rounds=4", "eval_every=2", "downlink=sparse")
    points = grid(base, {"reg.strength": [0.01, 2.0]})
    records = run_grid(points, [tmp_path / "a", tmp_path / "b"])
    alone = run(points[1], tmp_path / "alone")
    assert records[1].metrics["bytes_down"].tolist() == alone.metrics["bytes_down"].tolist()
    assert records[1].metrics["bytes_down"].iloc[-1] < records[0].metrics["bytes_down"].iloc[-1]


# ---------------------------------------------------------------- trees

TREE = ("topology=tree", "topology.map=[0,1,1,1]", "topology.rounds=2")


def test_the_bytes_of_broadcasts_on_a_tree_by_hand(tmp_path):
    """Clients receive three of six weights, with their indices, and a bias; edges receive all seven numbers."""
    config = ragged(tmp_path, "algo=fedavg", ALL, *TREE, "downlink=topk", "downlink.fraction=0.5", sizes=SIZES)
    federation = engine_of(config).federation
    with jax.enable_x64(True):
        sizes = message_bytes(federation, federation.algorithm, federation.uplink)
    round_bytes = federation.topology.round_bytes(np.arange(4), federation.links, sizes)
    assert round_bytes["bytes_down"] == 2 * 4 * (3 * (8 + 4) + 8)
    assert round_bytes["edge_bytes_down"] == round_bytes["edge_bytes_up"] == 2 * 7 * 8
    assert round_bytes["bytes_up"] == 2 * 4 * 7 * 8
    counters_of_edges = np.array([[[10, 0], [100, 0]]])  # of one run: nonzeros to one client, and to three
    with jax.enable_x64(True):
        sparse = replace(federation, downlink=SparseBroadcast())
        assert counted_broadcast_bytes(sparse, {"memory": (None, counters_of_edges)}, 0) == 10 + 3 * 100


@pytest.mark.slow
def test_an_edge_remembers_what_its_clients_know(tmp_path):
    """Clients of an edge get the sum of its messages; each message has the three largest of six differences."""
    steps = ("local_epochs=null", "local_steps=1", "batch_size=null", "algo.client_lr=0.05", "algo.server_lr=0.8")
    config = ragged(
        tmp_path, "algo=fedavg", ALL, *TREE, *steps, "downlink=topk", "downlink.fraction=0.5", "rounds=5", sizes=SIZES
    )
    q, state, known, expected = Quadratics(config), np.zeros(7), np.zeros((2, 6)), []
    for _ in range(5):
        edges = [state, state]
        for _, (edge, members) in itertools.product(range(2), enumerate(([0], [1, 2, 3]))):
            difference = edges[edge][:6] - known[edge]
            largest = np.argsort(-np.abs(difference))[:3]
            known[edge, largest] += difference[largest]
            received = np.append(known[edge], edges[edge][6])
            mean = sum(q.p[m] * -0.05 * (q.H[m] @ received - q.c[m]) for m in members) / q.p[members].sum()
            edges[edge] = edges[edge] + 0.8 * mean
        state = q.p[0] * edges[0] + q.p[1:].sum() * edges[1]
        expected.append(state)
    np.testing.assert_allclose(outputs_by_round(config), expected, atol=1e-12)


@pytest.mark.slow
def test_what_edges_remember_is_resumed_and_is_the_same_without_a_trace():
    case = communication.CommunicationCase("downlink", "qsgd", ("topology=tree", *TREE[2:], "topology.edges=2"))
    communication.check_chunks(case)
    check_resuming(case.run)


# ---------------------------------------------------------------- what clients know


@pytest.mark.slow
def test_what_was_sent_is_what_clients_know():
    """The messages of a downlink telescope: their sum is the last broadcast as clients know it."""
    channel = prepare(small("algo=fedavg", ALL, "downlink=topk", "downlink.fraction=0.2")).downlink
    assert isinstance(channel, TopK)
    with jax.enable_x64(True):
        points = [jnp.asarray(np.random.default_rng(i).normal(size=20)) for i in range(8)]
        memory: Any = channel.client_memory(points[0])
        total = 0
        for point in points:
            message = channel.compress(point - memory[0], KEY)
            total += message
            known, memory = channel.send(point, memory, KEY)
            assert int((message != 0).sum()) == 4
            np.testing.assert_allclose(known, total, atol=1e-12)
            np.testing.assert_allclose(memory[0], known, atol=0)


def test_identity_traces_the_program_without_a_downlink():
    engine, numbers = engine_with()
    federation = engine.federation
    assert isinstance(federation.downlink, Identity)
    assert federation.draw_rounds(0, 0, 1).server_keys is None
    state = federation.shape_of(
        federation.initial_state, federation.stack_numbers([numbers]), federation.initial_duals([0])
    )
    assert not jax.tree.leaves(state["memory"])


def test_the_default_is_no_part_of_an_identity():
    config = small("algo=fedavg")
    without = {key: values for key, values in config.items() if key != "downlink"}
    assert prepare(without).identity == prepare(config).identity
    assert prepare(without).label == prepare(config).label
    other = prepare(small("algo=fedavg", ALL, "downlink=topk"))
    assert other.identity != prepare(small("algo=fedavg", ALL)).identity
    assert "downlink=topk" in other.label
    assert other.config["downlink"]["feedback"] == "ef21"


# ---------------------------------------------------------------- convergence


RATES = {"scaffold": ("algo.client_lr=0.02",)}
RATES |= dict.fromkeys(("diana", "ef21", "fedcef"), ("uplink.fraction=0.5",))
EXACT = [name for name in choice_names("algo") if traits_of(name).exact and not traits_of(name).hessian]
EXACT = [name for name in EXACT if traits_of(name).hierarchy != "graph"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXACT if not traits_of(name).needs_whole_messages])
def test_what_is_exact_stays_exact_with_a_compressed_downlink(name):
    overrides = (*RATES.get(name, ()), "downlink=topk", "downlink.fraction=0.7")
    check_reaches_optimum(AlgorithmCase(name, overrides))


@pytest.mark.slow
def test_a_sum_that_grows_is_not_sent_whole_and_the_run_says_so(tmp_path):
    steps = ("reg=l1", "reg.strength=0.3", "local_epochs=null", "local_steps=1", "rounds=300", "eval_every=300", ALL)
    rates = ("algo.client_lr=auto", "algo.server_lr=1", "downlink=topk", "downlink.fraction=0.7")
    ends = {}
    for algo, downlink in (("feddualavg", True), ("fedmid_osp", True), ("fedmid_osp", False)):
        config = ragged(tmp_path, f"algo={algo}", *steps, *(rates if downlink else rates[:2]), "precision=float64")
        with jax.enable_x64(True):
            ends[algo, downlink] = flat({k: v[0] for k, v in snapshots(config)[-1].solution.items()})
        warns = "sums that grow with the rounds" in prepare(config).warning
        assert warns == (algo == "feddualavg")
    exact = ends["fedmid_osp", False]
    assert np.abs(ends["fedmid_osp", True] - exact).max() < 1e-4
    assert np.abs(ends["feddualavg", True] - exact).max() > 1e-3


@pytest.mark.slow
def test_refusals():
    with fails("downlink=topk needs all clients in every round", "clients_per_round=null"):
        prepare(small("algo=fedavg", "downlink=topk", "clients_per_round=2"))
    prepare(small("algo=fedavg", "downlink=sparse", "clients_per_round=2"))
    with fails("downlink.feedback out"):
        prepare(small("algo=fedavg", ALL, "downlink=topk", "downlink.feedback=none"))
    with fails("topology=graph sends no broadcasts of one server", "downlink=sparse"):
        prepare(small("algo=fedavg", ALL, "downlink=sparse", "topology=graph"))
    with fails("downlink=sparse counts what an edge sends", "clients_per_round=null"):
        prepare(small("algo=fedavg", "clients_per_round=2", "downlink=sparse", "topology=tree"))
    with fails("downlink=topk needs all clients in every round", "clients_per_round=null"):
        prepare(small("algo=fedavg", "clients_per_round=2", "downlink=topk", "topology=tree"))
    with fails("algo=newton needs the server's point", "leave downlink=qsgd out"):
        prepare(small_for("newton", ALL, "downlink=qsgd"))
    with fails("algo=adap encodes what the server sends itself", "leave downlink=sparse out"):
        prepare(small_for("adap", ALL, "downlink=sparse"))
    with fails("algo=gram has one round, in which a compressed broadcast saves nothing"):
        prepare(small_for("gram", ALL, "downlink=sparse"))
    with fails("downlink=topk leaves the domain of mirror=entropy"):
        prepare(small("algo=feddualavg", ALL, "mirror=entropy", "reg=simplex", "downlink=topk", "algo.client_lr=0.1"))
    with fails("algo=centralized", "leave downlink out"):
        prepare(small("algo=centralized", "downlink=sparse"))
    with fails("downlink.fraction=2", "between 0 and 1"):
        prepare(small("algo=fedavg", ALL, "downlink=topk", "downlink.fraction=2"))
