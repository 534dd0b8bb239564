"""The asynchronous server, which buffers uploads that arrive one at a time."""

from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.base.config import Count, NonNegative
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import PyTree
from fcorun.methods.clocks.clock import NoClock
from fcorun.methods.communication.contracts import Channel, RoundOutcome, RoundState, Topology

Rounds = TypeVar("Rounds", np.ndarray, jax.Array)  # numbers of rounds


@dataclass(frozen=True)
class Asynchronous(Topology):
    """A topology whose clients upload whenever they have finished, with any algorithm whose uploads are updates.

    A round is the arrival of one upload. The server adds it to a buffer, and after ``buffer`` arrivals takes their mean
    for the mean of a cohort. The client begins anew at once, from the server's model of that moment. With fedavg, the
    topology is FedBuff. With feddualavg, late updates of the dual are added as they are, computed with the
    threshold (``elapsed`` of FedDualAvg) that their sender had received.

    Fast clients arrive more often and so weigh more than in F, as in the paper, unless ``balance_arrivals`` is set.

    Attributes:
        buffer: the uploads that the server collects before it updates its model, K.
        staleness_exponent: a of the weight (1 + tau)^-a of an upload whose client began tau models ago.
        balance_arrivals: whether the weight of an upload is divided by its client's share of the arrivals so far,
            relative to 1 / M.
    """

    source = "algorithm 1 of @nguyen2022"
    bytes_depend_on_cohort = False

    buffer: Count = 10
    staleness_exponent: NonNegative = 0.5
    balance_arrivals: bool = False

    @property
    def waits_for_cohort(self):
        return False

    def check(self, plugins, names, settings):
        algorithm = plugins["algo"]
        traits, algo, name = algorithm.traits, names["algo"], names["topology"]
        super().check(plugins, names, settings)
        if isinstance(plugins["clock"], NoClock):
            raise UserError(f"`topology={name}` needs the times of clients: give `clock=lognormal`, or `clock=trace`")
        if settings.clients_per_round is not None:
            raise UserError(f"`clients_per_round={settings.clients_per_round}` has no meaning with "
                            f"`topology={name}`: all clients work, and one arrives in a round; give "
                            "`clients_per_round=null`")  # fmt: skip
        if type(plugins["uplink"]).receive is not Channel.receive:
            raise UserError(f"`uplink={names['uplink']}` changes means of a cohort, and `topology={name}` has none: "
                            "leave uplink out")  # fmt: skip
        if settings.frozen:
            raise UserError(f"`frozen=true` leaves nothing to the server: leave `topology={name}` out")
        if settings.rounds < self.buffer:
            raise UserError(f"`rounds={settings.rounds}` uploads do not fill `topology.buffer={self.buffer}`, and the "
                            "server would never update its model: raise rounds, or lower "
                            "`topology.buffer`")  # fmt: skip
        if "change" in (settings.stop or {}) and settings.eval_every < self.buffer:
            raise UserError(f"stop.change: the server updates its model every {self.buffer} rounds, and between two "
                            f"evaluations nothing may have changed: give `eval_every={self.buffer}`")  # fmt: skip
        one_update = traits.uploads == "updates" and traits.partial and not algorithm.has_two_exchanges
        one_update = one_update and not algorithm.multiplies_means  # weights of late uploads do not sum to one
        if not (one_update and algorithm.trains_shared_model and not traits.deterministic and not traits.hessian):
            raise UserError(f"`algo={algo}` does not only add its clients' updates to a model, so late uploads have no "
                            f"meaning: leave `topology={name}` out, or choose another `algo`")  # fmt: skip

    def initial_state(self, server, links, uploads):
        return {
            "model": server,
            "sum": jax.tree.map(lambda v: jnp.zeros(v.shape, v.dtype), uploads[0]),
            "arrivals": jnp.zeros((), jnp.int32),
        }

    def server_state(self, state, links):
        return state["model"]

    def client_memory(self, server):
        """Return the model that a client began from, the number of arrivals before, and of the client's own."""
        return ({"model": server, "start": jnp.zeros((), jnp.int32), "arrivals": jnp.zeros((), jnp.int32)},)

    def staleness(self, starts: Rounds, arrivals: Rounds) -> Rounds:
        """Return the server's updates between the start of a client, after ``starts`` arrivals, and its arrival."""
        return arrivals // self.buffer - starts // self.buffer

    def run_round(self, parts, state):
        """Add the upload of the client that arrives to the buffer; update the server where the buffer is full."""
        (exchange,), server = parts.exchanges, state.server
        *own_states, memory = state.clients
        memory = memory | {"model": _read_once(memory["model"], server["arrivals"])}
        upload, own_states, client_work = exchange.compute_clients(
            memory["model"], tuple(own_states), parts.draws, jnp.ones(1), sender_of=jnp.zeros(1, jnp.int32)
        )
        number, own_number = server["arrivals"], memory["arrivals"][0]
        dtype = parts.weights.dtype
        staleness = self.staleness(memory["start"][0], number).astype(dtype)
        weight = parts.share * parts.n_clients * (1 + staleness) ** -self.staleness_exponent / self.buffer
        if self.balance_arrivals:
            weight *= (number + 1).astype(dtype) / (parts.n_clients * (own_number + 1).astype(dtype))
        total = jax.tree.map(lambda old, new: old + weight * new, server["sum"], upload)

        updated, channel_memory, work = exchange.update(server["model"], total, state.memory, parts.draws)
        is_full = (number + 1) % self.buffer == 0

        def if_full(new, old):
            return jax.tree.map(lambda new, old: jnp.where(is_full, new, old), new, old)

        model = if_full(updated, server["model"])
        total = if_full(jax.tree.map(jnp.zeros_like, total), total)
        server = {"model": model, "sum": total, "arrivals": number + 1}
        memory = {"model": model, "start": number + 1, "arrivals": own_number + 1}
        clients = (*own_states, jax.tree.map(lambda value: value[None], memory))
        return RoundOutcome(
            RoundState(server, channel_memory, clients), client_work, if_full(work, jnp.zeros_like(work))
        )


def _read_once(model: PyTree, arrivals: jax.Array) -> PyTree:
    """Return the model that a client began from, read from the memory of all clients before the first use.

    XLA would read the model anew for each use, and therefore copy the memory of all clients in each round before one
    client's is overwritten. A condition whose value XLA does not know prevents both.
    """
    return lax.cond(arrivals >= 0, lambda value: value, lambda value: jax.tree.map(jnp.zeros_like, value), model)
