"""fcorun compare: candidates on the same folds, differences to the shared model, and the verdict."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from four_clients import OWNER, X, table
from helpers import composed, fails, not_none
from sklearn.linear_model import LogisticRegression

from fcorun.data.rows.rows import Rows
from fcorun.methods.objectives import Logistic
from fcorun.results.score_intervals.held_out_rows import HeldOutRows
from fcorun.studies.selection.comparison import (
    BETTER,
    UNCLEAR,
    WORSE,
    CompareOptions,
    ModelComparison,
    compare_rows,
    compose_candidates,
    order_scores,
    plan_comparison,
)
from fcorun.studies.selection.derived_candidates import _fit_client, predict_means, recalibrate_clients

DATA = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "data.validation=0", "reg=l1"]


def compose(overrides):
    return composed(*overrides)


def rows_of(probability, target, client, model="shared", fold=None):
    n = len(target)
    return HeldOutRows(
        folder=Path("out"),
        split="out_of_fold",
        model=model,
        task="binary",
        client=client,
        row=np.arange(n),
        group=None,
        target=target,
        prediction=(probability > 0.5).astype(int),
        probability=probability,
        fold=np.arange(n) % 3 if fold is None else fold,
        classes=("no", "yes"),
    )


def compare(rows, **options):
    options = CompareOptions(samples=300, **options)
    table, warnings = compare_rows(rows, options, seed=0)
    return ModelComparison(
        rows=table,
        candidates=list(rows),
        clients=["a", "b", "c"],
        scores=order_scores(table, "val_loss"),
        task="binary",
        options=options,
        folder=Path("out"),
        chosen={},
        warnings=warnings,
        experiment=None,  # type: ignore[arg-type]
        seconds=0.0,
    )


def test_a_verdict_counts_groups_and_not_their_rows():
    """Patients of a have 10 rows each, half of them events, and those of b 30; 6 of these 8 have one event."""
    group = np.concatenate([np.repeat(np.arange(24), 10), np.repeat(np.arange(24, 32), 30)])
    client = np.repeat(["a", "b"], 240)
    target = np.where(client == "a", np.arange(480) % 2, 0)
    target[240:420:30] = 1
    probability = np.random.default_rng(0).uniform(0.2, 0.8, 480)
    shared = replace(rows_of(probability, target, client), group=group)
    own = replace(rows_of(1 - probability, target, client, "personal"), group=group)
    result = replace(compare({"shared": shared, "ditto": own}), clients=["a", "b"])
    assert result.find("shared", "a").of_score.units == ("groups", 24, 24, 24, 24)
    assert result.find("shared", "b").of_score.units == ("groups", 8, 6, 8, 6)
    assert (result.find("shared", "b").of_score.n, result.find("shared", "b").of_score.events) == (240, 6)
    assert "too small to rely on a verdict: b (8 groups, 6 with events)" in result.describe_verdict()
    header, *_ = [line for line in result.describe() if line.startswith("client")]
    assert header.split()[1:4] == ["groups", "with", "events"]
    assert result.rows[0].to_dict()["groups"] == 32


def test_a_drawing_that_fails_leaves_no_earlier_picture_beside_the_new_table(monkeypatch):
    Path("out").mkdir()
    for name in ("comparison.png", "comparison.pdf", "comparison.json"):
        Path("out", name).write_text("of an earlier comparison")
    client = np.repeat(["a", "b", "c"], 20)
    result = compare({"shared": rows_of(np.full(60, 0.5), np.arange(60) % 2, client)})

    def fail(comparison):
        raise RuntimeError("no drawing")

    monkeypatch.setattr("fcorun.studies.selection.comparison.draw_comparison", fail)
    with pytest.raises(RuntimeError):
        result.write_files()
    assert [path.name for path in Path("out").iterdir()] == ["comparison.csv"]


@pytest.mark.parametrize(("numbers", "word"), [({"samples": 10}, "samples=10"), ({"level": 1.5}, "level=1.5")])
def test_intervals_that_cannot_be_are_refused_before_anything_is_computed(numbers, word):
    with fails(word):
        CompareOptions(**numbers)


@pytest.mark.slow
def test_who_profits_and_who_loses():
    """Own models know the truth for client a, are noise for b, and equal the shared model but for little at c."""
    rng = np.random.default_rng(0)
    client = np.repeat(["a", "b", "c"], [200, 200, 12])
    truth = rng.uniform(0.02, 0.98, 412)
    target = (rng.random(412) < truth).astype(int)
    target[400:] = [1, *[0] * 11]
    shared = np.where(client == "a", 0.5, truth)
    own = np.where(
        client == "a", truth, np.where(client == "b", rng.permutation(truth), shared + 0.02 * rng.choice([-1, 1], 412))
    )
    own_rows, shared_rows = rows_of(own, target, client, "personal"), rows_of(shared, target, client)
    result = compare({"shared": shared_rows, "ditto": own_rows})
    assert [result.find("ditto", name).verdict for name in "abc"] == [BETTER, WORSE, UNCLEAR]
    sentence = result.describe_verdict()
    for text in (
        "a profits from ditto",
        "b loses with ditto",
        "for c no model can be told apart",
        "c (12 rows, 1 events)",
    ):
        assert text in sentence
    row = result.find("ditto", "a")
    assert (row.of_score.n, row.of_score.events) == (200, int(target[:200].sum()))
    loss = -np.log(np.where(target == 1, own, 1 - own))
    assert row.of_score.estimate == pytest.approx(loss[:200].mean())
    reference = -np.log(np.where(target == 1, shared, 1 - shared))[:200]
    low, difference, high = row.interval
    assert difference == pytest.approx((loss[:200] - reference).mean())
    half = 1.96 * np.std(loss[:200] - reference) / 200**0.5  # of a paired difference
    assert (high - low) / 2 == pytest.approx(half, rel=0.2)
    lines = "\n".join(result.describe())
    assert "log loss out of fold" in lines
    assert f"{row.of_score.estimate:.4f}+" in lines
    small = []
    for row in result.rows:
        units = row.of_score.units._replace(n=1_234_567)
        of_score = row.of_score._replace(units=units, values=(row.of_score.estimate * 1e-6,))
        small.append(replace(row, of_score=of_score))
    scaled = replace(result, rows=small)
    table = list(scaled.describe())
    assert len({len(line.rstrip("+- ")) for line in table[1:3]}) == 1
    assert " 1,234,567 " in table[2]
    assert f"{scaled.find('shared', '').of_score.estimate:.4g}" in table[2]


def test_equal_models_cannot_be_told_apart():
    rng = np.random.default_rng(0)
    client = np.repeat(["a", "b", "c"], 30)
    target = rng.integers(2, size=90)
    same = rows_of(rng.uniform(0.1, 0.9, 90), target, client)
    result = compare({"shared": same, "local": replace(same, model="personal")})
    assert "nobody profits" in result.describe_verdict()
    assert "not corrected for 3 comparisons)" in result.describe_verdict()
    assert "not corrected for 1 comparison)" in replace(result, clients=["a"]).describe_verdict()
    assert all(row.verdict in ("", UNCLEAR) for row in result.rows)


@pytest.mark.slow
def test_a_new_client_may_have_other_folds():
    rng = np.random.default_rng(0)
    client = np.repeat(["a", "b", "c"], 30)
    target, probability = rng.integers(2, size=90), rng.uniform(0.1, 0.9, 90)
    shared = rows_of(probability, target, client)
    other = rows_of(probability, target, client, fold=np.repeat([0, 1, 2], 30))
    assert compare({"shared": shared, "new_client": other}).find("new_client", "a").interval[1] == 0
    with fails("in other folds"):
        compare({"shared": shared, "ditto": other})


def test_means_are_those_of_the_other_folds():
    client = np.repeat(["a", "b", "c"], 4)
    target = np.array([1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0])
    fold = np.array([1, 2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1])
    means = predict_means(rows_of(np.full(12, 0.5), target, client, fold=fold))
    of_all = [1 / 4, 2 / 8]  # without fold 1, and without fold 2
    expected = [(1 + of_all[0]) / 3, (1 + of_all[1]) / 3] * 2
    expected += [of_all[0] / 3, of_all[1] / 3] * 2
    expected += [of_all[0]] * 4  # client c has all its rows in fold 1
    np.testing.assert_allclose(not_none(means.probability), expected)
    assert means.prediction.tolist() == [0] * 12
    without = replace(rows_of(np.full(12, 0.5), target, client, fold=fold), probability=None)
    assert predict_means(without).probability is None


def test_a_method_is_an_algorithm_and_no_other_candidate():
    with fails("methods=local is the name of a candidate of fcorun: leave it out"):
        CompareOptions(methods=["local"])
    with fails("methods=pfed-me is no method with own models: give some of ditto"):
        CompareOptions(methods=["pfed-me"])


@pytest.mark.slow
def test_configurations_of_the_candidates():
    table()
    configs = compose_candidates(compose, [*DATA, "data.standardize=pooled"], CompareOptions(methods=["pfedme"]))
    assert list(configs) == ["shared", "intercepts", "standardized", "pfedme", "local", "new_client"]
    assert configs["shared"]["algo"]["name"] == "centralized"
    assert configs["standardized"]["data"]["standardize"] == "per_client"
    given = compose_candidates(compose, [*DATA, "algo=fedmid", "algo.server_lr=0.5"], CompareOptions())
    assert (given["shared"]["algo"]["server_lr"], given["ditto"]["algo"]["solver"]) == (0.5, "feddualavg")
    assert plan_comparison(compose, DATA, CompareOptions(methods=[], folds=5), "out").left_out == []  # of four clients
    frame = pd.read_csv("rows.csv")
    frame[frame["site"].isin(["a", "b"])].to_csv("two.csv", index=False)
    (left_out,) = plan_comparison(compose, [*DATA, "data.path=two.csv"], CompareOptions(methods=[]), "out").left_out
    assert left_out == "new_client is left out: it needs three clients or more"
    with fails("methods=fedavg: algo=fedavg trains no own models"):
        plan_comparison(compose, DATA, CompareOptions(methods=["fedavg"]), "out")
    with fails("the predictions of objective=quantile are no expected values"):
        plan_comparison(compose, [*DATA, "data.task=regression", "objective=quantile"], CompareOptions(), "out")


def test_validation_rows_of_a_comparison_score_no_refit():
    """A comparison has no final model; nor has it an option `by`, which the cure of too many folds gives to others."""
    table()
    given = [text for text in DATA if not text.startswith("data.validation")]
    use = " validation rows are left aside and take no part (data.validation=0 makes training rows of validation rows)"
    options = CompareOptions(methods=[], folds=2, outer_folds=2, points=2)
    lines = plan_comparison(compose, given, options, "out").messages
    assert [use in line for line in lines].count(True) == 1
    assert "refit" not in " ".join(lines)
    assert "take no part" not in " ".join(plan_comparison(compose, DATA, options, "out").messages)
    with fails("join the client with another, or give by=clients (in select, permute and stability)"):
        plan_comparison(compose, DATA, CompareOptions(methods=[], folds=2, outer_folds=500), "out")


def test_other_options_of_a_candidate_are_another_comparison():
    """Rounds, which the shared model's solver has none of, change the own models alone."""
    table()
    options = CompareOptions(methods=["ditto"], folds=2, outer_folds=2, points=2)
    first, other = (plan_comparison(compose, [*DATA, f"rounds={rounds}"], options) for rounds in (20, 60))
    assert first.folder != other.folder
    with first.plans["ditto"].study.claim():
        (first.folder / "comparison.csv").write_text("earlier")
    with fails("ditto holds another study", "choose another folder"):
        plan_comparison(compose, [*DATA, "rounds=60"], options, first.folder).run()
    assert (first.folder / "comparison.csv").read_text() == "earlier"
    assert not list(first.folder.glob("shared/fits/*"))


