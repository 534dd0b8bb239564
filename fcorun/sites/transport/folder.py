"""Connections by a folder: requests and answers are files on a shared drive, or are carried by people.

``NNNN-NAME.request.npz`` is a request, ``NNNN-NAME.SITE.answer.npz`` a site's answer and ``NNNN-NAME.SITE.refusal.npz``
its refusal; ``SITE.refusal.npz`` refuses all requests. ``NNNN-NAME.away.json`` lists sites that the server went on
without, and ``stopped.json`` says why the server has stopped. The files stay: the same command of the server asks from
the beginning, finds the answers, and goes on.
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fcorun.base.errors import UserError, escape_controls, first_line
from fcorun.base.records.formats import json_text
from fcorun.base.system.files import read_regular_file, write_atomically
from fcorun.data.rows.site_rows import AwayRule
from fcorun.sites.transport.connections import AnsweringSite, Connections, Request
from fcorun.sites.transport.delivery import (
    AuditLog,
    answer_bytes,
    check_site_names,
    poll,
    read_answer,
    read_refusal,
    refusal_bytes,
)
from fcorun.sites.transport.durable import is_in_use
from fcorun.sites.transport.messages import LAST_REQUEST, NEW_RUN, ForeignAnswer, Message, SiteLost, SiteRefusal

MAX_MESSAGE_BYTES = 2**30
_ANSWER = ".answer.npz"
_REFUSAL = ".refusal.npz"
_MAX_SENTENCE = 1000
_MEND_SECONDS = 30.0  # for the answer of a site that refused to an earlier command of the server
_AWAY = ".away.json"
_STOPPED = "stopped.json"
_MAX_NOTE_BYTES = 2**20
_REQUEST = re.compile(r"(\d{4,15})-(\w+)\.request\.npz")


@dataclass
class FolderConnections(Connections):
    """Connections to sites that read requests from a folder, and write answers there.

    Attributes:
        folder: the shared folder, of one run alone.
        names: the names of the sites.
        run: the identity of the run. The same run goes on in its folder.
        wait_seconds: the longest wait for the answers to a request.
        on_wait: called with the names of the sites whose answers are missing, before each wait.
    """

    folder: Path
    names: Sequence[str]
    run: str
    wait_seconds: float
    on_wait: Callable[[Sequence[str]], None] = lambda sites: None
    next_number: int = 0
    _missed: dict[str, list[Path]] = field(default_factory=dict)  # the answers that a site owes since it is away

    def __post_init__(self) -> None:
        self.sites = check_site_names(self.names)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._old_refusals = self._times_of_refusals()

    def send(self, request: Request) -> dict[str, Message]:
        message = self.address(request)
        content = message.to_bytes()
        path = self.folder / f"{self.next_number:04d}-{message.name}.request.npz"
        existing = [file for number, file in _requests(self.folder) if number == self.next_number]
        if not existing:
            write_atomically(path, content, durable=True)
        elif existing != [path] or _read_request(path) != content:
            raise UserError(f"{existing[0]} is the request of another run: give the command of that run, or an empty "
                            "folder for this run")  # fmt: skip
        answers = self._collect(message, self.list_addressees(request), request.away)
        self.next_number += 1
        return answers

    @contextmanager
    def telling_sites(self) -> Iterator[None]:
        """Tell the sites that answer from the folder the sentence of an error that ends the server's command.

        A server that waits no longer for a site tells nothing, since the same command goes on with the other sites.
        """
        try:
            yield
        except SiteLost:
            raise
        except UserError as error:
            note = {"sentence": str(error), "stop": secrets.token_hex(8)}  # each stop is news, for one reason or two
            write_atomically(self.folder / _STOPPED, json_text(note))
            raise
        (self.folder / _STOPPED).unlink(missing_ok=True)

    def has_request(self, message_name: str | None = None) -> bool:
        """Return whether the folder holds a request of the run, with this name or with any."""
        for _, path in _requests(self.folder, message_name):
            envelope = Message.from_bytes(_read_request(path), str(path)).envelope
            if envelope is not None and envelope.run == self.run:
                return True
        return False

    def _times_of_refusals(self) -> dict[str, int]:
        """Return the times at which the refusals in the folder were written, by name."""
        times = {}
        for path in sorted(self.folder.glob(f"*{_REFUSAL}")):
            with suppress(FileNotFoundError):  # an answer has just replaced the refusal
                times[path.name] = path.stat().st_mtime_ns
        return times

    def _may_be_mended(self, site: str, name: str) -> bool:
        """Return whether a site's refusal is of an earlier command, so that the site may have been mended since."""
        files = (f"{self.next_number:04d}-{name}.{site}{_REFUSAL}", f"{site}{_REFUSAL}")
        times = self._times_of_refusals()
        return all(times.get(file) in (self._old_refusals.get(file), None) for file in files)

    def _collect(self, request: Message, asked: Sequence[str], away: AwayRule | None) -> dict[str, Message]:
        """Return the answers to a request once all are there, or those that the rule ``away`` goes on with.

        Raises SiteLost after the time limit.
        """
        answers: dict[str, Message] = {}
        problems: dict[str, str] = {}
        away_path = self.folder / f"{self.next_number:04d}-{request.name}{_AWAY}"
        left_out = read_left_out(away_path)
        asked = [site for site in asked if site not in left_out]
        missing = list(asked)
        started = time.monotonic()
        mend_seconds = min(_MEND_SECONDS, self.wait_seconds) if away is None else 0.0
        for _ in poll(self.wait_seconds if away is None else max(self.wait_seconds, away.seconds)):
            for site in missing:
                try:
                    answers[site] = read_answer(self._read_content(request.name, site), site, request)
                    self._missed.pop(site, None)
                except FileNotFoundError:
                    problems.pop(site, None)
                except ForeignAnswer:  # waiting mends nothing: where an answer lies, the site writes none
                    raise
                except SiteRefusal:
                    if time.monotonic() - started >= mend_seconds or not self._may_be_mended(site, request.name):
                        raise
                except (UserError, OSError) as error:  # a file that is being copied is not complete yet
                    problems[site] = str(error)
            missing = [site for site in asked if site not in answers]
            if not missing:
                return {site: answers[site] for site in asked}
            if (
                away is not None
                and away.suffices(len(answers), len(asked))
                and (time.monotonic() - started >= away.seconds or self._stay_away(missing))
            ):
                # before the server goes on without these sites, so that a repeated command leaves them out
                write_atomically(away_path, json_text({"sites": list(missing)}), durable=True)
                for site in missing:
                    answer_path = self.folder / f"{self.next_number:04d}-{request.name}.{site}{_ANSWER}"
                    self._missed.setdefault(site, []).append(answer_path)
                return {site: answers[site] for site in asked if site in answers}
            self.on_wait(missing)
        names = ", ".join(f"'{site}'" for site in missing)
        reasons = "".join(f"; {problem}" for problem in problems.values())
        raise SiteLost(
            f"no answer to request {self.next_number} ({request.name}) from {names} within {self.wait_seconds:g} "
            f"seconds{reasons}: see that the site runs and sees {self.folder}, then give the same command again, which "
            "goes on"
        )

    def _stay_away(self, missing: Sequence[str]) -> bool:
        """Return whether all these sites were left out before, and have answered nothing since, not even late."""
        for site in missing:
            if any(path.exists() for path in self._missed.get(site, ())):
                del self._missed[site]
        return all(site in self._missed for site in missing)

    def _read_content(self, name: str, site: str) -> bytes:
        """Return a site's answer or refusal as bytes. Raises FileNotFoundError if there is neither."""
        stem = f"{self.next_number:04d}-{name}.{site}"
        for file in (stem + _ANSWER, stem + _REFUSAL):
            with suppress(FileNotFoundError):
                return read_regular_file(self.folder / file, MAX_MESSAGE_BYTES)
        return read_regular_file(self.folder / f"{site}{_REFUSAL}", MAX_MESSAGE_BYTES)


