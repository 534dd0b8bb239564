"""The asynchronous server and clocks: arrivals against a queue of events, runs against FedBuff in NumPy."""

import heapq
from pathlib import Path

import numpy as np
import pytest
from helpers import choice_names, engine_of, fails, not_none, ragged, small, small_for, traits_of, verify, write_choice

from fcorun import compose, run
from fcorun.base.errors import UserError
from fcorun.engine.schedule import order_arrivals
from fcorun.experiment.build import load_data
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks import communication
from fcorun.methods.clocks.clock import ClientSpeeds, LognormalClock, TraceClock

CLOCK = ("clock=lognormal", "clients_per_round=null")
ASYNCHRONOUS = (*CLOCK, "topology=asynchronous", "topology.buffer=3")
CASE = communication.CommunicationCase("topology", "asynchronous", ("clock=lognormal", "topology.buffer=2"))
SIZES = (4, 7, 2, 5)

TWICE = """
from dataclasses import dataclass

from fcorun import FedAvg


@dataclass(frozen=True)
class Twice(FedAvg):
    source = "ours"

    def local(self, problem, server, client, data):
        first, client = super().local(problem, server, client, data)
        second, client = super().local(problem, server + first, client, data)
        return first + second, client
"""

RARE = """
from dataclasses import dataclass

from fcorun import FedAvg


@dataclass(frozen=True)
class Rare(FedAvg):
    source = "ours"

    def round_bytes(self, number, uploads, broadcasts):
        return (uploads, broadcasts) if number % 10 == 0 else ((0,), (0,))
"""


@pytest.mark.slow
@pytest.mark.parametrize("check", communication.TOPOLOGY_CHECKS, ids=lambda check: check.__name__)
def test_the_asynchronous_server_has_the_properties_of_topologies(check):
    verify(check, CASE)


@pytest.mark.parametrize("name", [name for name in choice_names("clock") if name != "trace"])
def test_every_clock_gives_positive_speeds(name):
    communication.check_speeds(prepare(small("algo=fedavg", f"clock={name}")).clock)


def test_arrivals_come_in_the_order_of_a_queue():
    seconds = np.random.default_rng(0).lognormal(0, 1, (5, 64))
    arrivals = order_arrivals(lambda count: seconds[:, :count], 40)
    queue, begun, count = [(seconds[m, 0], m) for m in range(5)], [0] * 5, [1] * 5
    heapq.heapify(queue)
    for number in range(40):
        now, client = heapq.heappop(queue)
        assert (arrivals.clients[number], arrivals.starts[number]) == (client, begun[client])
        np.testing.assert_allclose(arrivals.seconds[number], now, rtol=1e-12)
        heapq.heappush(queue, (now + seconds[client, count[client]], client))
        begun[client], count[client] = number + 1, count[client] + 1


