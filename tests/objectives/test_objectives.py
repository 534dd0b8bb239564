"""Objectives: every one of conf/objective, by its values alone, and the problem made of them."""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import names, small
from scipy.special import log_expit, log_softmax

from fcorun import compose
from fcorun.config import build_plugin
from fcorun.datasets import FederatedData
from fcorun.experiment.prepare import prepare
from fcorun.mirror_maps import Euclidean
from fcorun.objectives import Gamma, LeastSquares, LinearModel, Logistic, Objective, OneVsRest, Poisson
from fcorun.objectives.product import product
from fcorun.problem.problem import Batch, Problem
from fcorun.problem.quadratic import decomposed
from fcorun.problem.vector import Vector
from fcorun.regularizers import L1

pytestmark = pytest.mark.usefixtures("x64")

TASKS = ("regression", "binary", "multiclass")
CLASSES = {"regression": 0, "binary": 2, "multiclass": 3}


def every():
    """Each objective with each task that it is for, as the configuration of a table names it."""
    for name in names("objective"):
        for task in TASKS:
            config = compose([f"objective={name}", "data=table", "data.path=x", f"data.task={task}"])
            objective = build_plugin("objective", config["objective"])
            if task in objective.tasks:
                yield pytest.param(objective, task, id=f"{name}-{task}")


CASES = list(every())
CASES += [pytest.param(kind(2.0), "regression", id=f"{kind.__name__} to a ceiling") for kind in (Poisson, Gamma)]
SINGLE_OUTPUT = [case for case in CASES if case.values[1] != "multiclass" and hasattr(case.values[0], "conjugate")]


def problem_of(objective, task):
    return Problem(objective, L1(0.3), Euclidean(), objective.shapes((5,), CLASSES[task]))


def suited(objective, y):
    """Targets that an objective takes, from any numbers."""
    try:
        objective.check_targets(np.asarray(y), np.zeros(0))
    except ValueError:
        return abs(y) + 0.2
    return y


def example(problem, task, count=9, seed=0):
    """A point and a batch with unequal weights."""
    rng = np.random.default_rng(seed)
    x = jnp.asarray(rng.standard_normal((count, 5)))
    y = rng.standard_normal(count) if task == "regression" else rng.integers(CLASSES[task], size=count)
    y = suited(problem.objective, y) if task == "regression" else y
    y = jnp.asarray(y, jnp.int32 if task == "multiclass" else jnp.float64)
    weight = rng.random(count)
    w = Vector({name: jnp.asarray(rng.standard_normal(shape)) for name, shape in problem.shapes.items()})
    return w, Batch(x, y, jnp.asarray(weight / weight.sum()))


def test_every_task_has_an_objective():
    assert {case.values[1] for case in CASES} == set(TASKS)


@pytest.mark.parametrize(("objective", "task"), CASES)
def test_gradient_by_finite_differences(objective, task):
    problem = problem_of(objective, task)
    w, batch = example(problem, task)
    gradient, loss = jax.jit(problem.gradient)(w, batch), jax.jit(problem.loss)
    assert set(gradient) == set(w) == set(problem.shapes)
    step, accuracy = (1e-5, 1e-7) if objective.convex else (1e-8, 1e-5)  # short: a network of ReLUs has many kinks
    for seed in range(5):
        direction, _ = example(problem, task, seed=seed + 1)
        slope = (loss(w + step * direction, batch) - loss(w - step * direction, batch)) / (2 * step)
        assert slope == pytest.approx(float(gradient.dot(direction)), rel=accuracy, abs=1e-9)


