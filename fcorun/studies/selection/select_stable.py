"""Stability selection: a path on random halves of the rows, and the features that most halves choose."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fcorun.base.errors import UserError, word
from fcorun.base.metrics import MORE_ROUNDS_ADVICE
from fcorun.base.system.random_streams import random_stream
from fcorun.data.datasets.dataset import FederatedData
from fcorun.data.datasets.table import Table
from fcorun.engine.device_rows import client_row_table
from fcorun.experiment.build import build_problem
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.prepare import prepare, replace_plugins
from fcorun.experiment.requirements import are_convex
from fcorun.methods.objectives.objective import is_linear_model
from fcorun.methods.problem import solver
from fcorun.methods.problem.problem import Batch
from fcorun.methods.regularizers.regularizer import NoRegularizer
from fcorun.results.models.coefficients import nonzero_limits
from fcorun.studies.selection.fitting import PathFit, find_runs
from fcorun.studies.selection.folds import SubsetMasks, check_global_model, check_subsets, draw_halves
from fcorun.studies.selection.path import RegularizationPath, build_path
from fcorun.studies.selection.stability import (
    SelectionUnits,
    StabilityOptions,
    StabilityResult,
    StabilityScores,
    compute_jaccard,
    name_features,
    score_features,
)
from fcorun.studies.selection.study import (
    Study,
    StudyPlan,
    describe_study,
    prepare_study,
    warn_few_evaluations,
    warn_unconverged,
)

MIN_RATIO = 0.05  # of the least strength to the largest: halves that choose many features say little


@dataclass(frozen=True, kw_only=True)
class StabilityPlan(StudyPlan[StabilityResult]):
    """A stability selection that is ready to run; ``experiment`` is the experiment as it was given."""

    options: StabilityOptions

    def reduce_fit(self, name: str, fit: PathFit) -> PathFit:
        """Replace the solution of a fit by its support."""
        return find_support(fit, nonzero_limits(self.study.experiment, self.study.data))

    def conclude(self, fits: dict[str, PathFit]) -> StabilityResult:
        """Score the features by the fits of the halves, compare the clients, and warn about both.

        Values at which a run diverged are left out. Raises UserError if there is one at each value.
        """
        study, experiment, data, options = self.study, self.study.experiment, self.study.data, self.options
        diverged = find_runs(fits, "diverged").any(axis=0)
        if diverged.all():
            raise UserError(
                "at each value of the path a half diverged: a smaller `algo.client_lr` or `algo.server_lr` may help"
            )
        path = replace(study.path, values=study.path.values[~diverged])
        chosen = np.stack([fit.solution["chosen"] for fit in fits.values()])[:, ~diverged]
        warnings = []
        if diverged.any():
            warnings.append(
                word(
                    f"diverged: runs at {diverged.sum()} of {diverged.size} values of {path.param_name}, left "
                    "out; smaller rates of `algo` may help"
                )
            )
        falling_advice = f"supports are those after {experiment.settings.rounds} rounds, not of the optimum: "
        warnings += warn_unconverged(fits, falling_advice + MORE_ROUNDS_ADVICE)
        warnings += warn_few_evaluations(experiment)
        units = SelectionUnits.of_regularizer(build_problem(experiment, data).regularizer, name_features(data))
        scores = score_features(
            units.merge(chosen), options.threshold, options.max_errors, units.unpenalized, options.assumption
        )
        similarity, client_warnings = _compare_clients(experiment, data, path, scores, units)
        warnings += client_warnings
        if scores.bound[0] > options.max_errors:
            warnings.append(
                word(
                    f"already the first value of the path chooses {scores.q[0]:.3g} features on a half, too many for "
                    f"`max_errors={options.max_errors:g}`: begin sooner by range, allow more errors, or take a psi "
                    "that makes coefficients 0"
                )
            )
        columns = None
        if options.refit:
            is_refit_feature = (scores.stable | scores.unpenalized)[units.unit_of]
            columns, reason = _choose_refit_columns(data, is_refit_feature, bool(scores.stable.any()))
            warnings += reason
        return StabilityResult(
            study=study,
            path=path,
            fits=fits,
            warnings=warnings,
            options=options,
            scores=scores,
            client_similarity=similarity,
            units=units,
            refit_columns=columns,
        )

    def apply(self, result: StabilityResult) -> PreparedExperiment | None:
        """Return the experiment of the stable columns without a penalty; None if no model is fitted to them."""
        return None if result.refit_columns is None else build_refit(self.experiment, result.refit_columns)


def find_support(fit: PathFit, limits: Float[np.ndarray, " d"]) -> PathFit:
    """Replace the solution of a fit by its support, (P, d): the features with a coefficient, of any class.

    ``limits`` are the magnitudes above which coefficients count as nonzero.
    """
    weights = np.abs(fit.solution["weights"]).reshape(len(fit.end_state), len(limits), -1)
    return replace(fit, metrics={}, solution={"chosen": (weights > limits[:, None]).any(axis=2)})


def plan_stability(
    config: Mapping[str, Any] | PreparedExperiment, options: StabilityOptions, out: str | Path | None = None
) -> StabilityPlan:
    """Check a stability selection, and prepare its halves and its path, without writing anything. Raises UserError.

    Fits in the folder, by default outputs/DATA/stability-ALGO-HASH, are not computed again.
    """
    given = prepare(config)
    prepared = prepare_study(given, "stability")
    experiment, data = prepared.experiment, prepared.data
    if not is_linear_model(type(experiment.objective)):
        raise UserError(
            f"`objective={experiment.names['objective']}` has no coefficient for each feature, which could be chosen "
            "or not: take `objective=least_squares, logistic`, or another linear model"
        )
    if options.refit:
        check_refit(given, data)
    path = build_path(experiment, data, options.points, options.range, MIN_RATIO)
    rng = random_stream(experiment.settings.seed, "stability", "halves")
    masks = list(draw_halves(data, options.subsamples // 2, options.by, rng))
    no_rows = np.zeros(len(data.train.y), bool)
    halves = {f"half{s + 1}": SubsetMasks(train=mask, validation=no_rows) for s, mask in enumerate(masks)}
    check_subsets(experiment, data, halves, options.by)
    check_global_model(experiment, "stability looks at one of all: choose another `algo`")
    fit_options = {name: getattr(options, name) for name in ("subsamples", "points", "by", "range")}
    study = Study.create(
        prepared,
        path,
        halves,
        dependencies=[experiment.settings.cutoff, fit_options],
        row_arrays=masks,
        out=out,
    )
    notes = []
    if data.train.fold is not None:
        notes.append(word("`data.fold` defines the folds of `fcorun select`, and has no effect on halves"))
    n_distinct = len({mask.tobytes() for mask in masks})
    if n_distinct < len(masks) and options.by == "clients":
        notes.append(
            f"{n_distinct} of these halves are distinct: each pair leaves one of {len(data.train.sizes)} clients out"
        )
    messages = describe_study(study, f"{options.subsamples} halves", options.by, "take no part", notes)
    return StabilityPlan(options=options, experiment=given, study=study, messages=messages)


def _compare_clients(
    experiment: PreparedExperiment,
    data: FederatedData,
    path: RegularizationPath,
    scores: StabilityScores,
    units: SelectionUnits,
) -> tuple[np.ndarray | None, list[str]]:
    """Return the similarity of the clients' own supports at the end of the region, (M, M), and warnings about it."""
    if len(data.train.sizes) < 2:
        return None, []
    if not are_convex(experiment.objective, experiment.reg):
        return None, ["clients' own solutions are not known: the problem is not convex, or not declared to be"]
    value = path.values[scores.region_length - 1]
    supports, is_valid = fit_client_supports(experiment, data, path.param_name, value)
    supports = units.merge(supports)[:, ~units.unpenalized]
    similarity = compute_jaccard(supports)
    similarity[~is_valid] = np.nan
    similarity[:, ~is_valid] = np.nan
    warnings = []
    if not is_valid.all():
        warnings.append(
            f"{(~is_valid).sum()} of {len(is_valid)} clients have no solution of their own: rows of one class, or none "
            "that the solver certified"
        )
    return similarity, warnings


