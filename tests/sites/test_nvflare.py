"""The toy study as a job of NVFLARE: calls that are lost, messages as bytes and arrays, and a run in its simulator."""

import json
import threading
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from toy_site import ToySite, toy_rows, toy_study

from fcorun.base.errors import UserError
from fcorun.data.rows.site_rows import AwayRule
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.messages import SiteLost, SiteRefusal

pytestmark = pytest.mark.skipif(
    find_spec("nvflare") is None, reason="NVFLARE is not installed: pip install 'fcorun[sites]'"
)

SITES = ["site-1", "site-2", "site-3"]


class FakeCollab:
    """Sites in this process behind the names of NVFLARE's Collab API.

    Attributes:
        lost: the numbers of calls whose answer is lost, by site.
        silent: the sites that never answer.
        busy: the number of calls for which a site still computes, by site.
    """

    is_aborted = False
    caller = "server"

    def __init__(self, root, toys):
        from opened_site import OpenedSite

        self.objects = {name: OpenedSite(toy) for name, toy in toys.items()}
        self.clients = [SimpleNamespace(name=name) for name in self.objects]
        self.workspace = SimpleNamespace(get_root_dir=lambda: str(root))
        self.lost, self.silent, self.busy, self.kinds = {}, set(), {}, set()
        self.calls = dict.fromkeys(toys, 0)

    def get_clients(self, names):
        return lambda timeout: SimpleNamespace(answer=lambda request: self.answer(names, request))

    def answer(self, names, request):
        results = []
        for name in names:
            self.calls[name] += 1
            self.site_name = name
            if name in self.silent:
                continue
            if self.calls[name] <= self.busy.get(name, 0):
                results.append((name, b""))
                continue
            answer = self.objects[name].answer(request)
            self.kinds |= {type(request), type(answer)}
            if self.calls[name] not in self.lost.get(name, ()):
                results.append((name, answer))
        return results


@pytest.fixture
def module():
    """Return the tested module. It is not imported when tests are collected: importing NVFLARE takes seconds."""
    from fcorun.sites.transport import nvflare

    return nvflare


@pytest.fixture
def toys():
    return {name: ToySite(toy_rows(number)) for number, name in enumerate(SITES, start=1)}


@pytest.fixture
def collab(module, tmp_path, toys, monkeypatch):
    collab = FakeCollab(tmp_path, toys)
    monkeypatch.setattr(module, "collab", collab)
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(module, "_silence_log_of_calls", lambda: None)
    yield collab
    for site in collab.objects.values():
        if site.opened is not None:
            site.opened.close()


@pytest.fixture
def clock(module, monkeypatch):
    """The seconds of a clock, one number in a list, which goes on only while the server sleeps."""
    clock = [0.0]

    def sleep(seconds):
        clock[0] += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    return clock


def expected_model(rounds, features=3):
    toys = {name: ToySite(toy_rows(number, features)) for number, name in enumerate(SITES, start=1)}
    return toy_study(InProcessConnections(toys), rounds, features)


def test_lost_answers_are_asked_again_and_computed_once(module, collab, toys):
    collab.lost = {"site-1": [1, 2, 4], "site-3": [3]}
    np.testing.assert_array_equal(toy_study(module.CollabConnections("a", 10.0), 3), expected_model(3))
    assert [toy.computed for toy in toys.values()] == [5, 5, 5]
    assert collab.calls == {"site-1": 8, "site-2": 5, "site-3": 6}


def test_a_silent_site_is_named(module, collab, monkeypatch):
    monkeypatch.setattr(module, "_SILENT_SECONDS", 0.05)
    collab.silent = {"site-2"}
    with pytest.raises(SiteLost, match=r"request 0 \(describe\) from 'site-2' within 0\.05"):
        module.CollabConnections("a", 10.0).ask("describe")


@pytest.mark.slow
def test_a_silent_site_is_left_out_by_the_rule_of_the_plan(module, collab, monkeypatch):
    monkeypatch.setattr(module, "_SILENT_SECONDS", 0.2)
    connections = module.CollabConnections("a", 10.0)
    connections.ask("describe")
    collab.silent = {"site-2"}
    assert set(connections.ask("describe", away=AwayRule(0.05, 2))) == {"site-1", "site-3"}
    assert set(connections.ask("describe", away=AwayRule(30.0, 2))) == {"site-1", "site-3"}  # lost before its time
    collab.silent = set()
    assert set(connections.ask("describe", away=AwayRule(0.05, 2))) == set(SITES)
    collab.silent = {"site-1", "site-2"}
    with pytest.raises(SiteLost, match="request 4"):
        connections.ask("describe", away=AwayRule(0.05, 2))


def test_a_silent_site_is_left_out_also_while_the_others_compute_for_longer_than_a_site_may_be_silent(
    module, collab, clock, monkeypatch
):
    monkeypatch.setattr(module, "_RETRY_SECONDS", 10.0)
    collab.silent, collab.busy = {"site-2"}, {"site-1": 8, "site-3": 8}
    connections = module.CollabConnections("a", 1.0)  # the rule's time is the limit where it is longer
    assert set(connections.ask("describe", away=AwayRule(500.0, 2))) == {"site-1", "site-3"}
    assert clock == [80.0]
    collab.busy = {}
    with pytest.raises(SiteLost, match=r"request 1 \(describe\) from 'site-2' within 60 "):
        connections.ask("describe", away=AwayRule(500.0, 3))


