"""The data of one client in one round, as an algorithm gets them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
from jax import lax

from fcorun.base.config import Count
from fcorun.base.errors import UserError
from fcorun.data.rows.features import operation
from fcorun.methods.problem.operation_counts import PyTree, apply_if
from fcorun.methods.problem.problem import Batch, KeyBits, Quadratic, fold_key, wrap_key


@dataclass(frozen=True)
class LocalData:
    """The data of one client in one round.

    Attributes:
        x, y: the rows of all clients, (N, d), dense or sparse, and (N,), of which ``rows`` and ``whole`` are those of
            this client.
        rows: the row numbers of each local step's batch, (K, B); -1 pads a shorter batch. Empty with
            ``full_batch_steps``.
        weight, offset: of all rows, (N,), or None: factors with mean one in each client; terms added to predictions.
        full_batch_steps: the number of local steps if each step takes all data, else None.
        uneven_steps: True if this client may take fewer than K steps. A step without rows changes nothing.
        whole: all data of the client as one batch.
        frozen: True if the server's model is fixed; then the client's copy is fixed too, and nothing is uploaded.
        client_number: the number of the client among all clients, counted from 0.
        place: the place of the client in a random order of the round's clients, from 0 to ``problem.cohort_size`` - 1,
            an int32. Only an algorithm that ``divides_cohort`` may read it.
        key_bits: the bits of the client's key of this round, from which ``key`` is derived.
        dtype: the floating-point type of weights and draws.
        shared_uniforms: two uniform draws from [0, 1) for each round, the same for all clients.
        change_targets: returns the targets (n,) that the client learns from in place of those of rows; None: the same.
        noise_key: the bits of the key from which the gradient of each step has its noise; None: no noise.
    """

    x: Any
    y: jax.Array
    rows: jax.Array
    dtype: Any
    weight: jax.Array | None = None
    offset: jax.Array | None = None
    full_batch_steps: int | None = None
    uneven_steps: bool = False
    whole: Batch | Quadratic = None  # type: ignore[assignment]
    frozen: bool = False
    client_number: jax.Array | int = 0
    place: jax.Array | int = 0
    key_bits: KeyBits = (0, 0)
    shared_uniforms: jax.Array | tuple[float, float] = (0.0, 0.0)
    change_targets: Callable[[jax.Array], jax.Array] | None = None
    noise_key: KeyBits | None = None

    @property
    def key(self) -> jax.Array:
        """A key for ``jax.random``, for noise and stochastic rounding.

        The key depends on the seed, the round (on a tree the round of the edge) and the client's name alone.
        """
        return jax.random.fold_in(wrap_key(self.key_bits), 1)  # the channel uses the key of ``key_bits`` itself

    @property
    def client(self) -> jax.Array:
        """The number of the client among all clients, counted from 0, an int32."""
        return jnp.asarray(self.client_number, jnp.int32)

    @property
    def n_rows(self) -> jax.Array | int:
        """The number of the client's rows of positive weight, an int32.

        ``len(data.whole.y)`` is that of the largest client: the rows of smaller ones are padded.
        """
        return self.whole.n_rows

    @property
    def n_steps(self) -> jax.Array | int:
        """The number of the client's local steps in this round, an int32.

        ``len(data.rows)`` is that of the client with most steps: those of the others are padded.
        """
        if self.full_batch_steps is not None:
            return self.full_batch_steps
        return (self.rows[:, 0] >= 0).sum(dtype=jnp.int32)

    def repeat(self, count: Count | jax.Array, step: Callable[[PyTree], PyTree], start: PyTree) -> PyTree:
        """Apply ``step`` to ``start`` ``count`` times; ``count`` may be traced."""
        if isinstance(count, int):
            return lax.scan(lambda value, _: (step(value), None), start, None, count)[0] if count else start
        return lax.while_loop(lambda now: now[1] < count, lambda now: (step(now[0]), now[1] + 1), (start, 0))[0]

    def geometric_steps(self, probability: jax.Array | float, draw: Literal[0, 1] = 0) -> jax.Array:
        """Draw the number of steps up to a communication that follows each step with this probability.

        ``draw`` chooses one of the round's ``shared_uniforms``.
        """
        below_one = 1 - jnp.finfo(self.dtype).epsneg  # rounding may turn a draw just below 1 into 1
        uniform = jnp.minimum(self.shared_uniforms[draw], below_one)
        return 1 + jnp.floor(jnp.log1p(-uniform) / jnp.log1p(-probability)).astype(jnp.int32)

    def steps(
        self, step: Callable[[PyTree, Any], PyTree], start: PyTree, count: Count | jax.Array | None = None
    ) -> PyTree:
        """Apply ``step(value, batch)`` to ``start`` for each of the client's K local steps.

        ``count`` is another number of steps, which may be traced and may differ between clients. Fewer than K steps
        take the first minibatches; more than K steps start again with the first minibatch.
        """
        if isinstance(count, int) and count < 0:
            raise UserError(f"data.steps(..., count={count}): give a count of 0 or more")
        if self.full_batch_steps is not None and self.noise_key is None:
            repeats = self.full_batch_steps if count is None else count
            return self.repeat(repeats, lambda value: step(value, self.whole), start)
        if count is None and self.noise_key is not None:
            count = self.n_steps
        if count is not None:
            batches = self.n_steps

            def numbered_step(state):
                value, number = state
                batch = self.whole if self.full_batch_steps is not None else self.batch(self.rows[number % batches])
                if self.noise_key is not None:
                    batch = batch._replace(noise_key=fold_key(self.noise_key, number))
                return step(value, batch), number + 1

            return self.repeat(count, numbered_step, (start, jnp.zeros((), jnp.int32)))[0]

        def body(value, rows):
            batch = self.batch(rows)
            if self.uneven_steps:
                return apply_if(rows[0] >= 0, lambda value: step(value, batch), value), None
            return step(value, batch), None

        return lax.scan(body, start, self.rows)[0]

    def batch(self, rows: jax.Array) -> Batch:
        """Return the rows of these numbers (B,) as a batch; entries of -1 are masked."""
        mask = rows >= 0
        indicator = mask.astype(self.dtype)
        rows = jnp.maximum(rows, 0)
        weight = indicator / jnp.maximum(indicator.sum(), 1)
        if self.weight is not None:
            weight = weight * self.weight[rows]
        offset = None if self.offset is None else self.offset[rows]
        return self.with_changed_targets(Batch(self.x[rows], self.y[rows], weight, mask, offset=offset))

    def with_changed_targets(self, batch: Batch) -> Batch:
        """Return a batch of this client's rows with the targets that it learns from."""
        return batch if self.change_targets is None else batch._replace(y=self.change_targets(batch.y))

    def with_whole_data(self, rows: jax.Array) -> Self:
        """Return a copy whose whole data are the rows of these numbers."""
        return replace(self, whole=self.batch(rows)._replace(x=take_client(self.x, rows), mask=None, full_passes=1))


@operation
def take_client(x: Any, rows: jax.Array) -> Any:
    """Return the rows of these numbers (L,), all of a client's; -1 stands for a row that has no weight."""
    return x[jnp.maximum(rows, 0)]


@dataclass(frozen=True)
class RecordingLocalData(LocalData):
    """Local data that record in ``accessed`` which random numbers are read, and whether the whole data are."""

    accessed: set[str] = field(default_factory=set, compare=False, repr=False)

    def __getattribute__(self, name: str) -> Any:
        if name in ("key_bits", "shared_uniforms", "place", "whole"):
            self.accessed.add(name)
        return super().__getattribute__(name)
