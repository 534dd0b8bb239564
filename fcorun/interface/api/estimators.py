"""Estimators of scikit-learn that are trained by a federated algorithm: a regressor and a classifier."""

import warnings
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted, validate_data

from fcorun.base.config import Count, check_value, numeric_fields, to_plain_value
from fcorun.base.errors import UserError
from fcorun.base.system.machine import use_precision
from fcorun.data.datasets.dataset import Dataset
from fcorun.data.tasks import Binary, Multiclass, Regression, Task
from fcorun.experiment import build
from fcorun.experiment.experiment import RELATIVE_CHANGE, PreparedExperiment
from fcorun.experiment.optimum import resolve_strength
from fcorun.experiment.prepare import replace_plugins
from fcorun.interface.api.experiment_object import Experiment
from fcorun.interface.api.python_words import PythonNames, python_words
from fcorun.interface.api.rows_in_memory import from_arrays
from fcorun.methods.algorithms.algorithm import Algorithm
from fcorun.methods.algorithms.proxskip import ProxSkip
from fcorun.methods.objectives.least_squares import LeastSquares
from fcorun.methods.objectives.logistic import Logistic
from fcorun.methods.objectives.objective import LinearModel, is_linear_model
from fcorun.methods.problem import solver
from fcorun.methods.problem.problem import Vector
from fcorun.methods.problem.solver import gather_rows
from fcorun.methods.regularizers.l1 import L1
from fcorun.methods.regularizers.l2 import L2, ElasticNet
from fcorun.methods.regularizers.regularizer import NoRegularizer, Regularizer
from fcorun.results.model_outputs import class_probabilities, compute_predictions, expected_targets
from fcorun.runs.job import RunFollower
from fcorun.runs.run_history import RunHistory
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

REGULARIZERS = {"l1": L1, "l2": L2, "elastic_net": ElasticNet, "none": NoRegularizer}
_NAME = "rows"  # of the data, in messages
_EVAL_EVERY = 10  # rounds between two certificates
_REST = 1e-5  # a fold's run ends where its objective changes by less, relatively, between two evaluations
_ROUNDING = 1e-12  # of an objective, relative to that at the start


class InvalidInput(UserError, ValueError):
    """A user's error that is a ValueError, too, as scikit-learn expects."""