def test_busy_sites_are_heard_although_the_rule_waits_for_a_second_only(module, collab, clock, monkeypatch):
    def call(names, timeout, request):
        if clock[0] >= 2 * module._SILENT_SECONDS:  # then all sites have computed their answers
            return collab.answer(names, request)
        module.time.sleep(min(timeout, module._BUSY_SECONDS))
        return [(name, b"") for name in names if timeout > module._BUSY_SECONDS]

    def get_clients(names):
        return lambda timeout: SimpleNamespace(answer=lambda request: call(names, timeout, request))

    monkeypatch.setattr(collab, "get_clients", get_clients)
    assert set(module.CollabConnections("a", 3600.0).ask("describe", away=AwayRule(1.0, 2))) == set(SITES)


@pytest.mark.slow
def test_a_site_that_computes_for_long_is_not_silent_and_has_a_time_limit(module, collab, toys, monkeypatch):
    monkeypatch.setattr(module, "_BUSY_SECONDS", 0.001)
    collab.objects["site-2"]._lock.acquire()
    timer = threading.Timer(0.2, collab.objects["site-2"]._lock.release)
    timer.start()
    assert set(module.CollabConnections("a", 10.0).ask("describe")) == set(SITES)
    collab.objects["site-2"]._lock.acquire()
    with pytest.raises(SiteLost, match=r"from 'site-2' within 0\.1 seconds"):
        module.CollabConnections("b", 0.1).ask("describe", of=["site-2"])


@pytest.mark.slow
def test_long_messages_are_arrays(module, tmp_path, monkeypatch):
    features = 200_000
    toys = {name: ToySite(toy_rows(number, features)) for number, name in enumerate(SITES, start=1)}
    collab = FakeCollab(tmp_path, toys)
    monkeypatch.setattr(module, "collab", collab)
    monkeypatch.setattr(module, "_silence_log_of_calls", lambda: None)
    connections = module.CollabConnections("a", 10.0)
    connections.ask("describe", of=["site-1"])
    assert collab.kinds == {bytes, np.ndarray}  # of the request and of the answer
    with pytest.raises(UserError, match="neither bytes nor an array of bytes"):
        module._unpack(np.zeros(3))


def test_a_refusal_names_the_site_and_only_the_server_is_answered(module, collab, tmp_path):
    collab.lost = {"site-1": [1, 2]}  # such as calls for which the server has waited long enough
    with pytest.raises(SiteRefusal, match="'site-1': the owner has not accepted this plan"):
        module.CollabConnections("a", 10.0).ask("load", of=["site-1"])
    assert collab.calls["site-1"] == 3
    assert (tmp_path / "site-1" / "refusals").read_text(encoding="utf-8") == "1\n"  # computed once
    collab.caller = "site-3"
    with pytest.raises(UserError, match="site-3 is not the server"):
        collab.objects["site-1"].answer(b"")


def test_an_answer_of_another_site_is_not_accepted(module, collab):
    collab.get_clients = lambda names: (
        lambda timeout: SimpleNamespace(answer=lambda request: [("site-2", collab.answer(["site-1"], request)[0][1])])
    )
    with pytest.raises(UserError, match="'site-2' was asked, and the answer names site 'site-1' as its sender"):
        module.CollabConnections("a", 10.0).ask("describe", of=["site-1", "site-2"])


def test_a_refusal_ends_the_job_and_once_it_is_mended_the_next_job_goes_on(module, collab, toys, tmp_path, monkeypatch):
    class Server(module.CollabServer):
        def compute(self, connections, folder):
            np.save(folder / "model.npy", toy_study(connections, 3))

    def run_job(name):
        """Return the outcome of a job, whose sites are processes of their own."""
        for site in collab.objects.values():
            site._site = site._refusal = None
            if site.opened is not None:
                site.opened.close()
        collab.fl_ctx = SimpleNamespace(get_job_id=lambda: name)
        collab.workspace.get_run_dir = lambda job: str(tmp_path / job)
        Server("a", 10.0).execute()
        return json.loads((tmp_path / name / "fcorun" / "outcome.json").read_text(encoding="utf-8"))

    toy, answer = toys["site-2"], toys["site-2"].answer

    def refuse(request):
        if request.about.get("round") == 1:
            raise UserError("too few rows")
        return answer(request)

    monkeypatch.setattr(toy, "answer", refuse)
    assert run_job("first") == {"status": "failed", "sentence": "site 'site-2': too few rows"}
    monkeypatch.setattr(toy, "answer", answer)
    assert run_job("second") == {"status": "done"}
    np.testing.assert_array_equal(np.load(tmp_path / "second" / "fcorun" / "model.npy"), expected_model(3))
    assert [toy.computed for toy in toys.values()] == [5, 5, 5]


def export(folder, run="a", rounds=4, features=3):
    from toy_collab import ToyCollabServer, ToyCollabSite

    from fcorun.sites.transport.nvflare import export_job

    return export_job(folder, ToyCollabServer(run, rounds, features), ToyCollabSite(features), SITES)


def test_a_job_names_classes_and_holds_no_code(tmp_path):
    job = export(tmp_path)
    assert {path.suffix for path in job.rglob("*") if path.is_file()} == {".json"}
    client = json.loads((job / "app" / "config" / "config_fed_client.json").read_text(encoding="utf-8"))
    paths = {component["path"]: component["args"] for component in client["components"]}
    assert paths["toy_collab.ToyCollabSite"] == {"features": 3}
    meta = json.loads((job / "meta.json").read_text(encoding="utf-8"))
    assert meta["deploy_map"] == {"app": ["server", *SITES]}
    assert meta["mandatory_clients"] == SITES