@pytest.mark.parametrize(("objective", "task"), CASES)
def test_a_batch_is_the_weighted_mean_of_its_examples(objective, task):
    problem = problem_of(objective, task)
    w, batch = example(problem, task)
    loss, gradient = jax.jit(problem.loss), jax.jit(problem.gradient)
    single = [loss(w, Batch(batch.x[i : i + 1], batch.y[i : i + 1], jnp.ones(1))) for i in range(9)]
    assert loss(w, batch) == pytest.approx(float(batch.weight @ jnp.asarray(single)))
    # rows of weight zero, which fill up a short batch, are not there
    short = Batch(batch.x, batch.y, batch.weight.at[5:].set(0))
    cut = Batch(batch.x[:5], batch.y[:5], batch.weight[:5])
    for ours, theirs in zip(jax.tree.leaves(gradient(w, short)), jax.tree.leaves(gradient(w, cut)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-14)


@pytest.mark.parametrize(("objective", "task"), CASES)
def test_the_loss_is_convex_in_the_prediction(objective, task):
    problem = problem_of(objective, task)
    (u, batch), (v, _) = example(problem, task), example(problem, task, seed=1)
    p, q = problem.predict(u, batch.x), problem.predict(v, batch.x)
    left, middle, right = (objective.loss(prediction, batch.y) for prediction in (p, (p + q) / 2, q))
    assert (middle <= (left + right) / 2 + 1e-12).all()
    assert (middle < (left + right) / 2).any()
    if objective.convex:  # the prediction is linear in the parameters
        loss = [problem.loss(point, batch) for point in (u, 0.5 * (u + v), v)]
        assert loss[1] <= (loss[0] + loss[2]) / 2


@pytest.mark.parametrize(("objective", "task"), CASES)
def test_scores_are_of_each_example(objective, task):
    problem = problem_of(objective, task)
    w, batch = example(problem, task)
    prediction = problem.predict(w, batch.x)
    assert objective.loss(prediction, batch.y).shape == (9,)
    scores = objective.scores(prediction, batch.y)
    assert all(value.shape == (9,) for value in scores.values())
    if task != "regression":
        label = prediction > 0 if task == "binary" else prediction.argmax(axis=1)
        np.testing.assert_array_equal(scores["accuracy"], label == batch.y)


@pytest.mark.parametrize(("objective", "task"), CASES)
def test_the_intercept_is_never_regularised(objective, task):
    problem = problem_of(objective, task)
    w, _ = example(problem, task)
    free = set(problem.shapes) - set(objective.regularized)
    assert free
    assert all(name.startswith("bias") for name in free)
    psi = 0.3 * sum(jnp.abs(w[name]).sum() for name in objective.regularized)
    assert problem.psi(w) == pytest.approx(float(psi))
    for name in free:
        np.testing.assert_array_equal(problem.prox(w, 100.0)[name], w[name])
        np.testing.assert_array_equal(problem.retrieve(w, 100.0)[name], w[name])
        np.testing.assert_array_equal(problem.subgradient(w)[name], jnp.zeros_like(w[name]))
    for name in objective.regularized:
        assert not problem.prox(w, 100.0)[name].any()
        np.testing.assert_array_equal(problem.subgradient(w)[name], 0.3 * jnp.sign(w[name]))


@pytest.mark.parametrize(("objective", "task"), SINGLE_OUTPUT)
def test_conjugate(objective, task):
    """Fenchel and Young: loss(p) + conjugate(u) >= u p, with equality where u is the gradient at p."""
    problem = problem_of(objective, task)
    w, batch = example(problem, task)
    prediction = problem.predict(w, batch.x)
    u = jax.grad(lambda p: objective.loss(p, batch.y).sum())(prediction)
    at = objective.loss(prediction, batch.y) + objective.conjugate(u, batch.y) - u * prediction
    np.testing.assert_allclose(at, 0, atol=1e-12)
    for other in np.linspace(-4, 4, 17):
        p = jnp.full(9, other)
        assert (objective.loss(p, batch.y) + objective.conjugate(u, batch.y) - u * p >= -1e-12).all()


@pytest.mark.parametrize("scale", [1, 500])
def test_the_losses_are_the_known_ones(scale):
    rng = np.random.default_rng(0)
    p, k = scale * rng.standard_normal(20), rng.integers(3, size=20)
    found = {case.id: cast(Objective, case.values[0]).loss for case in CASES}
    np.testing.assert_allclose(
        found["least_squares-regression"](jnp.asarray(p), jnp.asarray(k * 1.0)), (p - k) ** 2, rtol=1e-12
    )
    sign = np.where(k > 0, 1, -1)
    np.testing.assert_allclose(
        found["logistic-binary"](jnp.asarray(p), jnp.asarray(k > 0, float)),
        -log_expit(sign * p),
        rtol=1e-12,
        atol=1e-12,
    )
    table = scale * rng.standard_normal((20, 3))
    expected = -log_softmax(table, axis=1)[np.arange(20), k]
    np.testing.assert_allclose(found["logistic-multiclass"](jnp.asarray(table), jnp.asarray(k)), expected, atol=1e-12)


@pytest.mark.parametrize(("objective", "task"), CASES)
def test_float32_stays_float32(objective, task):
    problem = problem_of(objective, task)
    w, batch = jax.tree.map(lambda v: v.astype(jnp.float32) if v.dtype == jnp.float64 else v,
                            jax.tree.map(jnp.asarray, example(problem, task)))  # fmt: skip
    assert jax.eval_shape(problem.loss, w, batch).dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.eval_shape(problem.gradient, w, batch).values())