@dataclass
class FolderSite:
    """A site that answers the requests of a folder.

    Attributes:
        folder: the shared folder.
        name: the name of the site.
        site: what answers, a ``DurableSite`` in earnest.
        on_answer: called with the name of each request that was answered, or with the sentence of a refusal.
        log: the log of everything that the site sends.
        run: the identity of the run that is served; None: that of any run in the folder.
    """

    folder: Path
    name: str
    site: AnsweringSite
    on_answer: Callable[[str], None] = lambda name: None
    log: AuditLog | None = None
    run: str | None = None

    def __post_init__(self) -> None:
        check_site_names([self.name])
        self._refused: set[int] = set()  # by this process: another one may allow what was refused

    def serve(self, wait_seconds: float, earlier_stop: Mapping[str, Any] | None = None) -> None:
        """Answer requests until the end of the run.

        ``earlier_stop`` is what ``read_stop`` returned before the site was opened: of an earlier command of the server.
        Raises UserError if the server stops, with its reason, and if no request arrives within a time limit.
        """
        (self.folder / f"{self.name}{_REFUSAL}").unlink(missing_ok=True)
        if self._has_ended():
            return
        if earlier_stop is not None:
            sentence = _sentence_of(earlier_stop)
            self.on_answer(f"the server had stopped: {sentence}; this site waits for its next command")
        while True:
            for _ in poll(wait_seconds):
                stop = read_stop(self.folder)
                if stop is not None and stop != earlier_stop:
                    raise UserError(f"the server has stopped: {_sentence_of(stop)}; once that is mended, start this "
                                    "site again, and then the leader repeats the command")  # fmt: skip
                answered = self.answer_pending()
                if self._has_ended():
                    return
                if answered:
                    break
            else:
                raise UserError(f"no request for site '{self.name}' has come to {self.folder} within {wait_seconds:g} "
                                "seconds: give the same command again, which goes on")  # fmt: skip

    def _has_ended(self) -> bool:
        """Return whether the site has answered the last request of the run, or the server has ended without it."""
        for _, path in _requests(self.folder, LAST_REQUEST):
            try:
                request = Message.from_bytes(read_regular_file(path, MAX_MESSAGE_BYTES), "the server")
                left_out = read_left_out(_sibling(path, _AWAY))
            except (UserError, OSError):  # is being copied
                continue
            if request.envelope is None or self.run not in (None, request.envelope.run):
                continue
            if self.name in left_out or _sibling(path, f".{self.name}{_ANSWER}").exists():
                return True
        return False

    def answer_pending(self) -> list[str]:
        """Answer the requests that have no answer yet, in their order. Returns the names of the requests."""
        answered = []
        for number, path in _requests(self.folder):
            answer_path, refusal_path = (_sibling(path, f".{self.name}{kind}") for kind in (_ANSWER, _REFUSAL))
            if answer_path.exists() or number in self._refused:
                continue
            try:
                content = read_regular_file(path, MAX_MESSAGE_BYTES)
                request = Message.from_bytes(content, "the server")
                left_out = read_left_out(_sibling(path, _AWAY))
            except (UserError, OSError):  # is being copied: later requests wait for this one
                break
            if request.envelope is None or self.name not in request.envelope.of or self.name in left_out:
                continue
            answer = answer_bytes(self.site.answer, self.name, content, self.log)
            sentence = read_refusal(answer)
            if sentence is None:
                write_atomically(answer_path, answer, durable=True)
                refusal_path.unlink(missing_ok=True)
                answered.append(request.name)
            else:
                self._refused.add(number)
                write_atomically(refusal_path, answer, durable=True)
            self.on_answer(request.name if sentence is None else sentence)
        return answered


