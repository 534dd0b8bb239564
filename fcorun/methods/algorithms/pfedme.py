"""Personalised federated learning with Moreau envelopes."""

from dataclasses import dataclass

from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.personal_algorithm import PersonalAlgorithm


@dataclass(frozen=True, kw_only=True)
class PFedMe(PersonalAlgorithm):
    """pFedMe: u = argmin f + lambda / 2 ||. - y||^2.

    The algorithm ignores psi. An inner solver starts at the client's model of the previous step or round, which the box
    leaves open; exact solutions do not depend on the start.
    """

    source = "algorithm 1 of @dinh2020"
    traits = Traits(psi_sides=(), proximal=True, hierarchy="some", reveals_personal=True)

    @property
    def quadratic_weight(self):
        return self.lam
