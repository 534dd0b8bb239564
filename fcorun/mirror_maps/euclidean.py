"""The Euclidean mirror map."""

from dataclasses import dataclass

from fcorun.mirror_maps.base import MirrorMap


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
