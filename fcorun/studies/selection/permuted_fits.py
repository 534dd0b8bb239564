"""Fits of permuted targets to the folds and to all rows, by the runs of a selection or, much faster, directly."""

from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from fcorun.base.records.record import SHARED
from fcorun.data.datasets.subset import SubsetDataset, take_subset
from fcorun.engine.engine import CompiledPrograms
from fcorun.experiment.build import build_problem
from fcorun.methods.algorithms.algorithm import Baseline
from fcorun.methods.objectives.objective import LinearModel, is_linear_model
from fcorun.methods.problem.path_solver import PathRows, has_path_solver, solve_rows
from fcorun.methods.problem.penalty import Penalty
from fcorun.methods.problem.problem import Problem
from fcorun.methods.problem.solver import gather_rows
from fcorun.results.models.coefficients import nonzero_limits
from fcorun.studies.selection.path import RegularizationPath
from fcorun.studies.selection.select_stable import find_support
from fcorun.studies.selection.selection_result import ALL_ROWS
from fcorun.studies.selection.study import Study

# of the loss without features: at 1e-4 a row of 700 near the boundary changes its class, and here no score does
TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class PathOutputs:
    """The fits of P values of a path to the folds and to all rows of permuted targets.

    Attributes:
        outputs: the outputs out of fold, without offsets, (P, N), or (P, N, classes).
        support: the number of features with a coefficient on all rows, (P,).
    """

    outputs: Float[np.ndarray, "P N *classes"]
    support: Float[np.ndarray, " P"]


class PathFits:
    """Fits of any algorithm, by the runs of a selection; programs are compiled once for all permutations."""

    def __init__(self, study: Study):
        self.limits = nonzero_limits(study.experiment, study.data)
        self.has_support = is_linear_model(type(study.experiment.objective))
        self.programs: dict[str, CompiledPrograms] = {}

    def fit(self, study: Study, number: int, y: Shaped[np.ndarray, " N"]) -> PathOutputs:
        """Return the fits of permutation ``number``, with targets ``y``, to the path and the folds of ``study``."""
        path = study.path
        data = replace(study.data, train=replace(study.data.train, y=y))
        all_rows = np.ones(len(y), bool)
        subset = take_subset(data, all_rows, ~all_rows, restandardize=False)
        parent = f"{study.experiment.fingerprint} permutation {number} of {study.experiment.settings.seed}"
        experiment = replace(study.experiment, data=SubsetDataset(parent, subset))
        permuted = replace(study, experiment=experiment, data=data)
        outputs = None
        support = np.full(len(path.values), np.nan)
        names = list(study.subsets)
        for name, fit in zip(names, permuted.fit_subsets(names, self.programs), strict=True):
            if name != ALL_ROWS:
                held_out = fit.held_out[SHARED]
                if outputs is None:
                    outputs = np.empty((len(held_out), len(y), *held_out.shape[2:]))
                outputs[:, study.subsets[name].validation] = held_out
            elif self.has_support:
                support = find_support(fit, self.limits).solution["chosen"].sum(axis=1).astype(float)
        assert outputs is not None
        return PathOutputs(outputs, support)


@dataclass(frozen=True, eq=False)
class PermutedFold:
    """The rows of a fold as the path solver has them; only their targets change.

    Attributes:
        rows: the training rows, and ``train`` their numbers among all rows, (n,).
        x: the features of the held-out rows, with ones for an intercept, (p, V), and ``held_out`` their mask, (N,).
    """

    rows: PathRows
    train: Int[np.ndarray, " n"]
    x: Float[np.ndarray, "p V"]
    held_out: Bool[np.ndarray, " N"]


class DirectFits:
    """Fits of pooled linear models by the path solver, from features that are prepared once where folds stay."""

    def __init__(self, study: Study):
        self.others = PathFits(study)  # for what the path solver does not certify
        self.limits = self.others.limits
        with jax.enable_x64(True):
            self.problem = build_problem(study.experiment, study.data)
        self.target_type = study.data.target_task.target_dtype(np.float64)
        self.subsets = study.subsets
        self.folds = self._prepare_folds(study)

    def _prepare_folds(self, study: Study) -> dict[str, PermutedFold]:
        """Return the folds of a study by name."""
        folds = {}
        for name, masks in study.subsets.items():
            subset = study.take_subset(name)
            with jax.enable_x64(True):
                batch = gather_rows(subset.data, study.experiment.settings.client_weighting)
                rows = PathRows.of_batch(self.problem, batch)
            train = np.flatnonzero(masks.train)[np.asarray(batch.weight) > 0]
            held_out = subset.x[subset.validation_rows].astype(np.float64)
            x = np.ones((rows.x.shape[0], len(held_out)))
            x[: held_out.shape[1]] = held_out.T * self.problem.scale
            folds[name] = PermutedFold(rows, train, x, masks.validation)
        return folds

    @staticmethod
    def applies_to(study: Study) -> bool:
        """Return whether the path solver fits this algorithm and objective, and may certify its fits with this psi."""
        experiment = study.experiment
        algo = experiment.algo
        if not isinstance(algo, Baseline) or algo.picks_client or experiment.reg.per_client:
            return False
        with jax.enable_x64(True):
            problem = build_problem(experiment, study.data)
            batch = gather_rows(study.data, experiment.settings.client_weighting)
            if experiment.objective.has_client_losses or not has_path_solver(problem, batch):
                return False
        has_intercept = "bias" in problem.shapes
        penalties = _list_penalties(problem, study.path, batch.x.shape[1])
        return all(penalty.can_be_certified(has_intercept) for penalty in penalties)

    def fit(self, study: Study, number: int, y: Shaped[np.ndarray, " N"]) -> PathOutputs:
        """Return the fits of permutation ``number``, with targets ``y``, to the path and the folds of ``study``."""
        folds = self.folds if study.subsets is self.subsets else self._prepare_folds(study)
        objective = self.problem.objective
        assert isinstance(objective, LinearModel)
        d = len(self.limits)
        has_intercept = "bias" in self.problem.shapes
        penalties = _list_penalties(self.problem, study.path, d)
        outputs = np.empty((len(penalties), len(y)))
        support = np.empty(len(penalties))
        y = y.astype(self.target_type)
        for name, fold in folds.items():
            rows = fold.rows._replace(y=y[fold.train])
            points = list(solve_rows(objective, rows, has_intercept, penalties, TOLERANCE))
            if len(points) < len(penalties) or not all(point.certified for point in points):
                return self.others.fit(study, number, y)
            theta = np.stack([point.theta for point in points])
            if name == ALL_ROWS:
                support[:] = (np.abs(theta[:, :d]) > self.limits).sum(axis=1)
            else:
                outputs[:, fold.held_out] = theta @ fold.x
        return PathOutputs(outputs, support)


def _list_penalties(problem: Problem, path: RegularizationPath, n_features: int) -> list[Penalty]:
    """Return the penalty of each value of a path."""
    reg = problem.regularizer
    problems = [replace(problem, regularizer=reg.with_value(path.param_name, value)) for value in path.values]
    return [Penalty.of_problem(of_value, n_features) for of_value in problems]
