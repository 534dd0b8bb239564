"""Federated LASSO: sparse linear regression over clients whose features have different means."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fcorun.base.config import Count, Positive
from fcorun.base.errors import UserError
from fcorun.data.datasets.synthetic import DrawSplit, LinearRegressionData, check_nonzeros


@dataclass(frozen=True)
class Lasso(LinearRegressionData):
    """Synthetic data of a sparse linear model.

    With w = (1, .., 1, 0, .., 0) and b ~ N(0, 1), client m draws a mean mu_m ~ N(0, mean_scale^2 I) once, and then
    x = mu_m + delta, y = x'w + b + eps with delta ~ N(0, I) and eps ~ N(0, 1). The validation rows of a client share
    its mean. The option ``condition`` is ours: features 1..d of mu_m and delta are scaled from 1 down to
    condition^(-1/2), evenly in logarithm. The paper prints the configurations; the law of the features is a
    reconstruction.
    """

    source = "section 5.1 of @yuan2021, the law of the features reconstructed"

    features: Count = 1024
    nonzeros: Count = 512
    condition: Positive = 1.0

    def __post_init__(self):
        check_nonzeros(self, "nonzeros")
        if self.condition < 1:
            raise UserError(f"`data.condition={self.condition}` is less than 1: give the ratio of largest to smallest")

    def make_law(self) -> tuple[DrawSplit, dict[str, Any]]:
        """Return the law of d float32 features, with the true ``weights`` (d,) and ``bias`` ()."""
        weights = (np.arange(self.features) < self.nonzeros).astype(np.float32)
        scales = np.geomspace(1, self.condition**-0.5, self.features, dtype=np.float32)
        return self.make_linear_law("lasso", weights, scales)
