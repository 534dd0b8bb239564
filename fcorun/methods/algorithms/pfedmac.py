"""Personalised federated learning by maximizing correlation."""

from dataclasses import dataclass
from typing import ClassVar

from fcorun.base.config import AUTO, AutoNonNegative
from fcorun.base.errors import UserError, word
from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.personal_algorithm import PersonalAlgorithm


@dataclass(frozen=True, kw_only=True)
class PFedMac(PersonalAlgorithm):
    """pFedMac: u = argmin f - lambda <., y>.

    The algorithm minimizes the mean of F_m(x) = min_u {f_m(u) - lambda <u, x>} + lambda / 2 ||x||^2 and ignores psi.
    F_m is finite only if f_m grows faster than linearly, and convex only if f_m has strong convexity lambda. A ridge
    added to each f_m ensures both; a ridge of lambda gives pFedMe.

    Attributes:
        with_ridge: the algorithm that a ridge of lambda makes of this one.
    """

    source = "@li2021pfedmac"
    with_ridge: ClassVar[str] = "pFedMe"

    ridge: AutoNonNegative = AUTO

    traits = Traits(psi_sides=(), proximal=True, needs_strong_convexity=True, reveals_personal=True)

    @property
    def quadratic_weight(self):
        return self.ridge

    @property
    def curvature_alternatives(self):
        return super().curvature_alternatives + (["a value for `algo.ridge`"] if "ridge" in self.auto_fields else [])

    def auto(self, constants):
        return super().auto(constants) | {"ridge": max(self.lam - constants.strong_convexity, 0.0)}

    def resolve_auto(self, constants):
        if not isinstance(self.ridge, str) and constants.strong_convexity + self.ridge < self.lam * (1 - 1e-9):
            raise UserError(
                f"`algo.ridge={self.ridge:g}`: the strong convexity of the clients' losses, "
                f"{constants.strong_convexity:.3g}, and the ridge are together less than `algo.lam={self.lam:g}`, so "
                "that a client's F_m is not convex, and the problem may have no minimum; give `algo.ridge=auto`, or a "
                "lower lam"
            )
        return super().resolve_auto(constants)

    def describe_auto(self, auto_values):
        ridge = auto_values.get("algo.ridge", 0.0)
        if not ridge:
            return ""
        strong_convexity = auto_values["least"]
        message = word(
            f"`algo.ridge={ridge:.3g}` was added to each client's loss, whose strong convexity of "
            f"{strong_convexity:.3g} is less than `algo.lam={self.lam:g}`"
        )
        return message if strong_convexity else f"{message}; this ridge makes the algorithm {self.with_ridge}"