@pytest.mark.slow
@pytest.mark.parametrize(("balance", "compressed"), [(False, False), (True, True)])
def test_fedavg_with_an_asynchronous_server_is_fedbuff(tmp_path, balance, compressed):
    """Full batches of least squares without an intercept, two local steps, buffers of three.

    With compression a client sends the two largest numbers of its update and of what it has not sent before.
    """
    options = (*ASYNCHRONOUS, "algo=fedavg", "algo.client_lr=0.05", "algo.server_lr=0.7", "reg=none", "rounds=40")
    options += ("local_epochs=2", "batch_size=null", "precision=float64", "eval_every=1", "objective.intercept=false")
    options += (f"topology.balance_arrivals={str(balance).lower()}",)
    if compressed:
        options += ("uplink=topk", "uplink.fraction=0.3", "uplink.feedback=ef")
    config = ragged(tmp_path, *options, sizes=SIZES)
    data, engine = load_data(prepare(config)), engine_of(config)
    arrivals = engine.federation.schedule.arrivals(40)
    clients = np.repeat(np.arange(len(SIZES)), SIZES)
    x, y, share = data.train.x.astype(float), data.train.y.astype(float), np.array(SIZES) / sum(SIZES)
    model, buffer, counts = np.zeros(x.shape[1]), np.zeros(x.shape[1]), np.zeros(len(SIZES))
    begun, start = [model] * len(SIZES), np.zeros(len(SIZES), int)
    owed = np.zeros((len(SIZES), x.shape[1]))
    for number in range(40):
        m = arrivals.clients[number]
        w, own_x, own_y = begun[m].copy(), x[clients == m], y[clients == m]
        for _ in range(2):
            w -= 0.05 * 2 * own_x.T @ (own_x @ w - own_y) / len(own_y)
        weight = len(SIZES) * share[m] * (1 + number // 3 - start[m] // 3) ** -0.5
        counts[m] += 1
        sent = w - begun[m]
        if compressed:
            owed[m] += sent
            sent = np.where(np.abs(owed[m]) >= np.sort(np.abs(owed[m]))[-2], owed[m], 0)
            owed[m] -= sent
        buffer += (weight / (len(SIZES) * counts[m] / (number + 1)) if balance else weight) * sent / 3
        if (number + 1) % 3 == 0:
            model, buffer = model + 0.7 * buffer, np.zeros_like(buffer)
        begun[m], start[m] = model, number + 1
    record = run(config, tmp_path / "run")
    np.testing.assert_allclose(record.solution["weights"].ravel(), model, rtol=1e-9)
    np.testing.assert_allclose(record.metrics["simulated_seconds"], [0, *arrivals.seconds[:40]])
    staleness = [number // 3 - arrivals.starts[number] // 3 for number in range(40)]
    assert record.metrics["mean_staleness"].iloc[-1] == pytest.approx(np.mean(staleness))


@pytest.mark.slow
@pytest.mark.parametrize("options", [("clients_per_round=3",), (*ASYNCHRONOUS[1:],)], ids=["star", "asynchronous"])
def test_every_generated_client_has_a_speed(options, tmp_path):
    """The losses of 100 clients are measured, and all 300 take part."""
    options = ("algo=fedavg", "data=lasso_million", "data.clients=300", "clock=lognormal", "rounds=6", *options)
    config = compose([*options, "eval_every=6"])
    schedule = engine_of(config).federation.schedule
    assert not_none(schedule.times).speeds.latency.shape == (300,)
    assert run(config, tmp_path / "run").metrics["simulated_seconds"].iloc[-1] > 0


@pytest.mark.slow
def test_one_client_and_no_buffer_are_a_star(tmp_path):
    options = ("algo=feddualavg", "rounds=5", "precision=float64", "reg.strength=0.01", *CLOCK)
    star = run(ragged(tmp_path, *options, sizes=(6,)), tmp_path / "star")
    alone = run(ragged(tmp_path, *options, *ASYNCHRONOUS[2:3], "topology.buffer=1", sizes=(6,)), tmp_path / "alone")
    np.testing.assert_allclose(alone.solution["weights"], star.solution["weights"], rtol=1e-12)
    np.testing.assert_allclose(alone.metrics["simulated_seconds"], star.metrics["simulated_seconds"], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("algo", choice_names("algo"))
def test_a_clock_counts_the_gradients_of_every_algorithm_that_it_accepts(algo, tmp_path):
    """Without latency and bytes' time, and with one client, a run takes its gradients times a constant."""
    free = ("clock.latency=0", "clock.bytes_per_second=1e30", "clock.variation=0", "clock.speed_spread=0")
    config = small_for(algo, *CLOCK, *free, "clock.gradients_per_second=10", "data.clients=1", "rounds=2")
    try:
        record = run(config, tmp_path / "run")
    except UserError as error:
        assert "clock=lognormal" in str(error) or "clock" in str(error)  # noqa: PT017
        return
    last = record.metrics.iloc[-1]
    assert last["simulated_seconds"] == pytest.approx(last["grad_evals"] / 10)


@pytest.mark.slow
def test_a_clock_refuses_an_algorithm_that_takes_its_steps_twice(user_module, tmp_path):
    """Such an algorithm declares nothing, so that only the count of gradients shows it."""
    user_module("twice", TWICE)
    write_choice(tmp_path / "conf", "algo", "twice", "class: twice.Twice\nclient_lr: 0.01\nserver_lr: 1.0")
    with use_config_dir(tmp_path / "conf"), fails("one gradient for each row", "leave clock out"):
        run(small("algo=twice", *CLOCK), tmp_path / "run")


@pytest.mark.parametrize("options", [CLOCK, ASYNCHRONOUS], ids=["star", "asynchronous"])
def test_a_clock_refuses_messages_that_differ_from_round_to_round(options, user_module, tmp_path):
    user_module("rare", RARE)
    write_choice(tmp_path / "conf", "algo", "rare", "class: rare.Rare\nclient_lr: 0.01\nserver_lr: 1.0")
    with use_config_dir(tmp_path / "conf"), fails("of the same sizes in every round", "leave clock out"):
        prepare(small("algo=rare", *options))


@pytest.mark.slow
def test_a_round_lasts_as_long_as_its_slowest_client(tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text("client,gradients_per_second,bytes_per_second,latency\n0,10,100,1\n1,5,1000,0\n2,7,50,2\n3,9,9,0\n")
    config = ragged(tmp_path, "algo=fedavg", "rounds=2", "clock=trace", f"clock.path={path}", sizes=SIZES)
    record = run(config, tmp_path / "run")
    speeds = np.loadtxt(path, delimiter=",", skiprows=1)[:, 1:]
    n_bytes = record.metrics["bytes_up"].iloc[-1] / 2 / len(SIZES)
    clients = zip(speeds, SIZES, strict=True)
    expected = max(2 * (late + n_bytes / link) + n / speed for (speed, link, late), n in clients)
    assert record.metrics["simulated_seconds"].iloc[-1] == pytest.approx(2 * expected)


@pytest.mark.slow
def test_a_deadline_ends_local_steps(tmp_path):
    """Four clients of one speed: in 5 seconds, batches of 2 rows at a row a second are 2 steps; the first is taken."""
    options = ("algo=fedavg", "batch_size=2", "rounds=1", "clock=lognormal", "clock.gradients_per_second=1")
    options += ("clock.speed_spread=0", "clock.variation=0", "clock.latency=0", "clock.bytes_per_second=1e30")
    gradients = {}
    for deadline in (0.1, 5, 100):
        config = ragged(tmp_path, *options, f"clock.deadline={deadline}", sizes=SIZES)
        last = run(config, tmp_path / str(deadline)).metrics.iloc[-1]
        gradients[deadline] = last["grad_evals"]
        assert last["simulated_seconds"] == {0.1: 2, 5: 5, 100: 7}[deadline]
    assert gradients == {0.1: 2 * 4, 5: 4 + 4 + 2 + 5, 100: sum(SIZES)}


@pytest.mark.slow
def test_steps_that_end_at_the_deadline_count_and_the_others_last_until_then(tmp_path):
    """Steps of 3 rows at 10 rows a second end at 0.3, at 0.6, which is rounded to more, and at 0.9 seconds."""
    options = ("algo=fedavg", "batch_size=3", "local_steps=4", "local_epochs=null", "rounds=1", "clock=lognormal")
    options += ("clock.gradients_per_second=10", "clock.speed_spread=0", "clock.variation=0", "clock.latency=0")
    last = {}
    for deadline in (0.6, 0.7):
        changed = (*options, "clock.bytes_per_second=1e30", f"clock.deadline={deadline}")
        last[deadline] = run(ragged(tmp_path, *changed, sizes=(12, 12)), tmp_path / str(deadline)).metrics.iloc[-1]
    assert [row["grad_evals"] for row in last.values()] == [2 * 6, 2 * 6]
    assert [row["simulated_seconds"] for row in last.values()] == pytest.approx([0.6, 0.7])


def test_speeds_keep_their_law():
    clock = LognormalClock(gradients_per_second=50.0, speed_spread=0.5, bytes_per_second=3.0, link_spread=0.0)
    speeds = clock.speeds([str(m) for m in range(4000)])
    assert isinstance(speeds, ClientSpeeds)
    assert np.log(speeds.gradients_per_second / 50).std() == pytest.approx(0.5, rel=0.05)
    assert (speeds.bytes_per_second == 3).all()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("algo=fedavg", "topology=asynchronous"), ("topology=asynchronous needs", "clock=lognormal")),
        (("algo=fedsplit", *ASYNCHRONOUS), ("algo=fedsplit", "late uploads")),
        (("algo=dane", *ASYNCHRONOUS), ("algo=dane", "late uploads")),
        (("algo=fednova", *ASYNCHRONOUS), ("algo=fednova", "late uploads")),
        (("algo=fedavg", *ASYNCHRONOUS, "rounds=2"), ("rounds=2", "topology.buffer=3")),
        (("algo=fedavg", *ASYNCHRONOUS, "eval_every=1", "+stop.change=0.1"), ("stop.change", "eval_every=3")),
        (("algo=fedsplit", *CLOCK), ("clock=lognormal", "algo=fedsplit", "do more")),
        (("algo=fedavg", *ASYNCHRONOUS, "clients_per_round=2"), ("clients_per_round=2", "topology=asynchronous")),
        (("algo=fedavg", *CLOCK, "topology=tree"), ("clock=lognormal", "topology=tree")),
        (("algo=fedavg", "x=simulated_seconds"), ("x=simulated_seconds", "clock=lognormal")),
        (("algo=centralized", *CLOCK), ("algo=centralized", "clock")),
        (("algo=fedavg", "clock=lognormal", "clock.deadline=0"), ("clock.deadline=0",)),
    ],
)
def test_what_has_no_meaning_is_refused(overrides, words):
    with fails(*words):
        prepare(small(*overrides))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,gradients_per_second,bytes_per_second,latency\n0,1,1,0\n", ("no row for client 1",)),
        ("client,gradients_per_second,bytes_per_second\n0,1,1\n", ("no column 'latency'",)),
        ("client,gradients_per_second,bytes_per_second,latency\n0,-1,1,0\n", ("gradients_per_second of client 0",)),
        ("client,gradients_per_second,bytes_per_second,latency\n0,1,1,0\n0,1,1,0\n", ("client 0 more than once",)),
    ],
)
def test_damaged_speeds_are_refused(text, words, tmp_path):
    Path("speeds.csv").write_text(text)
    with fails("clock.path", "speeds.csv", *words):
        run(ragged(tmp_path, "algo=fedavg", "clock=trace", "clock.path=speeds.csv", sizes=SIZES), tmp_path / "run")


