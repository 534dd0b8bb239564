"""Faults: rounds by hand in NumPy, draws of their own, bytes of what was sent, edges, and refusals."""

import json

import numpy as np
import pytest
from helpers import engine_of, fails, grid, identity, run_grid, small, verify

from fcorun import run
from fcorun.base.system.machine import use_precision
from fcorun.engine.engine import build_traffic, message_bytes
from fcorun.experiment.build import load_data
from fcorun.experiment.configuration.search_path import find_choices
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import communication
from fcorun.interface.checks.problems import ragged, snapshots
from fcorun.runs.fault_notes import describe_faults

FEDAVG = ("algo=fedavg", "reg=none", "algo.client_lr=0.05", "algo.server_lr=1", "objective.intercept=false")
EXACT = (*FEDAVG, "precision=float64", "batch_size=null", "clients_per_round=null", "rounds=4", "eval_every=1")


def write_trace(folder, *absences):
    """Write a trace of pairs of a round and the number of a client, and return its override."""
    path = folder / "trace.csv"
    path.write_text("round,client\n" + "".join(f"{number},client{client}\n" for number, client in absences))
    return f"faults.trace={path}"


def run_by_hand(config, is_present, send=lambda number, client, upload: upload):
    """Return the model of FedAvg with one full step a client, and those absent left out of the mean, after each round.

    ``is_present`` (R, M); ``send`` returns what a client sends for its upload.
    """
    train = engine_of(config).federation.data.train
    x, y = np.asarray(train.x, float), np.asarray(train.y, float)
    rows_of = [slice(a, b) for a, b in zip(train.offsets, train.offsets[1:], strict=False)]
    w = np.zeros(x.shape[1])
    models = [w]
    for number, present in enumerate(is_present):
        total, weight = 0, 0
        for client in np.flatnonzero(present):
            rows = rows_of[client]
            step = -0.05 * 2 * x[rows].T @ (x[rows] @ w - y[rows]) / len(y[rows])
            total = total + len(y[rows]) * send(number, client, step)
            weight += len(y[rows])
        if weight:
            w = w + total / weight
        models.append(w)
    return models


def sizes_and_bytes(config):
    """Return the bytes of messages, and those sent in four rounds."""
    federation = engine_of(config).federation
    with use_precision("float64"):
        sizes = message_bytes(federation, federation.algorithm, federation.uplink)
    return sizes, build_traffic(federation, 4, 0).bytes_after(4, sizes)


def models_of(config):
    return [snapshot.solution["weights"][0] for snapshot in snapshots(config)]


@pytest.mark.slow
@pytest.mark.parametrize("name", find_choices("faults"))
@pytest.mark.parametrize("check", communication.FAULT_CHECKS, ids=lambda check: check.__name__)
def test_faults_have_their_properties(name, check):
    more = () if name == "none" else ("faults.dropout=0.3",)
    verify(check, communication.CommunicationCase("faults", name, more))


def test_dropouts_of_a_trace_are_those_of_a_loop_by_hand(tmp_path):
    """Clients 1 and 4 miss round 1, all miss round 2, client 0 misses round 3."""
    absences = [(1, 1), (1, 4), *((2, client) for client in range(6)), (3, 0)]
    config = small(*EXACT, "faults=dropout", write_trace(tmp_path, *absences))
    is_present = np.ones((4, 6), bool)
    for number, client in absences:
        is_present[number - 1, client] = False
    for model, expected in zip(models_of(config), run_by_hand(config, is_present), strict=True):
        np.testing.assert_allclose(model, expected, rtol=1e-12, atol=1e-14)


def test_a_trace_without_dropouts_changes_no_bit(tmp_path):
    config = small("algo=scaffold", "reg=none")
    empty = small("algo=scaffold", "reg=none", "faults=dropout", write_trace(tmp_path))
    assert prepare(empty).identity != prepare(config).identity
    for with_trace, without in zip(snapshots(empty), snapshots(config), strict=True):
        assert np.array_equal(with_trace.solution["weights"], without.solution["weights"])
        assert np.array_equal(with_trace.work, without.work)


