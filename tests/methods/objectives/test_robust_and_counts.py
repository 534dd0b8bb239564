"""Poisson, gamma, Huber and quantile regression: certified optima equal scikit-learn's; refused targets."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SHARED, fails, flat, ragged
from sklearn.linear_model import GammaRegressor, HuberRegressor, PoissonRegressor, QuantileRegressor
from sklearn.metrics import mean_gamma_deviance, mean_pinball_loss, mean_poisson_deviance

import fcorun
from fcorun import run
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.methods.mirror_maps import Euclidean
from fcorun.methods.objectives import Gamma, Huber, Poisson, Quantile
from fcorun.methods.problem.problem import Batch, Problem
from fcorun.methods.problem.solver import minimize
from fcorun.methods.regularizers import L1, NoRegularizer

ROWS = 200


def draw_examples(kind, shift=0.5):
    """Draw examples (200, 4) and targets that suit an objective."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((ROWS, 4))
    p = x @ [0.5, -0.3, 0.0, 0.2] + shift
    if kind is Poisson:
        return x, rng.poisson(np.exp(p)).astype(float)
    return x, rng.gamma(2.0, np.exp(p) / 2) if kind is Gamma else p + rng.standard_t(2, ROWS)


def solve(objective, x, y, reg=None, tolerance=1e-12):
    """Return the certified optimum, the bias last, and the last iterate."""
    problem = Problem(objective, reg or NoRegularizer(), Euclidean(), objective.shapes(x.shape[1:], 0))
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.full(len(y), 1 / len(y)))
    *_, last = minimize(problem, batch, tolerance, 40_000)
    assert last.certified
    return flat(last.w), last


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shift", [-4.0, 0.5, 5.0])
@pytest.mark.parametrize(("kind", "oracle"), [(Poisson, PoissonRegressor), (Gamma, GammaRegressor)])
def test_log_links_equal_scikit_learn(kind, oracle, shift):
    x, y = draw_examples(kind, shift)
    theirs = oracle(alpha=0.1, solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(x, y)
    ours, last = solve(kind(ridge=0.1), x, y)
    assert last.certificate_kind == "duality gap"
    np.testing.assert_allclose(ours, [*theirs.coef_, theirs.intercept_], atol=1e-6)
    deviance = {Poisson: mean_poisson_deviance, Gamma: mean_gamma_deviance}[kind](y, theirs.predict(x))
    p = jnp.asarray(x @ ours[:4] + ours[4])
    assert np.mean(kind().scores(p, jnp.asarray(y))["deviance"]) == pytest.approx(deviance)
    assert 2 * np.mean(kind().loss(p, jnp.asarray(y))) == pytest.approx(deviance)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_huber_equals_scikit_learn_at_its_estimated_scale():
    x, y = draw_examples(Huber)
    theirs = HuberRegressor(epsilon=1.5, alpha=2.0, tol=1e-9, max_iter=10_000).fit(x, y)
    delta, ridge = (
        theirs.epsilon * theirs.scale_,
        theirs.alpha * theirs.scale_ / ROWS,
    )  # which make the problems equal
    ours, last = solve(Huber(delta=delta, ridge=ridge), x, y)
    assert last.certificate_kind == "duality gap"
    np.testing.assert_allclose(ours, [*theirs.coef_, theirs.intercept_], atol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("level", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("strength", [0.0, 0.03])
def test_quantiles_converge_to_scikit_learn_as_the_smoothing_shrinks(level, strength):
    x, y = draw_examples(Quantile)
    theirs = QuantileRegressor(quantile=level, alpha=strength).fit(x, y)

    def objective(weights, bias):
        return mean_pinball_loss(y, x @ weights + bias, alpha=level) + strength * abs(weights).sum()

    minimum, distances = objective(theirs.coef_, theirs.intercept_), []
    for width in (0.5, 0.05):
        ours, last = solve(Quantile(level, width), x, y, L1(strength) if strength else None, tolerance=1e-8)
        assert last.certificate_kind == ("duality gap" if strength else "prox-gradient norm")
        bound = width * max(level, 1 - level) ** 2 / 2
        assert minimum - 1e-9 <= objective(ours[:4], ours[4]) <= minimum + bound + 1e-7
        assert last.objective <= minimum + 1e-7
        residuals, upper = y - x @ ours[:4] - ours[4], width * level
        assert np.mean(residuals <= upper + 1e-5) >= level
        assert np.mean(residuals < upper - width - 1e-5) <= level
        distances.append(abs(ours - [*theirs.coef_, theirs.intercept_]).max())
    assert distances[1] < 0.03


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("rows", [20, 50, 200])
def test_the_default_smoothing_keeps_the_share_of_a_sample_quantile(level, rows):
    """Without a telling feature the fitted quantile is one of the sample: its share is off by less than a row."""
    for seed in range(3):
        y = np.random.default_rng(seed).lognormal(1, 1, rows)
        (_, quantile), _ = solve(Quantile(level).resolve_auto(y), np.zeros((rows, 1)), y, tolerance=1e-10)
        assert abs(np.mean(y <= quantile) - level) <= max(0.01, 1 / rows) + 1e-9


# The coefficients of quantreg at level 0.9 of weight (kg) on age, height and head circumference of R's mice::boys; its
# share is 0.9031. A tenth of the spread as width had 0.805.
BOYS = SHARED / "data" / "medical" / "boys_c.csv"
QUANTREG = [3.2142023360, 0.1571497921, -0.0542826006, -1.7604550712]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.skipif(not BOYS.is_file(), reason=f"{BOYS} is not on this machine")
@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.95])
def test_the_default_smoothing_keeps_the_share_below_a_regression_quantile(level):
    columns = np.genfromtxt(BOYS, delimiter=",", skip_header=1, usecols=(0, 1, 4, 2))  # age, hgt, hc, wgt
    x, y = columns[:, :3], columns[:, 3]
    mean, scale = x.mean(axis=0), x.std(axis=0)
    objective = Quantile(level).resolve_auto(y)
    ours, _ = solve(objective, (x - mean) / scale, y, tolerance=1e-9)
    ours[:3] /= scale
    ours[3] -= mean @ ours[:3]
    assert abs(np.mean(y <= x @ ours[:3] + ours[3]) - level) <= 0.01
    if level == 0.9:
        np.testing.assert_allclose(x @ ours[:3] + ours[3], x @ QUANTREG[:3] + QUANTREG[3], atol=0.15)
    assert objective.final_warning({"train_coverage": level - 0.004, "train_smoothed": 0.014}) == ""
    assert "lower objective.smoothing" in objective.final_warning(
        {"train_coverage": level - 0.03, "train_smoothed": 0.04}
    )
    assert "give more rounds" in objective.final_warning({"train_coverage": level - 0.06, "train_smoothed": 0.04})


def test_equal_targets_at_the_quantile_are_counted_and_no_smoothing_is_said_to_part_them():
    days = np.r_[np.linspace(1, 6.9, 80), np.full(15, 7.0), np.linspace(8, 30, 5)]
    (remark,) = Quantile(0.9).remark_on_targets(days)
    assert remark == (
        "15 of 100 training targets equal 7, their quantile of objective.level=0.9: 80.0% of the targets are below it "
        "and 95.0% at or below it, and no objective.smoothing gives a share between"
    )
    assert Quantile(0.945).remark_on_targets(days) == []  # half a row from the share up to 7
    assert Quantile(0.5).remark_on_targets(days) == []
    assert Quantile(0.925).remark_on_targets(np.arange(10.0)) == []  # one row in ten is no tie
    warning = Quantile(0.9, 0.1).final_warning({"train_coverage": 0.95, "train_smoothed": 0.15})
    assert warning.endswith("model has coefficients, or have equal targets, which no smoothing parts")


def test_targets_outside_the_support_are_refused(tmp_path):
    y = np.arange(20.0)
    for name, bad, words in (
        ("poisson", y - 3, ["objective=poisson", "-3", "counts"]),
        ("poisson", 0 * y, ["objective=poisson", "every target is 0"]),
        ("gamma", y, ["objective=gamma", "contain 0", "positive"]),
    ):
        experiment = prepare(ragged(tmp_path / name, f"objective={name}", "algo=fedavg", "algo.client_lr=0.1", y=bad))
        with fails(*words):
            load_data(experiment)


@pytest.mark.parametrize("y_val", [np.zeros(0), np.array([2.0, 1.0])])
@pytest.mark.parametrize("objective", [Poisson(), Gamma()])
def test_a_site_may_have_held_out_targets_alone(objective, y_val):
    objective.check_targets(np.zeros(0), y_val)


@pytest.mark.slow
def test_a_quantile_run_does_not_depend_on_the_unit_of_the_target(tmp_path):
    y = np.random.default_rng(3).lognormal(1, 1, 20)
    overrides = ("objective=quantile", "algo=fedgd", "reg=none", "rounds=50", "eval_every=50")
    euros, thousands = (run(ragged(tmp_path, *overrides, y=y * unit), f"r{unit}") for unit in (1000, 1))
    for name, value in thousands.solution.items():
        np.testing.assert_allclose(euros.solution[name], 1000 * value, rtol=1e-6)
    spread = np.subtract(*np.quantile(y, [0.75, 0.25])) / 1.349  # and a row of the 20 is 5 %, at the density of N(0, 1)
    assert thousands.summary["curvature"]["objective.smoothing"] == pytest.approx(0.05 * 0.05 * spread / 0.3989423)


@pytest.mark.slow
def test_a_wide_smoothing_warns(tmp_path):
    overrides = ("objective=quantile", "algo=centralized", "reg=none", "objective.ridge=0.1")
    wide = run(ragged(tmp_path, *overrides, "objective.smoothing=3"), "wide")
    assert "objective.smoothing=3" in wide.status["reason"]
    assert f"{wide.metrics.iloc[-1]['train_coverage']:.1%} of the training targets" in wide.status["reason"]
    assert {"train_pinball", "train_coverage", "train_smoothed"} <= set(wide.metrics.columns)


def test_targets_that_are_no_counts_are_remarked():
    assert Poisson().remark_on_targets(np.array([0.0, 3.0, 12.0])) == []
    (remark,) = Poisson().remark_on_targets(np.array([0.0, 0.5, 2.0, 1.25]))
    assert remark.startswith("2 of 4 targets are no counts, such as 0.5")
    data = fcorun.from_arrays(np.arange(6.0)[:, None], [1, 0, 2, 0.5, 3, 1], [0, 1] * 3)
    experiment = fcorun.Experiment(data=data, objective=fcorun.Poisson(), algorithm=fcorun.Newton(), rounds=1)
    assert any("no counts, such as 0.5" in text for text in load_data(experiment.prepared).warnings)
