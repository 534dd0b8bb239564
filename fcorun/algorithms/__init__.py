"""Algorithms, one a file."""

from fcorun.algorithms.base import Algorithm, Baseline, LocalData
from fcorun.algorithms.centralized import Centralized
from fcorun.algorithms.fast_fedda import FastFedDA
from fcorun.algorithms.fedadmm import FedADMM
from fcorun.algorithms.fedavg import FedAvg
from fcorun.algorithms.fedavg_subgradient import FedAvgSubgradient
from fcorun.algorithms.fedcomposite import FedComposite
from fcorun.algorithms.feddr import FedDR
from fcorun.algorithms.feddualavg import FedDualAvg
from fcorun.algorithms.feddualavg_osp import FedDualAvgOSP
from fcorun.algorithms.feddualopt import FedDualOpt
from fcorun.algorithms.feddyn import FedDyn
from fcorun.algorithms.fedgd import FedGD
from fcorun.algorithms.fedmid import FedMiD
from fcorun.algorithms.fedmid_osp import FedMiDOSP
from fcorun.algorithms.fedopt import FedOpt
from fcorun.algorithms.fedpd import FedPD
from fcorun.algorithms.fedprox import FedProx
from fcorun.algorithms.fedsplit import FedSplit
from fcorun.algorithms.local import Local
from fcorun.algorithms.proximal import ProximalAlgorithm
from fcorun.algorithms.proxskip import ProxSkip
from fcorun.algorithms.scaffold import Scaffold

__all__ = [
    "Algorithm",
    "Baseline",
    "Centralized",
    "FastFedDA",
    "FedADMM",
    "FedAvg",
    "FedAvgSubgradient",
    "FedComposite",
    "FedDR",
    "FedDualAvg",
    "FedDualAvgOSP",
    "FedDualOpt",
    "FedDyn",
    "FedGD",
    "FedMiD",
    "FedMiDOSP",
    "FedOpt",
    "FedPD",
    "FedProx",
    "FedSplit",
    "Local",
    "LocalData",
    "ProxSkip",
    "ProximalAlgorithm",
    "Scaffold",
]
