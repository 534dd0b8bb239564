"""Trees: their edges, their communication, and FedAvg and FedDualAvg on trees."""

from pathlib import Path

import numpy as np
import pytest
import ring_topology
from helpers import (
    choice_names,
    fails,
    not_none,
    plugin_class,
    ragged,
    rows_of,
    run_grid,
    small_for,
    traits_of,
    verify,
    write_choice,
)
from quadratics import SIZES, Quadratics, outputs_by_round

from fcorun import compose, run
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import communication
from fcorun.interface.checks.algorithms import AlgorithmCase
from fcorun.methods.algorithms import Algorithm

TREE = "topology=tree"
STAR_CASE = communication.CommunicationCase("topology", "star")
TREE_CASE = communication.CommunicationCase("topology", "tree", ("topology.edges=2", "topology.rounds=2"))
KINDS = {name: plugin_class("algo", name) for name in choice_names("algo")}
ALGORITHMS = [name for name, kind in KINDS.items() if issubclass(kind, Algorithm)]
ON_TREES = [name for name in ALGORITHMS if traits_of(name).hierarchy in ("some", "only")]


# ---------------------------------------------------------------- every algorithm


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KINDS if traits_of(name).hierarchy != "only"])
def test_one_round_of_the_edges_is_a_star_unless_trees_are_refused(name, tmp_path):
    """If edges send the means of their clients, the root's mean of the edges is the mean of all clients."""
    psi = AlgorithmCase(name).regularizer_overrides or ("reg.strength=0.2",)
    rest = [f"algo={name}", "rounds=5", *psi, "clients_per_round=null"]
    rest += ["batch_size=4"] if not traits_of(name).deterministic else []
    fixed = {"client_lr": 0.01, "server_lr": 1}  # "auto" depends on the partial participation of an edge
    rest += [
        f"algo.{key}={value}"
        for key, value in fixed.items()
        if key in KINDS[name].__dataclass_fields__ and name in ON_TREES
    ]
    tree = [*rest, TREE, "topology.map=[0,1,0,1]"]
    if name not in ON_TREES:
        with fails(f"algo={name}", "topology"):
            prepare(ragged(tmp_path, *tree, sizes=SIZES))
        return
    star, edges = (
        outputs_by_round(ragged(tmp_path, *rest, sizes=SIZES)),
        outputs_by_round(ragged(tmp_path, *tree, sizes=SIZES)),
    )
    if name == "fedmid" or name == "fedmid_osp":  # edges apply psi, so the root's point is a mean of sparse ones
        assert np.abs(star - edges).max() > 1e-3
        star, edges = (
            outputs_by_round(ragged(tmp_path, *overrides, "reg=none", sizes=SIZES))
            for overrides in (rest[:2] + rest[3:], tree[:2] + tree[3:])
        )
    np.testing.assert_allclose(edges, star, atol=1e-12)


# ---------------------------------------------------------------- several rounds of the edges


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["fedavg", "feddualavg"])
def test_edges_run_the_algorithm_with_their_clients(algo, tmp_path):
    """Each edge runs the algorithm alone from the root's state, and the root takes the mean of the (dual) states."""
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    rest = ["algo.client_lr=0.03", "algo.server_lr=0.8", "local_epochs=null", "local_steps=3", "reg.strength=0.4"]
    outputs = outputs_by_round(
        ragged(
            tmp_path,
            f"algo={algo}",
            *rest,
            "topology=tree",
            "topology.map=[0,1,1,0]",
            "topology.rounds=3",
            "rounds=6",
            sizes=SIZES,
        )
    )
    strength = 0.4 if algo == "feddualavg" else 0.0

    def primal(z, elapsed):
        return np.append(np.sign(z[:-1]) * np.maximum(np.abs(z[:-1]) - elapsed * strength, 0), z[-1])

    state, elapsed, expected = np.zeros(7), 0.0, []
    for _ in range(6):
        ends = []
        for members in ([0, 3], [1, 2]):
            share, edge, time = q.p[members] / q.p[members].sum(), state, elapsed
            for _ in range(3):
                moved = []
                for m in members:
                    z = edge
                    for k in range(3):
                        w = primal(z, time + 0.03 * k)
                        z = z - 0.03 * (q.H[m] @ w - q.c[m])
                    moved.append(z - edge)
                edge, time = edge + 0.8 * share @ np.array(moved), time + 0.8 * 3 * 0.03
            ends.append(q.p[members].sum() * edge)
        state, elapsed = sum(ends), time
        expected.append(primal(state, elapsed))
    np.testing.assert_allclose(outputs, expected, atol=1e-12)
    assert np.count_nonzero(outputs[-1][:-1]) < 6 or algo == "fedavg"


