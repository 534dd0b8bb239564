"""The model of a record as a fitted estimator of scikit-learn."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin

from fcorun.base.config import build_plugin
from fcorun.base.errors import UserError, find_spelling
from fcorun.base.records.formats import READ_ERRORS
from fcorun.base.records.record import CLIENT_INTERCEPTS, PERSONAL, SHARED, Record
from fcorun.base.trust import locate
from fcorun.data.tables.cells import names_as_text
from fcorun.data.tables.scaling import ClientScalings, Scaling
from fcorun.experiment.threshold_rule import DEFAULT_THRESHOLD
from fcorun.methods.objectives.cox import Cox
from fcorun.methods.objectives.log_link import Gamma, Poisson
from fcorun.methods.objectives.logistic import OneVsRest
from fcorun.methods.objectives.mlp import MLP
from fcorun.methods.objectives.objective import Objective, add_intercept, is_linear_model
from fcorun.methods.objectives.robust import Huber, Quantile
from fcorun.results.model_outputs import class_probabilities, expected_targets
from fcorun.results.models.coefficients import count_outputs, personal_only

_LABEL_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


@dataclass(frozen=True)
class _SavedModel:
    """The model of a record, for one client or for all.

    Attributes:
        folder: the folder of the record.
        objective: the objective that the model was trained with.
        data: the section ``data`` of summary.json.
        params: the parameters by name, as trained.
        scaling: the standardization of the features, or None.
    """

    folder: Path
    objective: Any
    data: dict[str, Any]
    params: dict[str, np.ndarray]
    scaling: Scaling | None

    def in_raw_units(self, weights: np.ndarray, bias: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights (d, outputs) and the bias that act on raw features.

        The bias has shape (outputs,), or (cuts,) for several cuts of one output.
        """
        weights = np.asarray(weights, float)
        bias = np.asarray(bias, float)
        if self.scaling is not None:
            weights, bias = self.scaling.to_original_units(weights, bias)
        return weights * self.data.get("scale", 1.0), bias + np.zeros(weights.shape[-1])

    @property
    def classes(self) -> np.ndarray:
        """The class labels in the type that they have in the data."""
        label_type = _LABEL_TYPES.get(self.data.get("class_type", "str"), str)
        if label_type is bool:
            return np.array([label == "True" for label in self.data["classes"]])
        return np.array([label_type(label) for label in self.data["classes"]])


def load_estimator(record: Record, client: str | None = None, trust: str | Path | None = None) -> Any:
    """Return a fitted estimator of scikit-learn that predicts as a record does.

    The estimator is that of ``load_model``. If the record's threshold between two classes is not 0.5, the estimator is
    a fitted ``FixedThresholdClassifier`` with this threshold, whose ``estimator_`` is that of ``load_model``.

    Args: as for ``load_model``.

    Raises UserError as ``load_model``, and for the shared model of a record that has personal models alone.
    """
    if client is not None:
        known = record.summary_or_empty.get("data", {}).get("client_names", ())
        client = spell_as_in_record([client], known)[0]
    model = load_model(record, client, trust)
    clients = clients_with_personal_models(record)
    if client not in clients and personal_only(record.rows) and "objective" not in record.rows[-1]:
        advice = "give client=NAME, one of its clients" if clients else "they are at their sites, or were not saved"
        raise UserError(f"{record.folder} has personal models and no shared one: {advice}")
    threshold = read_threshold(record, client)
    if threshold == DEFAULT_THRESHOLD:
        return model
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import FixedThresholdClassifier

    positive = record.summary["data"]["classes"][1]
    (label,) = [label for label in model.classes_ if str(label) == positive]
    options: Any = {"threshold": threshold, "pos_label": label, "response_method": "predict_proba"}
    estimator = FixedThresholdClassifier(FrozenEstimator(model), **options)
    estimator.estimator_ = model  # fitted already
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(model, name):
            setattr(estimator, name, getattr(model, name))
    return estimator


