"""Regularizers psi, one prox a file."""

from fcorun.regularizers.base import Constraint, Regularizer, soft_threshold
from fcorun.regularizers.elastic_net import ElasticNet
from fcorun.regularizers.l1 import L1
from fcorun.regularizers.l2 import L2
from fcorun.regularizers.none import NoRegularizer

__all__ = ["L1", "L2", "Constraint", "ElasticNet", "NoRegularizer", "Regularizer", "soft_threshold"]
