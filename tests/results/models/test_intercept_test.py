"""The likelihood-ratio test of the clients' intercepts: R's number, closed forms, other solvers, refusals."""

import numpy as np
import pandas as pd
import pytest
from helpers import SHARED, composed
from scipy.stats import f_oneway
from sklearn.linear_model import LogisticRegression, PoissonRegressor

from fcorun import run
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.results.models.inference import infer
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.inference_table import find_warnings
from fcorun.results.models.intercept_test import InterceptTest, compare_intercepts, warn_of_client_differences

BREAST = SHARED / "data" / "medical" / "breast.csv"
RNG = np.random.default_rng(0)
SITES = np.repeat([*"abcd"], 60)
X = RNG.standard_normal((240, 2))
LEVEL = np.repeat([0.0, 0.5, -0.5, 0.2], 60)
SCORE = X @ [0.6, -0.4] + LEVEL
TARGETS = {
    "regression": SCORE + RNG.standard_normal(240),
    "binary": (SCORE + RNG.logistic(size=240) > 0).astype(int),
    "counts": RNG.poisson(np.exp(0.5 * SCORE)),
}


def given(y, *overrides, task="regression", **columns) -> tuple:
    """Return the experiment and the data of a table with the target ``y``."""
    frame = pd.DataFrame({"site": SITES, "dose": X[:, 0], "age": X[:, 1], "y": y} | columns)
    frame.to_csv("rows.csv", index=False)
    table = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.validation=0"]
    experiment = prepare(composed("algo=newton", *table, f"data.task={task}", "reg=none", *overrides))
    return experiment, load_data(experiment)


def compare_sites(y, *overrides, weights=(1, 1), **options) -> InterceptTest | None:
    return compare_intercepts(*given(y, *overrides, **options), np.array(weights, float))


def design(with_clients: bool) -> np.ndarray:
    clients = SITES[:, None] == np.unique(SITES)
    return np.column_stack([X, clients if with_clients else np.ones(len(X))]).astype(float)


@pytest.mark.slow
@pytest.mark.skipif(not BREAST.is_file(), reason=f"{BREAST} is not on this machine")
def test_the_centres_of_breast_cancer_have_the_deviance_difference_of_r(tmp_path):
    table = ["data=table", f"data.path={BREAST}", "data.target=rfs", "data.client=centre", "data.ignore=[time]",
             "data.task=binary", "data.validation=0", "reg=none"]  # fmt: skip
    experiment = prepare(composed("algo=newton", *table))
    test = compare_intercepts(experiment, load_data(experiment), np.ones(7))
    assert test is not None
    np.testing.assert_allclose([test.statistic, test.degrees], [137.6891, 3], rtol=1e-6)
    record = run(composed("algo=newton", *table), tmp_path / "run")
    remark = "the clients' intercepts differ (likelihood ratio 137.7 with 3 degrees of freedom, p below 0.001)"
    assert remark in record.status["reason"]
    assert "objective.client_intercepts" in record.status["reason"]
    assert any(remark in text for text in find_warnings(infer(record, InferenceOptions())))
    own = run(composed("algo=newton", *table, "objective.client_intercepts=true"), tmp_path / "own")
    assert "intercepts differ" not in str(own.status.get("reason"))


def test_least_squares_have_the_f_test_of_a_covariance_analysis():
    y = TARGETS["regression"]
    squares = []
    for with_clients in (False, True):
        x = design(with_clients)
        squares.append(((y - x @ np.linalg.lstsq(x, y)[0]) ** 2).sum())
    expected = (squares[0] - squares[1]) / 3 / (squares[1] / (240 - 6))
    test = compare_sites(y)
    assert test is not None
    np.testing.assert_allclose(test.statistic, expected, rtol=1e-9)
    assert (test.degrees, test.residual_degrees) == (3, 234)
    without_features = compare_sites(y, weights=(0, 0))  # a one-way analysis of variance
    assert without_features is not None
    one_way = f_oneway(*(y[site == SITES] for site in "abcd"))
    np.testing.assert_allclose([without_features.statistic, without_features.p_value], one_way, rtol=1e-9)
    assert "F " in warn_of_client_differences(*given(y), {"weights": np.ones(2)})


