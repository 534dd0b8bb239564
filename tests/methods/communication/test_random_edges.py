"""Graphs whose edges are drawn anew in each round."""

from itertools import product

import numpy as np
import pytest
from helpers import fails, not_none, ragged, rows_of, run_grid, verify
from quadratics import SIZES, Quadratics, outputs_by_round

from fcorun import run
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import communication
from fcorun.methods.communication import Graph
from fcorun.methods.communication import graph as graphs

P = np.array([3.0, 1.0, 2.0, 5.0])
RING = graphs.link_nodes(graphs.ring_edges(4), P)
SOME = ("topology=graph", "clients_per_round=null", "topology.edge_probability=0.6")
CASE = communication.CommunicationCase("topology", "graph", SOME[1:])
ONE_STEP = ("algo=fedavg", "reg=none", "algo.client_lr=0.05", "algo.server_lr=1", "batch_size=null")


def _drawn(n_rounds, probability=0.6, links=RING, seed=0):
    """Return the links of the rounds of a run."""
    graph = Graph(edge_probability=probability)
    mixing = not_none(graph.draw_links(links, seed, np.arange(n_rounds)))
    return [graph.links_of_round(links, each) for each in mixing]


# ---------------------------------------------------------------- the weights


def test_weights_of_a_round_are_those_of_a_graph_with_its_edges():
    links = graphs.link_nodes(graphs.complete_edges(5), np.array([3.0, 1.0, 2.0, 5.0, 1.0]))
    counts = set()
    for drawn in _drawn(20, links=links):
        matrix = graphs.mixing_matrix(drawn)
        edges = np.argwhere(np.triu(matrix, 1) > 0)
        expected = graphs.link_nodes(edges, links.node_weights)
        np.testing.assert_allclose(matrix, graphs.mixing_matrix(expected), atol=1e-15)
        assert drawn.n_edges == 2 * len(edges)
        counts.add(len(edges))
    assert len(counts) > 3


def test_draws_depend_on_the_seed_and_the_round_alone():
    graph = Graph(edge_probability=0.6)
    first = not_none(graph.draw_links(RING, 0, np.arange(30)))
    np.testing.assert_array_equal(graph.draw_links(RING, 0, np.arange(10, 13)), first[10:13])
    assert (graph.draw_links(RING, 1, np.arange(30)) != first).any()
    np.testing.assert_array_equal(Graph(edge_probability=1.0).draw_links(RING, 0, np.arange(2)), [RING.mixing] * 2)


@pytest.mark.slow
def test_nodes_agree_in_expectation():
    """Rounds keep the mean of the nodes, and their mean matrix is that over all 16 sets of edges, which contracts."""
    edges, expected = graphs.ring_edges(4), np.zeros((4, 4))
    for carries in product((False, True), repeat=4):
        chance = np.prod(np.where(carries, 0.6, 0.4))
        expected += chance * graphs.mixing_matrix(graphs.link_nodes(edges[np.array(carries)], P))
    matrices = np.array([graphs.mixing_matrix(links) for links in _drawn(4000)])
    np.testing.assert_allclose(matrices.mean(axis=0), expected, atol=0.02)
    np.testing.assert_allclose(P @ matrices, np.broadcast_to(P, (4000, 4)), atol=1e-13)
    assert np.sort(np.abs(np.linalg.eigvals(expected)))[-2] < 0.9
    states = np.array([1.0, -1.0, 3.0, 7.0])
    for matrix in matrices[:200]:
        states = matrix @ states
    np.testing.assert_allclose(states, P @ [1.0, -1.0, 3.0, 7.0] / P.sum(), rtol=1e-8)


# ---------------------------------------------------------------- runs


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [SIZES, pytest.param((6,) * 14, marks=pytest.mark.slow)])
def test_probability_one_is_the_fixed_graph_to_the_bit(sizes, tmp_path):
    """Four nodes are mixed by the matrix, and fourteen by their neighbours."""
    config = [*ONE_STEP, *SOME[:2], "rounds=4", "eval_every=2"]
    fixed = run(ragged(tmp_path, *config, sizes=sizes), tmp_path / "fixed")
    drawn = run(ragged(tmp_path, *config, "topology.edge_probability=1", sizes=sizes), tmp_path / "drawn")
    assert rows_of(drawn).equals(rows_of(fixed))
    for name, values in fixed.solution.items():
        np.testing.assert_array_equal(drawn.solution[name], values)


@pytest.mark.slow
def test_a_run_mixes_by_the_edges_of_each_round_and_counts_them(tmp_path):
    config = ragged(tmp_path, *ONE_STEP, *SOME, "rounds=6", "eval_every=1", sizes=SIZES)
    q = Quadratics(config)
    links = _drawn(6, links=graphs.link_nodes(graphs.ring_edges(4), q.p))
    models, expected = np.zeros((4, 7)), []
    for drawn in links:
        steps = np.array([w - 0.05 * (H @ w - c) for H, w, c in zip(q.H, models, q.c, strict=True)])
        models = graphs.mixing_matrix(drawn) @ steps
        expected.append(q.p @ models)
    np.testing.assert_allclose(outputs_by_round(config), expected, atol=1e-12)
    record = run(config, tmp_path / "run")
    sent = np.cumsum([0, *(drawn.n_edges * 7 * 8 for drawn in links)])
    assert record.metrics["bytes_up"].tolist() == sent.tolist()
    assert len(set(np.diff(sent))) > 1
    assert "spectral_gap" not in record.summary


@pytest.mark.slow
@pytest.mark.parametrize("check", communication.TOPOLOGY_CHECKS, ids=lambda check: check.__name__)
def test_random_edges_have_the_properties(check):
    verify(check, CASE)


@pytest.mark.slow
def test_seeds_in_one_batch_have_edges_of_their_own(tmp_path):
    config = ragged(tmp_path, *ONE_STEP, *SOME, "rounds=4", "eval_every=4", sizes=SIZES)
    points = [config, config | {"seed": 1}]
    records = run_grid(points, [tmp_path / "a", tmp_path / "b"])
    for point, record in zip(points, records, strict=True):
        alone = run(point, f"{record.folder}-alone")
        np.testing.assert_allclose(rows_of(record), rows_of(alone), rtol=1e-12)
    sent = [record.metrics["bytes_up"].iloc[-1] for record in records]
    assert sent[0] != sent[1]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("algo", ["nids", "pg_extra"])
def test_methods_for_a_fixed_graph_are_refused(algo, tmp_path):
    with fails(f"algo={algo} needs the same edges in all rounds", "topology.edge_probability"):
        prepare(ragged(tmp_path, f"algo={algo}", *SOME, sizes=SIZES))


def test_compressed_messages_are_refused(tmp_path):
    """Neighbours know the sum of a node's messages, of which none may be missing."""
    with fails("uplink=qsgd", "lets some miss them"):
        prepare(ragged(tmp_path, "algo=fedavg", "uplink=qsgd", *SOME, sizes=SIZES))


@pytest.mark.slow
def test_probabilities_and_graphs_out_of_range_are_refused(tmp_path):
    with fails("topology.edge_probability=0 sends nothing"):
        prepare(ragged(tmp_path, "algo=fedavg", *SOME[:2], "topology.edge_probability=0", sizes=SIZES))
    names = [str(number) for number in range(300)]
    with fails("topology.edge_probability takes up to 65536 weights", "90000"):
        Graph(graph="complete", edge_probability=0.5).connect(names, np.ones(300))
