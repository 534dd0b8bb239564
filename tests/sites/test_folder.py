"""Connections by a folder: the same numbers as in one process, kills at any time, files of strangers."""

import threading
import time

import numpy as np
import pytest
from helpers import fails
from toy_site import ToySite, toy_rows, toy_study

from fcorun.base.errors import UserError
from fcorun.data.rows.site_rows import AwayRule
from fcorun.sites.transport import folder as folder_module
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.delivery import AuditLog
from fcorun.sites.transport.durable import DurableSite
from fcorun.sites.transport.folder import FolderConnections, FolderSite, read_stop, refuse_all
from fcorun.sites.transport.messages import Message, OwnerError, SiteLost, SiteRefusal, number_request

NAMES = ("east", "north", "west")
ROUNDS = 5


class Stop(BaseException):
    """A kill of the server."""


class SiteFolders:
    """Three sites whose processes are killed after every answer."""

    def __init__(self, root):
        self.root = root
        self.computed = 0

    def answer(self, sites):
        """Let sites answer, each as a new process."""
        for name in sites:
            toy = ToySite(toy_rows(NAMES.index(name)))
            site = DurableSite(toy, self.root / name)
            FolderSite(self.root / "shared", name, site).answer_pending()
            self.computed += toy.computed
            site.close()

    def answer_but(self, away):
        """Return a function that lets all sites answer but one."""
        return lambda sites: self.answer([name for name in sites if name != away])


def connect(root, on_wait=lambda sites: None, run="a", wait_seconds=30.0):
    return FolderConnections(root / "shared", NAMES, run, wait_seconds, on_wait)


@pytest.fixture(scope="module")
def expected():
    sites = {name: ToySite(toy_rows(number)) for number, name in enumerate(NAMES)}
    return toy_study(InProcessConnections(sites), ROUNDS)


@pytest.mark.slow
def test_a_study_by_a_folder_gives_the_bits_of_one_process(tmp_path, expected):
    sites = SiteFolders(tmp_path)
    np.testing.assert_array_equal(toy_study(connect(tmp_path, sites.answer), ROUNDS), expected)
    files = sorted(path.name for path in (tmp_path / "shared").iterdir())
    assert files[:4] == [
        f"0000-describe.{part}.npz" for part in ("east.answer", "north.answer", "request", "west.answer")
    ]


@pytest.mark.slow
def test_sites_that_poll_in_threads_answer_until_the_end_of_the_run(tmp_path, expected):
    def serve(name):
        site = DurableSite(ToySite(toy_rows(NAMES.index(name))), tmp_path / name)
        FolderSite(tmp_path / "shared", name, site).serve(wait_seconds=30)
        site.close()

    (tmp_path / "shared").mkdir()
    threads = [threading.Thread(target=serve, args=[name], daemon=True) for name in NAMES]
    for thread in threads:
        thread.start()
    np.testing.assert_array_equal(toy_study(connect(tmp_path), ROUNDS), expected)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    FolderSite(tmp_path / "shared", "north", ToySite(toy_rows(0)), run="a").serve(wait_seconds=0)
    with pytest.raises(UserError, match="no request for site 'north'"):
        FolderSite(tmp_path / "shared", "north", ToySite(toy_rows(0)), run="b").serve(wait_seconds=0)


def test_a_site_that_the_end_left_out_is_told_the_end(tmp_path):
    connections = connect(tmp_path, SiteFolders(tmp_path).answer_but("north"))
    connections.ask("end", away=AwayRule(seconds=0.0, least_sites=2))
    toy = ToySite(toy_rows(0))
    FolderSite(tmp_path / "shared", "north", toy).serve(wait_seconds=0)
    assert toy.computed == 0


@pytest.mark.slow
def test_a_server_killed_at_any_wait_goes_on_to_the_same_bits_and_no_request_is_computed_twice(tmp_path, expected):
    sites = SiteFolders(tmp_path)
    rng = np.random.default_rng(0)

    def answer_or_die(missing):
        sites.answer(rng.permutation(missing)[: rng.integers(0, len(missing) + 1)])
        if rng.random() < 0.5:
            raise Stop

    for _ in range(200):
        try:
            model = toy_study(connect(tmp_path, answer_or_die), ROUNDS)
            break
        except Stop:
            continue
    np.testing.assert_array_equal(model, expected)
    assert sites.computed == len(NAMES) * (ROUNDS + 2)


