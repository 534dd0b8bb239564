"""The units of a stability selection: features, or groups of features that are chosen together."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from fcorun.methods.regularizers.regularizer import Regularizer


@dataclass(frozen=True, eq=False)
class SelectionUnits:
    """The units that a half chooses or not: d features, or U groups of features.

    Attributes:
        names: the names of the U units.
        unit_of: the unit of each feature, (d,).
        unpenalized: the units without a penalty, (U,).
        are_groups: whether the regularizer keeps or drops the features of a unit together.
    """

    names: Sequence[str]
    unit_of: Int[np.ndarray, " d"]
    unpenalized: Bool[np.ndarray, " U"]
    are_groups: bool

    @classmethod
    def of_regularizer(cls, reg: Regularizer, feature_names: Sequence[str]) -> "SelectionUnits":
        """Return the groups of a regularizer that was attached to named groups; the features for any other."""
        factors = reg.factors or {}
        is_free = np.array([factors.get(str(j)) == 0 for j in range(len(feature_names))])
        group_of = getattr(reg, "group_of", None)
        if group_of is None:
            return cls(feature_names, np.arange(len(feature_names)), is_free, are_groups=False)
        names: Sequence[str] = reg.names  # type: ignore[attr-defined]
        unpenalized = np.bincount(group_of, is_free, len(names)) > 0  # all features of a group have one factor
        return cls(names, group_of, unpenalized, are_groups=True)

    @property
    def noun(self) -> str:
        """The units in words."""
        return "groups of features" if self.are_groups else "features"

    def merge(self, chosen: Bool[np.ndarray, "*n d"]) -> Bool[np.ndarray, "*n U"]:
        """Return which units are chosen: those with a chosen feature."""
        if not self.are_groups:
            return chosen
        return np.stack([chosen[..., self.unit_of == unit].any(axis=-1) for unit in range(len(self.names))], axis=-1)