def test_all_signs_flipped_is_a_step_backwards():
    flipped = small(*EXACT, "faults=sign_flip", "faults.liars=6")
    np.testing.assert_allclose(models_of(flipped)[1], -models_of(small(*EXACT))[1], rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "send"),
    [
        (("scaled", "faults.factor=-3"), lambda uploads: -3 * uploads[-1]),
        (("constant", "faults.value=0.5"), lambda uploads: np.full_like(uploads[-1], 0.5)),
        (("stale", "faults.sends=first"), lambda uploads: uploads[0]),
        (("stale", "faults.sends=last"), lambda uploads: uploads[max(len(uploads) - 2, 0)]),
    ],
)
def test_lies_are_those_of_a_loop_by_hand(options, send):
    """Client 2 lies; a lie replaces its step in the weighted mean."""
    name, option = options
    config = small(*EXACT, f"faults={name}", option, "faults.liars=[2]")
    uploads = []

    def lie(number, client, upload):
        if client != 2:
            return upload
        uploads.append(upload)
        return send(uploads)

    expected = run_by_hand(config, np.ones((4, 6), bool), lie)
    for model, by_hand in zip(models_of(config), expected, strict=True):
        np.testing.assert_allclose(model, by_hand, rtol=1e-12, atol=1e-13)


def test_faults_have_streams_of_their_own():
    """Cohorts and batches are those without faults; draws do not depend on the algorithm and numbers; rates are met."""
    options = ("data.clients=400", "clients_per_round=200", "rounds=50")
    plain = engine_of(small(*FEDAVG, *options)).federation.draw_rounds(3, 0, 50)
    draws = {}
    for name, share in (("sign_flip", 0.1), ("constant", 0.3)):
        config = small("algo=feddualavg", *options, f"faults={name}", f"faults.liars={share}",
                       f"faults.dropout={share}")  # fmt: skip
        federation = engine_of(config).federation
        draws[share] = federation.draw_rounds(3, 0, 50)
        assert np.array_equal(draws[share].cohort, plain.cohort)
        assert np.array_equal(draws[share].rows, plain.rows)
        assert abs((draws[share].faults.dropout_level < share).mean() - share) < 0.015
        assert federation.stack_numbers([prepare(config).numbers()])["faults"]["liars"] == 400 * share
    few, many = draws[0.1].faults, draws[0.3].faults
    assert np.array_equal(few.dropout_level, many.dropout_level)
    assert np.array_equal(few.liar_rank, many.liar_rank)
    other_rounds = engine_of(config).federation.draw_rounds(3, 20, 5).faults
    assert np.array_equal(other_rounds.dropout_level, many.dropout_level[20:25])


def test_bytes_and_work_are_those_of_what_was_done(tmp_path):
    """A client that drops out before a round costs nothing, one within it a broadcast and its work."""
    trace = write_trace(tmp_path, (1, 0), (1, 1), (2, 3))
    full = snapshots(small(*EXACT))[-1].work[0, 0]
    for when, sent_down, share_of_work in (("before", 21, 21 / 24), ("within", 24, 1)):
        config = small(*EXACT, "faults=dropout", trace, f"faults.when={when}")
        sizes, counts = sizes_and_bytes(config)
        assert counts == {"bytes_up": 21 * sizes.uploads[0], "bytes_down": sent_down * sizes.broadcasts[0]}
        assert snapshots(config)[-1].work[0, 0] == full * share_of_work


@pytest.mark.parametrize("dropout", ["null", "0"])
def test_a_record_counts_the_bytes_of_a_trace(dropout, tmp_path):
    """Three of 24 uploads are lost, whether ``faults.dropout`` is null or the 0 that stands for it beside a trace."""
    trace = write_trace(tmp_path, (1, 0), (1, 1), (2, 3))
    record = run(small(*EXACT, "faults=dropout", trace, f"faults.dropout={dropout}"), tmp_path / "run")
    full = run(small(*EXACT), tmp_path / "full").rows[-1]
    assert record.rows[-1]["bytes_up"] == full["bytes_up"] * 21 / 24
    assert record.rows[-1]["bytes_down"] == full["bytes_down"] * 21 / 24


def test_dropouts_at_edges_leave_the_mean_to_the_others(tmp_path):
    """An edge whose clients all drop out has no part in the root's mean, and sends nothing."""
    trace = write_trace(tmp_path, (1, 0), (1, 1), (1, 2), (2, 5), *((3, client) for client in range(6)))
    config = small(*EXACT, "topology=tree", "topology.edges=2", "faults=dropout", trace)
    is_present = np.ones((4, 6), bool)
    for number, client in ((0, 0), (0, 1), (0, 2), (1, 5), *((2, client) for client in range(6))):
        is_present[number, client] = False
    models = models_of(config)
    expected = run_by_hand(config, is_present)
    np.testing.assert_allclose(models[1], expected[1], rtol=1e-12)  # one edge alone
    np.testing.assert_array_equal(models[3], models[2])
    sizes, counts = sizes_and_bytes(config)
    assert counts["edge_bytes_up"] == (1 + 2 + 0 + 2) * sizes.edge_upload


