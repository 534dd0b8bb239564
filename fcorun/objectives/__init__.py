"""Objectives f, one a file."""

from fcorun.objectives.base import LinearModel, Objective
from fcorun.objectives.least_squares import LeastSquares
from fcorun.objectives.logistic import Logistic
from fcorun.objectives.mlp import MLP
from fcorun.objectives.one_vs_rest import OneVsRest

__all__ = ["MLP", "LeastSquares", "LinearModel", "Logistic", "Objective", "OneVsRest"]
