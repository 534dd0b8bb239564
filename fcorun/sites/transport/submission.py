"""Jobs of NVFLARE: a job of installed classes, its simulation on this machine, and its submission with a kit."""

import io
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from fcorun.base.errors import UserError, describe_error, escape_controls
from fcorun.base.records.formats import json_text, read_json
from fcorun.sites.transport.delivery import check_site_names, poll
from fcorun.sites.transport.kits import COLLAB_CLASSES, OUTCOME_FILE, RESULT_FOLDER, user_of_kit
from fcorun.sites.transport.messages import SiteLost

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

    from fcorun.sites.transport.nvflare import CollabServer, CollabSite

_SYNC_SECONDS = 300  # for the start of the sites' processes, which import JAX
_TASK_SECONDS = 0.5  # between a site's questions for its tasks, which are two: to register, and to begin
_LOGIN_SECONDS, _POLL_SECONDS = 20.0, 0.5
_CONNECT_SECONDS = 5.0  # for sites that start together with the server, before the user is told


class _AnswerMissing(SiteLost):
    """The end of a run whose server has no answer of a site to a request.

    Attributes:
        request: the number of the request.
    """

    def __init__(self, sentence: str, request: Any):
        super().__init__(sentence)
        self.request = request


def export_job(folder: Path, server: "CollabServer", site: "CollabSite", sites: Sequence[str]) -> Path:
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


def simulate_job(job: Path, workspace: Path, sites: Sequence[str], allowed: Sequence[str], seconds: float) -> Path:
    """Run a job with a server and sites that are processes of this machine, and return the folder of its result.

    Args:
        job: the folder of the job.
        workspace: the folder for all files of the simulation, which removes earlier ones. Its log is beside the folder.
        sites: the names of the sites.
        allowed: the beginnings of the paths of the job's own classes.
        seconds: the longest time of the run.

    Raises UserError or SiteLost with the sentence of a run that failed.
    """
    from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST

    local = workspace / "local"
    local.mkdir(parents=True, exist_ok=True)
    policy = {"format_version": 2, "class_allow_list": [*DEFAULT_CLASS_ALLOW_LIST, *COLLAB_CLASSES, *allowed]}
    (local / "resources.json").write_text(json_text(policy), encoding="utf-8")
    clients = ",".join(check_site_names(sites))
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job), "-w", str(workspace), "-c", clients]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    log_path = workspace.with_name(f"{workspace.name}.log")
    with log_path.open("wb") as log:
        process = subprocess.Popen([*command, "-t", str(len(sites))], stdout=log, stderr=log, env=environment)
        try:
            for _ in poll(seconds):
                if process.poll() is not None:
                    break
        finally:
            if process.poll() is None:
                for running in (*psutil.Process(process.pid).children(recursive=True), process):
                    running.kill()
                process.wait()
    return _result_within(workspace, f"{log_path} says why")


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
    user, jobs, problem = user_of_kit(kit), 0, ""
    sites = json.loads((job / "meta.json").read_text(encoding="utf-8"))["mandatory_clients"]
    away_since: float | None = time.monotonic()  # since when no job has run
    lost_request = -1
    while jobs < max_jobs and (away_since is None or time.monotonic() - away_since < wait_seconds):
        try:
            with _session(kit, user) as session:
                _wait_for_sites(session, sites)
                for meta in session.list_jobs(
                    name_prefix=job.name
                ):  # those of a server that died stay listed as running
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
                    return _result_within(result, "its job left no result")
                problem = f"the job ended as {status.removeprefix('FINISHED:').lower()}"
        except _AnswerMissing as error:
            if error.request == lost_request:
                raise
            problem, lost_request = str(error), error.request
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


def _result_within(folder: Path, why: str) -> Path:
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
