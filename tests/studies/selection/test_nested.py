"""Nested cross-validation: its folds, its choices and its score."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from four_clients import OWNER, SCORE, X, config
from helpers import fails, not_none
from run_studies import select
from sklearn.linear_model import Lasso

from fcorun.data.datasets.subset import check_classes
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.reports.page import write as html_report
from fcorun.results.score_intervals.score_table import read_scored_record
from fcorun.studies.selection.choice import draw_nested_folds
from fcorun.studies.selection.folds import (
    assign_folds,
    check_outer_folds,
    describe_subset,
    warn_about_classes,
)
from fcorun.studies.selection.select import plan_selection
from fcorun.studies.selection.selection_result import SelectOptions


def data_of(**columns):
    """Return the data of four clients, with other columns of their rows."""
    data = load_data(prepare(config("algo=fedmid", task="binary")))
    return replace(data, train=replace(data.train, **columns))


def draw(data, n_outer, n_inner, by="rows", seed=0):
    return draw_nested_folds(data, n_outer, n_inner, by=by, weigh_rows=False, seed=seed)


@pytest.mark.slow
@pytest.mark.drawn
def test_the_score_is_that_of_a_loop_over_the_folds():
    settings, values = config("algo=centralized", "rounds=1"), (0.02, 0.1, 0.5, 2.0)
    options = SelectOptions(folds=2, points=4, outer_folds=3, range=[values[0], values[-1]])
    selection = select(settings, options, "out")
    nested = not_none(selection.nested)
    chosen, scores, errors = [], [], np.zeros(60)
    for j in range(3):
        left = nested.folds.fold != j

        def loss(train, test, strength):
            model = Lasso(alpha=strength / 2, tol=1e-10, max_iter=100_000).fit(X[train], SCORE[train])
            return (model.predict(X[test]) - SCORE[test]) ** 2

        inner = nested.folds.inner_fold[j]
        means = [
            np.mean([loss(left & (inner != k), inner == k, value).mean() for k in range(2)])
            for value in selection.path.values
        ]
        chosen.append(int(np.argmin(means)))
        errors[~left] = loss(left, ~left, selection.path.values[chosen[-1]])
        scores.append(errors[~left].mean())
        assert nested.choices[j].mean == pytest.approx(means, rel=1e-4)
    assert nested.chosen.tolist() == chosen
    assert nested.scores == pytest.approx(scores, rel=1e-4)
    assert nested.mean == pytest.approx(np.mean(scores), rel=1e-4)
    assert nested.standard_error == pytest.approx(np.std(scores, ddof=1) / 3**0.5, rel=1e-3)

    # files
    table = pd.read_csv("out/nested.csv")
    assert table["val_loss"].tolist() == pytest.approx(scores, rel=1e-4)
    assert table["strength"].tolist() == selection.path.values[chosen].tolist()
    predictions = pd.read_csv("out/predictions.csv")
    np.testing.assert_array_equal(predictions["fold"], nested.folds.fold + 1)
    squares = (predictions["prediction"] - predictions["target"]) ** 2
    np.testing.assert_allclose(squares, errors, rtol=1e-3, atol=1e-6)
    summary = json.loads(Path("out/selection.json").read_text())
    assert (summary["nested"]["mean"], summary["cost"]["runs"]) == (nested.mean, 4 * (1 + 2 + 3 + 6))
    assert "the score of the whole procedure" in "\n".join(selection.describe())
    assert read_scored_record(Path("out")).find_warning("out_of_fold") == ""
    html_report.write_report(Path("out"))
    page = Path("out/report.html").read_text()
    assert "Nested cross-validation: val_loss" in page
    assert "the strength, too, was chosen without" in page.lower()
    assert "these scores are slightly optimistic" not in page

    # the same command computes nothing; the choice on all rows is that of a selection that is not nested
    plan = plan_selection(settings, options, "out")
    assert "12 of 12 fits exist" in plan.describe_progress()[0]
    again = plan.conclude(plan.study.load_fits())
    assert not_none(again.nested).scores.tolist() == nested.scores.tolist()
    plain = plan_selection(settings, replace(options, outer_folds=None), "plain")
    assert plain.study.identity != plan.study.identity
    np.testing.assert_array_equal(plain.fold_weights, plan.fold_weights)


def test_inner_folds_divide_the_rows_that_an_outer_fold_leaves():
    data = data_of()
    folds = draw(data, 4, 3)
    np.testing.assert_array_equal(folds.fold, assign_folds(data, 4, "rows", 0))
    for j in range(4):
        held_out, inner = folds.fold == j, folds.inner_fold[j]
        assert (inner[held_out] == -1).all()
        assert np.ptp(np.bincount(inner[~held_out])) <= 4  # at most one row for each client
        for k, name in enumerate(list(folds.inner.values())[j]):
            subset = folds.subsets[name]
            np.testing.assert_array_equal(subset.validation, inner == k)
            assert not (subset.train & (held_out | subset.validation)).any()
            assert (subset.train | subset.validation | held_out).all()
    assert (draw(data, 4, 3, seed=1).inner_fold != folds.inner_fold).any()


def test_gaps_do_not_change_the_folds():
    settings = config("algo=fedmid", "data.missing=median", task="binary")
    complete = draw(load_data(prepare(settings)), 3, 2)
    frame = pd.read_csv("rows.csv")
    frame.loc[::7, "dose"] = np.nan
    frame.to_csv("rows.csv", index=False)
    gaps = draw(load_data(prepare(settings)), 3, 2)
    np.testing.assert_array_equal(gaps.inner_fold, complete.inner_fold)


def test_equal_numbers_share_the_fits():
    """With as many outer folds as folds, the outer folds are the folds, whose fits serve both."""
    folds = draw(data_of(), 3, 3)
    assert list(folds.inner) == ["fold1", "fold2", "fold3"]
    assert list(folds.outer_subsets) == ["outer1", "outer2", "outer3"]
    assert len(folds.subsets) == 3 + 9


def test_groups_stay_together_in_both_levels():
    group = np.array([f"patient{i // 2}" for i in range(60)])
    folds = draw(data_of(group=group), 3, 3)
    for fold in (folds.fold, *folds.inner_fold):
        assert all(len(set(fold[group == name])) == 1 for name in set(group))
    assert all(len(inner) == 3 for inner in folds.inner.values())


def test_each_client_is_an_outer_fold():
    folds = draw(data_of(), 4, 5, by="clients")
    for j in range(4):
        assert len(set(OWNER[folds.fold == j])) == 1
        left = folds.fold != j
        assert len(list(folds.inner.values())[j]) == 3  # the other clients, one in each inner fold
        assert len(set(zip(OWNER[left], folds.inner_fold[j, left], strict=True))) == 3
    with fails("outer fold 1 leaves client", "alone", "give more outer_folds"):
        two = load_data(prepare(config("algo=fedmid", "data.validation=[a,b]")))
        draw(two, 2, 2, by="clients")
    with fails("outer_folds=5 is more than the 4 clients"):
        draw(data_of(), 5, 3, by="clients")


def test_marked_folds_are_outer_and_inner_folds():
    mark = np.array(["x", "y", "z"])[np.arange(60) % 3]
    folds = draw(data_of(fold=mark), 3, 3)
    assert folds.fold.tolist() == [i % 3 for i in range(60)]
    assert folds.inner_fold[1].tolist() == [[0, -1, 1][i % 3] for i in range(60)]
    with fails("outer_folds=5: data.fold marks 3 folds", "give outer_folds=3"):
        SelectOptions(outer_folds=5).resolve(4, ["x", "y", "z"])
    with fails("outer_folds=2: data.fold marks two folds"):
        SelectOptions(outer_folds=2).resolve(4, ["x", "y"])


def test_outer_folds_that_cannot_be_judged_are_refused():
    data = data_of(y=(np.arange(60) < 12).astype(int))  # of client a alone
    with fails("outer fold 1 holds out", "only", "give fewer outer_folds"):
        check_outer_folds(data, draw(data, 4, 3, by="clients").outer_subsets)
    n_clients = len(data.client_names)
    with fails("the fold of client", "join the client with another"):  # no number of folds would help
        check_outer_folds(data, draw(data, n_clients, 3, by="clients").outer_subsets, "clients")
    outer_subsets = draw(data, 4, 3, by="clients").outer_subsets
    (warning, of_accuracy) = warn_about_classes(data, outer_subsets, "val_accuracy", 0.9512)
    assert warning.startswith("outer fold 1, outer fold 2, outer fold 3 and 1 more: the rows held out are of one class")
    assert "'1' has 12 training rows: give fewer folds" in warning
    assert of_accuracy.endswith("and the best choice 0.9512: use metric=loss, or metric=auc for two classes")
    assert warn_about_classes(data, outer_subsets, "val_loss", 0.1) == [warning]
    assert warn_about_classes(data_of(y=np.arange(60) % 2), outer_subsets, "val_accuracy", 0.6) == []
    with fails("has 12 of 60 training rows", "fewer folds"):
        check_classes(data, np.arange(60) >= 12, "give fewer folds")
    with fails("outer_folds=13 is more than the 12 training rows of client a"):
        draw(data_of(), 13, 3)
    with fails("in the rows that outer fold", "folds=12 is more than the"):
        draw(data_of(), 3, 12)
    with fails("outer_folds=1 must be at least 2"):
        SelectOptions(outer_folds=1)


def test_subsets_in_words():
    assert describe_subset("fold3") == "fold 3"
    assert describe_subset("outer1") == "outer fold 1"
    assert describe_subset("outer10-fold2") == "inner fold 2 without outer fold 10"