def test_a_name_of_a_client_may_have_line_breaks():
    name = "ward\u2028a\nb"
    lines = f'client,gradients_per_second,bytes_per_second,latency\n"{name}",2,1,0\n'
    Path("speeds.csv").write_text(lines, encoding="utf-8")
    assert TraceClock(path="speeds.csv").speeds([name]).gradients_per_second.tolist() == [2]


def test_a_clock_is_part_of_an_identity_and_its_absence_is_not(tmp_path):
    plain = small("algo=fedavg")
    without = {section: values for section, values in plain.items() if section != "clock"}
    assert prepare(plain).identity == prepare(without).identity
    timed = [prepare(small("algo=fedavg", "clock=lognormal", f"clock.seed={seed}")).identity for seed in (0, 1)]
    assert len({prepare(plain).identity, *timed}) == 3
    assert traits_of("fedavg").uploads == "updates"


@pytest.mark.slow
def test_the_time_of_an_arrival_is_that_of_the_steps_that_the_deadline_left(tmp_path):
    """Computing times vary from work to work, so that an arrival has its own number of steps and its own time."""
    options = ("algo=fedavg", "batch_size=1", "rounds=40", "eval_every=1", *ASYNCHRONOUS, "clock.deadline=3")
    options += ("clock.gradients_per_second=1", "clock.variation=1", "clock.latency=0", "clock.bytes_per_second=1e30")
    config = ragged(tmp_path, *options, sizes=SIZES)
    schedule = engine_of(config).federation.schedule
    arrivals, keys = schedule.arrivals(40), schedule.client_keys(np.arange(len(SIZES)))
    gradients = np.diff(run(config, tmp_path / "run").metrics["grad_evals"])
    assert len(set(gradients)) > 3
    for m, key in enumerate(keys):
        own = arrivals.clients[:40] == m
        numbers, client = np.arange(own.sum()), np.full(own.sum(), m)
        seconds = not_none(schedule.times).gradient_seconds(schedule.seed, numbers, client, np.full(own.sum(), key))
        worked = gradients[own] * seconds
        lasted = np.where(gradients[own] < SIZES[m], np.maximum(worked, 3), worked)
        np.testing.assert_allclose(np.cumsum(lasted), arrivals.seconds[:40][own], rtol=1e-9)


@pytest.mark.slow
def test_runs_whose_messages_have_other_bytes_are_of_no_common_batch():
    """Bytes decide when a message arrives, and so which clients take part."""
    topk = ("uplink=topk", "uplink.feedback=ef", "algo=fedavg")
    arrivals = ("topology=asynchronous", "topology.buffer=2", "clock=lognormal", "clients_per_round=null")
    for waits, topology in ((True, ()), (False, arrivals)):
        few, many = (
            prepare(small(*topk, *topology, "uplink.feedback=ef", f"uplink.fraction={f}")).batch_key
            for f in (0.05, 0.9)
        )
        assert (few == many) == waits
