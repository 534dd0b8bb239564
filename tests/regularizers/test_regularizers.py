"""Regularizers: every one of conf/reg is what its prox and its optional methods say it is."""

from dataclasses import fields, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import names, small, snapshots

from fcorun.config import numbers
from fcorun.experiment.prepare import prepare
from fcorun.regularizers import Constraint

pytestmark = pytest.mark.usefixtures("x64")

REGULARIZERS = names("reg")
SHAPES = [(12,), (4, 3)]


@cache
def composed(name):
    return prepare(small(f"reg={name}")).reg


def regularizer(name, **changes):
    known = {field.name for field in fields(composed(name))}
    changes = {"strength": 0.7, "strength_tv": 0.4} | changes
    return replace(composed(name), **{key: value for key, value in changes.items() if key in known})


def takes(name, shape):
    try:
        getattr(composed(name), "check", lambda shape: None)(shape)
    except ValueError:
        return False
    return True


CASES = [(name, shape) for name in REGULARIZERS for shape in SHAPES if takes(name, shape)]
FIRST = [(name, next(shape for case, shape in CASES if case == name)) for name in REGULARIZERS]
DTYPES = ["float32", "float64"]


def having(method, cases=CASES):
    return [(name, shape) for name, shape in cases if hasattr(composed(name), method)]


def constraints(cases=CASES):
    """Those that are nothing but the indicator of a set."""
    return [(n, s) for n, s in cases if isinstance(composed(n), Constraint) and not hasattr(composed(n), "strength")]


def penalties(cases=CASES):
    """Those that are finite everywhere."""
    return [(n, s) for n, s in cases if not isinstance(composed(n), Constraint)]


@cache
def program(name, method):
    """A method with the numbers of the regularizer as arguments, for many arrays at a time, compiled once."""
    template = composed(name)

    def call(numbers, *arrays):
        return getattr(replace(template, **numbers), method)(*arrays)

    return jax.jit(lambda numbers, *arrays: jax.vmap(lambda *a: call(numbers, *a))(*arrays))


def every(name, method, *arrays, dtype="float64", **changes):
    """``method`` of the regularizer at each point, as numpy; of at most 16, always 16 to compile but once."""
    values = {key: jnp.asarray(v, dtype) for key, v in numbers(regularizer(name, **changes)).items()}
    padded = [jnp.asarray(np.resize(array, (16, *np.shape(array)[1:])), dtype) for array in arrays]
    return np.asarray(program(name, method)(values, *padded))[: len(arrays[0])]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def points(rng, shape, count=8):
    """Random points of several sizes, some entries zero."""
    size = 10 ** rng.uniform(-1, 1, (count, *[1] * len(shape)))
    return rng.standard_normal((count, *shape)) * size * (rng.random((count, *shape)) < 0.8)


def dot(x, y):
    """The inner product of each pair of points."""
    return (np.asarray(x, float) * np.asarray(y, float)).reshape(len(x), -1).sum(1)


@pytest.mark.parametrize(("name", "shape"), FIRST)
def test_value(name, shape, rng):
    members = every(name, "prox", points(rng, shape), np.full(8, 0.3))
    value = every(name, "value", members)
    assert value.shape == (8,)
    assert np.isfinite(value).all()
    assert (value >= 0).all()
    if not isinstance(composed(name), Constraint):
        assert every(name, "value", np.zeros((1, *shape)))[0] == 0


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [(*case, "float64") for case in CASES] + [(*case, "float32") for case in FIRST],
)
def test_prox_minimises_strongly(name, shape, dtype, rng):
    """t psi(u) + ||u - z||^2 / 2 is at least its value at the prox plus ||u - prox||^2 / 2, for any u of the domain."""
    z, t = points(rng, shape, 16), 10 ** rng.uniform(-1.5, 1, 16)
    best = every(name, "prox", z, t, dtype=dtype)
    assert best.shape == z.shape
    assert best.dtype == dtype
    z = z.astype(dtype).astype(float)
    others = [every(name, "prox", points(rng, shape, 16), t, dtype=dtype) for _ in range(3)]
    others += [best + s * (others[0] - best) for s in (1e-3, 0.1)]
    if not isinstance(composed(name), Constraint):
        others += [best + s * rng.standard_normal(best.shape) for s in (1e-4, 1e-2, 1)]
        others += [z, np.zeros_like(z), 0.99 * best, 1.01 * best]

    def objective(u):
        return t * every(name, "value", u, dtype=dtype) + dot(u - z, u - z) / 2

    for u in others:
        gap = objective(u) - objective(best) - dot(u - best, u - best) / 2
        assert (gap >= -(1e-11 if dtype == "float64" else 1e-5) * (1 + objective(u) + dot(z, z))).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "shape"), FIRST)
