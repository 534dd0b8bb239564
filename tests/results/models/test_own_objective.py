"""Objectives of a user: scores and estimators use only the methods that such an objective has."""

import numpy as np
import pandas as pd
import pytest
from helpers import fails

SOURCE = """
from dataclasses import dataclass
import jax.numpy as jnp
from fcorun.objectives import LinearModel

@dataclass(frozen=True)
class Counts(LinearModel):
    tasks = ("regression",)
    convex = True
    def second_derivative_bounds(self, outputs):
        return 0.0, 1000.0
    def loss(self, prediction, y):
        return jnp.exp(prediction / 100) - y * prediction / 100

@dataclass(frozen=True)
class Expected(Counts):
    convex = True
    def response(self, prediction):
        return jnp.exp(prediction / 100)

@dataclass(frozen=True)
class Hinge(LinearModel):
    tasks = ("binary",)
    convex = True
    def second_derivative_bounds(self, outputs):
        return 0.0, 1000.0
    def loss(self, prediction, y):
        return jnp.maximum(0, 1 - (2 * y - 1) * prediction)
"""


@pytest.mark.slow
def test_a_regression_without_response_has_no_estimator(trained, user_module, visits):
    user_module("mine", SOURCE)
    overrides = ("data.standardize=pooled", "algo.client_lr=0.1", "algo.server_lr=1")
    record = trained("regression", "objective.class=mine.Counts", *overrides, algo="fedavg")
    assert list(record.scores) == ["set", "model", "client", "n", "loss"]  # R2 of what?
    with fails("there is no estimator for Counts, whose predictions do not fit the target"):
        record.estimator()
    record = trained("regression", "objective.class=mine.Expected", *overrides, algo="fedavg")
    z = np.array([record.scores.query("set == 'train' and client == ''").iloc[0].calibration_intercept])
    assert np.isfinite(z).all()
    with fails("there is no estimator for Expected"):
        record.estimator()


@pytest.mark.slow
def test_a_classifier_without_probabilities_has_no_predict_proba(trained, user_module, visits):
    user_module("mine", SOURCE)
    overrides = ("data.standardize=pooled", "algo.client_lr=0.1", "algo.server_lr=1")
    record = trained("binary", "objective.class=mine.Hinge", *overrides, algo="fedavg")
    assert "auc" in record.scores
    assert "brier" not in record.scores
    model, table = record.estimator(), visits()[["age", "crp"]]
    assert not hasattr(model, "predict_proba")
    wanted = np.where(model.decision_function(table) > 0, "ill", "fit")
    np.testing.assert_array_equal(model.predict(pd.DataFrame(table)), wanted)
