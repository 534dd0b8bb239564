"""Imputation by chained equations: draws from posterior distributions, and estimates that gaps do not bias."""

import numpy as np
import pytest
from scipy.stats import kstest, t
from sklearn.linear_model import LogisticRegression

from fcorun.data.tables.imputation.chained_equations import IncompleteColumn, draw_levels, draw_numbers, impute
from fcorun.results.inference.estimates import Estimates, intervals, pool_estimates


@pytest.mark.slow
def test_numbers_are_drawn_from_their_predictive_distribution():
    """For a linear model a new value has Student's t distribution around the prediction."""
    rng = np.random.default_rng(1)
    design = np.column_stack([np.ones(30), rng.normal(size=(30, 2))])
    values = design @ [1.0, 2.0, -1.0] + 0.7 * rng.normal(size=30)
    new = np.array([[1.0, 0.5, 2.0]])
    precision = design.T @ design + np.diag([1e-8, 0.1, 0.1])
    mode = np.linalg.solve(precision, design.T @ values)
    variance = ((values - design @ mode) ** 2).sum() / 27
    scale = np.sqrt(variance * (1 + new[0] @ np.linalg.solve(precision, new[0])))
    drawn = [draw_numbers(design, values, new, rng)[0] for _ in range(3000)]
    assert kstest(drawn, t(27, loc=new[0] @ mode, scale=scale).cdf).pvalue > 0.001


def test_levels_are_drawn_by_their_probabilities():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(4000, 2))
    score = np.column_stack([np.zeros(4000), x[:, 0], 0.5 - x[:, 1]])
    codes = (score + rng.gumbel(size=score.shape)).argmax(axis=1)
    design = np.column_stack([np.ones(4000), x])
    new = np.array([[1.0, 1.0, -0.5]])
    expected = LogisticRegression(C=1e6).fit(x, codes).predict_proba(new[:, 1:])[0]
    drawn = np.array([draw_levels(design, codes, 3, np.repeat(new, 200, axis=0), rng) for _ in range(30)])
    shares = np.bincount(drawn.ravel(), minlength=3) / drawn.size
    assert shares == pytest.approx(expected, abs=0.03)


def test_perfect_separation_and_a_level_with_gaps_only_give_finite_draws():
    rng = np.random.default_rng(3)
    x = np.linspace(-1, 1, 40)
    is_rare = np.arange(40) > 37
    design = np.column_stack([np.ones(40), x, is_rare])
    observed = design[~is_rare]
    codes = draw_levels(observed, (observed[:, 1] > 0).astype(int), 2, design[is_rare], rng)
    assert set(codes.tolist()) <= {0, 1}
    drawn = np.array([draw_numbers(observed, observed[:, 1], design[is_rare], rng) for _ in range(200)])
    assert np.isfinite(drawn).all()
    assert np.abs(drawn).max() < 5


def columns_of(x, codes, gaps):
    levels = np.array([[0.0], [1.0]])
    return [IncompleteColumn("number", np.array([0]), gaps[0]),
            IncompleteColumn("text", np.array([2]), gaps[1], levels=levels, codes=codes)]  # fmt: skip


