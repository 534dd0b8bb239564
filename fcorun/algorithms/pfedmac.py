"""Personalised federated learning by maximising correlation."""

from dataclasses import dataclass

from fcorun.algorithms.base import Traits
from fcorun.algorithms.personal import PersonalAlgorithm
from fcorun.config import AUTO, AutoNonNegative
from fcorun.errors import UserError


@dataclass(frozen=True, kw_only=True)
class PFedMac(PersonalAlgorithm):
    """pFedMac: u = argmin f - lambda <., y>.

    It minimises the mean of F_m(x) = min_u {f_m(u) - lambda <u, x>} + lambda / 2 ||x||^2 and leaves psi out. F_m is
    finite only where f_m grows faster than linearly, and convex only where f_m bends lambda at least. A ridge added to
    each f_m brings that about; one of lambda makes it pFedMe.

    Attributes:
        ridge: "auto": what the losses lack of bending lambda.
    """

    source = "@li2021pfedmac"

    ridge: AutoNonNegative = AUTO

    traits = Traits(psi_sides=(), proximal=True, needs_strong_convexity=True)

    @property
    def quadratic_weight(self):
        return self.ridge

    @property
    def curvature_alternatives(self):
        return super().curvature_alternatives + (["a value for algo.ridge"] if "ridge" in self.auto_fields else [])

    def auto(self, known):
        return super().auto(known) | {"ridge": max(self.lam - known.strong_convexity, 0.0)}

    def resolve_auto(self, known):
        if not isinstance(self.ridge, str) and known.strong_convexity + self.ridge < self.lam * (1 - 1e-9):
            raise UserError(
                f"algo.ridge={self.ridge:g}: the clients' losses bend {known.strong_convexity:.3g} at least, and "
                f"with the ridge "
                f"less than algo.lam={self.lam:g}, so that the problem has no minimum; give algo.ridge=auto, "
                "or a lower lam"
            )
        return super().resolve_auto(known)

    def describe_auto(self, auto_values):
        ridge = auto_values.get("algo.ridge", 0.0)
        if not ridge:
            return ""
        told = (
            f"algo.ridge={ridge:.3g} was added to each client's loss, which bends {auto_values['least']:.3g} at least"
        )
        return f"{told}: algo.lam={self.lam:g} wants as much" + (
            "" if auto_values["least"] else "; that makes it pFedMe"
        )
