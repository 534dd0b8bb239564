"""The runs of one program, and several devices for it, to which these or the clients of each round are dealt out.

All devices of a host have the same rows: on a CPU, whose devices are its cores, these are one memory, on GPUs a copy
each. They may be of several hosts, each with a process that puts what all have on its own; clients are dealt out there,
not runs. Where hosts have all rows, each device computes as many of a cohort as the others; else those of its host.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fcorun.engine.clients import ClientFunction, CohortFunction
from fcorun.system.hosts import current_hosts

_AXIS = "devices"
PyTree = Any


@dataclass(frozen=True)
class Devices:
    """The first ``count`` devices, of several hosts as many of each, to which ``runs`` are dealt out, which need
    nothing of each other; or else the clients of each round."""

    count: int = 1
    shard_runs: bool = False

    @classmethod
    def for_runs(cls, count: int, runs: int) -> "Devices":
        """For a program of so many runs: these are dealt out where each device gets as many."""
        return cls(count, runs > 1 and runs % count == 0 and current_hosts() is None)

    @property
    def _mesh(self) -> Mesh:
        there = jax.local_devices()
        if hosts := current_hosts():
            own = [[d for d in jax.devices() if d.process_index == rank] for rank in range(hosts.count)]
            every = self.count == sum(map(len, own))
            there = [d for of in own for d in (of if every else of[: self.count // hosts.count])]
        return Mesh(np.array(there[: self.count]), (_AXIS,))

    @property
    def _dealt(self) -> P:
        """Where an axis of the runs lies."""
        return P(_AXIS) if self.shard_runs else P()

    def replicate(self, tree: PyTree) -> PyTree:
        """What all devices have."""
        return self._put(tree, P())

    def shard_by_host(self, tree: PyTree) -> PyTree:
        """What each host has of its own, in the same shapes as the others: along a leading axis of all devices."""
        place = NamedSharding(self._mesh, P(_AXIS))

        def put(v: Any) -> jax.Array:
            on_each = [jax.device_put(np.asarray(v)[None], device) for device in place.addressable_devices]
            return jax.make_array_from_single_device_arrays((self.count, *np.shape(v)), place, on_each)

        return jax.tree.map(put, tree)

    def shard_by_run(self, tree: PyTree) -> PyTree:
        """What has a leading axis of the runs."""
        return self._put(tree, self._dealt)

    def place_rounds(self, drawn: PyTree) -> PyTree:
        """Drawn rounds: with the runs that they are of, where each has its own, else everywhere."""
        return self.replicate(drawn) if drawn.cohort.ndim == 2 else self.shard_by_run(drawn)

    def _put(self, tree: PyTree, where: P) -> PyTree:
        if self.count == 1:
            return tree
        place, host = NamedSharding(self._mesh, where), jax.default_backend() == "cpu"

        def put(v: Any) -> jax.Array:
            if isinstance(v, jax.Array) and v.sharding == place:
                return v
            if not place.is_fully_addressable:  # each host has the same
                v = np.asarray(v)
                on_each = [jax.device_put(v, device) for device in place.addressable_devices]
                return jax.make_array_from_single_device_arrays(v.shape, place, on_each)
            return jax.device_put(np.asarray(v) if host else v, place)  # an array of NumPy is not copied on a CPU

        return jax.tree.map(put, tree)

    @property
    def broadcast_from_first(self) -> Callable[[PyTree], PyTree]:
        """A function that gives what the first host has, everywhere; the others give arrays of the same shapes."""

        def from_first(tree: PyTree) -> PyTree:
            first = lax.axis_index(_AXIS) == 0
            return jax.tree.map(lambda v: lax.psum(jnp.where(first, v, jnp.zeros_like(v)), _AXIS), tree)

        return self._on_each(from_first, (P(),))

    def sum_over_hosts(self, devices_per_host: int) -> Callable[[PyTree], PyTree]:
        """A function of what each of several hosts has, ``by_host``, that adds it up; they have ``each`` so many
        devices."""

        def over_hosts(tree: PyTree) -> PyTree:
            first = lax.axis_index(_AXIS) % devices_per_host == 0
            return jax.tree.map(lambda v: lax.psum(jnp.where(first, v[0], jnp.zeros_like(v[0])), _AXIS), tree)

        return self._on_each(over_hosts, (P(_AXIS),))

    def place_for_evaluation(self, tree: PyTree) -> PyTree:
        """What all devices have that measure: the first one, unless runs are dealt out."""
        return self.replicate(tree) if self.shard_runs else tree

    def first_shard(self, tree: PyTree) -> PyTree:
        """What is measured there, as the first device has it, or by run."""
        return tree if self.count == 1 or self.shard_runs else jax.tree.map(lambda v: v.addressable_data(0), tree)

    def map_advance(self, function: Callable, shared: bool, host_rows: bool = False) -> Callable:
        """``Federation.advance`` on them; ``shared`` says whether the runs share the drawn rounds, ``own`` whether the
        rows are each host's own."""
        if self.count == 1:
            return function

        def advance(numbers: Any, state: PyTree, rows: Any, *given: Any) -> Any:
            rows = jax.tree.map(lambda v: v.reshape(v.shape[1:]), rows) if host_rows else rows
            return function(numbers, state, rows, *given, self)

        drawn = P() if shared else self._dealt
        return self._on_each(advance, (self._dealt, self._dealt, P(_AXIS) if host_rows else P(), drawn, P()))

    def map_evaluate(self, function: Callable) -> Callable:
        """``Federation.evaluate`` on them."""
        return self._on_each(function, (self._dealt, self._dealt, P(), P(), P())) if self.shard_runs else function

    def _on_each(self, function: Callable, given: tuple) -> Callable:
        return jax.shard_map(function, mesh=self._mesh, in_specs=given, out_specs=self._dealt, check_vma=False)

    def map_clients(self, computed: CohortFunction, turn: jax.Array | None = None) -> CohortFunction:
        """``computed`` for each device's clients of the cohort, and one sum of the means over the devices.

        ``turn`` says which places of the cohort each has, (D, W) with -1 for none; None: as many as the others. Where
        there is none a device computes its first client once more, of which nothing is kept. The work that is returned
        is that of a device's own clients: ``total`` adds it up.
        """
        if self.count == 1 or self.shard_runs:
            return computed

        def dealt_out(local: ClientFunction, each: tuple, shares: jax.Array) -> tuple[PyTree, PyTree, jax.Array]:
            count = shares.shape[-1]
            turns = jnp.asarray(_in_order(count, self.count)) if turn is None else turn
            mine = turns[lax.axis_index(_AXIS)]
            there, place = mine >= 0, jnp.where(mine >= 0, mine, jnp.maximum(mine[0], 0))

            def one(there: jax.Array, *own: Any) -> tuple[PyTree, PyTree, jax.Array]:
                upload, kept, work = local(*own)  # a sum with 0 times what is not finite would not be
                return jax.tree.map(lambda v: jnp.where(there, v, 0), upload), kept, jnp.where(there, work, 0)

            given = (there, *jax.tree.map(lambda v: v[place], each))
            mean, kept, work = computed(one, given, jnp.where(there, shares[..., place], 0))
            flat, back = ravel_pytree(mean)
            turns = turns.ravel()
            order = jnp.zeros(count + 1, jnp.int32).at[turns].set(jnp.arange(len(turns), dtype=jnp.int32))[:-1]
            kept = jax.tree.map(lambda v: lax.all_gather(v, _AXIS, tiled=True)[order], kept)
            return back(lax.psum(flat, _AXIS)), kept, jnp.zeros((count, 3), work.dtype).at[place].add(work)

        return dealt_out

    def sum_work(self, work: jax.Array) -> jax.Array:
        """The work of each client and, last, of the server, (M + 1, 3), over all devices."""
        if self.count == 1 or self.shard_runs:
            return work
        return work.at[:-1].set(lax.psum(work[:-1], _AXIS))


SINGLE_DEVICE = Devices()


def _in_order(count: int, devices: int) -> np.ndarray:
    """The places of a cohort in their order, (D, W), -1 for none."""
    found = np.full((devices, -(-count // devices)), -1, np.int32)
    found.ravel()[:count] = np.arange(count)
    return found


def vmap_runs(function: Callable, axes: tuple, *given: Any, sequential: bool = False) -> Any:
    """``function`` of each of the runs along these axes of what is given, stacked, by a ``vmap``; or ``in_turn``, which
    spares one run the ``vmap``, that would turn its products into matrix-matrix ones of width 1."""
    if not sequential:
        return jax.vmap(function, axes)(*given)
    leading = {leaf.shape[0] for tree, axis in zip(given, axes, strict=True) if axis == 0
               for leaf in jax.tree.leaves(tree)}  # fmt: skip

    def run(place):
        picked = (tree if axis is None else jax.tree.map(lambda v: v[place], tree)
                  for tree, axis in zip(given, axes, strict=True))  # fmt: skip
        return function(*picked)

    return jax.tree.map(lambda *v: jnp.stack(v), *map(run, range(leading.pop() if leading else 1)))
