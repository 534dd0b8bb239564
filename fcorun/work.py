"""How much work local steps are: gradients and proxes, counted while JAX traces them."""

from collections.abc import Callable
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
        gradients: of single examples' losses.
        proxes: of psi, or of a client's loss where that has a closed form.
    """

    def __init__(self):
        self.gradients: Count = 0
        self.proxes: Count = 0

    def add(self, gradients: Count = 0, proxes: Count = 0) -> None:
        self.gradients, self.proxes = self.gradients + gradients, self.proxes + proxes

    def only_if(self, there: jax.Array) -> None:
        """Forget the counts unless ``there``."""
        self.gradients, self.proxes = self.gradients * there, self.proxes * there

    def totals(self) -> jax.Array:
        """(gradients, proxes), int32."""
        return jnp.stack([jnp.asarray(self.gradients, jnp.int32), jnp.asarray(self.proxes, jnp.int32)])

    def _counted(self, function: Callable, *arguments: Any) -> tuple[Any, jax.Array]:
        """``function(*arguments)`` and what it alone evaluates."""
        before = self.gradients, self.proxes
        self.gradients, self.proxes = 0, 0
        value, found = function(*arguments), self.totals()
        self.gradients, self.proxes = before
        return value, found

    def scan(self, body: Callable[[Any, Any], Any], start: Any, inputs: Any, length: int | None = None) -> Any:
        """``start`` after ``body(value, input)`` for each of the inputs."""

        def step(carry, given):
            value, counts = carry
            value, more = self._counted(body, value, given)
            return (value, counts + more), None

        value, counts = lax.scan(step, (start, jnp.zeros(2, jnp.int32)), inputs, length)[0]
        self.add(counts[0], counts[1])
        return value

    def while_loop(self, go_on: Callable[[Any], jax.Array], body: Callable[[Any], Any], start: Any) -> Any:
        """``start`` after ``body(value)`` as long as ``go_on(value)``."""

        def step(carry):
            value, counts = carry
            value, more = self._counted(body, value)
            return value, counts + more

        value, counts = lax.while_loop(lambda carry: go_on(carry[0]), step, (start, jnp.zeros(2, jnp.int32)))
        self.add(counts[0], counts[1])
        return value
