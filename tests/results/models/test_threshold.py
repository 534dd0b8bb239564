"""threshold=: its choice on held-out rows, and the scores and predictions at it."""

import numpy as np
import pandas as pd
import pytest
from helpers import fails
from run_studies import select
from sklearn import metrics

from fcorun import compose, run
from fcorun.base.records.record import PAGE_FILES
from fcorun.experiment.threshold_rule import ThresholdRule
from fcorun.interface.cli.commands import main
from fcorun.results.models.estimator import read_threshold
from fcorun.results.models.predict import predict
from fcorun.runs.finish import has_other_threshold
from fcorun.studies.selection.selection_result import SelectOptions

RNG = np.random.default_rng(4)
Y = RNG.integers(0, 2, 300)
P = np.round(1 / (1 + np.exp(-(Y + RNG.standard_normal(300)))), 2)  # with ties
pytestmark = pytest.mark.undrawn


def row_of_scores(record, split):
    (row,) = record.scores.query(f"set == '{split}' and client == ''").to_dict("records")
    return row


def choose(text, y=Y, p: np.ndarray = P):
    return ThresholdRule.parse(text).choose(y, p, "validation rows")


def midway(chosen, p):
    """Return the number midway between the probability ``chosen`` of a row and the next lower one."""
    return pytest.approx((chosen + p[p < chosen].max()) / 2, rel=1e-12)


def test_youden_is_that_of_the_roc_curve():
    fpr, tpr, thresholds = metrics.roc_curve(Y, P, drop_intermediate=False)
    assert choose("youden") == (midway(thresholds[np.argmax(tpr - fpr)], P), "")


@pytest.mark.parametrize("least", [0.5, 0.9, 0.99])
def test_the_least_sensitivity_and_specificity_hold_and_no_other_threshold_is_better(least):
    fpr, tpr, thresholds = metrics.roc_curve(Y, P, drop_intermediate=False)
    assert choose(f"sensitivity:{least}")[0] == midway(thresholds[tpr >= least].max(), P)
    reaching = thresholds[1:][1 - fpr[1:] >= least]
    if len(reaching):
        assert choose(f"specificity:{least}")[0] == midway(reaching.min(), P)


def test_rates_that_are_reached_exactly_count():
    y, p = np.repeat([1, 0], [4, 25]), np.append(np.repeat(0.3, 4), np.linspace(0.6, 0.12, 25))
    passed = [int((p[y == 0] < t).sum()) for t in np.unique(p)]
    for count in range(1, 25):
        reaching = np.unique(p)[np.array(passed) >= count]
        assert choose(f"specificity:{count / 25}", y, p)[0] == midway(reaching.min(), p), count


@pytest.mark.parametrize("p", [[0.5, 0.5], [0.2, 0.5], [0.5 - 1e-9, 0.5], [0.4, 0.6]])
def test_a_rule_that_takes_a_half_flags_the_rows_at_a_half(p):
    threshold, warning = choose("sensitivity:0.9", np.array([0, 1]), np.array(p))
    assert warning == ""
    assert (np.array(p) > threshold).tolist() == [p[0] == p[1], True]


@pytest.mark.parametrize("text", ["youden", "sensitivity:0.9", "sensitivity:1", "specificity:0.9"])
def test_a_threshold_flags_the_same_rows_in_another_precision(text):
    p = np.random.default_rng(0).random(300).astype(np.float32)
    y = np.where(p == p.min(), 1, Y)
    threshold = choose(text, y, p)[0]
    for rounding in (-3e-7, 3e-7):
        other = p.astype(float) * (1 + rounding)
        assert ((other >= threshold) == (p >= threshold)).all()


def test_thresholds_that_nobody_reaches():
    assert choose(0.97, p=P.clip(0, 0.9)) == (
        0.97,
        "threshold=0.97 flags none of the validation rows, whose largest probability is 0.9",
    )
    assert choose("specificity:0.9", y=np.repeat([0, 1], [8, 2]), p=np.repeat([0.9, 0.1], [2, 8])) == (
        0.5,
        "threshold=specificity:0.9 is reached at no threshold that flags one of the validation rows, at most 0.75: 0.5 "
        "is taken instead",
    )
    assert choose("youden", y=np.ones(300, int)) == (
        0.5,
        "threshold=youden needs both classes among the validation rows: 0.5 is taken instead",
    )


@pytest.mark.parametrize("text", ["yuden", 0, 1, "sensitivity", "sensitivity:2", "0.2:0.3", True])
def test_values_that_are_no_threshold(text):
    with fails("threshold="):
        run(compose(["data=lasso"]) | {"threshold": text})


@pytest.mark.slow
def test_data_without_two_classes_or_without_rows_to_choose_on(trained):
    with fails("threshold=0.3 divides two classes"):
        run(compose(["threshold=0.3"]))
    with fails("is chosen on validation rows, and none are held out"):
        trained("binary", "threshold=youden", "data.validation=0")
    rules = [trained("binary", "data.validation=0", f"threshold={rule}") for rule in (0.3, 0.5)]
    assert rules[0].folder == rules[1].folder
    assert read_threshold(rules[1]) == 0.5
    assert not has_other_threshold(rules[1], 0.5)