def test_a_site_killed_between_its_state_and_its_answer_sends_the_stored_answer(tmp_path, monkeypatch):
    connections = connect(tmp_path, wait_seconds=0.0)
    with pytest.raises(SiteLost):
        connections.ask("describe", of=["north"])
    site = DurableSite(ToySite(toy_rows(0)), tmp_path / "north")
    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "write_atomically", lambda *_, **__: (_ for _ in ()).throw(Stop()))
        with pytest.raises(Stop):
            FolderSite(tmp_path / "shared", "north", site).answer_pending()
    site.close()
    toy = ToySite(toy_rows(0))
    again = DurableSite(toy, tmp_path / "north")
    assert FolderSite(tmp_path / "shared", "north", again).answer_pending() == ["describe"]
    assert toy.computed == 0
    assert connections.ask("describe", of=["north"])["north"].about["count"] == 1
    again.close()


def test_the_time_limit_names_the_sites_without_an_answer_and_the_way_on(tmp_path):
    """An answer that comes while the server does something else is read, however long that takes."""
    sites = SiteFolders(tmp_path)

    def answer_slowly(missing):
        sites.answer(["north"])
        time.sleep(0.2)

    connections = connect(tmp_path, answer_slowly, wait_seconds=0.1)
    with pytest.raises(SiteLost, match=r"request 0 \(describe\) from 'east', 'west' within 0\.1 .* same command again"):
        connections.ask("describe")
    sites.answer(["east", "west"])
    assert set(connections.ask("describe")) == set(NAMES)


def test_a_site_without_requests_ends_after_its_time_limit(tmp_path):
    (tmp_path / "shared").mkdir()
    with pytest.raises(UserError, match=r"no request for site 'north' .* same command again"):
        FolderSite(tmp_path / "shared", "north", ToySite(toy_rows(0))).serve(wait_seconds=0.05)


def test_a_refusal_names_the_site_and_a_later_answer_replaces_the_refusal(tmp_path, monkeypatch):
    sites = SiteFolders(tmp_path)
    connections = connect(tmp_path, sites.answer)
    with pytest.raises(SiteRefusal, match="site 'east': the owner has not accepted this plan"):
        connections.ask("load")
    with pytest.raises(SiteRefusal):
        connect(tmp_path, wait_seconds=0.0).ask("load")
    monkeypatch.setattr(ToySite, "answer", lambda self, request: Message(request.name))
    assert set(connect(tmp_path, sites.answer).ask("load")) == set(NAMES)  # although the refusals are there at first
    assert not list((tmp_path / "shared").glob("*.refusal.npz"))


def test_a_refusal_ends_all_parties_with_the_name_of_the_site(tmp_path):
    """A site that is started after the stop waits for the leader's next command, and is told if that stops, too."""
    sentences = []

    def serve(name):
        toy = ToySite(toy_rows(0))
        if name != "north":
            toy.answer = lambda request: Message(request.name)
        with pytest.raises(UserError) as caught:
            FolderSite(tmp_path / "shared", name, toy).serve(wait_seconds=30)
        sentences.append(str(caught.value))

    connections = connect(tmp_path)
    threads = [threading.Thread(target=serve, args=[name], daemon=True) for name in NAMES]
    for thread in threads:
        thread.start()
    refusal = "site 'north': the owner has not accepted this plan"
    connections.ask("describe")
    with pytest.raises(SiteRefusal, match=refusal), connections.telling_sites():
        connections.ask("load")
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [sentence.startswith(f"the server has stopped: {refusal}") for sentence in sentences] == [True] * 3
    west = FolderSite(tmp_path / "shared", "west", ToySite(toy_rows(0)))
    stop = read_stop(tmp_path / "shared")
    with pytest.raises(UserError, match="no request for site 'west'"):
        west.serve(wait_seconds=0.05, earlier_stop=stop)
    with pytest.raises(UserError, match="the server has stopped"):  # while the site was opened
        west.serve(wait_seconds=0.05, earlier_stop=None)
    with pytest.raises(SiteRefusal), connections.telling_sites():
        connections.ask("load")
    with pytest.raises(UserError, match="the server has stopped"):  # again, for the same reason
        west.serve(wait_seconds=0.05, earlier_stop=stop)


def test_a_site_that_cannot_be_opened_refuses_all_requests_until_a_process_answers(tmp_path):
    connections, shared = connect(tmp_path), tmp_path / "shared"
    log, error = AuditLog(tmp_path / "sent.jsonl"), OwnerError("the cell 'Jane Doe' is odd", "a cell is odd")
    site = DurableSite(ToySite(toy_rows(0)), tmp_path / "north")
    refuse_all(shared, "north", error, tmp_path / "north", log)
    site.close()
    assert not list(shared.iterdir())  # another process answers
    refuse_all(shared, "north", error, tmp_path / "north", log)
    with pytest.raises(SiteRefusal, match=r"^site 'north': a cell is odd$"):
        connections.ask("describe", of=["north"])
    assert "Jane" not in (tmp_path / "sent.jsonl").read_text()

    def mend(missing):
        with pytest.raises(UserError, match="no request"):
            FolderSite(shared, "north", ToySite(toy_rows(0))).serve(wait_seconds=0.05)

    assert set(connect(tmp_path, mend).ask("describe", of=["north"])) == {"north"}
    assert not (shared / "north.refusal.npz").exists()


