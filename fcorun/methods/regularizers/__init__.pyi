from .affine import Affine, Halfspace
from .balls import L1Ball, L2Ball, LInfBall
from .box import Box, Nonneg
from .budget import Budget
from .elastic_net import ElasticNet
from .fused_lasso import FusedLasso
from .graph_net import GraphNet
from .group_lasso import GroupLasso
from .l0_ball import L0Ball
from .l1 import L1
from .l1_box import L1Box, L1Nonneg
from .l2 import L2
from .linf import LInf
from .log_sum import LogSum
from .mcp import MCP
from .monotone import Monotone, MonotoneBox
from .none import NoRegularizer
from .nuclear import Nuclear
from .nuclear_ball import NuclearBall
from .regularizer import Constraint, Regularizer, soft_threshold
from .scad import SCAD
from .simplex import Simplex
from .tv import TV

__all__ = [
    "L1", "L2", "MCP", "SCAD", "TV", "Affine", "Box", "Budget", "Constraint", "ElasticNet", "FusedLasso",
    "GraphNet", "GroupLasso", "Halfspace", "L0Ball", "L1Ball", "L1Box", "L1Nonneg", "L2Ball", "LInf", "LInfBall",
    "LogSum", "Monotone", "MonotoneBox", "NoRegularizer", "Nonneg", "Nuclear", "NuclearBall", "Regularizer",
    "Simplex", "soft_threshold",
]  # fmt: skip
