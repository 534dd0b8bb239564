"""The server and a site as objects of NVFLARE's Collab API, which run in the processes of a job.

A study derives its server from ``CollabServer`` and its site from ``CollabSite``. A job names these classes, and
carries no code.
"""

import logging
import re
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fcorun.base.errors import UserError, describe_error
from fcorun.base.records.formats import json_text
from fcorun.base.system.files import write_atomically
from fcorun.base.system.machine import collect_garbage_rarely
from fcorun.data.rows.away_sites import AwayRule
from fcorun.sites.transport.audit import AuditLog
from fcorun.sites.transport.connections import AnsweringSite, Connections, Request
from fcorun.sites.transport.delivery import answer_bytes, digest_of, read_answer
from fcorun.sites.transport.journal import SUMS_FILES, JournaledConnections
from fcorun.sites.transport.kits import OUTCOME_FILE, RESULT_FOLDER
from fcorun.sites.transport.messages import Message, SiteLost

_SERVER = "server"  # the name of the server in calls
_MAX_INLINE_BYTES = 2**20  # longer messages travel as arrays, which NVFLARE sends in pieces
_BUSY = b""  # the answer of a site that still computes its answer
_BUSY_SECONDS, _CALL_SECONDS = 5.0, 20.0
_SILENT_SECONDS = 60.0  # reading rows may keep a process from answering for a while
_RETRY_SECONDS = 0.5
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
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

    @collab.init
    def begin(self) -> None:
        """Prepare this process for the requests of the server."""
        collect_garbage_rarely()

    @collab.publish
    def answer(self, request: bytes | np.ndarray) -> bytes | np.ndarray:
        """Return the answer of this site to a request, both as bytes or as an array of bytes.

        The server repeats a request whose answer takes long. A repeated call returns no bytes while the first computes,
        so that the server knows that the site is alive. A refusal is computed once, too.
        """
        _silence_log_of_calls()
        if collab.caller != _SERVER:
            raise UserError(f"{collab.caller} is not the server, and gets no answer of this site")
        name, root = collab.site_name, Path(collab.workspace.get_root_dir())
        if not self._lock.acquire(timeout=_BUSY_SECONDS):
            return _BUSY
        try:
            site = _OpenedAtFirstRequest(self, name, root)
            return _pack(answer_bytes(site, name, _unpack(request), self.open_log(name, root)))
        finally:
            self._lock.release()


@dataclass(frozen=True)
class _OpenedAtFirstRequest:
    """The site behind a ``CollabSite``. An error of opening the site becomes a refusal of the request.

    A repeated request that was refused is refused for the same reason, without computing: the server may not have
    waited for the reason, and a site refuses few requests.
    """

    opener: CollabSite
    name: str
    root: Path

    def answer(self, request: Message) -> Message:
        opener, digest = self.opener, digest_of(request.to_bytes())
        if opener._refusal is not None and opener._refusal[0] == digest:
            raise opener._refusal[1]
        try:
            if opener._site is None:
                opener._site = opener.open_site(self.name, self.root)
            return opener._site.answer(request)
        except Exception as error:
            opener._refusal = digest, error
            raise


class CollabServer:
    """The object whose ``compute`` is a run.

    Attributes:
        run: the identity of the run. A repeated job of the same run goes on.
        wait_seconds: the longest wait for the answers to a request.
    """

    def __init__(self, run: str, wait_seconds: float = 3600.0):
        self.run, self.wait_seconds = run, wait_seconds

    def compute(self, connections: JournaledConnections, folder: Path) -> None:
        """Ask the sites, and write the result into a folder, which is sent to the user. Raises UserError.

        The requests must depend on earlier answers and on the arguments of the server alone.
        """
        raise NotImplementedError

    @collab.main
    def execute(self) -> None:
        """Compute the run, and leave its result or the sentence of its failure in the folder of the job."""
        collect_garbage_rarely()
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
        shutil.copytree(result, sent, dirs_exist_ok=True, ignore=shutil.ignore_patterns(SUMS_FILES))
        write_atomically(sent / OUTCOME_FILE, json_text(outcome))


class CollabConnections(Connections):
    """Connections to the sites of a job.

    Attributes:
        run: the identity of the run.
        wait_seconds: the longest wait for the answers to a request.
        next_number: the number of the next request.
    """

    def __init__(self, run: str, wait_seconds: float):
        self.run, self.wait_seconds = run, wait_seconds
        self.next_number = 0
        self._sites = tuple(sorted(client.name for client in collab.clients))

    @property
    def sites(self) -> tuple[str, ...]:
        return self._sites

    def send(self, request: Request) -> dict[str, Message]:
        asked, away = self.list_addressees(request), request.away
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
                now = (
                    time.monotonic()
                )  # the missing sites have had their time, or were silent so long that they are lost
                if now - started >= away.seconds or all(now - heard[site] > _SILENT_SECONDS for site in missing):
                    break
            if missing:
                self._check_sites(message, missing, heard, started, away)
                call_seconds = max(call_seconds, _BUSY_SECONDS + 2)  # from now on busy sites have the time to say so
                time.sleep(_RETRY_SECONDS)
        self.next_number += 1
        return {site: answers[site] for site in asked if site in answers}

    def _check_sites(
        self,
        request: Message,
        missing: Sequence[str],
        heard: Mapping[str, float],
        started: float,
        away: AwayRule | None,
    ) -> None:
        """Raise SiteLost for a site that is silent, or has not answered within the time limit.

        The process of a site that died does not come back within the same job. A silent site is waited for, like all
        others, if the rule ``away`` can go on without the silent ones.
        """
        if collab.is_aborted:
            raise RunAborted("the job has ended")
        assert request.envelope is not None
        now, asked = time.monotonic(), request.envelope.of
        lost = [site for site in missing if now - heard[site] > _SILENT_SECONDS]
        limit = self.wait_seconds
        if away is not None:
            limit = max(limit, away.seconds)
            lost = [] if away.suffices(len(asked) - len(lost), len(asked)) else lost
        if lost or now - started > limit:
            names = ", ".join(f"'{site}'" for site in lost or missing)
            seconds, advice = (_SILENT_SECONDS, "runs") if lost else (limit, "runs, or wait longer (--wait)")
            raise SiteLost(
                f"no answer to request {self.next_number} ({request.name}) from {names} within {seconds:g} seconds: "
                f"see that the site {advice}, then give the same command again, which goes on"
            )


def _pack(content: bytes) -> bytes | np.ndarray:
    return content if len(content) < _MAX_INLINE_BYTES else np.frombuffer(content, np.uint8)


def _unpack(payload: Any) -> bytes:
    """Return the bytes of a message. Raises UserError for anything else."""
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, np.ndarray) and payload.dtype == np.uint8 and payload.ndim == 1:
        return payload.tobytes()
    raise UserError("a message that is neither bytes nor an array of bytes: use the same version of fcorun at the "
                    "server and at all sites")  # fmt: skip


def _silence_log_of_calls() -> None:
    """Log warnings alone, because NVFLARE logs several lines a call to several files."""
    logging.disable(logging.INFO)