@pytest.mark.parametrize("name", ["describe", "load"])
def test_an_answer_or_a_refusal_of_another_site_is_not_accepted(tmp_path, name):
    sites, shared = SiteFolders(tmp_path), tmp_path / "shared"

    def copy_answer(missing):
        sites.answer(["east"])
        for path in shared.glob("*.east.*.npz"):
            path.rename(path.with_name(path.name.replace("east", "north")))

    connections = connect(tmp_path, copy_answer)
    with fails("site 'north' was asked, and the answer names site 'east' as its sender", "own name"):
        connections.ask(name, of=["east", "north"])
    for path in shared.glob("*.north.*.npz"):
        path.unlink()
    if name == "describe":
        assert set(connect(tmp_path, sites.answer).ask(name, of=["east", "north"])) == {"east", "north"}


def test_an_error_at_a_site_tells_the_server_its_kind_alone(tmp_path):
    connections = connect(tmp_path, SiteFolders(tmp_path).answer)
    with pytest.raises(SiteRefusal, match=r"the site failed \(ValueError\)") as caught:
        connections.ask("scores")
    assert "Jane" not in str(caught.value)


def test_a_site_computes_only_what_is_addressed_to_it(tmp_path):
    sites = SiteFolders(tmp_path)
    connections = connect(tmp_path, lambda missing: sites.answer(NAMES))
    assert set(connections.ask("describe", of=["west", "east"])) == {"east", "west"}
    assert sites.computed == 2
    assert set(connections.ask("round", of=["east"])) == {"east"}


def test_another_request_with_the_number_of_an_earlier_one_is_refused(tmp_path):
    connect_ = lambda **options: connect(tmp_path, SiteFolders(tmp_path).answer, **options)  # noqa: E731
    connect_().ask("describe", about={"seed": 0})
    for ask in (
        lambda: connect_().ask("describe", about={"seed": 1}),
        lambda: connect_().ask("sums"),
        lambda: connect_(run="b").ask("describe", about={"seed": 0}),
    ):
        with pytest.raises(UserError, match="request of another run"):
            ask()


def test_a_torn_answer_is_waited_for_and_named(tmp_path):
    sites = SiteFolders(tmp_path)
    with pytest.raises(SiteLost):
        connect(tmp_path, sites.answer, wait_seconds=0.0).ask("describe")
    path = tmp_path / "shared" / "0000-describe.north.answer.npz"
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    with pytest.raises(SiteLost, match=r"from 'north' .*what is no message"):
        connect(tmp_path, wait_seconds=0.05).ask("describe")
    copied = connect(tmp_path, lambda missing: path.write_bytes(content))
    assert set(copied.ask("describe")) == set(NAMES)


def test_a_torn_request_is_waited_for(tmp_path):
    shared = tmp_path / "shared"
    with pytest.raises(SiteLost):
        connect(tmp_path, wait_seconds=0.0).ask("describe")
    path = shared / "0000-describe.request.npz"
    content = path.read_bytes()
    path.write_bytes(content[:50])
    sites = SiteFolders(tmp_path)
    sites.answer(NAMES)
    assert sites.computed == 0
    path.write_bytes(content)
    sites.answer(NAMES)
    assert sites.computed == 3


def test_links_and_large_files_are_not_read(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    shared.mkdir()
    answer = number_request(Message("describe"), "a", 0, NAMES).to_bytes()
    (tmp_path / "outside.npz").write_bytes(answer)
    (shared / "0000-describe.north.answer.npz").symlink_to(tmp_path / "outside.npz")
    with pytest.raises(SiteLost, match="is a link"):
        connect(tmp_path, wait_seconds=0.0).ask("describe")
    (shared / "0000-describe.north.answer.npz").unlink()
    (shared / "0000-describe.north.answer.npz").write_bytes(answer)
    monkeypatch.setattr(folder_module, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(UserError, match="more than the 100"):
        connect(tmp_path, wait_seconds=0.0).ask("describe")


@pytest.mark.parametrize("names", [["../north"], ["a/b"], [""], ["north", "north"], [".hidden"], ["x" * 64]])
def test_names_of_sites_are_names_of_files(tmp_path, names):
    with pytest.raises(UserError, match=r"name"):
        FolderConnections(tmp_path, names, "a", 1.0)
