"""Two exchanges in a round: their order, means, keys and bytes, on stars and trees."""

import anchored
import jax
import numpy as np
import partial_channel
import pytest
from helpers import engine_of, fails, ragged, small, small_for, snapshots
from quadratics import SIZES, Quadratics, outputs_by_round

from fcorun import run
from fcorun.engine.engine import message_bytes
from fcorun.experiment.prepare import prepare
from fcorun.methods.algorithms import DANE

STEPS = ("local_epochs=null", "local_steps=3")
TREE = ("topology=tree", "topology.map=[0,1,1,0]", "topology.rounds=2")


def anchored_config(folder, *overrides, **fields):
    """Return a configuration of ``Anchored`` on a ragged table."""
    config = ragged(folder, "algo=fedavg", "reg=none", "rounds=3", *STEPS, *overrides, sizes=SIZES)
    config["algo"] = {"name": "anchored", "class": f"{anchored.__name__}.Anchored", **fields}
    return config


def anchored_box(q, members, w, rounds):
    """Return the point after rounds of some clients."""
    p = q.p[members] / q.p[members].sum()
    for _ in range(rounds):
        gradients = np.array([q.H[m] @ w - q.c[m] for m in members])
        ends = []
        for m, anchor in zip(members, gradients, strict=True):
            u = w
            for _ in range(3):
                u = u - 0.03 * (q.H[m] @ u - q.c[m] - anchor + p @ gradients)
            ends.append(u)
        w = p @ np.array(ends)
    return w


@pytest.mark.slow
def test_clients_see_the_mean_of_the_first_exchange_in_the_second(tmp_path):
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    expected = [anchored_box(q, [0, 1, 2, 3], np.zeros(7), rounds) for rounds in (1, 2, 3)]
    np.testing.assert_allclose(outputs_by_round(anchored_config(tmp_path)), expected, atol=1e-12)


@pytest.mark.slow
def test_edges_make_both_exchanges_with_their_clients(tmp_path):
    q, w, expected = Quadratics(ragged(tmp_path, sizes=SIZES)), np.zeros(7), []
    for _ in range(3):
        w = sum(q.p[members].sum() * anchored_box(q, members, w, 2) for members in ([0, 3], [1, 2]))
        expected.append(w)
    np.testing.assert_allclose(outputs_by_round(anchored_config(tmp_path, *TREE)), expected, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), TREE], ids=["star", "tree"])
def test_a_cohort_in_chunks_or_without_a_trace_gives_the_same_numbers(more, tmp_path):
    overrides = ("clients_per_round=3", "batch_size=5", *more)
    whole, *others = (
        outputs_by_round(anchored_config(tmp_path, *overrides, option, noise=0.1))
        for option in ("clients_at_once=100", "clients_at_once=2", "debug=true")
    )
    for other in others:
        np.testing.assert_allclose(other, whole, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_both_exchanges_count(tmp_path):
    size, clients = 7 * 8, 4
    record = run(anchored_config(tmp_path), "star")
    assert record.metrics["bytes_up"].tolist() == [r * clients * 2 * size for r in range(4)]
    assert record.metrics["bytes_down"].tolist() == [r * clients * 3 * size for r in range(4)]  # w; w and the mean
    assert record.metrics["grad_evals"].tolist() == [r * 5 * sum(SIZES) for r in range(4)]
    tree = run(anchored_config(tmp_path, *TREE), "tree").metrics.iloc[-1]
    assert [tree[f"{level}bytes_{way}"] for level in ("", "edge_") for way in ("up", "down")] == [
        *(3 * 2 * clients * 2 * size, 3 * 2 * clients * 3 * size, 3 * 2 * 2 * size, 3 * 2 * 2 * size),
    ]


@pytest.mark.slow
def test_keys_of_the_exchanges_differ(tmp_path):
    """With a tiny rate, the points and the mean gradients move by their noise alone."""
    config = anchored_config(tmp_path, "rounds=1", client_lr=1e-30, noise=1.0)
    end = snapshots(config)[-1].state["server"]
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    of_first = np.asarray(end["gradient"]["weights"])[0] - (-(q.p @ q.c))[:-1]
    of_second = np.asarray(end["w"]["weights"])[0]
    assert np.abs(of_first).max() > 0.01
    assert np.abs(of_first - of_second).max() > 0.01


@pytest.mark.slow
def test_a_channel_has_memories_of_each_exchange(tmp_path):
    config = anchored_config(tmp_path, "precision=float64") | {
        "uplink": {"name": "partial", "class": f"{partial_channel.__name__}.Partial", "noise": 0.0}
    }
    end = snapshots(config)[-1]
    with jax.enable_x64(True):
        first, second = (np.asarray(memory["weights"][0]) for memory in end.state["memory"])
        np.testing.assert_allclose(second, np.asarray(end.state["server"]["w"]["weights"])[0], atol=1e-12)
    assert np.abs(first - second).max() > 0.01


def test_one_client_of_edsl_communicates_in_the_second_exchange():
    def sizes(name):
        federation = engine_of(small_for(name, "clients_per_round=null")).federation
        return message_bytes(federation, federation.algorithm, federation.uplink)

    size = 4 * 21
    edsl, dane = sizes("edsl"), sizes("dane")
    assert (edsl.bytes_up(6), edsl.bytes_down(6)) == (7 * size, 7 * size)
    assert (dane.bytes_up(6), dane.bytes_down(6)) == (12 * size, 12 * size)


def test_no_more_clients_than_the_cohort_communicate_in_the_second_exchange(monkeypatch):
    federation = engine_of(small_for("dane", "clients_per_round=null")).federation
    for count in (7, -1, 2.5):
        monkeypatch.setattr(DANE, "count_local_clients", lambda self, cohort_size, count=count: count)
        with fails("count_local_clients(6) of DANE", f"returned {count}"):
            message_bytes(federation, federation.algorithm, federation.uplink)


@pytest.mark.slow
def test_refusals(tmp_path):
    with fails("algo.client=6 must be less than the number of clients, 6"):
        engine_of(small_for("edsl", "clients_per_round=null", "algo.client=6"))
    with fails("algo=dane", "all clients"):
        engine_of(small("algo=dane", "clients_per_round=3"))
    with fails("algo=dane knows no edges"):
        prepare(small("algo=dane", "clients_per_round=null", "topology=tree"))
    with fails("algo=dane needs bounds on the curvature", "objective=poisson"):
        prepare(small("algo=dane", "clients_per_round=null", "objective=poisson"))


def test_a_wrong_function_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(DANE, "first_server", lambda self, problem, server, mean: mean)
    with fails("first_server() of DANE: the server's new state must be like that of init()"):
        _ = engine_of(small_for("dane", "clients_per_round=null")).federation.shapes
