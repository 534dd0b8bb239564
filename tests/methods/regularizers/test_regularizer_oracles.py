"""Each prox compared with an independent method: a quadratic program, a search, scikit-learn, a certificate."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import small
from scipy.optimize import minimize, minimize_scalar
from sklearn.isotonic import isotonic_regression

from fcorun.experiment.prepare import prepare
from fcorun.methods.regularizers.affine import Halfspace
from fcorun.methods.regularizers.chain import Monotone
from fcorun.methods.regularizers.l1 import log_cosh

N, T = 6, 0.8
D = np.diff(np.eye(N), axis=0)
UNIT = np.eye(N)
NORMAL, MATRIX = [1.0, -2, 0.5, 0, 3, 1], [[1.0, 2, 0, -1, 0.5, 0], [0, 1, 1, 1, 0, -2.0], [1, 3, 1, 0, 0.5, -2]]


def solve_program(z, inequalities=(), equalities=(), norms=()):
    """Minimize ||w - z||^2 / 2 + sum_k strength_k ||A_k w||_k subject to A w <= b and A w = b, as a quadratic program.

    ``norms`` holds (strength, A, order, radius) with order 1 or inf. Without a radius the norm is a penalty.
    """
    rows, costs = [(np.asarray(a), np.asarray(b)) for a, b in inequalities], np.zeros(N)
    for strength, a, order, radius in norms:
        count = len(a) if order == 1 else 1
        first_variable = len(costs)
        rows_to_variables = np.eye(count) if order == 1 else np.ones((len(a), 1))
        costs = np.append(costs, np.full(count, strength))
        for sign in (1, -1):  # +-A w <= one further variable for each row, or one for all rows
            rows.append(
                (np.hstack([sign * a, np.zeros((len(a), first_variable - N)), -rows_to_variables]), np.zeros(len(a)))
            )
        if radius is not None:
            rows.append((np.append(np.zeros(first_variable), np.ones(count))[None], np.array([radius])))
    size = len(costs)

    def pad_columns(a):
        return np.hstack([a, np.zeros((len(a), size - a.shape[1]))])

    def linear_constraint(kind, a, b, sign):
        return {"type": kind, "fun": lambda x: sign * (a @ x - b), "jac": lambda x: sign * a}

    conditions = [linear_constraint("ineq", pad_columns(a), b, -1) for a, b in rows]
    conditions += [linear_constraint("eq", pad_columns(np.asarray(a)), b, 1) for a, b in equalities]

    def objective(x):
        return ((x[:N] - z) ** 2).sum() / 2 + costs @ x

    def gradient(x):
        return costs + np.append(x[:N] - z, np.zeros(size - N))

    start = np.append(np.zeros(N), np.ones(size - N))
    options = {"ftol": 1e-15, "maxiter": 500}
    return minimize(objective, start, jac=gradient, method="SLSQP", constraints=conditions, options=options).x[:N]


def search_entries(psi, low: Any = -20.0, high: Any = 20.0):
    """Return a function that computes the prox entry by entry; a bound may be a function of the regularizer."""
    options = {"xatol": 1e-11, "maxiter": 500}

    def prox(reg, z):
        def best(entry):
            def objective(w) -> Any:
                return T * psi(reg, w) + (w - entry) ** 2 / 2

            bounds: Any = (low(reg) if callable(low) else low, high(reg) if callable(high) else high)
            result: Any = minimize_scalar(objective, bounds=bounds, method="bounded", options=options)
            return min((result.x, 0.0, *bounds), key=lambda w: objective(w) if bounds[0] <= w <= bounds[1] else np.inf)

        return np.array([best(entry) for entry in z])

    return prox


def search_blocks(reg, z):
    """Compute the prox of blocks of two by a search in the plane."""
    options = {"xatol": 1e-10, "fatol": 1e-16, "maxiter": 2000, "maxfev": 4000}

    def best(block):
        def objective(w):
            return T * reg.strength * np.hypot(*w) + ((w - block) ** 2).sum() / 2

        return minimize(objective, block + np.array([0.3, -0.2]), method="Nelder-Mead", options=options).x

    return np.concatenate([best(block) for block in z.reshape(-1, 2)])


def project_on_l2_ball(reg, z):
    condition = {"type": "ineq", "fun": lambda w: reg.radius**2 - w @ w, "jac": lambda w: -2 * w}
    return minimize(lambda w: ((w - z) ** 2).sum() / 2, np.full(N, 0.01), jac=lambda w: w - z, method="SLSQP",
                    constraints=[condition], options={"ftol": 1e-15}).x  # fmt: skip


def box_inequalities(reg):
    return [(-UNIT, np.full(N, -reg.lower)), (UNIT, np.full(N, reg.upper))]


def absolute(reg, w):
    return reg.strength * abs(w)


UPPER: dict[str, Any] = {"high": lambda reg: reg.upper}
LOWER: dict[str, Any] = {"low": lambda reg: reg.lower}
ORACLES = {
    "none": search_entries(lambda reg, w: 0),
    "l1": search_entries(absolute),
    "l2": search_entries(lambda reg, w: reg.strength * w**2),
    "elastic_net": search_entries(
        lambda reg, w: reg.strength * (reg.l1_ratio * abs(w) + (1 - reg.l1_ratio) / 2 * w**2)
    ),
    "l1_nonneg": search_entries(absolute, low=0.0),
    "l1_box": search_entries(absolute, **LOWER, **UPPER),
    "nonneg": search_entries(lambda reg, w: 0, low=0.0),
    "box": search_entries(lambda reg, w: 0, **LOWER, **UPPER),
    "linf_ball": search_entries(lambda reg, w: 0, low=lambda reg: -reg.radius, high=lambda reg: reg.radius),
    "group_lasso": search_blocks,
    "l2_ball": project_on_l2_ball,
    "linf": lambda reg, z: solve_program(z, norms=[(T * reg.strength, UNIT, np.inf, None)]),
    "tv": lambda reg, z: solve_program(z, norms=[(T * reg.strength, D, 1, None)]),
    "fused_lasso": lambda reg, z: solve_program(
        z, norms=[(T * reg.strength, UNIT, 1, None), (T * reg.resolved_strength_tv, D, 1, None)]
    ),
    "l1_ball": lambda reg, z: solve_program(z, norms=[(0, UNIT, 1, reg.radius)]),
    "simplex": lambda reg, z: solve_program(z, [(-UNIT, np.zeros(N))], [(np.ones((1, N)), reg.total)]),
    "monotone": lambda reg, z: solve_program(z, [((1 if reg.decreasing else -1) * D, np.zeros(N - 1))]),
    "monotone_box": lambda reg, z: solve_program(
        z, [((1 if reg.decreasing else -1) * D, np.zeros(N - 1)), *box_inequalities(reg)]
    ),
    "budget": lambda reg, z: solve_program(z, [(np.ones((1, N)), [reg.budget]), *box_inequalities(reg)]),
    "halfspace": lambda reg, z: solve_program(z, [(np.array([reg.normal or np.ones(N)]), [reg.bound])]),
    "affine": lambda reg, z: solve_program(
        z, equalities=[(reg.matrix[:2] if reg.matrix else np.ones((1, N)), reg.target[:2])]
    ),
}
CHANGED = {
    "fused_lasso": {"strength_tv": 1.1},
    "elastic_net": {"l1_ratio": 0.3},
    "l1_ball": {"radius": 2.5},
    "l2_ball": {"radius": 1.7},
    "linf_ball": {"radius": 0.6},
    "box": {"lower": -0.4, "upper": 1.3},
    "l1_box": {"lower": -0.4, "upper": 0.2},
    "simplex": {"total": 1.8},
    "monotone": {"decreasing": True},
    "monotone_box": {"decreasing": True, "lower": -0.4, "upper": 0.9},
    "budget": {"budget": 0.3, "lower": -0.2, "upper": 0.8},
    "halfspace": {"normal": NORMAL, "bound": -0.3},
    "affine": {"matrix": MATRIX, "target": [0.7, -1.1, -0.4]},  # the third row is a combination of the others
}


@cache
def composed(name) -> Any:
    return prepare(small(f"reg={name}")).reg


@pytest.mark.slow
@pytest.mark.parametrize("with_changes", [False, True])
@pytest.mark.parametrize("name", ORACLES)
def test_prox(name, with_changes):
    reg = composed(name)
    reg = replace(reg, **(CHANGED.get(name, {}) if with_changes else {}))
    reg = replace(reg, strength=1.7 if with_changes else 0.6) if hasattr(reg, "strength") else reg
    rng = np.random.default_rng(1)
    points = rng.standard_normal((6, N)) * np.array([0.1, 0.5, 1, 2, 4, 1])[:, None]
    with jax.enable_x64(True):
        result = np.asarray(jax.jit(jax.vmap(lambda z: reg.prox(z, T)))(jnp.asarray(points)))
    for z, w in zip(points, result, strict=True):
        np.testing.assert_allclose(w, ORACLES[name](reg, z), atol=2e-6)


@pytest.fixture(scope="module")
def long_vectors():
    """Noise, steps, a ramp, a constant, ties, and numbers of very different sizes, 400 entries each."""
    rng = np.random.default_rng(2)
    noise = rng.standard_normal(400)
    steps = np.repeat(rng.standard_normal(8), 50)
    return np.stack([noise, steps + 0.3 * noise, np.linspace(-2, 2, 400) + noise, np.full(400, 0.3), steps,
                     np.round(noise), np.exp(np.linspace(-15, 5, 400)), np.exp(3 * noise)])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("strength", [1e-3, 0.3, 5.0, 1e3])
def test_long_total_variation_has_a_certificate(long_vectors, strength):
    """w is optimal if the sums u of w - z are within the strength, and at +-strength where w rises or falls."""
    reg = replace(composed("tv"), strength=strength)
    with jax.enable_x64(True):
        w = np.asarray(jax.jit(jax.vmap(lambda z: reg.prox(z, 1.0)))(jnp.asarray(long_vectors)))
        single = np.asarray(jax.jit(jax.vmap(lambda z: reg.prox(z, 1.0)))(jnp.asarray(long_vectors, jnp.float32)))
    u = np.cumsum(w - long_vectors, axis=1)
    slack = 1e-12 * (1 + np.abs(long_vectors).sum(1, keepdims=True))
    assert (np.abs(u) <= strength + slack).all()
    assert (np.abs(u[:, -1:]) <= slack).all()
    rise = np.diff(w, axis=1)
    moving = rise != 0
    assert (np.abs(u[:, :-1] - strength * np.sign(rise))[moving] <= np.broadcast_to(slack, moving.shape)[moving]).all()
    if strength == 5:
        assert 3 < moving[0].sum() < 100  # entries of a piece are exactly equal
    np.testing.assert_allclose(single, w, atol=1e-5 * np.abs(long_vectors).max())


@pytest.mark.slow
@pytest.mark.parametrize("decreasing", [False, True])
def test_long_monotone_is_isotonic_regression(long_vectors, decreasing):
    reg = replace(composed("monotone"), decreasing=decreasing)
    expected = [isotonic_regression(z, increasing=not decreasing) for z in long_vectors]
    with jax.enable_x64(True):
        w = np.asarray(jax.jit(jax.vmap(reg.project))(jnp.asarray(long_vectors)))
        single = np.asarray(jax.jit(jax.vmap(reg.project))(jnp.asarray(long_vectors, jnp.float32)))
    np.testing.assert_allclose(w, expected, atol=1e-13 * np.abs(long_vectors).max() + 1e-12)
    np.testing.assert_allclose(single, expected, atol=1e-5 * np.abs(long_vectors).max())
    assert (np.diff(w, axis=1) * (-1 if decreasing else 1) >= -1e-13 * np.abs(long_vectors).max()).all()


def test_a_long_monotone_vector_of_float32_is_feasible():
    """A sum of 30,000 entries in order loses four of the seven digits."""
    z = 5 + np.random.default_rng(0).standard_normal(30_000)
    w = jax.jit(Monotone().project)(jnp.asarray(z, jnp.float32))
    assert Monotone().value(w) == 0
    np.testing.assert_allclose(w, isotonic_regression(z), atol=1e-5)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_a_half_space_may_have_a_normal_of_any_length(scale):
    half = Halfspace(bound=3 * scale, normal=[scale, scale])
    np.testing.assert_allclose(half.project(jnp.array([2.0, 2.0])), 1.5, rtol=1e-6)


@pytest.mark.parametrize("name", ["simplex", "l1_ball", "budget"])
def test_long_thresholds(name):
    """For 1000 entries far from the set, the sum is exact to rounding, and free entries are z minus one threshold."""
    reg, z = composed(name), 1000 + np.random.default_rng(3).standard_normal((3, 1000)) * [[1e-3], [1], [1e3]]
    w = np.asarray(jax.jit(jax.vmap(reg.project))(jnp.asarray(z, jnp.float32))).astype(float)
    np.testing.assert_allclose(np.abs(w).sum(1), 1, atol=1e-4)
    z = z.astype("float32").astype(float)
    for projection, entries in zip(w, z, strict=True):
        is_free = (projection != 0) & (np.abs(projection) < 1)
        if is_free.any():
            assert np.ptp(np.abs(entries[is_free]) - np.abs(projection[is_free])) <= 1e-7 * np.abs(entries).max() + 1e-6
            threshold = (np.abs(entries[is_free]) - np.abs(projection[is_free])).mean()
            assert (np.abs(entries)[projection == 0] <= threshold + 1e-6 * np.abs(entries).max()).all()


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_log_cosh_has_two_derivatives_everywhere():
    a = jnp.array([-800.0, -1.3, 0.0, 1e-9, 0.4, 800.0])
    np.testing.assert_allclose(log_cosh(a[1:5]), np.log(np.cosh(a[1:5])), atol=1e-15)
    np.testing.assert_allclose(log_cosh(a[::5]), 800 - np.log(2))
    np.testing.assert_allclose(jax.vmap(jax.grad(log_cosh))(a), np.tanh(a), rtol=1e-14)
    np.testing.assert_allclose(jax.vmap(jax.grad(jax.grad(log_cosh)))(a), 1 - np.tanh(a) ** 2, atol=1e-14)
