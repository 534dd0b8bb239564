"""What a client has in a round: its rows, cut into batches, and the loops over them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.config import Count
from fcorun.errors import UserError
from fcorun.problem.operation_counts import apply_if
from fcorun.problem.problem import Batch
from fcorun.problem.quadratic import Quadratic

PyTree = Any  # a pytree of arrays: an array, or tuples and dicts of them


@dataclass(frozen=True)
class LocalData:
    """The data of one client in one round.

    Attributes:
        x, y: the rows of all clients, (N, d) and (N,).
        weight, offset: of all rows, (N,), or None: factors, a mean of one in each client; what predictions have added.
        rows: the rows of each local step's batch, shape (K, B); -1 where the batch is shorter. None are
            drawn with ``repeats``.
        repeats: the number of local steps where each takes the whole data, or None.
        uneven: whether this client may have fewer than K steps (a step without rows is none).
        whole: the client's whole data as one batch, beside its minibatches.
        frozen: whether the server's model stays as it is; then so does a client's copy of it, and uploads are nothing.
        bits: those of ``key``.
        chances: two numbers drawn uniformly from [0, 1) in each round, the same for all clients.
    """

    x: jax.Array
    y: jax.Array
    rows: jax.Array
    dtype: Any
    weight: jax.Array | None = None
    offset: jax.Array | None = None
    full_batch_steps: int | None = None
    uneven_steps: bool = False
    whole: Batch | Quadratic = None  # type: ignore[assignment]
    frozen: bool = False
    key_bits: jax.Array | tuple[int, int] = (0, 0)
    shared_uniforms: jax.Array | tuple[float, float] = (0.0, 0.0)

    @property
    def key(self) -> jax.Array:
        """A key for ``jax.random``, from the seed, the round and the client's name alone, another one in each round (on
        a tree in each round of an edge), and of each client. For noise and stochastic rounding."""
        key = jax.random.wrap_key_data(jnp.asarray(self.key_bits, jnp.uint32), impl="threefry2x32")
        return jax.random.fold_in(key, 1)  # the key itself is the uplink's

    def repeat(self, count: Count | jax.Array, step: Callable[[PyTree], PyTree], start: PyTree) -> PyTree:
        """``start`` after ``count`` times ``step(value)``; ``count`` may be traced."""
        if isinstance(count, int):
            return lax.scan(lambda value, _: (step(value), None), start, None, count)[0] if count else start
        return lax.while_loop(lambda now: now[1] < count, lambda now: (step(now[0]), now[1] + 1), (start, 0))[0]

    def geometric_steps(self, probability: jax.Array | float, draw: Literal[0, 1] = 0) -> jax.Array:
        """How many steps a client takes until it communicates, if it does so with this probability after each.

        ``draw`` is which of the round's ``chances`` decides.
        """
        chance = jnp.minimum(
            self.shared_uniforms[draw], 1 - jnp.finfo(self.dtype).epsneg
        )  # a draw just below 1 may be rounded to 1
        return 1 + jnp.floor(jnp.log1p(-chance) / jnp.log1p(-probability)).astype(jnp.int32)

    def steps(
        self, step: Callable[[PyTree, Any], PyTree], start: PyTree, count: Count | jax.Array | None = None
    ) -> PyTree:
        """``start`` after ``step(value, batch)`` for each of the client's own K local steps.

        ``count`` is another number of steps, which may be traced and differ between clients: fewer than K take the
        first minibatches, and more begin with the first one anew.
        """
        if isinstance(count, int) and count < 0:
            raise UserError(f"data.steps(..., count={count}) must be 0 or more")
        if self.full_batch_steps is not None:
            whole = self.whole
            return self.repeat(
                self.full_batch_steps if count is None else count, lambda value: step(value, whole), start
            )
        if count is not None:
            own = (self.rows[:, 0] >= 0).sum(dtype=jnp.int32)

            def numbered(now):
                value, number = now
                return step(value, self.batch(self.rows[number % own])), number + 1

            return self.repeat(count, numbered, (start, jnp.zeros((), jnp.int32)))[0]

        def body(value, rows):
            batch = self.batch(rows)
            if self.uneven_steps:
                return apply_if(rows[0] >= 0, lambda value: step(value, batch), value), None
            return step(value, batch), None

        return lax.scan(body, start, self.rows)[0]

    def batch(self, rows: jax.Array) -> Batch:
        """The rows of these numbers (B,) as a batch, which is shorter by those that are -1."""
        present = rows >= 0
        there = present.astype(self.dtype)
        rows = jnp.maximum(rows, 0)
        weight = there / jnp.maximum(there.sum(), 1)
        weight = weight if self.weight is None else weight * self.weight[rows]
        offset = None if self.offset is None else self.offset[rows]
        return Batch(self.x[rows], self.y[rows], weight, present, offset=offset)

    def with_whole_data(self, rows: jax.Array) -> Self:
        """The same, with the rows of these numbers as the client's whole data."""
        return replace(self, whole=self.batch(rows)._replace(mask=None, full_passes=1))


@dataclass(frozen=True)
class RecordingLocalData(LocalData):
    """The same, and ``asked`` says which of the random numbers in it, and whether the whole data, were asked for."""

    accessed: set[str] = field(default_factory=set, compare=False, repr=False)

    def __getattribute__(self, name: str) -> Any:
        if name in ("key_bits", "shared_uniforms", "whole"):
            self.accessed.add(name)
        return super().__getattribute__(name)


def tree_bytes(tree: PyTree) -> int:
    """The bytes of all arrays of a pytree, or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
