"""A site that outlasts a kill gives the stored answer again, and no other answer for the same request."""

import errno
from contextlib import closing

import numpy as np
import pytest
from helpers import fails
from toy_site import ToySite, toy_rows

from fcorun.base.errors import UserError, WriteError
from fcorun.sites.plan.site_options import OwnTableError
from fcorun.sites.transport import durable
from fcorun.sites.transport.connections import InProcessConnections
from fcorun.sites.transport.delivery import answer_bytes, read_refusal
from fcorun.sites.transport.durable import DurableSite, is_in_use
from fcorun.sites.transport.messages import Message, number_request


def request(number, value=0.5, name="round", run="a"):
    return number_request(Message(name, {}, {"model": np.full(3, value)}), run, number, ["north"])


def start_again(site, **options):
    """Return the site as after a kill: a new object from the folder."""
    site.close()
    return DurableSite(ToySite(toy_rows(0)), site.folder, **options)


def computed(site):
    """Return how many answers the object has computed."""
    return site.site.computed


@pytest.fixture
def site(tmp_path):
    site = DurableSite(ToySite(toy_rows(0)), tmp_path / "site")
    yield site
    site.close()


def test_a_repeated_request_gets_the_stored_bytes(site):
    first = site.answer(request(0)).to_bytes()
    assert site.answer(request(0)).to_bytes() == first
    assert computed(site) == 1
    again = start_again(site)
    assert again.answer(request(0)).to_bytes() == first
    assert computed(again) == 0
    again.close()


def test_a_killed_site_goes_on_with_the_same_bits(site, tmp_path):
    unbroken = DurableSite(ToySite(toy_rows(0)), tmp_path / "unbroken")
    expected = [unbroken.answer(request(i, i / 3)).to_bytes() for i in range(6)]
    unbroken.close()
    answers = []
    for i in range(6):
        answers.append(site.answer(request(i, i / 3)).to_bytes())
        site = start_again(site)
    site.close()
    assert answers == expected


def test_a_site_killed_before_it_stored_its_answer_computes_the_same_answer(site, monkeypatch):
    site.answer(request(0))
    with monkeypatch.context() as patch:
        patch.setattr(durable, "write_atomically", lambda *_, **__: (_ for _ in ()).throw(WriteError(28, "full", "f")))
        with pytest.raises(WriteError):
            site.answer(request(1))
    answer = site.answer(request(1))
    assert answer.about["count"] == 2
    np.testing.assert_array_equal(answer.arrays["sum"], toy_rows(0).sum(0) + 0.9 * 0.5 + 0.5)


def test_a_site_on_a_full_disk_says_so_in_a_sentence_and_answers_once_there_is_room(site, monkeypatch, caplog):
    def fail(path, *_, **__):
        raise WriteError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(durable, "write_atomically", fail)
        refusal = read_refusal(answer_bytes(site.answer, "north", request(0).to_bytes()))
    problem = "the site cannot write its state (No space left on device)"
    assert refusal == f"{problem}: its owner makes room, or mends the folder"
    assert "last_answer.npz cannot be written (No space left on device); make room" in caplog.text
    assert "Traceback" not in caplog.text
    assert read_refusal(answer_bytes(site.answer, "north", request(0).to_bytes())) is None


def test_another_request_with_a_number_that_was_answered_is_refused(site):
    site.answer(request(0))
    site.answer(request(1))
    with pytest.raises(UserError, match="another request number 1 of this run"):
        site.answer(request(1, value=0.7))
    with pytest.raises(UserError, match=r"request 1 of this run, and the server asks request 0: .* seed=NUMBER"):
        site.answer(request(0))
    assert site.answer(request(2)).about["count"] == 3


def test_a_refused_request_leaves_the_state_as_it_was(site):
    site.answer(request(0))
    with pytest.raises(UserError, match="not accepted"):
        site.answer(request(1, name="load"))
    assert site.answer(request(1)).about["count"] == 2


def test_a_new_run_begins_after_the_end_of_the_last_one_or_without_its_state(site):
    site.answer(request(0))
    with fails("a run that has not ended", "another seed=NUMBER", f"remove {site.folder} to give"):
        site.answer(request(0, run="b"))
    with pytest.raises(UserError, match="a run that this site has not begun"):
        site.answer(request(3, run="b"))
    site.answer(request(1, name="end"))
    assert site.answer(request(0, run="b")).about["count"] == 1
    (site.folder / "last_answer.npz").unlink()
    site = start_again(site)
    assert site.answer(request(0, run="c")).about["count"] == 1
    site.close()


def test_a_request_without_a_number_is_refused(site):
    with pytest.raises(UserError, match="no number"):
        site.answer(Message("round"))


