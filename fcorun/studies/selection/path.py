"""Values of a regularization path: strengths or radii, a number chosen with them, and factors of the adaptive lasso."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcorun.base.config import GRID_SECTIONS, check_value, type_hints
from fcorun.base.errors import UserError
from fcorun.base.metrics import IGNORES_PSI
from fcorun.data.datasets.dataset import FederatedData
from fcorun.experiment.build import build_problem, resolve_factors
from fcorun.experiment.experiment import PreparedExperiment
from fcorun.experiment.optimum import compute_strength_max
from fcorun.experiment.requirements import are_convex
from fcorun.methods.algorithms.algorithm import Algorithm, Baseline
from fcorun.methods.problem import solver
from fcorun.methods.problem.duality_gap import has_one_output
from fcorun.methods.problem.penalized_quadratic import MAX_PARAMETERS
from fcorun.methods.problem.penalty import Penalty
from fcorun.methods.problem.problem import Problem
from fcorun.methods.problem.solver import gather_rows
from fcorun.methods.regularizers.l1 import L1
from fcorun.methods.regularizers.l2 import ElasticNet
from fcorun.methods.regularizers.regularizer import NoRegularizer, Regularizer
from fcorun.results.inference.solution import solve
from fcorun.results.inference.sums import PooledSums
from fcorun.results.models.inference_problem import OBJECTIVES, make_model_rows

_FLOOR = 1e-6  # of the largest pilot coefficient: smaller ones are as good as excluded
DEFAULT_SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # as in glmnet's cv.relaxed
_OF_THE_PATH = ("strength", "radius", "relative")
_BEYOND = 1e-6  # the relative distance of a value that is asked for beyond the least or the largest one


def compute_adaptive_factors(experiment: PreparedExperiment, data: FederatedData) -> np.ndarray:
    """Return the factor 1 / |b_j| of each feature's penalty, (d,), times its factor in ``reg``.

    The coefficients b are those of a pilot on the training rows of ``data``: Zou (J. Am. Stat. Assoc. 2006), equation
    4. The pilot has the ridge r / 2 ||b||^2 of Hoerl, Kennard and Baldwin (Commun. Stat. 1975) for a signal as large as
    the noise, beside the ridge of the objective: r is the trace of the Hessian at 0, with the best intercept, divided
    by the number of rows. The pilot is not tuned, so that factors depend on no other rows than those that are given.
    Raises UserError if the rows do not determine the pilot, or if its coefficients are all 0.
    """
    with jax.enable_x64(True):
        coefficients = np.abs(_fit_pilot(build_problem(experiment, data), experiment, data))
    largest = coefficients.max(initial=0.0)
    if not largest > 0:
        raise UserError("`adaptive=ridge`: all coefficients of the pilot are 0: leave adaptive out")
    given = resolve_factors(experiment.reg, experiment.objective, data).feature_factors(len(coefficients))
    return given / np.maximum(coefficients, _FLOOR * largest)


def _fit_pilot(problem: Problem, experiment: PreparedExperiment, data: FederatedData) -> np.ndarray:
    """Return the coefficients of the pilot, (d,)."""
    rows = make_model_rows(problem, gather_rows(data, experiment.settings.client_weighting), data.n_clients)
    n_features, n_parameters = data.train.x.shape[1], rows.x.shape[1]
    objective: Any = replace(experiment.objective, ridge=0.0).with_known_intercepts  # type: ignore[call-arg]
    sums = PooledSums(objective, rows)
    hessian = sums.derivatives(np.zeros(n_parameters)).hessian
    curvature = np.diagonal(hessian)
    at_best_intercepts = (hessian[:n_features, n_features:] ** 2 / curvature[n_features:]).sum(axis=1)
    trace = (curvature[:n_features] - at_best_intercepts).sum()
    ridge = np.zeros(n_parameters)
    ridge[:n_features] = experiment.objective.ridge + trace / len(rows.y)
    try:
        return solve(sums, Penalty(np.zeros(n_parameters), ridge), np.zeros(n_parameters)).theta[:n_features]
    except UserError as error:
        raise UserError("`adaptive=ridge`: the pilot has no finite optimum: leave adaptive out") from error


def weigh_features(experiment: PreparedExperiment, data: FederatedData) -> PreparedExperiment:
    """Return the experiment with the adaptive factors of all training rows.

    Raises UserError for a model without adaptive weights, and where a pilot does not exist.
    """
    names, reg = experiment.names, experiment.reg
    if type(reg) not in (L1, ElasticNet):
        raise UserError("`adaptive=ridge` weighs the penalties of single features: give `reg=l1 or elastic_net`")
    check_linear_model("`adaptive=ridge`", experiment, data)
    if isinstance(experiment.algo, Algorithm) and experiment.algo.has_personal_models:
        raise UserError(f"`adaptive=ridge` fits a pilot to the rows of all clients, and `algo={names['algo']}` "
                        "trains own models of clients: leave adaptive out")  # fmt: skip
    factors = compute_adaptive_factors(experiment, data)
    feature_names = data.features.names or [str(j) for j in range(len(factors))]
    by_name = dict(zip(feature_names, factors.tolist(), strict=True))
    return experiment.with_resolved(reg=replace(reg, factors=by_name))


def check_linear_model(option: str, experiment: PreparedExperiment, data: FederatedData) -> None:
    """Raise UserError, naming an ``option``, unless the loss is smooth, with a coefficient a feature, not too many."""
    n_features = data.train.x.shape[1]
    one_output = has_one_output(build_problem(experiment, data), n_features)
    if type(experiment.objective) not in OBJECTIVES or not one_output:
        raise UserError(f"{option} is for one coefficient a feature, with `objective=least_squares, logistic` of two "
                        "classes, poisson or gamma: leave it out")  # fmt: skip
    if n_features > MAX_PARAMETERS:
        raise UserError(f"{option} takes a matrix of all features, at most {MAX_PARAMETERS:,}, and there are "
                        f"{n_features:,}: leave it out")  # fmt: skip


@dataclass(frozen=True)
class SecondNumber:
    """A number of a plug-in, and its value in each of P runs.

    Attributes:
        section, name: the section of the configuration and the field, "reg" and "l1_ratio".
        values: the value in each run, (P,).
        limits: the least and the largest value that the field may have, each if it is among the values; else -inf and
            inf.
    """

    section: str
    name: str
    values: np.ndarray
    limits: tuple[float, float]

    @property
    def key(self) -> str:
        """The key of the configuration, "reg.l1_ratio"."""
        return f"{self.section}.{self.name}"

    def apply(self, experiment: PreparedExperiment, index: int) -> PreparedExperiment:
        """Return the experiment with the value of the run ``index``."""
        plugin = replace(getattr(experiment, self.section), **{self.name: float(self.values[index])})
        return experiment.with_resolved(**{self.section: plugin})


@dataclass(frozen=True)
class RelaxedShares(SecondNumber):
    """The share of the lasso in the relaxed coefficients of each of P runs: the root key ``relax``."""

    @property
    def key(self) -> str:
        """The key of the configuration."""
        return self.name

    def apply(self, experiment: PreparedExperiment, index: int) -> PreparedExperiment:
        """Return the experiment with the share of the run ``index``; with 1 the lasso, without the key."""
        share = float(self.values[index])
        settings = replace(experiment.settings, relax=None if share == 1 else share)
        return experiment.with_resolved(settings=settings)


def read_second_number(experiment: PreparedExperiment, given: Mapping[str, Sequence[float]]) -> SecondNumber:
    """Return the number that {KEY: [VALUE, ...]} names, with its values in ascending order.

    Raises:
        UserError: several keys, fewer than two values, or a field in which the runs of one program cannot differ.
    """
    if len(given) != 1:
        raise UserError(
            f"{' and '.join(given)} have several values, and one number is chosen together with the strength: give "
            "one value of the others"
        )
    ((key, values),) = given.items()
    section, _, name = key.partition(".")
    if not _can_vary(experiment, section, name):
        possible = []
        for other_section, numbers in experiment.numbers().items():
            for number in numbers:
                if _can_vary(experiment, other_section, number) and number not in _OF_THE_PATH:
                    possible.append(f"{other_section}.{number}")
        advice = f"possible keys are {', '.join(possible)}" if possible else "this configuration has no such number"
        raise UserError(
            f"{key} has several values, and is no real number that can be chosen together with the strength: {advice}; "
            "give one value, and another selection for each other value"
        )
    plugin = getattr(experiment, section)
    if section == "reg" and name in _OF_THE_PATH:
        raise UserError(
            f"{key} has several values, and `fcorun select` computes the strengths or radii of the path itself: give "
            "`range=[LOW,HIGH]`"
        )
    numbers = sorted({float(check_value(value, type_hints(type(plugin))[name], key)) for value in values})
    if len(numbers) < 2 or len(numbers) < len(values):
        raise UserError(f"`{key}={list(values)}`: give two or more different values")
    return SecondNumber(section, name, np.array(numbers), _find_limits(plugin, name, numbers))


def _can_vary(experiment: PreparedExperiment, section: str, name: str) -> bool:
    """Return whether the field is a real number of a section in GRID_SECTIONS; with a baseline, of ``reg`` alone."""
    if section not in GRID_SECTIONS or (section != "reg" and isinstance(experiment.algo, Baseline)):
        return False
    hints = type_hints(type(getattr(experiment, section)))
    try:
        return name in hints and isinstance(check_value(0.5, hints[name], name), float)
    except UserError:
        return False


def _find_limits(plugin: Any, name: str, numbers: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest of ascending numbers of a field; -inf or inf where the field may have others.

    The plug-in is asked for a value just beyond, so that its own conditions count as well as the marks of the field.
    """

    def is_accepted(value: float) -> bool:
        try:
            replace(plugin, **{name: check_value(value, type_hints(type(plugin))[name], name)})
        except (UserError, ValueError, ArithmeticError, AssertionError):
            return False
        return True

    least, largest = numbers[0], numbers[-1]
    below, above = (value + sign * _BEYOND * (abs(value) or 1) for sign, value in ((-1, least), (1, largest)))
    return (-np.inf if is_accepted(below) else least, np.inf if is_accepted(above) else largest)


