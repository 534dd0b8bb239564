"""The squared l2 norm."""

from dataclasses import dataclass

from fcorun.config import AUTO, NonNegative
from fcorun.regularizers.base import Regularizer


@dataclass(frozen=True)
class L2(Regularizer):
    """psi(w) = strength * ||w||_2^2, squared and without 1/2; with factors, strength * sum_j factor_j w_j^2."""

    source = "textbook"

    strength: NonNegative = AUTO

    convex = separable = True
    across_clients = {"strength": "mean"}

    def value(self, w):
        return self.strength * (self.factor(w) * w**2).sum()

    def prox(self, z, t):
        return z / (1 + 2 * t * self.strength * self.factor(z))

    def subgradient(self, w):
        return 2 * self.strength * self.factor(w) * w