def check_refit(experiment: PreparedExperiment, data: FederatedData) -> None:
    """Raise UserError if the data have no columns to leave out, or the experiment needs a penalty."""
    if not isinstance(experiment.data, Table) or data.features.encoding is None:
        raise UserError(
            f"`refit=true` leaves out columns by their names, and `data={experiment.names['data']}` has no named "
            "columns: leave refit out, or give a table with named columns"
        )
    for option in ("encoding", "scaling"):
        if getattr(experiment.data, option) is not None:
            raise UserError(
                f"`refit=true` drops columns, and the record of `data.{option}` fixes them: leave one of the two out"
            )
    build_refit(experiment, [column.name for column in data.features.encoding.columns])


def build_refit(experiment: PreparedExperiment, columns: list[str]) -> PreparedExperiment:
    """Return the experiment with these columns as the only features, and without a penalty. Raises UserError."""
    assert isinstance(experiment.data, Table)
    splines = {name: n_knots for name, n_knots in (experiment.data.splines or {}).items() if name in columns}
    data = replace(experiment.data, only=columns, splines=splines or None)
    return replace_plugins(experiment, experiment.settings, {"reg": "none"}, data=data, reg=NoRegularizer())


def _choose_refit_columns(
    data: FederatedData, is_refit_feature: np.ndarray, any_stable: bool
) -> tuple[list[str] | None, list[str]]:
    """Return the columns with features of the mask, (d,), in the order of the table, and why no model is fitted."""
    encoding = data.features.encoding
    if encoding is None or not any_stable:
        return None, [word("`refit=true`: no model is fitted, since nothing is stable")]
    names = {encoding.column_of_feature[name] for name in compress(name_features(data), is_refit_feature)}
    columns = [column for column in encoding.columns if column.name in names]
    n_features = sum(len(column.features) for column in columns)
    n_rows = len(data.train)
    if n_features >= n_rows:
        return None, [
            word(
                f"`refit=true`: no model is fitted, since {n_rows} rows do not determine {n_features} coefficients "
                "without a penalty: a larger threshold leaves fewer columns"
            )
        ]
    return [column.name for column in columns], []


