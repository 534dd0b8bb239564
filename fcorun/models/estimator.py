"""The model of a record as a fitted estimator of scikit-learn."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fcorun.config import build_plugin, locate
from fcorun.errors import UserError
from fcorun.models.forward import expected_targets
from fcorun.objectives.base import Objective, is_linear_model
from fcorun.objectives.gamma import Gamma
from fcorun.objectives.huber import Huber
from fcorun.objectives.mlp import MLP
from fcorun.objectives.one_vs_rest import OneVsRest
from fcorun.objectives.poisson import Poisson
from fcorun.objectives.quantile import Quantile
from fcorun.records.formats import READ_ERRORS, yaml
from fcorun.records.record import Record
from fcorun.tables.scaling import ClientScalings, Scaling, to_original_units

_KINDS = {"int": int, "float": float, "bool": bool, "str": str}


@dataclass(frozen=True)
class _SavedModel:
    """What a record tells of its model.

    Attributes:
        told: of the data, of summary.json.
        params: as trained, by name.
        scaling: what the features were standardized by, or None.
    """

    folder: Path
    objective: Any
    told: dict[str, Any]
    params: dict[str, np.ndarray]
    scaling: Scaling | None

    def in_units(self, weights: np.ndarray, bias: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        """Weights (d, outputs) and bias (outputs,) that act on raw features."""
        return to_original_units(weights, bias, self.scaling, self.told.get("scale", 1.0))

    @property
    def classes(self) -> np.ndarray:
        """The labels, of the type that they had; text in records of before, which do not say."""
        kind = _KINDS.get(self.told.get("class_type", "str"), str)
        return np.array([label == "True" if kind is bool else kind(label) for label in self.told["classes"]])


def load_estimator(record: Record, client: str | None = None, trust: str | Path | None = None) -> Any:
    """A fitted object of scikit-learn with the model of a record: it takes raw features, not standardized, in the order
    of the record, and has ``coef_`` and ``intercept_`` in their units.

    ``LinearRegression``, ``PoissonRegressor``, ``GammaRegressor``, ``HuberRegressor``, ``QuantileRegressor``, which
    take an offset of 0; ``LogisticRegression`` (also of more classes, a softmax), ``SGDClassifier`` for one against
    the rest and for other linear classifiers, which have no ``predict_proba``, and ``MLPClassifier``. The run has found
    what they hold; their options, by which they or a clone would be fitted anew, are scikit-learn's own.

    ``classes_`` are in order, as scikit-learn's metrics take them to be; ``coef_`` speaks for the second of two. Where
    ``data.positive`` is the first, it is minus that of coefficients.csv.

    Args:
        client: takes that client's own model where the record has one, else the shared one, and standardizes as that
            client does, if each did so by itself. None, or a client that the record does not know: the shared model,
            and the means of all training rows with the deviation within clients.
        trust: the folder from which the class of the objective is imported. None: one that is neither fcorun's nor
            imported already is refused.

    Raises UserError for a record that is not done, or lacks what is needed.
    """
    return _fitted(_read(record, client, trust))


def clients_with_own_models(record: Record) -> list[str]:
    """The clients that have models of their own in a record."""
    return [str(name) for name in record.personal.get("client", ())]


def _read(record: Record, client: str | None, trust: str | Path | None) -> _SavedModel:
    folder = record.folder
    status = record.status.get("status", "nothing is there")
    if status != "done":
        raise UserError(f"{folder} is no record of a run that is done ({status}): give the folder of one, with its "
                        "status.json")  # fmt: skip
    try:
        told, config, params = record.summary["data"], record.config, dict(record.solution)
        _ = told["features"], told["task"], told["classes"], told["feature_names"]
        if not issubclass(locate(config["objective"]["class"], "objective.class", trust), Objective):
            raise UserError(f"{folder} cannot predict: objective.class={config['objective']['class']} is no Objective")
        objective = build_plugin("objective", config["objective"])
        if client in (names := clients_with_own_models(record)):
            place = names.index(client)
            params = {name: values[place] for name, values in record.personal.items() if name != "client"}
    except (*READ_ERRORS, TypeError, yaml.YAMLError) as error:
        lost = "its summary.json, config.yaml, solution.npz or personal.npz is lost, damaged or too old"
        raise UserError(f"{folder} cannot predict: {lost}; run it again with force=true") from error
    if not all(np.isfinite(value).all() for value in params.values()):
        raise UserError(f"{folder} cannot predict: its parameters are not finite; give another record")
    if "scale" not in told and str(config["data"].get("class", "")).startswith("fcorun.datasets.femnist."):
        raise UserError(f"{folder} cannot predict: it does not say that pixels were divided by 255, as it is of before "
                        "records did; run it again with force=true")  # fmt: skip
    return _SavedModel(folder, objective, told, params, _scaling(record, told, client))


def _scaling(record: Record, told: dict[str, Any], client: str | None) -> Scaling | None:
    """What the features of a client were standardized by. Raises UserError where the record has not kept it."""
    noted = told.get("standardized")
    if not noted:
        return None
    if noted["by"] == "per_run":
        raise UserError(f"{record.folder} cannot predict: each voxel was standardized within its run, and new images "
                        "would have to be within theirs; fcorun weights has its maps")  # fmt: skip
    try:
        if noted["by"] != "per_client":
            return Scaling.from_dict(noted)
        return ClientScalings.from_dict(record.scaling).for_client(client)
    except (*READ_ERRORS, TypeError) as error:
        raise UserError(f"{record.folder} cannot predict: it has not kept what its features were standardized by, "
                        "for it is of before records did; run it again with force=true") from error  # fmt: skip


def _fitted(told: _SavedModel) -> Any:
    """The estimator for what a record tells."""
    objective, task = told.objective, told.told["task"]
    is_linear = is_linear_model(type(objective))
    if isinstance(objective, MLP) and type(objective).predict is MLP.predict:
        found = _network(told)
    elif is_linear and (task != "regression" or _regressor(objective) is not None):
        found = _linear(told, task)
    else:
        why = "whose predictions are not what it expects of the target" if is_linear else "neither linear nor mlp"
        raise UserError(f"{told.folder} cannot predict: there is no estimator for {type(objective).__name__}, {why}")
    found.n_features_in_ = int(told.told["features"])
    if told.told["feature_names"]:
        found.feature_names_in_ = np.array(told.told["feature_names"], dtype=object)
    return found


def _expects_the_prediction(objective: Any) -> bool:
    """Whether what an objective of regressions expects of the target is its prediction."""
    some = np.array([-2.0, 0.0, 0.7])
    found = expected_targets(objective, some)
    return found is not None and np.array_equal(found, some)


def _regressor(objective: Any) -> Any | None:
    """An estimator, not fitted, of the regression that an objective is; None for one that is not known."""
    from sklearn import linear_model as of

    own = {"fit_intercept": objective.intercept}
    if isinstance(objective, (Poisson, Gamma)):
        found: Any = (of.PoissonRegressor if isinstance(objective, Poisson) else of.GammaRegressor)(**own)
        found._base_loss = found._get_loss()  # which fitting sets: predictions go through its link
        return found
    if isinstance(objective, Quantile):
        return of.QuantileRegressor(quantile=objective.level, **own)
    if isinstance(objective, Huber):
        return of.HuberRegressor(**own)
    return of.LinearRegression(**own) if _expects_the_prediction(objective) else None


def _linear(told: _SavedModel, task: str) -> Any:
    from sklearn.linear_model import LogisticRegression, SGDClassifier

    objective, params = told.objective, told.params
    weights, bias = told.in_units(params["weights"].reshape(told.told["features"], -1), params.get("bias", 0.0))
    if task == "regression":
        found: Any = _regressor(objective)
        found.coef_, found.intercept_ = weights[:, 0], float(bias[0])
        return found
    if isinstance(objective, OneVsRest):
        found = SGDClassifier(loss="log_loss", fit_intercept=objective.intercept)
    elif hasattr(objective, "probabilities"):
        found = LogisticRegression(fit_intercept=objective.intercept)
    else:
        found = SGDClassifier(fit_intercept=objective.intercept)
    classes, weights, bias = _in_order(told.classes, weights, bias)
    found.classes_, found.coef_, found.intercept_ = classes, np.ascontiguousarray(weights.T), bias
    return found


def _in_order(classes: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two classes in order, with the last layer's weights (d, 1) and bias (1,) that speak for the second of them."""
    if len(classes) != 2 or classes[0] < classes[1]:
        return classes, weights, bias
    return classes[::-1], 0.0 - weights, 0.0 - bias  # and no -0.0


def _network(told: _SavedModel) -> Any:
    """The first layer takes raw features, what they were standardized by being part of it."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import LabelBinarizer

    layers, params, classes = len(told.objective.hidden) + 1, told.params, told.classes
    first = told.in_units(params["weights1"], params["bias1"])
    rest = [(params[f"weights{i + 1}"], params[f"bias{i + 1}"]) for i in range(1, layers)]
    units = [(np.asarray(w, float).reshape(len(w), -1), np.asarray(b, float).reshape(-1)) for w, b in (first, *rest)]
    classes, *last = _in_order(classes, *units[-1])
    units[-1] = (last[0], last[1])
    found: Any = MLPClassifier(tuple(told.objective.hidden), activation="relu")
    found.coefs_, found.intercepts_ = [w for w, _ in units], [b for _, b in units]
    found.n_layers_, found.n_outputs_ = layers + 1, len(units[-1][1])
    found.out_activation_ = "softmax" if len(classes) > 2 else "logistic"
    found.classes_, found._label_binarizer = classes, LabelBinarizer().fit(classes)
    return found
