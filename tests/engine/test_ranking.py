"""AUC and average precision of validation rows: those of scikit-learn, alone, in a grid and on folds."""

from pathlib import Path

import numpy as np
import pytest
from four_clients import config, fold_of
from helpers import fails, grid, ragged, run_grid, small
from run_studies import select
from sklearn.metrics import average_precision_score, roc_auc_score

from fcorun import run
from fcorun.base.metrics import CATALOGUE
from fcorun.engine import evaluate
from fcorun.engine.evaluate import rank_runs
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions


def of_rows(y, score, weight):
    return [float(each(y, score, sample_weight=weight)) for each in (roc_auc_score, average_precision_score)]


@pytest.mark.parametrize("different", [3, 10_000])
@pytest.mark.parametrize("weighted", [False, True])
def test_they_are_those_of_scikit_learn(different, weighted):
    rng = np.random.default_rng(different)
    for rows in (2, 9, 60):
        y = (np.arange(rows) % 3 == 0).astype(int)
        score = rng.integers(0, different, (4, rows)).astype(np.float32)
        weight = rng.random(rows) * (rng.random(rows) < 0.7) + (np.arange(rows) < 2) if weighted else np.ones(rows)
        found = rank_runs(y, score, weight)
        wanted = np.array([of_rows(y, each, weight) for each in score]).T
        np.testing.assert_allclose([found["val_auc"], found["val_ap"]], wanted, rtol=1e-12)


def test_where_nothing_can_be_ranked():
    y, score = np.array([0, 1, 1]), np.array([[0.0, np.nan, 1.0], [0.0, 1.0, 2.0]])
    assert np.isnan(rank_runs(y, score, np.ones(3))["val_auc"]).tolist() == [True, False]
    assert np.isnan(rank_runs(np.ones(3), score, np.ones(3))["val_ap"]).all()


def binary(*overrides):
    return config(*overrides, "data.validation=0.4", "algo=fedavg", "algo.server_lr=1", "reg=none", "rounds=2",
                  "eval_every=1", task="binary")  # fmt: skip


@pytest.mark.slow
def test_a_run_and_a_grid_measure_them():
    points = grid(binary("precision=float64"), {"algo.client_lr": [0.1, 1.0]})
    for record, point in zip(run_grid(points), points, strict=True):
        alone = run(point, f"alone/{record.folder.name}")
        scored = alone.scores.query("set == 'validation' and client == ''").iloc[0]
        for found in (record, alone):
            last = found.metrics.iloc[-1]
            assert last["val_auc"] == pytest.approx(scored["auc"], rel=1e-12)
            assert 0 < last["val_ap"] <= 1
    solved = run(binary("algo=centralized", "objective.ridge=0.1"), "solved")
    assert solved.summary["final"]["val_auc"] == pytest.approx(
        solved.scores.query("set == 'validation' and client == ''").iloc[0]["auc"], rel=1e-12
    )


@pytest.mark.slow
def test_select_ranks_the_rows_of_each_fold(capsys):
    settings = config("algo=centralized", "reg=l1", "metric=auc", task="binary")
    options = SelectOptions(folds=2, points=3)
    found = select(settings, options, "out")
    assert found.metric == "val_auc"
    data, folds = fold_of(settings | {"metric": None}, options)
    for k, (_, held) in enumerate(folds, start=1):
        assert found.fits[f"fold{k}"].metrics["val_auc"].shape == (3,)
        assert 0.5 <= found.fits[f"fold{k}"].metrics["val_auc"][-1] <= 1
        assert len(np.unique(data.train.y[held])) == 2
    assert plan_selection(settings | {"metric": "ap"}, options, "other").metric == "val_ap"
    assert plan_selection(settings | {"metric": "loss"}, options, "other").metric == "val_loss"


@pytest.mark.slow
def test_a_fold_of_one_class_is_no_fold_to_rank(tmp_path):
    y = np.arange(40) % 14 == 0
    settings = ragged(tmp_path, "algo=centralized", "reg=l1", "metric=val_auc", sizes=(20, 20), task="binary", y=y)
    with fails("metric=val_auc", "fold", "holds out 'False' only", "give metric=loss"):
        plan_selection(settings, SelectOptions(folds=5, points=3), "out")


@pytest.mark.slow
def test_what_is_not_ranked_is_left_out_and_refused(monkeypatch):
    with fails('metric="val_auc" would not be measured', "it is of two classes"):
        run(small("metric=val_auc"))
    monkeypatch.setattr(evaluate, "MAX_RANKED_ROWS", 5)
    assert "val_auc" not in run(binary(), "many").metrics
    with fails('metric="val_auc" would not be measured', "more than 5"):
        run(binary("metric=val_auc"), "refused")
    assert not Path("refused").exists()


@pytest.mark.parametrize("part", ["", "personal_"])
def test_losses_judge_before_accuracies(part):
    """Predicting the larger class for every row is most accurate for a rare outcome, and says nothing."""
    names = [f"{part}{name}" for name in ("val_accuracy", "val_loss", "train_accuracy")] + ["val_auc"]
    assert CATALOGUE.default_metric(names) == f"{part}val_loss"
    assert CATALOGUE.default_metric(["val_accuracy", "val_auc"]) == "val_auc"
