"""Factors of single features' penalties, for every separable regularizer of conf/reg."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import choice_names, fails, flat, plugin_class, plugin_of, ragged, small
from sklearn.linear_model import Lasso, LinearRegression

from fcorun import compose, run
from fcorun.experiment.build import build_problem, load_data
from fcorun.experiment.prepare import prepare

SEPARABLE = [name for name in choice_names("reg") if vars(plugin_class("reg", name)).get("separable")]
FACTORS = {"0": 0.0, "1": 0.0, "2": 3.0, "3": 3.0, "6": 0.5, "7": 0.5}  # pairs, for groups of two
SHAPES = [(8,), (8, 3)]


def test_these_regularizers_are_separable():
    assert SEPARABLE == ["elastic_net", "group_lasso", "l1", "l2"]


def regularizer(name, factors=FACTORS) -> Any:
    return replace(plugin_of("reg", name), strength=0.7, factors=factors)


def rows_with_factor(shape):
    """Return slices of two features with their common factor."""
    return [(slice(k, k + 2), FACTORS.get(str(k), 1.0)) for k in range(0, shape[0], 2)]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SEPARABLE)
def test_each_pair_of_features_is_penalized_at_its_own_strength(name, shape):
    psi, plain = regularizer(name), regularizer(name, None)
    getattr(psi, "check", lambda shape: None)(shape)
    rng = np.random.default_rng(0)
    w, value = jnp.asarray(rng.standard_normal(shape)), 0.0
    prox, subgradient = psi.prox(w, 0.4), psi.subgradient(w)
    for rows, factor in rows_with_factor(shape):
        scaled = replace(plain, strength=0.7 * factor)
        value += scaled.value(w[rows])
        np.testing.assert_allclose(prox[rows], scaled.prox(w[rows], 0.4), rtol=1e-12)
        np.testing.assert_allclose(subgradient[rows], scaled.subgradient(w[rows]), rtol=1e-12)
    assert psi.value(w) == pytest.approx(float(value))
    np.testing.assert_array_equal(prox[:2], w[:2])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in SEPARABLE if hasattr(regularizer(name), "strength_max")])
def test_strength_max_is_the_smallest_strength_with_solution_zero(name, shape):
    psi = regularizer(name)
    gradient = jnp.asarray(np.random.default_rng(1).standard_normal(shape))
    largest = float(psi.strength_max(gradient))
    for factor, is_nonzero in ((1.0001, False), (0.9999, True)):
        prox = replace(psi, strength=factor * largest).prox(-gradient, 1.0)
        assert prox[2:].any() == is_nonzero


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [name for name in SEPARABLE if hasattr(regularizer(name), "conjugate")])
def test_conjugate_and_dual_scale(name, shape):
    """For z = prox(z) + v, v is a subgradient: Fenchel's inequality is tight, and v is on the boundary.

    Squares have a finite conjugate everywhere, so that their scale is 1.
    """
    psi = regularizer(name)
    z = 3 * jnp.asarray(np.random.default_rng(2).standard_normal(shape))
    w = psi.prox(z, 1.0)
    v = z - w
    assert psi.dual_scale(v) == pytest.approx(1.0)
    assert psi.value(w) + psi.conjugate(v) == pytest.approx(float(jnp.vdot(w, v)))
    infeasible = jnp.zeros(shape).at[2].set(10.0)  # factor 3
    expected = {"group_lasso": 0.7 * 3 / float(jnp.sqrt((infeasible**2).sum())), "elastic_net": 1, "l2": 1}.get(
        name, 0.21
    )
    assert psi.dual_scale(infeasible) == pytest.approx(expected)
    assert psi.dual_scale(infeasible.at[0].set(1e-3)) == 0  # a free feature must have dual 0
    if name != "l2":
        assert replace(psi, strength=0.0).dual_scale(jnp.zeros(shape, "float32")) == 1


@pytest.mark.slow
def test_factors_scale_the_smoothed_value():
    psi, plain = regularizer("l1"), regularizer("l1", None)
    w = jnp.asarray(np.random.default_rng(3).standard_normal(8))
    for smoothing in ("logcosh", "huber"):
        expected = sum(
            factor * plain.smoothed_value(w[rows], smoothing, 0.3) for rows, factor in rows_with_factor((8,))
        )
        assert psi.smoothed_value(w, smoothing, 0.3) == pytest.approx(float(expected), rel=1e-5)
    assert (psi.largest_factor, plain.largest_factor) == (3.0, 1.0)
    assert regularizer("l1", {"0": 0.5}).largest_factor == 1.0  # the factor of other features


def centralized(folder, factors, *overrides):
    config = ragged(folder, "algo=centralized", *overrides, sizes=(10, 20, 30))
    config["reg"]["factors"] = factors
    record = run(config, folder / "run")
    return record, load_data(prepare(config))


def lasso(x, y, strength):
    """Fit scikit-learn's Lasso to the mean of squares without 1/2."""
    fit = Lasso(alpha=strength / 2, tol=1e-12, max_iter=100_000).fit(x, y)
    return fit.coef_, fit.intercept_


@pytest.mark.slow
def test_adaptive_lasso_equals_scikit_learn(tmp_path):
    factors = {"0": 2.0, "3": 0.5, "5": 7.0}
    record, data = centralized(tmp_path, factors, "reg=l1", "reg.strength=0.2")
    scale = np.array([2.0, 1, 1, 0.5, 1, 7])
    weights, bias = lasso(data.train.x / scale, data.train.y, 0.2)
    np.testing.assert_allclose(flat(record.solution), [*weights / scale, bias], atol=1e-5)
    assert (weights == 0).any()
    assert record.summary["certificate"]["kind"] == "duality gap"


