"""The relaxed lasso: oracles for each share, fits that do not exist, the record of the refit, refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model
from four_clients import config
from helpers import fails, not_none
from run_studies import select
from sklearn.metrics import log_loss, mean_poisson_deviance

from fcorun.base.records.record import load_records
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.interface.api.run_record import RunRecord
from fcorun.interface.cli.commands.study_command import split_options
from fcorun.reports.page.build_page import build_page
from fcorun.results.models.relaxed import COLLINEAR, NO_OPTIMUM, UnpenalizedRefits
from fcorun.studies.selection.fitting import END_STATES
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions

linear: Any = sklearn.linear_model  # Any, as its types are incomplete
EXACT = ("algo=centralized", "algo.tolerance=1e-14", "cutoff=1e-8")


def fit_all(settings, options):
    study = plan_selection(settings, options, "out").study
    with study.claim():
        return study, study.compute_fits(lambda _, fit: fit, print)


def refit_by_sklearn(task, x, y):
    """Return the coefficients and the intercept of a fit without a penalty."""
    tight = {"tol": 1e-12, "max_iter": 100_000}
    if task == "regression":
        model = linear.LinearRegression()
    elif task == "binary":
        model = linear.LogisticRegression(C=np.inf, solver="newton-cholesky", **tight)
    else:
        model = linear.PoissonRegressor(alpha=0, solver="newton-cholesky", **tight)
    if not x.shape[1]:
        mean = y.mean()
        link = {"regression": mean, "binary": np.log(mean / (1 - mean)), "poisson": np.log(mean)}
        return np.zeros(0), link[task]
    model.fit(x, y)
    return np.ravel(model.coef_), float(np.ravel(model.intercept_)[0])


def loss_by_hand(task, score, y):
    if task == "regression":
        return ((score - y) ** 2).mean()
    if task == "binary":
        return log_loss(y, 1 / (1 + np.exp(-score)), labels=[0, 1])
    return mean_poisson_deviance(y, np.exp(score)) / 2


def settings_of(task, *overrides):
    """Return the configuration of a task; counts and labels have a weak signal, so that fits exist."""
    settings = config(*EXACT, *overrides, task="binary" if task == "binary" else "regression")
    frame = pd.read_csv("rows.csv")
    rng = np.random.default_rng(2)
    score = 0.4 * frame["age"] - 0.2 * frame["dose"] + 0.3
    if task == "binary":
        frame["y"] = (rng.random(60) < 1 / (1 + np.exp(-score))).astype(int)
    elif task == "poisson":
        frame["y"] = rng.poisson(np.exp(score))
    frame.to_csv("rows.csv", index=False)
    return settings


@pytest.mark.slow
@pytest.mark.parametrize("task", ["regression", "binary", "poisson"])
def test_each_share_mixes_the_lasso_with_a_refit_by_scikit_learn(task):
    overrides = ("objective=poisson",) if task == "poisson" else ()
    shares = (1.0, 0.6, 0.0)
    options = SelectOptions(folds=2, points=4, relax=list(shares), range=[0.02, 0.3])
    study, fits = fit_all(settings_of(task, *overrides), options)
    rows = study.data.train
    n_refits = 0
    for name, subset in study.subsets.items():
        fit = fits[name]
        assert END_STATES.index("done") in fit.end_state
        x, y = rows.x[subset.train].astype(float), rows.y[subset.train].astype(float)
        held_out = rows.x[subset.validation].astype(float), rows.y[subset.validation].astype(float)
        for p in range(4):
            lasso, intercept = fit.solution["weights"][p], fit.solution["bias"][p]
            if task == "regression":
                by_hand = linear.Lasso(study.path.values[p] / 2, tol=1e-14, max_iter=100_000).fit(x, y)
                np.testing.assert_allclose(lasso, by_hand.coef_, atol=1e-6)
            support = np.abs(lasso) > 1e-8
            coefficients, constant = refit_by_sklearn(task, x[:, support], y)
            for s, share in enumerate(shares):
                expected = share * lasso
                expected[support] += (1 - share) * coefficients
                bias = share * intercept + (1 - share) * constant
                at = s * 4 + p
                np.testing.assert_allclose(fit.solution["weights"][at], expected, atol=1e-6)
                np.testing.assert_allclose(fit.solution["bias"][at], bias, atol=1e-6)
                n_refits += 1
                if name != "all":
                    score = held_out[0] @ expected + bias
                    np.testing.assert_allclose(fit.held_out["shared"][at], score, atol=1e-5)
                    expected_loss = loss_by_hand(task, score, held_out[1])
                    assert fit.metrics["val_loss"][at] == pytest.approx(expected_loss, rel=1e-5)
                objective = fit.metrics["train_loss"][p] + study.path.values[p] * np.abs(lasso).sum()
                objective = objective if share == 1 else np.nan
                assert fit.metrics["objective"][at] == pytest.approx(objective, rel=1e-6, nan_ok=True)
    assert n_refits == 36


@pytest.mark.slow
def test_the_refit_is_a_record_that_says_what_it_is(monkeypatch):
    drawn = []
    monkeypatch.setattr("fcorun.runs.finish._begin_pictures", lambda job, *_: drawn.append(job.rows) or [])
    settings = settings_of("regression", "data.validation=0.2", "reg.factors={x5:0}", "data.standardize=pooled")
    selection = select(settings, SelectOptions(folds=2, points=3, relax=[0.25], range=[0.1, 0.5]), "out")
    record = RunRecord(not_none(selection.record).folder)
    chosen = selection.choice.chosen_index
    strength = selection.path.values[chosen]
    fit = selection.fits["all"]
    np.testing.assert_allclose(record.solution["weights"], fit.solution["weights"][chosen], atol=1e-6)
    assert record.solution["weights"][7] != 0  # without a penalty, it is part of the refit
    assert record.config["relax"] == 0.25
    assert record.status["status"] == "done"
    assert "the coefficients are relaxed: 0.25 times those of the lasso at strength" in record.status["reason"]
    table = pd.read_csv("out/refit/relaxed.csv")
    np.testing.assert_allclose(table["relaxed"], 0.25 * table["lasso"] + 0.75 * table["refit"], atol=1e-12)
    np.testing.assert_array_equal(table["relaxed"], record.coefficients["value"])
    summary = record.summary
    assert summary["certificate"] is None
    assert summary["relaxed"]["strength"] == pytest.approx(strength)
    assert summary["relaxed"]["certificate_of_lasso"]["certified"]
    assert "objective" not in summary["final"]
    scores = pd.read_csv("out/refit/scores.csv").query("set == 'validation' and client.isna()")
    assert summary["final"]["val_loss"] == pytest.approx(scores["loss"].item(), rel=1e-6)
    assert len(pd.read_csv("out/refit/lasso_metrics.csv")) > 1
    assert len(drawn[0]) > 1, "curves.png shows the metrics before the relaxation"
    with fails("relax=0.25", "no certificate and no intervals"):
        record.infer()
    assert selection.cost["runs"] == 3 * 3
    assert json.loads(Path("out/selection.json").read_text())["second"]["key"] == "relax"
    page = build_page([Path("out")], load_records("out"))
    assert "The coefficients are relaxed: 0.25 times" in page
    assert "relax=0.25" in "\n".join(selection.describe())


@pytest.mark.slow
def test_nested_folds_and_a_federated_algorithm():
    """The score of an outer fold is that of the share and the strength that the inner folds choose."""
    newton = ("algo=newton", "rounds=8", "eval_every=8", "precision=float64", "clients_per_round=null")
    options = SelectOptions(folds=2, outer_folds=2, points=4, relax=True, range=[0.05, 1])
    exact = select(settings_of("regression"), options, "exact")
    federated = select(settings_of("regression", *newton), options, "federated")
    assert not_none(federated.nested).scores == pytest.approx(not_none(exact.nested).scores, rel=1e-5)
    assert federated.choice.mean == pytest.approx(exact.choice.mean, rel=1e-5)
    nested = not_none(exact.nested)
    for j, outer in enumerate(nested.folds.inner):
        at = nested.chosen[j]
        assert nested.scores[j] == nested.fits[outer].metrics["val_loss"][at]
    assert federated.cost["rounds"] == 8 * 4 * len(federated.computed_fits)


def test_the_rows_of_a_run_in_float32_are_refitted_in_float64():
    experiment = prepare(settings_of("regression", "algo=newton", "precision=float32"))
    refits = UnpenalizedRefits.of_data(experiment, load_data(experiment))
    assert {np.asarray(values).dtype for values in (refits.rows.x, refits.rows.y)} == {np.dtype(np.float64)}


@pytest.mark.slow
@pytest.mark.parametrize("state", [COLLINEAR, NO_OPTIMUM])
def test_fits_that_do_not_exist_are_left_out(state):
    """A copy of a feature, half of whose weight an elastic net gives to each, and classes that are separated."""
    if state == COLLINEAR:
        settings = settings_of("regression", "reg=elastic_net")
        frame = pd.read_csv("rows.csv")
        frame["copy"] = frame["age"]
    else:
        settings = settings_of("binary")
        frame = pd.read_csv("rows.csv")
        frame["y"] = (frame["age"] > 0).astype(int)
    frame.to_csv("rows.csv", index=False)
    selection = select(settings, SelectOptions(folds=2, points=3, relax=True, range=[0.01, 0.1]), "out")
    assert (selection.fits["all"].end_state[3:] == END_STATES.index(state)).all()
    assert selection.path.second is not None
    assert selection.path.second.values[selection.choice.chosen_index] == 1
    assert not_none(selection.record).config["relax"] is None
    assert "objective" in not_none(selection.record).summary["final"]
    assert any("have no fit without a penalty" in warning for warning in selection.warnings)
    with fails("no strength has a fit without a penalty", "give 1, the lasso"):
        select(settings, SelectOptions(folds=2, points=3, relax=[0.5], range=[0.01, 0.1]), "other")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("reg=l2",), "give reg=l1 or elastic_net"),
        (("objective=huber",), "whose loss has a positive second derivative"),
        (("algo=local",), "is for one model of all clients"),
    ],
)
def test_refusals(overrides, words):
    with fails("relax=0 ", words):
        plan_selection(config(*overrides), SelectOptions(folds=2, points=2, relax=True, range=[0.1, 1]), "out")
    assert not Path("out").exists()


def test_options():
    def shares(*given):
        options, overrides, _ = split_options(SelectOptions, given)
        assert not overrides
        return options.shares

    assert shares("relax=true") == (1.0, 0.75, 0.5, 0.25, 0.0)
    assert shares("relax=0,0.5") == shares("relax=[0.5,0]") == (0.5, 0.0)
    assert shares("relax=0.3") == (0.3,)
    assert shares("relax=false") == shares() == ()
    for wrong in ("relax=2", "relax=0,2", "relax=[]", "relax=0.5,0.5"):
        with fails("relax="):
            shares(wrong)
    with fails("reg.l1_ratio has several values, and so has relax"):
        split_options(SelectOptions, ["relax=true", "reg.l1_ratio=0.1,0.5"])