def check_recalibrated(frame):
    """Hold that each row is predicted by a line through its client's other rows, on the shared model without it."""
    x = frame.drop(columns=["y", "site"]).to_numpy()
    predictions = pd.read_csv("out/recalibrated/predictions.csv")
    shared = pd.read_csv("out/shared/predictions.csv")
    for number in (1, 2, 3):
        held_out = (shared["fold"] == number).to_numpy()
        fits = np.load(f"out/shared/fits/outer{number}.npz")
        linear = fits["solution/weights"] @ x.T + fits["solution/bias"][:, None]
        used = np.abs(linear[:, held_out] - shared["prediction"][held_out].to_numpy()).sum(axis=1).argmin()
        for client in frame["site"].unique():
            is_own = (frame["site"] == client).to_numpy()
            trained = is_own & ~held_out
            degree = int(np.ptp(linear[used]) > 0)  # a shared model of zeros has no slope
            line = np.polynomial.Polynomial.fit(linear[used][trained], frame["y"][trained], degree)
            expected = line(linear[used][is_own & held_out])
            np.testing.assert_allclose(predictions["prediction"][is_own & held_out], expected, rtol=1e-6, atol=1e-6)


def test_a_client_gets_the_intercept_and_slope_that_its_rows_determine():
    rng = np.random.default_rng(0)
    predictor = rng.standard_normal(70)
    target = (rng.random(70) < 1 / (1 + np.exp(-2 * predictor - 1))).astype(int)
    slope, intercept = _fit_client(Logistic(), predictor, Rows(np.zeros((70, 1)), target))
    glm = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(predictor[:, None], target)
    np.testing.assert_allclose([slope, intercept], [glm.coef_[0, 0], glm.intercept_[0]], rtol=1e-5)
    separated = (predictor > 0).astype(int)
    slope, intercept = _fit_client(Logistic(), predictor, Rows(np.zeros((70, 1)), separated))
    assert slope is None
    expected = 1 / (1 + np.exp(-predictor - intercept))
    assert expected.sum() == pytest.approx(separated.sum())  # of the intercept alone
    assert _fit_client(Logistic(), predictor, Rows(np.zeros((70, 1)), np.ones(70, int))) == (None, None)


