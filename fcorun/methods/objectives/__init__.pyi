from .cox import Cox
from .gamma import Gamma
from .huber import Huber
from .least_squares import LeastSquares
from .logistic import Logistic
from .mlp import MLP
from .objective import LinearModel, Objective
from .one_vs_rest import OneVsRest
from .poisson import Poisson
from .quantile import Quantile

__all__ = [
    "MLP",
    "Cox",
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
