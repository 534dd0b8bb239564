from .adap import ADAP
from .algorithm import Algorithm, Baseline, LocalData, ProblemConstants, RunConditions, Traits
from .apfl import APFL
from .centralized import Centralized
from .dane import DANE
from .diana import DIANA
from .ditto import Ditto
from .dlsa import DLSA
from .edsl import EDSL
from .ef21 import EF21
from .fast_fedda import FastFedDA
from .fed_frank_wolfe import FedFrankWolfe
from .fedac import FedAc
from .fedadmm import FedADMM
from .fedavg import FedAvg
from .fedavg_subgradient import FedAvgSubgradient
from .fedcanon import FedCanon
from .fedcef import FedCEF
from .fedcomposite import FedComposite
from .feddr import FedDR
from .feddualavg import FedDualAvg
from .feddualavg_osp import FedDualAvgOSP
from .feddualopt import FedDualOpt
from .feddyn import FedDyn
from .fedgd import FedGD
from .fedht import FedHT, FedIterHT
from .fedmid import FedMiD
from .fedmid_osp import FedMiDOSP
from .fednmap import FedNMap
from .fednova import FedNova
from .fedopt import FedOpt
from .fedpd import FedPD
from .fedprox import FedProx
from .fedsplit import FedSplit
from .fedsplit_accelerated import FedSplitAccelerated
from .fsvrg import FSVRG
from .gossip import GossipAlgorithm
from .gram import Gram
from .local import Local
from .local_fit import LocalFitAlgorithm
from .mean_gradient import MeanGradientAlgorithm
from .meta_analysis import MetaAnalysis
from .mixture import Mixture
from .newton import Newton
from .nids import NIDS
from .one_client import OneClient
from .personal_algorithm import PersonalAlgorithm
from .pfedmac import PFedMac
from .pfedmac_s import PFedMacS
from .pfedmac_sh import PFedMacSH
from .pfedme import PFedMe
from .pg_extra import PGExtra
from .prox_dasa import ProxDASA
from .proximal import ProximalAlgorithm
from .proxskip import ProxSkip
from .s_dane import SDANE
from .scaffold import Scaffold
from .shifted import ShiftedAlgorithm

__all__ = [
    "ADAP",
    "APFL",
    "DANE",
    "DIANA",
    "DLSA",
    "EDSL",
    "EF21",
    "FSVRG",
    "NIDS",
    "SDANE",
    "Algorithm",
    "Baseline",
    "Centralized",
    "Ditto",
    "FastFedDA",
    "FedADMM",
    "FedAc",
    "FedAvg",
    "FedAvgSubgradient",
    "FedCEF",
    "FedCanon",
    "FedComposite",
    "FedDR",
    "FedDualAvg",
    "FedDualAvgOSP",
    "FedDualOpt",
    "FedDyn",
    "FedFrankWolfe",
    "FedGD",
    "FedHT",
    "FedIterHT",
    "FedMiD",
    "FedMiDOSP",
    "FedNMap",
    "FedNova",
    "FedOpt",
    "FedPD",
    "FedProx",
    "FedSplit",
    "FedSplitAccelerated",
    "GossipAlgorithm",
    "Gram",
    "Local",
    "LocalData",
    "LocalFitAlgorithm",
    "MeanGradientAlgorithm",
    "MetaAnalysis",
    "Mixture",
    "Newton",
    "OneClient",
    "PFedMac",
    "PFedMacS",
    "PFedMacSH",
    "PFedMe",
    "PGExtra",
    "PersonalAlgorithm",
    "ProblemConstants",
    "ProxDASA",
    "ProxSkip",
    "ProximalAlgorithm",
    "RunConditions",
    "Scaffold",
    "ShiftedAlgorithm",
    "Traits",
]