@pytest.mark.slow
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_free_features_are_projected_out(ridge, tmp_path):
    """Frisch and Waugh: the penalized weights are the lasso of the residuals on the free features."""
    record, data = centralized(tmp_path, {"1": 0, "4": 0}, "reg=l1", "reg.strength=0.4", f"objective.ridge={ridge}")
    certificate, w = record.summary["certificate"], record.solution["weights"]
    assert certificate["kind"] == ("duality gap" if ridge else "prox-gradient norm")
    assert certificate["certified"]
    if ridge:
        return
    free, others = [1, 4], [0, 2, 3, 5]
    projection = LinearRegression().fit(data.train.x[:, free], np.column_stack([data.train.x[:, others], data.train.y]))
    residuals = np.column_stack([data.train.x[:, others], data.train.y]) - projection.predict(data.train.x[:, free])
    weights, _ = lasso(residuals[:, :-1], residuals[:, -1], 0.4)
    np.testing.assert_allclose(w[others], weights, atol=1e-6)
    assert (weights == 0).any()
    error = data.train.y - data.train.x @ w - record.solution["bias"]
    np.testing.assert_allclose(data.train.x[:, free].T @ error, 0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["l1", "elastic_net"])
def test_relative_strength_refers_to_the_penalized_features(name, tmp_path):
    free, others = [1, 4], [0, 2, 3, 5]
    for relative, is_zero in ((1.001, True), (0.97, False)):
        overrides = (f"reg={name}", f"reg.relative={relative}")
        record, _ = centralized(tmp_path / str(relative), {"1": 0, "4": 0, "5": 2}, *overrides)
        w = record.solution["weights"]
        assert w[free].all()
        assert w[others].any() != is_zero


@pytest.mark.slow
def test_factors_by_name_and_by_number_give_equal_runs(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3))
    y = x @ [1.0, -1.0, 0.5] + 0.1 * rng.standard_normal(60)
    rows = [f"{a},{b},{c},{v},{i % 3}" for i, ((a, b, c), v) in enumerate(zip(x, y, strict=True))]
    (tmp_path / "rows.csv").write_text("\n".join(["age,sex,dose,y,site", *rows]))
    overrides = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site", "reg.strength=3",
             "reference=true", "rounds=300", "eval_every=300", "precision=float64"]  # fmt: skip
    named, numbered = (run(compose([*overrides, f"reg.factors={{{name}:0}}"]), f"run{name}") for name in ("age", "0"))
    np.testing.assert_array_equal(named.solution["weights"], numbered.solution["weights"])
    assert named.solution["weights"][0] > 0.9
    assert not named.solution["weights"][1:].any()
    assert abs(named.metrics["suboptimality"].iloc[-1]) < 1e-6


def test_a_column_of_text_stands_for_its_levels(tmp_path):
    wards = np.resize(["a", "b", "c"], 30)
    rows = [f"{ward},{i % 7},{i % 5},{i % 3}" for i, ward in enumerate(wards)]
    (tmp_path / "rows.csv").write_text("\n".join(["ward,age,y,site", *rows]))
    overrides = ["data=table", "data.path=rows.csv", "data.target=y", "data.client=site"]
    for factors, expected in (
        ("{ward:0,age:2}", {"0": 0, "1": 0, "2": 0, "3": 2}),
        (r"{ward\=b:0}", {"1": 0}),
    ):
        experiment = prepare(compose([*overrides, f"reg.factors={factors}"]))
        assert build_problem(experiment, load_data(experiment)).regularizer.factors == expected
    experiment = prepare(compose([*overrides, "reg.factors={wrad:0}"]))
    with fails("no feature 'wrad'; did you mean 'ward'?"):
        build_problem(experiment, load_data(experiment))
    experiment = prepare(compose([*overrides, r"reg.factors={ward:0,ward\=b:1}"]))
    with fails("feature 1 twice"):
        build_problem(experiment, load_data(experiment))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["reg.factors={20:0}"], ["no feature '20'", "numbers from 0 to 19"]),
        (["reg.factors={3:0,03:1}"], ["feature 3 twice"]),
        ([f"reg.factors={{{','.join(f'{k}:0' for k in range(20))}}}"], ["leaves no feature penalized", "reg=none"]),
        (["reg.factors={3:0}", "reg.apply_to=[weights,bias]"], ["reg.factors", "other parameters"]),
        (["reg=group_lasso", "reg.factors={2:0}"], ["features 2 to 3 are one group"]),
        (["data=lowrank", "reg=l1", "reg.factors={2:0}"], ["reg.factors", "matrices"]),
    ],
)
def test_factors_that_fit_no_feature_are_refused(overrides, words):
    data_overrides = overrides if overrides[0].startswith("data=") else None
    experiment = prepare(compose(data_overrides) if data_overrides else small(*overrides))
    with fails(*words):
        build_problem(experiment, load_data(experiment))


def test_without_factors_the_identity_is_unchanged():
    plain, with_factor = prepare(small()), prepare(small("reg.factors={0:2}"))
    assert prepare(small("reg.factors=null")).identity == plain.identity != with_factor.identity
