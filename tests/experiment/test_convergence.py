"""The end of a run: an objective at rest, still falling, or grown without bounds."""

import numpy as np
import pytest

from fcorun.experiment.experiment import (
    describe_few_evaluations,
    describe_remaining_descent,
    explain_growth,
    measure_remaining_descent,
)


def rows(values, metric="objective"):
    return [{"round": 10 * i, metric: float(value)} for i, value in enumerate(values)]


T = np.linspace(0, 1, 51)


@pytest.mark.parametrize(
    ("values", "fell", "of_gain"),
    [
        (2 - T, 0.088, 0.104),  # at a steady pace
        (100 - 0.1 * T, 1e-4, 0.104),  # it has hardly begun
        (1 / (1 + 100 * T), 0.103, 0.0012),  # slowly, by more than 1 % of what is left
    ],
)
def test_a_falling_objective_is_measured(values, fell, of_gain):
    descent = measure_remaining_descent(rows(values))
    assert descent is not None
    assert descent["evaluations"] == 5
    assert descent["fell"] == pytest.approx(fell, rel=0.02)
    assert descent["of_gain"] == pytest.approx(of_gain, rel=0.06)


@pytest.mark.parametrize(
    "values",
    [
        3 + 40 * np.exp(-20 * T),  # at rest
        np.full(51, 2.5),
        np.exp(-40 * T),  # gone to zero, below rounding
        2 + T,  # rising
        100 - 1e-5 * T,  # by rounding alone
        [100.0, 1.0],  # of few evaluations nothing can be told
        100 - 10 * np.arange(9),
        [],
    ],
)
def test_an_objective_at_rest_gives_none(values):
    assert measure_remaining_descent(rows(values)) is None


@pytest.mark.parametrize("metric", ["objective", "personal_train_loss"])
def test_growth_without_bounds_is_divergence(metric):
    sentence = explain_growth(rows([989.0, 4e9, 5e19], metric))
    assert "rose from 989 to 5e+19, by more than 1,000 times its size at the start" in sentence


@pytest.mark.parametrize("values", [[2.0, 1500.0], [2.0, 1e9, 3.0], [1e-3, -5.0, 100.0], [1e-9, 2e-6], [0.0, 0.0], []])
def test_a_rise_within_bounds_is_no_divergence(values):
    assert explain_growth(rows(values)) == ""


@pytest.mark.parametrize("count", [11, 21, 51, 201])
@pytest.mark.parametrize("noise", [0.03, 0.3])
def test_noise_is_no_fall(count, noise):
    rng = np.random.default_rng(0)
    start = 5 * np.exp(-3 * np.arange(count))
    raised = [measure_remaining_descent(rows(1 + start + noise * rng.random(count))) is not None for _ in range(200)]
    assert np.mean(raised) < 0.03


def test_a_fall_is_seen_through_noise():
    rng = np.random.default_rng(0)
    seen = [measure_remaining_descent(rows(2 - T + 0.02 * rng.random(51))) is not None for _ in range(100)]
    assert np.mean(seen) > 0.98


def test_clients_with_personal_models_are_judged_by_these():
    table = [row | {"objective": 1.0} for row in rows(2 - T, "personal_train_loss")]
    descent = measure_remaining_descent(table)
    assert descent is not None
    assert describe_remaining_descent(descent) == (
        "not finished: over the last 5 evaluations the personal models' training loss was 8.8 % lower than over the 5 "
        "before, 10 % of all it gained: more rounds or larger rates may help"
    )


def test_of_ten_evaluations_the_last_two_are_compared():
    descent = measure_remaining_descent(rows(12 - np.arange(10)))
    assert descent is not None
    assert (
        "at the last evaluation the objective was 25 % lower than at the one before, 11 % of all"
        in describe_remaining_descent(descent)
    )


@pytest.mark.parametrize(("values", "is_named"), [((8.0, 4.0, 2.0, 1.0), True), ((8.0, 1.0, 1.0, 1.0), False)])
def test_a_fall_at_the_last_of_few_evaluations_is_named(values, is_named):
    """Nine evaluations lie too far apart to tell whether the run was still falling, and a run at rest says nothing."""
    sentence = describe_few_evaluations(rows(values))
    assert bool(sentence) is is_named
    assert describe_few_evaluations(rows(np.linspace(9, 1, 10))) == ""
