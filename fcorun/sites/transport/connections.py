"""Connections between the server and the sites: requests go out, answers come back, by any transport."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.base.errors import UserError
from fcorun.base.records.formats import READ_ERRORS, npz_bytes, read_npz
from fcorun.base.system.files import write_atomically
from fcorun.data.rows.site_rows import AwayRule
from fcorun.sites.transport.delivery import AnsweringSite, digest_of, read_answer, sign_answer
from fcorun.sites.transport.messages import NEW_RUN, Message, SiteLost, SiteRefusal, number_request

ALL_SITES = "all sites"  # stands for the name of a site where an answer is the sum over all sites
_DIGEST = "digest"
_SITE = "site/"


@dataclass(frozen=True)
class Request:
    """A request of the server, before a transport numbers and addresses it.

    Attributes:
        message: the message, without an envelope.
        of: the names of the sites that are asked, sorted; None: all sites.
        away: the rule by which sites may be away; None: every site has to answer.
    """

    message: Message
    of: tuple[str, ...] | None = None
    away: AwayRule | None = None

    @property
    def name(self) -> str:
        """The name of the message."""
        return self.message.name


class Connections(ABC):
    """A transport, as the server sees it.

    Attributes:
        run: the identity of the run.
        next_number: the number of the next request.
        sites: the names of the sites, sorted.
    """

    run: str
    next_number: int
    sites: tuple[str, ...]

    @abstractmethod
    def send(self, request: Request) -> dict[str, Message]:
        """Send a request, and return the answers of the sites that are asked by site, in sorted order.

        With the rule ``away``, sites without an answer are left out if enough others have answered; else SiteLost is
        raised. A late answer of a site that was left out is ignored, also when the same command is repeated.

        Raises SiteRefusal if a site refuses, and SiteLost if a site does not answer in time; both name the site.
        """

    def ask(
        self,
        message_name: str,
        arrays: Mapping[str, np.ndarray] | None = None,
        about: Mapping[str, Any] | None = None,
        of: Sequence[str] | None = None,
        away: AwayRule | None = None,
    ) -> dict[str, Message]:
        """Send a request of these parts, and return the answers as ``send`` does.

        Args:
            message_name: the name of a kind of message.
            arrays: the arrays of numbers of the request, by name.
            about: the small values of the request, by name.
            of: the names of the sites that are asked; None: all sites.
            away: the rule by which sites may be away; None: every site has to answer.
        """
        message = Message(message_name, dict(about or {}), dict(arrays or {}))
        addressees = None if of is None else tuple(sorted(of))
        return self.send(Request(message, addressees, away))

    def list_addressees(self, request: Request) -> tuple[str, ...]:
        """Return the names of the sites that a request asks, sorted."""
        return self.sites if request.of is None else request.of

    def address(self, request: Request) -> Message:
        """Return the message of a request with the envelope of the next request."""
        return number_request(request.message, self.run, self.next_number, self.list_addressees(request))


class ConnectionsWrapper(Connections):
    """The base of connections that pass requests on to other connections, whose sites and request numbers they have.

    Attributes:
        connections: the other connections.
    """

    connections: Connections

    @property
    def sites(self) -> tuple[str, ...]:
        return self.connections.sites

    @property
    def run(self) -> str:
        return self.connections.run

    @property
    def next_number(self) -> int:
        return self.connections.next_number

    @next_number.setter
    def next_number(self, number: int) -> None:
        self.connections.next_number = number


@dataclass
class InProcessConnections(Connections):
    """Connections to sites in this process, whose messages are bytes as on the way to another machine.

    Attributes:
        site_by_name: the sites by name.
        bytes_sent: the bytes of the answers of each site so far, with their envelopes.
        run: the identity of the run.
        next_number: the number of the next request.
    """

    site_by_name: Mapping[str, AnsweringSite]
    bytes_sent: dict[str, int] = field(default_factory=dict)
    run: str = "trial"
    next_number: int = 0

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted(self.site_by_name))

    def send(self, request: Request) -> dict[str, Message]:
        """Have the sites answer one after the other, as ``Connections.send`` says."""
        asked = self.list_addressees(request)
        message = Message.from_bytes(self.address(request).to_bytes(), "the server")
        answers = {}
        lost = None
        for site in asked:
            try:
                content = sign_answer(self.site_by_name[site].answer(message), message, site).to_bytes()
            except SiteLost as error:
                lost = error
                continue
            except UserError as error:
                raise SiteRefusal(f"site '{site}': {error}") from error
            answers[site] = read_answer(content, site, message)
            self.bytes_sent[site] = self.bytes_sent.get(site, 0) + len(content)
        if lost is not None and not (request.away and request.away.suffices(len(answers), len(asked))):
            raise lost
        self.next_number += 1
        return answers


@dataclass
class JournaledConnections(ConnectionsWrapper):
    """Connections that answer from files what they were asked before.

    A server whose requests depend on earlier answers alone repeats its computation after a kill, without the sites,
    and asks them from the first request on that has no file. The sites answer a repeated request with stored bytes.
    A site that was left out of an answer has none in the file, and stays left out.

    Attributes:
        connections: the connections to the sites.
        folder: the folder of the run, which holds a file for each request.
    """

    connections: Connections
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def send(self, request: Request) -> dict[str, Message]:
        digest = digest_of(self.address(request).to_bytes())
        path = self.folder / f"{self.next_number:06d}.npz"
        stored = self._read(path, digest)
        if stored is not None:
            self.next_number += 1
            return stored
        answers = self.connections.send(request)
        contents = {_SITE + site: np.frombuffer(answer.to_bytes(), np.uint8) for site, answer in answers.items()}
        contents[_DIGEST] = np.frombuffer(digest.encode(), np.uint8)
        write_atomically(path, npz_bytes(contents), durable=True)
        return answers

    def _read(self, path: Path, digest: str) -> dict[str, Message] | None:
        """Return the stored answers to a request; None without a file. Raises UserError for another request."""
        try:
            arrays = read_npz(path)
            same = arrays.pop(_DIGEST).tobytes() == digest.encode()
        except FileNotFoundError:
            return None
        except READ_ERRORS as error:
            raise UserError(f"{path} cannot be read ({error}): restore the file from a copy, or {NEW_RUN}"
                            ) from error  # fmt: skip
        if not same:
            raise UserError(f"{path} answers another request than this command's: give the command that began the run, "
                            f"or {NEW_RUN}")  # fmt: skip
        sites = ((name.removeprefix(_SITE), array) for name, array in arrays.items())
        return {site: Message.from_bytes(array.tobytes(), str(path)) for site, array in sites}
