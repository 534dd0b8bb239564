"""Scores of the shelf choose a strength by the predictions that the folds keep."""

import numpy as np
import pytest
from four_clients import config
from helpers import fails
from run_studies import select
from sklearn.metrics import brier_score_loss

from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions


@pytest.mark.slow
def test_a_score_of_the_shelf_chooses():
    settings = config("algo=fedmid", "rounds=10", task="binary") | {"metric": "brier"}
    selection = select(settings, SelectOptions(folds=3, points=4, rule="min"), "out")
    assert selection.metric == "val_brier"
    study = selection.study
    for name, fit in list(selection.fits.items())[1:]:
        rows = study.subsets[name].validation
        for p, output in enumerate(fit.held_out["shared"]):
            expected = brier_score_loss(study.data.train.y[rows], 1 / (1 + np.exp(-output)))
            assert fit.metrics["val_brier"][p] == pytest.approx(expected, rel=1e-6)
    by_fold = np.stack([fit.metrics["val_brier"] for fit in list(selection.fits.values())[1:]])
    assert selection.choice.mean == pytest.approx(by_fold.T @ selection.fold_weights / selection.fold_weights.sum())
    assert selection.choice.best_index == selection.choice.mean.argmin()


@pytest.mark.slow
def test_what_a_score_needs_to_choose():
    settings = config("algo=fedmid", task="binary") | {"metric": "brier"}
    with fails("metric=brier needs predictions", "leave outer_folds out"):
        plan_selection(settings, SelectOptions(folds=2, outer_folds=2), "out")
    with fails("metric=sensitivity is not a choice", "brier"):  # flagging all rows would be the best
        plan_selection(settings | {"metric": "sensitivity"}, SelectOptions(), "out")
    with fails("metric=brier is not a choice", "r2"):
        plan_selection(config("algo=fedmid") | {"metric": "brier"}, SelectOptions(), "out")