MIN_RATIO = 1e-3  # smallest value / largest value, as in scikit-learn's lasso_path
_TOLERANCE = 1e-4  # for the unconstrained solution that ends a path of radii
_ITERATIONS = 2000


@dataclass(frozen=True)
class RegularizationPath:
    """Values of a field of the regularizer, from the simplest solution on: strengths fall, radii grow.

    Attributes:
        param_name: "strength" or "radius".
        values: the values, from the simplest solution on, (P,).
        range_description: the origin of the least and the largest value, for messages.
        second: a second number, with a path of its own for each of its S values, one after the other: ``values`` are
            those of all paths. None: there is one path.
        is_adaptive: whether a pilot gives the factors of features' penalties to each subset of the rows.
    """

    param_name: str
    values: np.ndarray
    range_description: str = ""
    second: SecondNumber | None = None
    is_adaptive: bool = False

    @property
    def shares(self) -> np.ndarray | None:
        """The shares of the lasso in relaxed coefficients, one for each path, (S,); None: these are not relaxed."""
        return self.second.values[:: self.length] if isinstance(self.second, RelaxedShares) else None

    @property
    def runs(self) -> "RegularizationPath":
        """The path of the runs of a subset: relaxed coefficients of all shares follow from one run of each strength."""
        return self if self.shares is None else replace(self, values=self.values[: self.length], second=None)

    def relax(self, shares: tuple[float, ...]) -> "RegularizationPath":
        """Return a path for each share of the lasso in relaxed coefficients; without shares, this path."""
        if not shares:
            return self
        second = RelaxedShares("", "relax", np.repeat(shares, len(self.values)), (0.0, 1.0))
        return replace(self, values=np.tile(self.values, len(shares)), second=second)

    @property
    def length(self) -> int:
        """The number of values of one path."""
        return len(self.values) // self.n_paths

    @property
    def n_paths(self) -> int:
        """The number of values of the second number, S; 1 without one."""
        return 1 if self.second is None else len(np.unique(self.second.values))

    def slice_of(self, index: int) -> slice:
        """Return the positions of the path, with one second number, that has the position ``index``."""
        start = index // self.length * self.length
        return slice(start, start + self.length)

    def numbers_at(self, index: int) -> dict[str, float]:
        """Return the numbers of the run at a position, by name."""
        numbers = {self.param_name: float(self.values[index])}
        if self.second is not None:
            numbers[self.second.name] = float(self.second.values[index])
        return numbers

    def describe(self, index: int, digits: int = 4) -> str:
        """Return the numbers of the run at a position as text, "strength=0.01 l1_ratio=0.5"."""
        text = f"{self.param_name}={self.values[index]:.{digits}g}"
        return text if self.second is None else f"{text} {self.second.name}={self.second.values[index]:.{digits}g}"

    def apply(self, experiment: PreparedExperiment, index: int) -> PreparedExperiment:
        """Return the experiment with the numbers of the run at a position."""
        if self.second is not None:
            experiment = self.second.apply(experiment, index)
        return experiment.with_resolved(reg=experiment.reg.with_value(self.param_name, self.values[index]))


