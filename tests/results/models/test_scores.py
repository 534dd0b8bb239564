"""scores.csv: its rows, and that its scores are those of the run."""

import numpy as np
import pytest
from helpers import HETEROGENEOUS, not_none, small
from sklearn import metrics

from fcorun import compose, run
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare


def row(record, part, client="", model="shared"):
    scores = record.scores
    rows = scores[(scores["set"] == part) & (scores["client"] == client) & (scores["model"] == model)]
    assert len(rows) == 1
    return rows.iloc[0]


@pytest.mark.slow
def test_losses_are_those_of_the_run():
    record = run(small("precision=float64"))
    last, scores = record.metrics.iloc[-1], record.scores
    assert scores["set"].unique().tolist() == ["train", "validation"]  # and no test, which there is none of
    assert scores["client"].tolist() == ["", *(f"client{m}" for m in range(6))] * 2
    assert row(record, "train").loss == pytest.approx(last["train_loss"], rel=1e-9)
    assert row(record, "validation").loss == pytest.approx(last["val_loss"], rel=1e-9)
    assert row(record, "train").n == 72
    assert row(record, "validation", "client3").n == 4
    assert row(record, "train").rmse == pytest.approx(last["train_loss"] ** 0.5)


@pytest.mark.slow
def test_against_scikit_learn(trained):
    record = trained("binary", "data.validation=[Bonn]", "data.test=0.3")
    data = load_data(prepare(record.config))
    w = record.solution
    eta = not_none(data.test).x @ w["weights"] + w["bias"]
    test_scores, p = row(record, "test"), 1 / (1 + np.exp(-eta))
    assert test_scores.positive == "ill"
    assert (test_scores.n, test_scores.events) == (24, not_none(data.test).y.sum())
    assert test_scores.auc == pytest.approx(metrics.roc_auc_score(not_none(data.test).y, eta))
    assert test_scores.brier == pytest.approx(metrics.brier_score_loss(not_none(data.test).y, p))
    assert test_scores.loss == pytest.approx(metrics.log_loss(not_none(data.test).y, p))
    assert test_scores.accuracy == pytest.approx(metrics.accuracy_score(not_none(data.test).y, eta > 0))
    assert test_scores.sensitivity == pytest.approx(metrics.recall_score(not_none(data.test).y, eta > 0))
    assert sorted(record.scores.query("set == 'test'").client) == ["", "Aachen", "Celle"]
    assert record.scores.query("set == 'validation'").client.tolist() == ["", "Bonn"]  # by name, though held out wholly
    assert record.scores.query("set == 'train'").client.tolist() == ["", "Aachen", "Celle"]
    assert record.summary["data"]["test_examples"] == 24
    assert not [name for name in record.metrics if "test" in name]


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["logistic", "one_vs_rest"])
def test_more_classes(trained, objective):
    record = trained("multiclass", f"objective={objective}")
    data = load_data(prepare(record.config))
    w = record.solution
    eta = not_none(data.validation).x @ w["weights"] + w["bias"]
    p = 1 / (1 + np.exp(-eta)) if objective == "one_vs_rest" else np.exp(eta)
    p /= p.sum(axis=1, keepdims=True)
    validation_scores = row(record, "validation")
    assert validation_scores.auc_macro == pytest.approx(
        metrics.roc_auc_score(not_none(data.validation).y, p, multi_class="ovr")
    )
    assert validation_scores.balanced_accuracy == pytest.approx(
        metrics.balanced_accuracy_score(not_none(data.validation).y, eta.argmax(axis=1))
    )
    assert "positive" not in record.scores
    assert validation_scores.loss == pytest.approx(record.metrics["val_loss"].iloc[-1])


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("objective=mlp", "objective.hidden=[3]", "algo.client_lr=0.01")])
def test_own_models(more):
    config = [*HETEROGENEOUS, "algo=ditto", "rounds=2", "data.classes=2", "precision=float64", *more]
    record = run(compose(config))
    last = record.metrics.iloc[-1]
    for part, name in (("train", "train"), ("validation", "val")):
        shared, personal = row(record, part), row(record, part, model="personal")
        assert shared.loss == pytest.approx(last[f"{name}_loss"], rel=1e-9)
        assert personal.loss == pytest.approx(last[f"personal_{name}_loss"], rel=1e-9)
        assert personal.accuracy == pytest.approx(last[f"personal_{name}_accuracy"])
        client_losses = [row(record, part, f"client{m}", "personal").loss for m in range(6)]
        assert np.mean(client_losses) == pytest.approx(personal.loss)


@pytest.mark.slow
def test_a_client_of_one_class_has_no_auc(tmp_path):
    rng = np.random.default_rng(0)
    x, client = rng.standard_normal((60, 2)), np.repeat(["a", "b", "c"], 20)
    y = np.where(client == "a", 0, rng.integers(0, 2, 60))
    np.savez("rows.npz", X=x, y=y, client=client)
    record = run(compose(["data=table", "data.path=rows.npz", "data.task=binary", "rounds=1", "data.validation=0.5"]))
    client_scores = row(record, "validation", "a")
    assert np.isnan(
        [client_scores.auc, client_scores.sensitivity, client_scores.balanced_accuracy, client_scores.calibration_slope]
    ).all()
    assert client_scores.specificity == client_scores.accuracy
    line = next(
        line
        for line in (record.folder / "scores.csv").read_text().splitlines()
        if line.startswith("validation,shared,a,")
    )
    assert "nan" not in line
    assert np.isfinite(row(record, "validation", "b").auc)


@pytest.mark.slow
def test_no_scores_without_held_out_rows_or_of_a_run_that_diverged():
    record = run(small("data.validation_samples=0"))
    assert record.scores.empty
    assert not (record.folder / "scores.csv").exists()
    record = run(small("algo.client_lr=1e12"))
    assert record.status["status"] == "diverged"
    assert record.scores.empty


@pytest.mark.slow
def test_the_test_changes_nothing_in_a_run(trained):
    """Other numbers in the test rows change nothing but the scores of the test."""
    first = trained("regression", "data.test=[Celle]", algo="fedavg")
    table = first.folder.parents[2] / "visits.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join(f"{line}1" if line.startswith("Celle") else line for line in lines) + "\n")
    second = run({**first.config})
    assert second.folder != first.folder
    assert second.metrics.drop(columns="seconds").equals(first.metrics.drop(columns="seconds"))
    assert second.scores.query("set != 'test'").equals(first.scores.query("set != 'test'"))
    assert row(second, "test").loss != row(first, "test").loss
