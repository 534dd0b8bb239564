"""Personalised federated learning with Moreau envelopes."""

from dataclasses import dataclass

from fcorun.algorithms.base import Traits
from fcorun.algorithms.personal import PersonalAlgorithm


@dataclass(frozen=True, kw_only=True)
class PFedMe(PersonalAlgorithm):
    """pFedMe: u = argmin f + lambda / 2 ||. - y||^2.

    It leaves psi out. An inner solver starts at the client's model of the step or round before, where the box leaves
    open from where on: exact solves do not depend on it.
    """

    source = "algorithm 1 of @dinh2020"
    traits = Traits(psi_sides=(), proximal=True, hierarchy="some")

    @property
    def quadratic_weight(self):
        return self.lam
