"""Separation: features of which a fit without a penalty has no finite coefficient, found by linear programs."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Shaped

from fcorun.methods.objectives.objective import LinearModel, Margins

_MAX_SIZE = 2**24  # entries of the margins
_MAX_PARAMETERS = 300  # a program takes a second, and eight times as long with twice as many
_TOLERANCE = 2e-6  # of a margin, in units of the largest entry of a column: above rounding in float32
_RANK_TOLERANCE = 1e-11  # of eigenvalues and pivots of a matrix of products
_MAX_ALONE = 100  # features that are tried one by one
_N_CONSTRAINTS = 1000  # margins that a linear program begins with, and that a further one adds


@dataclass(frozen=True)
class Separation:
    """Coefficients whose size lowers the loss without end.

    Attributes:
        features: the numbers of the features that have them; those first that separate most alone, where few have them.
        n_overlapping: the number of margins that are 0 along all such directions: 0 where the separation is perfect;
            None where features were looked at one by one.
    """

    features: Int[np.ndarray, " k"]
    n_overlapping: int | None

    @property
    def kind(self) -> str:
        """Return what the separation of classes is called: perfect or quasi-complete, where that is known."""
        if self.n_overlapping is None:
            return "separation"
        return "quasi-complete separation" if self.n_overlapping else "perfect separation"

    @property
    def limits(self) -> str:
        """Return words in brackets, after a space, on how features were looked at; empty if all were, together."""
        return " (of features looked at one by one)" if self.n_overlapping is None else ""


def find_separation(
    objective: LinearModel, x: Float[np.ndarray, "n d"], y: Shaped[np.ndarray, " n"], client: Int[np.ndarray, " n"]
) -> Separation | None:
    """Return the coefficients without a finite optimum if nothing penalizes them; None if all are finite.

    A linear program finds directions along which losses fall and none rises (Konis, thesis, Oxford 2007). The rows that
    no direction moves determine the finite coefficients (Correia, Guimaraes and Zylkin, arXiv:1903.01633). Of
    collinear features, the one that most rows have at its largest value counts as the reference. For more than 300
    parameters, intercepts among them, or margins of more than 2**24 entries, each feature is looked at alone.
    """
    if type(objective).margins is LinearModel.margins:  # which separates nothing, as with numbers
        return None
    n_classes = 0
    if hasattr(objective, "probabilities"):
        classes, y = np.unique(y, return_inverse=True)
        n_classes = len(classes)
    shapes = objective.shapes(x.shape[1:], n_classes)
    outputs = math.prod(shapes["weights"][1:])
    n_parameters = sum(math.prod(shape) for shape in shapes.values())
    if objective.client_intercepts:
        n_parameters += len(np.unique(client))
    if len(y) * outputs * n_parameters > _MAX_SIZE or n_parameters > _MAX_PARAMETERS:
        features = _find_separating_alone(objective, x, y, client, outputs)
        return Separation(features, None) if len(features) else None
    x = x.astype(np.float64)
    n_at_largest = np.repeat((x == x.max(axis=0)).sum(axis=0), outputs)
    if objective.intercept:
        x -= x.min(axis=0)  # indicators are 0 and a number, and constants are 0
    margins = objective.margins(x, y, client)
    rows = np.concatenate(margins)
    largest = np.maximum(rows.max(axis=0, initial=0), -rows.min(axis=0, initial=0))
    rows /= np.where(largest > 0, largest, 1)
    falling, fixed = np.split(rows, [len(margins.falling)])
    directions = falling @ _null_space(fixed)
    overlapping = np.arange(len(falling))
    while len(overlapping):
        falls = _find_falling(directions[overlapping])
        if not falls.any():
            break
        overlapping = overlapping[~falls]
    if len(overlapping) == len(falling):
        return None
    order = np.concatenate([np.arange(len(n_at_largest), len(largest)), np.argsort(n_at_largest, kind="stable")])
    columns = _independent_columns(rows, order)
    undetermined = _null_space(np.concatenate([falling[overlapping], fixed])[:, columns])
    is_infinite = np.zeros(len(largest), bool)
    is_infinite[columns] = (np.abs(undetermined) > _TOLERANCE).any(axis=1)
    features = np.flatnonzero(is_infinite[: len(n_at_largest)].reshape(-1, outputs).any(axis=1))
    if 1 < len(features) <= _MAX_ALONE:
        alone = [find_separation(objective, x[:, [k]], y, client) for k in features]
        n_left = [len(falling) if found is None else found.n_overlapping or 0 for found in alone]
        features = features[np.argsort(n_left, kind="stable")]
    return Separation(features, len(overlapping)) if len(features) else None


def _find_separating_alone(
    objective: LinearModel,
    x: Float[np.ndarray, "n d"],
    y: Shaped[np.ndarray, " n"],
    client: Int[np.ndarray, " n"],
    outputs: int,
) -> Int[np.ndarray, " k"]:
    """Return the features that separate by themselves, next to intercepts; of several outputs, a class from all others.

    A margin has at most one other parameter, an intercept, by the factor 1 or -1. A value of each exists at which no
    margin is negative exactly if the least slope of the margins that it raises is not below the largest of the others.
    """
    targets = [y]
    if outputs > 1:
        targets = [(y == k).astype(int) for k in range(y.max() + 1)]
    groups = [np.arange(len(y))]
    if objective.client_intercepts:
        order = np.argsort(client, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(client[order])) + 1)
    known = objective.with_known_intercepts
    n_columns = max(1, _MAX_SIZE // len(y))
    found = []
    for first in range(0, x.shape[1], n_columns):
        block = x[:, first : first + n_columns]
        is_found = np.zeros(block.shape[1], bool)
        for target in targets:
            rises = np.ones(block.shape[1], bool)
            falls = rises.copy()
            for rows in groups:
                margins = known.margins(block[rows], target[rows], client[rows])
                can_rise, can_fall = _find_possible_signs(margins, block.shape[1])
                rises &= can_rise
                falls &= can_fall
            is_found |= rises != falls  # a constant may do both
        found.append(first + np.flatnonzero(is_found))
    return np.concatenate(found)


def _find_possible_signs(margins: Margins, n_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which features (d,) can have a positive coefficient, alone, without a loss that rises; and a negative."""
    rows = np.concatenate([*margins, -margins.fixed])
    slopes = rows[:, :n_features]
    others = rows[:, n_features:]
    is_free = ~others.any(axis=1)
    can_rise = np.asarray((slopes[is_free] >= 0).all(axis=0))
    can_fall = np.asarray((slopes[is_free] <= 0).all(axis=0))
    for other in others.T:
        raised = slopes[other > 0]
        lowered = -slopes[other < 0]
        can_rise &= raised.min(axis=0, initial=np.inf) >= lowered.max(axis=0, initial=-np.inf)
        can_fall &= raised.max(axis=0, initial=-np.inf) <= lowered.min(axis=0, initial=np.inf)
    return can_rise, can_fall


