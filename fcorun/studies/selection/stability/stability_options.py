"""Options and result of ``fcorun stability``."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fcorun.base.config import Count, Positive
from fcorun.base.errors import UserError
from fcorun.base.records.record import Record
from fcorun.data.datasets.dataset import FederatedData
from fcorun.results.models.coefficients import feature_names
from fcorun.studies.selection.stability.bounds import Assumption
from fcorun.studies.selection.stability.stability_scores import StabilityScores
from fcorun.studies.selection.stability.units import SelectionUnits
from fcorun.studies.selection.study_result import StudyResult


@dataclass(frozen=True)
class StabilityOptions:
    """Options of ``fcorun stability``, beside a configuration.

    Attributes:
        subsamples: the number of halves, two in each pair.
        points: the number of values of the path, at least 2.
        by: "rows" halves the rows of each client, "clients" the clients.
        threshold: the share of the halves on which a stable feature is chosen, over 1/2.
        max_errors: the largest expected number of false selections; the path is followed as far as this bound holds.
        assumption: the assumption of the bound on the distribution of the share of pairs, or halves, that choose a
            feature by chance: "none", "unimodal", or "r_concave" (see ``fcorun.studies.selection.stability.bounds``).
        refit: whether a model without a penalty is fitted to the stable columns of a table.
        range: the least and the largest strength or radius; None: computed from the data.
    """

    subsamples: Count = 100
    points: Count = 20
    by: Literal["rows", "clients"] = "rows"
    threshold: float = 0.75
    max_errors: Positive = 1.0
    assumption: Assumption = "none"
    refit: bool = False
    range: list[float] | None = None

    def __post_init__(self):
        if self.subsamples % 2:
            raise UserError(f"subsamples={self.subsamples} come in pairs of halves: give an even number")
        if self.points < 2:
            raise UserError(f"points={self.points} must be at least 2")
        if not 0.5 < self.threshold <= 1:
            raise UserError(f"threshold={self.threshold:g} must be over 0.5, or no bound holds, and at most 1")


@dataclass(frozen=True, kw_only=True, repr=False)
class StabilityResult(StudyResult):
    """Result of a stability selection.

    Attributes:
        scores: the frequency of each unit, and the stable units.
        client_similarity: the Jaccard indices of the supports of the clients' own solutions at the end of the region,
            (M, M); NaN for a client without a solution; None if no client has a solution of its own.
        units: the features, or groups of features, that a half chooses or not.
        refit_columns: the columns of the refit; None without one.
        record: the refit; None without one, and while it is not computed.
    """

    options: StabilityOptions
    units: SelectionUnits
    scores: StabilityScores
    client_similarity: np.ndarray | None
    refit_columns: list[str] | None = None
    record: Record | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the d features."""
        return name_features(self.data)


def name_features(data: FederatedData) -> tuple[str, ...]:
    """Return the names of the d features of the data."""
    features = data.features
    return feature_names(features.names, features.shape or data.train.x.shape[1:], features.voxel_grid)
