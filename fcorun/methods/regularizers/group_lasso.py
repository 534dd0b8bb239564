"""The group lasso."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import Count
from fcorun.base.errors import UserError, word
from fcorun.methods.regularizers.regularizer import Norm, divide_by_factor

_DEFAULT_BLOCK_SIZE = 2  # entries of a block of a vector


@dataclass(frozen=True)
class GroupLasso(Norm):
    """psi(w) = strength * sum over groups g of weight_g ||w_g||_2.

    On a table with named columns, a group is a column with all of its levels, over all classes. ``groups`` merges
    columns into one group. Such groups differ in size, and have the weight sqrt(number of features in g), as in Yuan
    and Lin. Without column names, the groups of a matrix are its rows (a feature over all classes), and the groups of a
    vector are blocks of ``group_size`` consecutive entries, all with weight 1. Each weight is multiplied by the factor
    of the group's features.
    """

    source = "@yuan2006"

    group_size: Count | None = None
    groups: Annotated[dict[str, list[str]] | None, "default outside identity"] = None

    convex = separable = sparse = True

    def __post_init__(self):
        if self.groups is not None and self.group_size is not None:
            raise UserError(
                "`reg.groups` names groups, and `reg.group_size` makes blocks of features: give one of them"
            )

    def on_groups(self, group_of: np.ndarray, names: Sequence[str]) -> "GroupLasso":
        """Return psi on d features: feature j is in the group ``group_of[j]``; ``names`` are the groups' names."""
        options = {f.name: getattr(self, f.name) for f in fields(self)}
        return _GroupLassoOnFeatures(**options, group_of=group_of, names=tuple(names))

    @property
    def block_size(self) -> int:
        """The number of entries of a vector in a group."""
        return self.group_size or _DEFAULT_BLOCK_SIZE

    def check(self, shape):
        if len(shape) > 1:
            if self.group_size is not None:
                raise ValueError(word("the groups of a matrix are its rows (a feature over all classes): leave "
                                 f"`reg.group_size={self.group_size}` out"))  # fmt: skip
            return
        if shape[0] % self.block_size:
            raise ValueError(
                word(f"{shape[0]} entries are no whole number of groups of `reg.group_size={self.block_size}`")
            )
        if self.factors:
            uneven = np.flatnonzero(np.ptp(self.feature_factors(shape[0]).reshape(-1, self.block_size), axis=1))
            if len(uneven):
                first = uneven[0] * self.block_size
                raise ValueError(word(f"features {first} to {first + self.block_size - 1} are one group: give them one "
                                 "value in `reg.factors`"))  # fmt: skip

    def _rows(self, w: jax.Array) -> jax.Array:
        """Reshape w to one row for each group."""
        return w.reshape((-1, self.block_size) if w.ndim == 1 else (w.shape[0], math.prod(w.shape[1:])))

    def norms(self, w):
        """Return ||w_g||_2 of every group, (G,)."""
        return jnp.sqrt((self._rows(w) ** 2).sum(1))

    def expand(self, values, w):
        """Repeat the value of every group, (G,), for each entry of the group, of w's shape."""
        return jnp.broadcast_to(values[:, None], self._rows(w).shape).reshape(w.shape)

    def weights(self, w):
        """Return the weight of every group, (G,)."""
        return self._rows(jnp.broadcast_to(jnp.asarray(self.factor(w), w.dtype), w.shape))[:, 0]

    def value(self, w):
        return self.strength * (self.weights(w) * self.norms(w)).sum()

    def prox(self, z, t):
        norms = self.norms(z)
        shrinkage = jnp.maximum(norms - t * self.strength * self.weights(z), 0) / jnp.where(norms > 0, norms, 1)
        return z * self.expand(shrinkage, z)

    def subgradient(self, w):
        norms = self.norms(w)
        return self.strength * self.expand(self.weights(w), w) * w / self.expand(jnp.where(norms > 0, norms, 1), w)

    def dual_norm(self, v, if_unpenalized):
        return divide_by_factor(self.norms(v), self.weights(v), if_unpenalized).max()

    def structure(self, w, cutoff):
        nonzero = self.norms((jnp.abs(w) > cutoff).astype(w.dtype)) > 0
        return super().structure(w, cutoff) | {"group_density": jnp.mean(nonzero, dtype=w.dtype)}


@dataclass(frozen=True, kw_only=True)
class _GroupLassoOnFeatures(GroupLasso):
    """The group lasso on groups of a data set's features, which may differ in size."""

    group_of: Any = field(compare=False, repr=False)
    names: tuple[str, ...] = field(compare=False, repr=False)

    convex = separable = sparse = True

    def check(self, shape):
        if shape[0] != len(self.group_of):
            raise ValueError(word(f"its groups have {len(self.group_of)} features; leave it out of `reg.apply_to`"))
        factors = self.feature_factors(shape[0])
        uneven = factors != factors[self._first_feature][self.group_of]
        if uneven.any():
            name = self.names[self.group_of[uneven.argmax()]]
            raise ValueError(word(f"'{name}' is one group of features: give all of them one value in `reg.factors`"))

    @property
    def _first_feature(self) -> np.ndarray:
        """The first feature of each group, (G,)."""
        return np.unique(self.group_of, return_index=True)[1]

    def norms(self, w):
        squares = (w**2).reshape(len(w), -1).sum(1)
        return jnp.sqrt(jax.ops.segment_sum(squares, self.group_of, len(self.names)))

    def expand(self, values, w):
        return jnp.broadcast_to(values[self.group_of].reshape(-1, *[1] * (w.ndim - 1)), w.shape)

    def weights(self, w):
        sizes = np.bincount(self.group_of, minlength=len(self.names))
        return jnp.asarray(np.sqrt(sizes) * self.feature_factors(len(w))[self._first_feature], w.dtype)
