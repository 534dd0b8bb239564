"""Compressors: channels that send fewer bits, and what each client remembers of what it has not sent."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fcorun.base.config import AUTO
from fcorun.base.errors import UserError
from fcorun.methods.algorithms.algorithm import PyTree
from fcorun.methods.communication.contracts import Channel
from fcorun.methods.mirror_maps.mirror_map import Euclidean
from fcorun.methods.regularizers.regularizer import Constraint, NoRegularizer

Feedback = Literal["auto", "none", "ef", "ef21", "diana"]


@dataclass(frozen=True, kw_only=True)
class Compressor(Channel):
    """A channel that compresses each array of an upload by itself. Single numbers are sent as they are.

    With C the compressor, u an upload, and m the memory of its client, which starts at 0:

    - ``feedback="none"``: the server gets C(u).
    - "ef", error feedback (Karimireddy et al. 2019, arXiv 1901.09847): the server gets C(u + m), and the client
      remembers what it still owes, m <- u + m - C(u + m). The sum of all messages is right, and single ones are not.
    - "ef21" (Richtarik, Sokolov and Fatkhullin 2021, arXiv 2106.05203): client and server both remember
      m <- m + C(u - m), and the server gets the new m. Uploads that converge arrive exactly in the end.
    - "diana" (Mishchenko et al. 2019, arXiv 1901.09269, with alpha = 1 / (1 + omega)): client and server both
      remember m <- m + alpha C(u - m), and the server gets the old m + C(u - m), which is unbiased.

    An unbiased compressor, E C(v) = v with E|C(v) - v|^2 <= omega |v|^2, is divided by 1 + omega for "ef" and "ef21",
    which need a contraction.

    Attributes:
        feedback: what a client remembers. "auto" is what the algorithm is defined by (``Traits.feedback``), or "ef" for
            increments, or else "diana" for an unbiased compressor and "ef21" for others.
        unbiased: whether E C(v) = v.
    """

    unbiased: ClassVar[bool] = False

    feedback: Feedback = AUTO

    @abstractmethod
    def compress(self, vector: Float[Array, " k"], key: jax.Array) -> Float[Array, " k"]:
        """Return what the server reconstructs from the message of a vector, (k,), by a key for ``jax.random``."""

    @abstractmethod
    def message_bits(self, size: int, number_bits: int) -> int:
        """Return the bits of the message of a vector of ``size`` numbers of so many bits."""

    @abstractmethod
    def error_bound(self, size: int) -> jax.Array | float:
        """Return a bound on E|C(v) - v|^2 / |v|^2 for vectors of ``size`` numbers.

        The bound is called omega for an unbiased compressor. Others are contractions: their bound is below 1.
        """

    def contraction_error(self, size: int) -> jax.Array | float:
        """Return the bound of ``error_bound`` for the compressor that "ef" and "ef21" use, which is below 1."""
        bound = self.error_bound(size)
        return bound / (1 + bound) if self.unbiased else bound

    def upload_errors(self, shapes):
        """Return omega and 1 - alpha of uploads of these shapes, the largest of any array; a biased one has omega 0."""
        sizes = [size for size in map(math.prod, shapes.values()) if size > 1]
        variance = max((float(self.error_bound(size)) for size in sizes if self.unbiased), default=0.0)
        return variance, max((float(self.contraction_error(size)) for size in sizes), default=0.0)

    def resolve_auto(self, traits):
        if self.feedback != AUTO:
            return self
        usual: Feedback = "diana" if self.unbiased else "ef21"
        if traits.uploads == "increments":
            usual = "ef"
        return replace(self, feedback=traits.feedback or usual)

    def check(self, plugins, names, settings):
        """Refuse algorithms whose uploads the channel would spoil. Raises UserError."""
        algo, name = names["algo"], names["uplink"]
        traits = plugins["topology"].traits_of_messages(plugins["algo"].traits)
        if not plugins["algo"].trains_shared_model:
            raise UserError(
                f"`algo={algo}` trains no model for all clients that uploads would change: leave `uplink={name}` out"
            )
        if traits.feedback and self.feedback != traits.feedback:
            raise UserError(f"`algo={algo}` defines what clients remember: leave `uplink.feedback` out")
        if traits.needs_whole_messages:
            raise UserError(f"`algo={algo}` needs uploads as they are, without any loss: leave `uplink={name}` out")
        if traits.uploads == "points" and self.feedback in ("none", "ef"):
            raise UserError(
                f"`algo={algo}` uploads points or gradients, which do not vanish at the optimum, and neither does "
                f"their error with `uplink.feedback={self.feedback}`: give `uplink.feedback=ef21`"
            )
        if traits.uploads == "increments" and self.feedback != "ef":
            raise UserError(
                f"the server of `algo={algo}` adds up increments of the clients' states, and what "
                f"`uplink.feedback={self.feedback}` loses would be missing in the sum for ever: give "
                "`uplink.feedback=ef`"
            )
        if self.feedback == "diana" and not self.unbiased:
            user, mend = "`uplink.feedback=diana`", "give `uplink.feedback=ef21`"
            if traits.feedback:
                user, mend = f"`algo={algo}`", "choose `uplink=randk, qsgd or natural`"
            raise UserError(f"{user} needs an unbiased compressor, and `uplink={name}` is biased: {mend}")
        check_domain(plugins, names, "uplink")

    def check_downlink(self, plugins, names, settings):
        """Refuse what a broadcast with memory, "ef21", would spoil. Raises UserError."""
        traits, algo, name = plugins["algo"].traits, names["algo"], f"`downlink={names['downlink']}`"
        if self.feedback != "ef21":
            raise UserError(f"{name} sends the difference to what clients know: leave `downlink.feedback` out")
        if settings.clients_per_round is not None:
            raise UserError(f"{name} needs all clients in every round, because a client that misses a message knows "
                            "another broadcast than the server thinks: give `clients_per_round=null`")  # fmt: skip
        if traits.needs_whole_messages:
            raise UserError(f"`algo={algo}` needs the server's point without any loss: leave {name} out")
        self.check_counted_broadcasts(plugins["algo"], names)
        if not isinstance(plugins["mirror"], Euclidean):
            raise UserError(f"{name} leaves the domain of `mirror={names['mirror']}`: leave one of them out")
        check_domain(plugins, names, "downlink")

    def client_memory(self, upload):
        if self.feedback == "none":
            return None
        return [jnp.zeros(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(upload) if is_compressed(leaf)]

    def send(self, upload, memory, key):
        leaves, structure = jax.tree.flatten(upload)
        compressed = [i for i, leaf in enumerate(leaves) if is_compressed(leaf)]
        keys = jax.random.split(key, max(len(compressed), 1))
        new_memory = []
        for i, own_key in zip(compressed, keys, strict=False):
            remembered = None if memory is None else memory[len(new_memory)]
            leaves[i], remembered = self._send_array(leaves[i], remembered, own_key)
            new_memory.append(remembered)
        return jax.tree.unflatten(structure, leaves), None if memory is None else new_memory

    def _send_array(self, array: jax.Array, memory: PyTree, key: jax.Array) -> tuple[jax.Array, PyTree]:
        """Return what the server gets for an array, and the client's new memory of the array."""

        def compress(array: jax.Array) -> jax.Array:
            return self.compress(array.ravel(), key).reshape(array.shape)

        contraction = 1 / (1 + self.error_bound(array.size)) if self.unbiased else 1
        if self.feedback == "none":
            return compress(array), None
        if self.feedback == "ef":
            sent = contraction * compress(array + memory)
            return sent, array + memory - sent
        sent = compress(array - memory)
        new_memory = memory + contraction * sent
        return (memory + sent if self.feedback == "diana" else new_memory), new_memory

    def contraction(self, message):
        sizes = {leaf.size for leaf in jax.tree.leaves(message) if is_compressed(leaf)}
        if not sizes:
            return 1.0
        return jnp.min(jnp.stack([jnp.asarray(1 - self.contraction_error(size)) for size in sorted(sizes)]))

    def upload_bytes(self, upload, declared_bytes):
        """Return the bytes of the messages of its arrays, and of what else is sent.

        Raises UserError for an algorithm that declares fewer bytes than its arrays have: it encodes them itself, and
        what a compressor saves of whole numbers is no part of that.
        """
        arrays = [leaf for leaf in jax.tree.leaves(upload) if is_compressed(leaf)]
        array_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in arrays)
        if declared_bytes < array_bytes:
            raise UserError(
                f"the upload_bytes of the algorithm are {declared_bytes:,} for arrays of {array_bytes:,}: it encodes "
                "its uploads itself, so that the bytes of compressed ones are unknown: give `uplink=identity`"
            )
        compressed = sum(math.ceil(self.message_bits(leaf.size, 8 * leaf.dtype.itemsize) / 8) for leaf in arrays)
        return declared_bytes - array_bytes + compressed


