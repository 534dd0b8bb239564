"""The devices of one program, over which either its runs or the clients of each round are sharded.

All devices of a host have the same rows: the devices of a CPU are its cores and share one memory, GPUs have a copy
each. Devices may belong to several hosts, each with a process that puts shared arrays on its own devices; clients are
sharded there, not runs. Where hosts have all rows, the devices compute equal numbers of the cohort's clients; where
rows are sharded, a device computes clients of its host.
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
from fcorun.system.machine import compute_policy

_AXIS = "devices"
PyTree = Any


@dataclass(frozen=True)
class Devices:
    """The first ``count`` devices, equally many of each host.

    Attributes:
        count: the number of devices.
        shard_runs: whether the runs of a program are sharded over them, independent of each other; else the clients of
            each round are.
        n_shards: the number of hosts over which the rows are sharded by client; 1: every device has all rows.
    """

    count: int = 1
    shard_runs: bool = False
    n_shards: int = 1

    @classmethod
    def for_runs(cls, count: int, runs: int, n_shards: int = 1) -> "Devices":
        """Return the devices for a program of ``runs`` runs, which are sharded if each device gets equally many."""
        return cls(count, runs > 1 and runs % count == 0 and current_hosts() is None, n_shards)

    @property
    def sharded_rows(self) -> bool:
        """Return whether a device has the rows of its host's clients only."""
        return self.n_shards > 1

    @property
    def shard_clients(self) -> bool:
        """Return whether the clients of each round are sharded over several devices."""
        return self.count > 1 and not self.shard_runs

    @property
    def per_shard(self) -> int:
        """Return the number of devices of each host over which rows are sharded; 1 where they are not."""
        return self.count // self.n_shards if self.sharded_rows else 1

    @property
    def _mesh(self) -> Mesh:
        devices = jax.local_devices()
        if hosts := current_hosts():
            by_host = [[d for d in jax.devices() if d.process_index == rank] for rank in range(hosts.count)]
            if self.count != sum(map(len, by_host)):
                by_host = [of_host[: self.count // hosts.count] for of_host in by_host]
            devices = [device for of_host in by_host for device in of_host]
        return Mesh(np.array(devices[: self.count]), (_AXIS,))

    @property
    def _run_spec(self) -> P:
        """Return the sharding of a leading axis of runs."""
        return P(_AXIS) if self.shard_runs else P()

    def replicate(self, tree: PyTree) -> PyTree:
        """Put arrays on every device."""
        return self._put(tree, P())

    def shard_by_host(self, tree: PyTree) -> PyTree:
        """Put each host's own arrays, of equal shapes, on its devices, along a new leading axis of all devices."""
        sharding = NamedSharding(self._mesh, P(_AXIS))

        def put(v: Any) -> jax.Array:
            on_each = [jax.device_put(np.asarray(v)[None], device) for device in sharding.addressable_devices]
            return jax.make_array_from_single_device_arrays((self.count, *np.shape(v)), sharding, on_each)

        return jax.tree.map(put, tree)

    def place_rows(self, rows: PyTree) -> PyTree:
        """Put rows on every device, or, where they are sharded, each host's rows on its devices."""
        return self.shard_by_host(rows) if self.sharded_rows else self.replicate(rows)

    def shard_by_run(self, tree: PyTree) -> PyTree:
        """Put arrays with a leading axis of runs on the devices of their runs."""
        return self._put(tree, self._run_spec)

    def place_rounds(self, rounds: PyTree) -> PyTree:
        """Put drawn rounds on the devices of their runs, or on every device where all runs share them."""
        return self.replicate(rounds) if rounds.cohort.ndim == 2 else self.shard_by_run(rounds)

    def _put(self, tree: PyTree, spec: P) -> PyTree:
        if self.count == 1:
            return tree
        sharding = NamedSharding(self._mesh, spec)
        has_device_memory = compute_policy().has_device_memory

        def put(v: Any) -> jax.Array:
            if isinstance(v, jax.Array) and v.sharding == sharding:
                return v
            if not sharding.is_fully_addressable:  # several hosts, each with the same array
                v = np.asarray(v)
                on_each = [jax.device_put(v, device) for device in sharding.addressable_devices]
                return jax.make_array_from_single_device_arrays(v.shape, sharding, on_each)
            return jax.device_put(v if has_device_memory else np.asarray(v), sharding)  # a CPU copies no NumPy array

        return jax.tree.map(put, tree)

    @property
    def broadcast_from_first(self) -> Callable[[PyTree], PyTree]:
        """Return a function that copies the first device's arrays to all; the others pass arrays of the same shapes."""

        def copy_first(tree: PyTree) -> PyTree:
            first = lax.axis_index(_AXIS) == 0
            return jax.tree.map(lambda v: lax.psum(jnp.where(first, v, jnp.zeros_like(v)), _AXIS), tree)

        return self._on_each(copy_first, (P(),))

    @property
    def sum_over_hosts(self) -> Callable[[PyTree], PyTree]:
        """Return a function that sums arrays sharded by host over the hosts."""

        def sum_hosts(tree: PyTree) -> PyTree:
            first = lax.axis_index(_AXIS) % self.per_shard == 0
            return jax.tree.map(lambda v: lax.psum(jnp.where(first, v[0], jnp.zeros_like(v[0])), _AXIS), tree)

        return self._on_each(sum_hosts, (P(_AXIS),))

    def place_for_evaluation(self, tree: PyTree) -> PyTree:
        """Put arrays on the devices that evaluate: on all where runs are sharded, else on the first one."""
        return self.replicate(tree) if self.shard_runs else tree

    def first_shard(self, tree: PyTree) -> PyTree:
        """Return the first device's copy of replicated arrays; arrays sharded by run stay as they are."""
        if self.count == 1 or self.shard_runs:
            return tree
        return jax.tree.map(lambda v: v.addressable_data(0), tree)

    def map_advance(self, function: Callable, shared: bool) -> Callable:
        """Return ``Federation.advance`` as a function on all devices.

        Drawn rounds are ``shared`` by all runs or sharded with them.
        """
        if self.count == 1:
            return function

        def advance(numbers: Any, state: PyTree, rows: Any, rounds: Any, start: Any) -> Any:
            if self.sharded_rows:
                rows = jax.tree.map(lambda v: v.reshape(v.shape[1:]), rows)
            return function(numbers, state, rows, rounds, start, devices=self)

        row_spec = P(_AXIS) if self.sharded_rows else P()
        round_spec = P() if shared else self._run_spec
        return self._on_each(advance, (self._run_spec, self._run_spec, row_spec, round_spec, P()))

    def map_evaluate(self, function: Callable) -> Callable:
        """Return ``Federation.evaluate`` as a function on all devices, where runs are sharded."""
        specs = (self._run_spec, self._run_spec, P(), P(), P())
        return self._on_each(function, specs) if self.shard_runs else function

    def _on_each(self, function: Callable, in_specs: tuple) -> Callable:
        return jax.shard_map(function, mesh=self._mesh, in_specs=in_specs, out_specs=self._run_spec, check_vma=False)

    def map_clients(self, compute_cohort: CohortFunction, assignment: jax.Array | None = None) -> CohortFunction:
        """Return ``compute_cohort`` for a cohort whose clients are sharded over the devices.

        ``assignment`` (D, W) has the positions in the cohort that each device computes, -1 for none; None: equally
        many, in order. In place of a missing client a device computes its first one again, and discards the result. The
        returned work is that of a device's own clients: ``sum_work`` adds it up.
        """
        if not self.shard_clients:
            return compute_cohort

        def compute_shard(
            compute: ClientFunction, inputs: tuple, shares: jax.Array
        ) -> tuple[PyTree, PyTree, jax.Array]:
            count = shares.shape[-1]
            positions = jnp.asarray(_in_order(count, self.count)) if assignment is None else assignment
            own = positions[lax.axis_index(_AXIS)]
            present = own >= 0
            own = jnp.where(present, own, jnp.maximum(own[0], 0))

            def compute_if_present(present: jax.Array, *client_inputs: Any) -> tuple[PyTree, PyTree, jax.Array]:
                upload, state, work = compute(*client_inputs)
                # masked, since 0 times a value that is not finite would not be finite
                return jax.tree.map(lambda v: jnp.where(present, v, 0), upload), state, jnp.where(present, work, 0)

            own_inputs = (present, *jax.tree.map(lambda v: v[own], inputs))
            own_shares = jnp.where(present, shares[..., own], 0)
            mean, states, work = compute_cohort(compute_if_present, own_inputs, own_shares)
            flat_mean, unravel = ravel_pytree(mean)
            flat = positions.ravel()
            order = jnp.zeros(count + 1, jnp.int32).at[flat].set(jnp.arange(len(flat), dtype=jnp.int32))[:-1]
            states = jax.tree.map(lambda v: lax.all_gather(v, _AXIS, tiled=True)[order], states)
            work = jnp.zeros((count, 3), work.dtype).at[own].add(work)
            return unravel(lax.psum(flat_mean, _AXIS)), states, work

        return compute_shard

    def sum_work(self, work: jax.Array) -> jax.Array:
        """Sum the work of each client over the devices; the last of the rows (M + 1, 3) is the server's."""
        if not self.shard_clients:
            return work
        return work.at[:-1].set(lax.psum(work[:-1], _AXIS))


SINGLE_DEVICE = Devices()


def _in_order(count: int, devices: int) -> np.ndarray:
    """Assign the positions of a cohort to devices in order, (D, W), -1 for none."""
    positions = np.full((devices, -(-count // devices)), -1, np.int32)
    positions.ravel()[:count] = np.arange(count)
    return positions


def vmap_runs(function: Callable, axes: tuple, *arguments: Any, sequential: bool = False) -> Any:
    """Map ``function`` over runs along these axes of the arguments, by a ``vmap`` or one run after the other.

    A single run needs no ``vmap``, which would turn matrix-vector products into matrix-matrix products of width 1.
    """
    if not sequential:
        return jax.vmap(function, axes)(*arguments)
    lengths = set()
    for tree, axis in zip(arguments, axes, strict=True):
        if axis == 0:
            lengths.update(leaf.shape[0] for leaf in jax.tree.leaves(tree))

    def compute_run(run):
        of_run = []
        for tree, axis in zip(arguments, axes, strict=True):
            of_run.append(tree if axis is None else jax.tree.map(lambda v: v[run], tree))
        return function(*of_run)

    n_runs = lengths.pop() if lengths else 1
    return jax.tree.map(lambda *v: jnp.stack(v), *map(compute_run, range(n_runs)))