@pytest.mark.parametrize(
    ("task", "sizes", "batch_size"),
    [("binary", (6, 6, 8), 4), ("binary", (6, 6, 8), "null"), ("ordinal", (8, 8, 8), "null")],
)
def test_flipped_labels_are_those_of_a_table_flipped_by_hand(task, sizes, batch_size, tmp_path):
    """Client 1 trains on flipped labels, in steps and whole-data gradients; the loss is that of the true ones."""
    options = ("algo=mime_lite", "algo.client_lr=0.3", "reg=none", f"batch_size={batch_size}", "clients_per_round=null")
    config = ragged(tmp_path / "true", *options, "faults=label_flip", "faults.liars=[1]", sizes=sizes, task=task)
    data = engine_of(config).federation.data
    true = data.train
    changed = np.where(true.client == 1, true.y.max() - true.y, true.y)
    flipped = np.array(data.classes)[changed]
    by_hand = ragged(tmp_path / "flipped", *options, sizes=sizes, task=task, x=true.x, y=flipped)
    faulty = snapshots(config)
    for snapshot, expected in zip(faulty, snapshots(by_hand), strict=True):
        for name, value in expected.solution.items():
            np.testing.assert_allclose(snapshot.solution[name], value, rtol=1e-12, atol=1e-14)
    honest = snapshots(ragged(tmp_path / "true", *options, sizes=sizes, task=task))[-1]
    assert np.abs(faulty[-1].solution["weights"] - honest.solution["weights"]).max() > 0.01
    if task == "binary":
        margins = true.x @ faulty[-1].solution["weights"][0] + faulty[-1].solution["bias"][0]
        loss = np.mean(np.logaddexp(0, margins) - true.y * margins)
        np.testing.assert_allclose(faulty[-1].metrics["train_loss"][0], loss, rtol=1e-9)
    experiment = prepare(config)
    note, _ = describe_faults(experiment, load_data(experiment), 4)
    assert note == "1 of 3 clients trained on flipped labels (faults=label_flip), aggregate=mean bears 0 of 3 uploads"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("faults=label_flip",), "has regression targets: choose data with classes"),
        (("faults=dropout", "faults.dropout=1.2"), "no probability"),
        (("faults=dropout", "faults.dropout=1"), "lets all clients drop out of every round"),
        (("faults=dropout", "faults.dropout=[0.1,0.2]"), "has 2 probabilities, and the data have 6 clients"),
        (("faults=dropout", "faults.unreliable=1.5"), "between 0 and 1"),
        (("faults=dropout", "algo=fednmap", "clients_per_round=null"), "needs all clients in every round"),
        (("faults=dropout", "clock=lognormal"), "some never come"),
        (("faults=dropout", "downlink=topk", "clients_per_round=null"), "may miss a broadcast"),
        (("faults=sign_flip", "faults.liars=1.5"), "no share of the clients"),
        (("faults=sign_flip", "faults.liars=-0.1"), "no share of the clients"),
        (("faults=sign_flip", "faults.liars=7"), "more than the 6 clients"),
        (("faults=sign_flip", "faults.liars=[6]"), "has client 6"),
        (("faults=sign_flip", "topology=graph", "algo=nids", "clients_per_round=null"), "send to a server"),
        (("faults=sign_flip", "algo=local"), "trains no model for all clients"),
        (("faults=sign_flip", "algo=centralized"), "leave faults out"),
    ],
)
def test_refusals(options, sentence):
    with fails(sentence):
        engine_of(small(*options))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("round,client\n1,client7\n", "has the client 'client7', which the data have not"),
        ("round,client\n9,client0\n", "has the round 9, and the run has 4"),
        ("round,client\n0,client1\n", "count the rounds from 1"),
        ("round,client\n1,client0\n1,client0\n", "more than once"),
        ("round,name\n1,0\n", "has no column 'client'"),
        ("round,client\n" + "".join(f"{r},client{m}\n" for r in range(1, 5) for m in range(6)), "learns nothing"),
    ],
)
def test_refused_traces(text, sentence, tmp_path):
    (tmp_path / "trace.csv").write_text(text)
    with fails(sentence):
        engine_of(small("faults=dropout", f"faults.trace={tmp_path / 'trace.csv'}"))


