"""Clients' states in a file: as if they were in memory, and whole whenever a process is killed."""

from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import Stop, not_none

from fcorun import compose, run, run_grid
from fcorun.engine.segments.client_states import ClientStateFile, RemoteStates
from fcorun.engine.segments.segment import Segments
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare

CLIENTS = 50
FILE = Path("states.bin")
INITIAL = [np.full(3, 7.0), np.array(1, np.int32)]


def stretches(seed: int, count: int):
    """Clients of each of so many stretches, and their states after it."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        clients = rng.choice(CLIENTS, rng.integers(1, 9), replace=False)
        yield clients, [rng.random((len(clients), 3)), rng.integers(0, 99, len(clients)).astype(np.int32)]


def test_states_are_those_of_a_plain_table():
    states, plain = ClientStateFile(FILE, INITIAL, CLIENTS), {}
    for done, (clients, leaves) in enumerate(stretches(0, 12), 1):
        before = states.read(clients)
        for k, client in enumerate(clients.tolist()):
            for found, leaf, first in zip(before, plain.get(client, INITIAL), INITIAL, strict=True):
                np.testing.assert_array_equal(found[k], leaf)
                assert found.dtype == first.dtype
            plain[client] = [leaf[k] for leaf in leaves]
        states.write(clients, leaves, done)
    assert states.count_participants(np.arange(CLIENTS)) == len(plain) < CLIENTS


@pytest.mark.parametrize("kept", range(0, 9, 2))
@pytest.mark.parametrize("lost", [0, 1, 5])
def test_a_file_goes_on_from_where_it_was_kept_whatever_was_written_since(kept, lost):
    told = list(stretches(1, 14))
    unbroken, broken = ClientStateFile(None, INITIAL, CLIENTS), ClientStateFile(FILE, INITIAL, CLIENTS)
    for done, (clients, leaves) in enumerate(told[: kept + lost], 1):
        broken.write(clients, leaves, done)
        if done % 2 == 0 and done <= kept:
            broken.checkpoint()
    for done, (clients, leaves) in enumerate(told[:kept], 1):
        unbroken.write(clients, leaves, done)
    again = ClientStateFile(FILE, INITIAL, CLIENTS, kept)
    for done, (clients, leaves) in enumerate(told[kept:], kept + 1):
        for one, other in zip(unbroken.read(np.arange(CLIENTS)), again.read(np.arange(CLIENTS)), strict=True):
            np.testing.assert_array_equal(one, other)
        unbroken.write(clients, leaves, done)
        again.write(clients, leaves, done)


def test_the_file_takes_what_those_take_who_took_part():
    states = ClientStateFile(FILE, [np.zeros(1000)], 100_000)
    states.write(np.array([99_999, 3]), [np.ones((2, 1000))], 1)
    assert FILE.stat().st_size < 2**20
    np.testing.assert_array_equal(states.read(np.array([3, 4, 99_999]))[0].sum(axis=1), [1000, 0, 1000])


LITTLE = ["data=lasso_million", "data.clients=40", "data.samples=7", "data.features=10", "data.nonzeros=5"]
LITTLE += ["data.evaluated=3", "clients_per_round=6", "rounds=12", "eval_every=3", "batch_size=3", "checkpoint_every=0"]
KINDS = {
    "scaffold": ["algo=scaffold", "algo.client_lr=0.05"],
    "pfedme": ["algo=pfedme", "local_epochs=2"],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lasts", [0, 6, 9])
def test_a_broken_run_goes_on_to_the_numbers_of_an_unbroken_one(kind, lasts):
    config = compose([*LITTLE, *KINDS[kind]])
    whole = run(config, "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, "broken", Stop(lasts))
    assert (Path("broken") / ".states.bin").exists()
    again = run(config, "broken")
    for name in whole.solution:
        np.testing.assert_array_equal(again.solution[name], whole.solution[name])
    assert again.metrics.drop(columns="seconds").equals(whole.metrics.drop(columns="seconds"))
    assert not list(Path("broken").glob(".*"))


@pytest.mark.parametrize(("call", "rounds"), [(1, 3), (3, 3), (5, 1)])  # of each stretch, of three to an evaluation
@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_is_broken_off_while_it_writes_goes_on_as_well(call, rounds, after, monkeypatch):
    if rounds == 1:
        monkeypatch.setattr("fcorun.engine.segments.segment._STATE_BYTES", 0)
    config = compose([*LITTLE, *KINDS["scaffold"]])
    whole, write, calls = run(config, "whole"), ClientStateFile.write, []

    def broken_off(self, clients, leaves, done):
        calls.append(done)
        if len(calls) == call:
            write(self, clients if after else clients[:3], [leaf if after else leaf[:3] for leaf in leaves], done)
            raise KeyboardInterrupt
        write(self, clients, leaves, done)

    with monkeypatch.context() as patch:
        patch.setattr(ClientStateFile, "write", broken_off)
        with pytest.raises(KeyboardInterrupt):
            run(config, "broken")
    again = run(config, "broken")
    np.testing.assert_array_equal(again.solution["weights"], whole.solution["weights"])
    assert calls == [*range(rounds, 13, rounds)][:call]


def test_runs_of_a_grid_have_a_file_each_and_the_numbers_of_runs_alone():
    rates = [("0.05", 0), ("0.02", 0), ("0.05", 1)]
    configs = [compose([*LITTLE, "algo=scaffold", f"algo.client_lr={lr}", f"seed={seed}"]) for lr, seed in rates]
    together = run_grid(configs, [f"grid{k}" for k in range(3)])
    for k, (config, one) in enumerate(zip(configs, together, strict=True)):
        alone = run(config, f"alone{k}")
        for name in one.solution:
            np.testing.assert_allclose(one.solution[name], alone.solution[name], rtol=2e-5, atol=2e-6)


def test_who_has_taken_part_is_said_where_own_models_are_measured():
    record = run(compose([*LITTLE, *KINDS["pfedme"], "data.evaluated=20", "clients_per_round=2"]), "few")
    assert "own models are of 20 evaluated clients, of whom" in record.status["reason"]
    assert np.isfinite(record.metrics["personal_train_loss"].to_numpy()).all()


@pytest.mark.parametrize(("room", "told"), [(None, [8]), (3, [3, 3, 2]), (0, [1] * 8)])
def test_a_stretch_is_cut_where_its_states_take_too_much(room, told, monkeypatch):
    experiment = prepare(compose([*LITTLE, *KINDS["scaffold"], "rounds=8", "eval_every=8"]))
    whole, after, counts = build_engine(experiment, load_data(experiment)), Segments.next_segment, []

    def noted(self, done):
        found = after(self, done)
        counts.append(found and found.n_rounds)
        return found

    points = [experiment.numbers()] * 2
    uncut = list(whole.run(points))[-1]
    if room is not None:
        monkeypatch.setattr(
            "fcorun.engine.segments.segment._STATE_BYTES", room * 2 * 6 * 11 * 4
        )  # two runs of six clients
    monkeypatch.setattr(Segments, "next_segment", noted)
    found = list(whole.run(points))[-1]
    assert counts == [*told, None]
    states = [RemoteStates(states.initial) for states in not_none(whole.open_client_states(points, [0, 0], [None] * 2))]
    other = Segments(whole.federation, [0, 0], states, rounds=8, eval_every=8)  # of a host that follows
    assert [not_none(after(other, done)).n_rounds for done in np.cumsum([0, *told[:-1]])] == told
    np.testing.assert_allclose(found.solution["weights"], uncut.solution["weights"], rtol=1e-5, atol=1e-6)
    assert (found.work == uncut.work).all()


@pytest.mark.parametrize("clients", [20_000, 1_000_000])
def test_states_of_a_stretch_take_little_whatever_the_clients_and_evaluations(clients):
    asked = [f"data.clients={clients}", "data.evaluated=1", "rounds=200", "eval_every=200"]
    experiment = prepare(compose(["algo=scaffold", "data=lasso_million", *asked]))
    engine = build_engine(experiment, load_data(experiment))
    points, seeds = [experiment.numbers()], [0]
    states = engine.open_client_states(points, seeds, [None])
    stretches = Segments(engine.federation, seeds, states, rounds=200, eval_every=200)
    stretch, start = stretches.next_segment(0), engine.initial_state(points)
    assert stretch is not None
    begun = stretches.load_client_states(start, stretch)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(begun["clients"])) <= 2**23
