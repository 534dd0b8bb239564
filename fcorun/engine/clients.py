"""How the clients of a round are computed: one function of this signature at a time, which may be exchanged.

A function (local, each, shares) -> (means, kept, work), where ``local`` computes one client from what ``each`` holds of
it, leaves with a leading axis S, and returns its upload, what it keeps, and its work. ``shares`` (S,) are weights and
give one weighted mean of the uploads; (E, S) give one for each of E edges. ``kept`` and ``work`` are stacked.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.errors import WHERE

_THEIRS = ("site-packages", "<", "lib/python")  # parts of the names of files that are nobody's own

Tree = Any
Local = Callable[..., tuple[Tree, Tree, jax.Array]]
Clients = Callable[[Local, tuple, jax.Array], tuple[Tree, Tree, jax.Array]]


def together(local: Local, each: tuple, shares: jax.Array) -> tuple[Tree, Tree, jax.Array]:
    """All at once, a ``vmap``: best for one run, on a GPU, and for runs with minibatches of their own."""
    uploads, kept, work = jax.vmap(local)(*each)
    return jax.tree.map(lambda u: jnp.tensordot(shares, u, axes=1), uploads), kept, work


def in_turn(local: Local, each: tuple, shares: jax.Array) -> tuple[Tree, Tree, jax.Array]:
    """One after the other, a ``scan``: best for a wide grid on a CPU, whose runs share the client's minibatches."""

    def body(total, inputs):
        mine, share = inputs
        upload, *rest = local(*mine)
        total = jax.tree.map(lambda t, u: t + _outer(share, u), total, upload)
        return total, tuple(rest)

    one_client = jax.tree.map(lambda v: v[0], each)
    uploads = jax.eval_shape(local, *one_client)[0]
    empty = jax.tree.map(lambda s: jnp.zeros((*shares.shape[:-1], *s.shape), s.dtype), uploads)
    mean, (kept, work) = lax.scan(body, empty, (each, shares.T))
    return mean, kept, work


def _outer(share: jax.Array, u: jax.Array) -> jax.Array:
    """share * u; where there are edges, u by the share of each along a leading axis."""
    return share.reshape(share.shape + (1,) * u.ndim) * u.reshape((1,) * share.ndim + u.shape)


def one_by_one(who: Sequence, number: int, lost: Callable[[str], Any]) -> Clients:
    """In a loop of Python, for debugging: not to be traced. An error says at whom of the cohort (S,), and in which
    round, it came up; of a client whose upload or state is not finite, ``lost`` is told who it is and in which line
    that began."""

    def computed(local: Local, each: tuple, shares: jax.Array) -> tuple[Tree, Tree, jax.Array]:
        found = []
        for place, name in enumerate(who):
            try:
                mine = jax.tree.map(lambda v, place=place: v[place], each)
                found.append(local(*mine))
                if not all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(found[-1])):
                    lost(f"{name}{_where(local, mine)}")
            except Exception as error:
                error.add_note(f"{WHERE}{name}, round {number}")
                raise
        uploads, kept, work = jax.tree.map(lambda *v: jnp.stack(v), *found)
        return jax.tree.map(lambda u: jnp.tensordot(shares, u, axes=1), uploads), kept, work

    return computed


def _where(local: Local, mine: tuple) -> str:
    """The line of a client's computation in which the first NaN arises; empty where there is none."""
    try:
        with jax.debug_nans(True):
            local(*mine)
    except FloatingPointError as error:
        own = [f for f in extract_tb(error.__traceback__) if not any(part in f.filename for part in _THEIRS)]
        return f" ({Path(own[-1].filename).name} line {own[-1].lineno})"
    return ""