def test_only_gaps_are_filled_and_draws_depend_on_the_random_numbers_alone():
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 2, 80)
    x = np.column_stack([rng.normal(size=(80, 2)), codes])
    gaps = rng.random((2, 80)) < 0.3
    columns = columns_of(x, codes, gaps)
    one, other, another = (impute(x, columns, x[:, :1], np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, other)
    assert (one != another).any()
    np.testing.assert_array_equal(one[:, 1], x[:, 1])
    assert (one[~gaps[0], 0] == x[~gaps[0], 0]).all()
    assert (one[~gaps[1], 2] == x[~gaps[1], 2]).all()
    assert set(one[:, 2]) == {0.0, 1.0}
    garbage = x.copy()
    garbage[gaps[0], 0], garbage[gaps[1], 2] = 1e9, 0.5  # values in gaps play no part
    np.testing.assert_array_equal(impute(garbage, columns_of(x, codes, gaps), x[:, :1], np.random.default_rng(0)), one)


@pytest.mark.parametrize("has_levels", [False, True])
def test_rows_that_share_a_value_are_drawn_as_one_row_with_their_means(has_levels):
    rng = np.random.default_rng(4)
    group = rng.permutation(np.repeat(np.arange(40), 3))
    shared = np.arange(40) % 3
    x = np.column_stack([rng.normal(size=120), shared[group].astype(float)])
    outcome = x.sum(axis=1, keepdims=True) + rng.normal(size=(120, 1))
    is_gap = (group < 15) | (rng.random(120) < 0.2)
    is_gap[[np.flatnonzero(group == number)[0] for number in range(15, 40)]] = False  # each of these has a value
    garbage = np.where(is_gap[:, None] & [False, True], 9.0, x)
    codes = {}
    if has_levels:
        codes = {"levels": np.array([[0.0], [1.0], [2.0]]), "codes": garbage[:, 1].astype(int)}
    column = IncompleteColumn("sex", np.array([1]), is_gap, group=group, **codes)
    drawn = impute(garbage, [column], outcome, np.random.default_rng(0))

    def average(values):
        return np.stack([values[group == number].mean(axis=0) for number in range(40)])

    if has_levels:
        codes["codes"] = shared
    alone = IncompleteColumn("sex", np.array([1]), np.arange(40) < 15, **codes)
    expected = impute(average(x), [alone], average(outcome), np.random.default_rng(0))
    np.testing.assert_allclose(drawn[:, 1], expected[group, 1], rtol=1e-9)
    np.testing.assert_array_equal(drawn[group >= 15], x[group >= 15])


def ordinary_least_squares(x, y) -> Estimates:
    design = np.column_stack([x, np.ones(len(x))])
    inverse = np.linalg.inv(design.T @ design)
    theta = inverse @ design.T @ y
    degrees = len(y) - len(theta)
    variance = ((y - design @ theta) ** 2).sum() / degrees
    return Estimates(theta, variance * inverse, float(degrees), inverse)


@pytest.mark.slow
def test_pooled_intervals_cover_where_gaps_depend_on_the_outcome():
    """Two columns have gaps, at random given the outcome. Estimates with filled means and modes are biased."""
    rng = np.random.default_rng(6)
    true = np.array([1.0, -0.5, 0.8])
    repetitions, n = 80, 200
    estimates: dict[str, list[Estimates]] = {"pooled": [], "filled": []}
    for _ in range(repetitions):
        codes = rng.integers(0, 2, n)
        x = np.column_stack([rng.normal(size=(n, 2)) @ [[1, 0.5], [0, 0.9]], codes])
        y = x @ true + rng.normal(size=n)
        gaps = rng.random((2, n)) < np.where(y > np.median(y), 0.6, 0.1)
        columns, outcome = columns_of(x, codes, gaps), ((y - y.mean()) / y.std())[:, None]
        draws = [impute(x, columns, outcome, rng, cycles=5) for _ in range(8)]
        estimates["pooled"].append(pool_estimates([ordinary_least_squares(draw, y) for draw in draws]))
        filled = x.copy()
        filled[gaps[0], 0], filled[gaps[1], 2] = x[~gaps[0], 0].mean(), codes[~gaps[1]].mean()
        estimates["filled"].append(ordinary_least_squares(filled, y))
    bias, covered = {}, {}
    for name, of_repetitions in estimates.items():
        bias[name] = np.abs(np.mean([each.theta[:3] for each in of_repetitions], axis=0) - true).max()
        ends = np.array([intervals(each, 0.95)[:2] for each in of_repetitions])[:, :, :3]
        covered[name] = ((ends[:, 0] <= true) & (true <= ends[:, 1])).mean()
    assert bias["pooled"] < 0.06 < 0.15 < bias["filled"]
    assert covered["filled"] < 0.85 < 0.92 < covered["pooled"] < 0.99
