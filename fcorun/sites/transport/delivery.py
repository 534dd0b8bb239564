"""Requests and answers as bytes, as every transport between machines carries them."""

import hashlib
import logging
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fcorun.base.errors import UserError, escape_controls
from fcorun.base.system.files import check_interrupted
from fcorun.sites.transport.audit import AuditLog
from fcorun.sites.transport.connections import AnsweringSite
from fcorun.sites.transport.messages import REFUSAL, ForeignAnswer, Message, OwnerError, SiteRefusal

_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MAX_SENTENCE, _MAX_NAME = 500, 100
_log = logging.getLogger(__name__)


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


def answer_bytes(site: AnsweringSite, name: str, content: bytes, log: AuditLog | None = None) -> bytes:
    """Return the answer of the site ``name`` to a request, or its refusal, after a line in the log on either.

    The refusal for a mistake of a user is its sentence, or its public sentence where the whole one is for the site's
    owner. The refusal for any other error names the kind of the error alone, because the text of such an error may
    quote rows; the program's own log has the text. A site that cannot write its log sends no more than that sentence.
    """
    answer = _answer_or_refuse(site, name, content)
    return (answer if log is None else _logged(answer, log)).to_bytes()


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
        return Message(REFUSAL, {"sentence": sentence}, envelope=answer.envelope, site=answer.site)
    return answer


def _answer_or_refuse(site: AnsweringSite, name: str, content: bytes) -> Message:
    envelope = None
    try:
        request = Message.from_bytes(content, "the server")
        envelope = request.envelope
        if envelope is None or name not in envelope.of:
            raise UserError("the server's request is not addressed to this site")
        answer = sign_answer(site.answer(request), request, name)
        answer.to_bytes()  # raises an error for what is no message
        return answer
    except OwnerError as error:
        _log.error("%s", error)
        sentence = error.public
    except UserError as error:
        sentence = str(error)
    except Exception as error:
        _log.exception("The site could not answer.")
        sentence = f"the site failed ({type(error).__name__}): its log says why"
    return Message(REFUSAL, {"sentence": sentence}, envelope=envelope, site=name)


def refusal_bytes(error: UserError, name: str, log: AuditLog) -> bytes:
    """Return the refusal of all requests by the site ``name``, which cannot be opened, after a line in the log."""
    sentence = error.public if isinstance(error, OwnerError) else str(error)
    refusal = Message(REFUSAL, {"sentence": sentence}, site=name)
    return _logged(refusal, log).to_bytes()


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
    """Yield until a time limit, with waits that grow between the steps. Raises KeyboardInterrupt if interrupted."""
    end, wait = time.monotonic() + limit_seconds, first_seconds
    while True:
        check_interrupted()
        yield
        remaining = end - time.monotonic()
        if remaining <= 0:
            return
        time.sleep(min(wait, remaining))
        wait = min(1.5 * wait, longest_seconds)
