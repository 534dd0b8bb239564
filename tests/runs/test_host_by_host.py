"""What the first of several hosts says, and what the others do of it; in one process, without JAX's own part."""

import json

import jax
import numpy as np
import pytest
from helpers import fails, small

from fcorun.errors import HostLost
from fcorun.experiment import row_requirements
from fcorun.experiment.build import build_engine, load_data
from fcorun.experiment.prepare import prepare
from fcorun.models.forward import compute_predictions
from fcorun.rows.host_rows import shard_for_host
from fcorun.runs.hosts import follower, leader, prediction
from fcorun.runs.hosts.follower import run_follower
from fcorun.runs.hosts.leader import build_on_all_hosts, load_on_all_hosts, run_rounds
from fcorun.system.hosts import Hosts


class Scripted(Hosts):
    """A host that hears what is written, and keeps what it says."""

    def __init__(self, *script, rank: int = 0):
        super().__init__(rank, ["a", "b"], {})
        self.connections = dict.fromkeys([1 - rank])  # type: ignore[assignment]
        self.script, self.said = list(script), []

    def hear(self, rank: int = 0):
        return self.script.pop(0)

    def heed(self, patience: float = 0.0):
        pass

    def failed(self, patience: float):
        return self.script.pop(0)

    def tell(self, do, **more):
        self.said.append(json.loads(json.dumps({"do": do, **more})))

    def say(self, **more):
        self.said.append(json.loads(json.dumps(more)))


@pytest.fixture
def among(monkeypatch):
    """A function that puts this process among hosts."""

    def put(*script, rank: int = 0) -> Scripted:
        hosts = Scripted(*script, rank=rank)
        for room in (leader, follower):
            monkeypatch.setattr(room, "current_hosts", lambda: hosts)
        return hosts

    return put


EXPERIMENT = prepare(small())
ALIKE = {"identity": EXPERIMENT.identity, "fingerprint": EXPERIMENT.fingerprint, "on_disk": False}


def test_the_data_are_loaded_where_all_have_the_same(among):
    hosts = among(ALIKE)
    assert load_on_all_hosts(EXPERIMENT) is load_data(EXPERIMENT)
    assert hosts.said == [{"do": "prepare", "config": EXPERIMENT.config}]


@pytest.mark.parametrize(
    ("answer", "words"),
    [({"refused": "data.path=x: there is no such file"}, ["host 1 (b): data.path=x: there is no such file"]),
     (ALIKE | {"fingerprint": "0123456789"}, ["host 1 (b) has other data=lasso than host 0 (a)", "01234567"]),
     (ALIKE | {"on_disk": True}, ["the rows stay on disk on host 1 (b), and not on host 0 (a): give data.resident"]),
     (ALIKE | {"identity": "0123456789"}, ["host 1 (b) has other code of this run than host 0 (a)"])],
)  # fmt: skip
def test_a_host_that_differs_is_named(among, answer, words):
    among(answer)
    with fails(*words):
        load_on_all_hosts(EXPERIMENT)


def test_debugging_is_refused(among):
    hosts = among()
    with fails("debug=true", "hosts"):
        load_on_all_hosts(prepare(small("debug=true")))
    assert not hosts.said


def test_each_round_is_told_but_not_those_that_nobody_computes(among):
    hosts = among()
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))
    build_on_all_hosts(engine, EXPERIMENT)
    assert [now.round for now in run_rounds(engine, [EXPERIMENT.numbers()], [0], None, 0)] == [0, 2, 4]
    assert [told["do"] for told in hosts.said] == ["build", "run", "advance", "advance", "stop"]
    hosts.said.clear()
    wild = {**EXPERIMENT.numbers(), "algo": EXPERIMENT.numbers()["algo"] | {"client_lr": 1e30}}
    *_, last = run_rounds(engine, [wild], [0], None, 0)
    assert last.diverged.all()
    assert last.round < 4
    assert [told["do"] for told in hosts.said] == ["run", "advance", "stop"]


def test_what_goes_wrong_in_a_round_ends_all(among, monkeypatch):
    hosts = among()
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))

    def run(*_, **__):
        raise jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed")
        yield

    monkeypatch.setattr(type(engine), "run", run)
    with pytest.raises(HostLost, match=r"host 0 \(a\) failed: .*Gloo all-reduce failed.*; the same command goes on"):
        list(run_rounds(engine, [EXPERIMENT.numbers()], [0], None, 0))
    assert [told["do"] for told in hosts.said] == ["run"]


@pytest.mark.parametrize("others", [True, False])
def test_a_run_that_fails_on_all_hosts_fails_as_on_one(among, monkeypatch, others):
    hosts = among(others)
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))
    monkeypatch.setattr(type(engine), "_program", lambda *_: 1 / 0)
    raised = ZeroDivisionError if others else HostLost
    with pytest.raises(raised, match="division by zero"):
        list(run_rounds(engine, [EXPERIMENT.numbers()], [0], None, 0))
    assert [told["do"] for told in hosts.said] == (["run", "stop"] if others else ["run"])


