"""How much work local steps are: gradients and proxes, counted while JAX traces them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Count = int | jax.Array


class Work:
    """What has been evaluated so far in the function that is being traced.

    A loop traces its body once and runs it many times, so loops go through ``repeat`` and ``scan``, which carry the
    counts along.

    Attributes:
        counts: gradients of single examples' losses in minibatches; gradients of whole clients' losses, apart, for
            their examples could be too many for 32 bits; proxes of psi, or of a client's loss in closed form.
    """

    def __init__(self):
        self.counts: Sequence[Count] = [0, 0, 0]

    def gradient(self, batch: Any) -> None:
        """Count a gradient on a batch, which has the fields ``count`` and ``passes``."""
        self.counts = [self.counts[0] + batch.count, self.counts[1] + batch.passes, self.counts[2]]

    def prox(self) -> None:
        """Count a prox."""
        self.counts = [*self.counts[:2], self.counts[2] + 1]

    def only_if(self, there: jax.Array) -> None:
        """Forget the counts unless ``there``."""
        self.counts = [count * there for count in self.counts]

    def totals(self) -> jax.Array:
        """The counts, int32."""
        return jnp.stack([jnp.asarray(count, jnp.int32) for count in self.counts])

    def _counted(self, function: Callable, *arguments: Any) -> tuple[Any, jax.Array]:
        """``function(*arguments)`` and what it alone evaluates."""
        before, self.counts = self.counts, [0, 0, 0]
        value, found = function(*arguments), self.totals()
        self.counts = before
        return value, found

    def scan(self, body: Callable[[Any, Any], Any], start: Any, inputs: Any, length: int | None = None) -> Any:
        """``start`` after ``body(value, input)`` for each of the inputs."""

        def step(carry, given):
            value, counts = carry
            value, more = self._counted(body, value, given)
            return (value, counts + more), None

        value, counts = lax.scan(step, (start, jnp.zeros(3, jnp.int32)), inputs, length)[0]
        self.counts = [old + new for old, new in zip(self.counts, counts, strict=True)]
        return value

    def while_loop(self, go_on: Callable[[Any], jax.Array], body: Callable[[Any], Any], start: Any) -> Any:
        """``start`` after ``body(value)`` as long as ``go_on(value)``."""

        def step(carry):
            value, counts = carry
            value, more = self._counted(body, value)
            return value, counts + more

        value, counts = lax.while_loop(lambda carry: go_on(carry[0]), step, (start, jnp.zeros(3, jnp.int32)))
        self.counts = [old + new for old, new in zip(self.counts, counts, strict=True)]
        return value
