"""The leader's commands and the followers' execution of them, in one process, without JAX's own communication."""

import json

import jax
import numpy as np
import pytest
from helpers import fails, small

from fcorun.base.errors import HostLost
from fcorun.base.system.hosts import Hosts
from fcorun.data.datasets.dataset import shard_for_host
from fcorun.experiment import requirements
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare
from fcorun.results.model_outputs import compute_predictions
from fcorun.runs import several_hosts
from fcorun.runs.several_hosts import build_on_all_hosts, load_on_all_hosts, run_follower, run_rounds


class Scripted(Hosts):
    """A host that receives a script of messages, and keeps the messages that it sends."""

    def __init__(self, *script, rank: int = 0):
        super().__init__(rank, ["a", "b"], {})
        self.script, self.sent = list(script), []

    def receive(self, rank: int = 0):
        return self.script.pop(0)

    def check_failures(self, timeout: float = 0.0):
        pass

    def has_message(self, rank: int = 0):
        return bool(self.script)

    def all_failed(self, timeout: float):
        return self.script.pop(0)

    def broadcast(self, command, **arguments):
        self.sent.append(json.loads(json.dumps({"do": command, **arguments})))

    def send(self, **content):
        self.sent.append(json.loads(json.dumps(content)))


@pytest.fixture
def join(monkeypatch):
    """Return a function that makes this process one of two hosts."""

    def join_scripted(*script, rank: int = 0) -> Scripted:
        hosts = Scripted(*script, rank=rank)
        monkeypatch.setattr(several_hosts, "current_hosts", lambda: hosts)
        return hosts

    return join_scripted


EXPERIMENT = prepare(small())
ANSWER = {"identity": EXPERIMENT.identity, "fingerprint": EXPERIMENT.fingerprint}


def test_data_are_loaded_if_all_hosts_have_the_same(join):
    hosts = join(ANSWER)
    assert load_on_all_hosts(EXPERIMENT) is load_data(EXPERIMENT)
    assert hosts.sent == [{"do": "prepare", "config": EXPERIMENT.config}]


@pytest.mark.parametrize(
    ("answer", "message_parts"),
    [({"refused": "data.path=x: there is no such file"}, ["host 1 (b): data.path=x: there is no such file"]),
     (ANSWER | {"fingerprint": "0123456789"}, ["host 1 (b) has other data=lasso than host 0 (a)", "01234567"]),
     (ANSWER | {"identity": "0123456789"}, ["host 1 (b) has other code of this run than host 0 (a)"])],
)  # fmt: skip
def test_a_host_that_differs_is_named(join, answer, message_parts):
    join(answer)
    with fails(*message_parts):
        load_on_all_hosts(EXPERIMENT)


def test_debug_is_refused_on_several_hosts(join):
    hosts = join()
    with fails("debug=true", "hosts"):
        load_on_all_hosts(prepare(small("debug=true")))
    assert not hosts.sent


@pytest.mark.slow
def test_the_leader_announces_each_round_that_is_computed(join):
    hosts = join()
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))
    build_on_all_hosts(engine, EXPERIMENT)
    assert [snapshot.round for snapshot in run_rounds(engine, [EXPERIMENT.numbers()], [0], None, 0)] == [0, 2, 4]
    assert [message["do"] for message in hosts.sent] == ["build", "run", "advance", "advance", "stop"]
    hosts.sent.clear()
    wild = {**EXPERIMENT.numbers(), "algo": EXPERIMENT.numbers()["algo"] | {"client_lr": 1e30}}
    *_, last = run_rounds(engine, [wild], [0], None, 0)
    assert last.diverged.all()
    assert last.round < 4
    assert [message["do"] for message in hosts.sent] == ["run", "advance", "stop"]


def test_an_error_of_one_host_in_a_round_ends_all_hosts(join, monkeypatch):
    hosts = join()
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))

    def run(*_, **__):
        raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed")
        yield

    monkeypatch.setattr(type(engine), "run", run)
    with pytest.raises(HostLost, match=r"host 0 \(a\) failed: .*Gloo all-reduce failed.*; the same command resumes"):
        list(run_rounds(engine, [EXPERIMENT.numbers()], [0], None, 0))
    assert [message["do"] for message in hosts.sent] == ["run"]


@pytest.mark.parametrize("others", [True, False])
def test_a_run_that_fails_on_all_hosts_fails_as_on_one(join, monkeypatch, others):
    hosts = join(others)
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))
    monkeypatch.setattr(type(engine), "_compile", lambda *_: 1 / 0)
    raised = ZeroDivisionError if others else HostLost
    with pytest.raises(raised, match="division by zero"):
        list(run_rounds(engine, [EXPERIMENT.numbers()], [0], None, 0))
    assert [message["do"] for message in hosts.sent] == (["run", "stop"] if others else ["run"])


@pytest.mark.slow
def test_a_follower_executes_commands(join, monkeypatch):
    first = join()
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))
    build_on_all_hosts(engine, EXPERIMENT)
    list(run_rounds(engine, [EXPERIMENT.numbers()], [0], None, 0))
    script = [{"do": "prepare", "config": EXPERIMENT.config}, *first.sent, {"do": "end", "code": 0}]
    second = join(*script, rank=1)
    assert run_follower() == 0
    assert second.sent == [ANSWER]


