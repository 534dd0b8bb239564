"""Graphs without a server: their weights and metrics, and the methods on them beside plain NumPy."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import engine_of, fails, plugin_class, ragged, rows_of, run_grid, small, snapshots, traits_of, verify
from quadratics import SIZES, Quadratics, outputs_by_round

from fcorun import run
from fcorun.engine.engine import message_bytes
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.optimality_gap import advise
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import communication
from fcorun.interface.checks.algorithms import CLIENT_SIZES
from fcorun.methods.algorithms.gossip import NIDS
from fcorun.methods.communication import graph as graphs

GRAPH = "topology=graph"
GRAPH_CASE = communication.CommunicationCase("topology", "graph", ("clients_per_round=null",))
FULL = ["clients_per_round=null", "batch_size=null", "precision=float64"]
RING_OF_FOUR = np.array([[0, 1], [1, 2], [2, 3], [3, 0]])
UNEQUAL = np.array([3.0, 1.0, 2.0, 5.0, 1.0])
EDGES = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [1, 4], [4, 1], [2, 2]])  # one edge twice, and a loop


# ---------------------------------------------------------------- the weights


def test_metropolis_hastings_weights_keep_the_mean():
    links = graphs.link_nodes(EDGES, UNEQUAL)
    matrix, p = graphs.mixing_matrix(links), UNEQUAL / UNEQUAL.sum()
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-15)
    np.testing.assert_allclose(p @ matrix, p, atol=1e-15)
    assert matrix.min() >= 0
    joined = {(0, 1), (1, 2), (2, 3), (3, 4), (1, 4)}
    off_diagonal = {(i, j) for i in range(5) for j in range(5) if i != j and matrix[i, j] > 0}
    assert off_diagonal == joined | {(j, i) for i, j in joined}
    assert links.n_edges == 10
    equal = graphs.mixing_matrix(graphs.link_nodes(EDGES, np.ones(5)))
    np.testing.assert_array_equal(equal, equal.T)
    assert equal[0, 1] == pytest.approx(1 / 4)  # Metropolis: one over one and the larger of the degrees 1 and 3


@pytest.mark.parametrize("n_nodes", [3, 4, 9, 16])
def test_spectra_of_known_graphs(n_nodes):
    def eigenvalues(edges):
        return graphs.mixing_eigenvalues(graphs.link_nodes(edges, np.ones(n_nodes)))

    waves = 2 * np.cos(2 * np.pi * np.arange(n_nodes) / n_nodes)
    np.testing.assert_allclose(eigenvalues(graphs.ring_edges(n_nodes)), np.sort((1 + waves) / 3), atol=1e-12)
    np.testing.assert_allclose(eigenvalues(graphs.complete_edges(n_nodes)), [0] * (n_nodes - 1) + [1], atol=1e-12)
    if n_nodes in (9, 16):
        side = round(n_nodes**0.5)
        waves = 2 * np.cos(2 * np.pi * np.arange(side) / side)
        expected = np.sort((1 + waves[:, None] + waves).ravel() / 5)
        np.testing.assert_allclose(eigenvalues(graphs.torus_edges(n_nodes)), expected, atol=1e-12)


@pytest.mark.parametrize(("n_nodes", "edges"), [(5, EDGES), (40, graphs.ring_edges(40))])
def test_mixing_is_a_product_with_the_matrix_of_weights(n_nodes, edges):
    """Five nodes are mixed by the matrix, and forty by their neighbours."""
    rng = np.random.default_rng(0)
    links = graphs.link_nodes(edges, rng.uniform(1, 2, n_nodes))
    messages = rng.standard_normal((n_nodes, 3, 2))
    with jax.enable_x64(True):
        mixed = graphs.mix(links, jnp.asarray(messages))
    expected = np.tensordot(graphs.mixing_matrix(links), messages, axes=1)
    np.testing.assert_allclose(mixed, expected, atol=1e-14)


def test_a_part_that_no_path_reaches_is_found():
    assert graphs.find_unreachable(RING_OF_FOUR, 4) is None
    assert graphs.find_unreachable(np.array([[2, 1], [3, 4], [0, 2]]), 5) == 3
    assert graphs.find_unreachable(np.zeros((0, 2), int), 1) is None


# ---------------------------------------------------------------- the methods


class RingOfQuadratics(Quadratics):
    """Clients with quadratic losses on a ring, with the weights of ``link_nodes``."""

    def __init__(self, config):
        super().__init__(config)
        links = graphs.link_nodes(graphs.ring_edges(len(self.p)), self.p)
        self.W = graphs.mixing_matrix(links)

    def gradients(self, models):
        return np.array([H @ w - c for H, w, c in zip(self.H, models, self.c, strict=True)])

    def proxes(self, models, t):
        return np.array([self.psi(w, t) for w in models])


def _nids(q, step, rounds):
    """Algorithm 1 of NIDS with c = 1 / (2 step), as in the authors' program."""
    last, half = np.zeros((len(q.p), 7)), (np.eye(len(q.p)) + q.W) / 2
    z = last - step * q.gradients(last)
    x, models = q.proxes(z, step), []
    for _ in range(rounds):
        models.append(x)
        z = z - x + half @ (2 * x - last - step * (q.gradients(x) - q.gradients(last)))
        last, x = x, q.proxes(z, step)
    return models


