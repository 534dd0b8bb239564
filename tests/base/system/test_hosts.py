"""Several hosts: their options, and the messages between them, through queues of one process."""

import json
import os
import threading
from dataclasses import replace
from queue import Queue

import numpy as np
import pytest
from helpers import fails, small

from fcorun.base.errors import HostLost, UserError
from fcorun.base.system import hosts as hosts_module
from fcorun.base.system import machine
from fcorun.base.system.hosts import Hosts, silence_stdout
from fcorun.base.system.machine import HostOptions, close_hosts, current_hosts, read_hosts, require_single_host
from fcorun.experiment.configuration.search_path import use_config_dir
from fcorun.experiment.prepare import prepare
from fcorun.interface.cli.hydra_app import run_on_other_hosts
from fcorun.runs.several_hosts import _Follower


def test_one_host_unless_several_are_configured():
    assert read_hosts(None) == read_hosts({"count": None}) == HostOptions()
    assert read_hosts({"count": 3, "timeout": 5, "rows": "all"}) == HostOptions(3, "all", 5.0)
    require_single_host("fcorun select", {"count": 1})
    with fails("fcorun select", "one host", "hosts.count=1"):
        require_single_host("fcorun select", {"count": 2})


@pytest.fixture
def two():
    """The leader and a follower, each receiving messages in a thread, which ends with the process."""
    mailboxes = [Queue(), Queue()]
    both = tuple(Hosts(rank, ["n0", "n1"], dict(enumerate(mailboxes))) for rank in range(2))
    for hosts in both:
        hosts.start_receiving()
    return both


def test_messages_reach_the_other_host(two):
    first, second = two
    first.broadcast("prepare", number=0.1)
    assert second.receive() == {"do": "prepare", "number": 0.1}
    second.send(number=1)
    assert first.receive(1) == {"number": 1}


@pytest.mark.slow
def test_a_follower_executes_its_own_commands_alone(two):
    first, second = two
    _Follower(second).execute({"do": "__init__", "hosts": 1})
    with pytest.raises(HostLost, match="the leader sent an unknown command '__init__'"):
        first.check_failures(timeout=60)
    _Follower(second).execute({"do": "prepare", "config": small() | {"algo": {"class": "evil_.FedAvg"}}})
    assert "algo.class=evil_.FedAvg: cannot import 'evil_'" in first.receive(1)["refused"]


def test_a_leader_of_other_runs_than_the_command_is_refused(two, monkeypatch, tmp_path):
    experiment = prepare(small())
    leader = replace(two[0], identities=("0" * 64, "1" * 64))
    monkeypatch.setattr(machine, "_CURRENT_HOSTS", [leader])
    with fails(f"{experiment.label}: host 0 (n0) has other configuration files, code or data than the command"):
        run_on_other_hosts({"count": 2}, {}, [], tmp_path, [experiment, experiment])
    with fails("host 0 (n0): cannot import 'mine'"):
        run_on_other_hosts({"count": 2}, {}, [], tmp_path, [UserError("cannot import 'mine'"), experiment])
    leader.identities = (experiment.identity, "1" * 64)
    with fails("host 0 (n0) has another number of runs"):
        run_on_other_hosts({"count": 2}, {}, [], tmp_path, [experiment])
    with fails("config-dir nowhere: there is no such folder; host 0 (n0) must see it, too"), use_config_dir("nowhere"):
        pass


def test_a_failed_host_is_named_with_the_reason(two):
    first, second = two
    first.check_failures()
    second.send(failed="MemoryError: too large")
    with pytest.raises(HostLost, match=r"host 1 \(n1\) failed: MemoryError: too large; the same command resumes"):
        first.check_failures(timeout=60)


def test_a_failure_on_all_hosts_is_over_when_all_have_reported_it(two):
    first, second = two
    assert not first.all_failed(0.05)
    second.send(failed="ValueError: as on all")
    assert first.all_failed(60)
    second.send(number=1)
    assert first.receive(1) == {"number": 1}


def test_a_lost_host_is_named_while_another_one_says_nothing():
    mailboxes = dict(enumerate([Queue(), Queue(), Queue()]))
    first = Hosts(0, ["n0", "n1", "n2"], mailboxes)
    first.start_receiving()
    mailboxes[0].put(json.dumps({"lost": 2}))  # as the command does
    sentence = r"host 2 \(n2\) was lost; the same command resumes"
    with pytest.raises(HostLost, match=sentence):
        first.receive(1)
    with pytest.raises(HostLost, match=sentence):
        first.all_failed(60)


def test_a_message_that_is_no_json_is_refused(two):
    first, second = two
    with pytest.raises(TypeError, match="float32 is not JSON"):
        first.broadcast("run", points=[{"algo": {"client_lr": np.float32(0.5)}}])
    first.broadcast("run", points=[])
    assert second.receive() == {"do": "run", "points": []}


class Closed:
    """A queue of a scheduler that is gone."""

    def get(self):
        raise OSError("closed")


@pytest.mark.parametrize(
    ("last", "code"), [({"do": "end", "code": 130}, 130), ({"do": "end", "code": 0}, 1), (None, 1)]
)
def test_a_process_ends_with_a_leader_that_fails_and_with_the_scheduler(last, code, monkeypatch):
    """Also one whose main thread waits within a round."""
    exit_codes, ended = [], threading.Event()

    def leave(number):
        exit_codes.append(number)
        ended.set()
        threading.Event().wait()  # for ever, as a process that has ended does nothing more

    class Last(Closed):
        messages = [json.dumps({"from": 0, **last})] if last else []

        def get(self):
            return self.messages.pop() if self.messages else super().get()

    monkeypatch.setattr(hosts_module, "_exit", leave)
    Hosts(1, ["a", "b"], {1: Last()}).start_receiving()
    assert ended.wait(60)
    assert exit_codes == [code]


def test_a_shutdown_without_other_hosts_does_nothing():
    assert current_hosts() is None
    close_hosts(1)


def test_the_output_of_gloo_is_discarded(capfd):
    print("before")
    with silence_stdout():
        os.write(1, b"[Gloo] Rank 0 is connected\n")
    print("after")
    assert capfd.readouterr().out == "before\nafter\n"
