"""Comparison of fcorun select with scikit-learn and skglm: the path, the scores of folds, the choice."""

from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model
from four_clients import NAMES, config, fold_of
from helpers import not_none
from run_studies import select

from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.studies.selection.selection_result import SelectOptions

sklearn_linear: Any = sklearn.linear_model  # Any, as its types are incomplete


def scores(selection):
    rows: Any = pd.read_csv(selection.folder / "selection.csv")
    return (
        rows[rows["fold"] != "all"]
        .pivot(index="strength", columns="fold", values=selection.metric)
        .sort_index(ascending=False)
    )


@pytest.mark.slow
@pytest.mark.parametrize("by", ["rows", "clients"])
def test_choice_equals_lasso_cv(by):
    settings, options = config("algo=centralized", "algo.tolerance=1e-12"), SelectOptions(folds=4, points=12, by=by)
    selection = select(settings, options, "out")
    data, splits = fold_of(settings, options)
    alphas = selection.path.values / 2
    reference = sklearn_linear.LassoCV(alphas=alphas, cv=splits, tol=1e-12, max_iter=100_000).fit(
        data.train.x, data.train.y
    )
    np.testing.assert_allclose(scores(selection).to_numpy(), reference.mse_path_, rtol=1e-5)
    assert selection.path.values[selection.choice.best_index] == pytest.approx(2 * reference.alpha_)
    np.testing.assert_allclose(not_none(selection.record).solution["weights"], reference.coef_, atol=1e-5)
    assert not_none(selection.record).solution["bias"] == pytest.approx(reference.intercept_, abs=1e-5)
    x, y = data.train.x - data.train.x.mean(axis=0), data.train.y - data.train.y.mean()
    path = sklearn_linear.lasso_path(x, y, alphas=alphas, tol=1e-12)[1]
    np.testing.assert_allclose(selection.fits["all"].solution["weights"], path.T, atol=1e-5)
    assert alphas[0] == pytest.approx(np.abs(x.T @ y).max() / 60)


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "scoring"), [("val_loss", "neg_log_loss"), ("val_accuracy", "accuracy")])
def test_scores_equal_logistic_regression_cv(metric, scoring):
    settings = config("algo=centralized", "algo.tolerance=1e-12", f"metric={metric}", task="binary")
    options = SelectOptions(folds=3, points=6, range=[0.01, 0.1])
    selection = select(settings, options, "out")
    data, splits = fold_of(settings, options)
    # C multiplies a sum of losses, so that it depends on the number of rows of the fold
    for k, (train, test) in enumerate(splits):
        for p, strength in enumerate(selection.path.values):
            with_c = sklearn_linear.LogisticRegressionCV(
                Cs=[1 / (strength * len(train))], cv=[(train, test)], solver="saga", l1_ratios=(1.0,), tol=1e-10,
                max_iter=200_000, scoring=scoring, refit=False, use_legacy_attributes=True,
            )  # fmt: skip
            reference = with_c.fit(data.train.x, data.train.y).scores_[1].item()
            score = scores(selection).iloc[p, k]
            assert score == pytest.approx(-reference if metric == "val_loss" else reference, abs=1e-5)


@pytest.fixture(scope="module")
def skglm():
    """Modules of skglm 0.5, an oracle that no extra installs, since it brings numba along.

    They run as plain Python: numba would compile for half a minute.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_DISABLE_JIT", "1")
        pytest.importorskip("skglm", reason="an oracle of the path is missing: pip install skglm")
        names = ("datafits", "penalties", "solvers", "utils.data")
        return [import_module(f"skglm.{name}") for name in names]


CENTRALIZED = ("algo=centralized", "algo.tolerance=1e-13")
FEDDUALAVG = ("algo=feddualavg", "local_steps=1", "batch_size=null", "rounds=5000", "eval_every=5000")
FACTORS = {  # of the features, or of blocks of two
    "l1": [0, 2, 1, 1, 0.5, 1, 3, 1],
    "group_lasso": [2, 2, 0, 0, 1, 1, 0.5, 0.5],
}


def theirs(skglm, reg, x, y, alphas, factors):
    """Compute the path of skglm, (P, d + 1), the intercept last, for ||y - X w - b||^2 / (2 n) + alpha psi(w)."""
    datafits, penalties, solvers, data = skglm
    weights, options = np.array(factors), {"tol": 1e-12, "fit_intercept": True}
    if reg == "l1":
        fit, solver = datafits.Quadratic(), solvers.AndersonCD(**options)
        psi = [penalties.WeightedL1(alpha, weights) for alpha in alphas]
    else:
        groups, group_ends = data.grp_converter(2, x.shape[1])
        fit, solver = datafits.QuadraticGroup(group_ends, groups), solvers.GroupBCD(**options)
        psi = [penalties.WeightedGroupL2(alpha, weights[::2], group_ends, groups) for alpha in alphas]
    return np.stack([solver.solve(np.asfortranarray(x), y, fit, penalty)[0] for penalty in psi])


@pytest.mark.parametrize("reg", FACTORS)
@pytest.mark.parametrize("algo", [CENTRALIZED, FEDDUALAVG], ids=["centralized", "feddualavg"])
def test_path_equals_skglm(skglm, algo, reg):
    factors = ",".join(f"{name}:{factor}" for name, factor in zip(NAMES, FACTORS[reg], strict=True))
    settings = config(*algo, f"reg={reg}", f"reg.factors={{{factors}}}", "precision=float64")
    selection = select(settings, SelectOptions(folds=2, points=8, range=[0.01, 2]), "out")
    data = fold_of(settings, SelectOptions(folds=2))[0]
    expected = theirs(skglm, reg, data.train.x, data.train.y, selection.path.values / 2, FACTORS[reg])
    solution = selection.fits["all"].solution
    assert 0 < (np.abs(expected[:, :-1]) < 1e-12).sum() < expected[:, :-1].size - 16
    np.testing.assert_allclose(solution["weights"], expected[:, :-1], atol=1e-5)
    np.testing.assert_allclose(solution["bias"], expected[:, -1], atol=1e-5)


@pytest.mark.slow
def test_elastic_net_path_equals_scikit_learn():
    selection = select(
        config(*CENTRALIZED, "reg=elastic_net", "reg.l1_ratio=0.3"), SelectOptions(folds=2, points=8), "out"
    )
    data = load_data(prepare(config(*CENTRALIZED)))
    x, y = data.train.x - data.train.x.mean(axis=0), data.train.y - data.train.y.mean()
    alphas = selection.path.values / 2
    path = sklearn_linear.enet_path(x, y, l1_ratio=0.3, alphas=alphas, tol=1e-13, max_iter=100_000)[1]
    np.testing.assert_allclose(selection.fits["all"].solution["weights"], path.T, atol=1e-5)
