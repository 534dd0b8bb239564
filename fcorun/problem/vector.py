"""Points of the parameter space: named arrays with the arithmetic of a vector."""

import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_with_keys_class
class Vector(dict):
    """Named arrays that add, subtract and scale like one vector, so that an algorithm reads as in its paper.

    A vector is a pytree. The arrays are not raveled into one, since slicing and joining cost as much as the gradients.

    >>> w = Vector(weights=jnp.ones(2), bias=jnp.zeros(()))
    >>> (w - 0.5 * w)["weights"]
    Array([0.5, 0.5], dtype=float32)
    """

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.DictKey(k), v) for k, v in self.items()], tuple(self)

    def tree_flatten(self):
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, names, values):
        return cls(zip(names, values, strict=True))

    def _combine(self, other, function):
        if isinstance(other, Vector):
            return Vector({k: function(v, other[k]) for k, v in self.items()})
        return Vector({k: function(v, other) for k, v in self.items()})

    def __add__(self, other):
        return self._combine(other, operator.add)

    def __sub__(self, other):
        return self._combine(other, operator.sub)

    def __mul__(self, scalar):
        return self._combine(scalar, operator.mul)

    __rmul__ = __mul__

    def __truediv__(self, scalar):
        return self._combine(scalar, operator.truediv)

    def __neg__(self):
        return self * -1

    @property
    def dtype(self):
        return next(iter(self.values())).dtype

    def map(self, function: Callable[..., jax.Array], *others: "Vector") -> "Vector":
        """Return ``function(v, ...)`` of each parameter ``v`` and of the same parameter of the ``others``.

        >>> w = Vector(weights=jnp.array([1.0, -2.0]), bias=jnp.zeros(()))
        >>> w.map(jnp.abs)["weights"]
        Array([1., 2.], dtype=float32)
        >>> w.map(jnp.maximum, 0.5 * w)["weights"]
        Array([ 1., -1.], dtype=float32)
        """
        return Vector({name: function(v, *(other[name] for other in others)) for name, v in self.items()})

    def dot(self, other: "Vector") -> jax.Array:
        """Return the inner product, a scalar."""
        return sum((jnp.vdot(v, other[k]) for k, v in self.items()), jnp.zeros((), self.dtype))

    def norm(self) -> jax.Array:
        """Return the Euclidean norm, a scalar."""
        return jnp.sqrt(self.dot(self))
