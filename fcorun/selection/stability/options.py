"""What a stability selection is asked for, and what it is when it is done."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fcorun.config import Count, Positive
from fcorun.errors import UserError
from fcorun.models.coefficients import feature_names
from fcorun.selection.stability.scores import StabilityScores
from fcorun.selection.study import StudyResult


@dataclass(frozen=True)
class StabilityOptions:
    """What ``fcorun stability`` is asked for, beside a configuration.

    Attributes:
        subsamples: halves, two a pair.
        points: strengths of the path, at least 2.
        by: whether halves are of each client's rows, or of the clients.
        threshold: the share of the halves on which a stable feature is chosen, over 1/2.
        errors: how many false selections are expected at most; the path is followed as far as that holds.
        range: the least and the largest strength or radius; None: worked out from the data.
    """

    subsamples: Count = 100
    points: Count = 20
    by: Literal["rows", "clients"] = "rows"
    threshold: float = 0.75
    errors: Positive = 1.0
    range: list[float] | None = None

    def __post_init__(self):
        if self.subsamples % 2:
            raise UserError(f"subsamples={self.subsamples} come in pairs of halves: give an even number")
        if self.points < 2:
            raise UserError(f"points={self.points} must be at least 2")
        if not 0.5 < self.threshold <= 1:
            raise UserError(f"threshold={self.threshold:g} must be over 0.5, or no bound holds, and at most 1")


@dataclass(frozen=True, kw_only=True)
class StabilityResult(StudyResult):
    """A stability selection that is done.

    Attributes:
        found: which features are stable.
        clients: the similarity of the supports of clients' own solutions at the end of the region, (M, M), NaN where
            there is none; None where there are no such solutions.
    """

    options: StabilityOptions
    scores: StabilityScores
    client_similarity: np.ndarray | None

    @property
    def features(self) -> tuple[str, ...]:
        """What the features are called, d."""
        return feature_names(self.data.features, self.data.shape or self.data.x.shape[1:], self.data.voxel_grid)