def test_identities():
    """The default is no part of an identity, and a trace is named by its content."""
    config = small("algo=fedavg")
    without = {key: values for key, values in config.items() if key != "faults"}
    assert prepare(without).identity == prepare(config).identity
    assert identity("algo=fedavg", "faults=sign_flip") != identity("algo=fedavg")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("aggregate=coordinate_median",), "66.7 % of the weight"),  # 20 rows of 30
        (("aggregate=trimmed_mean", "aggregate.trim=0.4"), "66.7 % of the weight"),
        (("aggregate=coordinate_median", "client_weighting=uniform"), ""),
        (("aggregate=coordinate_median", "topology=tree", "topology.map=[0,0,0,1,1,1]"), "83.3 % of the weight"),
        (("aggregate=mean",), "aggregate=mean bears 0 of 6 uploads"),
    ],
)
def test_a_record_says_that_liars_outweigh_a_rule(options, sentence, tmp_path):
    config = ragged(tmp_path, *FEDAVG, *options, "clients_per_round=null", "faults=sign_flip", "faults.liars=[0]",
                    sizes=(20, 2, 2, 2, 2, 2))  # fmt: skip
    experiment = prepare(config)
    note, _ = describe_faults(experiment, load_data(experiment), 1)
    assert note.startswith("1 of 6 clients lied (faults=sign_flip)")
    assert sentence in note
    assert ("bears" in note) == bool(sentence)


def test_a_diverged_run_says_who_dropped_out_up_to_its_divergence(tmp_path):
    """Client 0 misses the first of the rounds up to the divergence, before any evaluation but that of round 0."""
    trace = write_trace(tmp_path, (1, 0))
    config = small(*EXACT, "algo.client_lr=1e200", "eval_every=4", "faults=dropout", trace)
    record = run(config, tmp_path / "run")
    diverged = json.loads((tmp_path / "run" / "status.json").read_text())
    assert diverged["status"] == "diverged"
    assert record.rows[-1]["round"] == 0
    assert record.summary["faults"]["dropped"] == pytest.approx(1 / 6 / diverged["round"])
    assert f"{100 / 6 / diverged['round']:.3g} % of the clients of a round dropped out" in diverged["reason"]


def test_a_run_of_no_round_says_nothing_of_dropouts(tmp_path):
    record = run(small(*FEDAVG, "rounds=0", "faults=dropout"), tmp_path / "run")
    assert record.summary["faults"] == {"liars": 0}
    assert "dropped out" not in json.loads((tmp_path / "run" / "status.json").read_text())["reason"]


@pytest.mark.slow
def test_dropouts_and_liars_of_a_grid_are_one_program(tmp_path):
    """Runs of a grid have the solutions and the bytes of single runs."""
    base = small("faults=sign_flip", "faults.dropout=0", "faults.liars=0")
    points = grid(base, {"faults.dropout": [0.0, 0.4], "faults.liars": [0.2]})
    assert len({prepare(point).batch_key for point in points}) == 1
    together = run_grid(points, [tmp_path / f"grid{g}" for g in range(len(points))])
    for number, (record, point) in enumerate(zip(together, points, strict=True)):
        alone = run(point, tmp_path / f"{number}")
        assert [row["bytes_up"] for row in record.rows] == [row["bytes_up"] for row in alone.rows]
        np.testing.assert_allclose(record.rows[-1]["objective"], alone.rows[-1]["objective"], rtol=1e-5)
    assert together[1].rows[-1]["bytes_up"] < together[0].rows[-1]["bytes_up"]


@pytest.mark.slow
def test_a_record_says_which_faults_acted(tmp_path):
    """Without any upload the server is as it was, and the record counts such rounds."""
    absences = [*((1, client) for client in range(6)), *((3, client) for client in range(3))]
    config = small(*EXACT, "faults=sign_flip", "faults.liars=2", write_trace(tmp_path, *absences))
    record = run(config, tmp_path / "run")
    assert record.summary["faults"] == {"liars": 2, "dropped": 0.375, "empty_rounds": 1}
    reason = json.loads((tmp_path / "run" / "status.json").read_text())["reason"]
    sentence = (
        "2 of 6 clients lied (faults=sign_flip), aggregate=mean bears 0 of 6 uploads, 37.5 % of the clients of a "
    )
    assert f"{sentence}round dropped out, in 1 of 4 rounds all did, and the server stayed as it was" in reason
    assert record.rows[1]["objective"] == record.rows[0]["objective"]
