"""What a mirror map h is to fcorun: the way to the dual space and back."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import jax

from fcorun.regularizers.base import Regularizer


@dataclass(frozen=True)
class MirrorMap(ABC):
    """A mirror map plug-in: a frozen dataclass of its numbers. Each method takes one parameter array, of any shape.

    Attributes:
        needs: the methods of the regularizer that ``retrieve`` calls; a regularizer without them is refused.
    """

    needs: ClassVar[tuple[str, ...]] = ("prox",)

    @abstractmethod
    def to_dual(self, w: jax.Array) -> jax.Array:
        """The gradient of h at w."""

    @abstractmethod
    def retrieve(self, z: jax.Array, t: jax.Array | float, psi: Regularizer) -> jax.Array:
        """The primal of the dual z: argmin_w h(w) + t psi(w) - <z, w>, that is grad (h + t psi)*(z)."""

    @abstractmethod
    def to_primal(self, z: jax.Array) -> jax.Array:
        """The gradient of h* at z: ``retrieve`` without a regularizer."""