def _find_falling(margins: np.ndarray) -> np.ndarray:
    """Return which margins (n, p) are positive along the direction of the largest sum without a negative one, (n,).

    The entries of the direction are at most 1. Margins become constraints of the linear program as they are violated,
    so that few of many rows do.
    """
    from scipy.optimize import linprog  # takes long to import, and few runs have no penalty

    if not margins.any():
        return np.zeros(len(margins), bool)
    is_constraint = np.zeros(len(margins), bool)
    is_constraint[np.linspace(0, len(margins) - 1, _N_CONSTRAINTS).astype(int)] = True
    while True:
        program = linprog(
            c=-margins.sum(axis=0),
            A_ub=-margins[is_constraint],
            b_ub=np.zeros(is_constraint.sum()),
            bounds=(-1, 1),
            options={"primal_feasibility_tolerance": _TOLERANCE / 2},
        )
        if program.x is None or np.abs(program.x).max() < 0.5:  # a direction is as long as its bounds, or rounding
            return np.zeros(len(margins), bool)
        along = margins @ program.x
        violated = np.flatnonzero((along < -_TOLERANCE) & ~is_constraint)
        if not len(violated):
            return along > _TOLERANCE
        is_constraint[violated[np.argsort(along[violated])[:_N_CONSTRAINTS]]] = True


def _null_space(rows: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the null space of rows (n, p), (p, k)."""
    values, vectors = np.linalg.eigh(rows.T @ rows)
    return vectors[:, values <= _RANK_TOLERANCE * values.max(initial=0)]


def _independent_columns(rows: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the columns of rows (n, p) that are no combination of those before them in the order (p,)."""
    products = rows.T @ rows
    squares = products.diagonal().copy()
    kept = []
    for column in order:
        if products[column, column] > _RANK_TOLERANCE * squares[column]:
            kept.append(column)
            products = products - np.outer(products[:, column], products[column]) / products[column, column]
    return np.array(kept, int)