def find_path_parameter(experiment: PreparedExperiment, varies_strength: bool = True) -> str:
    """Return the field of the regularizer that a path varies, "strength" or "radius".

    Without ``varies_strength``, nothing is chosen, and the algorithm may ignore psi.

    Raises:
        UserError: the regularizer has neither, ``reg.per_client`` gives each client its own, or all values would give
            the same solution.
    """
    reg, names = experiment.reg, experiment.names
    param_name = reg.path_field
    if not param_name:
        raise UserError(
            f"`reg={names['reg']}` has no strength and no radius to choose: take a penalty such as `reg=l1`, or "
            "a ball such as `reg=l1_ball`"
        )
    if varies_strength and not experiment.applies_regularizer:
        raise UserError(
            f"`algo={names['algo']}` {IGNORES_PSI}, so that all strengths would give the same solution: choose an "
            "`algo` that applies psi: `fcorun list algo` shows which do"
        )
    if param_name in (reg.per_client or {}):
        raise UserError(
            f"`reg.per_client.{param_name}` gives each client a {param_name} of its own, and one is chosen for all: "
            "leave it out"
        )
    return param_name


def build_path(
    experiment: PreparedExperiment,
    data: FederatedData,
    points: int,
    value_range: list[float] | None,
    min_ratio: float = MIN_RATIO,
) -> RegularizationPath:
    """Return ``points`` values, evenly spaced in logarithm, between the two numbers of ``value_range``.

    By default strengths fall from the smallest one at which 0 is optimal on all training rows to ``min_ratio`` times
    that strength. Radii grow from ``min_ratio`` times the radius of a ball that holds the unconstrained solution to
    that radius.

    Raises:
        UserError: ``value_range`` is not valid, or the problem has no such default.
    """
    param_name = find_path_parameter(experiment)
    if value_range is not None:
        if len(value_range) != 2 or not 0 < value_range[0] < value_range[1]:
            raise UserError(
                f"`range={value_range}` must be two positive numbers, the least {param_name} and the largest: give "
                "`range=[0.001,1]`"
            )
        low, high = value_range
        description = "as given"
    else:
        high, description = _largest_value(experiment, data, param_name)
        low = min_ratio * high
        description += f", and {min_ratio:g} of it"
    values = np.geomspace(low, high, points)
    if param_name == "strength":
        values = values[::-1]
    return RegularizationPath(param_name, values, description)


