"""Jobs of NVFLARE: the server and a site as objects of its Collab API, and the submission of a job with a kit.

A study derives its server from ``CollabServer`` and its site from ``CollabSite``. A job names these classes, and
carries no code.
"""

import io
import json
import logging
import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fcorun.base.errors import UserError, describe_error, escape_controls
from fcorun.base.records.formats import json_text, read_json
from fcorun.base.system.files import write_atomically
from fcorun.sites.transport.connections import AnsweringSite, Connections, JournaledConnections, Request
from fcorun.sites.transport.delivery import AuditLog, answer_bytes, check_site_names, digest_of, poll, read_answer
from fcorun.sites.transport.kits import user_of_kit
from fcorun.sites.transport.messages import OTHER_VERSION, Message, SiteLost

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

_SERVER = "server"  # the name of the server in calls
_MAX_INLINE_BYTES = 2**20  # longer messages travel as arrays, which NVFLARE sends in pieces
_BUSY = b""  # the answer of a site that still computes its answer
_BUSY_SECONDS = 5.0
_CALL_SECONDS = 20.0
_SILENT_SECONDS = 60.0  # reading rows may keep a process from answering for a while
_RETRY_SECONDS = 0.5
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SYNC_SECONDS = 300  # for the start of the sites' processes, which import JAX
_TASK_SECONDS = 0.5  # between a site's questions for its tasks, which are two: to register, and to begin
_LOGIN_SECONDS = 20.0
_POLL_SECONDS = 0.5
_CONNECT_SECONDS = 5.0  # for sites that start together with the server, before the user is told
OUTCOME_FILE, RESULT_FOLDER = "outcome.json", "fcorun"  # of the result of a job
_log = logging.getLogger(__name__)


class CollabSite:
    """The object that the server calls at a site."""

    def __init__(self) -> None:
        self._site: AnsweringSite | None = None
        self._refusal: tuple[str, Exception] | None = None  # with the digest of the last refused request
        self._lock = threading.Lock()

    def open_site(self, name: str, root: Path) -> AnsweringSite:
        """Return the site that answers, a ``DurableSite`` in earnest. Raises UserError if its owner allows no answer.

        Args:
            name: the name of the site.
            root: the folder of the site's kit, which holds its owner's settings and the site's own files.
        """
        raise NotImplementedError

    def open_log(self, name: str, root: Path) -> AuditLog | None:
        """Return the log of everything that the site sends, also before the site can be opened; None: no log."""
        return None

    @collab.publish
    def answer(self, request: bytes | np.ndarray) -> bytes | np.ndarray:
        """Return the answer of this site to a request, both as bytes or as an array of bytes.

        The server repeats a request whose answer takes long. A repeated call returns no bytes while the first computes,
        so that the server knows that the site is alive. A refusal is computed once, too.
        """
        _silence_log_of_calls()
        if collab.caller != _SERVER:
            raise UserError(f"{collab.caller} is not the server, and gets no answer of this site")
        name = collab.site_name
        root = Path(collab.workspace.get_root_dir())
        if not self._lock.acquire(timeout=_BUSY_SECONDS):
            return _BUSY
        try:
            answer = partial(self._answer_once, name, root)
            return _pack(answer_bytes(answer, name, _unpack(request), self.open_log(name, root)))
        finally:
            self._lock.release()

    def _answer_once(self, name: str, root: Path, request: Message) -> Message:
        """Return the answer to a message of the site, which is opened for the first one.

        A repeated request that was refused, or for which the site could not be opened, is refused for the same reason,
        without computing: the server may not have waited for the reason, and a site refuses few requests.
        """
        digest = digest_of(request.to_bytes())
        if self._refusal is not None and self._refusal[0] == digest:
            raise self._refusal[1]
        try:
            if self._site is None:
                self._site = self.open_site(name, root)
            return self._site.answer(request)
        except Exception as error:
            self._refusal = digest, error
            raise


