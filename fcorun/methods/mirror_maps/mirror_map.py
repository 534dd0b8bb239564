"""The contract of a mirror map h: the maps to the dual space and back; and the Euclidean mirror map."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
from jaxtyping import Array, Float

from fcorun.base.config import PluginBase
from fcorun.methods.regularizers.regularizer import NoRegularizer, Real, Regularizer, soft_threshold


@dataclass(frozen=True)
class MirrorMap(PluginBase, ABC):
    """A mirror map plug-in: a frozen dataclass of its numbers. Each method takes one parameter array, of any shape.

    Attributes:
        retrieve_functions: the functions (map, z, t, psi) -> w that compute ``retrieve``, by class of regularizer.
            fcorun refuses the map with any other regularizer but none.
        has_whole_dual: False if the gradients of h are not the whole space, so that noise may leave their domain, as
            those of a logarithmic barrier, which are negative. ``privacy`` refuses such a map.
        source: the source of the plug-in, see fcorun.base.sources.catalogue. Not inherited.
    """

    retrieve_functions: ClassVar[dict[type[Regularizer], Callable[..., jax.Array]]] = {}
    has_whole_dual: ClassVar[bool] = True
    source: ClassVar[str]

    @abstractmethod
    def to_dual(self, w: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the gradient of h at w."""

    def retrieve(self, z: Float[Array, "*shape"], t: Real, psi: Regularizer) -> Float[Array, "*shape"]:
        """Return the primal point of the dual z: argmin_w h(w) + t psi(w) - <z, w>, that is grad (h + t psi)*(z)."""
        if isinstance(psi, NoRegularizer):
            return self.to_primal(z)
        return self.retrieve_functions[type(psi)](self, z, t, psi)

    def supports(self, psi: Regularizer) -> bool:
        """Return whether ``retrieve`` is implemented for this regularizer."""
        return isinstance(psi, NoRegularizer) or type(psi) in self.retrieve_functions

    def domain_contains(self, psi: Regularizer) -> bool:
        """Return whether the domain of h contains that of psi, so that the map does not change the problem."""
        return True

    @abstractmethod
    def to_primal(self, z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Return the gradient of h* at z, which is ``retrieve`` without a regularizer."""


@dataclass(frozen=True)
class Euclidean(MirrorMap):
    """h(w) = ||w||_2^2 / 2: the dual space equals the primal space, and ``retrieve`` is the prox."""

    source = "textbook"

    def to_dual(self, w):
        return w

    def retrieve(self, z, t, psi):
        return psi.prox(z, t)

    def supports(self, psi):
        return True

    def to_primal(self, z):
        return z


# functions for ``retrieve_functions`` of maps that act on single entries, or as the soft threshold allows


def retrieve_for_l1(mirror_map: MirrorMap, z: jax.Array, t: Real, psi) -> jax.Array:
    """Return the primal point of a dual z for psi = strength ||w||_1."""
    return mirror_map.to_primal(soft_threshold(z, t * psi.strength))


def retrieve_for_box(mirror_map: MirrorMap, z: jax.Array, t: Real, psi) -> jax.Array:
    """Return the primal point of a dual z for a box."""
    return psi.project(mirror_map.to_primal(z))


def retrieve_for_l1_box(mirror_map: MirrorMap, z: jax.Array, t: Real, psi) -> jax.Array:
    """Return the primal point of a dual z for the l1 norm on a box."""
    return psi.project(retrieve_for_l1(mirror_map, z, t, psi))
