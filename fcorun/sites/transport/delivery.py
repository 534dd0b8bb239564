"""Requests and answers as bytes, as every transport between machines carries them, and the log of what a site sent."""

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from fcorun.base.errors import UserError, WriteError, escape_controls
from fcorun.base.system import locks
from fcorun.base.system.files import check_interrupted
from fcorun.sites.transport.messages import REFUSAL, Envelope, ForeignAnswer, Message, OwnerError, SiteRefusal

_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MAX_SENTENCE = 500
_MAX_NAME = 100
_log = logging.getLogger(__name__)


class AnsweringSite(Protocol):
    """A site as a transport sees it."""

    def answer(self, request: Message) -> Message:
        """Return the answer to a request. Raises UserError if the site refuses."""
        ...


Answer = Callable[[Message], Message]


@dataclass(frozen=True)
class AuditLog:
    """A log that is only appended to, one JSON object a line. Each line has the digest of the line before.

    Attributes:
        path: the file.
        plan: the digest of the plan.
        contents: whether lines have the numbers that were sent, too.
    """

    path: Path
    plan: str = ""
    contents: bool = False

    def write(self, answer: Message) -> None:
        """Append a line on an answer or a refusal before it leaves. Processes that serve other plans wait."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = answer.to_bytes()
        with locks.acquire(Path(f"{self.path}.lock"), seconds=-1), self.path.open("ab+") as file:
            last_line, is_torn = _read_last_line(file)
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "plan": self.plan[:16],
                "message": answer.name,
                "about": answer.about,
                "arrays": {name: [str(array.dtype), *array.shape] for name, array in answer.arrays.items()},
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
                "line_before": "" if last_line is None else hashlib.sha256(last_line).hexdigest(),
            }
            if self.contents:
                line["contents"] = {name: array.tolist() for name, array in answer.arrays.items()}
            if is_torn:
                file.write(b"\n")
            file.write((json.dumps(line) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())


def _read_last_line(file: BinaryIO) -> tuple[bytes | None, bool]:
    """Return the last line of a file, None for an empty one, and whether the line has no end, as after a kill."""
    size = file.seek(0, os.SEEK_END)
    length = 2**16
    while True:
        file.seek(max(size - length, 0))
        content = file.read()
        lines = content.splitlines()
        if not lines:
            return None, False
        if len(lines) > 1 or length >= size:
            return lines[-1], not content.endswith(b"\n")
        length *= 2


def check_site_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of sites, sorted. Raises UserError for names that cannot name files, and for repeated names."""
    names = sorted(names)
    for name in names:
        if not _SITE_NAME.fullmatch(name):
            raise UserError(f"'{escape_controls(name)}' cannot name a site: take at most 63 letters, digits, '.', '-' "
                            "and '_', a letter or digit first")  # fmt: skip
        if names.count(name) > 1:
            raise UserError(f"two sites are named '{name}': give each site a name of its own")
    return tuple(names)


def answer_bytes(answer_message: Answer, name: str, content: bytes, log: AuditLog | None = None) -> bytes:
    """Return the answer of the site ``name`` to a request, or its refusal, after a line in the log on either.

    ``answer_message`` returns the answer of the site to a message, and raises UserError for a refusal. The refusal for
    a mistake of a user is its sentence, or its public sentence where the whole one is for the site's owner. The refusal
    for any other error names the kind of the error alone, because the text of such an error may quote rows; the
    program's own log has the text. A site that cannot write its state or its log sends no more than that sentence.
    """
    envelope = None
    try:
        request = Message.from_bytes(content, "the server")
        envelope = request.envelope
        if envelope is None or name not in envelope.of:
            raise UserError("the server's request is not addressed to this site")
        answer = sign_answer(answer_message(request), request, name)
        answer.to_bytes()  # raises an error for what is no message
    except UserError as error:
        if isinstance(error, OwnerError):
            _log.error("%s", error)
        answer = _refuse(public_sentence(error), name, envelope)
    except WriteError as error:
        _log.error("%s", error)
        problem = f"the site cannot write its state ({error.strerror})"
        answer = _refuse(f"{problem}: its owner makes room, or mends the folder", name, envelope)
    except Exception as error:
        _log.exception("The site could not answer.")
        answer = _refuse(f"the site failed ({type(error).__name__}): its log says why", name, envelope)
    if log is not None:
        answer = _logged(answer, log)
    return answer.to_bytes()