def read_threshold(record: Record, client: str | None = None) -> float:
    """Return the probability from which on a record predicts the positive class for rows of a client."""
    section = record.summary.get("threshold") or {}
    model = PERSONAL if client in clients_with_personal_models(record) else SHARED
    return section.get(model, DEFAULT_THRESHOLD)


def load_model(record: Record, client: str | None = None, trust: str | Path | None = None) -> Any:
    """Return a fitted estimator of scikit-learn with the model of a record.

    Its threshold between two classes is 0.5, whatever that of the record.

    The estimator takes raw features, not standardized, in the order of the record; ``coef_`` and ``intercept_`` are in
    their units. Regressions give ``LinearRegression``, ``PoissonRegressor``, ``GammaRegressor``, ``HuberRegressor`` or
    ``QuantileRegressor``, which take an offset of 0; Cox's model gives ``LinearRegression`` of the linear predictor.
    Softmax and logistic regression give ``LogisticRegression``. One-vs-rest and other linear classifiers give
    ``SGDClassifier``, without ``predict_proba`` unless it is one-vs-rest; networks give ``MLPClassifier``; ordered
    classes give ``SharedWeightsClassifier``. The attributes are those that the run fitted. Of the estimator's options,
    which a clone would be fitted with, those that predictions need follow the record, such as fit_intercept, quantile
    and hidden_layer_sizes; the others, such as penalties, are scikit-learn's defaults.

    ``classes_`` are sorted, as scikit-learn's metrics expect; ``coef_`` belongs to the second of two classes. If
    ``data.positive`` is the first, ``coef_`` has the opposite sign of coefficients.csv.

    Args:
        client: a client whose personal model is loaded if the record has one, else the shared model, with the client's
            intercept if clients have intercepts of their own. With standardize=per_client, the client's own
            standardization is used. None or an unknown client: the shared model, with the mean of the clients'
            intercepts, and with the means of all training rows and the deviation within clients.
        trust: the folder from which the class of the objective is imported. None: classes that are neither fcorun's nor
            imported already are refused.

    Raises UserError for a record that is not done, or that lacks what an estimator needs, and for a client whose name
    differs from a known one in capitals or spaces only, or as 1.0 does from 1.
    """
    model = _read_model(record, client, trust)
    known = [*clients_with_personal_models(record), *model.data.get("client_names", ())]
    if client is not None and client not in known:
        spelling = find_spelling(names_as_text(np.array([client]))[0], known)
        if spelling is not None:
            raise UserError(f"client={client}: the record has no such client: did you mean '{spelling}'?")
    objective = model.objective
    is_linear = is_linear_model(type(objective))
    if isinstance(objective, MLP) and type(objective).predict is MLP.predict:
        estimator = _fitted_network(model)
    else:
        estimator = _fitted_linear_model(model) if is_linear else None
    if estimator is None:
        reason = "whose predictions do not fit the target" if is_linear else "neither linear nor mlp"
        raise UserError(
            f"{model.folder} cannot predict: there is no estimator for {type(objective).__name__}, {reason}"
        )
    estimator.n_features_in_ = int(model.data["features"])
    if model.data["feature_names"]:
        estimator.feature_names_in_ = np.array(model.data["feature_names"], dtype=object)
    return estimator


def spell_as_in_record(clients: Sequence[str | None] | np.ndarray, known: Sequence[str]) -> np.ndarray:
    """Return the clients of rows, (n,), as the record spells them: older records may know a client 1 as 1.0."""
    spelling = dict(zip(names_as_text(np.array(known, str)).tolist(), known, strict=True))
    spelling |= {name: name for name in known}
    return np.array([spelling.get(name, name) for name in clients], object)


def clients_with_personal_models(record: Record) -> list[str]:
    """Return the names of the clients that have personal models in a record."""
    return [str(name) for name in record.personal.get("client", ())]