def build_paths(
    experiment: PreparedExperiment,
    data: FederatedData,
    *,
    points: int,
    value_range: list[float] | None,
    second: Mapping[str, Sequence[float]] | None,
    varies_strength: bool,
) -> RegularizationPath:
    """Return a path for each value of a second number, {KEY: [VALUE, ...]}, one after the other; one path without it.

    Each path begins where 0 is optimal with its own second number, as the paths of glmnet do for each alpha. Without
    ``varies_strength``, for an algorithm that ignores psi, the path has one value, a placeholder. Raises UserError as
    ``build_path`` and ``read_second_number``.
    """
    if not varies_strength:
        return RegularizationPath(find_path_parameter(experiment, varies_strength), np.ones(1), "ignored")
    if not second:
        return build_path(experiment, data, points, value_range)
    number = read_second_number(experiment, second)
    paths = [build_path(number.apply(experiment, s), data, points, value_range) for s in range(len(number.values))]
    return replace(
        paths[0],
        values=np.concatenate([path.values for path in paths]),
        second=replace(number, values=np.repeat(number.values, points)),
    )


def _largest_value(experiment: PreparedExperiment, data: FederatedData, param_name: str) -> tuple[float, str]:
    """Return the largest value of a path by default, and its description."""
    reg, name = experiment.reg, experiment.names["reg"]
    advice = f"give `range=[LOW,HIGH]`, the least {param_name} and the largest"
    if param_name == "strength" and not hasattr(reg, "strength_max"):
        raise UserError(f"`reg={name}` does not say at which strength its solution is 0, where a path begins: {advice}")
    if not are_convex(experiment.objective):
        raise UserError(
            f"`objective={experiment.names['objective']}` is not convex, so that no {param_name} of `reg={name}` "
            f"is known to begin or end a path: {advice}"
        )
    if param_name == "radius":
        with jax.enable_x64(True):
            problem = build_problem(experiment, data)
            unconstrained = replace(problem, regularizer=NoRegularizer(apply_to=list(problem.regularized)))
            batch = gather_rows(data, experiment.settings.client_weighting)
            for iterate in solver.minimize(unconstrained, batch, _TOLERANCE, _ITERATIONS):  # noqa: B007
                pass
            radius = max(_smallest_radius(reg, iterate.w[part], advice) for part in problem.regularized)
        return radius, "about the radius of the solution without constraint on all training rows"
    unit_strength = experiment.with_resolved(reg=reg.with_value(param_name, 1.0))
    description = "the smallest strength at which all penalized coefficients are 0, on all training rows"
    if experiment.algo.traits.personal_psi:
        strength = compute_strength_max(unit_strength, data, advice, of_each_client=True)
        description += ", for each client alone"
    else:
        strength = compute_strength_max(unit_strength, data, advice)
    if experiment.settings.imputations:
        description += ", their gaps filled once"
    if strength <= 0:
        raise UserError(
            f"0 is optimal with `reg={name}` of any strength: no feature is associated with the target in a direction "
            f"that `reg={name}` allows; choose another `reg`"
        )
    return strength, description


def _smallest_radius(reg: Regularizer, w: jax.Array, advice: str) -> float:
    """Find the smallest radius of a ball that holds w by bisection.

    Raises UserError, which ends with ``advice`` if w is not finite, where no such ball exists.
    """

    def is_outside(radius: float) -> bool:
        ball = reg.with_value("radius", radius)
        return float(ball.violation(w)) > 1e-9 * float(jnp.linalg.norm(w.ravel()))  # type: ignore[attr-defined]

    largest_entry = float(jnp.abs(w).max())
    if not np.isfinite(largest_entry):
        raise UserError(f"no finite solution without constraint was found, whose radius would end the path: {advice}")
    if largest_entry == 0:
        raise UserError("the solution without constraint is 0: the features say nothing of the target")
    low = high = largest_entry
    while is_outside(high):
        high *= 2
    while not is_outside(low):
        low /= 2
    while high / low > 1.001:
        middle = float(np.sqrt(low * high))
        if is_outside(middle):
            low = middle
        else:
            high = middle
    return high