_TOLERANCE = 1e-6
_ITERATIONS = 5000


def fit_client_supports(
    experiment: PreparedExperiment, data: FederatedData, param_name: str, value: float
) -> tuple[np.ndarray, np.ndarray]:
    """Solve the problem of each client alone; return the supports, (M, d), and which of them are valid, (M,).

    The solver minimizes the regularized loss of the client's rows, with their weights and offsets, in float64 at this
    strength or radius. A support is not valid if the rows with weight are of one class only, or if the solver did not
    certify its solution.
    """
    supports = []
    is_valid = []
    train = data.train
    n_features = train.x.shape[1]
    limits = nonzero_limits(experiment, data)[:, None]
    with jax.enable_x64(True):
        problem = build_problem(experiment, data)
        reg = problem.regularizer.with_value(param_name, value)
        compiled = solver.compile_programs(replace(problem, regularizer=reg), n_features)
        for m, padded_rows in enumerate(client_row_table(train.offsets)):  # padded with -1 to one length
            is_row = padded_rows >= 0
            rows = np.maximum(padded_rows, 0)
            x = train.x[rows].astype(np.float64) if train.x.dtype.kind == "f" else train.x[rows]
            y = train.y[rows].astype(data.target_task.target_dtype(np.float64))
            weight = is_row / is_row.sum() * (1 if train.relative_weight is None else train.relative_weight[rows])
            offset = None if train.offset is None else jnp.asarray(train.offset[rows], jnp.float64)
            batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.asarray(weight), offset=offset)
            client_numbers = {name: float(values[m]) for name, values in (reg.per_client or {}).items()}
            client_problem = replace(problem, regularizer=replace(reg, **client_numbers))
            for iterate in solver.minimize(client_problem, batch, _TOLERANCE, _ITERATIONS, compiled=compiled):  # noqa: B007
                pass
            weights = np.abs(np.asarray(iterate.w["weights"])).reshape(n_features, -1)
            supports.append((weights > limits).any(axis=1))
            has_classes = not data.classes or len(np.unique(train.y[padded_rows[weight > 0]])) > 1
            is_valid.append(iterate.certified and has_classes)
    return np.array(supports), np.array(is_valid)