def _read_model(record: Record, client: str | None, trust: str | Path | None) -> _SavedModel:
    """Return the saved model of a client, or of all clients. Raises UserError as ``load_model``."""
    folder = record.folder
    status = record.status.get("status", "no status.json")
    if status != "done":
        raise UserError(
            f"{folder} is no record of a run that is done ({status}): give the folder of one, with its status.json"
        )
    try:
        data = record.summary["data"]
        config = record.config
        params = dict(record.solution)
        _ = data["features"], data["task"], data["classes"], data["feature_names"]  # KeyError if one is missing
        if not issubclass(locate(config["objective"]["class"], "objective.class", trust), Objective):
            raise UserError(
                f"{folder} cannot predict: `objective.class={config['objective']['class']}` is no Objective"
            )
        objective = build_plugin("objective", config["objective"])
        intercepts = params.pop(CLIENT_INTERCEPTS, None)
        if intercepts is not None and client in data["client_names"]:
            params["bias"] = intercepts[data["client_names"].index(client)]
        clients = clients_with_personal_models(record)
        if client in clients:
            m = clients.index(client)
            params = {name: values[m] for name, values in record.personal.items() if name != "client"}
        if is_linear_model(type(objective)):
            count_outputs(np.shape(params["weights"]), np.shape(params.get("bias", 0.0)), data)
    except (*READ_ERRORS, TypeError) as error:
        lost = "its summary.json, config.yaml, solution.npz or personal.npz is lost, damaged or too old"
        raise UserError(f"{folder} cannot predict: {lost}; run it again with `force=true`") from error
    if objective.client_intercepts and intercepts is None:
        raise UserError(f"{folder} cannot predict: each client's intercept is at its site: give the record that the "
                        "site keeps")  # fmt: skip
    if not all(np.isfinite(value).all() for value in params.values()):
        raise UserError(f"{folder} cannot predict: its parameters are not finite; give another record")
    standardized = data.get("standardized") or {}
    by = standardized.get("by")
    if by == "per_run":
        raise UserError(
            f"{folder} cannot predict: each voxel was standardized within its run, and new images would have to be "
            "within theirs; fcorun weights has its maps"
        )
    if by == "per_client" and "sites" in data and not record.scaling:
        raise UserError(
            f"{folder} cannot predict: each client's means and deviations, by which its features were standardized, "
            "are at its site; give the record that the site keeps"
        )
    scaling = None
    try:
        if by == "per_client":
            scaling = ClientScalings.from_dict(record.scaling).for_client(client)
        elif standardized:
            scaling = Scaling.from_dict(standardized)
    except (*READ_ERRORS, TypeError) as error:
        raise UserError(
            f"{folder} cannot predict: the means and deviations by which its features were standardized are lost or "
            "damaged; run it again with `force=true`"
        ) from error
    return _SavedModel(folder, objective, data, params, scaling)


def _unfitted_regressor(objective: Any) -> Any | None:
    """Return an estimator, not fitted, for the regression of an objective; None if scikit-learn has none for it."""
    from sklearn import linear_model

    options = {"fit_intercept": objective.intercept}
    if isinstance(objective, (Poisson, Gamma)):
        kind: Any = linear_model.PoissonRegressor if isinstance(objective, Poisson) else linear_model.GammaRegressor
        regressor = kind(**options)
        regressor._base_loss = regressor._get_loss()  # set by fit in scikit-learn: its link is used in predictions
        return regressor
    if isinstance(objective, Quantile):
        return linear_model.QuantileRegressor(quantile=objective.level, **options)
    if isinstance(objective, Huber):
        return linear_model.HuberRegressor(**options)
    if isinstance(objective, Cox):
        return linear_model.LinearRegression(**options)  # of the linear predictor
    predictions = np.array([-2.0, 0.0, 0.7])
    expected = expected_targets(objective, predictions)
    if expected is None or not np.array_equal(expected, predictions):
        return None
    return linear_model.LinearRegression(**options)


