"""How the clients of a round are computed: one function of this signature at a time, which may be exchanged.

A function (local, each, shares) -> (means, kept, work), where ``local`` computes one client from what ``each`` holds of
it, leaves with a leading axis S, and returns its upload, what it keeps, and its work. ``shares`` (S,) are weights and
give one weighted mean of the uploads; (E, S) give one for each of E edges. ``kept`` and ``work`` are stacked.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.errors import CLIENT_NOTE_PREFIX, find_error_line
from fcorun.system.interruption import check_interrupted

_IN_CACHE = 2**22  # bytes: measured; half and twice as much do as well
_ON_GPU = 2**30  # for the sake of memory alone; not measured

PyTree = Any
ClientFunction = Callable[..., tuple[PyTree, PyTree, jax.Array]]
CohortFunction = Callable[[ClientFunction, tuple, jax.Array], tuple[PyTree, PyTree, jax.Array]]


def vmapped(local: ClientFunction, each: tuple, shares: jax.Array) -> tuple[PyTree, PyTree, jax.Array]:
    """All at once, a ``vmap``."""
    uploads, kept, work = jax.vmap(local)(*each)
    return jax.tree.map(lambda u: jnp.tensordot(shares, u, axes=1), uploads), kept, work


def chunked(width: int) -> CohortFunction:
    """``width`` at a time, a ``scan`` over ``vmap``s, so that what they compute with stays in the cache.

    Width 1 is best for a wide grid on a CPU, whose runs share the client's minibatches. The last chunk goes back to
    where it is full: clients in it that have been there have a share of 0 in it, and keep the same.
    """

    def computed(local: ClientFunction, each: tuple, shares: jax.Array) -> tuple[PyTree, PyTree, jax.Array]:
        count = shares.shape[-1]
        if width >= count:
            return vmapped(local, each, shares)

        def some(first: Any) -> tuple:
            mine = jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, first, width), each)
            if width > 1:
                return jax.vmap(local)(*mine)
            return jax.tree.map(lambda v: v[None], local(*jax.tree.map(lambda v: v[0], mine)))

        def chunk(found, start):
            total, rest = found
            first = jnp.minimum(start, count - width)
            share = lax.dynamic_slice_in_dim(shares, first, width, axis=-1)
            share = jnp.where(first + jnp.arange(width) >= start, share, 0)
            uploads, *more = some(first)
            total = jax.tree.map(lambda t, u: t + jnp.tensordot(share, u, axes=1), total, uploads)
            return (total, jax.tree.map(lambda v, n: lax.dynamic_update_slice_in_dim(v, n, first, 0), rest, more)), None

        uploads, *rest = jax.eval_shape(some, 0)
        empty = jax.tree.map(lambda s: jnp.zeros((*shares.shape[:-1], *s.shape[1:]), s.dtype), uploads)
        rest = jax.tree.map(lambda s: jnp.zeros((count, *s.shape[1:]), s.dtype), rest)
        (mean, (kept, work)), _ = lax.scan(chunk, (empty, rest), jnp.arange(0, count, width))
        return mean, kept, work

    return computed


def chunk_bytes() -> int:
    """How many bytes the minibatches and models of the clients at once may have."""
    return _IN_CACHE if jax.default_backend() == "cpu" else _ON_GPU


def chunk_width(count: int, most: int) -> int:
    """How many of ``count`` clients make a chunk: at most ``most`` and at least half of that, and of these numbers the
    one with which the fewest clients are computed twice."""
    if most >= count:
        return count
    return min(range(max(most // 2, 1), max(most, 1) + 1), key=lambda each: (-(-count // each) * each, -each))


def looped(cohort_names: Sequence, number: int, report_nonfinite: Callable[[str], Any]) -> CohortFunction:
    """In a loop of Python, for debugging: not to be traced. An error says at whom of the cohort (S,), and in which
    round, it came up; of a client whose upload or state is not finite, ``lost`` is told who it is and in which line
    that began."""

    def computed(local: ClientFunction, each: tuple, shares: jax.Array) -> tuple[PyTree, PyTree, jax.Array]:
        found = []
        for place, name in enumerate(cohort_names):
            check_interrupted()
            try:
                mine = jax.tree.map(lambda v, place=place: v[place], each)
                found.append(local(*mine))
                if not all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(found[-1])):
                    report_nonfinite(f"{name}{_where(local, mine)}")
            except Exception as error:
                error.add_note(f"{CLIENT_NOTE_PREFIX}{name}, round {number}")
                raise
        uploads, kept, work = jax.tree.map(lambda *v: jnp.stack(v), *found)
        return jax.tree.map(lambda u: jnp.tensordot(shares, u, axes=1), uploads), kept, work

    return computed


def _where(local: ClientFunction, mine: tuple) -> str:
    """The line of a client's computation in which the first NaN arises; empty where there is none."""
    try:
        with jax.debug_nans(True):
            local(*mine)
    except FloatingPointError as error:
        return f" ({find_error_line(error)})"
    return ""
