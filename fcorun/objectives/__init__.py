"""Objectives f, one in each file."""

from fcorun.objectives.base import LinearModel, Objective
from fcorun.objectives.gamma import Gamma
from fcorun.objectives.huber import Huber
from fcorun.objectives.least_squares import LeastSquares
from fcorun.objectives.logistic import Logistic
from fcorun.objectives.mlp import MLP
from fcorun.objectives.one_vs_rest import OneVsRest
from fcorun.objectives.poisson import Poisson
from fcorun.objectives.quantile import Quantile

__all__ = [
    "MLP",
    "Gamma",
    "Huber",
    "LeastSquares",
    "LinearModel",
    "Logistic",
    "Objective",
    "OneVsRest",
    "Poisson",
    "Quantile",
]
