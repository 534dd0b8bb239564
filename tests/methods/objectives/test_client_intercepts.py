"""Intercepts of clients, which the losses of clients eliminate."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import verify

from fcorun.data.tasks import find_task
from fcorun.interface.checks.objectives import CHECKS, ObjectiveCase
from fcorun.methods.objectives import Gamma, LeastSquares, Logistic, Poisson

pytestmark = pytest.mark.usefixtures("x64")
KINDS = {"regression": (LeastSquares, Poisson, Gamma), "binary": (Logistic,)}
CASES = [ObjectiveCase(kind(client_intercepts=True), find_task(task)) for task in KINDS for kind in KINDS[task]]
NAMES = [type(case.objective).__name__ for case in CASES]


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_objectives_with_intercepts_of_clients_pass_every_check(check, case):
    verify(check, case)


def rows_of_three_clients(case, n=60):
    """Return features (n, 3), targets whose means differ between three clients, weights, and the clients."""
    rng = np.random.default_rng(0)
    client = jnp.asarray(np.repeat(np.arange(3, dtype=np.int32), [10, 20, 30]))
    x = jnp.asarray(rng.standard_normal((n, 3)) + np.asarray(client)[:, None])
    mean = np.asarray(x @ jnp.array([0.3, -0.2, 0.1])) - 0.8 * np.asarray(client)
    y = {"binary": rng.random(n) < 1 / (1 + np.exp(-mean))}.get(case.task.name, rng.poisson(np.exp(mean)) + 0.5)
    weight = rng.random(n)
    return x, jnp.asarray(y, float), jnp.asarray(weight / weight.sum()), client


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_eliminated_intercepts_give_the_optimum_and_the_schur_complement_of_the_joint_problem(case):
    x, y, weight, client = rows_of_three_clients(case)
    joint_x = jnp.column_stack([x, jax.nn.one_hot(client, 3, dtype=float)])
    plain = replace(case.objective, client_intercepts=False)

    def joint_loss(theta):
        return weight @ plain.loss(joint_x @ theta, y)

    def loss(w):
        return weight @ case.objective.client_losses(x @ w, y, weight, client)

    w = jnp.array([0.1, 0.2, -0.1])
    theta = jnp.zeros(6)
    for _ in range(30):
        theta = theta - jnp.linalg.solve(jax.hessian(joint_loss)(theta), jax.grad(joint_loss)(theta))
        w = w - jnp.linalg.solve(jax.hessian(loss)(w), jax.grad(loss)(w))
    np.testing.assert_allclose(w, theta[:3], rtol=1e-9)
    np.testing.assert_allclose(loss(w), joint_loss(theta), rtol=1e-13)
    inverse = jnp.linalg.inv(jax.hessian(joint_loss)(theta))[:3, :3]
    np.testing.assert_allclose(jnp.linalg.inv(jax.hessian(loss)(w)), inverse, rtol=1e-9)
    fitted = case.objective.fit_client_intercepts(x @ w, y, weight, client, 3)
    np.testing.assert_allclose(fitted.values, theta[3:], rtol=1e-9)
    shares = np.asarray([weight[client == m].sum() for m in range(3)])
    np.testing.assert_allclose(fitted.mean, shares @ theta[3:], rtol=1e-9)
    unknown = fitted.for_rows(jnp.array([2, -1, 3], jnp.int32))
    np.testing.assert_allclose(unknown, [theta[5], fitted.mean, fitted.mean], rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_client_of_one_class_tells_nothing_about_the_weights_and_has_the_mean(dtype):
    objective = Logistic(client_intercepts=True)
    y = jnp.array([1, 0, 1, 1, 0, 0, 0], dtype)
    client = jnp.array([0, 0, 0, 0, 1, 1, 1], jnp.int32)
    prediction = jnp.linspace(-1, 1, 7).astype(dtype)
    weight = jnp.full(7, 1 / 7, dtype)
    fitted = objective.fit_client_intercepts(prediction, y, weight, client, 2)
    assert fitted.finite.tolist() == [True, False]
    np.testing.assert_allclose(fitted.for_rows(client), fitted.values[0], rtol=1e-6)
    slopes = jax.grad(lambda p: weight @ objective.client_losses(p, y, weight, client))(prediction)
    np.testing.assert_allclose(slopes[4:], 0, atol=1e-12)
    assert np.isfinite(slopes).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [-1000, -100, 100, 1000])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_intercepts_follow_predictions_that_are_far_off(case, shift, dtype):
    x, y, weight, client = rows_of_three_clients(case)
    near = (x @ jnp.array([0.3, -0.2, 0.1])).round(2)
    expected = np.asarray(case.objective.fit_client_intercepts(near, y, weight, client, 3).values)
    prediction = (near + shift).astype(dtype)
    y = y.astype(dtype)
    weight = weight.astype(dtype)
    fitted = case.objective.fit_client_intercepts(prediction, y, weight, client, 3)
    precision = 1e4 * np.finfo(dtype).eps
    np.testing.assert_allclose(fitted.values + shift, expected, atol=precision)
    assert fitted.finite.all()
    rows = (np.asarray(values) for values in (prediction, y, weight, client))
    in_numpy = case.objective.derivatives(*rows)
    slope_size = np.bincount(client, abs(in_numpy.slope))
    assert (abs(np.bincount(client, in_numpy.slope)) <= precision * slope_size).all()
    best = case.objective.with_known_intercepts.loss(near + expected[client], y)
    np.testing.assert_allclose(in_numpy.loss, weight @ best, rtol=precision)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("kind", "y", "finite"),
    [
        (Logistic, [0, 0, 1, 1, 0, 1], [False, True, True]),
        (Poisson, [0, 0, 0, 4, 0, 1e6], [False, True, True]),
        (LeastSquares, [0, 0, -1e6, -1e6, 1e6, 0], [True, True, True]),
    ],
)
def test_the_targets_alone_tell_whether_an_intercept_is_finite(kind, y, finite, dtype):
    y = np.asarray(y, dtype)
    if kind is Logistic:
        y[3] = 0
    objective = kind(client_intercepts=True)
    client = jnp.array([0, 0, 1, 1, 2, 2], jnp.int32)
    for size in (0, 1, 900):  # the last separates the classes of a client beyond the least number above 0
        prediction = jnp.asarray(size * np.array([-1, 1, 1, -1, -1, 1]), dtype)
        fitted = objective.fit_client_intercepts(prediction, jnp.asarray(y), jnp.full(6, 1 / 6, dtype), client, 3)
        assert fitted.finite.tolist() == finite
