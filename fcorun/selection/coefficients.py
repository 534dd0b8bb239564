"""The coefficients of a path by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fcorun.datasets.base import FederatedData

INTERCEPT = "bias"


@dataclass(frozen=True)
class Coefficients:
    """The coefficients along a path, Q of them at P values.

    Attributes:
        parameter, feature, label: of each: the parameter it is an entry of, the feature's name or place, and its class,
            (Q,); an intercept has no feature, two classes or a regression no label.
        values: (P, Q).
    """

    parameter: list[str]
    feature: list[str]
    label: list[str]
    values: np.ndarray

    @property
    def names(self) -> list[str]:
        """What each is called in a picture."""
        told = zip(self.parameter, self.feature, self.label, strict=True)
        return [f"{feature or 'intercept'}{f', {label}' if label else ''}" for _, feature, label in told]

    @property
    def regularized(self) -> np.ndarray:
        """Whether each belongs to a feature, (Q,)."""
        return np.array([bool(feature) for feature in self.feature])


def linear(shapes: Mapping[str, tuple[int, ...]], data: FederatedData) -> bool:
    """Whether parameters of these shapes are a coefficient for each feature, or each feature and class."""
    outputs = len(data.classes) if len(data.classes) > 2 else 1
    found = {"weights"} <= set(shapes) <= {"weights", INTERCEPT}
    return found and math.prod(shapes["weights"]) == int(data.x.shape[1]) * outputs


def names_of(data: FederatedData) -> list[str]:
    """What each feature is called, (d,): by its name, or its place."""
    if data.features:
        return list(data.features)
    if data.shape:
        return [str(list(map(int, place))) for place in np.ndindex(*data.shape)]
    return [str(j) for j in range(data.x.shape[1])]


def coefficients(solution: dict[str, np.ndarray], data: FederatedData) -> Coefficients | None:
    """Those of a linear model, whose parameters have a leading axis P; None where entries belong to no feature."""
    count = int(data.x.shape[1])
    classes = [str(label) for label in data.classes] if len(data.classes) > 2 else [""]
    if not linear({name: each.shape[1:] for name, each in solution.items()}, data):
        return None
    names, points = names_of(data), len(solution["weights"])
    found = Coefficients(
        ["weights"] * (count * len(classes)),
        [name for name in names for _ in classes],
        classes * count,
        solution["weights"].reshape(points, -1),
    )
    if INTERCEPT not in solution:
        return found
    return Coefficients(
        found.parameter + [INTERCEPT] * len(classes),
        found.feature + [""] * len(classes),
        found.label + classes,
        np.hstack([found.values, solution[INTERCEPT].reshape(points, -1)]),
    )
