"""Ways to compute the clients of a round: vmapped, in chunks, in classes of similar sizes, in a loop, over devices.

A ``CohortFunction`` is a function (compute, inputs, shares) -> (mean upload, states, work). ``compute`` is a
``ClientFunction``: it computes one client from its inputs, and returns its upload, its new state, and its work,
the counts of ``fcorun.methods.problem.operation_counts``. ``inputs`` are leaves with a leading axis S, the cohort;
those of a round are ``ClientInputs``. ``shares`` (S,) are the weights of one mean of the uploads, or (E, S) those of
one mean for each of E edges. States and work are stacked along the cohort.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fcorun.base.errors import CLIENT_NOTE_PREFIX, find_error_line
from fcorun.base.system.files import check_interrupted
from fcorun.base.system.machine import compute_policy, current_hosts

# The computation of a cohort.

PyTree = Any
CohortResult = tuple[PyTree, PyTree, jax.Array]  # uploads or means of them, states, work
ClientFunction = Callable[..., CohortResult]
CohortFunction = Callable[[ClientFunction, tuple, jax.Array], CohortResult]


class ClientInputs(NamedTuple):
    """The inputs of a cohort's clients in a round, stacked along the cohort; None: not used.

    Attributes:
        numbers: the regularizer's hyper-parameters that differ between clients, by name.
        whole_or_index: the whole data of each client, or of each class with ``in_size_classes``; or the number by which
            a client's whole data are looked up.
        state: the client's state, and its memories.
        rows, key_bits: the client's draws.
        client_rows: all rows of each client, (S, L) with -1 for none.
        client: the number of the client.
        sender: the number or the state of the sender whose broadcast the client receives.
        fault: the client's faults.
        place: the client's place in a random order of the cohort.
    """

    numbers: PyTree
    whole_or_index: PyTree
    state: PyTree
    rows: jax.Array
    key_bits: jax.Array
    client_rows: jax.Array | None
    client: jax.Array
    sender: PyTree = None
    fault: PyTree = None
    place: jax.Array | None = None


def vmapped(compute: ClientFunction, inputs: tuple, shares: jax.Array) -> CohortResult:
    """Compute all clients at once by a ``vmap``."""
    uploads, states, work = _compute_stacked(compute, inputs)
    return jax.tree.map(lambda u: jnp.tensordot(shares, u, axes=1), uploads), states, work


def _compute_stacked(compute: ClientFunction, inputs: tuple) -> CohortResult:
    """Compute clients by a ``vmap``; a single client needs none, which would turn plain products into stacked ones."""
    if len(jax.tree.leaves(inputs)[0]) > 1:
        return jax.vmap(compute)(*inputs)
    return jax.tree.map(lambda v: v[None], compute(*jax.tree.map(lambda v: v[0], inputs)))


def stack_uploads(compute_cohort: CohortFunction, compute: ClientFunction, inputs: ClientInputs) -> CohortResult:
    """Compute all clients by ``compute_cohort``, and return their stacked uploads, their states and their work."""

    def compute_result(*client_inputs: Any) -> tuple[None, PyTree, jax.Array]:
        upload, state, work = compute(*client_inputs)
        return None, (upload, state), work

    _, (uploads, states), work = compute_cohort(compute_result, inputs, jnp.zeros(len(inputs.client)))
    return uploads, states, work


def chunked(width: int) -> CohortFunction:
    """Return a function that computes ``width`` clients at a time, by a ``scan`` over ``vmap``s, to stay in the cache.

    Width 1 is best for a wide grid on a CPU, whose runs share the client's minibatches. The last chunk starts early
    enough to be full: clients that it computes twice have a share of 0 in it, and the same state.
    """

    def compute_cohort(compute: ClientFunction, inputs: tuple, shares: jax.Array) -> CohortResult:
        count = shares.shape[-1]
        if width >= count:
            return vmapped(compute, inputs, shares)

        def compute_chunk(first: Any) -> tuple:
            chunk_inputs = jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, first, width), inputs)
            return _compute_stacked(compute, chunk_inputs)

        def step(carry, start):
            mean, stacked = carry
            first = jnp.minimum(start, count - width)
            share = lax.dynamic_slice_in_dim(shares, first, width, axis=-1)
            share = jnp.where(first + jnp.arange(width) >= start, share, 0)
            uploads, *results = compute_chunk(first)
            mean = jax.tree.map(lambda m, u: m + jnp.tensordot(share, u, axes=1), mean, uploads)
            stacked = jax.tree.map(lambda v, n: lax.dynamic_update_slice_in_dim(v, n, first, 0), stacked, results)
            return (mean, stacked), None

        uploads, *results = jax.eval_shape(compute_chunk, 0)
        zero_mean = jax.tree.map(
            lambda s: jnp.zeros((*shares.shape[:-1], *s.shape[1:]), jnp.result_type(shares, s.dtype)), uploads
        )
        empty = jax.tree.map(lambda s: jnp.zeros((count, *s.shape[1:]), s.dtype), results)
        (mean, (states, work)), _ = lax.scan(step, (zero_mean, empty), jnp.arange(0, count, width))
        return mean, states, work

    return compute_cohort


def in_size_classes(classes: Sequence[tuple[np.ndarray, int]], widths: Sequence[int]) -> CohortFunction:
    """Return a function that computes classes of clients of similar sizes, without rows that all of a class lack.

    A class has the numbers of its clients and the rows of the largest one; its clients are computed in chunks of its
    width.

    Its inputs are ``ClientInputs``; its states and work are in the order of all clients.
    """

    def compute_cohort(compute: ClientFunction, inputs: Any, shares: jax.Array) -> CohortResult:
        results = []
        for number, (clients, length) in enumerate(classes):
            of_class = jax.tree.map(lambda v, clients=clients: v[clients], inputs._replace(whole_or_index=None))
            if of_class.client_rows is not None:
                of_class = of_class._replace(client_rows=of_class.client_rows[:, :length])
            if inputs.whole_or_index is not None:
                of_class = of_class._replace(whole_or_index=inputs.whole_or_index[number])
            results.append(chunked(widths[number])(compute, of_class, shares[..., clients]))
        means, *stacked = zip(*results, strict=True)
        order = np.argsort(np.concatenate([clients for clients, _ in classes]))
        states, work = (jax.tree.map(lambda *v: jnp.concatenate(v)[order], *of_classes) for of_classes in stacked)
        return jax.tree.map(lambda *v: sum(v), *means), states, work

    return compute_cohort


def chunk_width(count: int, most: int) -> int:
    """Return the number of clients in a chunk: at most ``most`` and at least half of that.

    Chooses the width that computes the fewest clients twice.
    """
    if most >= count:
        return count
    return min(range(max(most // 2, 1), max(most, 1) + 1), key=lambda width: (-(-count // width) * width, -width))


def looped(cohort_names: Sequence, number: int, report_nonfinite: Callable[[str], Any]) -> CohortFunction:
    """Return a function that computes clients in a Python loop, for debugging without tracing.

    An error gets a note with the client of the cohort (S,) and the round ``number``. ``report_nonfinite`` is called
    with the client whose upload or state is not finite, and the line where that began.
    """

    def compute_cohort(compute: ClientFunction, inputs: tuple, shares: jax.Array) -> CohortResult:
        results = []
        for position, name in enumerate(cohort_names):
            check_interrupted()
            try:
                client_inputs = jax.tree.map(lambda v, position=position: v[position], inputs)
                results.append(compute(*client_inputs))
                if not all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(results[-1])):
                    report_nonfinite(f"{name}{_nonfinite_line(compute, client_inputs)}")
            except Exception as error:
                error.add_note(f"{CLIENT_NOTE_PREFIX}{name}, round {number}")
                raise
        uploads, states, work = jax.tree.map(lambda *v: jnp.stack(v), *results)
        return jax.tree.map(lambda u: jnp.tensordot(shares, u, axes=1), uploads), states, work

    return compute_cohort


def _nonfinite_line(compute: ClientFunction, inputs: tuple) -> str:
    """Return the line of a client's computation where the first NaN arises; empty where none does."""
    try:
        with jax.debug_nans(True):
            compute(*inputs)
    except FloatingPointError as error:
        return f" ({find_error_line(error)})"
    return ""