def check_domain(plugins: Mapping[str, Any], names: Mapping[str, str], section: str) -> None:
    """Refuse a constraint or a mirror map if compressed or noisy messages move models out of its domain for good.

    Raises UserError.
    """
    traits, algo, topology = plugins["algo"].traits, names["algo"], plugins["topology"]
    constrains = isinstance(plugins["reg"], Constraint) and bool(traits.psi_sides)
    user, domain = f"`{section}={names[section]}`", f"the set of `reg={names['reg']}`"
    if not traits.restores_domain and topology.has_nodes:
        bounded = not plugins["mirror"].domain_contains(NoRegularizer())
        domain = f"the domain of `mirror={names['mirror']}`" if bounded else domain
        if constrains or bounded:
            raise UserError(f"{user} moves models out of {domain}, and `algo={algo}` takes means of nodes as they "
                            f"are: leave {user} out, or choose an `algo` that restores the domain of psi: "
                            "`fcorun list algo` shows which do")  # fmt: skip
    if not constrains:
        return
    if "server" not in traits.psi_sides and not topology.has_nodes:
        raise UserError(f"{user} moves models out of {domain}, and the server of `algo={algo}` applies no psi: leave "
                        f"{user} out, or choose an `algo` with psi on the server: `fcorun list algo` shows which"
                        )  # fmt: skip
    if "server" in traits.psi_sides and plugins["reg"].applied_by == "client":
        raise UserError(f"{user} moves models out of {domain}, and with `reg.applied_by=client` nothing projects them "
                        "back: give `reg.applied_by=both`")  # fmt: skip


def is_compressed(leaf: Any) -> bool:
    """Return whether an array of a message is compressed: one of several real numbers."""
    return leaf.size > 1 and np.issubdtype(leaf.dtype, np.floating)
