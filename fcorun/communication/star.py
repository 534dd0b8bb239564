"""The star topology."""

from dataclasses import dataclass
from functools import reduce
from operator import add

from fcorun.communication.base import RoundOutcome, RoundState, Topology


@dataclass(frozen=True)
class Star(Topology):
    """A topology whose clients all communicate with the server."""

    source = "textbook"
    bytes_depend_on_cohort = False
    has_downlink = True

    def run_round(self, parts, state):
        server, memory, clients = state
        shares = parts.weights / parts.weights.sum()
        client_work, server_work = [], []
        for exchange in parts.exchanges:
            broadcast, memory = exchange.send_broadcast(server, memory, parts.draws)
            mean, clients, work = exchange.answer(broadcast, clients, parts.draws, shares)
            client_work.append(work)
            server, memory, work = exchange.update(server, mean, memory, parts.draws)
            server_work.append(work)
        return RoundOutcome(RoundState(server, memory, clients), reduce(add, client_work), reduce(add, server_work))

    def round_bytes(self, cohort, links, sizes):
        return {"bytes_up": sizes.bytes_up(len(cohort)), "bytes_down": sizes.bytes_down(len(cohort))}
