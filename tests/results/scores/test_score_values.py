"""The scores of groups of rows, against scikit-learn group by group."""

import numpy as np
import pytest
from sklearn import metrics
from sklearn.linear_model import LinearRegression, LogisticRegression

from fcorun.data.rows.row_groups import Ranking, RowGroups
from fcorun.data.tasks import find_task
from fcorun.results.scores.calibration import LogisticCalibration
from fcorun.results.scores.score import compute_scores
from fcorun.results.scores.weighted_rows import ScoredRows, WeightedRows

N, LAST = 400, 7  # the last group has one row


def score_groups(task, group, **columns):
    """Return the scores of each group of rows by name."""
    one_group = RowGroups(np.zeros(len(group), int))
    rows = ScoredRows(task=find_task(task), client=group, groups=one_group, **columns).in_groups(group)
    return {name: values[0] for name, values in compute_scores(WeightedRows.each_once(rows)).items()}


def fit_calibration(y, score, group):
    """Return the slope and the intercept of each group."""
    order = np.argsort(group, kind="stable")
    calibration = LogisticCalibration(y[order], score[order], RowGroups(group[order]))
    return [values[0] for values in calibration.fit(np.ones((1, len(y))))]


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    return rng, np.append(rng.integers(0, 7, N - 1), LAST)


def each(of):
    return [(g, of == g) for g in range(7)]


def test_regression():
    rng, of = drawn()
    mean = rng.standard_normal(N) * 3
    y = 0.5 * mean + rng.standard_normal(N) + of
    y[of == 3], mean[of == 4] = 1.1, 0.7
    scores = score_groups("regression", of, target=y, prediction=mean)
    for g, rows in each(of):
        wanted = {
            "r2": np.nan if g == 3 else metrics.r2_score(y[rows], mean[rows]),
            "rmse": metrics.root_mean_squared_error(y[rows], mean[rows]),
            "mae": metrics.mean_absolute_error(y[rows], mean[rows]),
            "calibration_slope": np.nan
            if g == 4
            else LinearRegression().fit(mean[rows, None], y[rows]).coef_[0],  # of a constant target it is 0
            "calibration_intercept": np.mean(y[rows] - mean[rows]),
        }
        np.testing.assert_allclose([scores[name][g] for name in wanted], list(wanted.values()), rtol=1e-9, atol=1e-12)
    assert np.isnan([scores["r2"][LAST], scores["calibration_slope"][LAST]]).all()
    assert scores["mae"][LAST] == pytest.approx(abs(y[-1] - mean[-1]))


def test_binary():
    rng, of = drawn()
    score = np.round(rng.standard_normal(N) * 2, 1)  # so that some are tied
    probability = 1 / (1 + np.exp(-score))
    y = (rng.random(N) < 1 / (1 + np.exp(-0.6 * score + 0.4))).astype(int)
    y[of == 2], y[of == 5] = 0, 1
    label = (score > 0).astype(int)
    columns = {"target": y, "prediction": label, "log_odds": score, "n_classes": 2}
    scores = score_groups("binary", of, probability=probability, **columns)
    for g, rows in each(of):
        a, b, p = y[rows], label[rows], probability[rows]
        one = g in (2, 5)
        recall = [b[a == k].mean() if (a == k).any() else np.nan for k in (0, 1)]
        wanted = {
            "prevalence": a.mean(),
            "accuracy": metrics.accuracy_score(a, b),
            "balanced_accuracy": np.nan if one else metrics.balanced_accuracy_score(a, b),
            "sensitivity": recall[1],
            "specificity": 1 - recall[0],
            "auc": np.nan if one else metrics.roc_auc_score(a, score[rows]),
            "brier": metrics.brier_score_loss(a, p),
            "ppv": a[b == 1].mean(),
            "npv": 1 - a[b == 0].mean(),
            "average_precision": metrics.average_precision_score(a, score[rows]) if g != 2 else np.nan,
            "expected_over_observed": p.sum() / a.sum() if g != 2 else np.nan,
        }
        np.testing.assert_allclose([scores[name][g] for name in wanted], list(wanted.values()), rtol=1e-12)
        assert np.isnan(scores["calibration_slope"][g]) == np.isnan(scores["calibration_intercept"][g]) == one
    assert "brier" not in score_groups("binary", of, **columns)


@pytest.mark.parametrize("size", [1, 40, 1e-6])
def test_calibration(size):
    rng, of = drawn(1)
    score = size * rng.standard_normal(N)
    y = (rng.random(N) < 1 / (1 + np.exp(-0.6 * score / size + 0.4))).astype(int)
    slope, intercept = fit_calibration(y, score, of)
    for g, rows in each(of):
        model = LogisticRegression(C=np.inf, tol=1e-12, solver="newton-cholesky")
        model.fit(score[rows, None] / size, y[rows])
        assert slope[g] == pytest.approx(model.coef_[0, 0] / size, rel=1e-7)
        p = 1 / (1 + np.exp(-score[rows] - intercept[g]))
        assert p.sum() == pytest.approx(y[rows].sum(), rel=1e-9)  # where the slope of the likelihood is 0