class FederatedLinearModel(BaseEstimator):
    """The common part of both estimators: parameters, the fit, and the linear predictor."""

    coef_: NDArray[np.float64]
    n_features_in_: int
    feature_names_in_: NDArray[np.object_]
    precision: Literal["float32", "float64"]
    n_iter_: int
    gap_: float
    strength_: float | None

    def __init__(
        self,
        algorithm: Algorithm | None = None,
        *,
        objective: LinearModel | None = None,
        regularizer: Regularizer | Literal["l1", "l2", "elastic_net", "none"] = "l1",
        strength: float | Literal["cv"] | None = None,
        rounds: int = 1000,
        tol: float = 1e-4,
        seed: int = 0,
        precision: Literal["float32", "float64"] = "float64",
    ):
        self.algorithm = algorithm
        self.objective = objective
        self.regularizer = regularizer
        self.strength = strength
        self.rounds = rounds
        self.tol = tol
        self.seed = seed
        self.precision = precision

    @python_words(lambda _: PythonNames("arrays"))
    def _fit(
        self,
        X: NDArray[np.float64],
        y: np.ndarray,
        clients: np.ndarray | None,
        sample_weight: NDArray[np.float64] | None,
        *,
        task: Task,
    ) -> None:
        """Set the attributes of the solution. Raises InvalidInput."""
        means = np.average(X, axis=0, weights=sample_weight)
        try:
            tol = check_value(to_plain_value(self.tol), float, "tol")  # a grid of NumPy has numbers of NumPy
            check_value(to_plain_value(self.rounds), Count, "rounds")
            objective = self.objective
            if objective is None and task.has_classes:
                objective = Logistic()
            elif objective is None:
                objective = LeastSquares()
            elif not is_linear_model(type(objective)):
                raise UserError(f"`objective={objective!r}` is no linear model: train it by fcorun.Experiment")
            regularizer = self._build_regularizer()
            # the same problem, with a better conditioned intercept
            is_centered = objective.intercept and "bias" not in (regularizer.apply_to or ())
            X = X - means if is_centered else X.copy()
            data = from_arrays(X, y, clients, task=task.name, sample_weight=sample_weight, validation=0.0, name=_NAME)
            experiment = self._prepare(data, objective, regularizer)
            if isinstance(self.strength, str):
                experiment = choose_strength(experiment)
            fit = fit_to_tolerance(experiment, tol)
        except UserError as error:
            raise InvalidInput(str(error).removeprefix(f'name="{_NAME}": ')) from error
        if fit.gap > tol:
            warnings.warn(
                f"the {fit.certificate_kind} is {fit.gap:.2g} relative to the zero model after {fit.n_rounds} rounds, "
                f"above tol={tol:g}: give more rounds, scale the features, or choose another algorithm",
                ConvergenceWarning,
                stacklevel=3,
            )
        strength = getattr(fit.regularizer, fit.regularizer.path_field, None)
        self.strength_ = None if strength is None else float(strength)
        self.gap_ = fit.gap
        self.n_iter_ = fit.n_rounds
        self._objective = objective
        self._params = fit.params
        if is_centered:
            self._params["bias"] = fit.params["bias"] - means @ fit.params["weights"]

    def _prepare(self, data: Dataset, objective: LinearModel, regularizer: Regularizer) -> PreparedExperiment:
        """Return the experiment of a fit. Raises UserError for parameters that do not fit each other."""
        algorithm = ProxSkip() if self.algorithm is None else self.algorithm
        if not isinstance(algorithm, Algorithm):
            raise UserError(f"algorithm={algorithm!r} is no Algorithm: give an object such as fcorun.FedDualAvg()")
        if not algorithm.trains_shared_model:
            raise UserError(f"algorithm={algorithm!r} trains no model for all clients: choose another one")
        return Experiment(
            algorithm=algorithm,
            data=data,
            objective=objective,
            regularizer=regularizer,
            rounds=self.rounds,
            eval_every=_EVAL_EVERY,
            clients_per_round=None,
            batch_size=None,
            seed=self.seed,
            precision=self.precision,
            client_weighting="examples",
        ).prepared

    def _build_regularizer(self) -> Regularizer:
        """Return the regularizer with the strength of the parameters. Raises UserError."""
        regularizer = self.regularizer
        if isinstance(regularizer, str):
            if regularizer not in REGULARIZERS:
                raise UserError(f"regularizer={regularizer} is none of {', '.join(REGULARIZERS)}: give one of these "
                                "names, or an object such as fcorun.L1()")  # fmt: skip
            regularizer = REGULARIZERS[regularizer]()
        if not isinstance(regularizer, Regularizer):
            raise UserError(f"regularizer={regularizer!r} is no Regularizer: give an object such as fcorun.L1()")
        if isinstance(self.strength, str):
            if self.strength != "cv":
                raise UserError(f"strength={self.strength!r} is neither a number nor 'cv': give one of these")
        elif self.strength is not None:
            if not hasattr(regularizer, "strength"):
                raise UserError(f"regularizer={regularizer!r} has no strength: leave strength out")
            strength = check_value(to_plain_value(self.strength), float, "strength")
            regularizer = regularizer.with_value("strength", strength)
        return regularizer

    def _predict_linear(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the linear predictor of rows, (n,) or (n, classes)."""
        check_is_fitted(self)
        features: Any = validate_data(self, X, dtype=np.float64, reset=False)  # pyright: ignore[reportArgumentType]
        return compute_predictions(self._objective, self._params, features)


class FederatedRegressor(RegressorMixin, FederatedLinearModel):
    """A linear regression whose rows stay with their clients, as an estimator of scikit-learn.

    The model minimizes the mean loss of all rows plus psi. First the server adds up the clients' sums of each feature,
    by which the clients center their rows: the problem stays the same and converges faster. In each round all clients
    take part with all their rows. The fit ends as soon as a certificate shows that the objective is within ``tol`` of
    the optimum. The certificate sees all rows: no message of the federation is counted for it.

    >>> model = FederatedRegressor(regularizer="l1", strength=0.1).fit(X, y, clients=hospitals)
    >>> model.predict(X)

    Args:
        algorithm: the method, an object such as FedDualAvg(). None: ProxSkip(), which reaches the optimum of a convex
            loss plus any psi, whatever the clients' differences: its clients take gradient steps of length 1 / L, and
            communicate after a random number of them, about 100 where the loss is not strongly convex.
        objective: the loss, an object such as Huber(). None: LeastSquares(), the mean of (x'w + b - y)^2 without 1/2:
            strength 2 a with "l1" is alpha=a of scikit-learn's Lasso.
        regularizer: psi: "l1", "l2", "elastic_net", "none", or an object such as GroupLasso(...).
        strength: the strength of psi. "cv": chosen on five folds of each client's rows, as ``Experiment.select`` does.
            None: that of the object, or 0.01.
        rounds: the largest number of rounds.
        tol: the largest relative gap of a converged fit: the duality gap divided by the objective of the zero model
            with the best intercept. Problems without a known dual have the norm of the prox-gradient map, divided by
            the norm at zero. A fit that ends above ``tol`` warns with a ConvergenceWarning.
        seed: the seed of all random numbers.
        precision: of the rounds, "float64" or "float32".

    Attributes:
        coef_: the weights, (d,).
        intercept_: the intercept; 0.0 for an objective without one.
        n_iter_: the rounds done.
        gap_: the relative gap at the end.
        strength_: the strength, or the radius, of psi; None if psi has neither.
        n_features_in_, feature_names_in_: the number of features, and the columns of a DataFrame.
    """

    intercept_: float

    def fit(
        self, X: ArrayLike, y: ArrayLike, clients: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit the model, and return this estimator.

        Args:
            X: features, (n, d), dense.
            y: targets, (n,).
            clients: the name of each row's client, (n,). None: one client has all rows.
            sample_weight: the weight of each row, (n,): weight 2 counts as the row twice.

        Raises ValueError for input that does not fit.
        """
        features, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)  # pyright: ignore[reportArgumentType]
        rows = select_rows(features, targets, clients, sample_weight)
        self._fit(*rows, task=Regression())
        self.coef_ = self._params["weights"]
        self.intercept_ = float(self._params.get("bias", 0.0))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the expected target of each row, (n,)."""
        linear = self._predict_linear(X)
        expected = expected_targets(self._objective, linear)
        return linear if expected is None else expected


class FederatedClassifier(ClassifierMixin, FederatedLinearModel):
    """A linear classifier whose rows stay with their clients, as an estimator of scikit-learn.

    The parameters are those of FederatedRegressor. The objective is by default Logistic(), the mean cross entropy of
    a sigmoid for two classes and of a softmax for more: strength 1 / (C n) with "l1" is C of scikit-learn's
    LogisticRegression with n rows. Labels may be text.

    Attributes:
        classes_: the labels, sorted.
        coef_: the weights, (1, d) for two classes, else (classes, d).
        intercept_: the intercepts, (1,) or (classes,); 0.0 for an objective without them.
        n_iter_, gap_, strength_, n_features_in_, feature_names_in_: as in FederatedRegressor.
    """

    classes_: np.ndarray
    intercept_: NDArray[np.float64]

    def fit(
        self, X: ArrayLike, y: ArrayLike, clients: ArrayLike | None = None, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Fit the model, and return this estimator.

        Args:
            X: features, (n, d), dense.
            y: labels, (n,).
            clients, sample_weight: as in FederatedRegressor.

        Raises ValueError for input that does not fit.
        """
        features, targets = validate_data(self, X, y, dtype=np.float64)  # pyright: ignore[reportArgumentType]
        check_classification_targets(targets)
        features, targets, names, weights = select_rows(features, targets, clients, sample_weight)
        self.classes_, label = np.unique(targets, return_inverse=True)
        n_classes = len(self.classes_)
        if n_classes < 2:
            raise InvalidInput(f"the labels have one class only, '{self.classes_[0]}': give two or more")
        task: Task = Multiclass()
        if n_classes == 2:
            task = Binary()
        self._fit(features, label, names, weights, task=task)
        self.coef_ = self._params["weights"].reshape(self.n_features_in_, -1).T
        self.intercept_ = np.broadcast_to(self._params.get("bias", 0.0), len(self.coef_)).copy()
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the linear predictor: (n,) for two classes, positive for the second, else (n, classes)."""
        return self._predict_linear(X)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the label of each row, (n,)."""
        scores = self._predict_linear(X)
        return self.classes_[self._objective.classify(scores)]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each class, (n, classes). Raises ValueError for an objective without them."""
        scores = self._predict_linear(X)
        probabilities = class_probabilities(self._objective, scores)
        if probabilities is None:
            raise InvalidInput(f"`objective={self._objective!r}` defines no probabilities: take decision_function")
        return probabilities


def select_rows(
    X: Any, y: Any, clients: ArrayLike | None, sample_weight: ArrayLike | None
) -> tuple[NDArray[np.float64], np.ndarray, np.ndarray | None, NDArray[np.float64] | None]:
    """Return the rows whose weight is positive, with their clients and weights; the arguments are those of ``fit``.

    Raises ValueError for lengths that differ, for negative weights, and for weights that are all 0.
    """
    names = None if clients is None else np.asarray(clients)
    check_consistent_length(X, names)
    if sample_weight is None:
        return X, y, names, None
    weights: Any = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    counts = weights > 0
    if not counts.any():  # which some versions of scikit-learn let pass
        raise InvalidInput("sample_weight: all weights are 0; give a row a positive weight")
    return X[counts], y[counts], None if names is None else names[counts], weights[counts]


# A fit without a record: rounds until a certificate shows that the objective is near its optimum.


@dataclass(frozen=True)
class Fit:
    """The solution of a run that ended at a tolerance, or after its last round.

    Attributes:
        params: the parameters by name, float64.
        regularizer: psi with the strength of the run.
        n_rounds: the rounds done.
        gap: the certificate at the solution, relative to the zero model, as in ``fit_to_tolerance``.
        certificate_kind: "duality gap" or "prox-gradient norm".
    """

    params: dict[str, np.ndarray]
    regularizer: Regularizer
    n_rounds: int
    gap: float
    certificate_kind: str


def fit_to_tolerance(experiment: PreparedExperiment, tolerance: float) -> Fit:
    """Run an experiment until its relative gap is at most ``tolerance``, or to its last round, and write no files.

    The gap is a certificate of how near a point is to the optimum, relative to the zero model, at which a run starts:
    the duality gap, an upper bound on the objective minus its optimum, relative to the objective of the zero model with
    the best intercept. Problems without a known dual have the norm of the prox-gradient map, which is no bound,
    relative to the norm at 0. The gap is computed at each evaluation but the first, which is that of the start. Raises
    UserError for what a user can fix, and if the run diverges.
    """
    data = build.load_data(experiment)
    experiment = build.bind_objective(experiment, data)
    experiment = experiment.with_resolved(reg=resolve_strength(experiment, data))
    experiment, _ = build.resolve_auto(experiment, data)
    settings = experiment.settings
    smoothness = 1.0
    if experiment.objective.has_curvature_bound:
        smoothness = build.compute_curvature_bounds(experiment, data, full_batch=True)[1]
    engine = build.build_engine(experiment, data)
    with jax.enable_x64(True):
        problem = build.build_problem(experiment, data)
        rows = gather_rows(data, settings.client_weighting)
        rows = rows._replace(weight=jnp.asarray(rows.weight, jnp.float64))
        programs = solver.compile_programs(problem, rows.x.shape[1])
        curvature = jnp.asarray(smoothness, jnp.float64)
    numbers = numeric_fields(problem.regularizer)
    scale = None
    fit = None
    with use_precision(settings.precision):
        run = RunHistory(experiment.with_resolved(settings=replace(settings, stop=None)))
        for snapshot in RunFollower(engine, [run], [experiment.numbers()]).follow():
            if run.divergence_round:
                raise UserError(f"the run diverged in round {run.divergence_round}: give algorithm a smaller rate, or "
                                "leave it auto")  # fmt: skip
            params = {name: np.asarray(values[0], np.float64) for name, values in snapshot.solution.items()}
            objective = float(snapshot.metrics["objective"][0])
            with jax.enable_x64(True):
                w = Vector({name: jnp.asarray(value, jnp.float64) for name, value in params.items()})
                _, best_objective, certificate = programs.certify(numbers, w, curvature, rows)
            best_objective = float(best_objective)  # with the best intercept, whose certificate this is
            certificate = float(certificate)
            if scale is None:
                scale = certificate
                if programs.has_gap:
                    scale = max(abs(best_objective), _ROUNDING * abs(objective))
                continue
            if programs.has_gap:
                certificate += objective - best_objective
            gap = float(np.inf)
            if certificate == 0:
                gap = 0.0
            elif np.isfinite(certificate) and scale > 0:
                gap = abs(certificate) / scale
            kind = "duality gap" if programs.has_gap else "prox-gradient norm"
            fit = Fit(params, experiment.reg, snapshot.round, gap, kind)
            if gap <= tolerance:
                break
    assert fit is not None
    return fit


def choose_strength(experiment: PreparedExperiment) -> PreparedExperiment:
    """Return the experiment with the strength, or the radius, that cross-validation on five folds of rows chooses.

    The runs of the folds end where the objective comes to rest, by the setting ``stop``. The returned experiment keeps
    this setting, which ``fit_to_tolerance`` does not use. Raises UserError.
    """
    experiment = replace_plugins(experiment, replace(experiment.settings, stop={RELATIVE_CHANGE: _REST}))
    with TemporaryDirectory() as folder:
        plan = plan_selection(experiment, SelectOptions(), folder)
        with plan.study.claim():
            return plan.apply(plan.select_value())