@pytest.mark.slow
def test_a_finished_run_is_scored_again_and_not_trained_again(trained, visits):
    first = trained("binary", "data.test=0.2")
    folder, metrics_file = first.folder, first.folder / "metrics.csv"
    before = metrics_file.stat().st_mtime_ns
    picture = folder / "roc.png"
    drawn = picture.stat().st_mtime_ns
    for name in PAGE_FILES:
        (folder / name).touch()
    second = trained("binary", "data.test=0.2", "threshold=youden", "title=Other")
    assert second.folder == folder
    assert second.config["title"] == first.config["title"]  # of curves.png
    assert metrics_file.stat().st_mtime_ns == before
    assert picture.stat().st_mtime_ns > drawn
    assert not any((folder / name).exists() for name in PAGE_FILES)
    section = second.summary["threshold"]
    validation = second.predictions[second.predictions["set"] == "validation"]
    fpr, tpr, thresholds = metrics.roc_curve(validation["target"] == "ill", validation["probability"])
    assert section == {"rule": "youden", "chosen_on": "validation", "shared": section["shared"], "warnings": []}
    assert section["shared"] == midway(thresholds[np.argmax(tpr - fpr)], validation["probability"])
    assert second.config["threshold"] == "youden"
    test = second.predictions[second.predictions["set"] == "test"]
    flagged = test["probability"] >= section["shared"]
    assert (test["prediction"] == np.where(flagged, "ill", "fit")).all()
    scores = row_of_scores(second, "test")
    assert scores["sensitivity"] == pytest.approx(metrics.recall_score(test["target"] == "ill", flagged))
    assert scores["ppv"] == pytest.approx(metrics.precision_score(test["target"] == "ill", flagged))

    new = visits()[["age", "crp"]]
    predicted = predict(second, new)[0]
    expected = np.where(predicted["probability_ill"] >= section["shared"], "ill", "fit")
    assert predicted["prediction"].tolist() == expected.tolist()
    assert second.estimator().predict(new).tolist() == expected.tolist()
    assert list(second.estimator().classes_) == ["fit", "ill"]

    third = trained("binary", "data.test=0.2")
    assert third.summary["threshold"]["rule"] == 0.5
    assert (third.folder / "scores.csv").read_text() == (first.folder / "scores.csv").read_text()
    assert (
        third.estimator().predict(new).tolist() == np.where(predicted["probability_ill"] > 0.5, "ill", "fit").tolist()
    )


@pytest.mark.slow
def test_a_selection_chooses_out_of_fold_and_its_refit_takes_the_threshold(visits):
    visits()
    data = ["data=table", "data.path=visits.csv", "data.target=y", "data.client=site", "data.task=binary"]
    options = SelectOptions(folds=3, points=3)
    plain = select(compose(["algo=centralized", *data]), options, "chosen")
    fits = {path.name: path.stat().st_mtime_ns for path in (plain.folder / "fits").iterdir()}
    chosen = select(compose(["algo=centralized", *data, "threshold=sensitivity:0.8"]), options, "chosen")
    assert {path.name: path.stat().st_mtime_ns for path in (plain.folder / "fits").iterdir()} == fits
    predictions = pd.read_csv("chosen/predictions.csv")
    fpr, tpr, thresholds = metrics.roc_curve(predictions["target"] == "ill", predictions["probability"])
    assert chosen.threshold == midway(thresholds[tpr >= 0.8].max(), predictions["probability"])
    assert chosen.record is not None
    assert chosen.record.summary["threshold"]["shared"] == chosen.threshold
    assert chosen.record.config["threshold"] == chosen.threshold
    curve = pd.read_csv("chosen/thresholds.csv").query("client.isna() and chosen")
    assert curve["threshold"].item() == chosen.threshold
    assert curve["n_flagged"].item() == (predictions["prediction"] == "ill").sum()
    pictures = {"roc.png", "calibration.png", "decision.png"}  # the refit has too few held-out rows for all of them
    assert pictures <= {path.name for path in chosen.folder.iterdir()}
    halved = select(compose(["algo=centralized", *data, "data.validation=0.5"]), options, "halved")
    assert halved.record is not None
    assert pictures <= {path.name for path in halved.record.folder.iterdir()}
    assert pictures.isdisjoint(path.name for path in halved.folder.iterdir())
    scores = pd.read_csv("chosen/scores.csv").query("client.isna()")
    assert scores["sensitivity"].item() >= 0.8
    assert scores["auc"].item() == pytest.approx(metrics.auc(fpr, tpr))


@pytest.mark.slow
def test_predict_names_a_threshold_and_its_rule(trained, visits, capsys):
    record = trained("binary", "threshold=sensitivity:0.9")
    visits()[["age", "crp"]].to_csv("new.csv", index=False)
    assert main(["predict", str(record.folder), "new.csv", "--out", "predicted.csv"]) == 0
    threshold = f"{record.summary['threshold']['shared']:.3g}"
    assert f"fcorun: positive class ill from {threshold} on (sensitivity:0.9)" in capsys.readouterr().err.splitlines()
    record = trained("binary", "threshold=0.5")
    assert main(["predict", str(record.folder), "new.csv", "--out", "predicted.csv", "--force"]) == 0
    assert "positive class" not in capsys.readouterr().err
