from .affine import Affine, Halfspace
from .balls import L1Ball, L2Ball, LInfBall
from .base import Constraint, Regularizer, soft_threshold
from .box import Box, Nonneg
from .budget import Budget
from .elastic_net import ElasticNet
from .fused_lasso import FusedLasso
from .graph_net import GraphNet
from .group_lasso import GroupLasso
from .l1 import L1
from .l1_box import L1Box, L1Nonneg
from .l2 import L2
from .linf import LInf
from .monotone import Monotone, MonotoneBox
from .none import NoRegularizer
from .nuclear import Nuclear
from .nuclear_ball import NuclearBall
from .simplex import Simplex
from .tv import TV

__all__ = [
    "L1", "L2", "TV", "Affine", "Box", "Budget", "Constraint", "ElasticNet", "FusedLasso", "GraphNet", "GroupLasso",
    "Halfspace", "L1Ball", "L1Box", "L1Nonneg", "L2Ball", "LInf", "LInfBall", "Monotone", "MonotoneBox",
    "NoRegularizer", "Nonneg", "Nuclear", "NuclearBall", "Regularizer", "Simplex", "soft_threshold",
]  # fmt: skip
