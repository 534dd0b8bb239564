"""What a mirror map h is to fcorun: the way to the dual space and back."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
from jaxtyping import Array, Float

from fcorun.regularizers.base import Real, Regularizer
from fcorun.regularizers.none import NoRegularizer


@dataclass(frozen=True)
class MirrorMap(ABC):
    """A mirror map plug-in: a frozen dataclass of its numbers. Each method takes one parameter array, of any shape.

    Attributes:
        pairs: for a map other than the Euclidean, how to retrieve with each class of regularizer that has a cheap way,
            as functions (map, z, t, psi) -> w; with any other regularizer the map is refused.
        source: where it comes from, as fcorun.sources.catalogue says; not inherited.
    """

    retrieve_functions: ClassVar[dict[type[Regularizer], Callable[..., jax.Array]]] = {}
    source: ClassVar[str]

    @abstractmethod
    def to_dual(self, w: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The gradient of h at w."""

    def retrieve(self, z: Float[Array, "*shape"], t: Real, psi: Regularizer) -> Float[Array, "*shape"]:
        """The primal of the dual z: argmin_w h(w) + t psi(w) - <z, w>, that is grad (h + t psi)*(z)."""
        return (
            self.to_primal(z) if isinstance(psi, NoRegularizer) else self.retrieve_functions[type(psi)](self, z, t, psi)
        )

    def supports(self, psi: Regularizer) -> bool:
        """Whether ``retrieve`` knows what to do with this regularizer."""
        return isinstance(psi, NoRegularizer) or type(psi) in self.retrieve_functions

    def domain_contains(self, psi: Regularizer) -> bool:
        """Whether the domain of h holds that of psi, so that the map does not change the problem."""
        return True

    @abstractmethod
    def to_primal(self, z: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The gradient of h* at z: ``retrieve`` without a regularizer."""