def test_classes_and_counts_have_the_deviances_of_other_solvers():
    y = TARGETS["binary"]
    deviances = []
    for with_clients in (False, True):
        x = design(with_clients)
        glm = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=1000).fit(x, y)
        deviances.append(-2 * np.log(glm.predict_proba(x)[np.arange(240), y]).sum())
    test = compare_sites(y, task="binary")
    assert test is not None
    np.testing.assert_allclose(test.statistic, deviances[0] - deviances[1], rtol=1e-5)
    assert (test.degrees, test.residual_degrees) == (3, np.inf)
    y = TARGETS["counts"]
    likelihoods = []
    for with_clients in (False, True):
        x = design(with_clients)
        mean = PoissonRegressor(alpha=0, fit_intercept=False, tol=1e-10, max_iter=1000).fit(x, y).predict(x)
        likelihoods.append((y * np.log(mean) - mean).sum())
    test = compare_sites(y, "objective=poisson")
    assert test is not None
    np.testing.assert_allclose(test.statistic, 2 * (likelihoods[1] - likelihoods[0]), rtol=1e-5)


def test_levels_that_add_up_and_features_of_whole_clients_cost_no_test():
    y = TARGETS["regression"]
    ward = RNG.choice(["eye", "heart", "icu"], 240)
    levels = compare_sites(y, ward=ward, weights=(1, 1, 1, 1, 1))
    assert levels is not None
    assert (levels.degrees, levels.residual_degrees) == (3, 240 - 8)
    assert compare_sites(y, size=LEVEL, weights=(1, 1, 1)) is not None
    by_client = compare_sites(y, size=LEVEL, weights=(1, 1, 1))
    assert by_client is not None
    assert by_client.degrees == 2  # the feature tells one of the differences
    sides = {"east": (SITES == "a") * 1.0, "west": (SITES == "b") * 1.0, "north": (SITES == "c") * 1.0}
    assert compare_sites(y, **sides, weights=(1, 1, 1, 1, 1)) is None


def test_a_client_of_one_class_has_the_loss_0_of_its_infinite_intercept():
    y = np.where(SITES == "a", 1, TARGETS["binary"])
    test = compare_sites(y, task="binary", weights=(0, 0))
    assert test is not None
    counts = np.array([[(y[site == SITES] == label).sum() for label in (0, 1)] for site in "abcd"], float)

    def log_likelihood(counts):
        share = counts / counts.sum(axis=-1, keepdims=True)
        return np.where(counts > 0, counts * np.log(np.where(share > 0, share, 1)), 0).sum()

    np.testing.assert_allclose(test.statistic, 2 * (log_likelihood(counts) - log_likelihood(counts.sum(axis=0))))


def test_where_no_test_is_defined():
    y = TARGETS["regression"]
    assert compare_sites(y, "objective.intercept=false") is None
    assert compare_sites(y, "objective.client_intercepts=true") is None
    assert compare_sites(y, "data.group=patient", patient=np.arange(240) // 2) is None
    assert compare_sites(y, "data.weight=w", w=1 + X[:, 0] ** 2) is None
    assert compare_sites(y, "algo=meta_analysis") is None
    assert compare_sites(y, "algo=one_client") is None
    assert compare_sites(TARGETS["binary"], task="binary") is not None
    separated = (X[:, 0] > 0).astype(int)
    assert warn_of_client_differences(*given(separated, task="binary"), {"weights": np.ones(2)}) == ""
    cox = given(np.exp(y), "data.event=died", task="survival", died=np.ones(240, int))
    assert warn_of_client_differences(*cox, {"weights": np.ones(2)}) == ""


@pytest.mark.parametrize(
    "options", [("algo=newton",), ("algo=dlsa",), ("algo=fedavg", "batch_size=16"), ("algo=ditto",)]
)
def test_the_options_that_a_remark_names_run_when_typed(options, tmp_path):
    remark = warn_of_client_differences(*given(TARGETS["regression"], *options), {"weights": np.ones(2)})
    cure = remark.split(": ")[1].removesuffix(" gives each client its own").split()
    experiment, _ = given(TARGETS["regression"], *options, *cure)
    assert experiment.objective.client_intercepts
    record = run(experiment.config, tmp_path / "run")
    assert record.status["status"] == "done"


def test_clients_that_differ_by_chance_are_not_remarked():
    y = TARGETS["regression"] - LEVEL
    remarks = warn_of_client_differences(*given(y), {"weights": np.ones(2)})
    test = compare_sites(y)
    assert test is not None
    assert test.p_value > 0.01
    assert remarks == ""