def test_prox_is_firmly_nonexpansive(name, shape, dtype, rng):
    x, y, t = points(rng, shape), points(rng, shape), np.full(8, 0.6)
    p, q = every(name, "prox", x, t, dtype=dtype), every(name, "prox", y, t, dtype=dtype)
    slack = (1e-12 if dtype == "float64" else 1e-5) * (1 + dot(x - y, x - y))
    assert (dot(p - q, p - q) <= dot(p - q, x - y) + slack).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "shape"), constraints(FIRST))
def test_projections(name, shape, dtype, rng):
    """They land in the set, leave its members alone, are nearest, and the figures say what is outside."""
    z = np.concatenate([points(rng, shape), 100 * points(rng, shape)])
    eps = np.finfo(dtype).eps
    w = every(name, "project", z, dtype=dtype)
    size = 1 + np.sqrt(dot(z, z))
    np.testing.assert_array_equal(every(name, "prox", z, np.full(16, 3.0), dtype=dtype), w)
    assert (every(name, "value", w, dtype=dtype) == 0).all()
    assert (every(name, "violation", w, dtype=dtype) <= 20 * eps * size).all()
    assert (np.sqrt(dot(*[every(name, "project", w, dtype=dtype) - w] * 2)) <= 20 * eps * size).all()
    far = np.sqrt(dot(z - w, z - w))
    np.testing.assert_allclose(every(name, "violation", z, dtype=dtype), far, rtol=1e-4, atol=20 * eps * size.max())
    assert (far > 1e-3 * size).any()
    outside = every(name, "value", z, dtype=dtype)
    assert (outside[far > 1e-3 * size] == np.inf).all()
    inside = w.astype(float)
    middle = (inside + inside[::-1]) / 2
    np.testing.assert_allclose(every(name, "project", middle), middle, atol=20 * eps * size.max())


@pytest.mark.parametrize(("name", "shape"), having("conjugate"))
def test_moreau_identity_and_conjugate(name, shape, rng):
    """z = prox(z) + v with v a subgradient there, at which psi and its conjugate meet; elsewhere they do not cross."""
    z = points(rng, shape)
    w = every(name, "prox", z, np.ones(8))
    v = z - w
    scale = every(name, "dual_scale", v)
    np.testing.assert_allclose(scale, 1, rtol=1e-12)  # the conjugate is finite there
    np.testing.assert_allclose(every(name, "value", w) + every(name, "conjugate", v), dot(w, v), atol=1e-10)
    other = every(name, "prox", points(rng, shape), np.full(8, 0.1))
    assert (every(name, "value", other) + every(name, "conjugate", v) >= dot(other, v) - 1e-11).all()
    far = 100 * rng.standard_normal(z.shape)
    scale = every(name, "dual_scale", far)
    assert ((scale >= 0) & (scale <= 1)).all()
    far *= scale.reshape(-1, *[1] * len(shape))
    assert (every(name, "value", w) + every(name, "conjugate", far) >= dot(w, far) - 1e-10).all()
    if not isinstance(composed(name), Constraint) or hasattr(composed(name), "strength"):
        assert (scale < 1).all()
        wrong = every(name, "prox", 1.01 * far, np.ones(8))  # a little farther the conjugate is infinite
        assert wrong.any(axis=tuple(range(1, wrong.ndim))).all()


@pytest.mark.parametrize(("name", "shape"), having("subgradient"))
def test_subgradient(name, shape, rng):
    w = np.concatenate([points(rng, shape), np.zeros((1, *shape))])
    g = every(name, "subgradient", w)
    assert g.shape == w.shape
    for _ in range(5):
        u = points(rng, shape, 9)
        assert (every(name, "value", u) >= every(name, "value", w) + dot(g, u - w) - 1e-10).all()