def test_a_stored_answer_names_its_site_and_the_site_keeps_its_name(site):
    site.close()
    with closing(DurableSite(ToySite(toy_rows(0)), site.folder, name="north")) as first:
        sent = answer_bytes(first.answer, "north", request(0).to_bytes())
        assert first.answer(request(0)).site == "north"
    with closing(DurableSite(ToySite(toy_rows(0)), site.folder, name="north")) as again:
        assert answer_bytes(again.answer, "north", request(0).to_bytes()) == sent
        assert computed(again) == 0
    with fails("this site has answered as 'north', and is started as 'east'", "--name north"):
        DurableSite(ToySite(toy_rows(0)), site.folder, name="east")


def test_a_site_that_answers_under_another_name_is_refused_in_one_process_too(tmp_path):
    with closing(DurableSite(ToySite(toy_rows(0)), tmp_path, name="north")) as site:
        connections = InProcessConnections({"our west": ToySite(toy_rows(1))})
        assert set(connections.ask("describe", of=["our west"])) == {"our west"}
        connections = InProcessConnections({"east": site})
        with fails("site 'east' was asked, and the answer names site 'north' as its sender"):
            connections.ask("describe")
    assert not connections.bytes_sent


def test_one_process_answers_from_a_folder(site):
    with pytest.raises(UserError, match="another process answers"):
        DurableSite(ToySite(toy_rows(0)), site.folder)


@pytest.mark.parametrize("damage", [lambda content: content[:100], lambda content: b"", lambda content: b"x" + content])
def test_a_damaged_file_is_named(site, damage):
    site.answer(request(0))
    path = site.folder / "last_answer.npz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=r"last_answer\.npz cannot be read"):
        start_again(site)


def test_a_cell_that_hinders_a_restart_is_told_to_the_owner_alone(site, monkeypatch):
    def fail(self, arrays):
        raise OwnTableError("the cell 'Ms Smith' is no number", "the table cannot be read")

    monkeypatch.setattr(ToySite, "load_state", fail)
    assert read_refusal(answer_bytes(site.answer, "north", request(0).to_bytes())) == "the table cannot be read"


def test_a_site_whose_state_cannot_be_loaded_does_not_keep_the_folder(tmp_path, monkeypatch):
    def fail(self, arrays):
        raise MemoryError

    site = ToySite(toy_rows(0))
    monkeypatch.setattr(ToySite, "load_state", fail)
    with pytest.raises(MemoryError) as caught:
        DurableSite(site, tmp_path)
    assert not is_in_use(tmp_path)  # although the exception still refers to the object
    assert caught.value.__traceback__ is not None


def test_the_server_learns_no_path_of_a_site(site, caplog):
    site.answer(request(0))
    refusals = [answer_bytes(site.answer, "north", request(3, run="b").to_bytes())]

    class Opened:
        def answer(self, request):
            return DurableSite(ToySite(toy_rows(0)), site.folder, rows="other rows").answer(request)

    refusals.append(answer_bytes(Opened().answer, "north", request(0).to_bytes()))
    site.close()
    refusals.append(answer_bytes(Opened().answer, "north", request(0).to_bytes()))
    (site.folder / "last_answer.npz").write_bytes(b"x")
    refusals.append(answer_bytes(Opened().answer, "north", request(0).to_bytes()))
    sentences = [read_refusal(refusal) for refusal in refusals]
    for words, sentence in zip(("not begun", "another process", "other data", "damaged"), sentences, strict=True):
        assert sentence is not None
        assert words in sentence
        assert str(site.folder) not in sentence
    assert caplog.text.count(str(site.folder)) >= 4


def test_runs_are_counted_across_restarts(site):
    for number in range(3):
        site = start_again(site, max_runs=3)
        site.answer(request(0, run=f"run{number}"))
        site.answer(request(1, name="end", run=f"run{number}"))
    site = start_again(site, max_runs=3)
    with pytest.raises(UserError, match=r"has begun 3 runs of the plan, and policy\.max_runs allows 3"):
        site.answer(request(0, run="run3"))
    site.answer(request(1, name="end", run="run2"))  # a repeated answer begins no run
    site.close()


def test_a_state_of_other_rows_is_refused(site):
    site.answer(request(0))
    with pytest.raises(UserError, match="from other data or other options"):
        start_again(site, rows="others")


def test_a_site_that_refused_many_requests_answers_no_more(site):
    site.answer(request(0))
    for value in range(durable.MAX_REFUSALS):
        with fails("the owner has not accepted this plan"):
            site.answer(request(1, value, name="load"))
    again = start_again(site)
    with fails("refused 20 requests", "answers no more"):
        again.answer(request(1))
    (again.folder / "refusals").unlink()
    again.answer(request(1))
    again.close()
