"""Connections between the server and the sites: requests go out, answers come back, by any transport."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fcorun.data.rows.away_sites import AwayRule
from fcorun.sites.transport.messages import Message

ALL_SITES = "all sites"  # stands for the name of a site where an answer is the sum over all sites


class AnsweringSite(Protocol):
    """A site as a transport sees it."""

    def answer(self, request: Message) -> Message:
        """Return the answer to a request. Raises UserError if the site refuses."""
        ...


class Connections(Protocol):
    """A transport, as the server sees it.

    Attributes:
        sites: the names of the sites, sorted.
        next_number: the number of the next request.
    """

    @property
    def sites(self) -> tuple[str, ...]: ...

    @property
    def next_number(self) -> int: ...

    @next_number.setter
    def next_number(self, number: int) -> None: ...

    def ask(
        self,
        message_name: str,
        /,
        arrays: Mapping[str, np.ndarray] | None = None,
        about: Mapping[str, Any] | None = None,
        of: Sequence[str] | None = None,
        away: AwayRule | None = None,
    ) -> dict[str, Message]:
        """Send a request to the sites ``of``, by default all, and return their answers by site, in sorted order.

        With the rule ``away``, sites without an answer are left out if enough others have answered; else SiteLost is
        raised. A late answer of a site that was left out is ignored, also when the same command is repeated.

        Args:
            message_name: one of ``MESSAGES``.
            arrays: the arrays of numbers of the request, by name.
            about: the small values of the request, by name.
            of: the names of the sites that are asked; None: all sites.
            away: the rule by which sites may be away; None: every site has to answer.

        Raises SiteRefusal if a site refuses, and SiteLost if a site does not answer in time; both name the site.
        """
        ...


class ConnectionsWrapper:
    """The base of connections that pass requests on to other connections, whose sites and request numbers they have.

    Attributes:
        connections: the other connections.
    """

    connections: Connections

    @property
    def sites(self) -> tuple[str, ...]:
        return self.connections.sites

    @property
    def next_number(self) -> int:
        return self.connections.next_number

    @next_number.setter
    def next_number(self, number: int) -> None:
        self.connections.next_number = number
