"""Algorithms, one a file."""

from fcorun.algorithms.base import Algorithm, Baseline, LocalData
from fcorun.algorithms.centralized import Centralized
from fcorun.algorithms.fedavg import FedAvg
from fcorun.algorithms.fedavg_subgradient import FedAvgSubgradient
from fcorun.algorithms.feddualavg import FedDualAvg
from fcorun.algorithms.feddualavg_osp import FedDualAvgOSP
from fcorun.algorithms.fedmid import FedMiD
from fcorun.algorithms.fedmid_osp import FedMiDOSP
from fcorun.algorithms.local import Local

__all__ = [
    "Algorithm",
    "Baseline",
    "Centralized",
    "FedAvg",
    "FedAvgSubgradient",
    "FedDualAvg",
    "FedDualAvgOSP",
    "FedMiD",
    "FedMiDOSP",
    "Local",
    "LocalData",
]
