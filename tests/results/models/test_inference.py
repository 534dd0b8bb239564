"""Intervals of records: what is computed, what is refused, and what is warned of."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from helpers import composed, fails
from inferred_records import CLIENTS, patients, record_of, table_of

from fcorun.base.records.record import Record, is_refit_of_adaptive_lasso
from fcorun.experiment.prepare import prepare
from fcorun.results.models import inference_table
from fcorun.results.models.coefficients import INTERCEPT
from fcorun.results.models.inference import infer
from fcorun.results.models.inference_problem import InferenceOptions
from fcorun.results.models.inference_table import build_table, describe, find_warnings


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def dummies(frame):
    ward = pd.get_dummies(frame["ward"], dtype=float)[["heart", "icu"]]
    return np.column_stack([frame["age"], ward, frame["dose"], frame["noise"], np.ones(len(frame))])


NAMES = ["age", "ward=heart", "ward=icu", "dose", "noise", INTERCEPT]


def sandwich(x, y):
    inverse = np.linalg.inv(x.T @ x)
    theta = inverse @ x.T @ y
    residual = y - x @ theta
    factor = len(x) / (len(x) - x.shape[1])
    return theta, np.sqrt(np.diagonal(factor * inverse @ (x.T * residual**2) @ x @ inverse))


@pytest.mark.parametrize("standardize", ["none", "pooled"])
def test_without_a_penalty_intervals_are_those_of_least_squares_with_a_reference_level(standardize):
    table = table_of(record_of("reg=none", f"data.standardize={standardize}"))
    frame = patients()
    theta, errors = sandwich(dummies(frame), frame["stay"].to_numpy())
    np.testing.assert_allclose(table.loc[NAMES, "estimate"], theta, rtol=1e-7)
    np.testing.assert_allclose(table.loc[NAMES, "standard_error"], errors, rtol=1e-7)
    assert table.loc["ward=eye", "method"] == "reference"
    assert np.isnan(table.loc["ward=eye", "estimate"])
    deviation = frame["age"].std(ddof=0)
    np.testing.assert_allclose(table.loc["age", "estimate_standardized"], theta[0] * deviation, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("standardize", ["none", "pooled"])
def test_the_debiased_lasso_of_least_squares_with_few_features_is_least_squares(standardize):
    inference = infer(record_of("reg=l1", "reg.strength=0.1", f"data.standardize={standardize}"), InferenceOptions())
    assert inference.options.method == "debiased"
    assert inference.gap is not None
    assert abs(inference.gap) < 1e-10
    table = build_table(inference)
    theta, _ = sandwich(dummies(patients()), patients()["stay"].to_numpy())
    estimates = dict(zip(table.features, table.estimate, strict=True))
    expected = dict(zip(NAMES, theta, strict=True))
    if standardize == "pooled":  # the intercept is a combination of all coefficients
        assert np.isnan(estimates[INTERCEPT])
        del expected[INTERCEPT]
    np.testing.assert_allclose([estimates[name] for name in expected], list(expected.values()), rtol=1e-6)
    assert "duality gap" in describe(inference, table)[1]


@pytest.mark.slow
def test_the_distance_of_a_record_from_the_certified_solution():
    inference = infer(record_of("reg=l1", "reg.strength=10", "data.standardize=pooled"), InferenceOptions())
    distance = inference.distance
    assert distance is not None
    assert distance.coefficient == 0  # all coefficients are 0 at this strength, as in the record
    y = patients()["stay"]
    np.testing.assert_allclose(distance.excess, y.mean() ** 2, rtol=1e-8)  # its intercept is 0


@pytest.mark.slow
@pytest.mark.parametrize(("target", "objective"), [("died", "logistic"), ("visits", "poisson")])
def test_models_with_a_link_have_ratios(target, objective):
    overrides = ("reg=l1", "reg.strength=0.01", "data.standardize=pooled", f"objective={objective}")
    table = table_of(record_of(*overrides, target=target))
    np.testing.assert_allclose(table["ratio"].dropna(), np.exp(table["estimate"].dropna()))
    assert table.loc["age", "ratio_low"] > 1


@pytest.mark.slow
def test_the_elastic_net_is_certified_by_a_gap():
    inference = infer(record_of("reg=elastic_net", "reg.strength=0.1", "data.standardize=pooled"), InferenceOptions())
    assert inference.gap is not None
    assert abs(inference.gap) < 1e-10


def test_free_features_have_intervals():
    table = table_of(record_of("reg=l1", "reg.strength=5", "data.standardize=pooled", "reg.factors={age: 0}"))
    assert table.loc["age", "p_value"] < 1e-6


def test_a_split_selects_on_one_half_and_estimates_on_the_other():
    record = record_of("reg=l1", "reg.strength=0.6", "data.standardize=pooled")
    table = table_of(record, method="split", seed=1)
    assert table.loc["noise", "method"] == "not selected"
    assert table.loc["age", "low"] < 0.08 < table.loc["age", "high"]
    assert table_of(record, method="split", seed=1).equals(table)
    assert not table_of(record, method="split", seed=2).equals(table)


@pytest.mark.slow
def test_weights_of_an_adaptive_lasso_are_warned_of(tmp_path):
    record = record_of("reg=l1", "reg.strength=0.05")
    assert not any("adaptive" in line for line in find_warnings(infer(record, InferenceOptions())))
    refit = Record(Path(shutil.copytree(record.folder, tmp_path / "selection" / "refit")))
    for selection, expected in (({"rule": "min"}, False), ({"adaptive": {"pilot": "ridge"}}, True)):
        (tmp_path / "selection/selection.json").write_text(json.dumps(selection))
        assert is_refit_of_adaptive_lasso(refit) == expected
        sentences = find_warnings(infer(refit, InferenceOptions()))
        assert any("weights of the adaptive lasso" in line for line in sentences) == expected


def test_clusters_change_errors_and_few_of_them_are_warned_of():
    record = record_of("reg=none")
    table, clustered = table_of(record), infer(record, InferenceOptions(cluster="client"))
    assert clustered.n_clusters == 12
    assert clustered.estimates.degrees == 11
    assert not np.allclose(table["standard_error"], build_table(clustered).standard_error, equal_nan=True)
    assert find_warnings(clustered) == []
    few = record_of("reg=none", frame=patients().assign(site=np.repeat([*"abcd"], 60)))
    assert "4 clusters are few" in find_warnings(infer(few, InferenceOptions(cluster="client")))[0]


def test_rows_of_a_group_are_a_cluster_unless_a_user_says_otherwise():
    frame = patients()
    frame["person"] = np.arange(len(frame)) // 4
    record = record_of("reg=none", "data.group=person", frame=frame)
    inference = infer(record, InferenceOptions())
    assert inference.n_clusters == 60
    assert "standard errors by group (60 of them)" in build_table(inference).title
    assert "cluster=group" in find_warnings(infer(record, InferenceOptions(cluster="none")))[0]


def test_weights_of_rows_count():
    frame = patients().assign(w=np.tile([1.0, 3.0], 120))
    table = table_of(record_of("reg=none", "data.weight=w", frame=frame))
    x, root = dummies(frame), np.sqrt(frame["w"].to_numpy())
    theta = np.linalg.lstsq(x * root[:, None], frame["stay"] * root, rcond=None)[0]
    np.testing.assert_allclose(table.loc[NAMES, "estimate"], theta, rtol=1e-7)


def test_constant_features_have_no_interval():
    table = table_of(record_of("reg=none", "data.standardize=pooled", frame=patients().assign(noise=1.5)))
    assert table.loc["noise", "method"] == "constant"


@pytest.mark.slow
def test_a_large_penalty_on_strong_effects_is_warned_of():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((600, 6))
    frame = pd.DataFrame(x, columns=[*"uvwxyz"]).assign(site="a", patient=0, stay=0, visits=0)
    frame["died"] = np.where(x @ [2.0, -2.0, 1.5, 0, 0, 0] + rng.logistic(size=600) > 0, "yes", "no")
    record = record_of("reg=l1", "reg.strength=0.06", target="died", frame=frame)
    assert any("one step does not correct" in line for line in find_warnings(infer(record, InferenceOptions())))
    record = record_of("reg=l1", "reg.strength=0.001", target="died", frame=frame)
    assert find_warnings(infer(record, InferenceOptions())) == []


@pytest.mark.slow
def test_few_events_are_warned_of():
    frame = patients().iloc[::4]
    record = record_of("reg=l1", "reg.strength=0.05", "data.standardize=pooled", target="died", frame=frame)
    assert any("smaller class are few" in line for line in find_warnings(infer(record, InferenceOptions())))


def rare_ward(deaths):
    """Return patients of whom the 12 of one ward are dead in so many cases."""
    frame = patients()
    numbers = np.arange(len(frame))
    frame["ward"] = np.where(numbers % 20 == 0, "rare", np.where(numbers % 3, "eye", "heart"))
    frame.loc[frame["ward"] == "rare", "died"] = np.where(np.arange(12) < deaths, "yes", "no")
    return frame


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deaths", "reason"),
    [
        (0, "no events in 12 rows"),
        (4, "4 events in 12 rows"),
        (6, "debiased lasso"),
        (11, "1 row without an event in 12 rows"),
    ],
)
def test_a_level_with_few_events_has_no_interval(deaths, reason):
    record = record_of("reg=l1", "reg.strength=0.002", target="died", frame=rare_ward(deaths))
    inference = infer(record, InferenceOptions())
    built = build_table(inference)
    table: Any = pd.DataFrame(built.to_rows(), columns=list(built.columns)).set_index("feature")
    rare = table.loc["ward=rare"]
    assert (rare["n"], rare["events"], rare["method"]) == (12, deaths, reason)
    assert np.isnan(table.loc["age", "n"])
    withheld = ["standard_error", "low", "high", "p_value", "p_holm", "low_standardized", "high_standardized"]
    assert rare[withheld].isna().all() == (reason != "debiased lasso")
    assert np.isfinite(rare["estimate"])
    warned = any(f"ward=rare ({reason})" in line for line in find_warnings(inference))
    assert warned == (reason != "debiased lasso")
    assert f"corrected for {table['p_holm'].notna().sum()} tests" in describe(inference, built)[-1]


def test_few_rows_of_a_level_have_no_interval_whatever_the_target():
    frame = patients()
    frame["ward"] = np.where(np.arange(len(frame)) < 4, "rare", frame["ward"])
    record = record_of("reg=none", frame=frame, weights=np.zeros(7))
    table = table_of(record)
    assert table.loc["ward=rare", "method"] == "4 rows"
    assert np.isnan(table.loc["ward=rare", "p_value"])
    assert all(np.isnan(build_table(infer(record, InferenceOptions())).events))
    assert table.loc["ward=icu", "method"] == "Wald"


@pytest.mark.parametrize(
    ("n_patients", "cluster", "reason"),
    [
        (1, "group", "rows of 1 group"),
        (4, "group", "rows of 4 groups"),
        (5, "group", "Wald"),
        (1, "none", "Wald"),
        (4, "client", "rows of 1 client"),
    ],
)
def test_a_level_of_few_clusters_has_no_interval(n_patients, cluster, reason):
    """Without the rule its errors are far too small: the scores of a cluster that alone has the level sum to 0."""
    frame = patients()
    frame["person"] = np.arange(240) // 5
    frame["ward"] = np.where(frame["person"] < n_patients, "rare", frame["ward"])
    record = record_of("reg=none", "data.group=person", frame=frame, weights=np.zeros(7))
    inference = infer(record, InferenceOptions(cluster=cluster))
    built = build_table(inference)
    table: Any = pd.DataFrame(built.to_rows(), columns=list(built.columns)).set_index("feature")
    assert table.loc["ward=rare", "method"] == reason
    assert np.isnan(table.loc["ward=rare", "p_value"]) == (reason != "Wald")
    assert np.isfinite(table.loc["ward=icu", "p_value"])
    warned = [line for line in find_warnings(inference) if f"ward=rare ({reason})" in line]
    assert bool(warned) == (reason != "Wald")
    if "of 1 " in reason:
        assert "join rare levels" in warned[0]
        level = list(inference.problem.feature_names).index("ward=rare")
        position = inference.parameters.numbers.tolist().index(level)
        assert inference.sums.scores(inference.solution.theta).meat[position, position] < 1e-15


def test_events_of_few_groups_give_no_interval():
    """Twelve rows of ward=rare with an event are of three patients."""
    frame = patients()
    frame["person"] = np.arange(240) // 4
    frame["ward"] = np.where(np.arange(240) < 60, "rare", "other")
    frame["died"] = np.where((np.arange(240) < 12) | (np.arange(240) >= 120), "yes", "no")
    record = record_of("reg=none", "data.group=person", target="died", frame=frame, weights=np.zeros(4))
    table = table_of(record)
    assert table.loc["ward=rare", "method"] == "events in 3 groups"
    assert table_of(record, cluster="none").loc["ward=rare", "method"] == "Wald"


@pytest.mark.slow
def test_the_most_frequent_level_is_the_reference():
    record = record_of("reg=l1", "reg.strength=0.01", target="died", frame=rare_ward(6))
    inference = infer(record, InferenceOptions())
    table = build_table(inference)
    assert table.method[table.features.index("ward=eye")] == "reference"
    assert "reference: ward=eye (152 rows)" in describe(inference, table)


def test_rows_of_weight_0_are_counted():
    frame = patients().assign(w=np.tile([0.0, *[1.0] * 11], 20))
    inference = infer(record_of("reg=none", "data.weight=w", frame=frame), InferenceOptions())
    assert inference.n_rows == 220
    assert describe(inference, build_table(inference))[1] == "20 rows of weight 0 take no part"


def test_rows_that_are_held_out_are_counted():
    record = record_of("reg=none", "data.test=0.25")
    inference = infer(record, InferenceOptions())
    table = build_table(inference)
    n_rows = inference.n_rows
    assert n_rows < 240
    assert f"{n_rows} of 240 rows" in table.title
    assert f"{240 - n_rows} rows are held out (data.test=0.25) and not used" in describe(inference, table)


L1 = ("reg=l1", "reg.strength=0.1")


@pytest.mark.parametrize(
    ("overrides", "options", "words"),
    [
        (L1, {"method": "wald"}, ("method=wald", "method=debiased")),
        (("reg=none",), {"method": "debiased"}, ("method=wald",)),
        (("reg=none",), {"cluster": "group"}, ("cluster=group", "data.group")),
        (L1, {"method": "split", "cluster": "client"}, ("cluster=client", "debiased")),
        (("reg=none", "objective.ridge=0.1"), {}, ("objective.ridge",)),
        (("reg=elastic_net", "reg.strength=0.1", "reg.l1_ratio=0"), {}, ("reg.l1_ratio=0", "reg=none or reg=l1")),
        (("reg=l2", "reg.strength=0.1"), {}, ("reg=l2", "reg=none, l1 and elastic_net")),
        (("reg=none", "objective=huber"), {}, ("objective=huber",)),
        (("reg=none", "algo=pfedme", "batch_size=null"), {}, ("own models of clients",)),
    ],
)
def test_problems_without_valid_intervals_are_refused(overrides, options, words):
    with fails(*words):
        infer(record_of(*overrides), InferenceOptions(**options))


def test_levels_outside_of_0_and_1_are_refused():
    with fails("level=95", "0.95"):
        InferenceOptions(level=95)


def test_a_half_that_selects_nothing_is_refused():
    record = record_of("reg=l1", "reg.strength=10", "data.standardize=pooled")
    with fails("method=split", "smaller reg.strength"):
        infer(record, InferenceOptions(method="split"))


def test_diverged_records_and_changed_data_are_refused():
    with fails("diverged"):
        infer(record_of("reg=none", status="diverged"), InferenceOptions())
    record = record_of("reg=none")
    patients().assign(age=50).to_csv("patients.csv", index=False)
    with fails("data have changed"):
        infer(record, InferenceOptions())


def test_more_parameters_than_rows_and_equal_features_are_refused():
    with fails("rows do not determine"):
        infer(record_of("reg=none", frame=patients().iloc[[0, 40, 80, 81, 120, 160]]), InferenceOptions())
    with fails("dose", "noise", "reg=l1"):
        infer(record_of("reg=none", frame=patients().assign(noise=patients()["dose"])), InferenceOptions())


@pytest.mark.parametrize("method", ["debiased", "split"])
def test_equal_features_without_a_penalty_of_their_own_are_refused_by_name(method):
    frame = patients().assign(noise=2 * patients()["dose"])
    record = record_of("reg=l1", "reg.strength=0.1", "reg.factors={dose: 0, noise: 0}", frame=frame)
    with fails("coefficients of dose, noise", "reg.factors"):
        infer(record, InferenceOptions(method=method))


@pytest.mark.parametrize("method", ["debiased", "split"])
def test_a_feature_without_a_penalty_that_separates_the_classes_is_named(method):
    frame = patients()
    frame["dose"] = np.where((frame["died"] == "yes") & (np.arange(240) % 3 == 0), 1.0, 0.0)
    penalty = ("reg=l1", "reg.strength=0.01", "reg.factors={dose: 0}")
    record = record_of(*penalty, target="died", frame=frame)
    with fails("no finite coefficient of dose:", "give the features a penalty (reg.factors)"):
        infer(record, InferenceOptions(method=method))


def test_rows_that_stay_at_their_sites_are_refused():
    record = record_of("reg=none")
    sites = prepare(composed("algo=newton", "data=sites", "data.target=stay", "reg=none"))
    (record.folder / "config.yaml").write_text(yaml.safe_dump(sites.config))
    with fails("stay at their sites"):
        infer(Record(record.folder), InferenceOptions())


@pytest.mark.parametrize(("n_rows", "advice"), [(20, "join rare levels"), (750, "recorded after the outcome")])
def test_only_rare_levels_without_events_are_to_be_joined(n_rows, advice):
    inference: Any = SimpleNamespace(
        problem=SimpleNamespace(feature_names=("letter=yes",)),
        parameters=SimpleNamespace(numbers=np.arange(1)),
        indicators=SimpleNamespace(
            counts=SimpleNamespace(at_low=np.array([n_rows]), at_high=np.array([1000 - n_rows])),
            has_two_classes=True,
            is_indicator=np.ones(1, bool),
            clusters={},
        ),
        n_rows=1000,
        explain_withheld=lambda feature: f"no events in {n_rows} rows at its other value",
    )
    sentence = inference_table._warn_of_sparse_indicators(inference)
    assert advice in sentence
    assert ("join rare levels" in sentence) == (n_rows == 20)


def test_linearization_errors_that_are_all_unknown_are_a_warning(monkeypatch):
    """All are NaN if sums are withheld and the losses have no intercept, as for times to events."""
    monkeypatch.setattr(inference_table, "linearization_errors", lambda *_: np.full(2, np.nan))
    parameters = SimpleNamespace(map=np.eye(2), numbers=np.arange(2), derivatives=lambda sums: sums)
    inference: Any = SimpleNamespace(
        options=InferenceOptions(method="debiased"),
        parameters=parameters,
        solution=SimpleNamespace(theta=np.ones(2), sums=None),
        estimates=None,
        problem=SimpleNamespace(n_features=2),
        explain_withheld=lambda parameter: "",
    )
    assert "could not be checked" in inference_table._warn_of_curvature(inference)


def test_a_curve_of_which_a_half_selects_some_terms_names_these():
    options = ("reg=l1", "reg.strength=0.3", "data.splines={age: 5}", "data.standardize=pooled")
    inference = infer(record_of(*options, weights=np.zeros(9)), InferenceOptions(method="split", seed=1))
    table = build_table(inference)
    terms = [text for name, text in zip(table.features, table.method, strict=True) if name.startswith("age")]
    tested = "Wald on the second half; p value of terms of age: age, age'''"
    assert terms == [tested, "not selected", "not selected", tested]
    assert "age is a curve: p value of terms of age: age, age'''" in describe(inference, table)
    inference = infer(record_of(*options, weights=np.zeros(9)), InferenceOptions(method="split", seed=2))
    assert "age is a curve: p value of terms of age: age" in describe(inference, build_table(inference))


def test_a_curve_has_one_test_and_none_where_clusters_do_not_determine_it():
    record = record_of("reg=none", "data.splines={age: 5}", weights=np.zeros(9))
    inference = infer(record, InferenceOptions())
    table = build_table(inference)
    terms = [row for row, name in enumerate(table.features) if name.startswith("age")]
    assert {table.method[row] for row in terms} == {"Wald; p value of all 4 terms of age"}
    assert np.isfinite(table.p_holm[terms]).tolist() == [True, False, False, False]
    assert describe(inference, table)[-1].startswith("5 tests of no association: ")
    of_four = patients().assign(site=CLIENTS.astype("U1")).query("site < 'e'")
    few = record_of("reg=none", "data.splines={age: 5}", frame=of_four, weights=np.zeros(9))
    inference = infer(few, InferenceOptions(cluster="client"))
    table = build_table(inference)
    reason = "no p value: 4 clusters do not determine the covariance of all 4 terms of age"
    assert f"age is a curve: {reason}" in describe(inference, table)
    assert all(table.method[row] == f"Wald; {reason}" for row in terms)
    assert not np.isfinite([table.p_value[terms], table.p_holm[terms]]).any()
    assert np.isfinite(table.low[terms]).all()
    assert describe(inference, table)[-1].startswith("4 tests of no association: ")


def test_a_column_of_ones_takes_the_place_of_the_intercept():
    options = ("reg=none", "data.standardize=none")
    frame = patients().assign(ward=1.0)  # in place of levels, which add up to ones, too
    expected = table_of(record_of(*options, frame=frame.drop(columns="ward"), weights=np.zeros(3)))
    record = record_of(*options, "objective.intercept=false", frame=frame, weights=np.zeros(4))
    np.savez(record.folder / "solution.npz", weights=np.zeros(4))
    table = table_of(record)
    columns = ["estimate", "standard_error", "p_value"]
    expected = expected.rename(index={INTERCEPT: "ward"})
    np.testing.assert_allclose(table.loc[expected.index, columns], expected[columns], rtol=1e-6)
    assert np.isnan(table.loc["ward", "estimate_standardized"])


def test_no_term_of_a_curve_has_an_interval_where_few_clusters_are_on_one_side_of_a_knot():
    """All rows above the second of four knots are of three patients, and the younger third is of many."""
    frame = patients().iloc[:180].assign(site="a")
    rows = np.arange(180)
    frame["person"] = np.where(rows < 120, rows % 3, rows // 3)
    frame["age"] = np.where(rows < 120, 60 + rows / 10, 30 + (rows - 120) / 3)
    options = ("reg=none", "data.group=person", "data.splines={age: 4}")
    inference = infer(record_of(*options, frame=frame, weights=np.zeros(8)), InferenceOptions(cluster="group"))
    table = build_table(inference)
    terms = [row for row, name in enumerate(table.features) if name.startswith("age")]
    reason = "rows of 3 groups far from the most frequent value"
    assert {table.method[row] for row in terms} == {reason}
    assert np.isnan([table.low[terms], table.p_value[terms], table.p_holm[terms]]).all()
    assert any(f"age ({reason})" in line and "data.ignore" in line for line in find_warnings(inference))
    assert np.isfinite(table.low[table.features.index("dose")])


def test_a_level_whose_counts_are_all_0_is_refused_beside_320_others():
    frame = pd.concat([patients()] * 4, ignore_index=True)
    rng = np.random.default_rng(0)
    genes = pd.DataFrame(rng.integers(0, 2, (len(frame), 320))).add_prefix("gene")
    rare = (np.arange(len(frame)) % 7 == 0).astype(int)
    frame["visits"] = np.where(rare, 0, rng.poisson(2.0, len(frame)))
    frame = pd.concat([frame, genes.assign(rare=rare)], axis=1)
    record = record_of("objective=poisson", "reg=none", target="visits", frame=frame, weights=np.zeros(327))
    with fails("no finite coefficient of rare (of features looked at one by one)", "reg=l1"):
        infer(record, InferenceOptions())