def test_by_task_takes_the_natural_objective():
    for task, name in {"regression": "LeastSquares", "binary": "Logistic", "multiclass": "Logistic"}.items():
        config = compose(["data=table", "data.path=x", f"data.task={task}"])
        assert type(build_plugin("objective", config["objective"])).__name__ == name
    assert type(prepare(small()).objective).__name__ == "LeastSquares"


@pytest.mark.parametrize(("objective", "task"), [case for case in CASES if isinstance(case.values[0], LinearModel)])
def test_bounds_on_the_second_derivative(objective, task):
    outputs = CLASSES[task] if CLASSES[task] > 2 else 1
    low, high = objective.second_derivative(outputs)
    rng, each = np.random.default_rng(4), 30
    scale = np.repeat([0.01, 1.0, 5.0], each).reshape(-1, *[1] * (2 if outputs > 1 else 1))
    p = jnp.asarray(scale * rng.standard_normal((3 * each, 1, outputs) if outputs > 1 else (3 * each, 1)))
    y = jnp.asarray(suited(objective, rng.integers(max(outputs, 2), size=3 * each)))[:, None]
    second = jax.jit(jax.vmap(jax.hessian(lambda p, y: objective.loss(p, y)[0])))(p, y)
    values = np.linalg.eigvalsh(second.reshape(-1, outputs, outputs))
    assert (low - 1e-12 <= values).all()
    assert (values <= high + 1e-12).all()
    most = values.max()
    assert objective.bounded == np.isfinite(high)
    assert most > (0.6 * high if objective.bounded else 100)  # not too large either


def test_one_vs_rest_is_a_logistic_regression_a_class():
    one_vs_rest, logistic = OneVsRest(), Logistic()
    rng = np.random.default_rng(1)
    p, y = jnp.asarray(rng.standard_normal((8, 4))), jnp.asarray(rng.integers(4, size=8))
    each = sum(logistic.loss(p[:, k], (y == k).astype(float)) for k in range(4))
    np.testing.assert_allclose(one_vs_rest.loss(p, y), each, atol=1e-12)


@pytest.mark.parametrize("rows", [3, 12])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("ridge", [0.0, 0.4])
def test_least_squares_decomposed(rows, intercept, ridge):
    """Value, gradient and prox of the quadratic are those of the batch."""
    objective = LeastSquares(intercept=intercept, ridge=ridge)
    problem = Problem(objective, L1(0.3), Euclidean(), objective.shapes((5,), 0))
    w, batch = example(problem, "regression", count=rows)
    batch = Batch(batch.x, batch.y, jnp.full(rows, 1 / rows))
    data = FederatedData(np.asarray(batch.x), np.asarray(batch.y), np.array([0, rows]))
    quadratic = jax.tree.map(lambda v: jnp.asarray(v[0]), decomposed(objective, data, problem.shapes, "float64"))
    assert problem.loss(w, quadratic) == pytest.approx(float(problem.loss(w, batch)), abs=1e-12)
    ours, theirs = problem.gradient(w, quadratic), problem.gradient(w, batch)
    assert (ours - theirs).norm() < 1e-12
    for s in (0.1, 10.0):
        u = quadratic.prox(w, s)
        assert (s * problem.gradient(u, batch) + (u - w)).norm() < 1e-11


@pytest.mark.parametrize("runs", [1, 3, 8, 11])
@pytest.mark.parametrize("outputs", [(), (3,)])
def test_the_product_of_many_runs_is_that_of_each(runs, outputs):
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.standard_normal((20, 5))), jnp.asarray(rng.standard_normal((runs, 5, *outputs)))
    together = jax.jit(jax.vmap(product, (None, 0)))(x, w)
    np.testing.assert_allclose(together, jnp.stack([x @ each for each in w]), rtol=1e-12)
    own = jax.vmap(product)(jnp.stack([x * g for g in range(runs)]), w)
    np.testing.assert_allclose(own, jnp.stack([g * x @ each for g, each in enumerate(w)]), rtol=1e-12)
    gradient = jax.vmap(jax.grad(lambda each: (product(x, each) ** 2).sum()))(w)
    np.testing.assert_allclose(gradient, jnp.stack([2 * x.T @ (x @ each) for each in w]), rtol=1e-12)
