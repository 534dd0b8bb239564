"""Federated hard thresholding, and federated iterative hard thresholding."""

from dataclasses import dataclass

from fcorun.methods.algorithms.algorithm import Traits
from fcorun.methods.algorithms.fedmid import FedMiD, FedMiDOSP


@dataclass(frozen=True)
class FedHT(FedMiDOSP):
    """Fed-HT: gradient steps on the clients, whose mean the server thresholds.

    With ``reg=l0_ball`` and ``server_lr`` 1 the method is as printed; it is FedMiD-OSP, whose prox is then the hard
    threshold. Any other psi has its own prox.
    """

    source = "@tong2020"
    traits = Traits(psi_sides=("server",), exact_with_one_step="composite")


@dataclass(frozen=True)
class FedIterHT(FedMiD):
    """FedIter-HT: the clients threshold after each step, and the server thresholds their mean.

    With ``reg=l0_ball`` and ``server_lr`` 1 the method is as printed; it is FedMiD, whose prox is then the hard
    threshold. Any other psi has its own prox.
    """

    source = "@tong2020"
    traits = Traits(exact_with_one_step="smooth")
