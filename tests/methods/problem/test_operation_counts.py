"""Counts of gradients and proxes in all control flow of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import fails
from jax import lax

from fcorun.methods.mirror_maps.mirror_map import Euclidean
from fcorun.methods.objectives import LeastSquares, Logistic
from fcorun.methods.problem.operation_counts import ONE_PROX, apply_if, count_operations, mark
from fcorun.methods.problem.problem import Batch, Problem, Quadratic, Vector
from fcorun.methods.regularizers.l1 import L1
from fcorun.methods.regularizers.regularizer import NoRegularizer

SHAPES = {"weights": (3,), "bias": ()}
PROBLEM = Problem(Logistic(), L1(0.1), Euclidean(), SHAPES)
W = Vector(weights=jnp.arange(3.0), bias=jnp.zeros(()))
X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
FIVE = Batch(jnp.asarray(X), jnp.array([0.0, 1, 1, 0, 1]), jnp.full(5, 0.2))
FOUR = FIVE._replace(weight=FIVE.weight.at[4].set(0), mask=jnp.arange(5) < 4)
ALL = FIVE._replace(full_passes=1)


def g(w=W, batch=FIVE):
    return PROBLEM.gradient(w, batch)


def until(gradient_in_condition: bool):
    """Return a loop of three iterations with a gradient each, and optionally a gradient in the condition."""

    def condition(state):
        w, k = state
        return (k < 3) & (g(w).norm() > -1) if gradient_in_condition else k < 3

    return lambda: lax.while_loop(condition, lambda state: (state[0] - g(state[0]), state[1] + 1), (W, 0))


def newton():
    """Run the conjugate gradients of JAX with three products with the Hessian."""
    return jax.scipy.sparse.linalg.cg(lambda d: PROBLEM.hessian_product(W, d, FIVE) + d, W, tol=0.0, maxiter=3)


def each_example(batch):
    one = jax.vmap(lambda example: g(W, jax.tree.map(lambda v: v[None], example)))
    return one(batch)


CASES = {  # examples, whole clients, proxes
    "a gradient": (lambda: g(), (5, 0, 0)),
    "of a short batch": (lambda: g(W, FOUR), (4, 0, 0)),
    "of whole data": (lambda: g(W, ALL), (0, 1, 0)),
    "a prox": (lambda: PROBLEM.prox(W, 0.1), (0, 0, 1)),
    "no prox": (lambda: Problem(Logistic(), NoRegularizer(), Euclidean(), SHAPES).prox(W, 0.1), (0, 0, 0)),
    "a loss": (lambda: PROBLEM.loss(W, FIVE), (5, 0, 0)),
    "a loss of whole data": (lambda: PROBLEM.loss(W, ALL), (0, 1, 0)),
    "a loss of a line search": (lambda: PROBLEM.line_search_loss(W, FIVE), (0, 0, 0)),
    "a loss of a line search with its gradient": (
        lambda: jax.value_and_grad(PROBLEM.line_search_loss)(W, FIVE),
        (5, 0, 0),
    ),
    "a loss beside its gradient": (lambda: PROBLEM.loss(W, FIVE) * g(), (10, 0, 0)),
    "a loss in what is derived by something else": (
        lambda: jax.grad(lambda t: t * PROBLEM.loss(W, FIVE))(2.0),
        (5, 0, 0),
    ),
    "losses at several points": (lambda: jax.vmap(lambda t: PROBLEM.loss(t * W, FIVE))(jnp.arange(3.0)), (15, 0, 0)),
    "jax.grad": (lambda: jax.grad(PROBLEM.loss)(W, FIVE), (5, 0, 0)),
    "value_and_grad": (lambda: jax.value_and_grad(PROBLEM.loss)(W, FOUR), (4, 0, 0)),
    "of one parameter": (lambda: jax.grad(lambda b: PROBLEM.loss(Vector(W | {"bias": b}), FIVE))(0.0), (5, 0, 0)),
    "a derivative along a direction": (lambda: jax.jvp(lambda w: PROBLEM.loss(w, FIVE), (W,), (W,)), (5, 0, 0)),
    "a gradient and a product": (lambda: jax.jvp(g, (W,), (W,)), (10, 0, 0)),
    "a gradient of a gradient": (lambda: jax.grad(lambda w: g(w).dot(W))(W), (10, 0, 0)),
    "a product": (lambda: PROBLEM.hessian_product(W, W, FIVE), (5, 0, 0)),
    "of each example": (lambda: each_example(FIVE), (5, 0, 0)),
    "of each that is present": (lambda: each_example(FOUR), (4, 0, 0)),
    "at several points": (lambda: jax.vmap(g)(jax.tree.map(lambda v: jnp.stack([v] * 3), W)), (15, 0, 0)),
    "along several directions": (
        lambda: jax.vmap(lambda x: jax.jvp(lambda w: PROBLEM.loss(w, FIVE._replace(x=x)), (W,), (W,))[1])(
            jnp.stack([FIVE.x] * 3)
        ),
        (15, 0, 0),
    ),
    "both sides of a where": (lambda: jnp.where(W["bias"] > 0, g()["bias"], g(2 * W)["bias"]), (10, 0, 0)),
    "within jit": (lambda: jax.jit(g)(W), (5, 0, 0)),
    "within checkpoint": (lambda: jax.grad(jax.checkpoint(lambda w: PROBLEM.loss(w, FIVE)))(W), (5, 0, 0)),
    "a branch": (lambda: lax.cond(W["bias"] > 0, lambda: PROBLEM.prox(g(W, ALL), 1.0), g), (5, 0, 0)),
    "the other branch": (lambda: lax.cond(W["bias"] <= 0, lambda: PROBLEM.prox(g(W, ALL), 1.0), g), (0, 1, 1)),
    "one of three": (lambda: lax.switch(W["bias"].astype(int) + 2, [g, lambda: W, lambda: g(g())]), (10, 0, 0)),
    "a scan": (lambda: lax.scan(lambda w, x: (w - g(w), x), W, jnp.arange(4)), (20, 0, 0)),
    "a loop": (until(False), (15, 0, 0)),
    "a loop with a gradient in its condition": (until(True), (35, 0, 0)),
    "a loop of a known length": (lambda: lax.fori_loop(0, 3, lambda _, w: w - g(w), W), (15, 0, 0)),
    "a map": (lambda: lax.map(lambda t: g(t * W), jnp.arange(3.0)), (15, 0, 0)),
    "a loop in a branch in a loop": (
        lambda: lax.fori_loop(
            0, 4, lambda k, w: lax.cond(k % 2 == 0, lambda: lax.fori_loop(0, k, lambda _, v: v - g(v), w), lambda: w), W
        ),
        (10, 0, 0),
    ),
    "JAX's conjugate gradients": (newton, (20, 0, 0)),
    "a step whose condition holds": (
        lambda: apply_if(W["bias"] == 0, lambda w: PROBLEM.prox(w - g(w), 1.0), W),
        (5, 0, 1),
    ),
    "a step whose condition fails": (
        lambda: apply_if(W["bias"] > 0, lambda w: PROBLEM.prox(w - g(w), 1.0), W),
        (0, 0, 0),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_evaluation_is_counted(case):
    """The counts are the same with and without a trace, and marks do not change the value."""
    function, expected = CASES[case]
    value, counts = jax.jit(lambda: count_operations(function))()
    assert counts.tolist() == list(expected)
    jax.tree.map(lambda v, w: np.testing.assert_allclose(v, w, rtol=2e-4, atol=1e-6), value, function())
    with jax.disable_jit():
        if case == "JAX's conjugate gradients":
            with fails("debug=true cannot count", "jax.scipy"):
                count_operations(function)
        else:
            assert count_operations(function)[1].tolist() == list(expected)


@pytest.mark.slow
def test_each_run_of_a_grid_counts_its_branch():
    """Under ``vmap`` both branches are computed, and each run counts the branch it takes."""

    def run(rate):
        w = lax.cond(rate > 1, lambda: PROBLEM.prox(g(rate * W), rate), lambda: W)
        return lax.while_loop(
            lambda state: state[1] < rate, lambda state: (state[0] - g(state[0]), state[1] + 1), (w, 0.0)
        )

    counts = jax.vmap(lambda rate: count_operations(lambda: run(rate))[1])(jnp.array([1.0, 3.0]))
    assert counts.tolist() == [[5, 0, 0], [20, 0, 1]]


def test_operations_that_cannot_be_counted_are_refused():
    def within(residual, w):
        return g(w)

    with fails("gradients or proxes within JAX's linear_call cannot be counted, test_operation_counts.py line"):
        count_operations(lambda: jax.custom_derivatives.linear_call(within, within, (), W))


def test_marks_add_no_instructions():
    """The compiled program has as many lines as that of the function without marks."""
    plain, marked = (
        str(jax.jit(lambda w, f=f: f(w + 1)).lower(W).compile().as_text())
        for f in (lambda w: w, lambda w: mark(w, ONE_PROX))
    )
    assert marked.count("\n") == plain.count("\n")


@pytest.mark.slow
def test_quadratics_count_as_whole_clients():
    quadratic = Quadratic(Vector(weights=jnp.eye(3), bias=jnp.zeros(3)), jnp.ones(3), jnp.ones(3), jnp.zeros(()))
    problem = Problem(LeastSquares(), L1(0.1), Euclidean(), SHAPES)
    assert count_operations(lambda: problem.gradient(W, quadratic))[1].tolist() == [0, 1, 0]
    assert count_operations(lambda: (quadratic.prox(W, 1.0), quadratic.minimize(W, 1.0)))[1].tolist() == [0, 0, 2]
