"""Objectives f, one a file."""

from fcorun.objectives.base import Objective
from fcorun.objectives.least_squares import LeastSquares
from fcorun.objectives.logistic import Logistic
from fcorun.objectives.mlp import MLP

__all__ = ["MLP", "LeastSquares", "Logistic", "Objective"]
