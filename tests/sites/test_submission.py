"""A submitted job is repeated after losses, and its failure is told by the sentence of the run."""

import json
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from fcorun.base.errors import UserError
from fcorun.sites.transport.messages import SiteLost

pytestmark = pytest.mark.skipif(
    find_spec("nvflare") is None, reason="NVFLARE is not installed: pip install 'fcorun[sites]'"
)


class FakeServer:
    """A server of jobs.

    Attributes:
        jobs: each job's end: a status, an outcome of the run, or an error of the connection.
    """

    def __init__(self, jobs):
        self.jobs = jobs
        self.listed, self.aborted = [], []
        self.connected = [["north"], ["north", "south"]]  # at the first question, and at the others

    def get_system_info(self):
        names = self.connected[0]
        self.connected = self.connected[-1:]
        return SimpleNamespace(client_info=[SimpleNamespace(name=name) for name in names])

    def list_jobs(self, name_prefix):
        return [meta for meta in self.listed if meta["job_name"].startswith(name_prefix)]

    def abort_job(self, job_id):
        self.aborted.append(job_id)
        next(meta for meta in self.listed if meta["job_id"] == job_id)["status"] = "FINISHED:ABORTED"

    def submit_job(self, path):
        number = sum(meta["job_name"] == "fcorun-a" for meta in self.listed)
        self.listed.append({"job_id": str(number), "job_name": "fcorun-a", "status": "RUNNING"})
        return str(number)

    def get_job_meta(self, job_id):
        end, meta = self.jobs[int(job_id)], next(m for m in self.listed if m["job_id"] == job_id)
        if isinstance(end, Exception):
            raise end
        meta["status"] = end if isinstance(end, str) else "FINISHED:COMPLETED"
        return meta

    def download_job_result(self, job_id, destination):
        folder = Path(destination) / job_id / "workspace" / "fcorun"
        folder.mkdir(parents=True)
        (folder / "outcome.json").write_text(json.dumps(self.jobs[int(job_id)]), encoding="utf-8")
        return str(Path(destination) / job_id)


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """Return a function that submits a job whose repetitions end as given."""
    from fcorun.sites.transport import nvflare

    kit = tmp_path / "kit" / "startup"
    kit.mkdir(parents=True)
    (tmp_path / "fcorun-a").mkdir()
    (tmp_path / "fcorun-a" / "meta.json").write_text('{"mandatory_clients": ["north", "south"]}', encoding="utf-8")
    (kit / "fed_admin.json").write_text('{"admin": {"username": "lead@here.org"}}', encoding="utf-8")

    def run(*ends, others=(), connected=None, wait_seconds=60.0, **options):
        server = FakeServer(ends)
        server.listed += others
        if connected:
            server.connected = [connected]

        @contextmanager
        def session(kit, user):
            yield server

        monkeypatch.setattr(nvflare, "_session", session)
        monkeypatch.setattr(nvflare, "_POLL_SECONDS", 0.0)
        monkeypatch.setattr(nvflare, "_CONNECT_SECONDS", 0.0)
        told = []
        try:
            result = nvflare.submit_job(
                tmp_path / "fcorun-a",
                kit.parent,
                tmp_path / "results",
                wait_seconds,
                on_status=told.append,
                **options,
            )
        except UserError as error:
            result = error
        return result, server, told

    return run


def test_a_lost_job_is_repeated_and_earlier_jobs_of_the_run_are_aborted(submit, tmp_path):
    others = [
        {"job_id": "x", "job_name": "fcorun-ab", "status": "RUNNING"},
        {"job_id": "y", "job_name": "fcorun-a2", "status": "FINISHED:COMPLETED"},
    ]
    ends = (
        "FINISHED:ABNORMAL",
        ConnectionError("no server"),
        {"status": "lost", "sentence": "no answer"},
        {"status": "done"},
    )
    result, server, told = submit(*ends, others=others)
    assert result == tmp_path / "results" / "3" / "workspace" / "fcorun"
    assert server.aborted == ["1"]  # the only one that was left as running
    assert [sentence for sentence in told if sentence.startswith("submitted")] == [
        f"submitted as {i}" for i in range(4)
    ]
    problems = (
        "the job ended as abnormal",
        "ConnectionError: no server",
        "no answer",
        "not connected to the server: 'south'",
    )
    assert all(any(sentence.startswith(problem) for sentence in told) for problem in problems)


def test_the_sentence_of_a_failed_run_is_told_without_control_characters(submit):
    result, server, _ = submit({"status": "failed", "sentence": "site 'north': no\x1b[2J rows"})
    assert type(result) is UserError
    assert str(result) == r"site 'north': no\x1b[2J rows"
    assert len(server.listed) == 1


def test_jobs_that_end_early_are_repeated_up_to_a_limit(submit):
    result, server, _ = submit(*["FINISHED:EXECUTION_EXCEPTION"] * 5, max_jobs=3)
    assert isinstance(result, SiteLost)
    assert "the run is not done (jobs submitted: 3): the job ended as execution_exception" in str(result)
    assert "same command again" in str(result)
    assert len(server.listed) == 3


def test_a_run_ends_when_an_answer_to_the_same_request_is_missing_twice(submit):
    lost = [{"status": "lost", "request": number, "sentence": f"no answer to request {number}"} for number in (4, 5)]
    result, server, _ = submit(lost[0], lost[1], "FINISHED:ABNORMAL", lost[1], {"status": "done"})
    assert isinstance(result, SiteLost)
    assert str(result) == "no answer to request 5"
    assert len(server.listed) == 4


def test_a_site_that_stays_away_is_named_after_the_time_limit(submit):
    result, server, _ = submit({"status": "done"}, connected=["north"], wait_seconds=0.05)
    assert isinstance(result, SiteLost)
    assert "not connected to the server: 'south'" in str(result)
    assert not server.listed


def test_a_job_that_does_not_start_is_told(submit):
    result, _, _ = submit("SUBMITTED", max_jobs=1, wait_seconds=0.05)
    assert isinstance(result, SiteLost)
    assert "the server has not started the job" in str(result)
