"""Statements on classifiers at the end of a run: one class for all rows, classes that are separated."""

import numpy as np
import pytest
from helpers import ragged

from fcorun import UserError, run
from fcorun.data.tables.data_warnings import describe_positive_class, warn_leaks

RNG = np.random.default_rng(2)
X = RNG.standard_normal((60, 3))
RARE = np.arange(60) % 6 == 0
SIZES = (20, 20, 20)


def reason(folder, *overrides, x=X, y=RARE, **options):
    settings = ragged(folder, "algo=centralized", *overrides, sizes=SIZES, task="binary", x=x, y=y, **options)
    return run(settings, folder / "run").status["reason"]


@pytest.mark.slow
def test_one_class_for_all_rows(tmp_path):
    sentence = reason(tmp_path, "reg=l1", "reg.strength=1")
    assert "train_accuracy 0.8333 is that of predicting 'False' for every row" in sentence
    assert "judge the model by train_loss" in sentence
    held_out_sentence = reason(tmp_path / "held", "reg=l1", "reg.strength=1", "data.validation=0.5")
    assert "val_accuracy 0." in held_out_sentence
    assert "judge the model by val_loss, val_auc or val_ap" in held_out_sentence
    assert "accuracy" not in reason(tmp_path / "other", "reg=l1", "reg.strength=0.01", y=X[:, 0] + 0.3 > X[:, 1] ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("complete", [True, False])
def test_perfect_separation(tmp_path, complete):
    """Complete, and of a level that only rows of one class have."""
    level = RARE if complete else RARE & (np.arange(60) < 31)
    x = np.column_stack([X, level])
    sentence = reason(tmp_path, "reg=none", "algo.max_iterations=500", x=x)
    assert sentence.count("perfect separation" if complete else "quasi-complete separation") == 1
    assert ("every training row is classified right" in sentence) == complete
    assert "no finite coefficient of 'x3'" in sentence
    assert "objective.ridge=0.01 or reg=l1" in sentence
    mild = reason(tmp_path / "mild", "objective.ridge=0.001", "reg=none", x=x)
    assert ("the size of the coefficients depends on the penalty" in mild) == complete
    assert "perfect separation" not in reason(tmp_path / "none", "reg=none", "algo.max_iterations=200")


def test_a_relative_strength_names_free_features_that_separate(tmp_path):
    x = np.column_stack([X, RARE])
    with pytest.raises(
        UserError, match=r"were not fitted in .*; the data determine no finite coefficient of 'x3', 'x1'$"
    ):
        reason(tmp_path, "reg=l1", "reg.relative=0.1", "reg.factors={1:0,3:0}", x=x)


def test_a_threshold_other_than_0_separates_no_classes_without_an_intercept(tmp_path):
    """Values of 5 to 7 and of 7 to 9 have a finite coefficient, and signs by class have none."""
    values = 7 + np.where(RARE, 1, -1) * (0.1 + RNG.random(60))
    options = ("objective.intercept=false", "reg=none", "algo.max_iterations=500")
    for centre, is_named in ((0, False), (7, True)):
        x = np.column_stack([X, values - centre])
        sentence = reason(tmp_path / str(centre), *options, x=x)
        assert ("no finite coefficient of 'x3'" in sentence) == is_named


def test_a_threshold_of_each_client_separates_classes_next_to_its_intercept(tmp_path):
    """A marker whose threshold differs by client, of all rows, and of clients that do not agree."""
    client = np.repeat(np.arange(3), SIZES)
    is_above = np.arange(60) % 12 == 0  # some of the events
    marker = 5 * client + is_above
    opposite = 5 * client + np.where(client == 1, -1, 1) * is_above
    options = ("objective.client_intercepts=true", "reg=none", "batch_size=null")
    sentence = reason(tmp_path, *options, x=np.column_stack([X[:, :1], marker, opposite]))
    assert "no finite coefficient of 'x1', 'x2': alone or together they separate a class" in sentence
    shared = reason(tmp_path / "shared", "reg=none", x=np.column_stack([X[:, :1], marker]))
    assert "no finite coefficient" not in shared


@pytest.mark.parametrize(
    ("letter", "leaks"),
    [
        (lambda event, row: event | (row % 50 == 0), True),  # all events and a few other rows
        (lambda event, row: ~event & (row % 50 > 0), True),  # the other way round
        (lambda event, row: ~event & (row % 20 == 0), False),  # a rare level without events
        (lambda event, row: event & (row % 20 == 0), False),  # a rare level of events alone
        (lambda event, row: event | (row % 5 == 0), False),  # a level of many rows without an event
    ],
)
def test_a_feature_that_almost_gives_the_outcome_away(letter, leaks):
    row = np.arange(400)
    event = row % 7 == 0
    x = np.column_stack([np.random.default_rng(0).standard_normal(400), letter(event, row)])
    warnings = warn_leaks(x, event.astype(int), ("no", "yes"), ("age", "letter=yes"))
    assert bool(warnings) == leaks
    assert all("'letter=yes' alone tells 336 of 342 training rows of 'no' from all 58 of 'yes'" in w for w in warnings)
    assert warn_leaks(x[:40], event[:40].astype(int), ("no", "yes")) == []  # few events


@pytest.mark.parametrize(
    ("classes", "positive", "expected"),
    [
        ((1, 2), None, "'2'"),
        (("no", "yes"), None, "'yes'"),
        ((0, 1), None, ""),
        ((1, 2), "1", ""),
        ((False, True), None, ""),
    ],
)
def test_the_class_that_coefficients_speak_for(classes, positive, expected):
    warnings = describe_positive_class(classes, positive)
    assert bool(warnings) == bool(expected)
    assert all(f"speak for {expected}" in line for line in warnings)
