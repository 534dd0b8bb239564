"""Regularizers: every one of conf/reg is what its prox and its optional methods say it is."""

from dataclasses import fields, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import names, small

from fcorun.config import numbers
from fcorun.experiment import prepare

REGULARIZERS = names("reg")
SHAPES = [(12,), (4, 3)]


def regularizer(name, **changes):
    reg = prepare(small(f"reg={name}")).reg
    known = {field.name for field in fields(reg)}
    return replace(reg, **{key: value for key, value in ({"strength": 0.7} | changes).items() if key in known})


def having(method):
    return [name for name in REGULARIZERS if hasattr(regularizer(name), method)]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def points(rng, shape, count=8):
    """Random points of several sizes, some entries zero."""
    for _ in range(count):
        yield jnp.asarray(rng.standard_normal(shape) * 10 ** rng.uniform(-1, 1) * (rng.random(shape) < 0.8))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", REGULARIZERS)
def test_value(name, shape, rng):
    reg = regularizer(name)
    assert reg.value(jnp.zeros(shape)) == 0
    for w in points(rng, shape):
        value = reg.value(w)
        assert value.shape == ()
        assert value >= 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", REGULARIZERS)
def test_prox_minimises_strongly(name, shape, rng):
    """t psi(u) + ||u - z||^2 / 2 is at least its value at the prox plus ||u - prox||^2 / 2, for any u."""
    reg = regularizer(name)

    def objective(u, z, t):
        return t * reg.value(u) + ((u - z) ** 2).sum() / 2

    for z in points(rng, shape):
        t = 10 ** rng.uniform(-1.5, 1)
        best = reg.prox(z, t)
        assert best.shape == z.shape
        others = [best + s * jnp.asarray(rng.standard_normal(shape)) for s in (1e-4, 1e-2, 1)]
        for u in [*others, z, jnp.zeros(shape), 0.99 * best, 1.01 * best]:
            gap = objective(u, z, t) - objective(best, z, t) - ((u - best) ** 2).sum() / 2
            assert gap >= -1e-11 * (1 + objective(u, z, t))


@pytest.mark.parametrize("name", REGULARIZERS)
def test_prox_is_firmly_nonexpansive(name, rng):
    reg = regularizer(name)
    for x, y in zip(points(rng, (12,)), points(rng, (12,)), strict=True):
        p, q = reg.prox(x, 0.6), reg.prox(y, 0.6)
        assert ((p - q) ** 2).sum() <= ((p - q) * (x - y)).sum() + 1e-12


@pytest.mark.parametrize("name", having("conjugate"))
def test_moreau_identity_and_conjugate(name, rng):
    """z = prox(z) + v with v a subgradient there, at which psi and its conjugate meet; elsewhere they do not cross."""
    reg = regularizer(name)
    for z in points(rng, (12,)):
        w = reg.prox(z, 1.0)
        v = z - w
        v = v * reg.dual_scale(v)
        np.testing.assert_allclose(v, z - w, rtol=1e-12, atol=1e-14)  # the conjugate is finite there
        np.testing.assert_allclose(reg.value(w) + reg.conjugate(v), (w * v).sum(), atol=1e-10)
        other = jnp.asarray(rng.standard_normal(12))
        assert reg.value(other) + reg.conjugate(v) >= (other * v).sum() - 1e-12
    far = jnp.asarray(100 * rng.standard_normal(12))
    scale = reg.dual_scale(far)
    assert 0 <= scale <= 1
    for w in points(rng, (12,)):
        assert reg.value(w) + reg.conjugate(scale * far) >= (w * scale * far).sum() - 1e-10


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", having("subgradient"))
def test_subgradient(name, shape, rng):
    reg = regularizer(name)
    for w in [*points(rng, shape), jnp.zeros(shape)]:
        g = reg.subgradient(w)
        assert g.shape == w.shape
        for u in points(rng, shape, 5):
            assert reg.value(u) >= reg.value(w) + (g * (u - w)).sum() - 1e-10


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", having("strength_max"))
def test_strength_max(name, shape, rng):
    """0 minimises <gradient, w> + psi(w) locally just above it, and not just below."""
    for gradient in points(rng, shape):
        largest = float(regularizer(name).strength_max(gradient))
        above, below = (regularizer(name, strength=factor * largest) for factor in (1.0001, 0.9999))
        assert not above.prox(-gradient, 1.0).any()
        assert below.prox(-gradient, 1.0).any()


@pytest.mark.parametrize("name", [n for n in REGULARIZERS if hasattr(regularizer(n), "relative")])
def test_relative_needs_a_largest_strength(name):
    assert hasattr(regularizer(name), "strength_max")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", REGULARIZERS)
def test_under_jit_and_vmap_with_traced_numbers(name, dtype, rng):
    reg = regularizer(name)
    z = jnp.asarray(rng.standard_normal((3, 12)), dtype)
    settings = [{key: value * factor for key, value in numbers(reg).items()} for factor in (1, 0.5, 0)]
    stacked = jax.tree.map(lambda *v: jnp.asarray(v, dtype), *settings)
    methods = {"value": (), "prox": (jnp.asarray(0.3, dtype),)}
    methods |= {name: () for name in ("subgradient", "conjugate", "dual_scale") if hasattr(reg, name)}
    for method, rest in methods.items():

        def call(numbers, z, method=method, rest=rest):
            return getattr(replace(reg, **numbers), method)(z, *rest)

        together = jax.jit(jax.vmap(call, in_axes=(0 if stacked else None, 0)))(stacked, z)
        assert together.dtype == dtype
        for g in range(3):
            alone = call(settings[g], z[g])
            assert alone.dtype == dtype
            np.testing.assert_allclose(together[g], alone, rtol=1e-12 if dtype == "float64" else 1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [n for n in REGULARIZERS if hasattr(regularizer(n), "strength")])
def test_strength_zero_is_no_regularizer(name, rng):
    reg = regularizer(name, strength=0.0)
    for z in points(rng, (12,), 3):
        np.testing.assert_array_equal(reg.prox(z, 2.0), z)
        assert reg.value(z) == 0


@pytest.mark.parametrize("name", REGULARIZERS)
def test_structure(name):
    w = jnp.asarray([0, 1e-5, -1e-5, 2e-3, -3, 5.0])
    found = regularizer(name).structure(w, 1e-4)
    assert all(jnp.shape(value) == () for value in found.values())
    assert found.get("density", 0.5) == 0.5


@pytest.mark.parametrize(
    ("name", "value", "prox"),
    [("l1", 0.7 * 3.5, [0.86, 0, -1.36]), ("l2", 0.7 * 5.25, [1 / 1.28, 0.5 / 1.28, -2 / 1.28])],
)
def test_by_hand(name, value, prox):
    reg, w = regularizer(name), jnp.asarray([1, 0.5, -2.0])
    assert reg.value(w) == pytest.approx(value if name == "l1" else 0.7 * 5.25)
    expected = prox if name == "l2" else [1 - 0.14, 0.5 - 0.14, -2 + 0.14]
    np.testing.assert_allclose(reg.prox(w, 0.2), expected, rtol=1e-12)
