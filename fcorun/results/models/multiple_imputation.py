"""Multiple imputation of the gaps in a record's training rows, for intervals of its coefficients."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from threadpoolctl import threadpool_limits

from fcorun.base.errors import UserError, abbreviate, word
from fcorun.base.system.random_streams import random_stream
from fcorun.data.tables.columns import Column
from fcorun.data.tables.imputation.chained_equations import IncompleteColumn, impute
from fcorun.data.tables.imputation.training_cells import TrainingCells
from fcorun.data.tables.scaling import reciprocal_or_zero
from fcorun.methods.objectives.log_link import Gamma, Poisson
from fcorun.results.inference.sums import ModelRows
from fcorun.results.models.inference_problem import InferenceProblem

_MAX_LEVELS = 10  # of a column of text with gaps
_MAX_CLIENTS = 50  # with an intercept of their own in each model
_ROWS_PER_PARAMETER = 10  # with fewer rows, clients have no intercepts of their own
_LEAST_ROWS = 5  # more rows with a value than parameters


@dataclass(frozen=True, eq=False)
class GapModel:
    """The training rows of a record, with what their imputation needs.

    Attributes:
        problem: the record's problem, whose gaps are filled as in the record.
        columns: the columns with gaps.
        features: the features, numbers standardized, levels as 0 and 1, (N, d).
        mean, deviation: of each feature of ``features``: x in the units of the source is features * deviation + mean.
        others: the further regressors of each model, (N, q).
    """

    problem: InferenceProblem
    columns: tuple[IncompleteColumn, ...]
    features: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    others: np.ndarray

    @property
    def gap_counts(self) -> dict[str, int]:
        """The number of training rows with a gap in each column that has any."""
        return {column.name: int(column.is_gap.sum()) for column in self.columns}

    def describe_groups(self) -> str:
        """Return how the gaps of rows in groups are drawn, in words, or "" without groups of several rows."""
        group = self.problem.data.train.group
        if group is None or len(np.unique(group)) == len(group):
            return ""
        by_group = [f"'{column.name}'" for column in self.columns if column.group is not None]
        by_row = [f"'{column.name}'" for column in self.columns if column.group is None]
        sentences = []
        if by_group:
            sentences.append(f"gaps in {abbreviate(by_group)}, constant within each group of `data.group`, are drawn "
                             "once a group")  # fmt: skip
        if by_row:
            sentences.append(f"gaps in {abbreviate(by_row)} are drawn in each row, as if the rows of a group of "
                             "`data.group` were independent")  # fmt: skip
        return word("; ".join(sentences))

    def draw(self, imputations: int, seed: int) -> Iterator[ModelRows]:
        """Yield the rows with the gaps filled by each of ``imputations`` draws, which depend on the seed alone."""
        scaling = self.problem.data.features.scaling
        for k in range(imputations):
            rng = random_stream(seed, "infer", "imputation", k)
            with threadpool_limits(1):  # with several threads, products of so few columns take three times as long
                x = impute(self.features, self.columns, self.others, rng) * self.deviation + self.mean
            if scaling is not None:
                x = (x - scaling.mean) * scaling.factor
            filled = self.problem.rows.x.copy()
            for column in self.columns:
                filled[np.ix_(column.is_gap, column.features)] = x[np.ix_(column.is_gap, column.features)]
            yield self.problem.rows._replace(x=filled)


def prepare_imputations(problem: InferenceProblem, imputations: int) -> GapModel:
    """Return the model of the gaps of a record's training rows.

    The outcome, of counts and of positive targets its logarithm, its offset unless it is 0 and, with enough rows, an
    intercept of each client are regressors of every column. Numbers are standardized.
    Raises UserError for a record whose gaps cannot be imputed, or whose estimates cannot be pooled.
    """
    option = f"`imputations={imputations}`"
    cells = problem.data.features.cells
    encoding = problem.data.features.encoding
    reason = explain_no_imputation(problem)
    if not reason and problem.has_penalty:
        reason = word("coefficients that a penalty shrinks are not pooled, since Rubin's rules need estimates that "
                      "are normal around the truth: give a record with `reg=none`")  # fmt: skip
    if reason:
        raise UserError(f"{option}: {reason}")
    incomplete = [] if cells is None else [column for column in cells.columns if cells.find_gaps(column).any()]
    if cells is None or encoding is None or not incomplete:
        raise UserError(f"{option}: no column of the record has gaps in its training rows that the record has filled: "
                        "leave it out")  # fmt: skip
    x = problem.rows.x[:, : problem.n_features].copy()
    scaling = problem.data.features.scaling
    if scaling is not None:
        x = x * scaling.deviation + scaling.mean
    is_number = np.array([column.has_numbers for column in encoding.columns for _ in column.features])
    mean = np.where(is_number, x.mean(axis=0), 0.0)
    deviation = np.where(is_number & (x.std(axis=0) > 0), x.std(axis=0), 1.0)
    x = (x - mean) / deviation  # levels stay 0 and 1
    group = problem.data.train.group
    columns = [_share_values(_read_column(column, cells, x), x, group) for column in incomplete]
    y = problem.rows.y
    offset = problem.rows.offset
    if isinstance(problem.objective, Poisson):
        y = np.log(y + 0.5)
    elif isinstance(problem.objective, Gamma):
        y = np.log(y)
    others = np.column_stack([y, offset])[:, [True, bool(offset.any())]]
    others = (others - others.mean(axis=0)) * reciprocal_or_zero(others.std(axis=0))
    n_units = {column.name: int((~column.is_gap[column.unit_row]).sum()) for column in columns}
    n_rows = min(n_units.values())
    n_clients = problem.data.n_clients
    clients = np.empty((len(x), 0))
    if 1 < n_clients <= _MAX_CLIENTS:
        clients = (problem.data.train.known_client[:, None] == np.arange(n_clients)).astype(float)
    if n_rows >= _ROWS_PER_PARAMETER * (1 + x.shape[1] + others.shape[1] + clients.shape[1]):
        others = np.column_stack([others, clients])
    n_parameters = 1 + x.shape[1] + others.shape[1]
    for column in columns:
        n_values = n_units[column.name]
        if n_values < n_parameters + _LEAST_ROWS:
            of_groups = "" if column.group is None else " of groups"
            raise UserError(f"{option}: column '{column.name}' has {n_values} values{of_groups}, too few for an "
                            f"imputation model of {n_parameters} coefficients: leave it out of the record "
                            "(`data.ignore`)")  # fmt: skip
        if column.levels is not None and len(column.levels) > _MAX_LEVELS:
            raise UserError(f"{option}: column '{column.name}' has gaps and {len(column.levels)} levels, more than "
                            f"{_MAX_LEVELS}: join its rare levels")  # fmt: skip
    return GapModel(problem, tuple(columns), x, mean=mean, deviation=deviation, others=others)


def explain_no_imputation(problem: InferenceProblem) -> str:
    """Return why the gaps of a record, or its rows, do not fit multiple imputation, with the fix; "" if they do."""
    data = problem.experiment.data
    if problem.has_baseline_hazards:
        return word(
            "gaps are not imputed for times to events: give a record without the columns with gaps (`data.ignore`)"
        )
    if getattr(data, "missing", "") == "indicator":
        return word("`data.missing=indicator` makes a feature of each gap, which an imputed value has none of: give "
                "a record with `data.missing=mean` or median")  # fmt: skip
    if problem.data.features.standardized_by == "per_client":
        return word("`data.standardize=per_client` makes the scale depend on imputed values: give a record with "
                "pooled or none")  # fmt: skip
    if getattr(data, "encoding", None) is not None:
        return word("the gaps of the record were filled by the encoding of another one (`data.encoding`): give a "
                "record without it")  # fmt: skip
    cells = problem.data.features.cells
    for column in () if cells is None else cells.columns:
        if column.makes_curve and cells is not None and cells.find_gaps(column).any():
            return word(f"column '{column.name}' has gaps and is a spline, whose terms are not imputed: give a record "
                        "without `data.splines` of it")  # fmt: skip
    return ""


def _read_column(column: Column, cells: TrainingCells, x: np.ndarray) -> IncompleteColumn:
    """Return a column with gaps; numbers with two values, such as 0 and 1, are two levels."""
    first = cells.first_feature[column.name]
    features = np.arange(first, first + len(column.features))
    is_gap = cells.find_gaps(column)
    levels = column.features_of_levels()
    if levels is not None:
        return IncompleteColumn(column.name, features, is_gap, levels=levels, codes=cells.cells[column.name])
    values = x[:, first]
    distinct = np.unique(values[~is_gap])
    if len(distinct) != 2:
        return IncompleteColumn(column.name, features, is_gap)
    codes = (values == distinct[1]).astype(int)
    return IncompleteColumn(column.name, features, is_gap, levels=distinct[:, None], codes=codes)


def _share_values(column: IncompleteColumn, x: np.ndarray, group: np.ndarray | None) -> IncompleteColumn:
    """Return a column whose groups share their values if no group has two values, and any group has one twice."""
    if group is None:
        return column
    number = np.unique(group, return_inverse=True)[1]
    values = x[:, column.features[0]] if column.codes is None else column.codes
    value = np.unique(values, return_inverse=True)[1]
    known = number[~column.is_gap]
    n_groups = len(np.unique(known))
    n_values = len(np.unique(known * (value.max() + 1) + value[~column.is_gap]))
    if n_values > n_groups or n_groups == len(known):
        return column
    return replace(column, group=number)