class CollabServer:
    """The object whose ``compute`` is a run.

    Attributes:
        run: the identity of the run. A repeated job of the same run goes on.
        wait_seconds: the longest wait for the answers to a request.
    """

    def __init__(self, run: str, wait_seconds: float = 3600.0):
        self.run = run
        self.wait_seconds = wait_seconds

    def compute(self, connections: JournaledConnections, folder: Path) -> None:
        """Ask the sites, and write the result into a folder, which is sent to the user. Raises UserError.

        The requests must depend on earlier answers and on the arguments of the server alone.
        """
        raise NotImplementedError

    @collab.main
    def execute(self) -> None:
        """Compute the run, and leave its result or the sentence of its failure in the folder of the job."""
        _silence_log_of_calls()
        if not _RUN_NAME.fullmatch(self.run):
            raise UserError(f"'{self.run}' cannot name a run: take letters, digits, '.', '-' and '_'")
        workspace = collab.workspace
        folder = Path(workspace.get_root_dir()) / RESULT_FOLDER / self.run
        result = folder / "result"
        result.mkdir(parents=True, exist_ok=True)
        connections = JournaledConnections(CollabConnections(self.run, self.wait_seconds), folder / "answers")
        try:
            self.compute(connections, result)
            outcome = {"status": "done"}
        except RunAborted:  # the user's command submits the job again
            raise
        except SiteLost as error:
            outcome = {"status": "lost", "sentence": str(error), "request": connections.next_number}
        except UserError as error:
            outcome = {"status": "failed", "sentence": str(error)}
        except Exception as error:
            _log.exception("The server failed.")
            outcome = {"status": "failed", "sentence": describe_error(error)}
        sent = Path(workspace.get_run_dir(collab.fl_ctx.get_job_id())) / RESULT_FOLDER
        shutil.copytree(result, sent, dirs_exist_ok=True)
        write_atomically(sent / OUTCOME_FILE, json_text(outcome))


class CollabConnections(Connections):
    """Connections to the sites of a job.

    Attributes:
        run: the identity of the run.
        wait_seconds: the longest wait for the answers to a request.
        next_number: the number of the next request.
    """

    def __init__(self, run: str, wait_seconds: float):
        self.run = run
        self.wait_seconds = wait_seconds
        self.next_number = 0
        self.sites = tuple(sorted(client.name for client in collab.clients))

    def send(self, request: Request) -> dict[str, Message]:
        asked = self.list_addressees(request)
        away = request.away
        message = self.address(request)
        payload = _pack(message.to_bytes())
        answers: dict[str, Message] = {}
        missing = list(asked)
        call_seconds = _CALL_SECONDS if away is None else min(_CALL_SECONDS, max(away.seconds, 1.0))
        started = time.monotonic()
        heard = dict.fromkeys(asked, started)
        while missing:
            results = collab.get_clients(missing)(timeout=call_seconds).answer(payload)
            for site, answer in results or ():  # a lost site is not among the results
                heard[site] = time.monotonic()
                if content := _unpack(answer):
                    answers[site] = read_answer(content, site, message)
            missing = [site for site in asked if site not in answers]
            if away and away.suffices(len(answers), len(asked)):
                now = time.monotonic()  # the missing sites have had their time, or were silent so long as lost ones
                if now - started >= away.seconds or all(now - heard[site] > _SILENT_SECONDS for site in missing):
                    break
            if not missing:
                break
            if collab.is_aborted:
                raise RunAborted("the job has ended")
            now = time.monotonic()
            # the process of a site that died does not come back within the same job
            lost = [site for site in missing if now - heard[site] > _SILENT_SECONDS]
            limit = self.wait_seconds
            if away is not None:
                limit = max(limit, away.seconds)
                if away.suffices(len(asked) - len(lost), len(asked)):  # silent sites are waited for, like all others
                    lost = []
            if lost or now - started > limit:
                names = ", ".join(f"'{site}'" for site in lost or missing)
                seconds, advice = (_SILENT_SECONDS, "runs") if lost else (limit, "runs, or wait longer (--wait)")
                raise SiteLost(
                    f"no answer to request {self.next_number} ({message.name}) from {names} within {seconds:g} "
                    f"seconds: see that the site {advice}, then give the same command again, which goes on"
                )
            call_seconds = max(call_seconds, _BUSY_SECONDS + 2)  # from now on busy sites have the time to say so
            time.sleep(_RETRY_SECONDS)
        self.next_number += 1
        return {site: answers[site] for site in asked if site in answers}