def _pg_extra(q, step, rounds):
    """Algorithm 1 of PG-EXTRA: W x^(k+1) + x^(k+1/2) - (I + W) / 2 x^k - step * (the difference of gradients)."""
    last, half = np.zeros((len(q.p), 7)), (np.eye(len(q.p)) + q.W) / 2
    z = q.W @ last - step * q.gradients(last)
    x, models = q.proxes(z, step), []
    for _ in range(rounds):
        models.append(x)
        z = q.W @ x + z - half @ last - step * (q.gradients(x) - q.gradients(last))
        last, x = x, q.proxes(z, step)
    return models


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "box"), [("nids", _nids), ("pg_extra", _pg_extra)])
def test_methods_are_those_of_their_boxes(algo, box, tmp_path):
    rest = [f"algo={algo}", "algo.step=0.1", "reg.strength=0.3", GRAPH, "rounds=6", "eval_every=1"]
    config = ragged(tmp_path, *rest, *FULL, sizes=SIZES)
    q = RingOfQuadratics(config)
    models = box(q, 0.1, 6)
    np.testing.assert_allclose(outputs_by_round(config), [q.p @ model for model in models], atol=1e-12)
    distances = [np.sqrt(q.p @ ((model - q.p @ model) ** 2).sum(axis=1)) for model in models]
    measured = [snapshot.metrics["consensus_distance"][0] for snapshot in snapshots(config)[1:]]
    np.testing.assert_allclose(measured, distances, atol=1e-12)
    assert distances[1] > 0.01


