"""Clients' states in a file equal states in memory, also after a process is killed."""

from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import Stop, not_none, run_grid

from fcorun import compose, run
from fcorun.engine.segments.client_states import ClientStateFile, RemoteStates
from fcorun.engine.segments.run_loop import Segments
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare

CLIENTS = 50
FILE = Path("states.bin")
INITIAL = [np.full(3, 7.0), np.array(1, np.int32)]


def random_segments(seed: int, count: int):
    """Yield the clients of each of ``count`` segments, and their states after the segment."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        clients = rng.choice(CLIENTS, rng.integers(1, 9), replace=False)
        yield clients, [rng.random((len(clients), 3)), rng.integers(0, 99, len(clients)).astype(np.int32)]


def test_states_equal_a_plain_dict():
    states, expected = ClientStateFile(FILE, INITIAL, CLIENTS), {}
    for done, (clients, leaves) in enumerate(random_segments(0, 12), 1):
        before = states.read(clients)
        for k, client in enumerate(clients.tolist()):
            for read, leaf, initial in zip(before, expected.get(client, INITIAL), INITIAL, strict=True):
                np.testing.assert_array_equal(read[k], leaf)
                assert read.dtype == initial.dtype
            expected[client] = [leaf[k] for leaf in leaves]
        states.write(clients, leaves, done)
    assert states.count_participants(np.arange(CLIENTS)) == len(expected) < CLIENTS


@pytest.mark.parametrize("checkpointed", range(0, 9, 2))
@pytest.mark.parametrize("lost", [0, 1, 5])
def test_a_file_resumes_from_its_checkpoint_whatever_was_written_since(checkpointed, lost):
    segments = list(random_segments(1, 14))
    unbroken, broken = ClientStateFile(None, INITIAL, CLIENTS), ClientStateFile(FILE, INITIAL, CLIENTS)
    for number, (clients, leaves) in enumerate(segments[: checkpointed + lost], 1):
        broken.write(clients, leaves, number)
        if number % 2 == 0 and number <= checkpointed:
            broken.checkpoint()
    for number, (clients, leaves) in enumerate(segments[:checkpointed], 1):
        unbroken.write(clients, leaves, number)
    again = ClientStateFile(FILE, INITIAL, CLIENTS, checkpointed)
    for number, (clients, leaves) in enumerate(segments[checkpointed:], checkpointed + 1):
        for one, other in zip(unbroken.read(np.arange(CLIENTS)), again.read(np.arange(CLIENTS)), strict=True):
            np.testing.assert_array_equal(one, other)
        unbroken.write(clients, leaves, number)
        again.write(clients, leaves, number)


def test_the_file_has_slots_of_participants_only():
    states = ClientStateFile(FILE, [np.zeros(1000)], 100_000)
    states.write(np.array([99_999, 3]), [np.ones((2, 1000))], 1)
    assert FILE.stat().st_size < 2**20
    np.testing.assert_array_equal(states.read(np.array([3, 4, 99_999]))[0].sum(axis=1), [1000, 0, 1000])


SMALL = ["data=lasso_million", "data.clients=40", "data.samples=7", "data.features=10", "data.nonzeros=5"]
SMALL += ["data.evaluated=3", "clients_per_round=6", "rounds=12", "eval_every=3", "batch_size=3", "checkpoint_every=0"]
KINDS = {
    "scaffold": ["algo=scaffold", "algo.client_lr=0.05"],
    "pfedme": ["algo=pfedme", "local_epochs=2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lasts", [0, 6, 9])
def test_a_resumed_run_equals_an_unbroken_one(kind, lasts):
    config = compose([*SMALL, *KINDS[kind]])
    whole = run(config, "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, "broken", Stop(lasts))
    assert (Path("broken") / ".states.bin").exists()
    again = run(config, "broken")
    for name in whole.solution:
        np.testing.assert_array_equal(again.solution[name], whole.solution[name])
    assert again.metrics.drop(columns="seconds").equals(whole.metrics.drop(columns="seconds"))
    assert not list(Path("broken").glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize(("call", "rounds"), [(1, 3), (3, 3), (5, 1)])  # rounds of a segment, three between evaluations
@pytest.mark.parametrize("after", [False, True])
def test_a_run_killed_while_it_writes_states_resumes(call, rounds, after, monkeypatch):
    if rounds == 1:
        monkeypatch.setattr("fcorun.engine.segments.run_loop._STATE_BYTES", 0)
    config = compose([*SMALL, *KINDS["scaffold"]])
    whole, write, calls = run(config, "whole"), ClientStateFile.write, []

    def interrupted(self, clients, leaves, rounds_done):
        calls.append(rounds_done)
        if len(calls) == call:
            written = slice(None) if after else slice(3)
            write(self, clients[written], [leaf[written] for leaf in leaves], rounds_done)
            raise KeyboardInterrupt
        write(self, clients, leaves, rounds_done)

    with monkeypatch.context() as patch:
        patch.setattr(ClientStateFile, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(config, "broken")
    again = run(config, "broken")
    np.testing.assert_array_equal(again.solution["weights"], whole.solution["weights"])
    assert calls == [*range(rounds, 13, rounds)][:call]


@pytest.mark.slow
def test_runs_of_a_grid_have_their_own_files_and_equal_single_runs():
    rates = [("0.05", 0), ("0.02", 0), ("0.05", 1)]
    configs = [compose([*SMALL, "algo=scaffold", f"algo.client_lr={lr}", f"seed={seed}"]) for lr, seed in rates]
    together = run_grid(configs, [f"grid{k}" for k in range(3)])
    for k, (config, one) in enumerate(zip(configs, together, strict=True)):
        alone = run(config, f"alone{k}")
        for name in one.solution:
            np.testing.assert_allclose(one.solution[name], alone.solution[name], rtol=2e-5, atol=2e-6)


@pytest.mark.slow
def test_the_status_counts_participants_among_evaluated_clients():
    record = run(compose([*SMALL, *KINDS["pfedme"], "data.evaluated=20", "clients_per_round=2"]), "few")
    experiment = prepare(record.config)
    cohorts = build_engine(experiment, load_data(experiment)).federation.schedule.draw_rounds(0, 12).cohort
    present = len(set(cohorts.ravel().tolist()) & set(range(20)))
    assert 0 < present < 20
    assert f"personal models are of 20 evaluated clients, of whom {present} have taken part" in record.status["reason"]
    assert np.isfinite(record.metrics["personal_train_loss"].to_numpy()).all()


@pytest.mark.slow
@pytest.mark.parametrize(("allowed", "expected"), [(None, [8]), (3, [3, 3, 2]), (0, [1] * 8)])
def test_a_segment_is_shorter_where_its_states_are_large(allowed, expected, monkeypatch):
    experiment = prepare(compose([*SMALL, *KINDS["scaffold"], "rounds=8", "eval_every=8"]))
    engine = build_engine(experiment, load_data(experiment))
    next_segment, lengths = Segments.next_segment, []

    def record_length(self, rounds_done):
        segment = next_segment(self, rounds_done)
        lengths.append(segment and segment.n_rounds)
        return segment

    points = [experiment.numbers()] * 2
    uncut = list(engine.run(points))[-1]
    if allowed is not None:
        two_runs_of_six_clients = 2 * 6 * 11 * 4
        monkeypatch.setattr("fcorun.engine.segments.run_loop._STATE_BYTES", allowed * two_runs_of_six_clients)
    monkeypatch.setattr(Segments, "next_segment", record_length)
    cut = list(engine.run(points))[-1]
    assert lengths == [*expected, None]
    states = [
        RemoteStates(states.initial) for states in not_none(engine.open_client_states(points, [0, 0], [None] * 2))
    ]
    other = Segments(engine.federation, [0, 0], states, rounds=8, eval_every=8)  # of a follower
    assert [not_none(next_segment(other, done)).n_rounds for done in np.cumsum([0, *expected[:-1]])] == expected
    np.testing.assert_allclose(cut.solution["weights"], uncut.solution["weights"], rtol=1e-5, atol=1e-6)
    assert (cut.work == uncut.work).all()


@pytest.mark.slow
@pytest.mark.parametrize("clients", [20_000, 1_000_000])
def test_states_of_a_segment_are_small_for_any_number_of_clients(clients):
    overrides = [f"data.clients={clients}", "data.evaluated=1", "rounds=200", "eval_every=200"]
    experiment = prepare(compose(["algo=scaffold", "data=lasso_million", *overrides]))
    engine = build_engine(experiment, load_data(experiment))
    points, seeds = [experiment.numbers()], [0]
    states = engine.open_client_states(points, seeds, [None])
    segments = Segments(engine.federation, seeds, states, rounds=200, eval_every=200)
    segment, state = segments.next_segment(0), engine.initial_state(points)
    assert segment is not None
    loaded = segments.load_client_states(state, segment)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(loaded["clients"])) <= 2**23
