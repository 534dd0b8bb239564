"""The model of a record as a fitted estimator of scikit-learn."""

import json
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.utils.validation import check_is_fitted

from fcorun import ExperimentWarning, compose, run
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.results.model_outputs import compute_predictions
from fcorun.results.models.predict import _predict_rows, predict

FREE = ("reg=none", "data.validation=0", "algo.tolerance=1e-13")
X = ["age", "crp"]


@pytest.mark.slow
def test_the_same_as_scikit_learns_least_squares(trained, visits):
    for standardize in ("none", "pooled"):
        model = trained("regression", *FREE, f"data.standardize={standardize}").estimator()
        table = visits("regression")
        expected = LinearRegression().fit(table[X], table.y)
        np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-5)
        assert model.intercept_ == pytest.approx(expected.intercept_, rel=1e-5)
        np.testing.assert_allclose(model.predict(table[X]), expected.predict(table[X]), rtol=1e-6)
        assert model.score(table[X], table.y) == pytest.approx(expected.score(table[X], table.y), rel=1e-6)
        assert is_regressor(model)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_the_same_as_scikit_learns_logistic_regression(trained, visits, task):
    ridge = 0.05  # scikit-learn's is 1 / (C n)
    model = trained(task, *FREE, "data.standardize=pooled", f"objective.ridge={ridge}").estimator()
    table = visits(task)
    z = (table[X] - table[X].mean()) / table[X].std(ddof=0)
    expected = LogisticRegression(C=1 / (ridge * len(z)), tol=1e-12, max_iter=10000).fit(z, table.y)
    assert model.classes_.tolist() == expected.classes_.tolist()
    assert model.classes_.dtype.kind == ("U" if task == "binary" else "i")
    np.testing.assert_allclose(model.predict_proba(table[X]), expected.predict_proba(z), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(model.predict(table[X]), expected.predict(z))
    np.testing.assert_allclose(model.coef_ * table[X].std(ddof=0).to_numpy(), expected.coef_, rtol=1e-4, atol=1e-6)
    assert is_classifier(model)


@pytest.mark.slow
@pytest.mark.parametrize("standardize", ["none", "pooled", "per_client"])
def test_raw_features_give_what_the_run_has(trained, visits, standardize):
    """Predictions are X @ w + b of standardized features, and those of the run for its own rows."""
    record = trained("binary", f"data.standardize={standardize}", "data.validation=[Celle]")
    table, w = visits(), record.solution
    means = {"none": 0.0, "pooled": table[X][:80].mean()}
    scales = {"none": 1.0, "pooled": table[X][:80].std(ddof=0)}
    for site, rows in table.groupby("site"):
        per_client = standardize == "per_client"
        mean, scale = (rows[X].mean(), rows[X].std(ddof=0)) if per_client else (means[standardize], scales[standardize])
        eta = ((rows[X] - mean) / scale).to_numpy() @ w["weights"] + w["bias"]
        model = record.estimator(str(site))
        np.testing.assert_allclose(model.decision_function(rows[X]), eta, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(model.predict_proba(rows[X])[:, 1], 1 / (1 + np.exp(-eta)), rtol=1e-9)
    experiment = prepare(record.config)
    data = load_data(experiment)
    of_run = compute_predictions(experiment.objective, w, data.train.x)
    raw = np.concatenate([record.estimator(s).decision_function(table[X][table.site == s]) for s in ("Aachen", "Bonn")])
    np.testing.assert_allclose(of_run, raw, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_an_unknown_client_is_standardized_by_the_means_of_all_clients(trained, visits):
    record = trained("regression", "data.standardize=per_client", "data.validation=[Celle]")
    rows = visits("regression")[:80]
    mean = rows[X].mean()
    within = np.sqrt(rows.groupby("site")[X].var(ddof=0).mean())  # both sites have as many rows
    expected = ((rows[X] - mean) / within).to_numpy() @ record.solution["weights"] + record.solution["bias"]
    for client in (None, "nowhere"):
        np.testing.assert_allclose(record.estimator(client).predict(rows[X]), expected, rtol=1e-9)
    assert not np.allclose(record.estimator("Aachen").predict(rows[X]), expected)


@pytest.mark.slow
def test_own_models(trained, visits):
    record = trained("binary", "data.standardize=none", algo="local")
    table = visits()[X]
    for m, site in enumerate(record.personal["client"]):
        expected = table.to_numpy() @ record.personal["weights"][m] + record.personal["bias"][m]
        np.testing.assert_allclose(record.estimator(site).decision_function(table), expected, rtol=1e-10)
    with fails("has personal models and no shared one"):
        record.estimator("nowhere")
    with fails("the record has no such client: did you mean 'Aachen'?"):
        record.estimator("aachen ")


@pytest.mark.slow
@pytest.mark.parametrize(("task", "standardize"), [("binary", "pooled"), ("multiclass", "none")])
def test_mlp(trained, task, standardize):
    mlp_overrides = [
        "objective=mlp",
        "objective.hidden=[5,4]",
        "algo.client_lr=1e-3",
        "algo.server_lr=1",
        "reg.strength=1e-4",
    ]
    record = trained(task, *mlp_overrides, f"data.standardize={standardize}", "data.test=0.2", algo="fedavg")
    model, experiment = record.estimator(), prepare(record.config)
    data = load_data(experiment)
    eta = compute_predictions(experiment.objective, record.solution, data.train.x)
    raw = data.train.x if standardize == "none" else _unstandardize(record, data.train.x)
    eta = np.stack([0 * eta, eta], axis=1) if task == "binary" else eta
    chances = np.exp(eta) / np.exp(eta).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(pd.DataFrame(raw, columns=X)), chances, rtol=1e-8)
    np.testing.assert_array_equal(model.predict(pd.DataFrame(raw, columns=X)), model.classes_[chances.argmax(axis=1)])
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize(("positive", "expected"), [("case", "healthy"), ("healthy", "case")])
def test_a_tie_is_not_of_the_positive_class(positive, expected):
    model = LogisticRegression()
    model.classes_ = np.array(["case", "healthy"])
    model.coef_, model.intercept_ = np.zeros((1, 2)), np.zeros(1)
    x = pd.DataFrame(np.ones((3, 2)))
    predictions = _predict_rows(model, x, np.arange(3), np.zeros(3), 0.5, positive=positive)
    assert predictions["prediction"].tolist() == [expected] * 3


MLP = ["objective=mlp", "objective.hidden=[5,4]", "algo.client_lr=1e-2", "algo.server_lr=1", "reg.strength=1e-4"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "more"),
    [("centralized", ["data.standardize=pooled", "data.offset=beside"]), ("local", ["data.standardize=per_client"]),
     ("fedavg", [*MLP, "data.standardize=pooled"])],
)  # fmt: skip
def test_the_positive_class_is_that_of_labels_in_another_order(visits, algo, more):
    """A run whose positive class is the first label equals a run on a table where that label has the last name."""
    overrides = [
        "data=table",
        "data.path=t.csv",
        "data.target=y",
        "data.client=site",
        "data.task=binary",
        "data.test=0.2",
    ]
    overrides += [f"algo={algo}", "precision=float64", *more, *([] if algo == "centralized" else ["rounds=3"])]
    table = visits().assign(beside=lambda t: t.crp / 10)
    beside = [] if "data.offset=beside" in more else ["data.ignore=[beside]"]
    table.to_csv("t.csv", index=False)
    record = run(compose([*overrides, *beside, "data.positive=fit"]))
    table.replace({"y": {"ill": "an illness"}}).to_csv("t.csv", index=False)
    expected = run(compose([*overrides, *beside]))
    assert record.summary["data"]["classes"] == ["ill", "fit"]
    assert record.scores["positive"].unique().tolist() == ["fit"]
    pd.testing.assert_frame_equal(record.scores, expected.scores)
    for name, values in expected.solution.items():
        np.testing.assert_array_equal(record.solution[name], values)
    if algo == "centralized":
        coefficients = (record.folder / "coefficients.csv").read_text()
        assert coefficients == (expected.folder / "coefficients.csv").read_text()
        assert ",fit," in coefficients
    clients = table.site.to_numpy(object)
    (predictions, _), (same, _) = (
        predict(run_, table.drop(columns=["y", "site"]), clients) for run_ in (record, expected)
    )
    renamed = same.replace({"prediction": {"an illness": "ill"}})
    renamed = renamed.rename(columns={"probability_an illness": "probability_ill"})
    pd.testing.assert_frame_equal(predictions[renamed.columns], renamed, rtol=1e-12)
    assert 0.1 < (predictions["prediction"] == "fit").mean() < 0.9
    model = record.estimator("Celle" if algo == "local" else None)
    assert model.classes_.tolist() == ["fit", "ill"]  # in order, for scikit-learn's metrics
    if algo == "centralized":
        assert model.score(table[X], table.y) > 0.6
        assert roc_auc_score(table.y, model.predict_proba(table[X])[:, 1]) > 0.6
        np.testing.assert_allclose(model.coef_, -expected.estimator().coef_, rtol=1e-12)


def _unstandardize(record, x):
    scaling = record.summary["data"]["standardized"]
    return x * np.array(scaling["scale_"]) + scaling["mean_"]


@pytest.mark.slow
def test_one_against_the_rest(trained, visits):
    record = trained("multiclass", "objective=one_vs_rest", "data.standardize=pooled")
    model, table = record.estimator(), visits("multiclass")
    eta = model.decision_function(table[X])
    probability = 1 / (1 + np.exp(-eta))
    np.testing.assert_allclose(
        model.predict_proba(table[X]), probability / probability.sum(axis=1, keepdims=True), rtol=1e-9
    )


@pytest.mark.slow
def test_scikit_learn_can_use_the_estimator(trained, visits, tmp_path):
    record = trained("binary", "data.standardize=pooled")
    model, table = record.estimator(), visits()
    check_is_fitted(model)
    assert model.n_features_in_ == 2
    assert model.feature_names_in_.tolist() == X
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(table[X]), model.predict_proba(table[X]))
    fresh: Any = clone(model)
    with pytest.raises(NotFittedError):  # a clone has not seen the run
        fresh.predict(table[X])
    with pytest.raises(ValueError, match="feature names"):  # scikit-learn looks at names and their order
        model.predict(table[X[::-1]])
    everyone = record.scores.query("set == 'train' and client == ''").iloc[0]
    assert everyone.auc == pytest.approx(roc_auc_score(_train(record).y, model.decision_function(_train(record).x)))
    assert model.score(table[X], table.y) > 0.6


