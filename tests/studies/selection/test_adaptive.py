"""The adaptive lasso: oracles, no leak from held-out rows, the refit, refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
from four_clients import NAMES, config
from helpers import fails, not_none
from run_studies import select

from fcorun.studies.selection.path import compute_adaptive_factors
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

sklearn_linear: Any = sklearn.linear_model  # Any, as its types are incomplete
EXACT = ("algo=centralized", "algo.tolerance=1e-14")


def pilot_by_hand(x, y):
    """Return the coefficients of the pilot of least squares without 1/2, with an intercept."""
    x, y = x - x.mean(axis=0), y - y.mean()
    n, d = x.shape
    hessian = 2 * x.T @ x / n
    return np.linalg.solve(hessian + np.trace(hessian) / n * np.eye(d), 2 * x.T @ y / n)


def rescaled_lasso(x, y, weights, strengths):
    """Return the lasso on columns divided by their weights, (P, d)."""
    x, y = x - x.mean(axis=0), y - y.mean()
    path = sklearn_linear.lasso_path(x / weights, y, alphas=strengths / 2, tol=1e-14, max_iter=100_000)[1]
    return path.T / weights


@pytest.mark.slow
def test_each_fold_equals_the_lasso_on_rescaled_columns():
    """The weights of a fold follow from the rows that it trains on, and from no others."""
    options = SelectOptions(folds=3, points=6, adaptive="ridge")
    study = plan_selection(config(*EXACT), options, "out").study
    with study.claim():
        fits = study.compute_fits(lambda _, fit: fit, print)
    rows = study.data.train
    for name, subset in study.subsets.items():
        x, y = rows.x[subset.train].astype(float), rows.y[subset.train].astype(float)
        weights = 1 / np.abs(pilot_by_hand(x, y))
        expected = rescaled_lasso(x, y, weights, study.path.values)
        np.testing.assert_allclose(fits[name].solution["weights"], expected, atol=1e-6)
    assert not fits["all"].solution["weights"][0].any()
    assert (np.abs(fits["all"].solution["weights"][1]) > 1e-6).sum() in range(1, 8)


@pytest.mark.slow
def test_weights_are_numbers_of_one_program():
    """An algorithm over clients has the same solutions, though its program is compiled once for all folds."""
    options = SelectOptions(folds=2, points=4, adaptive="ridge")
    newton = ("algo=newton", "rounds=6", "eval_every=6", "precision=float64", "clients_per_round=null")
    study = plan_selection(config(*newton), options, "out").study
    with study.claim():
        fits = study.compute_fits(lambda _, fit: fit, print)
    for name, subset in study.subsets.items():
        x, y = study.data.train.x[subset.train].astype(float), study.data.train.y[subset.train].astype(float)
        expected = rescaled_lasso(x, y, 1 / np.abs(pilot_by_hand(x, y)), study.path.values)
        np.testing.assert_allclose(fits[name].solution["weights"], expected, atol=1e-5)


@pytest.mark.slow
def test_the_refit_is_an_ordinary_run_with_factors():
    settings = config(*EXACT, "data.standardize=pooled", "reg.factors={dose:0,age:2}")
    selection = select(settings, SelectOptions(folds=2, points=4, adaptive="ridge"), "out")
    record = not_none(selection.record)
    factors = record.config["reg"]["factors"]
    assert list(factors) == NAMES
    assert factors["dose"] == 0
    alone = compute_adaptive_factors(selection.experiment, selection.data)
    np.testing.assert_allclose(list(factors.values()), alone, rtol=1e-12)
    chosen = selection.fits["all"].solution["weights"][selection.choice.chosen_index]
    np.testing.assert_allclose(record.solution["weights"], chosen, atol=1e-5)
    assert json.loads(Path("out/selection.json").read_text())["adaptive"] == {"pilot": "ridge"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("reg=l2",), "give reg=l1 or elastic_net"),
        (("objective=huber",), "one coefficient a feature"),
        (("algo=local",), "trains own models of clients"),
    ],
)
def test_refusals(overrides, words):
    with fails(words):
        plan_selection(config(*overrides), SelectOptions(folds=2, points=2, adaptive="ridge", range=[0.1, 1]), "out")
    assert not Path("out").exists()
