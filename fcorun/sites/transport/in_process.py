"""Connections to sites in this process, whose messages are checked and counted as on the way to another machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fcorun.base.errors import UserError
from fcorun.sites.transport.connections import AnsweringSite, Connections, Request
from fcorun.sites.transport.delivery import check_sender, sign_answer
from fcorun.sites.transport.messages import Message, SiteLost, SiteRefusal


@dataclass
class InProcessConnections(Connections):
    """Connections to sites in this process.

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
        message = self.address(request).deliver("the server")
        answers, lost = {}, None
        for site in asked:
            try:
                answer = sign_answer(self.site_by_name[site].answer(message), message, site)
            except SiteLost as error:
                lost = error
                continue
            except UserError as error:
                raise SiteRefusal(f"site '{site}': {error}") from error
            arrived = answer.deliver(f"site '{site}'")
            check_sender(arrived, site)
            self.bytes_sent[site] = self.bytes_sent.get(site, 0) + answer.n_bytes
            answers[site] = replace(arrived, envelope=None, site=None)
        if lost is not None and not (request.away and request.away.suffices(len(answers), len(asked))):
            raise lost
        self.next_number += 1
        return answers