# The devices of one program, over which either its runs or the clients of each round are sharded.
#
# All devices of a host have the same rows: the devices of a CPU are its cores and share one memory, GPUs have a copy
# each. Devices may belong to several hosts, each with a process that puts shared arrays on its own devices; clients are
# sharded there, not runs. Where hosts have all rows, the devices compute equal numbers of the cohort's clients; where
# rows are sharded, a device computes clients of its host.

_AXIS = "devices"


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
        hosts = current_hosts()
        if not hosts:
            return Mesh(np.array(jax.local_devices()[: self.count]), (_AXIS,))
        devices = []
        for rank in range(hosts.count):
            of_host = [device for device in jax.devices() if device.process_index == rank]
            devices += of_host[: self.count // hosts.count]
        return Mesh(np.array(devices), (_AXIS,))

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

        def compute_shard(compute: ClientFunction, inputs: tuple, shares: jax.Array) -> CohortResult:
            count = shares.shape[-1]
            positions = assignment
            if positions is None:
                in_order = np.full((self.count, -(-count // self.count)), -1, np.int32)
                in_order.ravel()[:count] = np.arange(count)
                positions = jnp.asarray(in_order)
            device_positions = positions[lax.axis_index(_AXIS)]
            present = device_positions >= 0
            device_positions = jnp.where(present, device_positions, jnp.maximum(device_positions[0], 0))

            def compute_if_present(present: jax.Array, *client_inputs: Any) -> CohortResult:
                upload, state, work = compute(*client_inputs)
                # masked, since 0 times a value that is not finite would not be finite
                return jax.tree.map(lambda v: jnp.where(present, v, 0), upload), state, jnp.where(present, work, 0)

            own_inputs = (present, *jax.tree.map(lambda v: v[device_positions], inputs))
            own_shares = jnp.where(present, shares[..., device_positions], 0)
            mean, states, work = compute_cohort(compute_if_present, own_inputs, own_shares)
            flat_mean, unravel = ravel_pytree(mean)
            flat = positions.ravel()
            order = jnp.zeros(count + 1, jnp.int32).at[flat].set(jnp.arange(len(flat), dtype=jnp.int32))[:-1]
            states = jax.tree.map(lambda v: lax.all_gather(v, _AXIS, tiled=True)[order], states)
            work = jnp.zeros((count, 3), work.dtype).at[device_positions].add(work)
            return unravel(lax.psum(flat_mean, _AXIS)), states, work

        return compute_shard

    def sum_work(self, work: jax.Array) -> jax.Array:
        """Sum the work of each client over the devices; the last of the rows (M + 1, 3) is the server's."""
        if not self.shard_clients:
            return work
        return work.at[:-1].set(lax.psum(work[:-1], _AXIS))


SINGLE_DEVICE = Devices()


def vmap_runs(function: Callable, axes: tuple, *arguments: Any, sequential: bool = False) -> Any:
    """Map ``function`` over runs along these axes of the arguments, by a ``vmap`` or one run after the other.

    A single run needs no ``vmap``, which would turn matrix-vector products into matrix-matrix products of width 1.
    Without jit runs follow one another, too.
    """
    if not (sequential or jax.config.jax_disable_jit):  # type: ignore[attr-defined]
        return jax.vmap(function, axes)(*arguments)
    mapped = [tree for tree, axis in zip(arguments, axes, strict=True) if axis == 0]
    n_runs = max((len(leaf) for leaf in jax.tree.leaves(mapped)), default=1)

    def compute_run(run):
        of_run = []
        for tree, axis in zip(arguments, axes, strict=True):
            of_run.append(tree if axis is None else jax.tree.map(lambda v: v[run], tree))
        return function(*of_run)

    return jax.tree.map(lambda *v: jnp.stack(v), *map(compute_run, range(n_runs)))