def test_another_host_does_what_it_is_told(among, monkeypatch):
    first = among()
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))
    build_on_all_hosts(engine, EXPERIMENT)
    list(run_rounds(engine, [EXPERIMENT.numbers()], [0], None, 0))
    told = [{"do": "prepare", "config": EXPERIMENT.config}, *first.said, {"do": "end", "code": 0, "why": ""}]
    second = among(*told, rank=1)
    assert run_follower() == 0
    assert second.said == [ALIKE]
    assert second.over


def test_another_host_says_what_it_cannot_do(among, monkeypatch):
    monkeypatch.setattr(follower, "_ERROR_DELAY", 0)
    run = {"do": "run", "points": [EXPERIMENT.numbers()], "seeds": [0], "done": 0}
    wrong = EXPERIMENT.config | {"rounds": -1}
    end = {"do": "end", "code": 1, "why": "host 1 (b) failed: too bad; the same command goes on"}
    second = among({"do": "prepare", "config": wrong}, run, end, rank=1)
    with pytest.raises(HostLost, match=r"host 1 .* too bad"):
        run_follower()
    assert list(second.said[0]) == ["refused"]
    assert "rounds=-1" in second.said[0]["refused"]
    assert list(second.said[1]) == ["failed"]


@pytest.mark.parametrize("rows", ["auto", "own", "all"])
def test_each_host_has_the_rows_of_its_clients_unless_a_run_needs_all(rows, monkeypatch):
    hosts = Scripted(rank=1)
    hosts.rows = rows
    monkeypatch.setattr(row_requirements, "current_hosts", lambda: hosts)
    assert row_requirements.choose_shard(EXPERIMENT) == ((0, 1) if rows == "all" else (1, 2))
    for given, says in (
        (["reference=true"], "reference=true solves the problem on all rows"),
        (["algo=local"], "has models of the clients' own"),
        (["algo=fedprox"], "algo=fedprox takes bounds on all clients' losses (give a value for algo.mu)"),
        (["reg.strength=null", "reg.relative=0.1"], "reg.relative takes a gradient on all rows"),
    ):
        experiment = prepare(small(*given))
        if rows != "own":
            assert row_requirements.choose_shard(experiment) == (0, 1)
            continue
        with fails("hosts.rows=own leaves each host the rows of its own clients", says):
            row_requirements.choose_shard(experiment)


def test_predictions_of_all_rows_come_together_on_the_first_host(among, monkeypatch):
    hosts, data = among(), load_data(EXPERIMENT)
    parts, end = [shard_for_host(data, k, 2) for k in range(2)], {"do": "end", "code": 0, "why": ""}
    *_, now = build_engine(EXPERIMENT, data).run([EXPERIMENT.numbers()])
    solution = {name: value[0] for name, value in now.solution.items()}
    monkeypatch.setattr(prediction, "current_hosts", lambda: hosts)
    hosts.script = [
        {"predicted": prediction.encode_arrays(prediction.predict_local(EXPERIMENT.objective, parts[1], solution))}
    ]
    found = prediction.gather_predictions(EXPERIMENT.objective, parts[0], solution)
    rows = {name: x for name, (x, _) in data.splits.items()}
    assert list(found) == list(rows)
    for name, x in rows.items():
        np.testing.assert_allclose(
            found[name], compute_predictions(EXPERIMENT.objective, solution, x), rtol=1e-6, atol=1e-6
        )
    told, said = hosts.said[-1], hosts.script
    monkeypatch.setattr(follower, "load_data", lambda _: parts[1])
    second = among({"do": "prepare", "config": EXPERIMENT.config}, told, end, rank=1)
    assert run_follower() == 0
    assert not said
    theirs = prediction.decode_arrays(second.said[-1]["predicted"])
    np.testing.assert_array_equal(theirs["train"], found["train"][parts[1].x.rows])
    assert prediction.gather_predictions(EXPERIMENT.objective, data, solution) == {}


def test_the_end_may_come_within_a_batch(among, monkeypatch):
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))
    first = among()
    build_on_all_hosts(engine, EXPERIMENT)
    run = {"do": "run", "points": [EXPERIMENT.numbers()], "seeds": [0], "done": 0}
    told = [{"do": "prepare", "config": EXPERIMENT.config}, *first.said, run, {"do": "advance", "diverged": [0]}]
    among(*told, {"do": "end", "code": 130, "why": ""}, rank=1)
    assert run_follower() == 130


def test_following_computes_the_same_rounds(monkeypatch):
    engine = build_engine(EXPERIMENT, load_data(EXPERIMENT))
    *_, last = engine.run([EXPERIMENT.numbers()], [0])
    seen, program = [], type(engine)._program

    def watched(self, function, *given):
        compiled = program(self, function, *given)
        return lambda *now: seen.append(compiled(*now)) or seen[-1]

    monkeypatch.setattr(type(engine), "_program", watched)
    engine.follow([EXPERIMENT.numbers()], [0], 0, lambda: np.zeros(1, np.int32))
    state, _ = seen[-1]
    for found, expected in zip(jax.tree.leaves(state), jax.tree.leaves(last.state), strict=True):
        np.testing.assert_array_equal(found, expected)