def sign_answer(answer: Message, request: Message, name: str) -> Message:
    """Return an answer as it leaves the site ``name``: with the envelope of its request, and the name of the site.

    A stored answer keeps the name under which it was stored.
    """
    return replace(answer, envelope=request.envelope, site=answer.site or name)


def _logged(answer: Message, log: AuditLog) -> Message:
    """Return an answer after a line in the log on it; without the line, a refusal."""
    try:
        log.write(answer)
    except OSError as error:
        _log.error("%s cannot be written: %s", log.path, error)
        sentence = f"the site cannot write its log ({error.strerror}): its owner makes room, or mends the folder"
        return _refuse(sentence, str(answer.site), answer.envelope)
    return answer


def refusal_bytes(error: UserError, name: str, log: AuditLog) -> bytes:
    """Return the refusal of all requests by the site ``name``, which cannot be opened, after a line in the log."""
    return _logged(_refuse(public_sentence(error), name), log).to_bytes()


def public_sentence(error: UserError) -> str:
    """Return the sentence of an error at a site as the server may see it."""
    if isinstance(error, OwnerError):
        return error.public
    return str(error)


def _refuse(sentence: str, name: str, envelope: Envelope | None = None) -> Message:
    """Return the refusal of the site ``name`` to a request with this envelope, or to all."""
    return Message(REFUSAL, {"sentence": sentence}, envelope=envelope, site=name)


def read_answer(content: bytes, name: str, request: Message) -> Message:
    """Return the answer of the site ``name`` to a request, without its envelope and the name of the site.

    Raises ForeignAnswer for a message of another site, SiteRefusal for a refusal, and UserError for anything else.
    """
    answer = Message.from_bytes(content, f"site '{name}'")
    check_sender(answer, name)
    if answer.name == REFUSAL:
        raise SiteRefusal(f"site '{name}': {_sentence_of(answer)}")
    if (answer.name, answer.envelope) != (request.name, request.envelope):
        raise UserError(f"site '{name}' answered another request than '{request.name}': see that each site has its own "
                        "folder, and that all belong to the same run")  # fmt: skip
    return replace(answer, envelope=None, site=None)


def check_sender(answer: Message, name: str) -> None:
    """Raise ForeignAnswer unless the site ``name`` has sent an answer or a refusal."""
    if answer.site != name:
        sender = "no site" if answer.site is None else f"site '{escape_controls(answer.site)[:_MAX_NAME]}'"
        raise ForeignAnswer(f"site '{name}' was asked, and the answer names {sender} as its sender: see that each site "
                            "has its own name and its own folder, remove that answer from a shared folder, and give "
                            "the same command again")  # fmt: skip


def read_refusal(content: bytes) -> str | None:
    """Return the sentence of a refusal of ``answer_bytes``; None for an answer."""
    answer = Message.from_bytes(content, "the site")
    return _sentence_of(answer) if answer.name == REFUSAL else None


def _sentence_of(refusal: Message) -> str:
    return escape_controls(str(refusal.about.get("sentence", "")))[:_MAX_SENTENCE]


def digest_of(content: bytes) -> str:
    """Return the SHA-256 digest of bytes, as text."""
    return hashlib.sha256(content).hexdigest()


def poll(limit_seconds: float, first_seconds: float = 0.02, longest_seconds: float = 2.0) -> Iterator[None]:
    """Yield until a time limit, and once after it, with waits that grow between the steps.

    Raises KeyboardInterrupt if interrupted.
    """
    end = time.monotonic() + limit_seconds
    wait = first_seconds
    while True:
        check_interrupted()
        is_over = time.monotonic() >= end
        yield
        if is_over:
            return
        time.sleep(max(0.0, min(wait, end - time.monotonic())))
        wait = min(1.5 * wait, longest_seconds)
