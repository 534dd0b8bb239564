"""The checks of objectives, on every objective of conf/objective."""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import choice_names, fails, plugin_of, ragged, small, verify
from scipy.special import expit, log_expit, log_softmax

from fcorun import compose
from fcorun.base.config import build_plugin
from fcorun.data.datasets import FederatedData, Rows
from fcorun.data.tasks import Regression, find_tasks
from fcorun.experiment.build import load_data
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks.objectives import CHECKS, ObjectiveCase, check_gradient
from fcorun.methods.mirror_maps import Euclidean
from fcorun.methods.objectives import LeastSquares, Logistic, Objective, OneVsRest
from fcorun.methods.objectives.objective import matmul
from fcorun.methods.problem.problem import Batch, Problem
from fcorun.methods.problem.row_span import decompose_losses
from fcorun.methods.regularizers import L1

pytestmark = pytest.mark.usefixtures("x64")


def objective_cases():
    """Yield each objective with each of its tasks, as composed for a table."""
    for name in choice_names("objective"):
        for task in find_tasks().values():
            objective = plugin_of("objective", name, task.name)
            if task.name in objective.tasks:
                yield pytest.param(objective, task, id=f"{name}-{task.name}")


CASES = list(objective_cases())


@pytest.mark.parametrize(
    ("check", "case"),
    [
        pytest.param(
            check, case, id=f"{param.id}-{check.__name__}", marks=[] if check is check_gradient else pytest.mark.slow
        )
        for param in CASES
        for case in [ObjectiveCase(*param.values)]  # type: ignore[arg-type]
        for check in CHECKS
    ],
)
def test_every_objective_passes_every_check(check, case):
    verify(check, case)


@pytest.mark.parametrize(("objective", "task"), CASES)
def test_only_the_intercept_is_not_regularized(objective, task):
    free = set(ObjectiveCase(objective, task).problem.shapes) - set(objective.regularized)
    assert free or not objective.intercept
    assert all(name.startswith("bias") for name in free)


@pytest.mark.parametrize("scale", [1, 500])
def test_losses_equal_their_formulas(scale):
    rng = np.random.default_rng(0)
    p, k = scale * rng.standard_normal(20), rng.integers(3, size=20)
    losses = {case.id: cast(Objective, case.values[0]).loss for case in CASES}
    np.testing.assert_allclose(
        losses["least_squares-regression"](jnp.asarray(p), jnp.asarray(k * 1.0)), (p - k) ** 2, rtol=1e-12
    )
    sign = np.where(k > 0, 1, -1)
    np.testing.assert_allclose(
        losses["logistic-binary"](jnp.asarray(p), jnp.asarray(k > 0, float)),
        -log_expit(sign * p),
        rtol=1e-12,
        atol=1e-12,
    )
    table = scale * rng.standard_normal((20, 3))
    expected = -log_softmax(table, axis=1)[np.arange(20), k]
    np.testing.assert_allclose(losses["logistic-multiclass"](jnp.asarray(table), jnp.asarray(k)), expected, atol=1e-12)


def test_by_task_takes_the_natural_objective():
    for task, name in {"regression": "LeastSquares", "binary": "Logistic", "multiclass": "Logistic",
                       "survival": "Cox"}.items():  # fmt: skip
        config = compose(["data=table", "data.path=x", f"data.task={task}"])
        assert type(build_plugin("objective", config["objective"])).__name__ == name
    assert type(prepare(small()).objective).__name__ == "LeastSquares"


def test_one_vs_rest_is_a_logistic_regression_for_each_class():
    one_vs_rest, logistic = OneVsRest(), Logistic()
    rng = np.random.default_rng(1)
    p, y = jnp.asarray(rng.standard_normal((8, 4))), jnp.asarray(rng.integers(4, size=8))
    expected = sum(logistic.loss(p[:, k], (y == k).astype(float)) for k in range(4))
    np.testing.assert_allclose(one_vs_rest.loss(p, y), expected, atol=1e-12)


def test_probabilities_of_one_vs_rest_are_defined_where_all_classes_are_unlikely():
    p = jnp.asarray([[-120, -150, -130], [2, -1, 0]], jnp.float32)
    sigmoid = expit(np.array([2, -1, 0]))
    expected = [[1 - np.exp(-10), 0, np.exp(-10)], sigmoid / sigmoid.sum()]
    np.testing.assert_allclose(OneVsRest().probabilities(p), expected, atol=1e-6)


def test_one_vs_rest_needs_three_classes(tmp_path):
    table = {"y": np.arange(20) % 2}
    experiment = prepare(ragged(tmp_path, "objective=one_vs_rest", "data.task=multiclass", **table))
    with fails("objective=one_vs_rest", "two classes", "objective=logistic"):
        load_data(experiment)
    experiment = prepare(ragged(tmp_path, "objective=logistic", "data.task=multiclass", **table))
    assert len(load_data(experiment).classes) == 2


@pytest.mark.slow
@pytest.mark.parametrize("rows", [3, 12])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("ridge", [0.0, 0.4])
def test_least_squares_decomposed(rows, intercept, ridge):
    """Value, gradient and prox of the quadratic equal those of the batch."""
    objective = LeastSquares(intercept=intercept, ridge=ridge)
    problem = Problem(objective, L1(0.3), Euclidean(), objective.shapes((5,), 0))
    w, batch = ObjectiveCase(objective, Regression()).example(rows)
    batch = Batch(batch.x, batch.y, jnp.full(rows, 1 / rows))
    data = FederatedData(Rows.from_offsets(np.asarray(batch.x), np.asarray(batch.y), np.array([0, rows])))
    quadratic = jax.tree.map(lambda v: jnp.asarray(v[0]), decompose_losses(objective, data, problem.shapes, "float64"))
    assert problem.loss(w, quadratic) == pytest.approx(float(problem.loss(w, batch)), abs=1e-12)
    ours, theirs = problem.gradient(w, quadratic), problem.gradient(w, batch)
    assert (ours - theirs).norm() < 1e-12
    for s in (0.1, 10.0):
        u = quadratic.prox(w, s)
        assert (s * problem.gradient(u, batch) + (u - w)).norm() < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 3, 8, 11])
@pytest.mark.parametrize("outputs", [(), (3,)])
def test_the_batched_product_equals_the_product_of_each_run(runs, outputs):
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.standard_normal((20, 5))), jnp.asarray(rng.standard_normal((runs, 5, *outputs)))
    batched = jax.jit(jax.vmap(matmul, (None, 0)))(x, w)
    np.testing.assert_allclose(batched, jnp.stack([x @ weights for weights in w]), rtol=1e-12)
    batched_rows = jax.vmap(matmul)(jnp.stack([x * g for g in range(runs)]), w)
    np.testing.assert_allclose(batched_rows, jnp.stack([g * x @ weights for g, weights in enumerate(w)]), rtol=1e-12)
    gradient = jax.vmap(jax.grad(lambda weights: (matmul(x, weights) ** 2).sum()))(w)
    np.testing.assert_allclose(gradient, jnp.stack([2 * x.T @ (x @ weights) for weights in w]), rtol=1e-12)
