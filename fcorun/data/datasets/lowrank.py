"""Federated low-rank matrix estimation: linear measurements of a matrix, with another mean of X on each client."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.base.config import Count
from fcorun.base.errors import UserError
from fcorun.data.datasets.synthetic import DrawSplit, LinearRegressionData


@dataclass(frozen=True)
class LowRank(LinearRegressionData):
    """Synthetic data of a linear model whose coefficients are a matrix of low rank.

    With W = diag(1, .., 1, 0, .., 0) of the given rank and b ~ N(0, 1), client m draws a matrix M_m with entries of
    N(0, mean_scale^2) once, and then X = M_m + Delta, y = <X, W> + b + eps with Delta and eps of N(0, 1) entries. The
    validation rows of a client share its M_m. The paper prints the configurations; the law of X is a reconstruction.

    Attributes:
        rows, columns: the shape of W.
        rank: the rank of W.
    """

    feature_count_keys = ("rows", "columns")
    source = "section 5.2 of @yuan2021, the law of the features reconstructed"

    rows: Count = 32
    columns: Count = 32
    rank: Count = 16

    def __post_init__(self):
        max_rank = min(self.rows, self.columns)
        if self.rank > max_rank:
            raise UserError(f"`data.rank={self.rank}` is more than a matrix of {self.rows} x {self.columns} can have: "
                            f"give at most {max_rank}")  # fmt: skip

    def make_law(self) -> tuple[DrawSplit, dict[str, Any]]:
        """Return the law of raveled float32 matrices, with the true ``weights`` (rows, columns) and ``bias`` ()."""
        weights = np.eye(self.rows, self.columns, dtype=np.float32)
        weights[self.rank :] = 0
        return self.make_linear_law("lowrank", weights)
