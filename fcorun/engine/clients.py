"""Ways to compute the clients of a round: vmapped, in chunks, in classes of similar sizes, or in a Python loop.

A ``CohortFunction`` is a function (compute, inputs, shares) -> (mean upload, states, work). ``compute`` is a
``ClientFunction``: it computes one client from its inputs, and returns its upload, its new state, and its work.
``inputs`` are leaves with a leading axis S, the cohort; those of a round are ``ClientInputs``. ``shares`` (S,) are the
weights of one mean of the uploads, or (E, S) those of one mean for each of E edges. States and work are stacked along
the cohort.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fcorun.engine.size_classes import SizeClass
from fcorun.errors import CLIENT_NOTE_PREFIX, find_error_line
from fcorun.system.interruption import check_interrupted

PyTree = Any
ClientFunction = Callable[..., tuple[PyTree, PyTree, jax.Array]]
CohortFunction = Callable[[ClientFunction, tuple, jax.Array], tuple[PyTree, PyTree, jax.Array]]


class ClientInputs(NamedTuple):
    """The inputs of a cohort's clients in a round, stacked along the cohort; None: not used.

    Attributes:
        numbers: the regularizer's numbers of each client.
        whole_or_index: the whole data of each client, or of each class with ``in_size_classes``; or the number by which
            a client's whole data are looked up.
        state: the client's state, and its memories.
        rows, key_bits: the client's draws.
        client_rows: all rows of each client, (S, L) with -1 for none.
        client: the number of the client.
        sender: the number or the state of the sender whose broadcast the client receives.
    """

    numbers: PyTree
    whole_or_index: PyTree
    state: PyTree
    rows: jax.Array
    key_bits: jax.Array
    client_rows: jax.Array | None
    client: jax.Array
    sender: PyTree = None


def vmapped(compute: ClientFunction, inputs: tuple, shares: jax.Array) -> tuple[PyTree, PyTree, jax.Array]:
    """Compute all clients at once by a ``vmap``."""
    uploads, states, work = _compute_stacked(compute, inputs)
    return jax.tree.map(lambda u: jnp.tensordot(shares, u, axes=1), uploads), states, work


def _compute_stacked(compute: ClientFunction, inputs: tuple) -> tuple[PyTree, PyTree, jax.Array]:
    """Compute clients by a ``vmap``; a single client needs none, which would turn plain products into stacked ones."""
    if len(jax.tree.leaves(inputs)[0]) > 1:
        return jax.vmap(compute)(*inputs)
    return jax.tree.map(lambda v: v[None], compute(*jax.tree.map(lambda v: v[0], inputs)))


def stack_uploads(
    compute_cohort: CohortFunction, compute: ClientFunction, inputs: ClientInputs
) -> tuple[PyTree, PyTree, jax.Array]:
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

    def compute_cohort(compute: ClientFunction, inputs: tuple, shares: jax.Array) -> tuple[PyTree, PyTree, jax.Array]:
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
        zero_mean = jax.tree.map(lambda s: jnp.zeros((*shares.shape[:-1], *s.shape[1:]), s.dtype), uploads)
        empty = jax.tree.map(lambda s: jnp.zeros((count, *s.shape[1:]), s.dtype), results)
        (mean, (states, work)), _ = lax.scan(step, (zero_mean, empty), jnp.arange(0, count, width))
        return mean, states, work

    return compute_cohort


def in_size_classes(classes: Sequence[SizeClass], widths: Sequence[int]) -> CohortFunction:
    """Return a function that computes the clients of each class in chunks of its width, without rows that all lack.

    Its inputs are ``ClientInputs``; its states and work are in the order of all clients.
    """

    def compute_cohort(compute: ClientFunction, inputs: Any, shares: jax.Array) -> tuple[PyTree, PyTree, jax.Array]:
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

    def compute_cohort(compute: ClientFunction, inputs: tuple, shares: jax.Array) -> tuple[PyTree, PyTree, jax.Array]:
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
