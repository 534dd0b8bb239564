"""Multiple imputation by chained equations (van Buuren and Groothuis-Oudshoorn, J. Stat. Softw. 2011).

Each column with gaps has a model of its values given all other columns and the outcome. A cycle draws, column by
column, the parameters of the model from their posterior distribution, and then the missing values given these
parameters. Numbers have a linear model with normal noise (Rubin, Multiple Imputation for Nonresponse in Surveys, 1987,
page 167), levels a softmax model, whose posterior distribution is taken as normal around its mode. All that a model
takes from rows are sums over rows: X'X, X'y and y'y, or the gradient and the Hessian of the softmax losses.

Coefficients have a normal prior distribution with mean 0, which counts as a tenth of a row: it decides about what no
row tells, such as the coefficient of a level in whose rows the column is always missing. The prior of the intercept is
flat.

Rows that share a value, such as the sex of a patient with several visits, are one unit: the model of such a column has
a row for each unit, with the means of the regressors, and draws once for each unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

CYCLES = 10
_PRIOR_ROWS = 0.1
_NEWTON_STEPS = 25
_SMALL_STEP = 1e-8


@dataclass(frozen=True, eq=False)
class IncompleteColumn:
    """A column with gaps.

    Attributes:
        name: the name of the column.
        features: the positions of its features, (f,).
        is_gap: the mask of its gaps, (N,).
        levels: the features of each level, (L, f), in the units of the features; None: numbers.
        codes: the number of each row's level, anything in gaps, (N,); None: numbers.
        group: the number of the group of each row, from 0, (N,), where the rows of a group share one value; else None.
    """

    name: str
    features: np.ndarray
    is_gap: np.ndarray
    levels: np.ndarray | None = None
    codes: np.ndarray | None = None
    group: np.ndarray | None = None

    @cached_property
    def unit(self) -> Int[np.ndarray, " N"]:
        """The number of the unit of each row, which has one value: its group, or the row itself."""
        if self.group is None:
            return np.arange(len(self.is_gap))
        return self.group

    @cached_property
    def unit_row(self) -> Int[np.ndarray, " U"]:
        """A row of each unit, one with a value if the unit has any."""
        values_first = np.argsort(self.is_gap, kind="stable")
        return values_first[np.unique(self.unit[values_first], return_index=True)[1]]

    def average(self, values: Float[np.ndarray, "N k"]) -> Float[np.ndarray, "U k"]:
        """Return the mean of each unit's rows."""
        if self.group is None:
            return values
        sums = np.zeros((len(self.unit_row), values.shape[1]))
        np.add.at(sums, self.unit, values)
        return sums / np.bincount(self.unit)[:, None]

    def fill(self, x: Float[np.ndarray, "N d"], drawn: Float[np.ndarray, "u f"]) -> None:
        """Write the values of units into the gaps of ``x``; ``drawn`` are those of the units without a value."""
        values = x[np.ix_(self.unit_row, self.features)]
        values[self.is_gap[self.unit_row]] = drawn
        x[np.ix_(self.is_gap, self.features)] = values[self.unit[self.is_gap]]


def impute(
    x: Float[np.ndarray, "N d"],
    columns: Sequence[IncompleteColumn],
    others: Float[np.ndarray, "N q"],
    rng: np.random.Generator,
    cycles: int = CYCLES,
) -> Float[np.ndarray, "N d"]:
    """Return features with drawn values in place of all gaps.

    Args:
        x: the features; those of gaps may have any values. Numbers should have a standard deviation of about 1.
        columns: the columns with gaps.
        others: further regressors of each model, such as the outcome, without a column of ones.
        rng: the random numbers.
        cycles: the number of cycles, the first of which begins at values drawn from those of other rows.
    """
    x = x.copy()
    ordered = sorted(columns, key=lambda column: int(column.is_gap.sum()))
    for column in ordered:
        is_missing = column.is_gap[column.unit_row]
        donors = rng.choice(column.unit_row[~is_missing], int(is_missing.sum()))
        column.fill(x, x[np.ix_(donors, column.features)])
    for _ in range(cycles):
        for column in ordered:
            regressors = np.column_stack([np.ones(len(x)), np.delete(x, column.features, axis=1), others])
            design = column.average(regressors)
            is_missing = column.is_gap[column.unit_row]
            observed = design[~is_missing]
            missing = design[is_missing]
            rows = column.unit_row[~is_missing]
            if column.levels is None:
                column.fill(x, draw_numbers(observed, x[rows, column.features[0]], missing, rng)[:, None])
            else:
                assert column.codes is not None
                codes = draw_levels(observed, column.codes[rows], len(column.levels), missing, rng)
                column.fill(x, column.levels[codes])
    return x