def _fitted_linear_model(model: _SavedModel) -> Any | None:
    """Return a linear model; None if scikit-learn has none for the regression of the objective."""
    from sklearn.linear_model import LogisticRegression, SGDClassifier

    objective = model.objective
    params = model.params
    weights = params["weights"].reshape(model.data["features"], -1)
    weights, bias = model.in_raw_units(weights, params.get("bias", 0.0))
    estimator: Any
    if not model.data["classes"]:
        estimator = _unfitted_regressor(objective)
        if estimator is not None:
            estimator.coef_ = weights[:, 0]
            estimator.intercept_ = float(bias[0])
        return estimator
    if len(bias) > weights.shape[1]:
        estimator = SharedWeightsClassifier(objective)
        estimator.classes_ = model.classes
        estimator.coef_ = weights[:, 0]
        estimator.intercept_ = bias
        return estimator
    if isinstance(objective, OneVsRest):
        estimator = SGDClassifier(loss="log_loss", fit_intercept=objective.intercept)
    elif hasattr(objective, "probabilities"):
        estimator = LogisticRegression(fit_intercept=objective.intercept)
    else:
        estimator = SGDClassifier(fit_intercept=objective.intercept)
    classes, weights, bias = _sort_classes(model.classes, weights, bias)
    estimator.classes_ = classes
    estimator.coef_ = np.ascontiguousarray(weights.T)
    estimator.intercept_ = bias
    return estimator


def _sort_classes(
    classes: np.ndarray, weights: np.ndarray, bias: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two classes in sorted order, with the weights (d, 1) and the bias (1,) that belong to the second.

    More than two classes stay as they are.
    """
    if len(classes) != 2 or classes[0] < classes[1]:
        return classes, weights, bias
    return classes[::-1], 0.0 - weights, 0.0 - bias  # 0.0 - x, so that 0.0 does not become -0.0


def _fitted_network(model: _SavedModel) -> Any:
    """Return a network whose first layer takes raw features: the standardization is part of that layer."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import LabelBinarizer

    params = model.params
    hidden = tuple(model.objective.hidden)
    layers = [model.in_raw_units(params["weights1"], params["bias1"])]
    layers += [(params[f"weights{i}"], params[f"bias{i}"]) for i in range(2, len(hidden) + 2)]
    weights = [np.asarray(w, float).reshape(len(w), -1) for w, _ in layers]
    biases = [np.asarray(b, float).reshape(-1) for _, b in layers]
    classes, weights[-1], biases[-1] = _sort_classes(model.classes, weights[-1], biases[-1])
    estimator: Any = MLPClassifier(hidden, activation="relu")
    estimator.coefs_ = weights
    estimator.intercepts_ = biases
    estimator.n_layers_ = len(layers) + 1
    estimator.n_outputs_ = len(biases[-1])
    estimator.out_activation_ = "softmax" if len(classes) > 2 else "logistic"
    estimator.classes_ = classes
    estimator._label_binarizer = LabelBinarizer().fit(classes)
    return estimator


class SharedWeightsClassifier(ClassifierMixin, BaseEstimator):
    """A fitted model with one column of weights and an intercept for each cut between classes, on raw features.

    scikit-learn has no such model. ``classes_`` are in the order of the record, from the lowest to the highest class.

    Attributes:
        objective: turns log odds into probabilities.
        coef_: the weights, (d,).
        intercept_: the intercepts, (cuts,), or (n, cuts) for rows with offsets of their own.
        classes_: the labels, (cuts + 1,).
    """

    coef_: np.ndarray
    intercept_: np.ndarray
    classes_: np.ndarray

    def __init__(self, objective: Objective):
        self.objective = objective

    def decision_function(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n cuts"]:
        """Return the log odds of a class above each cut, (n, cuts)."""
        rows = X if issparse(X) else np.asarray(X, float)
        return add_intercept(rows @ self.coef_, np.atleast_2d(self.intercept_))

    def predict_proba(self, X: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n classes"]:
        """Return the probability of each class, (n, classes)."""
        probabilities = class_probabilities(self.objective, self.decision_function(X))
        assert probabilities is not None
        return probabilities

    def predict(self, X: Float[np.ndarray, "n d"]) -> Shaped[np.ndarray, " n"]:
        """Return the label of the most probable class of each row, (n,)."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
