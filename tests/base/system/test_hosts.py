"""Several hosts over loopback: their options, their rendezvous, their messages."""

import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import Queue

import numpy as np
import pytest
from helpers import fails, not_none, small

from fcorun.base.errors import HostLost, UserError
from fcorun.base.system import hosts as hosts_module
from fcorun.base.system import rendezvous
from fcorun.base.system.hosts import Hosts, silence_stdout
from fcorun.base.system.machine import HostOptions, close_hosts, current_hosts, require_single_host, resolve_hosts
from fcorun.runs.several_hosts import _Follower

KEYS = {"address": "node1:1234", "count": 3, "rank": 1}
SLURM = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[07-09],other", "SLURM_NTASKS": "3", "SLURM_PROCID": "2",
         "SLURM_LOCALID": "1"}  # fmt: skip


@pytest.fixture
def cluster(monkeypatch):
    """A function that sets the environment variables of a cluster."""

    def set_variables(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


# ---------------------------------------------------------------- options


def test_one_host_unless_several_are_configured():
    assert resolve_hosts(None) is None
    assert resolve_hosts({"address": None, "timeout": 5.0}) is None
    assert resolve_hosts({**KEYS, "count": 1, "rank": 0}) is None
    assert resolve_hosts({**KEYS, "timeout": 5}) == HostOptions("node1:1234", 3, 1, 5.0)


def test_tasks_of_slurm_are_detected(cluster):
    cluster(**SLURM)
    port = 65535 - 2**12 + 1 + 7  # JAX's choice for the leader
    assert resolve_hosts({}) == HostOptions(f"node07:{port}", 3, 2, gpus=[1])
    assert resolve_hosts({"address": "elsewhere:99"}) == HostOptions("elsewhere:99", 3, 2, gpus=[1])
    assert resolve_hosts({"gpus": [0, 3]}) == HostOptions(f"node07:{port}", 3, 2, gpus=[0, 3])
    assert resolve_hosts({"count": 1}) is None
    with fails("fcorun select", "one host", "hosts.count=1"):
        require_single_host("fcorun select", {})


@pytest.mark.parametrize("variables", [{"SLURM_NTASKS": "1"}, {"SLURM_STEP_NUM_TASKS": "1"}])
def test_one_task_of_slurm_is_an_ordinary_run(cluster, variables):
    cluster(**SLURM | variables)
    assert resolve_hosts({}) is None


def test_a_script_of_sbatch_is_one_process(cluster):
    cluster(**{name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"})
    assert resolve_hosts({}) is None


def test_processes_of_open_mpi_are_detected(cluster):
    cluster(OMPI_MCA_orte_hnp_uri="4096.0;tcp://10.0.0.1,10.0.0.2:34911")
    cluster(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_LOCAL_RANK="0")
    assert resolve_hosts({}) == HostOptions(f"10.0.0.1:{65535 - 2**12 + 1 + 1}", 2, 1, gpus=[0])


def test_a_cluster_without_a_known_leader_is_refused(cluster):
    cluster(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1")
    with fails("several tasks were started together", "the number of this one", "hosts.address", "hosts.count=1"):
        resolve_hosts({})
    assert resolve_hosts({"count": 1}) is None


# ---------------------------------------------------------------- rendezvous


def meet(*options: HostOptions, greetings=()) -> list:
    """Return the result, or the error, of the rendezvous on each host, without JAX.

    ``greetings`` holds changes of each host's greeting.
    """

    def run_host(index: int):
        own = options[index]
        greeting = {"rank": own.rank, "name": f"n{index}", "count": own.count, "versions": {"jax": "1"}}
        greeting |= {"command": ["algo=fedavg"]} | dict(greetings[index] if greetings else {})
        try:
            return (rendezvous._call_leader if own.rank else rendezvous._gather_followers)(own, greeting)
        except (Exception, SystemExit) as error:
            return error

    with ThreadPoolExecutor(len(options)) as pool:
        return list(pool.map(run_host, range(len(options))))


def options_of(count: int, timeout: float = 10.0, ranks=None, host="127.0.0.1") -> list[HostOptions]:
    """Return the options of several hosts with one address."""
    address = f"{host}:{free_port()}"
    return [HostOptions(address, count, rank, timeout) for rank in ranks or range(count)]


def receive_json(connection: Connection) -> dict:
    return json.loads(connection.recv_bytes())


def test_three_hosts_meet_in_any_order(monkeypatch):
    call_leader = rendezvous._call_leader

    def call_late(options, greeting):
        time.sleep(0.1 if options.rank == 1 else 0)
        return call_leader(options, greeting)

    monkeypatch.setattr(rendezvous, "_call_leader", call_late)
    (third, third_address), (first, first_address), (second, second_address) = meet(*options_of(3, ranks=(2, 0, 1)))
    assert first_address == second_address == third_address
    assert first.names == second.names == third.names == ["n1", "n2", "n0"]
    assert (first.rank, second.rank, third.rank) == (0, 1, 2)
    assert list(first.connections) == [1, 2]  # predictions are put together in this order
    first.broadcast("prepare", number=0.1)
    messages = [receive_json(host.connections[0]) for host in (second, third)]
    assert messages == [{"do": "prepare", "number": 0.1}] * 2


def test_hosts_meet_by_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    (first, first_address), (second, second_address) = meet(*options_of(2, host="[::1]"))
    assert first.names == second.names == ["n0", "n1"]
    assert first_address == second_address
    assert first_address.startswith("[::1]:")


@pytest.mark.slow
def test_a_caller_that_stops_within_its_handshake_is_dropped(monkeypatch):
    monkeypatch.setattr(rendezvous, "_HANDSHAKE_SECONDS", 0.3)
    (options,) = options_of(2, timeout=1.0, ranks=(0,))

    def call_and_stop():
        for _ in range(50):
            with suppress(OSError), socket.create_connection(options.endpoint, timeout=5) as caller:
                caller.sendall(b"\0")
                caller.recv(1000)
                return caller.recv(1000)  # the end of the connection
            time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        stranger = pool.submit(call_and_stop)
        (error,) = meet(options)
        assert stranger.result() == b""
    assert "host 1 of 2 did not come within hosts.timeout=1 seconds" in str(error)


@pytest.mark.slow
def test_missing_hosts_are_named():
    first, second = meet(*options_of(4, timeout=0.7, ranks=(0, 2)))
    assert isinstance(first, UserError)
    assert "hosts 1, 3 of 4 did not come within hosts.timeout=0.7 seconds" in str(first)
    assert isinstance(second, SystemExit)  # the leader has printed the reason
    assert second.code == 2
    (error,) = meet(*options_of(2, timeout=0.3, ranks=(1,)))
    assert "host 0 did not come within hosts.timeout=0.3 seconds: nobody answers" in str(error)


@pytest.mark.parametrize(
    ("greeting", "words"),
    [({"versions": {"jax": "2"}}, "host 1 (n1) has jax 2 and host 0 (n0) has 1: install the same"),
     ({"command": ["algo=fedmid"]}, "host 1 (n1) is given algo=fedmid, and host 0 (n0) algo=fedavg: give all the same"),
     ({"command": []}, "host 1 (n1) is given nothing of it, and host 0 (n0) algo=fedavg"),
     ({"count": 3}, "hosts.count is 3 on n1 and 2 on n0")],
)  # fmt: skip
def test_hosts_that_do_not_match_are_refused(greeting, words):
    first, second = meet(*options_of(2), greetings=[{}, greeting])
    assert isinstance(first, UserError)
    assert words in str(first)
    assert isinstance(second, SystemExit)
    assert second.code == 2


def test_a_rank_that_is_given_twice_is_refused():
    first, *others = meet(*options_of(3, ranks=(0, 1, 1)))
    assert "hosts.rank=1 was given to" in str(first)
    assert [error.code for error in others] == [2, 2]


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = HostOptions(f"127.0.0.1:{server.getsockname()[1]}", 2, 0, 0.5)
        (error,) = meet(options)
    assert "host 0 cannot have the port (Address already in use); give another" in str(error)


def test_a_caller_that_is_no_fcorun_is_ignored():
    leader, follower = options_of(2)
    with ThreadPoolExecutor(1) as pool:
        leader_result = pool.submit(meet, leader)
        for _ in range(100):
            try:
                with socket.create_connection(leader.endpoint) as stranger:
                    stranger.sendall(b"GET / HTTP/1.1")
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        ((second, _),) = meet(follower)
        ((first, _),) = leader_result.result()
        assert first.names == second.names == ["n0", "n0"]


# ---------------------------------------------------------------- the secret

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
    options = not_none(resolve_hosts({**KEYS, "secret_file": "file"}))
    assert options.secret() == f"{SECRET}-of-the-file".encode()
    (tmp_path / "empty").write_text("")
    for name, words in (("gone", "cannot be read"), ("empty", "holds a secret of 0 bytes")):
        with fails(f"hosts.secret_file={name}", words):
            HostOptions("127.0.0.1:4321", 2, 0, secret_file=name).secret()
    monkeypatch.setenv("FCORUN_HOSTS_SECRET", "short")
    with fails("FCORUN_HOSTS_SECRET holds a secret of 5 bytes: give 16 or more"):
        HostOptions("127.0.0.1:4321", 2, 0).secret()


@pytest.mark.slow
def test_a_caller_without_the_secret_is_turned_away_and_others_are_awaited(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).write_text(f"{SECRET} of {name}")
    all_options = options_of(2, ranks=(0, 1, 1))
    leader, stranger, follower = (
        replace(options, secret_file=name) for options, name in zip(all_options, ("one", "other", "one"), strict=True)
    )
    with ThreadPoolExecutor(1) as pool:
        leader_result = pool.submit(meet, leader)
        (refused,) = meet(stranger)
        assert "has another secret: give all hosts the same" in str(refused)
        ((second, _),) = meet(follower)
        ((first, _),) = leader_result.result()
        assert first.names == second.names
    error, refused = meet(*(replace(options, timeout=0.7) for options in (leader, stranger)))
    assert "others called 1 times without the secret, and were turned away" in str(error)
    assert isinstance(refused, UserError)


def test_a_leader_without_the_secret_is_not_followed(tmp_path):
    """A leader that accepts any caller could otherwise have its commands executed."""
    (tmp_path / "file").write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        options = HostOptions(f"127.0.0.1:{server.getsockname()[1]}", 2, 1, 5.0, secret_file="file")
        follower_result = pool.submit(meet, options)
        connection = Connection(server.accept()[0].detach())
        connection.send_bytes(b"0" * 64)
        greeting = receive_json(connection)
        assert SECRET not in json.dumps(greeting)
        connection.send_bytes(b"f" * 64)
        connection.send_bytes(json.dumps({"do": "meet", "names": ["evil", "n0"], "address": "127.0.0.1:1"}).encode())
        assert "has another secret" in str(follower_result.result()[0])
        connection.close()


# ---------------------------------------------------------------- messages


@pytest.fixture
def two(monkeypatch):
    """The leader and a follower, each receiving messages in a thread."""
    monkeypatch.setattr(hosts_module, "_LOSS_GRACE_SECONDS", 60)
    (first, _), (second, _) = meet(*options_of(2))
    threads = start_receiving(first, second)
    yield first, second
    first.closed = second.closed = True  # the end of a connection is no loss any more
    hang_up(second)
    wait_for_end(threads)
    for connection in (*first.connections.values(), *second.connections.values()):
        connection.close()


def start_receiving(*hosts: Hosts) -> list[threading.Thread]:
    """Start a thread for each host that receives its messages."""
    threads = [threading.Thread(target=host.receive_messages, daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    return threads


def wait_for_end(threads: list[threading.Thread]) -> None:
    """Wait until threads have ended, whose connections must not be closed before."""
    for thread in threads:
        thread.join(timeout=10)
        assert not thread.is_alive()


def hang_up(host: Hosts) -> None:
    """Shut down a follower's connection, as the system does for a process that is killed."""
    with suppress(OSError), socket.socket(fileno=os.dup(host.connections[0].fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


@pytest.mark.slow
def test_a_follower_executes_its_own_commands_alone(two):
    first, second = two
    _Follower(second).execute({"do": "__init__", "hosts": 1})
    with pytest.raises(HostLost, match="the leader sent an unknown command '__init__'"):
        first.check_failures(timeout=5)
    _Follower(second).execute({"do": "prepare", "config": small() | {"algo": {"class": "evil_.FedAvg"}}})
    assert "algo.class=evil_.FedAvg is not imported" in first.receive(1)["refused"]


def test_a_failed_host_is_named_with_the_reason(two):
    first, second = two
    first.check_failures()
    second.send(failed="MemoryError: too large")
    with pytest.raises(HostLost, match=r"host 1 \(n1\) failed: MemoryError: too large; the same command resumes"):
        first.check_failures(timeout=5)


def test_a_lost_host_is_named_while_another_one_says_nothing(two):
    first, second = two
    silent = Queue()
    first.connections = {2: first.connections[1], 1: first.connections[1]}
    first.inboxes = {2: silent, 1: first.inboxes[1]}
    hang_up(second)
    start = time.monotonic()
    with pytest.raises(HostLost, match=r"host 1 \(n1\) was lost"):
        first.all_failed(20)
    assert time.monotonic() < start + 10


def test_a_failure_on_all_hosts_is_over_when_all_have_reported_it(two):
    first, second = two
    assert not first.all_failed(0.05)
    second.send(failed="ValueError: as on all")
    assert first.all_failed(5)
    second.send(number=1)
    assert first.receive(1) == {"number": 1}
    hang_up(second)
    with pytest.raises(HostLost, match=r"host 1 \(n1\) was lost"):
        first.all_failed(5)


def test_a_message_that_is_no_json_is_refused(two):
    first, second = two
    with pytest.raises(TypeError, match="float32 is not JSON"):
        first.broadcast("run", points=[{"algo": {"client_lr": np.float32(0.5)}}])
    first.broadcast("run", points=[])
    assert second.receive() == {"do": "run", "points": []}


def test_a_host_that_sends_no_json_is_lost(two):
    first, second = two
    second.connections[0].send_bytes(b"{")
    with pytest.raises(HostLost, match=r"host 1 \(n1\) was lost"):
        first.check_failures(timeout=5)


def test_a_lost_host_is_named(two):
    first, second = two
    second.send(number=1)
    hang_up(second)
    assert first.receive(1) == {"number": 1}
    with pytest.raises(HostLost, match=r"host 1 \(n1\) was lost; the same command resumes"):
        first.receive(1)
    with pytest.raises(HostLost, match=r"host 0 \(n0\) was lost"):
        second.receive()


@pytest.mark.slow
def test_a_host_that_is_silent_for_long_is_lost(monkeypatch):
    monkeypatch.setattr(hosts_module, "_LOSS_GRACE_SECONDS", 60)
    monkeypatch.setattr(hosts_module, "_HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(hosts_module, "_SILENCE_SECONDS", 0.3)
    (first, _), (second, _), (third, _) = meet(*options_of(3))
    threads = start_receiving(first, second)  # the third one sends nothing
    with pytest.raises(HostLost, match=r"host 2 \(n2\) was lost"):
        first.check_failures(timeout=5)
    second.check_failures()
    first.closed = second.closed = True
    for host in (second, third):
        hang_up(host)
    wait_for_end(threads)


def test_an_interruption_of_a_follower_interrupts_the_leader(two):
    first, second = two
    second.send(interrupted=True)
    with pytest.raises(KeyboardInterrupt):
        first.check_failures(timeout=5)


def test_a_process_that_waits_for_a_lost_host_ends(monkeypatch, capsys):
    exit_codes = []
    monkeypatch.setattr(hosts_module, "_LOSS_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(hosts_module.os, "_exit", exit_codes.append)
    hosts = Hosts(0, ["a", "b"], {})
    hosts._exit_after_loss(1)
    assert exit_codes == [1]
    assert "fcorun: failed: host 1 (b) was lost; the same command resumes" in capsys.readouterr().err
    hosts._exit_after_loss(1)  # the main thread knows of the loss
    assert exit_codes == [1]


def test_a_leader_that_waits_for_a_lost_host_tells_the_others(two, monkeypatch, capsys):
    first, second = two
    exit_codes = []
    monkeypatch.setattr(hosts_module, "_END_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(hosts_module.os, "_exit", exit_codes.append)
    second.closed = True  # so that only the leader ends
    first.names.append("n2")
    first._exit_after_loss(2)
    assert exit_codes == [1]
    message = second.receive()
    assert (message["do"], message["code"]) == ("end", 1)
    assert message["why"].startswith("host 2 (n2) was lost")


def test_a_shutdown_without_other_hosts_does_nothing():
    assert current_hosts() is None
    close_hosts(1)


def test_the_output_of_gloo_is_discarded(capfd):
    print("before")
    with silence_stdout():
        os.write(1, b"[Gloo] Rank 0 is connected\n")
    print("after")
    assert capfd.readouterr().out == "before\nafter\n"