def _train(record):
    data = load_data(prepare(record.config))
    return pd.Series({"x": pd.DataFrame(_unstandardize(record, data.train.x), columns=X), "y": data.train.y})


@pytest.mark.slow
def test_matrices_and_features_without_names():
    size = ["data.clients=3", "data.samples=9", "data.rows=3", "data.columns=4", "data.rank=1"]
    record = run(compose(["data=lowrank", *size, "clients_per_round=null", "rounds=2", "algo=fedavg"]))
    model = record.estimator()
    x = np.ones((5, 12)) * np.arange(5)[:, None]
    expected = x @ record.solution["weights"].ravel() + record.solution["bias"]
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-6)
    assert model.n_features_in_ == 12
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.slow
def test_a_record_without_its_scaling_cannot_predict(trained, visits):
    record = trained("multiclass", "data.standardize=per_client")
    assert record.estimator("Bonn").classes_.tolist() == [0, 10, 20]  # numbers, as in the table
    (record.folder / "scaling.npz").unlink()
    with fails("cannot predict", "standardized", "run it again with force=True"):
        type(record)(record.folder).estimator()


@pytest.mark.slow
def test_records_that_cannot_predict(trained):
    record = trained("binary", "data.standardize=none")
    again = type(record)
    (record.folder / "solution.npz").write_bytes(b"damaged")
    with fails("cannot predict", "solution.npz", "force=True"):
        again(record.folder).estimator()
    (record.folder / "status.json").write_text(json.dumps({"status": "diverged"}))
    with fails("is no record of a run that is done (diverged)"):
        again(record.folder).estimator()


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["poisson", "gamma", "huber", "quantile"])
def test_other_regressions_predict_with_an_offset(objective, tmp_path):
    """Predictions equal those by hand, and the estimator is scikit-learn's one of the same name."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 2)), columns=X).assign(beside=rng.uniform(0, 1, 60), weigh=1.0)
    eta = table[X].to_numpy() @ [0.4, -0.3] + 0.2 + table.beside
    table["y"] = rng.poisson(np.exp(eta)) if objective == "poisson" else np.exp(eta) if objective == "gamma" else eta
    table.to_csv(tmp_path / "t.csv", index=False)
    overrides = [
        "data=table",
        f"data.path={tmp_path / 't.csv'}",
        "data.target=y",
        "data.offset=beside",
        "data.weight=weigh",
    ]
    more = ["algo=centralized", "reg=none", "data.test=0.2", f"objective={objective}", "data.standardize=pooled"]
    record = run(compose([*overrides, *more]), tmp_path / "r")
    model = record.estimator()
    assert objective in type(model).__name__.lower()
    predictions, warnings = predict(record, table.drop(columns=["y"]))
    linear = table[X].to_numpy() @ model.coef_ + model.intercept_ + table.beside
    by_hand = np.exp(linear) if objective in ("poisson", "gamma") else linear
    np.testing.assert_allclose(predictions["prediction"], by_hand, rtol=1e-12)
    assert not [line for line in warnings if "ignored" in line]
    scored = record.scores[record.scores["client"] == ""].set_index("set")
    assert scored.loc["train", "loss"] == pytest.approx(record.metrics["train_loss"].iloc[-1], rel=1e-6)
    assert scored.loc["validation", "loss"] == pytest.approx(record.metrics["val_loss"].iloc[-1], rel=1e-6)
    assert scored.loc["test", "n"] == 10
    with fails("lacks 'beside', the offset of the record: give it, 0 for none"):
        predict(record, table[X])


@pytest.mark.slow
def test_a_table_is_encoded_for_the_estimator(tmp_path):
    table = pd.DataFrame({"ward": ["a", "b", "c"] * 8, "age": [30.0, None, 50, 60] * 6, "y": np.arange(24.0)})
    table.to_csv(tmp_path / "t.csv", index=False)
    overrides = [
        "data=table",
        f"data.path={tmp_path / 't.csv'}",
        "data.target=y",
        "data.missing=mean",
        "algo=centralized",
    ]
    record = run(compose(overrides), tmp_path / "r")
    with pytest.warns(ExperimentWarning, match="gaps are filled: 'age' by"):
        x = record.encode(table[["age", "ward"]])  # columns by name
    assert list(x) == ["ward=a", "ward=b", "ward=c", "age"]
    predictions, _ = predict(record, table)
    np.testing.assert_array_equal(record.estimator().predict(x), predictions["prediction"])
    with pytest.warns(ExperimentWarning, match="levels that no training row has, 'A' in row 1 .did you mean 'a'"):
        record.encode(table[["age", "ward"]][:1].replace("a", "A"))
