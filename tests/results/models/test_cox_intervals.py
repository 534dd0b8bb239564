"""Intervals of records of times to events."""

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from inferred_records import patients, record_of, table_of

from fcorun.methods.objectives import Cox
from fcorun.results.inference.sums import ModelRows, sum_derivatives
from fcorun.results.models.inference import infer
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.inference_table import build_table, describe, find_warnings

COX = ("objective=cox", "data.event=dead")
NAMES = ["age", "dose", "noise", "ward=heart", "ward=icu"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def survivors() -> pd.DataFrame:
    """Return patients with times, of whom three wards have different hazards, and a column of one value a site."""
    frame = patients()
    rng = np.random.default_rng(1)
    p = 0.04 * (frame["age"] - 60) + 0.8 * (frame["ward"] == "icu") - 0.5 * frame["dose"]
    event, censoring = rng.exponential(size=240) / np.exp(p), 2 * rng.exponential(size=240)
    frame["stay"] = np.minimum(event, censoring)
    return frame.assign(dead=(event <= censoring).astype(int))


def cox_record(*overrides, frame=None, n_features=6):
    frame = survivors() if frame is None else frame
    return record_of(*COX, *overrides, frame=frame, weights=np.zeros(n_features))


def optimum(frame, names=NAMES):
    """Return the optimum by Newton's method with the last ward as reference, and the inverse of its information."""
    levels = pd.get_dummies(frame["ward"], prefix="ward", prefix_sep="=", dtype=float)
    x = frame.join(levels)[names].to_numpy(float)
    y = np.where(frame["dead"] == 1, frame["stay"], -frame["stay"])
    client = np.unique(frame["site"], return_inverse=True)[1]
    rows, theta = ModelRows(x, y, np.ones(len(y)), np.zeros(len(y)), client), np.zeros(len(names))
    for _ in range(20):
        sums = sum_derivatives(Cox(), theta, rows)
        theta = theta - np.linalg.solve(sums.hessian, sums.gradient)
    return theta, np.linalg.inv(sums.hessian)


@pytest.mark.slow
@pytest.mark.parametrize("standardize", ["none", "pooled"])
def test_without_a_penalty_intervals_are_those_of_the_optimum_with_a_reference_level(standardize):
    inference = infer(cox_record("reg=none", f"data.standardize={standardize}"), InferenceOptions(errors="model"))
    table = build_table(inference)
    frame = pd.DataFrame(table.to_rows()).set_index(0)
    theta, covariance = optimum(survivors())
    np.testing.assert_allclose(frame.loc[NAMES, 1].astype(float), theta, rtol=1e-6)
    np.testing.assert_allclose(frame.loc[NAMES, 2].astype(float), np.sqrt(np.diagonal(covariance)), rtol=1e-6)
    assert table.ratio_name == "hazard ratio"
    assert set(table.method) == {"Wald, errors of the model", "reference"}
    n_events = survivors()["dead"].sum()
    assert f"240 rows, {n_events} events, standard errors of the model" in table.title
    assert inference.estimates.degrees == np.inf


@pytest.mark.slow
def test_the_debiased_lasso_with_few_features_is_close_to_the_optimum():
    inference = infer(cox_record("reg=l1", "reg.strength=0.001", "data.standardize=pooled"), InferenceOptions())
    table = build_table(inference)
    assert inference.gap is not None
    assert abs(inference.gap) < 1e-10
    theta, covariance = optimum(survivors())
    estimates = dict(zip(table.features, table.estimate, strict=True))
    errors = np.sqrt(np.diagonal(covariance))
    assert (np.abs([estimates[name] for name in NAMES] - theta) < 0.02 * errors).all()
    assert table.method[0] == "debiased lasso"
    assert "Kong" in "\n".join(describe(inference, table))
    assert find_warnings(inference) == []


def test_errors_by_client_and_robust_errors_differ():
    record = cox_record("reg=none")
    table, by_client = table_of(record), infer(record, InferenceOptions(cluster="client"))
    assert by_client.n_clusters == 12
    assert by_client.estimates.degrees == 11
    model = table_of(record, errors="model")
    for other in (model["standard_error"], build_table(by_client).standard_error):
        assert not np.allclose(table["standard_error"], other, equal_nan=True, rtol=1e-3)


def test_half_of_the_rows_select_features():
    table = table_of(cox_record("reg=l1", "reg.strength=0.1", "data.standardize=pooled"), method="split", seed=1)
    assert table.loc["noise", "method"] == "not selected"
    assert table.loc["age", "low"] < 0.04 < table.loc["age", "high"]


@pytest.mark.slow
def test_features_of_one_value_in_each_client_have_no_interval():
    frame = survivors()
    frame["beds"] = np.repeat(np.arange(12.0), 20)  # by site
    for penalty in (("reg=none",), ("reg=l1", "reg.strength=0.01", "data.standardize=pooled")):
        table = table_of(cox_record(*penalty, frame=frame, n_features=7))
        assert table.loc["beds", "method"] == "constant within risk sets"
        assert np.isnan(table.loc["beds", "p_value"])
        assert np.isfinite(table.loc["age", "p_value"])


def test_events_of_an_indicator_are_counted():
    frame = survivors()
    frame["rare"] = (np.arange(240) % 20 == 0).astype(float)
    frame.loc[frame["rare"] == 1, "dead"] = (np.arange(12) < 4).astype(int)
    table = table_of(cox_record("reg=none", frame=frame, n_features=7))
    assert (table.loc["rare", "n"], table.loc["rare", "events"]) == (12, 4)
    assert table.loc["rare", "method"] == "4 events in 12 rows"


@pytest.mark.slow
def test_few_events_are_warned_of():
    frame = survivors()
    frame["dead"] *= np.arange(240) % 4 == 0
    sentences = find_warnings(infer(cox_record("reg=l1", "reg.strength=0.05", frame=frame), InferenceOptions()))
    assert any(f"{frame['dead'].sum()} events are few for 5 parameters" in line for line in sentences)


@pytest.mark.parametrize(
    ("overrides", "options", "words"),
    [
        (("reg=none",), {"errors": "model", "cluster": "client"}, ("errors=model", "cluster=client", "errors=robust")),
        (("reg=none", "data.weight=w"), {"errors": "model"}, ("errors=model", "(if weights count equal rows")),
        (("reg=none", "data.weight=w", "data.weight_kind=sampling"), {"errors": "model"}, ("different ones: give",)),
        (("reg=none",), {"imputations": 5}, ("imputations=5", "times to events", "data.ignore")),
    ],
)
def test_errors_and_imputations_without_a_theory_are_refused(overrides, options, words):
    frame = survivors()
    if "data.weight=w" in overrides:
        frame["w"] = np.tile([1.0, 3.0], 120)
    with fails(*words):
        infer(cox_record(*overrides, frame=frame), InferenceOptions(**options))


def test_errors_of_a_model_need_a_likelihood():
    with fails("errors=model", "logistic, poisson and cox"):
        infer(record_of("reg=none"), InferenceOptions(errors="model"))


@pytest.mark.slow
def test_a_feature_that_orders_all_events_is_refused():
    frame = survivors()
    frame["noise"] = -frame["stay"].rank()
    with fails("no finite coefficient of noise", "reg=l1"):
        infer(cox_record("reg=none", frame=frame), InferenceOptions())


def sites_of_wards() -> pd.DataFrame:
    """Return patients of six sites: three of the wards a, b and c, one of ward d alone, and two of e and f."""
    rng = np.random.default_rng(5)
    wards = {"A": "abc", "B": "abc", "C": "abc", "D": "d", "E": "ef", "F": "ef"}
    frame = pd.DataFrame({"site": np.repeat([*wards], 40)})
    frame["ward"] = np.concatenate([rng.choice([*levels], 40) for levels in wards.values()])
    frame["age"] = rng.normal(60, 10, 240).round(1)
    hazard = frame["ward"].map({"a": 0.0, "b": 0.5, "c": 1.0, "d": 0.0, "e": 0.3, "f": -0.3})
    hazard += 0.03 * (frame["age"] - 60)
    event, censoring = rng.exponential(size=240) / np.exp(hazard), 2 * rng.exponential(size=240)
    frame["stay"] = np.minimum(event, censoring).round(4)
    return frame.assign(dead=(event <= censoring).astype(int), patient=0, died=0, visits=0)


@pytest.mark.slow
@pytest.mark.parametrize("standardize", ["none", "pooled"])
def test_levels_are_compared_with_a_level_of_their_own_strata_as_coxph_does(standardize):
    """The numbers are those of R, coxph(Surv(stay, dead) ~ ward + age + strata(site), ties="breslow", robust=TRUE)."""
    frame = sites_of_wards()
    record = cox_record("reg=none", f"data.standardize={standardize}", frame=frame, n_features=7)
    table = table_of(record)
    expected = {
        "ward=b": (0.6085797650, 0.31460188859),
        "ward=c": (1.0816638481, 0.23708167641),
        "ward=e": (1.0651516120, 0.29972753758),
        "age": (0.0100113273, 0.00751260125),
    }
    estimated = table.loc[[*expected], ["estimate", "standard_error"]].astype(float)
    np.testing.assert_allclose(estimated, [*expected.values()], rtol=1e-8)
    assert table["method"][["ward=a", "ward=d", "ward=f"]].tolist() == ["reference", "constant within risk sets",
                                                                         "reference"]  # fmt: skip
    sentences = "\n".join(find_warnings(infer(record, InferenceOptions())))
    assert "compare ward=b, ward=c with ward=a; ward=e with ward=f" in sentences
    of_model = table_of(record, errors="model")["standard_error"][[*expected]].astype(float)
    np.testing.assert_allclose(of_model, [0.299313840, 0.262959089, 0.307985853, 0.008187375], rtol=1e-7)
    penalized = ("reg=l1", "reg.strength=0.0005", f"data.standardize={standardize}")
    debiased = table_of(cox_record(*penalized, frame=frame, n_features=7))
    for name, (estimate, error) in expected.items():
        assert abs(float(debiased["estimate"][name]) - estimate) < 0.05 * error
    assert debiased["method"].tolist().count("reference") == 2


def test_levels_of_rows_without_a_weight_do_not_take_the_reference_away():
    frame = survivors()
    frame["w"] = np.where(frame["ward"] == "eye", 0.0, 1.0)
    table = table_of(cox_record("reg=none", "data.weight=w", frame=frame))
    without = table_of(cox_record("reg=none", frame=frame[frame["ward"] != "eye"].drop(columns="w"), n_features=4))
    assert table["method"][["ward=eye", "ward=icu"]].tolist() == ["constant", "reference"]
    heart, icu = float(table["estimate"]["ward=heart"]), float(without["estimate"]["ward=icu"])
    np.testing.assert_allclose(heart, -icu, rtol=1e-8)