@pytest.mark.parametrize("follows", [{}, {"strength_tv": None}])
@pytest.mark.parametrize(("name", "shape"), having("strength_max"))
def test_strength_max(name, shape, follows, rng):
    """0 minimises <gradient, w> + psi(w) locally just above it, and not just below."""
    if set(follows) - {field.name for field in fields(composed(name))}:
        return  # no number follows the strength
    for gradient in points(rng, shape):
        largest = float(every(name, "strength_max", gradient[None], **follows)[0])
        for factor, found in ((1.0001, False), (0.9999, True)):
            prox = every(name, "prox", -gradient[None], np.ones(1), strength=factor * largest, **follows)
            assert prox.any() == found


@pytest.mark.parametrize(("name", "shape"), having("relative", FIRST))
def test_relative_needs_a_largest_strength(name, shape):
    assert hasattr(composed(name), "strength_max")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "shape"), FIRST)
def test_under_jit_and_vmap_with_traced_numbers(name, shape, dtype, rng):
    """Runs that differ in numbers go through together, and each gets what it would get alone."""
    reg = regularizer(name)
    z = jnp.asarray(rng.standard_normal((3, *shape)), dtype)
    settings = [{key: value * factor for key, value in numbers(reg).items()} for factor in (1, 0.5, 0)]
    stacked = jax.tree.map(lambda *v: jnp.asarray(v, dtype), *settings)
    methods = {"value": (), "prox": (jnp.asarray(0.3, dtype),)}
    methods |= {n: () for n in ("subgradient", "conjugate", "dual_scale", "violation") if hasattr(reg, n)}

    def call(numbers, z):
        return {name: getattr(replace(reg, **numbers), name)(z, *rest) for name, rest in methods.items()}

    together = jax.jit(jax.vmap(call, in_axes=(0 if stacked else None, 0)))(stacked, z)
    alone = jax.jit(call)
    for g in range(3):
        for method, mine in alone(settings[g], z[g]).items():
            assert together[method].dtype == mine.dtype == dtype
            rtol = 1e-12 if dtype == "float64" else 1e-5
            np.testing.assert_allclose(together[method][g], mine, rtol=rtol, atol=1e-6)
            assert not np.isnan(mine).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "shape"), penalties(FIRST))
def test_without_strength_or_time_the_prox_is_nothing(name, shape, dtype, rng):
    z = points(rng, shape, 3).astype(dtype)
    np.testing.assert_array_equal(every(name, "prox", z, np.zeros(3), dtype=dtype), z)
    if hasattr(composed(name), "strength"):
        off = {"strength": 0.0, "strength_tv": 0.0}
        np.testing.assert_array_equal(every(name, "prox", z, np.full(3, 2), dtype=dtype, **off), z)
        assert (every(name, "value", z, dtype=dtype, **off) == 0).all()


@pytest.mark.parametrize(("name", "shape"), FIRST)
def test_structure(name, shape):
    w = jnp.asarray([0, 1e-5, -1e-5, 2e-3, -3, 5.0] * 2).reshape(shape)
    found = jax.jit(regularizer(name).structure)(w, 1e-4)
    assert all(jnp.shape(value) == () for value in found.values())
    assert found.get("density", 0.5) == 0.5
    assert ("violation" in found) == isinstance(composed(name), Constraint)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), [case for case in FIRST if case[1] == SHAPES[0]])
def test_rounds(name, shape):
    """A few rounds of a real run: finite metrics, and constraints hold."""
    for last in snapshots(small(f"reg={name}", "algo=fedmid", "algo.client_lr=0.01", "algo.server_lr=0.5", "rounds=2")):
        assert all(np.isfinite(value).all() for value in last.metrics.values())
        assert not last.diverged.any()
    assert last.metrics.get("violation", np.zeros(1)).max() <= 1e-5


@pytest.mark.parametrize(
    ("name", "value", "prox"),
    [
        ("l1", 0.7 * 3.5, [0.86, 0.36, -1.86]),
        ("l2", 0.7 * 5.25, [1 / 1.28, 0.5 / 1.28, -2 / 1.28]),
        ("linf", 0.7 * 2, [1, 0.5, -1.86]),
        ("tv", 0.7 * 3, [0.86, 0.5, -1.86]),
        ("group_lasso", 0.7 * (1.25**0.5), [1 - 0.14 / 1.25**0.5, 0.5 - 0.07 / 1.25**0.5]),
    ],
)
def test_by_hand(name, value, prox):
    w = np.asarray([[1, 0.5, -2.0][: len(prox)]])
    assert every(name, "value", w)[0] == pytest.approx(value)
    np.testing.assert_allclose(every(name, "prox", w, np.full(1, 0.2))[0], prox, rtol=1e-12)
