"""The estimators of scikit-learn: its own checks, its own solvers' optima, weights, pipelines, and refusals."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fcorun
from fcorun import L1, FedDualAvg, FederatedClassifier, FederatedRegressor, LeastSquares
from fcorun.interface.api import estimators

STRENGTH = 0.05


def draw_rows(n=60):
    """Return features whose means are far from 0, a numeric target, and clients that differ in their features."""
    rng = np.random.default_rng(0)
    clients = np.array(["north", "south", "west"])[np.arange(n) % 3]
    x = rng.standard_normal((n, 4)) + 20 + (np.arange(n) % 3)[:, None]
    y = x @ [1.0, -1.0, 0.5, 0.0] + 0.3 * rng.standard_normal(n) + 5
    return x, y, clients


def cross_entropy_plus_l1(probabilities, labels, coef, strength):
    return log_loss(labels, probabilities) + strength * np.abs(coef).sum()


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [FederatedRegressor, FederatedClassifier])
def test_the_checks_of_scikit_learn_pass(estimator):
    check_estimator(estimator(), on_skip=None)


@pytest.mark.slow
def test_a_regression_reaches_the_objective_of_lasso():
    x, y, clients = draw_rows()
    model = FederatedRegressor(strength=STRENGTH, tol=1e-9).fit(x, y, clients=clients)
    lasso = Lasso(alpha=STRENGTH / 2, tol=1e-12).fit(x, y)

    def objective(fitted):
        return np.mean((y - fitted.predict(x)) ** 2) + STRENGTH * np.abs(fitted.coef_).sum()

    assert objective(model) == pytest.approx(objective(lasso), rel=1e-6)
    np.testing.assert_allclose(model.coef_, lasso.coef_, atol=1e-4)
    assert model.intercept_ == pytest.approx(lasso.intercept_, abs=1e-2)
    assert model.gap_ <= 1e-9
    assert model.strength_ == STRENGTH


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_classification_reaches_the_objective_of_scikit_learn(n_classes):
    x, y, clients = draw_rows()
    x = x - 20  # their solver does not center features
    thresholds = np.quantile(y, np.arange(1, n_classes) / n_classes)
    labels = np.array(["middle", "high", "low"])[np.digitize(y, thresholds)]
    model = FederatedClassifier(strength=STRENGTH, tol=1e-7).fit(x, labels, clients=clients)
    theirs = LogisticRegression(C=1 / (STRENGTH * len(x)), l1_ratio=1, solver="saga", tol=1e-9, max_iter=20_000)
    theirs.fit(x, labels)
    assert list(model.classes_) == list(theirs.classes_)
    assert model.coef_.shape == theirs.coef_.shape
    assert model.intercept_.shape == np.shape(theirs.intercept_)
    objectives = [
        cross_entropy_plus_l1(fitted.predict_proba(x), labels, fitted.coef_, STRENGTH) for fitted in (model, theirs)
    ]
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-6)
    np.testing.assert_array_equal(model.predict(x), model.classes_[model.predict_proba(x).argmax(axis=1)])
    assert model.decision_function(x).shape == ((60,) if n_classes == 2 else (60, 3))
    assert model.score(x, labels) == np.mean(model.predict(x) == labels)


@pytest.mark.slow
def test_weights_equal_repeated_rows_of_the_same_clients():
    x, y, clients = draw_rows(30)
    weights = np.arange(30) % 3 * 1.0
    weights[clients == "west"] = 0  # a client of no weight is left out
    counts = weights.astype(int)
    weighted = FederatedRegressor(strength=STRENGTH).fit(x, y, clients=clients, sample_weight=weights)
    x, y, clients = np.repeat(x, counts, axis=0), np.repeat(y, counts), np.repeat(clients, counts)
    repeated = FederatedRegressor(strength=STRENGTH).fit(x, y, clients=clients)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-9)
    assert weighted.intercept_ == pytest.approx(repeated.intercept_, rel=1e-9)
    assert weighted.n_iter_ == repeated.n_iter_


def test_weights_that_are_all_0_are_refused_also_by_older_versions_of_scikit_learn(monkeypatch):
    x, y, _ = draw_rows(30)
    monkeypatch.setattr(estimators, "_check_sample_weight", lambda weights, *_, **__: np.asarray(weights))
    for estimator in (FederatedRegressor, FederatedClassifier):
        with pytest.raises(ValueError, match="sample_weight: all weights are 0; give a row a positive weight"):
            estimator().fit(x, y > y.mean(), sample_weight=np.zeros(30))


class RecordingRegressor(FederatedRegressor):
    """A regressor that remembers the clients that it was given."""

    seen: list[list[str]] = []

    def fit(self, X, y, clients=None, sample_weight=None):
        self.seen.append(np.unique(np.asarray(clients)).tolist())
        return super().fit(X, y, clients=clients, sample_weight=sample_weight)


@pytest.mark.slow
def test_clients_are_routed_through_pipelines_searches_and_cross_validation():
    x, y, clients = draw_rows(30)
    RecordingRegressor.seen.clear()
    with config_context(enable_metadata_routing=True):
        model = RecordingRegressor(rounds=np.int64(200), tol=np.float32(1e-6)).set_fit_request(clients=True)
        pipeline = make_pipeline(StandardScaler(), model)
        search = GridSearchCV(pipeline, {"recordingregressor__strength": [0.01, 10.0]}, cv=2)
        search.fit(x, y, clients=clients)
        scores = cross_val_score(pipeline, x, y, cv=2, params={"clients": clients})
    assert search.best_params_ == {"recordingregressor__strength": 0.01}
    assert len(RecordingRegressor.seen) == 2 * 2 + 1 + 2
    assert all(seen == ["north", "south", "west"] for seen in RecordingRegressor.seen)
    assert scores.min() > 0.8


@pytest.mark.slow
def test_a_fit_above_the_tolerance_warns():
    x, y, clients = draw_rows(30)
    model = FederatedRegressor(FedDualAvg(), strength=STRENGTH, rounds=2)
    with pytest.warns(ConvergenceWarning, match="the duality gap is .* after 2 rounds, above tol=0.0001"):
        model.fit(x, y, clients=clients)
    assert model.n_iter_ == 2
    assert model.gap_ > 1e-4


@pytest.mark.slow
def test_a_problem_without_a_dual_is_certified_by_its_prox_gradient():
    x, y, _ = draw_rows(30)
    model = FederatedRegressor(regularizer="none").fit(x, y)
    solution = np.linalg.lstsq(np.column_stack([x, np.ones(30)]), y, rcond=None)[0]
    np.testing.assert_allclose([*model.coef_, model.intercept_], solution, rtol=1e-3, atol=1e-3)
    assert model.strength_ is None
    with pytest.warns(ConvergenceWarning, match="the prox-gradient norm is"):
        FederatedRegressor(FedDualAvg(), regularizer="none", rounds=1).fit(x, y)


@pytest.mark.parametrize(
    ("name", "value"), [("rounds", 0), ("tol", "small"), ("strength", -1), ("strength", [0.1, 0.2])]
)
def test_a_wrong_argument_is_named(name, value):
    x, y, _ = draw_rows(30)
    with pytest.raises(ValueError, match=f"{name}=.*must be"):
        FederatedRegressor(**{name: value}).fit(x, y)


@pytest.mark.slow
def test_a_strength_is_chosen_by_cross_validation_and_no_file_is_left():
    x, y, clients = draw_rows()
    model = FederatedRegressor(strength="cv", rounds=100).fit(x, y, clients=clients)
    assert model.strength_ is not None
    assert 1e-4 < model.strength_ < 0.2  # the noise is small, and the weights are not
    again = FederatedRegressor(strength=model.strength_, rounds=100).fit(x, y, clients=clients)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert model.get_params()["strength"] == "cv"
    assert not list(Path().iterdir())


@pytest.mark.slow
def test_frames_name_the_features_and_an_object_gives_its_own_numbers():
    x, y, _ = draw_rows(30)
    frame = pd.DataFrame(x, columns=["a", "b", "c", "d"])
    model = FederatedRegressor(objective=LeastSquares(intercept=False), regularizer=L1(0.3), tol=0.1).fit(frame, y)
    assert list(model.feature_names_in_) == ["a", "b", "c", "d"]
    assert model.intercept_ == 0
    assert model.strength_ == 0.3


@pytest.mark.slow
def test_refusals():
    x, y, clients = draw_rows(30)
    cases = {
        "no Algorithm": {"algorithm": fcorun.Centralized()},
        "trains no model for all clients": {"algorithm": fcorun.Local()},
        "no linear model": {"objective": fcorun.MLP()},
        "none of l1, l2": {"regularizer": "l3"},
        "no Regularizer": {"regularizer": L1},
        "has no strength": {"regularizer": "none", "strength": 1.0},
        "neither a number nor 'cv'": {"strength": "best"},
        "must be 0 or more|negative": {"strength": -1.0},
        "diverged in round": {"algorithm": FedDualAvg(client_lr=1e9)},
    }
    for message, parameters in cases.items():
        model = FederatedRegressor(**parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            with pytest.raises(ValueError, match=message):
                model.fit(x, y, clients=clients)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FederatedRegressor().fit(x, y, clients=clients[:-1])
    with pytest.raises(fcorun.UserError, match="client of row 2 is missing"):
        FederatedRegressor().fit(x, y, clients=np.array(["north", None, *clients[2:]]))
    with pytest.raises(ValueError, match="one class only, 'same'"):
        FederatedClassifier().fit(x, ["same"] * 30)