@pytest.mark.slow
def test_dual_averaging_with_local_steps_is_gossip_of_dual_states(tmp_path):
    """z_i <- sum_j W_ij (z_j + Delta_j), and the same for the coefficient of psi; the steps of clients are unequal."""
    rest = ["algo=feddualavg", "algo.client_lr=0.03", "algo.server_lr=1", "reg.strength=0.3", "rounds=5"]
    steps = ["local_epochs=2", "local_steps=null", "batch_size=8", "precision=float64"]
    config = ragged(tmp_path, *rest, *steps, GRAPH, "clients_per_round=null", "eval_every=1", sizes=SIZES)
    q = RingOfQuadratics(config)
    x = np.column_stack([q.data.train.x, np.ones(len(q.data.train.y))])
    z, elapsed, expected = np.zeros((4, 7)), np.zeros(4), []
    counts = np.array([2 * -(-size // 8) for size in SIZES])
    for number in range(5):
        z, elapsed = z.copy(), elapsed.copy()
        for m in range(4):
            for k in range(counts[m]):
                rows = q.drawn.rows[number][m][k]
                rows = rows[rows >= 0]
                w = q.psi(z[m], elapsed[m])
                gradient = 2 / len(rows) * x[rows].T @ (x[rows] @ w - q.data.train.y[rows])
                z[m], elapsed[m] = z[m] - 0.03 * gradient, elapsed[m] + 0.03
        z, elapsed = q.W @ z, q.W @ elapsed
        expected.append(q.psi(q.p @ z, q.p @ elapsed))
    np.testing.assert_allclose(outputs_by_round(config), expected, atol=1e-12)


def _keep_largest(vectors, count):
    """Keep the ``count`` largest numbers of each of several vectors."""
    smallest = np.sort(np.abs(vectors), axis=1)[:, -count, None]
    return np.where(np.abs(vectors) >= smallest, vectors, 0)


@pytest.mark.slow
def test_compressed_messages_are_those_of_choco_sgd(tmp_path):
    """x_i <- u_i + g sum_j W_ij (m_j - m_i) after m_i <- m_i + C(u_i - m_i): Koloskova et al. 2019, algorithm 2."""
    rest = ["algo=fedgd", "algo.step=0.05", "reg=none", "rounds=6", "eval_every=1", GRAPH, *FULL]
    rest += ["uplink=topk", "uplink.fraction=0.5", "topology.mixing_step=0.4", "objective.intercept=false"]
    config = ragged(tmp_path, *rest, sizes=SIZES)
    q = RingOfQuadratics(config)
    models = known = np.zeros((4, 6))
    expected = []
    for _ in range(6):
        gradients = np.array([H[:6, :6] @ w - c[:6] for H, w, c in zip(q.H, models, q.c, strict=True)])
        updated = models - 0.05 * gradients
        known = known + _keep_largest(updated - known, 3)
        models = updated + 0.4 * (q.W @ known - known)
        expected.append(q.p @ models)
    np.testing.assert_allclose(outputs_by_round(config)[:, :6], expected, atol=1e-12)
    record = run(config, "run")
    assert record.metrics["bytes_up"].iloc[-1] == 6 * 8 * 3 * (8 + 4)  # rounds, directed edges, numbers and indices


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["nids", "pg_extra"])
@pytest.mark.parametrize("uplink", ["natural", "qsgd"])
def test_exact_methods_stay_exact_with_compressed_messages(algo, uplink, tmp_path):
    rest = [f"algo={algo}", GRAPH, f"uplink={uplink}", "reg.strength=0.3", *FULL, "reference=true"]
    record = run(ragged(tmp_path, *rest, "rounds=3000", "eval_every=1500", sizes=CLIENT_SIZES), "run")
    assert record.metrics["suboptimality"].iloc[-1] < 1e-12
    assert record.metrics["consensus_distance"].iloc[-1] < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["feddualavg", "feddualavg_osp", "fedavg", "fedavg_subgradient", "fedgd"])
def test_a_complete_graph_with_equal_weights_is_a_star(algo, tmp_path):
    """Means of states that nodes send are those of a server, if the server's part adds a mean of uploads."""
    rest = [f"algo={algo}", "reg.strength=0.3", "rounds=5", "client_weighting=uniform", *FULL]
    rates = {"client_lr": 0.02, "server_lr": 1}
    rest += [f"algo.{k}={v}" for k, v in rates.items() if k in plugin_class("algo", algo).__dataclass_fields__]
    if not traits_of(algo).deterministic:
        rest += ["local_epochs=null", "local_steps=3"]
    star = outputs_by_round(ragged(tmp_path, *rest, sizes=SIZES))
    graph = outputs_by_round(ragged(tmp_path, *rest, GRAPH, "topology.graph=complete", sizes=SIZES))
    np.testing.assert_allclose(graph, star, atol=1e-12)
    assert np.abs(star[-1] - star[0]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["nids", "pg_extra"])
@pytest.mark.parametrize("graph", ["complete", "star.csv"])
def test_exact_methods_reach_the_optimum_on_other_graphs(algo, graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("star.csv").write_text("client,neighbour\n0,1\n0,2\n0,3\n")
    rest = [f"algo={algo}", GRAPH, f"topology.graph={graph}", "reg.strength=0.3", *FULL, "reference=true"]
    record = run(ragged(tmp_path, *rest, "rounds=2000", "eval_every=1000", sizes=CLIENT_SIZES), "run")
    assert record.metrics["suboptimality"].iloc[-1] < 1e-12
    assert record.metrics["consensus_distance"].iloc[-1] < 1e-8
    assert record.metrics["worst_node_objective"].iloc[-1] == pytest.approx(record.metrics["objective"].iloc[-1])


@pytest.mark.slow
def test_only_the_step_of_pg_extra_depends_on_the_graph(tmp_path):
    def step(algo, graph):
        config = ragged(tmp_path, f"algo={algo}", GRAPH, f"topology.graph={graph}", *FULL, sizes=SIZES)
        return run(config, f"{algo}-{graph}").summary["curvature"]["algo.step"]

    assert step("nids", "ring") == step("nids", "complete")
    assert step("pg_extra", "ring") < step("pg_extra", "complete") < step("nids", "ring")


# ---------------------------------------------------------------- records


def test_nodes_count_the_bytes_that_their_algorithm_declares(monkeypatch):
    """Half a byte a number of a message; the bytes of uploads, which nodes do not send, count nothing."""
    config = small("algo=nids", GRAPH, "clients_per_round=null", "batch_size=null")
    monkeypatch.setattr(NIDS, "upload_bytes", lambda self, upload: 1)
    with fails("upload_bytes of algo=nids counts uploads to a server, and topology=graph has none: define edge_upload"):
        prepare(config)
    monkeypatch.setattr(NIDS, "edge_upload_bytes", lambda self, upload: 11)
    federation = engine_of(config).federation
    assert message_bytes(federation, federation.algorithm, federation.uplink).edge_upload == 11


@pytest.mark.slow
def test_a_record_has_the_nodes_and_the_graph(tmp_path):
    config = ragged(tmp_path, "algo=nids", GRAPH, *FULL, "rounds=3", "eval_every=1", sizes=SIZES)
    record = run(config, "ring")
    last = record.metrics.iloc[-1]
    assert record.metrics["bytes_up"].tolist() == [count * 8 * 7 * 8 for count in range(4)]  # 8 directed edges
    assert last["bytes_down"] == 0
    assert last["worst_node_objective"] > last["objective"]
    q = RingOfQuadratics(config)
    others = np.sort(np.abs(np.linalg.eigvals(q.W)))[:-1]
    assert record.summary["spectral_gap"] == pytest.approx(1 - others.max())


@pytest.mark.slow
def test_seeds_and_numbers_on_a_graph_make_one_batch(tmp_path):
    base = small("algo=feddualavg", GRAPH, "clients_per_round=null", "precision=float64", "rounds=3")
    points = [base, base | {"seed": 1}]
    for point, record in zip(points, run_grid(points, ["a", "b"]), strict=True):
        np.testing.assert_allclose(rows_of(record), rows_of(run(point, f"{record.folder}-alone")), rtol=1e-8)


def test_a_file_of_edges_is_part_of_the_identity_and_its_path_is_not(tmp_path):
    def experiment(name, content):
        (tmp_path / name).write_text(content)
        return prepare(ragged(tmp_path, "algo=nids", GRAPH, f"topology.graph={tmp_path}/{name}", sizes=SIZES))

    path = experiment("path.csv", "client,neighbour\n0,1\n1,2\n3,2\n")
    links = build_engine(path, load_data(path)).federation.links
    assert (graphs.mixing_matrix(links)[0] > 0).tolist() == [True, True, False, False]
    assert experiment("copy.csv", "client,neighbour\n0,1\n1,2\n3,2\n").identity == path.identity
    assert experiment("other.csv", "client,neighbour\n0,1\n1,2\n3,1\n").identity != path.identity


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algo=feddualavg"], "feddualavg does not reach the optimum in any number of rounds"),
        (["algo=feddualavg", "topology.graph=complete", "client_weighting=uniform"], "more rounds may help"),
        (["algo=nids"], "more rounds may help"),
    ],
)
def test_advice_knows_that_gossip_does_not_reach_the_optimum(overrides, words, tmp_path):
    """One step on all rows is exact with the mean over all clients, which a complete graph takes."""
    experiment = prepare(ragged(tmp_path, GRAPH, *FULL, *overrides, sizes=SIZES))
    assert words in advise(experiment, load_data(experiment), falling=False)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algo=scaffold"], ["algo=scaffold needs a server", "topology=graph"]),
        (["algo=pfedmac_sh"], ["algo=pfedmac_sh", "topology=tree"]),
        (["algo=ditto"], ["algo=ditto makes a model for each client"]),
        (["clients_per_round=2"], ["topology=graph has no server that draws cohorts", "clients_per_round=null"]),
        (["topology.graph=nowhere.csv"], ["topology.graph=nowhere.csv", "ring, torus"]),
        (["topology.graph=parts.csv"], ["topology.graph=parts.csv is not connected", "0 and 2"]),
        (["topology.graph=names.csv"], ["topology.graph=names.csv names client 9", "such as 0"]),
        (["topology.graph=columns.csv"], ["topology.graph=columns.csv has no column 'client'"]),
        (["topology.graph=alone.csv"], ["topology.graph=alone.csv has a row of client 0 without a neighbour"]),
        (["topology.graph=empty.csv"], ["topology.graph=empty.csv: cannot be read as .csv"]),
        (["topology.graph=erdos_renyi", "topology.probability=0"], ["erdos_renyi is not connected", "probability"]),
        (["algo=centralized"], ["algo=centralized", "topology"]),
        (
            ["algo=fedmid", "reg=simplex", "uplink=qsgd"],
            ["moves models out of the set of reg=simplex", "restores the domain"],
        ),
        (["algo=prox_dasa", "reg=simplex", "uplink=qsgd"], ["algo=prox_dasa takes means of nodes as they are"]),
        (
            ["algo=fedmid", "mirror=entropy", "reg=l1", "uplink=qsgd", "algo.client_lr=0.01", "algo.server_lr=1"],
            ["uplink=qsgd moves models out of the domain of mirror=entropy", "means of nodes"],
        ),
        (["algo=fedmid", "reg=l0_ball"], ["means of models, which leave the set of reg=l0_ball", "topology out"]),
        (["topology=star", "algo=nids"], ["algo=nids works without a server: give topology=graph"]),
        (["topology=tree", "algo=nids"], ["algo=nids works without a server: give topology=graph"]),
    ],
)
def test_what_a_graph_lacks_is_refused(overrides, words, tmp_path):
    Path("parts.csv").write_text("client,neighbour\n0,1\n2,3\n")
    Path("names.csv").write_text("client,neighbour\n0,9\n")
    Path("columns.csv").write_text("a,b\n0,1\n")
    Path("alone.csv").write_text("client,neighbour\n0\n")
    Path("empty.csv").write_text("")
    given = {override.partition("=")[0] for override in overrides}
    defaults = [each for each in ("algo=fedavg", GRAPH) if each.partition("=")[0] not in given]
    with fails(*words):
        experiment = prepare(ragged(tmp_path, *defaults, *overrides, sizes=SIZES))
        build_engine(experiment, load_data(experiment))
        _ = experiment.identity


@pytest.mark.parametrize(
    "overrides",
    [
        ("algo=nids", "reg=simplex", "reg.applied_by=client"),
        ("algo=feddualavg", "reg=simplex", "mirror=entropy", "algo.client_lr=0.01", "algo.server_lr=1"),
        ("algo=fedmid", "reg=l1", "mirror=p_norm", "algo.client_lr=0.01", "algo.server_lr=1"),
        ("algo=fedgd", "reg=simplex"),  # ignores psi
    ],
)
def test_compressed_messages_that_leave_no_domain_are_taken(overrides, tmp_path):
    prepare(ragged(tmp_path, GRAPH, "uplink=qsgd", "clients_per_round=null", *overrides, sizes=SIZES))


def test_a_torus_of_a_prime_number_of_clients_is_refused():
    with fails("topology.graph=torus", "7", "prime", "ring"):
        graphs.torus_edges(7)


# ---------------------------------------------------------------- the properties of every topology


@pytest.mark.slow
@pytest.mark.parametrize("check", communication.TOPOLOGY_CHECKS, ids=lambda check: check.__name__)
def test_a_graph_has_the_properties(check):
    verify(check, GRAPH_CASE)
