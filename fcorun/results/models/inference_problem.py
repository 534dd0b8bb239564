"""The problem of a record, from its data as they are now, for intervals of its coefficients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import Index
from fcorun.base.errors import UserError, word
from fcorun.base.gone_options import unused_options
from fcorun.base.records.formats import READ_ERRORS
from fcorun.base.records.record import CLIENT_INTERCEPTS, Record, is_refit_of_adaptive_lasso, is_refit_of_stability
from fcorun.data.datasets.dataset import Dataset, FederatedData
from fcorun.data.datasets.in_memory import InMemoryTable
from fcorun.data.datasets.sites import Sites
from fcorun.data.tables.column_roles import offer_frequency
from fcorun.experiment.build import bind_objective, build_problem, load_data
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.optimum import resolve_strength
from fcorun.experiment.prepare import prepare
from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.methods.objectives.log_link import Gamma, Poisson
from fcorun.methods.objectives.logistic import Logistic
from fcorun.methods.objectives.objective import LinearModel
from fcorun.methods.problem.duality_gap import has_duality_gap, has_one_output, pooled_gap
from fcorun.methods.problem.penalized_quadratic import MAX_PARAMETERS
from fcorun.methods.problem.penalty import Penalty
from fcorun.methods.problem.problem import Batch, Problem, Vector
from fcorun.methods.problem.solver import gather_rows
from fcorun.methods.regularizers.l1 import L1
from fcorun.methods.regularizers.l2 import ElasticNet
from fcorun.methods.regularizers.regularizer import NoRegularizer, Regularizer
from fcorun.results.inference.sums import DerivativeSums, ModelRows, RowSums
from fcorun.results.models.client_intercepts import (
    add_client_intercepts,
    find_finite_intercepts,
)
from fcorun.results.models.coefficients import INTERCEPT, feature_names, name_client_intercept

OBJECTIVES = (LeastSquares, Logistic, Poisson, Gamma)  # losses of rows
WITH_INTERVALS = (*OBJECTIVES, Cox)
_NO_CURVATURE = 1e-8  # of indicators whose sum does not vary, relative to their own; less than 1 / rows
SHRUNK_BY_RIDGE = (
    "`objective.ridge` shrinks the coefficients, and no interval here corrects that: give `objective.ridge=0`, or "
    "`reg=l1`"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class InferenceProblem:
    """A problem that intervals are computed for.

    Attributes:
        experiment: the record's experiment.
        data: its data.
        objective: the losses, without a ridge.
        rows: the training rows, without a row where they stay at their sites.
        penalty: psi and the ridge as penalties of the parameters, of which intercepts are the last ones.
        theta: the record's own parameters (p,).
        has_intercept_of_client: which clients have a finite intercept (M,); the rows of others, of one class alone or
            without counts, have weight 0, since they tell nothing about the coefficients.
        gap: the duality gap of parameters (p,) with a given objective F + psi, or None if the problem has none.
        has_chosen_features: whether the record is the refit of a stability selection, whose features its rows chose.
        has_adaptive_weights: whether the record is the refit of an adaptive lasso, whose weights its rows chose.
    """

    experiment: PreparedExperiment
    data: FederatedData
    objective: LinearModel
    rows: ModelRows
    penalty: Penalty
    theta: np.ndarray
    has_intercept_of_client: np.ndarray
    gap: Callable[[np.ndarray, float], float] | None
    has_chosen_features: bool = False
    has_adaptive_weights: bool = False

    @property
    def intercept_names(self) -> tuple[str, ...]:
        """The names of the intercepts, the last parameters: that of all clients, or of each one; empty without any."""
        if self.n_eliminated:
            return ()
        if self.has_client_intercepts:
            return self._name_intercepts(self.has_intercept_of_client)
        return (INTERCEPT,) if self.objective.intercept else ()

    @property
    def infinite_intercept_names(self) -> tuple[str, ...]:
        """The names of the clients' intercepts that are no parameters, since they are not finite."""
        return self._name_intercepts(~self.has_intercept_of_client)

    def _name_intercepts(self, is_named: np.ndarray) -> tuple[str, ...]:
        names = np.array(self.data.client_names, object)[is_named]
        return tuple(map(name_client_intercept, names))

    @property
    def has_client_intercepts(self) -> bool:
        """Return whether clients have intercepts, the last parameters, which at sites the losses eliminate."""
        return self.experiment.objective.client_intercepts

    @property
    def n_eliminated(self) -> int:
        """The number of the clients' intercepts that are no parameters, since sites eliminate them."""
        return self.data.n_clients if self.objective.client_intercepts else 0

    @property
    def has_intercept(self) -> bool:
        """Return whether the last parameters are intercepts."""
        return bool(self.intercept_names)

    @property
    def has_baseline_hazards(self) -> bool:
        """Return whether baseline hazards of clients take the place of an intercept."""
        return isinstance(self.objective, Cox)

    @property
    def has_penalty(self) -> bool:
        """Return whether the problem has an l1 penalty."""
        return bool(self.penalty.l1.any())

    @property
    def n_features(self) -> int:
        """The number of features, d."""
        return len(self.theta) - len(self.intercept_names)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the d features."""
        return feature_names(self.data.features.names, self.data.features.shape or self.data.train.x.shape[1:])


@dataclass(frozen=True, eq=False)
class KeptParameters:
    """A choice of parameters, in which each prediction stays as it is.

    Where levels of a column are one another's complements in all rows that tell something (``find_complements``), the
    level with the most rows becomes their reference: its coefficient moves into the intercepts or the baseline hazards,
    and those of the other levels become differences from it.

    Attributes:
        numbers: the numbers of the parameters that stay (q,).
        map: the parameters that stay as a function of all parameters (q, p).
        references: the reference of each level that is compared with one, as numbers of features.
    """

    numbers: np.ndarray
    map: np.ndarray
    references: dict[int, int]

    def derivatives(self, sums: DerivativeSums) -> DerivativeSums:
        """Return the derivatives in the parameters that stay."""
        hessian = sums.hessian[np.ix_(self.numbers, self.numbers)]
        return DerivativeSums(sums.loss, sums.gradient[self.numbers], hessian)


class FeatureCurvature(NamedTuple):
    """The Hessian of F at 0 in the features, and what it leaves to the intercepts.

    Attributes:
        matrix: the Hessian in the features' weights, at the best intercepts for these weights, (d, d). Its diagonal
            entry is 0 of a feature that is constant at each intercept, or in each risk set.
        mean: the mean of each feature at each intercept, with the rows' weights in the Hessian, (d, k).
        error: the largest error of an entry, 0 unless masks round it.
    """

    matrix: np.ndarray
    mean: np.ndarray
    error: float


def feature_curvature(problem: InferenceProblem, sums: RowSums) -> FeatureCurvature:
    """Return what the rows tell of the features beside the intercepts, which is one pass over the rows."""
    hessian = sums.derivatives(np.zeros(len(problem.theta))).hessian
    n_features = problem.n_features
    n_intercepts = len(problem.intercept_names)
    cross = hessian[:n_features, n_features : n_features + n_intercepts]
    # no row has two intercepts, so that the Hessian in the intercepts is diagonal; 0 is that of a client without rows
    weight = np.diagonal(hessian)[n_features : n_features + n_intercepts]
    mean = cross / np.maximum(weight, np.finfo(float).tiny)
    return FeatureCurvature(hessian[:n_features, :n_features] - mean @ cross.T, mean, sums.loss_error)


def find_complements(curvature: np.ndarray, error: float = 0.0) -> list[np.ndarray]:
    """Return the sets of levels that each need a reference, as positions.

    Two levels are compared where rows of both have an intercept, or a risk set, in common: their entry is not 0.
    The sets are those that no comparison connects, and whose indicators add up to a constant at each intercept, or in
    each risk set, so that the curvature of their sum is 0.

    Args:
        curvature: the ``FeatureCurvature.matrix`` of the indicators of levels that are not constant, (k, k).
        error: the largest error of an entry.
    """
    from scipy.sparse.csgraph import connected_components

    size = np.sqrt(np.diagonal(curvature))
    is_compared = np.abs(curvature) > _NO_CURVATURE * np.outer(size, size) + error
    n_sets, set_of_level = connected_components(is_compared, directed=False)
    complements = []
    for number in range(n_sets):
        levels = np.flatnonzero(set_of_level == number)
        of_set = curvature[np.ix_(levels, levels)]
        if np.abs(of_set.sum()) <= _NO_CURVATURE * np.trace(of_set) + error * of_set.size:
            complements.append(levels)
    return complements


def choose_parameters(
    problem: InferenceProblem, candidates: np.ndarray, level_rows: np.ndarray, curvature: FeatureCurvature
) -> KeptParameters:
    """Return the parameters that stay of ``candidates``, a mask of the features (d,).

    ``level_rows`` (d,) has the number of rows of each level.
    """
    described = problem.data.features
    n_features = problem.n_features
    scaling = problem.data.features.scaling
    mean = np.zeros(n_features)
    factor = np.ones(n_features)
    if scaling is not None:
        mean = scaling.mean
        factor = scaling.factor
    full_map = np.eye(len(problem.theta))
    if problem.has_intercept:  # a feature that varies at no intercept adds a constant to each
        full_map[n_features:, :n_features] = np.where(candidates, 0.0, curvature.mean.T)
    references: dict[int, int] = {}
    has_reference = problem.objective.intercept or problem.has_baseline_hazards
    columns = ()
    if described.encoding is not None and has_reference and (not described.standardized or scaling is not None):
        columns = described.encoding.columns
    number = {name: index for index, name in enumerate(described.names)}
    for column in columns:
        if not column.adds_up_to_one:
            continue
        levels = np.array([number[name] for name in column.features])
        levels = levels[candidates[levels]]
        of_indicators = curvature.matrix[np.ix_(levels, levels)] / np.outer(factor[levels], factor[levels])
        for complements in find_complements(of_indicators, curvature.error):
            group = levels[complements].tolist()
            reference = max(group, key=lambda level: level_rows[level])  # of equal numbers the first level
            others = [level for level in group if level != reference]
            references |= dict.fromkeys(others, reference)
            full_map[others, reference] = -factor[reference] / factor[others]
            if problem.has_intercept:
                total = mean[group].sum()
                # how many of the levels a row has, at each intercept: 1, or 0 where other levels are all there is
                n_levels = np.rint(total + (curvature.mean[group] / factor[group, None]).sum(axis=0))
                full_map[n_features:, reference] = factor[reference] * (n_levels - total)
    stays = np.ones(len(problem.theta), bool)
    stays[:n_features] = candidates
    stays[[*references.values()]] = False
    numbers = np.flatnonzero(stays)
    return KeptParameters(numbers, full_map[numbers], references)


def load_inference_problem(record: Record, data: Dataset | None = None) -> InferenceProblem:
    """Return the problem of a record. Call under enable_x64.

    ``data`` are the rows that a Python program has in memory; None: those that the record's configuration names.
    Raises UserError, in one sentence, for a record without a certified solution, and for data that have changed.
    """
    status = record.status.get("status", "no record")
    if status != "done":
        raise UserError(f"{record.folder} is {status}: intervals are for a run that is done")
    try:
        data_class = str(record.flat_config.get("data.class"))
        if data_class.rpartition(".")[2] == Sites.__name__:  # whose record at a site has keys of its owner's file, too
            raise UserError(f"{record.folder} has rows that stay at their sites, which answer what their plan lists: "
                            "intervals are part of a plan, fcorun plan ... --infer")  # fmt: skip
        experiment = prepare({**record.config, "dry_run": False})
        fingerprint = record.summary["data"]["fingerprint"]
    except (*READ_ERRORS, TypeError) as error:
        raise UserError(f"{record.folder}: its config.yaml or summary.json is lost or damaged: run it again") from error
    if experiment.settings.frozen:
        raise UserError(f"{record.folder} trains some parameters only (frozen): its problem is another one")
    if data is not None:
        experiment = replace(experiment, data=data)
    elif isinstance(experiment.data, InMemoryTable):
        raise UserError(f"{record.folder} is of rows that a Python program had in memory: call record.infer(data=...)")
    is_same = experiment.fingerprint == fingerprint
    if not is_same and experiment.data.fingerprint_with(unused_options("data")) != fingerprint:
        raise UserError(f"{record.folder}: the data have changed since the run, or this version of fcorun reads them "
                        "otherwise: run it again, and then infer")  # fmt: skip
    if reason := explain_no_intervals(experiment):
        raise UserError(f"{record.folder}: {reason}")
    federated = load_data(experiment)
    if reason := federated.train.why_not_in_memory:
        raise UserError(f"{record.folder}: intervals need all training rows in memory, and its rows {reason}")
    if reason := federated.train.why_not_dense:
        raise UserError(f"{record.folder}: intervals need dense rows, and its rows {reason}")
    experiment = bind_objective(experiment, federated)
    return make_problem(record, experiment, federated, resolve_strength(experiment, federated))


def make_problem(
    record: Record, experiment: PreparedExperiment, data: FederatedData, reg: Regularizer
) -> InferenceProblem:
    """Return the problem of a record on some rows, whose regularizer has the numbers of the run.

    Call under enable_x64. Raises UserError like ``load_inference_problem``. The rows may stay at their sites.
    """
    experiment = experiment.with_resolved(reg=reg)
    problem = build_problem(experiment, data)
    n_features = data.train.x.shape[1]
    if not has_one_output(problem, n_features):
        raise UserError(f"{record.folder}: intervals are for one coefficient a feature, and this model has several "
                        "outputs, or psi acts on other parameters")  # fmt: skip
    batch = gather_rows(data, experiment.settings.client_weighting)
    at_sites = data.train.stays_at_sites
    rows = make_model_rows(problem, batch, 0 if at_sites else data.n_clients)
    n_parameters = rows.x.shape[1]
    if n_parameters > MAX_PARAMETERS:
        raise UserError(f"{record.folder}: intervals take a matrix of all features, at most {MAX_PARAMETERS:,}, and "
                        f"there are {n_parameters:,}")  # fmt: skip
    objective = replace(experiment.objective, ridge=0.0)
    if not at_sites:
        objective = objective.with_known_intercepts
    assert isinstance(objective, LinearModel)
    psi: Any = problem.regularizer
    l1, ridge = psi.l1_and_ridge(n_features)
    of_intercept = np.zeros(n_parameters - n_features)
    penalty = Penalty(np.append(l1, of_intercept), np.append(ridge + problem.objective.ridge, of_intercept))
    if experiment.objective.ridge and not penalty.l1.any():
        raise UserError(f"{record.folder}: {SHRUNK_BY_RIDGE}")
    names = ["weights"]
    if problem.objective.client_intercepts and not at_sites:
        names.append(CLIENT_INTERCEPTS)
    elif "bias" in problem.shapes:
        names.append("bias")
    try:
        solution = record.solution
        if CLIENT_INTERCEPTS in names and CLIENT_INTERCEPTS not in solution:  # of a study over sites
            solution = add_client_intercepts(experiment, data, solution)
        theta = np.concatenate([np.ravel(solution[name]) for name in names]).astype(np.float64)
    except READ_ERRORS as error:
        raise UserError(f"{record.folder} has lost its solution.npz, or it is damaged: run it again") from error
    finite = find_finite_intercepts(experiment, data, record.solution)
    if not finite.all():
        stays = np.append(np.ones(n_features, bool), finite)
        weight = rows.weight * finite[np.asarray(rows.client)]
        if not weight.any():
            raise UserError(f"{record.folder}: no client has a finite intercept, so that no coefficient can be "
                            "estimated: run it with `objective.client_intercepts=false`")  # fmt: skip
        total = weight.sum()
        rows = rows._replace(x=rows.x[:, stays], weight=weight / total)
        # as F, which is now a mean of fewer rows
        penalty = Penalty(penalty.l1[stays] / total, penalty.ridge[stays] / total)
        theta = theta[stays]
    return InferenceProblem(
        experiment=experiment,
        data=data,
        objective=objective,
        rows=rows,
        penalty=penalty,
        theta=theta,
        has_intercept_of_client=finite,
        gap=None if at_sites else _make_gap(problem, batch),
        has_chosen_features=is_refit_of_stability(record),
        has_adaptive_weights=is_refit_of_adaptive_lasso(record),
    )


def explain_no_intervals(experiment: PreparedExperiment) -> str:
    """Return why a problem has no certified solution, or no intervals; "" if it has both."""
    names = experiment.names
    if experiment.privacy.acts:
        return explain_private(names["privacy"])
    if experiment.settings.imputations:
        return explain_imputed(experiment.settings.imputations)
    if experiment.settings.relax is not None and experiment.settings.is_relaxed:
        return explain_relaxed(experiment.settings.relax)
    if getattr(experiment.algo, "has_client_estimates", False):
        return word(
            f"the intervals of `algo={names['algo']}` are of the mean of the clients' estimates and not of one model "
            "of all rows, and the run itself writes them: run an older record again, and plan without --infer"
        )
    if type(experiment.objective) not in WITH_INTERVALS:
        return word(
            f"`objective={names['objective']}` has no intervals: they are for "
            "`objective=least_squares, logistic, poisson, gamma and cox`"
        )
    if getattr(experiment.algo, "has_personal_models", False):
        return word(
            f"`algo={names['algo']}` trains own models of clients, and intervals are for one model of all clients"
        )
    if getattr(experiment.algo, "picks_client", False):
        return word(f"`algo={names['algo']}` trains on one client's rows, and intervals are for all clients")
    if type(experiment.reg) not in (NoRegularizer, L1, ElasticNet):
        convex = "" if experiment.reg.convex else ", and it is not convex, so that no solution is certified"
        return word(f"`reg={names['reg']}` has no intervals{convex}: they are for `reg=none, l1 and elastic_net`")
    if isinstance(experiment.reg, ElasticNet) and experiment.reg.l1_ratio == 0:
        return word("`reg.l1_ratio=0` leaves a ridge, which shrinks the coefficients, and no interval here corrects "
                "that: give `reg=none` or `reg=l1`, or a larger `reg.l1_ratio`")  # fmt: skip
    return ""


def explain_private(privacy: str) -> str:
    """Return why coefficients that noise hides, by a mechanism of this name, have no intervals."""
    return word(f"`privacy={privacy}` hides what rows tell by noise, and intervals are of the optimum on the rows "
                "themselves, without noise: infer a record of a run without privacy, if nothing need be "
                "hidden")  # fmt: skip


def explain_imputed(imputations: int) -> str:
    """Return why an average of fits to completed tables has no intervals."""
    return word(f"`imputations={imputations}` averages fits to completed tables, which have no common problem: "
            "infer a record without it, with the option imputations of fcorun infer")  # fmt: skip


def explain_relaxed(relax: float) -> str:
    """Return why relaxed coefficients have no intervals."""
    return word(f"`relax={relax:g}`: the coefficients of a relaxed lasso have no certificate and no intervals here: "
            "infer a record of the lasso, with `relax=null`")  # fmt: skip


def make_model_rows(problem: Problem, batch: Batch, n_clients: int = 0) -> ModelRows:
    """Return the rows of a batch, with a column of ones for an intercept. Call under enable_x64.

    Intercepts of clients have a column for each of ``n_clients``, or at sites none, where the losses eliminate them.
    """
    features = np.asarray(problem.features(batch.x, jnp.float64))
    offset = np.zeros(len(features)) if batch.offset is None else np.asarray(batch.offset)
    if "bias" in problem.shapes:
        features = np.column_stack([features, np.ones(len(features))])
    if problem.objective.client_intercepts and n_clients:
        features = np.column_stack([features, np.asarray(batch.client)[:, None] == np.arange(n_clients)])
    client = None if batch.client is None else np.asarray(batch.client)
    return ModelRows(features, np.asarray(batch.y), np.asarray(batch.weight), offset, client)


def _make_gap(problem: Problem, batch: Batch) -> Callable[[np.ndarray, float], float] | None:
    """Return the duality gap as a function of parameters and objective; None for a problem without one.

    The elastic net is an l1 norm plus a ridge, which has a gap.
    """
    reg = problem.regularizer
    if reg.has_free_features:
        return None
    if isinstance(reg, ElasticNet) and not reg.factors:
        ridge = float(problem.objective.ridge + reg.strength * (1 - reg.l1_ratio))
        norm = L1(strength=float(reg.strength * reg.l1_ratio), apply_to=reg.apply_to)
        problem = replace(problem, objective=replace(problem.objective, ridge=ridge), regularizer=norm)
    n_features = batch.x.shape[1]
    if not has_duality_gap(problem, n_features):
        return None
    compiled = jax.jit(partial(pooled_gap, problem))

    def gap(theta: np.ndarray, objective: float) -> float:
        w = {"weights": jnp.asarray(theta[:n_features]).reshape(problem.shapes["weights"])}
        if "bias" in problem.shapes:
            w["bias"] = jnp.asarray(theta[n_features])
        return float(compiled(Vector(w), objective, batch))

    return gap


@dataclass(frozen=True)
class InferenceOptions:
    """Options of ``fcorun infer``.

    Attributes:
        method: "wald" for problems without a penalty, "debiased" for the debiased lasso, "split" for a selection on one
            half of the rows and Wald intervals on the other. "auto": debiased with a penalty, wald without.
        level: the confidence level.
        cluster: the rows that may depend on each other: none, those of a client, or those of a group (data.group).
            "auto": those of a group if the data have groups and errors are robust.
        errors: "robust" standard errors hold if the model is wrong, those of the "model" if its likelihood is right.
        seed: the seed of the halves of "split", and of the imputations.
        imputations: the number of data sets with gaps filled by chained equations, of which estimates without a penalty
            are pooled; 0: gaps are filled as in the record.
    """

    method: Literal["auto", "debiased", "wald", "split"] = "auto"
    level: float = 0.95
    cluster: Literal["auto", "none", "client", "group"] = "auto"
    errors: Literal["robust", "model"] = "robust"
    seed: Index = 0
    imputations: Index = 0

    def __post_init__(self):
        if self.imputations == 1:
            raise UserError(
                "`imputations=1` does not tell how much the imputed values vary: give 2 or more, such as 20"
            )
        if not 0 < self.level < 1:
            raise UserError(f"`level={self.level:g}` must be between 0 and 1, such as 0.95")


def resolve_options(options: InferenceOptions, problem: InferenceProblem) -> InferenceOptions:
    """Return the options without "auto". Raises UserError for options that do not fit the problem."""
    method = options.method
    cluster = options.cluster
    has_groups = problem.data.train.group is not None
    if method == "auto":
        method = "debiased" if problem.has_penalty else "wald"
    if cluster == "auto":
        cluster = "group" if has_groups and options.errors == "robust" else "none"
    weight = problem.rows.weight[problem.rows.weight > 0]
    data = problem.experiment.data
    offer = offer_frequency("", getattr(data, "weight", None), getattr(data, "weight_kind", "sampling"))
    cure = f" ({offer})" if offer else ""
    refusals = {
        "are of likelihoods, `objective=logistic, poisson and cox`": not problem.objective.is_log_likelihood,
        f"take rows as independent, and `cluster={cluster}` does not": cluster != "none",
        f"need rows of equal weight, and `data.weight` or client_weighting gives them different ones{cure}": (
            not np.allclose(weight, weight.mean(), rtol=1e-9, atol=0)
        ),
    }
    for reason, applies in refusals.items():
        if applies and options.errors == "model":
            raise UserError(f"errors=model: model-based standard errors {reason}: give errors=robust")
    if cluster == "group" and not has_groups:
        raise UserError("`cluster=group`: the record has no groups: give `cluster=client` or none, or run it with "
                        "`data.group=COLUMN`")  # fmt: skip
    if method == "wald" and problem.has_penalty:
        raise UserError("`method=wald`: coefficients that a penalty shrinks, or selected on the same rows, have no "
                        "valid Wald intervals: give `method=debiased` or split, or a record with "
                        "`reg=none`")  # fmt: skip
    if method != "wald" and not problem.has_penalty:
        raise UserError(f"`method={method}` is for a problem with an l1 penalty, and this record has none: give "
                        "`method=wald`")  # fmt: skip
    if method == "split" and cluster == "client":
        raise UserError("`method=split` halves the rows of each client, which `cluster=client` takes as dependent: "
                        "give `method=debiased`")  # fmt: skip
    return replace(options, method=method, cluster=cluster)
