"""Regularizers psi, one prox or one family of proxes in each file."""

from fcorun.regularizers.affine import Affine, Halfspace
from fcorun.regularizers.balls import L1Ball, L2Ball, LInfBall
from fcorun.regularizers.base import Constraint, Regularizer, soft_threshold
from fcorun.regularizers.box import Box, Nonneg
from fcorun.regularizers.budget import Budget
from fcorun.regularizers.elastic_net import ElasticNet
from fcorun.regularizers.fused_lasso import FusedLasso
from fcorun.regularizers.graph_net import GraphNet
from fcorun.regularizers.group_lasso import GroupLasso
from fcorun.regularizers.l1 import L1
from fcorun.regularizers.l1_box import L1Box, L1Nonneg
from fcorun.regularizers.l2 import L2
from fcorun.regularizers.linf import LInf
from fcorun.regularizers.monotone import Monotone, MonotoneBox
from fcorun.regularizers.none import NoRegularizer
from fcorun.regularizers.nuclear import Nuclear
from fcorun.regularizers.nuclear_ball import NuclearBall
from fcorun.regularizers.simplex import Simplex
from fcorun.regularizers.tv import TV

__all__ = [
    "L1", "L2", "TV", "Affine", "Box", "Budget", "Constraint", "ElasticNet", "FusedLasso", "GraphNet", "GroupLasso",
    "Halfspace", "L1Ball", "L1Box", "L1Nonneg", "L2Ball", "LInf", "LInfBall", "Monotone", "MonotoneBox",
    "NoRegularizer", "Nonneg", "Nuclear", "NuclearBall", "Regularizer", "Simplex", "soft_threshold",
]  # fmt: skip
