"""Connections between the server and the sites: requests go out, answers come back, by any transport."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fcorun.data.rows.away_sites import AwayRule
from fcorun.sites.transport.messages import Message, number_request

ALL_SITES = "all sites"  # stands for the name of a site where an answer is the sum over all sites


class AnsweringSite(Protocol):
    """A site as a transport sees it."""

    def answer(self, request: Message) -> Message:
        """Return the answer to a request. Raises UserError if the site refuses."""
        ...


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
    """

    run: str
    next_number: int

    @property
    @abstractmethod
    def sites(self) -> tuple[str, ...]:
        """The names of the sites, sorted."""

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