def test_calibration_of_large_groups_is_that_of_their_drawn_rows_alone():
    """Compare samples near and far from all rows, of one class, and of separated classes, with fits of their own."""
    rng = np.random.default_rng(3)
    groups = RowGroups(np.repeat([0, 1], 400))
    score = 2 * rng.standard_normal(800)
    y = (rng.random(800) < 1 / (1 + np.exp(1 - 0.6 * score))).astype(int)
    weights = rng.multinomial(800, np.full(800, 1 / 800), size=6).astype(float)
    weights[2] *= score < 0
    weights[3] *= y == 1
    weights[4] *= y == (score > 0)
    slopes, intercepts = LogisticCalibration(y, score, groups).fit(weights)
    for b, g in np.ndindex(slopes.shape):
        drawn = np.repeat(np.arange(800), weights[b].astype(int))
        drawn = drawn[groups.row_group[drawn] == g]
        alone = LogisticCalibration(y[drawn], score[drawn], RowGroups(np.zeros(len(drawn), int)))
        expected = alone.fit(np.ones((1, len(drawn))))
        np.testing.assert_allclose((slopes[b, g], intercepts[b, g]), np.ravel(expected), rtol=1e-11)
    np.testing.assert_array_equal(np.isnan(slopes), np.isnan([[0, 0]] * 3 + [[np.nan] * 2] * 2 + [[0, 0]]))


def test_what_has_no_calibration():
    y, score = np.array([0, 0, 1, 1] * 3), np.repeat([1.0, -1.0, 0.0], 4) * np.array([1, 2, 3, 4] * 3)
    of = np.repeat([0, 1, 2], 4)  # parted, parted the wrong way round, all the same
    slope, intercept = fit_calibration(y, score, of)
    assert np.isnan(slope).all()
    assert np.isfinite(intercept).all()
    assert intercept[2] == pytest.approx(0)
    slope, intercept = fit_calibration(np.array([0, 1, 0, 1]), np.array([3e3, -3e3, -2e3, 1e3]), np.zeros(4, int))
    assert np.isfinite(slope).all()
    assert slope[0] < 0
    scores = np.array([10, 28, 80])[:, None] * np.where(np.arange(100) < 90, 1, -1)  # log odds of separated classes
    y = (scores > 0).astype(int)
    _, intercept = fit_calibration(y.ravel(), scores.ravel().astype(float), np.repeat(np.arange(3), 100))
    assert intercept[0] == pytest.approx(np.log(3), abs=1e-4)
    assert np.isnan(intercept[1:]).all()  # the probabilities are 0 and 1 up to rounding


def test_multiclass():
    rng, of = drawn()
    probability = rng.dirichlet(np.ones(4), N)
    y = np.array([rng.choice(4, p=p) for p in 0.5 * probability + 0.125])
    y[(of == 1) & (y == 2)] = 3
    y[of == 2] = 0
    label = probability.argmax(axis=1)
    label[of == 1] = np.where(label[of == 1] == 2, 3, label[of == 1])  # else scikit-learn warns
    scores = score_groups("multiclass", of, target=y, prediction=label, probability=probability, n_classes=4)
    for g, rows in each(of):
        a, p = y[rows], probability[rows]
        assert scores["accuracy"][g] == metrics.accuracy_score(a, label[rows])
        assert scores["brier"][g] == pytest.approx(
            np.mean([((q - np.eye(4)[k]) ** 2).sum() for q, k in zip(p, a, strict=True)])
        )
        if g == 2:
            assert np.isnan([scores["balanced_accuracy"][g], scores["auc_macro"][g]]).all()
        elif g == 1:
            assert np.isnan(scores["auc_macro"][g])
            assert scores["balanced_accuracy"][g] == pytest.approx(metrics.balanced_accuracy_score(a, label[rows]))
        else:
            assert scores["balanced_accuracy"][g] == pytest.approx(metrics.balanced_accuracy_score(a, label[rows]))
            wanted = metrics.roc_auc_score(a, p, multi_class="ovr", average="macro")
            assert scores["auc_macro"][g] == pytest.approx(wanted, rel=1e-12)


def test_infinite_scores_that_are_equal_are_tied():
    positive = np.array([True, False, True, False])
    ranking = Ranking(positive, np.array([1, 1, -1, -1]) * np.inf, RowGroups(np.zeros(4, int)))
    assert [values.tolist() for values in ranking.score(np.ones((1, 4)))] == [[[0.5]], [[0.5]]]


def test_auc_of_ties_and_of_one_class():
    groups = RowGroups(np.array([0, 0, 0, 1, 1]))
    ranking = Ranking(np.array([1, 0, 0, 1, 1]) == 1, np.array([2.0, 2, 1, 5, 6]), groups)
    np.testing.assert_array_equal(ranking.score(np.ones((1, 5)))[0], [[0.75, np.nan]])


def test_the_scaled_brier_score_is_skill_over_the_shares_of_the_classes():
    rng, of = drawn()
    score = rng.standard_normal(N) * 2
    probability = 1 / (1 + np.exp(-score))
    y = (rng.random(N) < probability).astype(int)
    columns = {"target": y, "prediction": (score > 0).astype(int), "log_odds": score, "n_classes": 2}
    two = score_groups("binary", of, probability=probability, **columns)["scaled_brier"]
    of_three = rng.dirichlet(np.ones(3), N)
    labels = rng.integers(0, 3, N)
    columns = {"target": labels, "prediction": of_three.argmax(axis=1), "n_classes": 3}
    three = score_groups("multiclass", of, probability=of_three, **columns)["scaled_brier"]
    for g, rows in each(of):
        share = np.full(rows.sum(), y[rows].mean())
        errors = [metrics.brier_score_loss(y[rows], p) for p in (probability[rows], share)]
        shares = np.tile([(labels[rows] == k).mean() for k in range(3)], (rows.sum(), 1))
        squares = [((p - np.eye(3)[labels[rows]]) ** 2).sum() for p in (of_three[rows], shares)]
        np.testing.assert_allclose([two[g], three[g]], [1 - errors[0] / errors[1], 1 - squares[0] / squares[1]])
    assert np.isnan([two[LAST], three[LAST]]).all()
