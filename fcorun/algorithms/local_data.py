"""What a client has in a round: its rows, cut into batches, and the loops over them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fcorun.config import Count
from fcorun.problem.problem import Batch
from fcorun.problem.quadratic import Quadratic
from fcorun.problem.work import Work

Tree = Any  # a pytree of arrays: an array, or tuples and dicts of them


@dataclass(frozen=True)
class LocalData:
    """The data of one client in one round.

    Attributes:
        x, y: the rows of all clients, (N, d) and (N,).
        weight, offset: of all rows, (N,), or None: factors, a mean of one in each client; what predictions have added.
        rows: the rows of each local step's batch, shape (K, B); -1 where the batch is shorter. With ``repeats``, one
            batch (1, B) that each of the ``repeats`` steps takes.
        repeats: number of local steps that share the one batch, or None.
        uneven: whether this client may have fewer than K steps (a step without rows is none).
        all: the client's whole data where they need not be gathered by their rows, or None.
        frozen: whether the server's model stays as it is; then so does a client's copy of it, and uploads are nothing.
        bits: those of ``key``.
        chances: two numbers drawn uniformly from [0, 1) in each round, the same for all clients.
        work: counts the gradients and proxes of the loops below.
    """

    x: jax.Array
    y: jax.Array
    rows: jax.Array
    dtype: Any
    weight: jax.Array | None = None
    offset: jax.Array | None = None
    repeats: int | None = None
    uneven: bool = False
    all: Batch | Quadratic | None = None
    frozen: bool = False
    bits: jax.Array | tuple[int, int] = (0, 0)
    chances: jax.Array | tuple[float, float] = (0.0, 0.0)
    work: Work = field(default_factory=Work, compare=False, repr=False)

    @property
    def whole(self) -> Batch | Quadratic:
        """The client's whole data as one batch, for algorithms that are ``deterministic``, or with batch_size=null."""
        return self._batch(self.rows[0])._replace(count=0, passes=1) if self.all is None else self.all

    @property
    def key(self) -> jax.Array:
        """A key for ``jax.random``, from the seed, the round and the client's name alone, another one in each round (on
        a tree in each round of an edge), and of each client. For noise and stochastic rounding."""
        key = jax.random.wrap_key_data(jnp.asarray(self.bits, jnp.uint32), impl="threefry2x32")
        return jax.random.fold_in(key, 1)  # the key itself is the uplink's

    def repeat(self, count: Count | jax.Array, step: Callable[[Tree], Tree], start: Tree) -> Tree:
        """``start`` after ``count`` times ``step(value)``; ``count`` may be traced."""
        if isinstance(count, int):
            return self.work.scan(lambda value, _: step(value), start, None, count)
        counted = self.work.while_loop(lambda v: v[1] < count, lambda v: (step(v[0]), v[1] + 1), (start, 0))
        return counted[0]

    def rounds_apart(self, probability: jax.Array | float, draw: Literal[0, 1] = 0) -> jax.Array:
        """How many steps a client takes until it communicates, if it does so with this probability after each.

        ``draw`` is which of the round's ``chances`` decides.
        """
        chance = jnp.minimum(
            self.chances[draw], 1 - jnp.finfo(self.dtype).epsneg
        )  # a draw just below 1 may be rounded to 1
        return 1 + jnp.floor(jnp.log1p(-chance) / jnp.log1p(-probability)).astype(jnp.int32)

    def _batch(self, rows: jax.Array) -> Batch:
        there = (rows >= 0).astype(self.dtype)
        count = (rows >= 0).sum(dtype=jnp.int32)
        rows = jnp.maximum(rows, 0)
        weight = there / jnp.maximum(there.sum(), 1)
        weight = weight if self.weight is None else weight * self.weight[rows]
        offset = None if self.offset is None else self.offset[rows]
        return Batch(self.x[rows], self.y[rows], weight, count, offset=offset)

    def steps(self, step: Callable[[Tree, Any], Tree], start: Tree) -> Tree:
        """``start`` after ``step(value, batch)`` for each of the client's own K local steps."""
        if self.repeats is not None:
            whole = self.whole
            return self.repeat(self.repeats, lambda value: step(value, whole), start)

        def body(value, rows):
            new = step(value, self._batch(rows))
            if self.uneven:
                new = jax.tree.map(lambda n, v: jnp.where(rows[0] >= 0, n, v), new, value)
                self.work.only_if(rows[0] >= 0)
            return new

        return self.work.scan(body, start, self.rows)


@dataclass(frozen=True)
class Watched(LocalData):
    """The same, and ``asked`` says which of the random numbers in it were asked for."""

    asked: set[str] = field(default_factory=set, compare=False, repr=False)

    def __getattribute__(self, name: str) -> Any:
        if name in ("bits", "chances"):
            self.asked.add(name)
        return super().__getattribute__(name)


def size_of(tree: Tree) -> int:
    """The bytes of all arrays of a pytree, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
