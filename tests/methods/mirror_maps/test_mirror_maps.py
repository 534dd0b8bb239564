"""The checks of mirror maps, on every map of conf/mirror with every regularizer that the map supports."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import choice_names, plugin_of, small, snapshots

from fcorun import UserError
from fcorun.experiment.prepare import prepare
from fcorun.interface.checks.mirror_maps import CHECKS, PAIR_CHECKS, PairCase, check_retrieve_minimizes, domain_points

pytestmark = pytest.mark.usefixtures("x64")

WEIGHTS = [0.2, 0.5, 1.0, 1.0, 1.5, 2.0, 3.0, 0.7, 4.0, 9.0]
OTHERS = {"diagonal": {"weights": WEIGHTS}, "p_norm": {"p": 1.5}, "hypentropy": {"beta": 0.1}}


NEEDED = {"graph_net": {"graph": "chain"}}
REGULARIZERS = {name: plugin_of("reg", name, **NEEDED.get(name, {})) for name in choice_names("reg")}
MIRRORS = {name: plugin_of("mirror", name) for name in choice_names("mirror")}
VARIANTS = MIRRORS | {f"{name}*": replace(MIRRORS[name], **changes) for name, changes in OTHERS.items()}
MAPS = [pytest.param(mirror, id=name) for name, mirror in VARIANTS.items()]
PAIRS = [
    pytest.param(mirror, reg, id=f"{map_name}-{name}")
    for map_name, mirror in VARIANTS.items()
    for name, reg in REGULARIZERS.items()
    if mirror.supports(reg) and not (map_name == "euclidean" and getattr(reg, "project", None))
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("mirror", MAPS)
def test_every_map_passes_every_check(mirror, check):
    check(mirror)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "case"),
    [
        pytest.param(check, PairCase(*pair.values), id=f"{pair.id}-{check.__name__}")  # type: ignore[arg-type]
        for pair in PAIRS
        for check in PAIR_CHECKS
        if check is check_retrieve_minimizes or not str(pair.id).startswith("euclidean")
    ],
)
def test_every_pair_of_map_and_regularizer_passes_every_check(check, case):
    check(case)


@pytest.mark.parametrize(
    ("name", "h"),
    [
        ("euclidean", lambda w: (w**2).sum() / 2),
        ("diagonal*", lambda w: jnp.asarray(WEIGHTS) @ w**2 / 2),
        ("p_norm*", lambda w: (jnp.abs(w) ** 1.5).sum() ** (2 / 1.5) / 2),
        ("entropy", lambda w: (w * jnp.log(w) - w).sum()),
        ("hypentropy*", lambda w: (w * jnp.arcsinh(w / 0.1) - jnp.sqrt(w**2 + 0.01)).sum()),
    ],
)
def test_to_dual_is_the_gradient_of_h(name, h):
    for w in domain_points(VARIANTS[name]):
        np.testing.assert_allclose(VARIANTS[name].to_dual(w), jax.grad(h)(w), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [1e-30, 1, 1e30])
def test_p_norm_neither_over_nor_underflows(size):
    mirror = MIRRORS["p_norm"]
    w = jnp.asarray([1, -2, 0, 0.5, 3, -0.1, 2, 1, 1, 1], "float32")
    for method in (mirror.to_dual, mirror.to_primal):
        np.testing.assert_allclose(method(w * size) / size, method(w), rtol=1e-5)
    np.testing.assert_array_equal(mirror.to_dual(0 * w), 0 * w)
    np.testing.assert_array_equal(mirror.to_primal(0 * w), 0 * w)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000])
def test_the_default_p_depends_on_the_number_of_entries(size):
    p = MIRRORS["p_norm"].exponent(size)
    assert 1 < p <= 2
    assert p == pytest.approx(2 if size < 3 else 2 * np.log(size) / (2 * np.log(size) - 1))


def test_a_diagonal_multiplies_the_rows_of_a_matrix():
    w = np.random.default_rng(0).standard_normal((10, 3))
    np.testing.assert_allclose(VARIANTS["diagonal*"].to_dual(jnp.asarray(w)), w * np.array(WEIGHTS)[:, None])


def test_singular_values_of_a_matrix():
    mirror = replace(MIRRORS["spectral_hypentropy"], beta=0.3)
    w = np.random.default_rng(0).standard_normal((10, 3))
    s = np.linalg.svd(w, compute_uv=False)
    dual = mirror.to_dual(jnp.asarray(w))
    np.testing.assert_allclose(np.linalg.svd(dual, compute_uv=False), np.arcsinh(s / 0.3), rtol=1e-12)
    h = sum(jax.grad(lambda s: s * jnp.arcsinh(s / 0.3) - jnp.sqrt(s**2 + 0.09))(each) for each in s)
    np.testing.assert_allclose(np.linalg.norm(dual, "nuc"), h, rtol=1e-12)
    psi = replace(REGULARIZERS["nuclear"], strength=float(np.arcsinh(s / 0.3)[1]) + 0.01)
    assert np.linalg.matrix_rank(mirror.retrieve(dual, 1.0, psi), tol=1e-12) == 1


@pytest.mark.parametrize("scale", [1.0, 1e7, 1e30])
def test_a_ball_of_large_points_in_float32_has_the_ratios_of_float64(scale):
    mirror = replace(VARIANTS["diagonal*"], weights=[1.0, 3e6])
    psi, z = replace(REGULARIZERS["l2_ball"], radius=1.0), np.array([scale, scale])
    expected = np.asarray(mirror.retrieve(jnp.asarray(z), 1.0, psi))
    found = np.asarray(mirror.retrieve(jnp.asarray(z, jnp.float32), 1.0, psi))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_zeros_are_exact():
    for name in ("diagonal*", "p_norm", "hypentropy"):
        z = jnp.asarray([0.1, -0.5, 2, 0, 1, 1, 1, 1, 1, 1])
        w = VARIANTS[name].retrieve(z, 1.0, replace(REGULARIZERS["l1"], strength=0.6))
        assert (w == 0).tolist() == [True, True, False, True, *[False] * 6]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["mirror=p_norm", "mirror.p=2.5"], ["mirror.p=2.5", "at most 2"]),
        (["mirror=p_norm", "mirror.p=1"], ["mirror.p=1", "above 1"]),
        (["mirror=diagonal", "mirror.weights=[1,0]"], ["mirror.weights", "positive"]),
        (["mirror=hypentropy", "mirror.beta=0"], ["mirror.beta", "positive"]),
        (["mirror=entropy", "reg=box", "reg.lower=-1", "reg.upper=0"], ["mirror=entropy", "reg.upper=0"]),
        (["mirror=entropy", "reg=l2"], ["mirror=entropy", "reg=l2", "simplex"]),
        (["mirror=diagonal", "reg=tv"], ["mirror=diagonal", "reg=tv"]),
    ],
)
def test_invalid_options_are_refused(overrides, words):
    with pytest.raises(UserError) as error:
        prepare(small(*overrides))
    assert all(word in str(error.value) for word in words)


def test_weights_for_other_features_are_refused():
    with pytest.raises(UserError, match=r"mirror.weights has 2 numbers for 20 features"):
        snapshots(small("mirror=diagonal", "mirror.weights=[1,2]"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mirror", "reg"),
    [("entropy", "simplex"), ("entropy", "box"), ("p_norm", "l1"), ("hypentropy", "l1"), ("diagonal", "l2_ball")],
)
def test_rounds(mirror, reg):
    settings = ("algo=feddualavg", "algo.client_lr=0.01", "algo.server_lr=1", "rounds=4")
    first, *_, last = all_snapshots = snapshots(small(f"mirror={mirror}", f"reg={reg}", *settings))
    assert all(np.isfinite(value).all() for snapshot in all_snapshots for value in snapshot.metrics.values())
    assert last.metrics["train_loss"] < first.metrics["train_loss"]
    assert last.metrics.get("violation", 0) <= 1e-5