def _pack(content: bytes) -> bytes | np.ndarray:
    return content if len(content) < _MAX_INLINE_BYTES else np.frombuffer(content, np.uint8)


def _unpack(payload: Any) -> bytes:
    """Return the bytes of a message. Raises UserError for anything else."""
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, np.ndarray) and payload.dtype == np.uint8 and payload.ndim == 1:
        return payload.tobytes()
    raise UserError(f"a message that is neither bytes nor an array of bytes: {OTHER_VERSION}")


def _silence_log_of_calls() -> None:
    """Log warnings alone, because NVFLARE logs several lines a call to several files."""
    logging.disable(logging.INFO)


class _AnswerMissing(SiteLost):
    """The end of a run whose server has no answer of a site to a request.

    Attributes:
        request: the number of the request.
    """

    def __init__(self, sentence: str, request: Any):
        super().__init__(sentence)
        self.request = request


def export_job(folder: Path, server: CollabServer, site: CollabSite, sites: Sequence[str]) -> Path:
    """Write a job into a folder, and return the folder of the job.

    The job names the classes of ``server`` and ``site`` and their arguments, and holds no code: sites may refuse
    foreign code (``byoc``), and allow classes by their names (``class_allow_list``).
    """
    from nvflare.collab import CollabRecipe

    sites = check_site_names(sites)
    recipe = CollabRecipe(
        name := f"fcorun-{server.run}", server, site, sync_task_timeout=_SYNC_SECONDS, min_clients=len(sites)
    )
    packages = {type(participant).__module__.partition(".")[0] for participant in (server, site)}
    recipe.finalize().set_app_packages(sorted(packages))  # else NVFLARE copies all that the classes import
    with warnings.catch_warnings():  # a digest looks like a secret to NVFLARE
        warnings.simplefilter("ignore")
        recipe.export(str(folder))
    job = folder / name
    for code in job.glob("*/custom"):
        shutil.rmtree(code)
    meta = json.loads((job / "meta.json").read_text(encoding="utf-8"))
    (app,) = meta["deploy_map"]
    meta |= {"deploy_map": {app: ["server", *sites]}, "mandatory_clients": list(sites), "min_clients": len(sites)}
    (job / "meta.json").write_text(json_text(meta), encoding="utf-8")
    config_path = job / app / "config" / "config_fed_server.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config["server"] = {"task_request_interval": _TASK_SECONDS}
    config_path.write_text(json_text(config), encoding="utf-8")
    return job


def submit_job(
    job: Path,
    kit: Path,
    folder: Path,
    wait_seconds: float,
    on_status: Callable[[str], None] = lambda _: None,
    max_jobs: int = 20,
) -> Path:
    """Submit a job with the kit of a user, wait for its end, and return the folder of its result.

    A job ends when its server or one of its sites is lost. The job is then submitted again, and goes on, because server
    and sites have stored their states. A run whose server twice misses an answer to the same request is at its end.

    Args:
        job: the folder of the job.
        kit: the folder of the kit.
        folder: the folder into which results of jobs are fetched.
        wait_seconds: the longest time without a running job.
        on_status: called with each new status of a job, as NVFLARE names it, and with a sentence for each problem.
        max_jobs: the largest number of jobs that are submitted.

    Raises SiteLost after ``wait_seconds`` or ``max_jobs`` or for a missing answer, and UserError if the run fails.
    """
    user = user_of_kit(kit)
    jobs = 0
    problem = ""
    sites = json.loads((job / "meta.json").read_text(encoding="utf-8"))["mandatory_clients"]
    away_since: float | None = time.monotonic()  # since when no job has run
    lost_request = -1
    while jobs < max_jobs and (away_since is None or time.monotonic() - away_since < wait_seconds):
        try:
            with _session(kit, user) as session:
                _wait_for_sites(session, sites)
                # the jobs of a server that died stay listed as running
                for meta in session.list_jobs(name_prefix=job.name):
                    if meta.get("job_name") == job.name and not str(meta.get("status")).startswith("FINISHED"):
                        with suppress(*_temporary_errors()):  # the job is over, or unknown to the server
                            session.abort_job(str(meta["job_id"]))
                job_id = session.submit_job(str(job))
                jobs += 1
                on_status(f"submitted as {job_id}")
                status = ""
                for status in _statuses(session, job_id, wait_seconds):
                    on_status(status)
                    if status == "RUNNING":
                        away_since = None
                if status == "FINISHED:COMPLETED":
                    folder.mkdir(parents=True, exist_ok=True)
                    result = Path(session.download_job_result(job_id, str(folder)))
                    return find_result(result, "its job left no result")
                problem = f"the job ended as {status.removeprefix('FINISHED:').lower()}"
        except _AnswerMissing as error:
            if error.request == lost_request:
                raise
            problem = str(error)
            lost_request = error.request
        except SiteLost as error:
            problem = str(error)
        except _temporary_errors() as error:
            problem = describe_error(error)
        on_status(problem)
        away_since = away_since or time.monotonic()
        time.sleep(_POLL_SECONDS)
    raise SiteLost(
        f"the run is not done (jobs submitted: {jobs}): {escape_controls(problem)}; see that the server and all sites "
        "run, then give the same command again, which goes on"
    )


