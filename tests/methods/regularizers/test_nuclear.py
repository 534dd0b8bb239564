"""The nuclear norm and its ball, compared with NumPy's singular value decomposition in float64."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcorun.methods.regularizers.nuclear import Nuclear, NuclearBall

pytestmark = pytest.mark.usefixtures("x64")

SHAPES = [(32, 32), (40, 7), (5, 60), (1, 6), (1, 1)]
DTYPES = ["float32", "float64"]


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def orthogonal(rng, *shape):
    return np.linalg.qr(rng.standard_normal(shape))[0]


def with_singular_values(rng, values, rows=None):
    """Return matrices (count, rows, k) with the given singular values (count, k)."""
    count, k = values.shape
    left, right = orthogonal(rng, count, rows or k, k), orthogonal(rng, count, k, k)
    return left * values[:, None, :] @ right


def exact_prox(z, t):
    u, s, vt = np.linalg.svd(np.asarray(z, np.float64), full_matrices=False)
    return u * np.maximum(s - t, 0)[..., None, :] @ vt


def jit_vmap(method):
    return jax.jit(jax.vmap(method))


prox = jit_vmap(lambda z, t, strength: Nuclear(strength=strength).prox(z, t))
rank = jit_vmap(lambda w: Nuclear(strength=1.0).structure(w, 1e-4)["rank"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_prox_of_any_shape_and_threshold(shape, dtype, rng):
    """The prox is tested under jit and vmap with every number traced."""
    t = np.array([0, 1e-6, 1e-3, 0.1, 0.5, 1, 2, 5, 10, 1e3])
    z = jnp.asarray(rng.standard_normal((len(t), *shape)), dtype)
    result = prox(z, jnp.asarray(t / 0.5, dtype), jnp.full(len(t), 0.5, dtype))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result[0], z[0])
    assert not result[-1].any()
    norm = np.linalg.norm(z, axis=(1, 2), keepdims=True)
    error = np.abs(result - np.stack([exact_prox(*pair) for pair in zip(z, t, strict=True)])) / norm
    assert error.max() < (3e-6 if dtype == "float32" else 1e-13)
    if shape == (5, 60):
        single = jax.jit(lambda z: Nuclear(strength=0.5).prox(z, 1.0))(z[4])
        np.testing.assert_allclose(single, result[4], atol=1e-5 if dtype == "float32" else 1e-12)


def hard_cases(rng, count=40, k=32):
    """Yield a name, singular values (count, k) and a threshold."""
    near = rng.choice([-1, 1], (count, k)) * 10 ** rng.uniform(-7, -1, (count, k))
    half = np.arange(k) < k // 2
    yield (
        "low rank and noise",
        np.where(half, 3 + rng.uniform(0.1, 1.2, (count, k)), rng.uniform(0, 3, (count, k))),
        3.0,
    )
    yield "all near the threshold", 3 * (1 + near), 3.0
    yield "half at the threshold", np.where(half, 4, 3.0 * np.ones((count, k))), 3.0
    yield "all equal, above", np.full((count, k), 5.0), 3.0
    yield "all equal, below", np.full((count, k), 2.9), 3.0
    yield "a large threshold", 65 * (1 + near / 10), 65.0
    yield "a small threshold", rng.uniform(0, 4, (count, k)), 0.01
    yield "over six decades", 10 ** rng.uniform(-5, 1, (count, k)), 0.05
    yield "one far above", np.where(np.arange(k) == 0, 30.0, 0.5 * (1 + near)), 0.5
    yield "zero but for one", np.where(np.arange(k) == 0, 2.0, 0.0 * near), 0.5
    yield "large", 1e12 * rng.uniform(0, 4, (count, k)), 2e12
    yield "small", 1e-12 * rng.uniform(0, 4, (count, k)), 2e-12


@pytest.mark.parametrize("case", range(12))
def test_hard_cases_in_float32(case, rng):
    """Errors are rounding errors, and the rank is exact unless a singular value is that close to the cutoff."""
    name, values, t = list(hard_cases(rng))[case]
    z = jnp.asarray(with_singular_values(rng, values), jnp.float32)
    result = prox(z, jnp.full(len(z), t, jnp.float32), jnp.ones(len(z), jnp.float32))
    expected = exact_prox(z, t)
    norm = np.linalg.norm(z, 2, axis=(1, 2))
    assert (np.abs(result - expected).max((1, 2)) / norm).max() < 2e-6, name
    s, exact = (np.linalg.svd(np.asarray(w, np.float64), compute_uv=False) for w in (result, expected))
    assert (np.abs(s - exact).max(1) / norm).max() < 2e-6
    unambiguous = (np.abs(exact - 1e-4) > 2e-6 * norm[:, None]).all(1)
    np.testing.assert_array_equal(rank(result)[unambiguous], (exact > 1e-4).sum(1)[unambiguous])
    if case in (0, 2, 3, 4, 9):
        assert unambiguous.all()


@pytest.mark.slow
def test_zero_matrices_stay_zero():
    zero = jnp.zeros((2, 32, 32))
    for dtype in DTYPES:
        t = jnp.asarray([0, 1], dtype)
        np.testing.assert_array_equal(prox(zero.astype(dtype), t, jnp.ones(2, dtype)), zero)
    np.testing.assert_array_equal(NuclearBall(radius=1.0).project(zero[0]), zero[0])
    np.testing.assert_array_equal(Nuclear(strength=0.3).subgradient(zero[0]), zero[0])
    assert Nuclear(strength=0.3).structure(zero[0], 1e-4)["rank"] == 0


def test_nan_stays_nan():
    not_finite = jnp.full((2, 32, 32), jnp.nan, jnp.float32)
    assert jnp.isnan(prox(not_finite, jnp.ones(2, jnp.float32), jnp.ones(2, jnp.float32))).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_strength_max(dtype, rng):
    gradient = jnp.asarray(rng.standard_normal((9, 5)), dtype)
    largest = float(Nuclear(strength=1.0).strength_max(gradient))
    assert largest == pytest.approx(np.linalg.norm(gradient, 2), rel=1e-6)
    above, below = prox(jnp.stack([-gradient] * 2), jnp.ones(2, dtype), largest * jnp.asarray([1.001, 0.999], dtype))
    assert not above.any()
    assert Nuclear(strength=1.0).structure(below, 1e-4 * largest)["rank"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (3, 8)])
def test_moreau_conjugate_and_subgradient(shape, rng):
    psi = Nuclear(strength=0.7)
    for scale in (0.1, 1, 10):
        z = jnp.asarray(scale * rng.standard_normal(shape))
        w = psi.prox(z, 1.0)
        v = z - w  # the projection of z onto the ball of the spectral norm, and a subgradient at w
        u, s, vt = np.linalg.svd(z, full_matrices=False)
        np.testing.assert_allclose(v, u * np.minimum(s, 0.7) @ vt, atol=1e-12)
        assert psi.dual_scale(v) == pytest.approx(1)
        assert psi.value(w) + psi.conjugate(v) == pytest.approx(float((w * v).sum()), abs=1e-10)
        assert psi.dual_scale(z) * np.linalg.norm(z, 2) <= 0.7 + 1e-12
        g = psi.subgradient(w)
        assert np.linalg.norm(g, 2) <= 0.7 + 1e-12
        assert psi.value(w) == pytest.approx(float((g * w).sum()), abs=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_ball(shape, dtype, rng):
    """The projection p is in the ball, and <z - p, u - p> <= 0 for all u in it: radius ||z - p||_2 <= <z - p, p>."""
    radius = jnp.asarray(np.geomspace(0.1, 20, 8), dtype)
    z = jnp.asarray(rng.standard_normal((8, *shape)), dtype)
    projections = jit_vmap(lambda z, radius: NuclearBall(radius=radius).prox(z, 0.3))(z, radius)
    assert projections.dtype == dtype
    slack = 1e-5 if dtype == "float32" else 1e-12
    for p, point, r in zip(
        np.asarray(projections, np.float64), np.asarray(z, np.float64), np.asarray(radius), strict=True
    ):
        assert np.linalg.norm(p, "nuc") <= r * (1 + slack)
        size = np.linalg.norm(point) * r
        assert r * np.linalg.norm(point - p, 2) <= ((point - p) * p).sum() + slack * size
        is_inside = np.linalg.norm(point, "nuc") <= r
        assert (p == point).all() == is_inside
        assert NuclearBall(radius=float(r)).value(jnp.asarray(p)) == 0
        assert np.isinf(NuclearBall(radius=float(r)).value(jnp.asarray(p * 1.1))) or is_inside
    assert NuclearBall(radius=1.0).structure(jnp.diag(jnp.asarray([3, 1e-5, -2])), 1e-4)["rank"] == 2


def test_only_matrices():
    for psi in (Nuclear(strength=1.0), NuclearBall(radius=1.0)):
        psi.check((3, 4))
        for shape in [(3,), (2, 3, 4)]:
            with pytest.raises(ValueError, match="matrices"):
                psi.check(shape)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_concurrent_programs_do_not_deadlock(dtype, rng):
    """With batches of LAPACK calls, jaxlib 0.10 deadlocked in about one of a hundred calls."""
    z = jnp.asarray(rng.standard_normal((60, 32, 32)), dtype)
    program = jit_vmap(lambda z: Nuclear(strength=1.0).value(Nuclear(strength=1.0).prox(z, 3.0))).lower(z).compile()

    def run(_):
        with jax.enable_x64(dtype == "float64"):  # a setting of each thread
            return np.asarray(program(z)).tobytes()

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(run, range(40)))) == 1
