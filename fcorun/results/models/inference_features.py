"""The parameters that intervals are for: features without reference levels and constants, and their units."""

from dataclasses import dataclass, field

import numpy as np

from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.tables.scaling import Scaling
from fcorun.results.inference.model_rows import DerivativeSums, ModelRows
from fcorun.results.inference.sums import SquaredScores


@dataclass(frozen=True, eq=False)
class KeptParameters:
    """A choice of parameters, in which each prediction stays as it is.

    If the levels of a column add up to 1 in every row, the level with the most rows becomes the reference: its
    coefficient moves into the intercept or the baseline hazards, and those of the other levels become differences from
    it.

    Attributes:
        numbers: the numbers of the parameters that stay (q,).
        map: the parameters that stay as a function of all parameters (q, p).
        references: the reference of each level that is compared with one, as numbers of features.
    """

    numbers: np.ndarray
    map: np.ndarray
    references: dict[int, int] = field(default_factory=dict)

    def rows(self, rows: ModelRows) -> ModelRows:
        """Return rows with the features that stay."""
        return rows._replace(x=rows.x[:, self.numbers])

    def derivatives(self, sums: DerivativeSums) -> DerivativeSums:
        """Return the derivatives in the parameters that stay."""
        hessian = sums.hessian[np.ix_(self.numbers, self.numbers)]
        return DerivativeSums(sums.loss, sums.gradient[self.numbers], hessian)

    def scores(self, sums: SquaredScores) -> SquaredScores:
        """Return the scores in the parameters that stay."""
        return SquaredScores(sums.meat[np.ix_(self.numbers, self.numbers)], sums.count)


def choose_parameters(
    data: FederatedData,
    candidates: np.ndarray,
    level_rows: np.ndarray,
    *,
    has_intercept: bool,
    has_baseline_hazards: bool = False,
) -> KeptParameters:
    """Return the parameters that stay of ``candidates``, a mask of the features (d,).

    ``level_rows`` (d,) has the number of rows of each level.
    """
    n_features = len(candidates)
    n_parameters = n_features + has_intercept
    scaling = feature_scaling(data)
    mean = np.zeros(n_features) if scaling is None else scaling.mean
    factor = np.ones(n_features) if scaling is None else scaling.factor
    full_map = np.eye(n_parameters)
    references: dict[int, int] = {}
    for group in _level_groups(data) if has_intercept or has_baseline_hazards else []:
        if not candidates[group].all():
            continue
        reference = max(group, key=lambda level: level_rows[level])  # of equal numbers the first level
        others = [level for level in group if level != reference]
        references |= dict.fromkeys(others, reference)
        full_map[others, reference] = -factor[reference] / factor[others]
        if has_intercept:
            full_map[n_features, reference] = factor[reference] * (1 - mean[group].sum())
    stays = candidates.copy()
    stays[[*references.values()]] = False
    parameter_numbers = np.flatnonzero(np.append(stays, np.ones(int(has_intercept), bool)))
    return KeptParameters(parameter_numbers, full_map[parameter_numbers], references)


def feature_scaling(data: FederatedData) -> Scaling | None:
    """Return the standardization by all training rows, or None."""
    standardized = data.features.standardized
    return Scaling.from_dict(standardized) if standardized and standardized["by"] == "pooled" else None


def _level_groups(data: FederatedData) -> list[list[int]]:
    """Return the features of each column of text whose levels, a gap included, add up to 1 in every row."""
    encoding, standardized = data.features.encoding, data.features.standardized
    if encoding is None or (standardized and standardized["by"] != "pooled"):
        return []
    number = {name: index for index, name in enumerate(data.features.names)}
    groups = []
    for column in encoding.columns:
        if column.adds_up_to_one:
            groups.append([number[name] for name in column.features])
    return groups