@pytest.mark.slow
def test_a_batch_of_seeds_on_a_tree_gives_the_numbers_of_single_runs():
    base = small_for("pfedmac_sh", "topology.edges=2", "topology.rounds=2", "precision=float64")
    points = [base, base | {"seed": 1}]
    for point, record in zip(points, run_grid(points, ["a", "b"]), strict=True):
        np.testing.assert_allclose(rows_of(record), rows_of(run(point, f"{record.folder}-alone")), rtol=1e-8)


@pytest.mark.slow
def test_edges_without_clients_in_the_cohort_do_not_count(tmp_path):
    """With one client a round, a round of the tree is that of a star with as many rounds."""
    rest = ["algo=fedavg", "algo.client_lr=0.03", "clients_per_round=1", "reg=none"]
    tree = outputs_by_round(
        ragged(tmp_path, *rest, "topology=tree", "topology.edges=2", "rounds=1", "topology.rounds=4")
    )
    client = build_engine(
        prepare(ragged(tmp_path, *rest)), load_data(prepare(ragged(tmp_path)))
    ).federation.schedule.draw_cohort(0)[0]
    q = Quadratics(ragged(tmp_path, *rest, "rounds=1"))
    w = np.zeros(7)
    for _ in range(4):
        w = w - 0.03 * (q.H[client] @ w - q.c[client])
    np.testing.assert_allclose(tree[-1], w, atol=1e-12)


# ---------------------------------------------------------------- communication and refusals


@pytest.mark.slow
def test_communication_is_counted_by_level(tmp_path):
    size, clients = 7 * 8, 4
    star = run(ragged(tmp_path, "algo=fedavg", "rounds=6", sizes=SIZES), "star").metrics
    assert not [name for name in star if "edge" in name]
    tree = ["algo=fedavg", "rounds=6", TREE, "topology.rounds=3", "topology.map=[0,1,1,0]"]
    whole = run(ragged(tmp_path, *tree, sizes=SIZES), "whole").metrics
    for way in ("up", "down"):
        assert whole[f"bytes_{way}"].tolist() == [r * 3 * clients * size for r in range(7)]
        assert whole[f"edge_bytes_{way}"].tolist() == [r * 2 * size for r in range(7)]
    some = run(ragged(tmp_path, *tree, "clients_per_round=2", sizes=SIZES), "some")
    schedule = build_engine(prepare(some.config), load_data(prepare(some.config))).federation.schedule
    met = [len({int(np.array([0, 1, 1, 0])[m]) for m in schedule.draw_cohort(r)}) for r in range(6)]
    assert {1, 2} == set(met)
    assert some.metrics["edge_bytes_up"].tolist() == [0, *np.cumsum(met) * size]
    assert some.summary["edge_bytes_up"] == sum(met) * size
    # pFedMac-SH: an edge sends its model, and its clients the mean that they start from
    config = ragged(tmp_path, "algo=pfedmac_sh", "rounds=2", TREE, "topology.edges=2", "reg=none", sizes=SIZES)
    last = run(config, "sh").metrics.iloc[-1]
    assert [last[n] for n in ("bytes_up", "bytes_down", "edge_bytes_up", "edge_bytes_down")] == [
        *(2 * 4 * size, 2 * 4 * size, 2 * 2 * size, 2 * 2 * size),
    ]


def test_edges_are_read_from_a_file(tmp_path):
    (tmp_path / "edges.csv").write_text("client,edge\n2,north\n0,south\n1,north\n")
    config = ragged(tmp_path, "algo=fedavg", TREE, f"topology.map={tmp_path}/edges.csv")
    experiment = prepare(config)
    assert not_none(experiment.topology.connect(load_data(experiment).client_names, np.ones(3))).tolist() == [1, 0, 0]
    before = experiment.identity
    (tmp_path / "edges.csv").write_text("client,edge\n2,north\n0,south\n1,south\n")
    assert prepare(config).identity != before
    (tmp_path / "copy.csv").write_text("client,edge\n2,north\n0,south\n1,north\n")
    copy = ragged(tmp_path, "algo=fedavg", TREE, f"topology.map={tmp_path}/copy.csv")
    assert prepare(copy).identity == before  # the path of a file is no part of the identity


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["topology.edges=7"], ["topology.edges=7", "3"]),
        (["topology.map=[0,1]"], ["topology.map", "2", "3"]),
        (["topology.map=[0,2,2]"], ["topology.map", "edge 1"]),
        ([f"topology.map=[0,1,{10**30}]"], ["topology.map", "edge 2"]),
        (["topology.map=quote.csv"], ["topology.map=quote.csv: cannot be read", "inside string"]),
        (["topology.map=[0,1,1]", "topology.edges=3"], ["topology.edges=3", "2"]),
        (["topology.map=twice.csv"], ["topology.map=twice.csv", "client 0 more than once"]),
        (["topology.map=nowhere.csv"], ["topology.map=nowhere.csv"]),
        (["topology.map=[0,-1,1]"], ["topology.map=-1", "non-negative"]),
        (["algo=centralized"], ["algo=centralized", "topology"]),
    ],
)
def test_invalid_trees_are_refused(overrides, words, tmp_path):
    Path("twice.csv").write_text("client,edge\n0,a\n1,a\n2,b\n0,b\n")
    Path("quote.csv").write_text('client,edge\n0,"a\n' + "1,a\n" * 40_000)
    with fails(*words):
        experiment = prepare(ragged(tmp_path, "algo=fedavg", TREE, *overrides))
        experiment.topology.connect(load_data(experiment).client_names, np.ones(3))
        _ = experiment.identity


