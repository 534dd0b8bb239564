"""The algorithms of fcorun, each in a file of its own."""

from fcorun.algorithms.apfl import APFL
from fcorun.algorithms.base import Algorithm, Baseline, ProblemConstants, RunConditions, Traits
from fcorun.algorithms.centralized import Centralized
from fcorun.algorithms.ditto import Ditto
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
from fcorun.algorithms.local_data import LocalData
from fcorun.algorithms.mixture import Mixture
from fcorun.algorithms.one_client import OneClient
from fcorun.algorithms.personal import PersonalAlgorithm
from fcorun.algorithms.pfedmac import PFedMac
from fcorun.algorithms.pfedmac_s import PFedMacS
from fcorun.algorithms.pfedmac_sh import PFedMacSH
from fcorun.algorithms.pfedme import PFedMe
from fcorun.algorithms.proximal import ProximalAlgorithm
from fcorun.algorithms.proxskip import ProxSkip
from fcorun.algorithms.scaffold import Scaffold

__all__ = [
    "APFL",
    "Algorithm",
    "Baseline",
    "Centralized",
    "Ditto",
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
    "Mixture",
    "OneClient",
    "PFedMac",
    "PFedMacS",
    "PFedMacSH",
    "PFedMe",
    "PersonalAlgorithm",
    "ProblemConstants",
    "ProxSkip",
    "ProximalAlgorithm",
    "RunConditions",
    "Scaffold",
    "Traits",
]