def draw_numbers(
    design: Float[np.ndarray, "n p"],
    values: Float[np.ndarray, " n"],
    missing: Float[np.ndarray, "k p"],
    rng: np.random.Generator,
) -> Float[np.ndarray, " k"]:
    """Draw missing numbers by a linear model that is fit to the observed ``values``.

    ``design`` and ``missing`` have the regressors of rows with and without a value, the first of which is 1.
    """
    gram = design.T @ design
    products = design.T @ values
    squares = float(values @ values)
    n_rows, n_parameters = design.shape
    precision = gram + np.diag(_prior(n_parameters))
    mode = np.linalg.solve(precision, products)
    residual = max(squares - 2 * mode @ products + mode @ gram @ mode, 0.0)
    deviation = np.sqrt(residual / rng.chisquare(n_rows - n_parameters))
    parameters = mode + deviation * _draw_normal(precision, rng)
    return missing @ parameters + deviation * rng.standard_normal(len(missing))


def draw_levels(
    design: Float[np.ndarray, "n p"],
    codes: Int[np.ndarray, " n"],
    n_levels: int,
    missing: Float[np.ndarray, "k p"],
    rng: np.random.Generator,
) -> Int[np.ndarray, " k"]:
    """Draw missing levels, numbers from 0, by a softmax model of the observed ``codes``; arguments as ``draw_numbers``.

    The first level is the reference. The parameters are normal around their most probable values.
    """
    n_parameters = design.shape[1]
    prior = np.tile(_prior(n_parameters), n_levels - 1)
    is_level = codes[:, None] == np.arange(1, n_levels)
    mode = np.zeros(len(prior))
    precision = np.diag(prior)
    for _ in range(_NEWTON_STEPS):
        probability = _probabilities(design, mode)[:, 1:]
        gradient = ((probability - is_level).T @ design).ravel()
        hessian = np.zeros((n_levels - 1, n_parameters, n_levels - 1, n_parameters))
        for a in range(n_levels - 1):
            for b in range(a + 1):
                weight = probability[:, a] * ((a == b) - probability[:, b])
                hessian[a, :, b] = (design.T * weight) @ design
                hessian[b, :, a] = hessian[a, :, b].T
        precision = hessian.reshape(len(mode), len(mode)) + np.diag(prior)
        step = np.linalg.solve(precision, gradient + prior * mode)
        step *= min(1.0, 5 / max(np.abs(design @ step.reshape(-1, n_parameters).T).max(), 1e-12))  # as far as is safe
        mode = mode - step
        if np.abs(step).max() < _SMALL_STEP:
            break
    parameters = mode + _draw_normal(precision, rng)
    cumulative = np.cumsum(_probabilities(missing, parameters), axis=1)
    is_beyond = rng.random(len(missing))[:, None] > cumulative[:, :-1]
    return is_beyond.sum(axis=1)


def _prior(n_parameters: int) -> Float[np.ndarray, " p"]:
    """Return the precision of the prior distribution of each coefficient; that of an intercept is next to nothing."""
    prior = np.full(n_parameters, _PRIOR_ROWS)
    prior[0] = 1e-8
    return prior


def _draw_normal(precision: Float[np.ndarray, "p p"], rng: np.random.Generator) -> Float[np.ndarray, " p"]:
    """Draw from the normal distribution with mean 0 and this inverse of its covariance."""
    factor = np.linalg.cholesky(precision)
    return np.linalg.solve(factor.T, rng.standard_normal(len(precision)))


def _probabilities(design: Float[np.ndarray, "n p"], parameters: Float[np.ndarray, " q"]) -> Float[np.ndarray, "n L"]:
    """Return the probability of each level, the reference first."""
    from scipy.special import softmax

    score = np.column_stack([np.zeros(len(design)), design @ parameters.reshape(-1, design.shape[1]).T])
    return softmax(score, axis=1)