def refuse_all(folder: Path, name: str, error: UserError, state: Path, log: AuditLog) -> None:
    """Refuse all requests for a site that cannot be opened, unless another process answers for the site.

    Args:
        folder: the shared folder.
        name: the name of the site.
        error: the error of opening the site.
        state: the folder of the site's state.
        log: the log of everything that the site sends.
    """
    check_site_names([name])
    if not is_in_use(state):
        write_atomically(folder / f"{name}{_REFUSAL}", refusal_bytes(error, name, log), durable=True)


def read_stop(folder: Path) -> dict[str, Any] | None:
    """Return the content of the file that says why the server has stopped; None without a complete file."""
    try:
        content = json.loads(read_regular_file(folder / _STOPPED, _MAX_NOTE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _sentence_of(stop: Mapping[str, Any]) -> str:
    return escape_controls(str(stop.get("sentence", "")))[:_MAX_SENTENCE]


def read_left_out(path: Path) -> list[str]:
    """Return the names of the sites that the server went on without, as a file of a request lists them.

    Return [] without the file. Raises UserError for a file that cannot be read.
    """
    try:
        return [str(site) for site in json.loads(read_regular_file(path, _MAX_NOTE_BYTES))["sites"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}): restore the file, or {NEW_RUN}"
                        ) from error  # fmt: skip


def _read_request(path: Path) -> bytes:
    try:
        return read_regular_file(path, MAX_MESSAGE_BYTES)
    except OSError as error:
        raise UserError(f"the request cannot be read ({error}): restore the file, or take an empty folder") from error


def _requests(folder: Path, message_name: str | None = None) -> list[tuple[int, Path]]:
    """Return the requests in a folder, of this name or of any, as (number, file), sorted."""
    files = [(_REQUEST.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in files if match and message_name in (None, match[2]))


def _sibling(request: Path, ending: str) -> Path:
    """Return the file beside that of a request, whose name has another ending."""
    return request.with_name(request.name.replace(".request.npz", ending))
