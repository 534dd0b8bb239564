"""Broadcasts by their nonzeros."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fcorun.base.errors import UserError
from fcorun.methods.clocks.clock import NoClock
from fcorun.methods.communication.compressor import is_compressed
from fcorun.methods.communication.contracts import Channel

_GIBIBYTE = 1 << 30


@dataclass(frozen=True)
class SparseBroadcast(Channel):
    """A channel of broadcasts that sends the nonzeros of each array, each with its index in 32 bits, without any loss.

    An array is sent as it is where that takes fewer bytes: one in dual form, as of FedDualAvg, has few zeros. The
    memory counts the bytes sent to a client so far, in a number below 2^30 and the number of 2^30s.
    """

    source = "textbook"
    uses_key = False

    def check(self, plugins, names, settings):
        raise UserError(f"`uplink={names['uplink']}` sends broadcasts: give it as downlink, and choose another uplink")

    def check_downlink(self, plugins, names, settings):
        self.check_counted_broadcasts(plugins["algo"], names)
        if not isinstance(plugins["clock"], NoClock):
            raise UserError(f"`downlink={names['downlink']}` sends messages of other lengths in each round, whose "
                            f"times `clock={names['clock']}` does not know: leave one of them out")  # fmt: skip

    def client_memory(self, upload):
        return jnp.zeros(2, jnp.int32)

    def send(self, upload, memory, key):
        arrays = [leaf for leaf in jax.tree.leaves(upload) if is_compressed(leaf)]
        n_bytes = jnp.zeros((), jnp.int32)
        for array in arrays:
            itemsize = array.dtype.itemsize
            n_nonzero = jnp.count_nonzero(array).astype(jnp.int32)
            n_worth_indices = array.size * itemsize // (4 + itemsize)  # compared first: bytes of more may overflow
            with_indices = n_nonzero * (4 + itemsize)
            n_bytes += jnp.where(n_nonzero > n_worth_indices, array.size * itemsize, with_indices).astype(jnp.int32)
        total = memory[0] + n_bytes
        return upload, jnp.stack([total % _GIBIBYTE, memory[1] + total // _GIBIBYTE])

    def upload_bytes(self, upload, declared_bytes):
        """Return the bytes of the single numbers; ``counted_bytes`` are those of arrays."""
        return declared_bytes - sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(upload)
                                    if is_compressed(leaf))  # fmt: skip

    def counted_bytes(self, memory):
        below, gibibytes = (int(value) for value in memory)
        return below + gibibytes * _GIBIBYTE