def test_clients_that_keep_the_slope_or_the_whole_of_the_shared_model_are_told_apart():
    rng = np.random.default_rng(0)
    predictor = rng.standard_normal(210)
    clients = np.repeat(["both", "one class", "separated"], 70)
    target = (rng.random(210) < 0.5).astype(int)
    target[70:140] = 1
    target[140:] = predictor[140:] > 0
    predictors = {"train": predictor, "validation": np.array([0.5, 0.5, 0.5, 0.5])}
    names = {"train": clients, "validation": np.array(["both", "new", "one class", "separated"])}
    recalibrated, without_slope, as_shared = recalibrate_clients(
        Logistic(), predictors, names, Rows(np.zeros((210, 1)), target)
    )
    assert without_slope == {"separated"}
    assert as_shared == {"new", "one class"}
    assert recalibrated[1:3].tolist() == [0.5, 0.5]
    assert (recalibrated[[0, 3]] != 0.5).all()


@pytest.mark.slow
@pytest.mark.drawn
def test_a_comparison_of_a_table():
    """Clients whose effects have opposite signs profit from their own models, in a regression of numbers."""
    table()
    sign = np.where(np.isin(OWNER, ["a", "b"]), 1.0, -1.0)
    frame = pd.read_csv("rows.csv")
    frame["y"] = 3 * sign * X[:, 0] + 0.1 * np.random.default_rng(0).standard_normal(60)
    frame.assign(w=1.0).to_csv("rows.csv", index=False)
    options = CompareOptions(folds=2, outer_folds=3, points=3, methods=["pfedme"], samples=200)
    overrides = [*DATA, "rounds=100", "data.weight=w", "data.weight_kind=sampling"]
    comparison = plan_comparison(compose, overrides, options, "out").run()
    names = ["shared", "recalibrated", "intercepts", "standardized", "pfedme", "local", "new_client", "mean"]
    assert comparison.candidates == names
    check_recalibrated(frame)
    assert comparison.scores == ["rmse", "r2"]
    assert comparison.find("local", "").verdict == BETTER
    written = pd.read_csv("out/comparison.csv")
    assert len(written) == len(names) * 2 * 5
    assert not written["events"].notna().to_numpy().any()
    summary = json.loads(Path("out/comparison.json").read_text())
    assert "profit from local" in summary["verdict"]
    assert len(summary["chosen"]["shared"]) == 3
    for lines in (summary["warnings"], list(comparison.describe())):
        assert any(line.startswith("each row counts once, whatever its weight ('w')") for line in lines)
    predictions = pd.read_csv("out/shared/predictions.csv")
    rmse = np.sqrt(((predictions["prediction"] - predictions["target"]) ** 2).mean())
    assert comparison.find("shared", "").of_score.estimate == pytest.approx(rmse)

    again = plan_comparison(compose, overrides, options, "out")
    assert all(" 0 to run" in line for line in again.describe_progress())
    assert [row.to_dict() for row in again.run().rows] == [row.to_dict() for row in comparison.rows]


@pytest.mark.slow
def test_clients_that_differ_by_a_constant_profit_from_intercepts_and_no_more_from_own_models():
    table()
    level = {name: 4.0 * number for number, name in enumerate(dict.fromkeys(OWNER))}
    frame = pd.read_csv("rows.csv")
    frame["y"] = [level[name] for name in OWNER] + X[:, 0] + 0.1 * np.random.default_rng(0).standard_normal(60)
    frame.to_csv("rows.csv", index=False)
    options = CompareOptions(folds=2, outer_folds=3, points=3, methods=[], samples=200)
    comparison = plan_comparison(compose, DATA, options, "out").run()
    assert comparison.find("intercepts", "").verdict == BETTER
    assert comparison.find("intercepts", "").of_score.estimate < 0.2 < comparison.find("local", "").of_score.estimate
    chosen = [*DATA, "objective.client_intercepts=true", "batch_size=null"]
    configs = compose_candidates(compose, chosen, CompareOptions())
    assert "intercepts" not in configs
    assert not configs["ditto"]["objective"].get("client_intercepts")