@contextmanager
def _session(kit: Path, user: str) -> "Iterator[Session]":
    """Log in. Raises UserError if the server refuses the user."""
    from nvflare.fuel.flare_api.api_spec import AuthenticationError, AuthorizationError
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    try:
        with redirect_stdout(io.StringIO()):  # NVFLARE prints that it connects
            session = new_secure_session(user, str(kit), timeout=_LOGIN_SECONDS)
        try:
            yield session
        finally:
            session.close()
    except (AuthenticationError, AuthorizationError) as error:
        raise UserError(f"the server refuses {user} ({error}): ask whoever made the kit {kit}") from error


def _temporary_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a server that is away or has just started."""
    from nvflare.apis.fl_exception import FLCommunicationError
    from nvflare.fuel.flare_api import api_spec as api

    lost = (api.NoConnection, api.SessionClosed, api.InternalError, api.JobNotFound, api.NoReply)
    return (*lost, api.NoClientsAvailable, FLCommunicationError, RuntimeError, OSError)


def _wait_for_sites(session: "Session", sites: Sequence[str]) -> None:
    """Wait for sites to connect to the server: a job without them would wait without a word.

    Raises SiteLost if one is still away after ``_CONNECT_SECONDS``.
    """
    away = list(sites)
    for _ in poll(_CONNECT_SECONDS, 0.2, 0.2):
        connected = {client.name for client in session.get_system_info().client_info}
        away = [site for site in sites if site not in connected]
        if not away:
            return
    raise SiteLost("not connected to the server: " + ", ".join(f"'{site}'" for site in away))


def _statuses(session: "Session", job_id: str, wait_seconds: float) -> Iterator[str]:
    """Yield each new status of a job, up to its end. Raises SiteLost if the job does not start within a time limit."""
    status = ""
    end = time.monotonic() + wait_seconds
    for _ in poll(float("inf"), _POLL_SECONDS, _POLL_SECONDS):
        meta: dict[str, Any] = session.get_job_meta(job_id)
        if meta.get("status") != status:
            status = str(meta.get("status"))
            yield status
        if status.startswith("FINISHED"):
            return
        if status != "RUNNING" and time.monotonic() > end:
            raise SiteLost(f"the server has not started the job within {wait_seconds:g} seconds")


def find_result(folder: Path, why: str) -> Path:
    """Return the folder of the result of a job. Raises UserError or SiteLost with the sentence of a failed run."""
    outcomes = sorted(folder.glob(f"**/{RESULT_FOLDER}/{OUTCOME_FILE}"))
    if not outcomes:
        raise UserError(f"the run has no result: {why}")
    outcome = read_json(outcomes[0])
    sentence = escape_controls(str(outcome.get("sentence", "the run failed")))
    if outcome.get("status") == "lost":
        raise _AnswerMissing(sentence, outcome.get("request"))
    if outcome.get("status") != "done":
        raise UserError(sentence)
    return outcomes[0].parent