def test_keys_of_a_tree_without_a_tree_are_refused():
    with fails("topology.edges", "topology=tree"):
        compose(["topology.edges=2"])


def test_an_algorithm_of_edges_without_a_tree_is_refused(tmp_path):
    with fails("algo=pfedmac_sh", "topology=tree"):
        prepare(ragged(tmp_path, "algo=pfedmac_sh"))


# ---------------------------------------------------------------- the properties of every topology


@pytest.mark.slow
@pytest.mark.parametrize("check", communication.TOPOLOGY_CHECKS, ids=lambda check: check.__name__)
def test_a_tree_has_the_properties(check):
    verify(check, TREE_CASE)  # several devices are in tests/engine/test_devices.py


@pytest.mark.parametrize("check", communication.TOPOLOGY_CHECKS[:2], ids=lambda check: check.__name__)
def test_a_star_has_its_properties(check):
    """The properties of runs are those of every algorithm, which all run on a star."""
    check(STAR_CASE)


@pytest.fixture
def ring(user_module, tmp_path):
    """The folder of a user's topology, ``topology=ring``."""
    user_module("ring", Path(ring_topology.__file__).read_text())
    write_choice(tmp_path / "conf", "topology", "ring", "class: ring.Ring\nown: 0.5")
    with use_config_dir(tmp_path / "conf"):
        yield tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("check", communication.TOPOLOGY_CHECKS, ids=lambda check: check.__name__)
def test_a_topology_of_a_user_has_the_properties(ring, check):
    case = communication.CommunicationCase("topology", "ring")
    verify(check, case)


@pytest.mark.slow
def test_a_graph_without_a_server_is_gossip(ring, tmp_path):
    """A client's model is the mean of its neighbours' models after their steps, and the model of a run their mean."""
    overrides = ["algo=fedavg", "algo.client_lr=0.03", "algo.server_lr=1", "topology=ring", "rounds=5"]
    outputs = outputs_by_round(ragged(tmp_path, *overrides, "local_epochs=null", "local_steps=2", sizes=SIZES))
    q = Quadratics(ragged(tmp_path, sizes=SIZES))
    mixing = np.array([[0.5, 0.25, 0, 0.25], [0.25, 0.5, 0.25, 0], [0, 0.25, 0.5, 0.25], [0.25, 0, 0.25, 0.5]])
    models, expected = np.zeros((4, 7)), []
    for _ in range(5):
        moved = models.copy()
        for _ in range(2):
            moved = np.array([w - 0.03 * (q.H[m] @ w - q.c[m]) for m, w in enumerate(moved)])
        models = mixing @ moved
        expected.append(models.mean(axis=0))
    np.testing.assert_allclose(outputs, expected, atol=1e-12)


@pytest.mark.slow
def test_a_graph_counts_its_bytes_and_refuses_what_it_lacks(ring, tmp_path):
    config = ragged(tmp_path, "algo=fedavg", "topology=ring", "rounds=2", sizes=SIZES)
    record = run(config, "ring")
    assert record.metrics["bytes_up"].tolist() == [round_ * 2 * 4 * 7 * 8 for round_ in (0, 1, 2)]
    assert record.metrics["bytes_down"].tolist() == [0, 0, 0]
    with fails("topology=ring has no server that draws cohorts"):
        prepare(config | {"clients_per_round": 2})
    with fails("algo=pfedmac_sh", "topology=tree"):
        prepare(ragged(tmp_path, "algo=pfedmac_sh", "topology=ring"))
