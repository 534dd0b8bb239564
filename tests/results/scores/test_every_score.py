"""Every score on the shelf has the properties of scores, for each task that the score judges."""

import numpy as np
import pytest
from helpers import fails

from fcorun.interface.checks import scores
from fcorun.interface.checks.property_check import run_checks
from fcorun.results.scores import score as shelf
from fcorun.results.scores.score import ClassScore, NumberScore, all_scores, list_scores

CASES = scores.score_cases()


@pytest.mark.parametrize("case", CASES, ids=[f"{case.score.name}-{case.task.name}" for case in CASES])
def test_properties(case):
    failures = [
        f"{result.name}: {result.message}" for result in run_checks(scores.CHECKS, case) if result.status == "failed"
    ]
    assert not failures


def test_each_score_judges_a_task():
    assert {case.score.name for case in CASES} == set(all_scores())


def test_lists_have_their_order():
    assert [score.name for score in list_scores(lambda places: places.headline)] == ["auc", "c_index", "r2", "accuracy"]
    assert list(all_scores())[:2] == ["prevalence", "accuracy"]


class Reversed(NumberScore):
    """An error whose direction is wrong, and which rows of weight 0 have."""

    name = "reversed"
    label = "reversed"
    higher = True

    def of_rows(self, rows):
        return np.nan_to_num(rows["squared_error"])


def test_violations_are_found():
    case = scores.ScoreCase(Reversed(), next(case.task for case in CASES if case.score.name == "rmse"))
    failed = {result.name for result in run_checks(scores.CHECKS, case) if result.status == "failed"}
    assert failed == {
        "two copies of all rows have the score of the rows",
        "the score of no rows is nan",
        "no prediction is better than a perfect one",
    }


class Confidence(ClassScore):
    """The mean of the largest probability."""

    name = "confidence"
    label = "confidence"
    needs_probability = True


class EntryPoint:
    """An entry point of an installed package."""

    name = "confidence"
    value = "clinic.scores:Confidence"

    def __init__(self, cls):
        self.load = lambda: cls


def test_an_installed_package_adds_a_score(monkeypatch):
    points = [EntryPoint(Confidence)]
    monkeypatch.setattr(shelf, "entry_points", lambda group: points if group == "fcorun.scores" else [])
    all_scores.cache_clear()
    try:
        assert list(all_scores())[-1] == "confidence"
        assert list_scores(lambda places: places.verdict)[-1].name == "confidence"
        for cls, words in ((int, "is no score"), (shelf.all_scores()["auc"].__class__, "another score 'auc'")):
            points[:] = [EntryPoint(cls)]
            all_scores.cache_clear()
            with fails("the entry point confidence = clinic.scores:Confidence", words):
                all_scores()
    finally:
        monkeypatch.undo()
        all_scores.cache_clear()