def test_a_follower_sends_its_errors(join, monkeypatch):
    monkeypatch.setattr(several_hosts, "_ERROR_DELAY", 0)
    monkeypatch.setattr(several_hosts, "_STOP_TIMEOUT", 0.2)
    run = {"do": "run", "points": [EXPERIMENT.numbers()], "seeds": [0], "done": 0}
    wrong = {"do": "prepare", "config": EXPERIMENT.config | {"rounds": -1}}
    second = join(wrong, run, {"do": "advance"}, {"do": "stop"}, {"do": "end", "code": 0}, rank=1)
    assert run_follower() == 0
    refused, failed = second.sent
    assert list(refused) == ["refused"]
    assert "rounds=-1" in refused["refused"]
    assert list(failed) == ["failed"]
    join(run, rank=1)
    with pytest.raises(HostLost, match=r"host 1 \(b\) failed: AssertionError"):  # the leader waits in a round for it
        run_follower()


@pytest.mark.parametrize("rows", ["auto", "own", "all"])
def test_rows_are_sharded_unless_a_run_needs_all(rows, monkeypatch):
    hosts = Scripted(rank=1)
    hosts.rows = rows
    monkeypatch.setattr(requirements, "current_hosts", lambda: hosts)
    assert requirements.choose_shard(EXPERIMENT) == ((0, 1) if rows == "all" else (1, 2))
    for overrides, reason in (
        (["reference=true"], "reference=true solves the problem on all rows"),
        (["gap=true"], "gap=true takes sums over all rows"),
        (["algo=local"], "has personal models"),
        (["algo=fedprox"], "algo=fedprox takes bounds on all clients' losses (give a value for algo.mu)"),
        (["reg.strength=null", "reg.relative=0.1"], "reg.relative takes a gradient on all rows"),
    ):
        experiment = prepare(small(*overrides))
        if rows != "own":
            assert requirements.choose_shard(experiment) == (0, 1)
            continue
        with fails("hosts.rows=own gives each host only the rows of its own clients", reason):
            requirements.choose_shard(experiment)


@pytest.mark.slow
def test_the_leader_gathers_the_predictions_of_all_rows(join, monkeypatch):
    hosts, data = join(), load_data(EXPERIMENT)
    shards, end = [shard_for_host(data, k, 2) for k in range(2)], {"do": "end", "code": 0}
    *_, snapshot = build_engine(EXPERIMENT, data).run([EXPERIMENT.numbers()])
    solution = {name: value[0] for name, value in snapshot.solution.items()}
    hosts.script = [
        {
            "predicted": several_hosts._encode_arrays(
                several_hosts._predict_local(EXPERIMENT.objective, shards[1], solution)
            )
        }
    ]
    predictions_of_all = several_hosts.gather_predictions(EXPERIMENT.objective, shards[0], solution)
    rows = {name: rows.x for name, rows in data.splits.items()}
    assert list(predictions_of_all) == list(rows)
    for name, x in rows.items():
        np.testing.assert_allclose(
            predictions_of_all[name], compute_predictions(EXPERIMENT.objective, solution, x), rtol=1e-6, atol=1e-6
        )
    command, script = hosts.sent[-1], hosts.script
    monkeypatch.setattr(several_hosts, "load_data", lambda _: shards[1])
    second = join({"do": "prepare", "config": EXPERIMENT.config}, command, end, rank=1)
    assert run_follower() == 0
    assert not script
    follower_predictions = several_hosts._decode_arrays(second.sent[-1]["predicted"])
    np.testing.assert_array_equal(
        follower_predictions["train"], predictions_of_all["train"][shards[1].train.x.row_range]
    )
    assert several_hosts.gather_predictions(EXPERIMENT.objective, data, solution) == {}


def test_the_end_may_come_within_a_batch(join, monkeypatch):
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))
    first = join()
    build_on_all_hosts(engine, EXPERIMENT)
    run = {"do": "run", "points": [EXPERIMENT.numbers()], "seeds": [0], "done": 0}
    script = [{"do": "prepare", "config": EXPERIMENT.config}, *first.sent, run, {"do": "advance", "diverged": [0]}]
    join(*script, {"do": "end", "code": 130}, rank=1)
    assert run_follower() == 130


def test_a_follower_computes_the_leaders_rounds(monkeypatch):
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))
    *_, last = engine.run([EXPERIMENT.numbers()], [0])
    outputs, program = [], type(engine)._compile

    def recording(self, function, *arguments):
        compiled = program(self, function, *arguments)
        return lambda *arrays: outputs.append(compiled(*arrays)) or outputs[-1]

    monkeypatch.setattr(type(engine), "_compile", recording)
    engine.follow([EXPERIMENT.numbers()], [0], 0, lambda: np.zeros(1, np.int32))
    state, _ = outputs[-1]
    for leaf, expected_leaf in zip(jax.tree.leaves(state), jax.tree.leaves(last.state), strict=True):
        np.testing.assert_array_equal(leaf, expected_leaf)
