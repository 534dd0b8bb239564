"""Several hosts: who is asked for, how they find each other, what they hear of each other. Over loopback."""

import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np
import pytest
from helpers import fails, not_none, small

from fcorun.errors import HostLost, UserError
from fcorun.runs.hosts.follower import _Follower
from fcorun.system import hosts as system
from fcorun.system import rendezvous
from fcorun.system.cluster import HostOptions, require_single_host, resolve_hosts
from fcorun.system.hosts import Hosts, silence_stdout

KEYS = {"address": "node1:1234", "count": 3, "rank": 1}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[07-09],other", "SLURM_NTASKS": "3", "SLURM_PROCID": "2",
         "SLURM_LOCALID": "1"}  # fmt: skip


@pytest.fixture
def cluster(monkeypatch):
    """A function that puts a process into a cluster."""

    def put(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


# ---------------------------------------------------------------- who is asked for


def test_one_host_unless_asked_for_several():
    assert resolve_hosts(None) is None
    assert resolve_hosts({"address": None, "timeout": 5.0}) is None
    assert resolve_hosts({**KEYS, "count": 1, "rank": 0}) is None
    assert resolve_hosts({**KEYS, "timeout": 5}) == HostOptions("node1:1234", 3, 1, 5.0)


def test_tasks_of_slurm_are_found(cluster):
    cluster(**SLURM)
    port = 65535 - 2**12 + 1 + 7  # where JAX looks for the first one
    assert resolve_hosts({}) == HostOptions(f"node07:{port}", 3, 2, gpus=[1])
    assert resolve_hosts({"address": "elsewhere:99"}) == HostOptions("elsewhere:99", 3, 2, gpus=[1])
    assert resolve_hosts({"count": 1}) is None
    with fails("fcorun select", "one host", "hosts.count=1"):
        require_single_host("fcorun select", {})


@pytest.mark.parametrize("one", [{"SLURM_NTASKS": "1"}, {"SLURM_STEP_NUM_TASKS": "1"}])
def test_one_task_of_slurm_is_an_ordinary_run(cluster, one):
    cluster(**SLURM | one)
    assert resolve_hosts({}) is None


def test_a_script_of_sbatch_is_one_process(cluster):
    cluster(**{name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"})
    assert resolve_hosts({}) is None


def test_processes_of_open_mpi_are_found(cluster):
    cluster(OMPI_MCA_orte_hnp_uri="4096.0;tcp://10.0.0.1,10.0.0.2:34911")
    cluster(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_LOCAL_RANK="0")
    assert resolve_hosts({}) == HostOptions(f"10.0.0.1:{65535 - 2**12 + 1 + 1}", 2, 1, gpus=[0])


def test_a_cluster_that_does_not_say_where_the_first_host_is(cluster):
    cluster(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1")
    with fails("several tasks were started together", "hosts.address", "hosts.count=1"):
        resolve_hosts({})
    assert resolve_hosts({"count": 1}) is None


# ---------------------------------------------------------------- how they find each other


def meet(*asked: HostOptions, told=()) -> list:
    """What ``join`` gives on each host, or raises, without JAX; ``told`` is what each says of itself."""

    def one(place: int):
        own = {"rank": asked[place].rank, "name": f"n{place}", "count": asked[place].count, "versions": {"jax": "1"}}
        own |= {"command": ["algo=fedavg"]} | dict(told[place] if told else {})
        try:
            return (rendezvous._call_leader if asked[place].rank else rendezvous._gather_followers)(asked[place], own)
        except (Exception, SystemExit) as error:
            return error

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(one, range(len(asked))))


def several(count: int, timeout: float = 10.0, ranks=None, host="127.0.0.1") -> list[HostOptions]:
    address = f"{host}:{free_port()}"
    return [HostOptions(address, count, rank, timeout) for rank in ranks or range(count)]


def test_three_find_each_other_in_any_order():
    (third, at3), (first, at1), (second, at2) = meet(*several(3, ranks=(2, 0, 1)))
    assert at1 == at2 == at3
    assert first.names == second.names == third.names == ["n1", "n2", "n0"]
    assert (first.rank, second.rank, third.rank) == (0, 1, 2)
    first.tell("prepare", number=0.1)
    assert [json_of(host.connections[0]) for host in (second, third)] == [{"do": "prepare", "number": 0.1}] * 2


def test_they_find_each_other_by_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    (first, at1), (second, at2) = meet(*several(2, host="[::1]"))
    assert first.names == second.names == ["n0", "n1"]
    assert at1 == at2
    assert at1.startswith("[::1]:")


def json_of(link: Connection) -> dict:
    return json.loads(link.recv_bytes())


def test_a_caller_that_stops_within_its_greeting_is_left(monkeypatch):
    monkeypatch.setattr(rendezvous, "_HANDSHAKE_SECONDS", 0.3)
    (asked,) = several(2, timeout=1.0, ranks=(0,))

    def stranger():
        for _ in range(50):
            with suppress(OSError), socket.create_connection(asked.endpoint, timeout=5) as caller:
                caller.sendall(b"\0")
                caller.recv(1000)
                return caller.recv(1000)  # the end
            time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        left = pool.submit(stranger)
        (first,) = meet(asked)
        assert left.result() == b""
    assert "host 1 of 2 did not come within hosts.timeout=1 seconds" in str(first)


def test_who_does_not_come_is_named():
    first, second = meet(*several(4, timeout=0.7, ranks=(0, 2)))
    assert isinstance(first, UserError)
    assert "hosts 1, 3 of 4 did not come within hosts.timeout=0.7 seconds" in str(first)
    assert isinstance(second, SystemExit)  # the first one has said it
    assert second.code == 2
    (alone,) = meet(*several(2, timeout=0.3, ranks=(1,)))
    assert "host 0 did not come within hosts.timeout=0.3 seconds: nobody answers" in str(alone)


@pytest.mark.parametrize(
    ("other", "words"),
    [({"versions": {"jax": "2"}}, "host 1 (n1) has jax 2 and host 0 (n0) has 1: install the same"),
     ({"command": ["algo=fedmid"]}, "host 1 (n1) is given algo=fedmid, and host 0 (n0) algo=fedavg: give all the same"),
     ({"command": []}, "host 1 (n1) is given nothing of it, and host 0 (n0) algo=fedavg"),
     ({"count": 3}, "hosts.count is 3 on n1 and 2 on n0")],
)  # fmt: skip
def test_hosts_that_are_not_alike_are_refused(other, words):
    first, second = meet(*several(2), told=[{}, other])
    assert isinstance(first, UserError)
    assert words in str(first)
    assert isinstance(second, SystemExit)
    assert second.code == 2


def test_a_rank_that_is_given_twice():
    first, *others = meet(*several(3, ranks=(0, 1, 1)))
    assert "hosts.rank=1 was given to" in str(first)
    assert [error.code for error in others] == [2, 2]


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = HostOptions(f"127.0.0.1:{server.getsockname()[1]}", 2, 0, 0.5)
        (first,) = meet(taken)
    assert "host 0 cannot have the port (Address already in use); give another" in str(first)


def test_who_is_no_fcorun_is_not_listened_to():
    asked = several(2)
    place = ("127.0.0.1", int(str(asked[0].address).split(":")[1]))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(meet, asked[0])
        for _ in range(100):
            try:
                with socket.create_connection(place) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1")
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        ((second, _),) = meet(asked[1])
        assert first.result()[0][0].names == second.names == ["n0", "n0"]


# ---------------------------------------------------------------- their secret

SECRET = "0123456789abcdef"


def test_an_address_that_others_reach_needs_a_secret(monkeypatch, tmp_path):
    monkeypatch.delenv("FCORUN_HOSTS_SECRET", raising=False)
    for host in ("node1", "10.0.0.1", "[fd00::1]", "0.0.0.0"):
        with fails("can be reached by others", "hosts.secret_file=FILE", "FCORUN_HOSTS_SECRET"):
            rendezvous.join_hosts(HostOptions(f"{host}:4321", 2, 0, 0.1))
    for host in ("localhost", "127.0.0.1", "127.0.0.2", "[::1]"):
        assert HostOptions(f"{host}:4321", 2, 0).secret() == b""
    monkeypatch.setenv("FCORUN_HOSTS_SECRET", SECRET)
    assert HostOptions("node1:4321", 2, 0).secret() == SECRET.encode()
    (tmp_path / "file").write_text(f"{SECRET}-of-the-file\n")
    assert not_none(resolve_hosts({**KEYS, "secret_file": "file"})).secret() == f"{SECRET}-of-the-file".encode()
    (tmp_path / "empty").write_text("")
    for name, words in (("gone", "cannot be read"), ("empty", "holds a secret of 0 bytes")):
        with fails(f"hosts.secret_file={name}", words):
            HostOptions("127.0.0.1:4321", 2, 0, secret_file=name).secret()
    monkeypatch.setenv("FCORUN_HOSTS_SECRET", "short")
    with fails("FCORUN_HOSTS_SECRET holds a secret of 5 bytes: give 16 or more"):
        HostOptions("127.0.0.1:4321", 2, 0).secret()


def test_a_caller_without_the_secret_is_turned_away_and_others_waited_for(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).write_text(f"{SECRET} of {name}")
    first, stranger, second = (
        replace(each, secret_file=name)
        for each, name in zip(several(2, ranks=(0, 1, 1)), ("one", "other", "one"), strict=True)
    )
    with ThreadPoolExecutor(1) as pool:
        led = pool.submit(meet, first)
        (refused,) = meet(stranger)
        assert "has another secret: give all hosts the same" in str(refused)
        ((followed, _),) = meet(second)
        assert led.result()[0][0].names == followed.names
    alone, refused = meet(*(replace(each, timeout=0.7) for each in (first, stranger)))
    assert "others called 1 times without the secret, and were turned away" in str(alone)
    assert isinstance(refused, UserError)


def test_a_first_host_without_the_secret_is_not_followed(tmp_path):
    """One that takes whoever calls, to have what it says done."""
    (tmp_path / "file").write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        asked = HostOptions(f"127.0.0.1:{server.getsockname()[1]}", 2, 1, 5.0, secret_file="file")
        second = pool.submit(meet, asked)
        link = Connection(server.accept()[0].detach())
        link.send_bytes(b"0" * 64)
        told = json.loads(link.recv_bytes())
        assert SECRET not in json.dumps(told)
        link.send_bytes(b"f" * 64)
        link.send_bytes(json.dumps({"do": "meet", "names": ["evil", "n0"], "address": "127.0.0.1:1"}).encode())
        assert "has another secret" in str(second.result()[0])
        link.close()


def test_a_host_does_nothing_but_what_it_is_for(two):
    first, second = two
    _Follower(second).do({"do": "__init__", "hosts": 1})
    with pytest.raises(HostLost, match="the first host says '__init__', which means nothing here"):
        first.heed(patience=5)
    _Follower(second).do({"do": "prepare", "config": small() | {"algo": {"class": "evil_.FedAvg"}}})
    assert "algo.class=evil_.FedAvg is not imported" in first.hear(1)["refused"]


# ---------------------------------------------------------------- what they hear of each other


@pytest.fixture
def two(monkeypatch):
    """The first and the second host, each listening in a thread."""
    monkeypatch.setattr(system, "_LOSS_GRACE_SECONDS", 60)
    (first, _), (second, _) = meet(*several(2))
    for host in (first, second):
        threading.Thread(target=host.receive_messages, daemon=True).start()
    yield first, second
    first.over = second.over = True  # what they still hear is no loss
    hang_up(second)
    for link in (*first.connections.values(), *second.connections.values()):
        link.close()


def hang_up(host: Hosts) -> None:
    """What the system does of a process that is killed."""
    with suppress(OSError), socket.socket(fileno=os.dup(host.connections[0].fileno())) as found:
        found.shutdown(socket.SHUT_RDWR)


def test_who_fails_is_named_with_the_reason(two):
    first, second = two
    first.heed()
    second.say(failed="MemoryError: too large")
    with pytest.raises(HostLost, match=r"host 1 \(n1\) failed: MemoryError: too large; the same command goes on"):
        first.heed(patience=5)


def test_what_fails_on_all_is_over_when_all_have_said_so(two):
    first, second = two
    assert not first.failed(0.05)
    second.say(failed="ValueError: as on all")
    assert first.failed(5)
    second.say(number=1)
    assert first.hear(1) == {"number": 1}
    hang_up(second)
    with pytest.raises(HostLost, match=r"host 1 \(n1\) was lost"):
        first.failed(5)


def test_what_is_no_json_is_not_told_as_something_else(two):
    first, second = two
    with pytest.raises(TypeError, match="float32 is not JSON"):
        first.tell("run", points=[{"algo": {"client_lr": np.float32(0.5)}}])
    first.tell("run", points=[])
    assert second.hear() == {"do": "run", "points": []}


def test_who_is_gone_is_named(two):
    first, second = two
    second.say(number=1)
    hang_up(second)
    assert first.hear(1) == {"number": 1}
    with pytest.raises(HostLost, match=r"host 1 \(n1\) was lost; the same command goes on"):
        first.hear(1)
    with pytest.raises(HostLost, match=r"host 0 \(n0\) was lost"):
        second.hear()


def test_who_is_silent_for_long_is_lost(monkeypatch):
    monkeypatch.setattr(system, "_LOSS_GRACE_SECONDS", 60)
    monkeypatch.setattr(system, "_HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(system, "_SILENCE_SECONDS", 0.3)
    (first, _), (second, _), (third, _) = meet(*several(3))
    for host in (first, second):  # the third one is stopped
        threading.Thread(target=host.receive_messages, daemon=True).start()
    with pytest.raises(HostLost, match=r"host 2 \(n2\) was lost"):
        first.heed(patience=5)
    second.heed()
    first.over = second.over = True
    for host in (second, third):
        hang_up(host)


def test_an_interruption_elsewhere_is_one_here(two):
    first, second = two
    second.say(interrupted=True)
    with pytest.raises(KeyboardInterrupt):
        first.heed(patience=5)


def test_a_process_that_waits_for_a_host_that_is_gone_ends(monkeypatch, capsys):
    ended = []
    monkeypatch.setattr(system, "_LOSS_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(system.os, "_exit", ended.append)
    hosts = Hosts(0, ["a", "b"], {})
    hosts._exit_after_loss(1)
    assert ended == [1]
    assert "fcorun: failed: host 1 (b) was lost; the same command goes on" in capsys.readouterr().err
    hosts._exit_after_loss(1)  # it is known
    assert ended == [1]


def test_nothing_is_left_where_there_are_no_others():
    assert system.current_hosts() is None
    system.shutdown(1)


def test_what_gloo_says_is_hushed(capfd):
    print("before")
    with silence_stdout():
        os.write(1, b"[Gloo] Rank 0 is connected\n")
    print("after")
    assert capfd.readouterr().out == "before\nafter\n"
